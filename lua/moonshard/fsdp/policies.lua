--- Wrap policies: which modules become units of their own.
---
--- Three kinds. A function(module) of the script decides about each module, as in CustomPolicy.
--- callable_policy(fn) is PyTorch's protocol: fn(module, recurse, numel) is asked on the way down
--- whether to look inside `module` (recurse true; numel: its parameters) and on the way up whether
--- to wrap it (recurse false; numel: its parameters not wrapped below). A policy object maps all
--- modules to options at once: ModuleWrapPolicy and CustomPolicy.

local CausalSelfAttention = require 'moonshard.nn.causal_self_attention'
local ModuleDict = require 'moonshard.nn.module_dict'
local ModuleList = require 'moonshard.nn.module_list'
local Module = require 'moonshard.nn.module'
local MultiheadAttention = require 'moonshard.nn.multihead_attention'
local arguments = require 'moonshard_ffi.arguments'
local check = require 'moonshard.fsdp.check'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local util = require 'moonshard.base.util'

local policies = {}

-- -- callables -----------------------------------------------------------------------------------

---@alias ms.fsdp.Decision nil|boolean|ms.fsdp.Options
---@alias ms.fsdp.Function fun(module: ms.nn.Module): ms.fsdp.Decision

--- A policy by PyTorch's protocol of three arguments.
---@class ms.fsdp.Policy
---@overload fun(module: ms.nn.Module, recurse: boolean, numel: integer): ms.fsdp.Decision
local Callable = class 'fsdp.CallablePolicy'
Callable._is_policy = true

function Callable:init(fn)
  self.fn = fn
end

function Callable:__call(module, looking, numel)
  return self.fn(module, looking, numel)
end

--- A policy of a function with the protocol of the callable policies here: fn(module, true, numel)
--- decides whether to recurse, fn(module, false, numel) whether to wrap; a table overrides options
--- of the root.
---@param fn fun(module: ms.nn.Module, recurse: boolean, numel: integer): ms.fsdp.Decision
---@return ms.fsdp.Policy
function policies.callable_policy(fn)
  return Callable(arguments.fn('callable_policy', 'fn', fn))
end

--- Wrap every module.
---@type ms.fsdp.Policy
policies.always_wrap_policy = Callable(function() return true end)

---@class ms.fsdp.SizeBasedOptions
---@field min_num_params? integer  default 1e8
---@field force_leaf_modules? table[]  classes never looked into (default FORCE_LEAF_MODULES)
---@field exclude_wrap_modules? table[]  classes never wrapped (default EXCLUDE_WRAP_MODULES)

local function size_based(opts)
  opts = errors.options('size_based_auto_wrap_policy', opts,
    { min_num_params = 'number', force_leaf_modules = 'list', exclude_wrap_modules = 'list' })
  for _, name in ipairs { 'force_leaf_modules', 'exclude_wrap_modules' } do
    if opts[name] then
      check.classes(name, opts[name])
    end
  end
  local least = opts.min_num_params or 1e8
  local size_policy = policies.size_based_auto_wrap_policy
  local leaves = opts.force_leaf_modules or size_policy.FORCE_LEAF_MODULES
  local excluded = opts.exclude_wrap_modules or size_policy.EXCLUDE_WRAP_MODULES
  return Callable(function(module, recurse, numel)
    arguments.flag('size_based_auto_wrap_policy', 'recurse', recurse)
    arguments.number('size_based_auto_wrap_policy', 'numel', numel)
    return numel >= least and not util.is_any(module, recurse and leaves or excluded)
  end)
end

--- Wrap what has at least so many parameters not wrapped below it. A policy by itself, and called
--- with options one with those.
---@overload fun(opts: ms.fsdp.SizeBasedOptions): ms.fsdp.Policy
policies.size_based_auto_wrap_policy = setmetatable({
  FORCE_LEAF_MODULES = { MultiheadAttention, CausalSelfAttention },
  EXCLUDE_WRAP_MODULES = { ModuleList, ModuleDict },
}, {
  __call = function(_, first, recurse, numel)
    if util.is(first, Module) then
      return size_based()(first, recurse, numel)
    end
    return size_based(first)
  end,
})

local function by_class(what)
  return function(classes)
    classes = check.classes(what, classes)
    return Callable(function(module, recurse)
      return recurse or util.is_any(module, classes)
    end)
  end
end

--- Wrap the objects of these classes (and of those that inherit from them).
---@type fun(classes: table[]): ms.fsdp.Policy
policies.transformer_auto_wrap_policy = by_class 'transformer_auto_wrap_policy'
--- The same under the name that it has in PyTorch's tests.
---@type fun(classes: table[]): ms.fsdp.Policy
policies.wrap_module_cls_individually = by_class 'wrap_module_cls_individually'

