--- FSDP(module, options): the same module, its parameters sharded over ranks: see
--- moonshard.fsdp.state.
---
--- Paths do not show the wrapper, and reading a field it does not have reads the wrapped module's:
--- model.wte, model:generate(...). Options are fields: model.sharding_strategy.

local B = require 'moonshard_ffi'
local Module = require 'moonshard.nn.module'
local ModuleDict = require 'moonshard.nn.module_dict'
local ModuleList = require 'moonshard.nn.module_list'
local State = require 'moonshard.fsdp.state'
local construct = require 'moonshard.fsdp.construct'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local first_use = require 'moonshard.fsdp.first_use'
local finally = require 'moonshard.base.finally'
local methods = require 'moonshard.fsdp.methods'
local module_tree = require 'moonshard.nn.tree'
local options = require 'moonshard.fsdp.options'
local summon_full_params = require 'moonshard.fsdp.summon'
local util = require 'moonshard.base.util'

---@class ms.fsdp.FSDP: ms.nn.Module, ms.fsdp.Methods
---@field module ms.nn.Module  what is wrapped
---@field rank integer
---@field world_size integer
---@overload fun(module: ms.nn.Module, opts?: ms.fsdp.Options): ms.fsdp.FSDP
local FSDP = Module.extend('fsdp.FSDP')

FSDP._shows_entries = true
FSDP._transparent = true

local OF_STATE = { rank = true, world_size = true }
for _, name in ipairs(options.FIELDS) do
  OF_STATE[name] = true
end

for name, fn in next, methods do
  FSDP[name] = function(self, ...)
    return fn(self._manager, ...)
  end
end

-- Fields of the class, then those of the state, then those of the wrapped module; private ones are
-- never the latter's.
function FSDP.__index(self, name)
  local value = FSDP[name]
  if value ~= nil then
    return value
  elseif OF_STATE[name] then
    local state = rawget(self, '_manager')
    return state and state[name]
  elseif type(name) == 'string' and name:byte() == 95 then -- '_'
    return nil
  end
  local wrapped = rawget(self, '_fsdp_wrapped_module')
  if name == 'module' then
    return wrapped
  end
  return wrapped and wrapped[name]
end

-- What its fields show of the wrapped module can be assigned through them, too.
function FSDP.__newindex(self, name, value)
  local wrapped = rawget(self, '_fsdp_wrapped_module')
  if not wrapped or type(name) == 'string' and name:byte() == 95 then
    rawset(self, name, value)
  elseif name == 'module' then
    errors.raise('KeyError', 'the module that FSDP wraps cannot be replaced: wrap the other one')
  else
    wrapped[name] = value
  end
end

---@param module ms.nn.Module
---@param opts? ms.fsdp.Options
function FSDP:init(module, opts)
  if not util.is(module, Module) then
    errors.raise('TypeError', 'FSDP wraps a module, got %s', arguments.noun(module))
  end
  local normalised, inherited = construct.options_of(opts)
  if util.is_any(module, { ModuleList, ModuleDict }) and module.forward == Module.forward then
    errors.warn('UserWarning', 'FSDP will not all-gather parameters for containers that do not '
      .. 'implement forward', normalised.process_group)
  end
  State(self, module, normalised, inherited, FSDP)
  rawset(self, 'training', module.training)
  rawset(self, '_owner', rawget(module, '_owner'))
  rawset(module, '_owner', nil)
  self:child('_fsdp_wrapped_module', module)
  module_tree.show_entries(self)
end

local function call(module, ...)
  return module(...)
end

function FSDP:forward(...)
  local state = type(self) == 'table' and rawget(self, '_manager')
  if not state then
    errors.raise('TypeError', "FSDP:forward: 'self' is %s, expected what FSDP() returned; write "
      .. "model(x) or model:forward(x), and for the wrapped module's own forward "
      .. 'model.module.forward', arguments.noun(self))
  end
  return state:forward(call, state:wrapped(), ...)
end

---@param opts? { rank0_only?: boolean }
---@return ms.StateDict
function FSDP:state_dict(opts)
  self._manager:_lazy_init()
  return Module.state_dict(self, opts)
end

local function set_applies(tree, on)
  for _, its in ipairs(first_use.trees(tree)) do
    its.applies = on
  end
end

local function stop_applying(tree)
  set_applies(tree, false)
end

local function applied(tree, fn, self)
  set_applies(tree, true)
  return Module.apply(self, fn)
end

--- As nn.Module's, with full parameters: what `fn` writes into them is kept. Collective. ValueError
--- inside summon_full_params.
---@param fn fun(module: ms.nn.Module)
---@return self
function FSDP:apply(fn)
  local tree = self._manager:_lazy_init()
  if tree.applies then -- by the instance around this one
    return Module.apply(self, fn)
  elseif B.C.ms_fsdp_tree_summoned(tree.handle) then
    errors.raise('ValueError', 'apply: expected to be in states [IDLE] but current state is '
      .. 'SUMMON_FULL_PARAMS')
  end
  return finally.run(stop_applying, tree, summon_full_params, self, nil, applied, tree, fn,
    self)
end

function FSDP:extra_repr()
  return self.sharding_strategy
end

return FSDP
