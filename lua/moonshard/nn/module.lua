--- The base class of modules: keeps parameters, buffers and children in arrays, names them by their
--- paths, and runs `forward` between its hooks in a scope.
---
--- Order never comes from pairs(): it is the order of declaration, which is equal on all ranks. A
--- declared parameter has no memory. The first call (or a state dict) names parameters by their
--- paths from the outermost module and allocates and initializes them. Initial values depend on the
--- name, the element index, the seed when the module was made, and the number of modules with
--- parameters that were made between that seed and this tree (0 for the first tree; wrapping does
--- not change it). So `model.head = nn.Linear(4, 2)` gets the same initial values before and after
--- the model's first run. A module that was called on its own first keeps its values.

local arguments = require 'moonshard_ffi.arguments'
local capture = require 'moonshard.base.capture'
local casts = require 'moonshard.nn.casts'
local class = require 'moonshard.base.class'
local declaring = require 'moonshard.nn.declaring'
local errors = require 'moonshard.base.errors'
local fields = require 'moonshard.nn.fields'
local finally = require 'moonshard.base.finally'
local hooks = require 'moonshard.nn.hooks'
local names = require 'moonshard.nn.names'
local parameter = require 'moonshard_ffi.parameter'
local samples = require 'moonshard.base.samples'
local scope = require 'moonshard.base.scope'
local tree = require 'moonshard.nn.tree'
local walking = require 'moonshard.nn.walking'
local watched = require 'moonshard.nn.watched'
local without_jit = require 'moonshard.base.without_jit'
local zero_grad = require 'moonshard.autograd.zero_grad'

---@class ms.nn.Module
---@field training boolean  set by train() and eval()
---@field _params ms.nn.DeclaredParam[]
---@field _buffers ms.nn.Buffer[]
---@field _children { name: string, module: ms.nn.Module, key: string|integer }[]
---@field _owner ms.nn.Module?  the first module that has this one as its child
---@field _home ms.nn.Module?  see [Note: homes] in moonshard.nn.names
---@field _fields ms.nn.Watched[]|false|nil  false: must be listed again
local Module = class('nn.Module')

Module._is_module = true
Module.training = true
Module._params = {}
Module._buffers = {}
Module._children = {}
Module._ready = false
--- Fields that forward reads and that must be equal on all ranks: see moonshard.fsdp.settings.
Module._settings = {}
--- A transparent module adds nothing to the paths of modules below it.
Module._transparent = false

-- Each class has its own function, because extend() is called with a dot and must know its class.
local function extend_of(cls)
  --- Make a subclass of this class (or of `parent`).
  ---@param name string  e.g. 'nn.Linear'; used in printing and errors
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

for _, methods in ipairs { declaring, walking } do
  for name, fn in next, methods do
    Module[name] = fn
  end
end

-- -- names and memory ----------------------------------------------------------------------------

local function prepare(self)
  names.assign_names(tree.outermost(self))
  for _, entry in ipairs(tree.walk(self)) do
    entry.module:_prepare_self()
  end
end

--- Called before parameters are returned. A wrapper forms its units here.
function Module:_prepare()
  without_jit.run(prepare, self)
end

function Module:_prepare_self()
  local state = tree.manager(self)
  if not rawget(self, '_ready') then
    fields.check(self)
  end
  if state then
    state:_prepare()
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

--- Name, allocate and initialize all declared parameters. The first call does it.
---@return self
function Module:materialize()
  without_jit.run(materialize, self)
  return self
end

-- Called with path and random stream. Subclasses that depend on them override it.
function Module:_materialized(_, _) end

-- -- calling -------------------------------------------------------------------------------------

-- Move tensors that were assigned to buffers out of the scope. If forward failed, its error is the
-- one to raise.
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

-- Run forward; a scope is open.
local function run_forward(module, ...)
  if rawget(module, '_buffers') then
    return forward_with_buffers(module, ...)
  elseif hooks.any(module) then
    return hooks.forward(module, ...)
  end
  return module:forward(...)
end

-- A call that is not compiled.
local function eager_call(self, ...)
  if not rawget(self, '_ready') then
    self:materialize()
  end
  local params = watched.by(self)
  if params then
    watched.check(params)
  end
  samples.resume((...))
  local state, seal = rawget(self, '_manager'), rawget(self, '_sealed')
  if seal and seal.check_called then
    seal.check_called(self, state)
  end
  if state and state.in_place then
    return scope.run(self._scope, state.forward, state, run_forward, self, ...)
  elseif rawget(self, '_buffers') then
    return scope.run(self._scope, forward_with_buffers, self, ...)
  elseif hooks.any(self) then
    return scope.run(self._scope, hooks.forward, self, ...)
  end
  return scope.run(self._scope, self.forward, self, ...)
end

Module._eager_call = eager_call

--- Call the module: open a scope, run the pre hooks, `forward` and the post hooks, and close the
--- scope. Only results and values of buffers outlive it.
function Module:__call(...)
  local compiled = rawget(self, '_compiled')
  if compiled then
    return compiled:call(...)
  end
  return eager_call(self, ...)
end

--- Compile the module in place: its later calls do what calls of ms.compile(module) do.
---@param opts? ms.compile.Options
---@return self
function Module:compile(opts)
  return capture.compile_module(self, opts)
end