-- What a function of the script decides: options (perhaps none) of a unit, or nil.
local function decision(what, answer)
  if answer ~= nil and type(answer) ~= 'boolean' and type(answer) ~= 'table' then
    errors.raise('ValueError', 'The lambda_fn passed to %s should return False/True or '
      .. 'a kwarg dict, but it returned %s', what, tostring(answer))
  elseif answer == true then
    return {}
  end
  return answer and next(answer) ~= nil and answer or nil
end

--- Wrap where `fn(module)` returns true, with the root's options, or a table that overrides them.
---@param fn ms.fsdp.Function
---@return ms.fsdp.Policy
function policies.lambda_auto_wrap_policy(fn)
  arguments.fn('lambda_auto_wrap_policy', 'fn', fn)
  return Callable(function(module, recurse)
    return recurse or decision('lambda_auto_wrap_policy', fn(module))
  end)
end

--- Wrap where any of several policies does, with the options of the first one that gives some.
---@param list (ms.fsdp.Policy|ms.fsdp.ModuleWrapPolicy|ms.fsdp.Function)[]
---@return ms.fsdp.Policy
function policies.or_policy(list)
  local all = {}
  for i, policy in ipairs(arguments.array('or_policy', 'list', list)) do
    policy = check.policy(policy)
    all[i] = type(policy) == 'function' and policies.lambda_auto_wrap_policy(policy)
      or arguments.fn('or_policy', ('list[%d]'):format(i), policy)
  end
  return Callable(function(module, recurse, numel)
    for _, policy in ipairs(all) do
      local answer = policy(module, recurse, numel)
      if answer then
        return answer
      end
    end
  end)
end

-- -- objects -------------------------------------------------------------------------------------

---@class ms.fsdp.PolicyObject
local Policy = class 'fsdp.Policy'
policies.Policy = Policy
Policy._is_policy = true

-- Options for every module of `root` that is not ignored, in module order: `choose` gives nil, or
-- overrides of the root's options.
local function choose_all(root, ignored, root_options, choose)
  local chosen = {}
  for _, module in ipairs(root:modules()) do
    local overrides = not ignored[module] and choose(module) or nil
    if overrides then
      chosen[#chosen + 1] = { module = module, options = util.merged(root_options, overrides) }
    end
  end
  return chosen
end

--- Wraps the objects of these classes, with the root's options. Callable as well, so that it can be
--- part of an or_policy.
---@class ms.fsdp.ModuleWrapPolicy: ms.fsdp.PolicyObject
---@overload fun(classes: table[]): ms.fsdp.ModuleWrapPolicy
local ModuleWrapPolicy = class('fsdp.ModuleWrapPolicy', Policy)
policies.ModuleWrapPolicy = ModuleWrapPolicy

---@param classes table[]
function ModuleWrapPolicy:init(classes)
  self.classes = check.classes(self._name, classes)
  if #self.classes == 0 then
    errors.raise('ValueError', '%s of no classes would wrap nothing: is the name of a class nil?',
      self._name)
  end
end

--- Options by module to wrap; FSDP calls it.
---@param root ms.nn.Module
---@param ignored table<ms.nn.Module, boolean>
---@param root_options ms.fsdp.Options
function ModuleWrapPolicy:choose(root, ignored, root_options)
  return choose_all(root, ignored, root_options, function(module)
    return util.is_any(module, self.classes) and {} or nil
  end)
end

function ModuleWrapPolicy:__call(module, recurse)
  return recurse or util.is_any(module, self.classes)
end

function ModuleWrapPolicy:__tostring()
  local names = {}
  for i, cls in ipairs(self.classes) do
    names[i] = cls._name
  end
  return ('ModuleWrapPolicy{%s}'):format(table.concat(names, ', '))
end

--- Asks a function of yours about each module: nil, false or {} leaves it, true wraps it with the
--- root's options, a table wraps it with these options in place of the root's.
---@class ms.fsdp.CustomPolicy: ms.fsdp.PolicyObject
---@overload fun(fn: ms.fsdp.Function): ms.fsdp.CustomPolicy
local CustomPolicy = class('fsdp.CustomPolicy', Policy)
policies.CustomPolicy = CustomPolicy

---@param fn ms.fsdp.Function
function CustomPolicy:init(fn)
  self.fn = arguments.fn(self._name, 'fn', fn)
end

--- Options by module to wrap; FSDP calls it.
---@param root ms.nn.Module
---@param ignored table<ms.nn.Module, boolean>
---@param root_options ms.fsdp.Options
function CustomPolicy:choose(root, ignored, root_options)
  return choose_all(root, ignored, root_options, function(module)
    return decision('CustomPolicy', self.fn(module))
  end)
end

--- What FSDP takes as a policy, checked: a function becomes a CustomPolicy.
---@param policy ms.fsdp.Policy|ms.fsdp.PolicyObject|ms.fsdp.Function|nil
---@return ms.fsdp.Policy|ms.fsdp.PolicyObject|nil
function policies.of(policy)
  policy = check.policy(policy)
  return type(policy) == 'function' and CustomPolicy(policy) or policy
end

return policies
