--- The base of everything with parameters: declares parameters, buffers and children into arrays,
--- names them by their path, and runs `forward` between its hooks inside a scope.
---
--- Order never comes from pairs(): what a module declares first comes first, on every rank.
--- Parameters take no memory when they are declared. The first call (or a state dict) names them by
--- their path from the outermost module and gives them memory and first values, which depend on
--- nothing but name, element index, the seed when the module was made, and how many modules with
--- parameters were made before this tree since the seed was set (none for the first, whatever wraps
--- it). So a module put into a model that has run, `model.head = nn.Linear(4, 2)`, has the first
--- values of a model that was made with it; one that was called alone before that keeps its own.

local Buffer = require 'moonshard.nn.buffer'
local casts = require 'moonshard.nn.casts'
local class = require 'moonshard.base.class'
local declared = require 'moonshard.nn.declared'
local errors = require 'moonshard.base.errors'
local fields = require 'moonshard.nn.fields'
local finally = require 'moonshard.base.finally'
local hooks = require 'moonshard.nn.hooks'
local names = require 'moonshard.nn.names'
local without_jit = require 'moonshard.base.without_jit'
local samples = require 'moonshard.base.samples'
local scope = require 'moonshard.base.scope'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'
local watched = require 'moonshard.nn.watched'
local arguments = require 'moonshard_ffi.arguments'
local parameter = require 'moonshard_ffi.parameter'
local zero_grad = require 'moonshard.autograd.zero_grad'

---@class ms.nn.DeclaredParam
---@field name string
---@field tensor ms.Tensor?
---@field shape integer[]
---@field declared ms.Tensor?  what was made by `rule`; another tensor may have been tied since
---@field rule ms.nn.InitRule?

---@class ms.nn.Module
---@field training boolean  what train() and eval() set
---@field _params ms.nn.DeclaredParam[]
---@field _buffers ms.nn.Buffer[]
---@field _children { name: string, module: ms.nn.Module, key: string|integer }[]
---@field _owner ms.nn.Module?  the first of the modules that hold this one as their child
---@field _home ms.nn.Module?  see [Note: homes] in moonshard.nn.tree
---@field _fields ms.nn.Watched[]|false|nil  false: to be listed again
local Module = class('nn.Module')

Module._is_module = true
Module.training = true
Module._params = {}
Module._buffers = {}
Module._children = {}
Module._ready = false
--- Names of fields that forward computes with, equal on all ranks: see moonshard.fsdp.settings.
Module._settings = {}
--- A transparent module adds nothing to the paths of what is below it.
Module._transparent = false

-- Called with a dot, it must know its class: so each class has one of its own.
local function extend_of(cls)
  --- A class that inherits from this one (or from `parent`).
  ---@param name string  e.g. 'nn.Linear'; what printing and errors call it
  ---@param parent? table  default: the class this is called on
  ---@return table
  return function(name, parent)
    arguments.text('extend', 'name', name)
    local is_class = type(parent) == 'table' and rawget(parent, '_name') and parent._is_module
    if parent ~= nil and not is_class then
      errors.raise('TypeError', "extend: 'parent' is %s, expected a class of modules",
        arguments.noun(parent))
    end
    return class(name, parent or cls)
  end
end

function Module._init_subclass(cls)
  cls.extend = extend_of(cls)
end

Module._init_subclass(Module)

--- `self.attn = nn.Linear(2, 2)` declares a child; see moonshard.nn.fields.
Module.__newindex = fields.assign

-- -- declaring -----------------------------------------------------------------------------------

-- The instance's own array; the class's empty one stands for "none".
local function own(self, field)
  local list = rawget(self, field)
  if not list then
    list = {}
    rawset(self, field, list)
  end
  return list
end

-- Has the class something of that name that a script may not hide?
local function is_taken(self, name)
  return self[name] ~= nil
end