function Module:forward()
  errors.raise('NotImplementedError', '%s has no forward', self._name)
end

--- Call `fn(module, args)` before each forward. `args` is an array with its length in `n`. A result
--- other than nil replaces `args`: an array, or a single argument.
---@param fn fun(module: ms.nn.Module, args: table): any
---@param opts? { prepend?: boolean }  prepend: before other hooks (default false)
---@return ms.Hook
function Module:register_forward_pre_hook(fn, opts)
  return hooks.register(self, 'register_forward_pre_hook', '_pre_hooks', fn, opts)
end

--- Call `fn(module, args, output)` after each forward. `args` is as above. `output` is the result
--- of forward, or an array of several results with their number in `n`. A result other than nil
--- replaces `output`.
---@param fn fun(module: ms.nn.Module, args: table, output: any): any
---@param opts? { prepend?: boolean }
---@return ms.Hook
function Module:register_forward_hook(fn, opts)
  return hooks.register(self, 'register_forward_hook', '_post_hooks', fn, opts)
end

--- Call `fn(module, grad_input, grad_output)` in backward, when the gradients of forward's
--- arguments are complete. Both are arrays with their length in `n`. An entry is false if the value
--- is not a tensor, requires no gradient, or is a result that backward did not reach. A result of
--- `fn` other than nil replaces grad_input: an array of the same length, or a single tensor. If no
--- argument requires a gradient, `fn` is called with a warning when the gradients of the results
--- are complete. Only hooks registered before forward are called. Gradients are released after the
--- call; `ms.keep(grad)` keeps one.
---@param fn fun(module: ms.nn.Module, grad_input: table, grad_output: table): any
---@param opts? { prepend?: boolean }
---@return ms.Hook
function Module:register_full_backward_hook(fn, opts)
  return hooks.register(self, 'register_full_backward_hook', '_backward_hooks', fn, opts)
end

--- Call `fn(module, grad_output)` in backward, before the gradients inside the module are computed.
--- A result other than nil replaces grad_output.
---@param fn fun(module: ms.nn.Module, grad_output: table): any
---@param opts? { prepend?: boolean }
---@return ms.Hook
function Module:register_full_backward_pre_hook(fn, opts)
  return hooks.register(self, 'register_full_backward_pre_hook', '_backward_pre_hooks', fn, opts)
end

-- -- all at once ---------------------------------------------------------------------------------

--- Set training mode (which enables dropout) here and below. Modes are not compared between ranks.
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

--- Call `fn` with every module below, children before parents, and then with this one.
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

--- Copy the module and all modules below it: values of parameters and buffers, ties, modes, hooks,
--- and fields that are tensors or plain tables. Other objects in fields are shared. Gradients and
--- hooks of tensors are not copied. Parameters without values are initialized first. The copy of an
--- FSDP instance is an instance with the same options, and each rank copies its shard; RuntimeError
--- for a part of an instance. The copy's dropout draws other masks.
---@return self
function Module:deepcopy()
  return without_jit.run(require('moonshard.nn.copy').deep, self)
end

local function zero(self, opts)
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

--- Release all gradients.
---@param opts? { set_to_none?: boolean }  default true; false fills them with zeros
function Module:zero_grad(opts)
  capture.step('zero_grad', zero, self, opts)
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

--- Cast all floating parameters and buffers, and their gradients, in place. An existing optimizer
--- keeps the parameters, but its state keeps its dtype, so its next step raises an error. The
--- device of this process is accepted and changes nothing; any other raises an error. RuntimeError
--- after the first use of an FSDP unit (use `mixed_precision`), and while a graph over the
--- parameters waits for its backward.
---@param dtype ms.DType|ms.Tensor|string  a floating dtype, a tensor of that dtype, or a device:
---  'cuda'
---@param other? ms.DType|string  the dtype if the first argument is a device, and vice versa
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

--- Parameters and persistent buffers by path: `sd[name]` is a tensor, `sd[i]` the i-th name.
--- Entries of a module come before those of its children. Plain parameters share the module's
--- memory. For parameters that FSDP shards every rank gets a full copy in the precision of the
--- master weights (see fsdp.state_dict_type()), for those that fully_shard() shards a
--- ShardedTensor that shares their memory. Collective for full copies.
---@param opts? { full_state_dict?: boolean, rank0_only?: boolean }  full_state_dict: full copies of
---  all sharded parameters; rank0_only: the same, with no entries of them on other ranks
---@return ms.StateDict
function Module:state_dict(opts)
  return require('moonshard.nn.state_dict').of(self, opts)
end

--- Copy values in by name, all or none. A buffer that autograd recorded gets a new tensor.
--- RuntimeError lists names that are missing, unexpected or of another shape. Values may be full
--- tensors, or ShardedTensors of any sharding. Collective if parameters are sharded: if values
--- differ between ranks, nothing is loaded.
---@param sd ms.StateDict|table<string, ms.Tensor>
---@param opts? { strict?: boolean }  strict: names must match exactly (default true)
---@return { missing_keys: string[], unexpected_keys: string[] }
function Module:load_state_dict(sd, opts)
  return require('moonshard.nn.state_dict').load(self, sd, opts)
end

-- -- printing ------------------------------------------------------------------------------------

--- The text between the parentheses when the module is printed.
---@return string
function Module:extra_repr()
  return ''
end

-- Lines for the children, indented by two.
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