local function check_name(self, what, name)
  arguments.text(what, 'name', name)
  if name == '' or name:find('.', 1, true) then
    errors.raise('KeyError', "%s name '%s' %s", what, name, name == '' and 'is empty'
      or 'contains a dot, which stands between the names of modules')
  end
  for _, field in ipairs { '_params', '_buffers', '_children' } do
    if declared(self[field], 'name', name) then
      errors.raise('KeyError', "%s '%s' is already declared", what, name)
    end
  end
  if is_taken(self, name) then
    errors.raise('KeyError', "attribute '%s' already exists in %s", name, self._name)
  end
end

local function add_param(self, name, tensor, shape, rule)
  tree.check_unsealed(self, 'parameter', name)
  local list = own(self, '_params')
  list[#list + 1] = {
    name = name, tensor = tensor, shape = shape, declared = rule and tensor, rule = rule,
  }
  rawset(self, name, tensor)
  rawset(self, '_ready', false)
  tree.changed(self)
  return tensor
end

---@class ms.nn.InitRule
---@field kind 'none'|'constant'|'uniform'|'normal'
---@field a? number  constant; lower bound; mean
---@field b? number  upper bound; deviation
---@field zeros? integer[]  elements that are 0 whatever the kind: the first (from 0), the number

---@class ms.nn.ParamOptions
---@field dtype? ms.DType  of the master values (default 'f32')
---@field requires_grad? boolean  default true

-- A module with random numbers of its own is one of all made since the seed: see names.stream().
function Module:_take_stream()
  rawset(self, '_stream', rawget(self, '_stream') or parameter.next_stream())
end

--- Declare a parameter. It takes memory only when it is materialised.
---@param name string  unique in this module
---@param shape integer[]
---@param rule? ms.nn.InitRule  first values; without one all are 0, of which a weight may never
---                            learn: nn.init has others
---@param opts? ms.nn.ParamOptions
---@return ms.Tensor
function Module:param(name, shape, rule, opts)
  opts = errors.options('param', opts,
    { device = 'device', dtype = 'floating', requires_grad = 'flag' })
  check_name(self, 'parameter', name)
  arguments.array('param', 'shape', shape)
  for i = 1, #shape do
    arguments.whole('param', ('shape[%d]'):format(i), shape[i], nil, 0)
  end
  if rule ~= nil then
    arguments.rule('param', 'rule', rule)
  end
  rule = rule or { kind = 'constant', a = 0 }
  local tensor = parameter.declare(opts.dtype or 'f32', shape, rule)
  if opts.requires_grad == false then
    tensor:requires_grad_(false)
  end
  parameter.set_name(tensor, name) -- till it gets its path
  self:_take_stream()
  local copy = {}
  for i = 1, #shape do
    copy[i] = shape[i]
  end
  return add_param(self, name, tensor, copy, rule)
end

--- Give parameters of this module that have no values yet other rules for their first values.
---@param rule_of fun(shape: integer[]): ms.nn.InitRule?  nil: as it is
function Module:_change_rules(rule_of)
  for _, p in ipairs(self._params) do
    local tensor, rule = tree.param(self, p), rule_of(p.shape)
    if rule and rawequal(tensor, p.declared) and not parameter.has_values(tensor) then
      local other = parameter.declare(tensor:dtype(), p.shape, rule)
      other:requires_grad_(tensor:requires_grad())
      parameter.set_name(other, p.name)
      p.tensor, p.declared, p.rule = other, other, rule
      rawset(self, p.name, other)
      tree.changed(self)
    end
  end
end

--- Give a parameter that exists already a second name here: both are one tensor from now on. In the
--- place of one that is declared it is put by assigning it to the field.
---@param name string  unique in this module
---@param tensor ms.Tensor  a parameter
---@return ms.Tensor
function Module:tie(name, tensor)
  if declared(self._params, 'name', name) then
    errors.raise('KeyError', "tie: parameter '%s' of %s is already declared, expected a name that "
      .. 'has none; to tie that one: module.%s = t', name, self._name, name)
  end
  check_name(self, 'parameter', name)
  arguments.tensor('tie', 'tensor', tensor)
  parameter.make(scope.keep(tensor))
  return add_param(self, name, tensor, parameter.shape(tensor))
end

--- Declare a tensor that belongs to the module but is not learned.
---@param name string
---@param tensor ms.Tensor
---@param opts? { persistent?: boolean }  persistent: part of state dicts (default true)
---@return ms.Tensor
function Module:buffer(name, tensor, opts)
  opts = errors.options('buffer', opts, { persistent = 'flag' })
  check_name(self, 'buffer', name)
  arguments.tensor('buffer', 'tensor', tensor)
  local list = own(self, '_buffers')
  list[#list + 1] = Buffer.declare(self, name, tensor, opts.persistent ~= false)
  tree.changed(self)
  return tensor
end

--- Replace the tensor behind a declared buffer.
---@param name string
---@param tensor ms.Tensor
function Module:set_buffer(name, tensor)
  local entry = declared(self._buffers, 'name', name)
  if not entry then
    errors.raise('KeyError', "%s has no buffer '%s'", self._name, tostring(name))
  end
  arguments.tensor('set_buffer', 'tensor', tensor)
  entry:replace(tensor)
end

--- PyTorch's name of buffer().
---@param name string
---@param tensor ms.Tensor
---@param opts? { persistent?: boolean }
---@return ms.Tensor
function Module:register_buffer(name, tensor, opts)
  arguments.tensor('register_buffer', 'tensor', tensor)
  return self:buffer(name, tensor, opts)
end

--- PyTorch's name of tie(): the tensor becomes a parameter.
---@param name string
---@param tensor ms.Tensor?  nil: there is no parameter of that name
---@return ms.Tensor?
function Module:register_parameter(name, tensor)
  if tensor == nil then
    return check_name(self, 'parameter', name)
  end
  arguments.tensor('register_parameter', 'tensor', tensor)
  return self:tie(name, tensor)
end

local function check_module(self, name, module)
  if not tree.is_module(module) then
    errors.raise('TypeError', "child '%s' of %s is %s, expected a module", tostring(name),
      self._name, arguments.noun(module))
  end
end

--- Declare a submodule.
---@generic M: ms.nn.Module
---@param name string  unique in this module
---@param module M
---@param key? string|integer  field of this module that holds it (default: its name)
---@return M
function Module:child(name, module, key)
  check_module(self, name, module)
  check_name(self, 'child', name)
  if key ~= nil and type(key) ~= 'string' then
    arguments.whole('child', 'key', key)
  end
  tree.check_unsealed(self, 'child', name)
  tree.check_acyclic(self, name, module)
  local list = own(self, '_children')
  local entry = { name = name, module = module, key = key or name }
  list[#list + 1] = entry
  tree.place(self, entry, module)
  tree.adopt(self, module)
  return module
end

--- PyTorch's names of child().
Module.add_module, Module.register_module = Module.child, Module.child

--- Put another module in the place of a declared child (what wrapping does). RuntimeError once FSDP
--- has made units over this module, unless the other one wraps the child.
---@param name string
---@param module ms.nn.Module
function Module:set_child(name, module)
  local entry = declared(self._children, 'name', name)
  if not entry and self._transparent then -- paths do not show the wrapper
    return self.module:set_child(name, module)
  elseif not entry then
    errors.raise('KeyError', "%s has no child '%s'", self._name, tostring(name))
  end
  check_module(self, name, module)
  local old = entry.module
  tree.check_unsealed(self, 'child', name, old, module)
  tree.check_acyclic(self, name, module)
  entry.module = module
  tree.place(self, entry, module)
  tree.adopt(self, module)
  if module._transparent and old == module.module then
    tree.adopt(module, old)
  end
  if self._shows_entries then
    tree.show_entries(self)
  end
end

-- -- walking -------------------------------------------------------------------------------------

--- Iterate over (path, module), this module first under the path ''. Also an array of
--- { path, module }.
---@param remove_duplicates? boolean  default true
---@return fun(): string?, ms.nn.Module?
function Module:named_modules(remove_duplicates)
  arguments.flag('named_modules', 'remove_duplicates', remove_duplicates, true)
  return tree.iterable(tree.walk(self, remove_duplicates), 'path', 'module')
end

--- All distinct modules, this one first: an array, and `for module in model:modules() do`.
---@return ms.nn.Module[]
function Module:modules()
  local out = {}
  for i, entry in ipairs(tree.walk(self)) do
    out[i] = entry.module
  end
  return tree.iterable(out)
end

--- Direct children, in order of declaration.
---@return ms.nn.Module[]
function Module:children()
  local out = {}
  for i, entry in ipairs(tree.children(self)) do
    out[i] = entry.module
  end
  return tree.iterable(out)
end

--- Iterate over (name, child).
---@return fun(): string?, ms.nn.Module?
function Module:named_children()
  return tree.iterable(tree.children(self), 'name', 'module')
end

--- Iterate over (path, parameter), in order of declaration. Also an array of
--- { name, tensor, shape, module }, the shape being that of the whole parameter. FSDP with
--- use_orig_params = false shows one flat parameter a unit, `<path>._flat_param`, but inside
--- summon_full_params.
---@param recurse? boolean  those of submodules too (default true)
---@param remove_duplicates? boolean  list a tied parameter once, by its first name (default true)
---@return fun(): string?, ms.Tensor?
function Module:named_parameters(recurse, remove_duplicates)
  arguments.flag('named_parameters', 'recurse', recurse, true)
  arguments.flag('named_parameters', 'remove_duplicates', remove_duplicates, true)
  self:_prepare()
  local params = tree.params(self, recurse, remove_duplicates, '_flat_parameter')
  return tree.iterable(params, 'name', 'tensor')
end

--- All distinct parameters: what an optimizer takes. An array, and
--- `for p in model:parameters() do`. Those of a wrapped module are this rank's shards between
--- forwards, so their sum is not that of the model. A loss term over them is computed in the
--- forward of the module that is wrapped with them; elsewhere its backward is a RuntimeError.
---@param recurse? boolean  default true
---@return ms.Tensor[]
function Module:parameters(recurse)
  arguments.flag('parameters', 'recurse', recurse, true)
  self:_prepare()
  local out = {}
  for i, p in ipairs(tree.params(self, recurse, true, '_flat_parameter')) do
    out[i] = p.tensor
  end
  return tree.iterable(out)
end

--- Iterate over (path, buffer). Also an array of { name, tensor, module }.
---@param recurse? boolean  those of submodules too (default true)
---@param remove_duplicates? boolean  list a tensor once, by its first name (default true)
---@return fun(): string?, ms.Tensor?
function Module:named_buffers(recurse, remove_duplicates)
  arguments.flag('named_buffers', 'recurse', recurse, true)
  arguments.flag('named_buffers', 'remove_duplicates', remove_duplicates, true)
  return tree.iterable(tree.buffers(self, recurse, remove_duplicates), 'name', 'tensor')
end

--- All distinct buffers: an array, and `for b in model:buffers() do`.
---@param recurse? boolean  default true
---@return ms.Tensor[]
function Module:buffers(recurse)
  arguments.flag('buffers', 'recurse', recurse, true)
  local out = {}
  for i, b in ipairs(tree.buffers(self, recurse)) do
    out[i] = b.tensor
  end
  return tree.iterable(out)
end

--- Path of this module from the outermost one, '' for that one itself.
---@return string
function Module:path()
  return tree.path(self)
end

--- The module at a path; '' is this one. KeyError names what is missing.
---@param path string
---@return ms.nn.Module
function Module:get_submodule(path)
  arguments.text('get_submodule', 'path', path)
  for _, entry in ipairs(tree.walk(self, false)) do
    if entry.path == path then
      return entry.module
    end
  end
  errors.raise('KeyError', "%s has no submodule '%s'", self._name, path)
end

local function named(self, what, list, path)
  for _, entry in ipairs(list) do
    if entry.name == path then
      return entry.tensor
    end
  end
  errors.raise('KeyError', "%s has no %s '%s'", self._name, what, path)
end

--- The parameter at a path, as named_parameters() shows it. KeyError if there is none.
---@param path string
---@return ms.Tensor
function Module:get_parameter(path)
  arguments.text('get_parameter', 'path', path)
  return named(self, 'parameter', self:named_parameters(true, false), path)
end

--- The buffer at a path. KeyError if there is none.
---@param path string
---@return ms.Tensor
function Module:get_buffer(path)
  arguments.text('get_buffer', 'path', path)
  return named(self, 'buffer', tree.buffers(self, true, false), path)
end

--- Put another module in the place of the one at a path: set_child() of its parent.
---@param path string  not ''
---@param module ms.nn.Module
function Module:set_submodule(path, module)
  arguments.text('set_submodule', 'path', path)
  local parent, name = path:match '^(.*)%.([^.]*)$'
  self:get_submodule(parent or ''):set_child(name or path, module)
end

--- Elements of all distinct parameters, sharded or not.
---@return integer
function Module:num_parameters()
  local total = 0
  for _, p in ipairs(tree.params(self)) do
    total = total + util.product(p.shape)
  end
  return total
end

--- 16 hexadecimal digits over names and values of all parameters, in order of declaration: what a
--- wrapped model's hash() says of the same values. RuntimeError when some are sharded: then the
--- model that FSDP wraps has it.
---@return string
function Module:hash()
  local tensors = {}
  for i, p in ipairs(tree.params(self:materialize())) do
    tensors[i] = p.tensor
  end
  return parameter.hash(tensors)
end

-- -- names and memory ----------------------------------------------------------------------------

local function prepare(self)
  names.assign_names(tree.outermost(self))
  for _, entry in ipairs(tree.walk(self)) do
    entry.module:_prepare_self()
  end
end

--- What must have happened before parameters are handed out; a wrapper groups them here.
function Module:_prepare()
  without_jit.run(prepare, self)
end

function Module:_prepare_self()
  local state = tree.manager(self)
  if not rawget(self, '_ready') then
    fields.check(self)
  end
  if state then
    state:prepare()
  end
end

local function materialize(self)
  names.join_caller(self)
  prepare(self)
  for _, p in ipairs(tree.params(self)) do
    parameter.materialize(p.tensor)
  end
  for _, at in ipairs(names.locations(self)) do
    local module, path = at.module, at.path
    rawset(module, '_scope', path == '' and module._name or path)
    rawset(module, '_ready', true)
    module:_materialized(path, at.stream)
  end
  watched.by(self)
end

--- Give all declared parameters their names, memory and first values. The first call does it.
---@return self
function Module:materialize()
  without_jit.run(materialize, self)
  return self
end

-- For subclasses that depend on where they stand.
function Module:_materialized(_, _) end

-- -- calling -------------------------------------------------------------------------------------

-- Tensors assigned to the fields of buffers leave the scope, also when forward fails: its error is
-- the one to raise then.
local function keep_buffers(module, ok)
  for _, b in ipairs(module._buffers) do
    if ok then
      tree.buffer(b)
    else
      pcall(tree.buffer, b)
    end
  end
end

local function forward_with_buffers(module, ...)
  local forward = hooks.any(module) and hooks.forward or module.forward
  return finally.run(keep_buffers, module, forward, module, ...)
end

-- The same in a scope that is open.
local function run_forward(module, ...)
  if rawget(module, '_buffers') then
    return forward_with_buffers(module, ...)
  elseif hooks.any(module) then
    return hooks.forward(module, ...)
  end
  return module:forward(...)
end

--- Calling a module: opens a scope, runs pre hooks, `forward` and post hooks, and closes it. Of the
--- tensors made inside, the results and the values of the module's buffers live on.
function Module:__call(...)
  if not rawget(self, '_ready') then
    self:materialize()
  end
  local params = watched.by(self)
  if params then
    watched.check(params)
  end
  samples.resume((...))
  local state = rawget(self, '_manager')
  if state and state.in_place then
    return scope.run(self._scope, state.forward, state, run_forward, ...)
  elseif rawget(self, '_buffers') then
    return scope.run(self._scope, forward_with_buffers, self, ...)
  elseif hooks.any(self) then
    return scope.run(self._scope, hooks.forward, self, ...)
  end
  return scope.run(self._scope, self.forward, self, ...)
end

function Module:forward()
  errors.raise('NotImplementedError', '%s has no forward', self._name)
end

--- Call `fn(module, args)` before each forward; `args` is an array with its length in `n`.
--- What it returns, unless nil, takes the place of `args`: an array, or the one argument.
---@param fn fun(module: ms.nn.Module, args: table): any
---@param opts? { prepend?: boolean }  prepend: before other hooks (default false)
---@return ms.Hook
function Module:register_forward_pre_hook(fn, opts)
  return hooks.register(self, 'register_forward_pre_hook', '_pre_hooks', fn, opts)
end

--- Call `fn(module, args, output)` after each forward; `args` as above, `output` what forward
--- returned: the one result itself, or an array of several with their number in `n`. What it
--- returns, unless nil, takes the place of `output`.
---@param fn fun(module: ms.nn.Module, args: table, output: any): any
---@param opts? { prepend?: boolean }
---@return ms.Hook
function Module:register_forward_hook(fn, opts)
  return hooks.register(self, 'register_forward_hook', '_post_hooks', fn, opts)
end

--- Call `fn(module, grad_input, grad_output)` in backward, when the gradients of the arguments of
--- forward are complete. Both are arrays with their length in `n`. An entry is false for what is no
--- tensor or requires no gradient, and for a result that backward did not reach. What `fn` returns,
--- unless nil, takes the place of grad_input: as many entries, or the one tensor. When no argument
--- requires a gradient, `fn` is called when the gradients of the results are complete, with a
--- warning. Hooks that were registered when forward ran are called. Gradients are released after
--- the call; `ms.keep(grad)` keeps one.
---@param fn fun(module: ms.nn.Module, grad_input: table, grad_output: table): any
---@param opts? { prepend?: boolean }
---@return ms.Hook
function Module:register_full_backward_hook(fn, opts)
  return hooks.register(self, 'register_full_backward_hook', '_backward_hooks', fn, opts)
end

--- Call `fn(module, grad_output)` in backward, before the gradients inside the module are computed.
--- What it returns, unless nil, takes the place of grad_output.
---@param fn fun(module: ms.nn.Module, grad_output: table): any
---@param opts? { prepend?: boolean }
---@return ms.Hook
function Module:register_full_backward_pre_hook(fn, opts)
  return hooks.register(self, 'register_full_backward_pre_hook', '_backward_pre_hooks', fn, opts)
end

-- -- all at once ---------------------------------------------------------------------------------

--- Set training mode here and below (dropout is active in it). Ranks do not compare modes.
---@param mode? boolean  default true
---@return self
function Module:train(mode)
  mode = arguments.flag('train', 'mode', mode, true)
  for _, entry in ipairs(tree.walk(self)) do
    rawset(entry.module, 'training', mode)
  end
  return self
end

---@return self
function Module:eval()
  return self:train(false)
end

--- Call `fn` with every module below, children before parents, then with this one.
---@param fn fun(module: ms.nn.Module)
---@return self
function Module:apply(fn)
  arguments.fn('apply', 'fn', fn)
  for _, child in ipairs(self:children()) do
    child:apply(fn)
  end
  fn(self)
  return self
end

--- A module like this one, with all below it: equal values of parameters and buffers, ties, modes,
--- hooks, and fields with their tensors and plain tables; other objects in fields are shared.
--- Gradients and hooks of tensors are not copied. Parameters without values get them first. An
--- FSDP instance becomes one with the same options, and each rank copies its elements; RuntimeError
--- for a part of an instance. Dropout draws other masks.
---@return self
function Module:deepcopy()
  return without_jit.run(require('moonshard.nn.copy').deep, self)
end

--- Drop all gradients.
---@param opts? { set_to_none?: boolean }  default true; false fills them with zeros
function Module:zero_grad(opts)
  local params = opts ~= nil and {} or nil
  for _, entry in ipairs(tree.walk(self)) do
    for _, p in ipairs(entry.module._params) do
      local tensor = tree.param(entry.module, p)
      if params then
        params[#params + 1] = tensor
      elseif tensor then
        tensor:set_grad(nil)
      end
    end
  end
  if params then
    zero_grad(params, opts)
  end
end

--- Freeze (false) or unfreeze all parameters.
---@param on? boolean  default true
---@return self
function Module:requires_grad_(on)
  on = arguments.flag('requires_grad_', 'on', on, true)
  for _, p in ipairs(tree.params(self)) do
    p.tensor:requires_grad_(on)
  end
  return self
end

-- -- casting --------------------------------------------------------------------------------------

--- Cast all floating parameters and buffers, and gradients with them, in place. An optimizer made
--- before keeps the parameters; state that it has keeps its dtype, and its next step is an error.
--- The device of this process changes nothing: its parameters are there. Any other is an error.
--- RuntimeError after the first use of an FSDP unit, which `mixed_precision` casts, and while a
--- graph over the parameters waits for its backward.
---@param dtype ms.DType|ms.Tensor|string  floating, a tensor of such a dtype, or a place: 'cuda'
---@param other? ms.DType|string  the other one of place and dtype
---@return self
function Module:to(dtype, other)
  return casts.to(self, dtype, other)
end

--- Cast to f16, as to() does.
---@return self
function Module:half()
  return casts.cast(self, 'f16')
end

--- Cast to bf16.
---@return self
function Module:bfloat16()
  return casts.cast(self, 'bf16')
end

--- Cast to f32.
---@return self
function Module:float()
  return casts.cast(self, 'f32')
end

--- Cast to f64.
---@return self
function Module:double()
  return casts.cast(self, 'f64')
end

-- -- state dicts ---------------------------------------------------------------------------------

--- Parameters and persistent buffers by path: `sd[name]` is a tensor, `sd[i]` the i-th name. Those
--- of a module come before those of its children.
--- Plain parameters share the module's memory; of sharded ones every rank gets a full copy in the
--- master's precision. Collective when there are such.
---@param opts? { rank0_only?: boolean }  rank0_only: other ranks get no parameters and buffers of
---  FSDP instances
---@return ms.StateDict
function Module:state_dict(opts)
  return require('moonshard.nn.state_dict').of(self, opts)
end

--- Copy values in by name, all or none; a buffer that a forward recorded gets a tensor of its own.
--- RuntimeError names what is missing, unexpected or of another shape. Collective where parameters
--- are sharded: all ranks give equal values, or none loads anything.
---@param sd ms.StateDict|table<string, ms.Tensor>
---@param opts? { strict?: boolean }  strict: names must match exactly (default true)
---@return { missing_keys: string[], unexpected_keys: string[] }
function Module:load_state_dict(sd, opts)
  return require('moonshard.nn.state_dict').load(self, sd, opts)
end

-- -- printing ------------------------------------------------------------------------------------

--- What stands between the parentheses when the module is printed.
---@return string
function Module:extra_repr()
  return ''
end

-- Lines for the children, each already indented by two.
function Module:_repr_children()
  local lines = {}
  for i, child in ipairs(tree.children(self)) do
    local text = tostring(child.module):gsub('\n', '\n  ')
    lines[i] = ('  (%s): %s'):format(child.name, text)
  end
  return lines
end

function Module:__tostring()
  local name, extra = self._name:match('[^.]*$'), self:extra_repr()
  local lines = self:_repr_children()
  if #lines == 0 then
    return ('%s(%s)'):format(name, extra)
  end
  if extra ~= '' then
    table.insert(lines, 1, '  ' .. extra)
  end
  return ('%s(\n%s\n)'):format(name, table.concat(lines, '\n'))
end

return Module
