--- A parameter group. Its options are stored in the runtime: reading a field reads them, and
--- assigning one takes effect immediately; an invalid value raises torch.optim's error and changes
--- nothing. Entries assigned in the table returned by `betas` take effect, or raise, at the next
--- step.

local arguments = require 'moonshard_ffi.arguments'
local capture = require 'moonshard.base.capture'
local errors = require 'moonshard.base.errors'
local namespace = require 'moonshard.base.namespace'
local runtime = require 'moonshard_ffi.optim'

---@class ms.optim.Group  the optimizer's options as fields
---@field params ms.Tensor[]
---@field lr number
---@field weight_decay number
local Group = {}

local group = {}

local function is_option(self, name)
  for _, known in ipairs(self._optimizer.options) do
    if name == known then
      return true
    end
  end
end

function Group:__index(name)
  if name == 'params' then
    return rawget(self, '_params')
  elseif not is_option(self, name) then
    namespace.missing('a parameter group', name, { 'params', unpack(self._optimizer.options) })
  end
  capture.breaks 'an option of an optimizer is read'
  local betas = name == 'betas' and rawget(self, '_betas')
  if betas then
    return betas
  end
  local value = runtime.options(self._optimizer._handle, self._index)[name]
  if name == 'betas' then
    rawset(self, '_betas', value)
  end
  return value
end

-- Apply the table that reading `betas` returned, in case the script has changed its entries.
local function take_betas(self)
  local betas = rawget(self, '_betas')
  if betas then
    runtime.set_options(self._optimizer._handle, self._index, { betas = betas })
  end
end

--- Change options of a group; tables are copied.
---@param self ms.optim.Group
---@param options table<string, any>
function group.set(self, options)
  runtime.set_options(self._optimizer._handle, self._index, options)
  if options.betas ~= nil then
    rawset(self, '_betas', nil)
  end
end

function Group:__newindex(name, value)
  local what = 'a parameter group of ' .. self._optimizer._name
  if name == 'params' then
    errors.raise('KeyError', "%s: 'params' cannot be replaced; opt:add_param_group adds some", what)
  elseif value == nil then
    arguments.refuse(what, tostring(name), value, 'a value')
  end
  errors.options(what, { [name] = value }, self._optimizer.options)
  capture.breaks 'an option of an optimizer is set'
  group.set(self, { [name] = value })
end

--- The options by name.
---@param self ms.optim.Group
---@return table<string, any>
function group.options(self)
  take_betas(self)
  local all, out = runtime.options(self._optimizer._handle, self._index), {}
  for _, name in ipairs(self._optimizer.options) do
    out[name] = all[name]
  end
  return out
end

function Group:__tostring()
  local options = group.options(self)
  local lines = { ('group %d (%d parameters)'):format(self._index + 1, #self._params) }
  for _, name in ipairs(self._optimizer.options) do
    local value = options[name]
    if type(value) == 'table' then
      value = ('(%g, %g)'):format(value[1], value[2])
    end
    lines[#lines + 1] = ('  %s: %s'):format(name, tostring(value))
  end
  return table.concat(lines, '\n')
end

local function refuse_entry(what, i)
  errors.raise('TypeError', '%s: param_groups[%s] is not the group that the optimizer has there; '
    .. 'set its fields, or add another one by opt:add_param_group', what, tostring(i))
end

-- The list of an optimizer's groups rejects new names, so that a step need not check for them.
local List = {}

function List.__newindex(_, key)
  if type(key) == 'number' then
    refuse_entry('an optimizer', key)
  end
  arguments.array('an optimizer', 'param_groups', { [key] = true })
end

--- An empty list of groups, to be filled by group.add().
---@return ms.optim.Group[]
function group.list()
  return setmetatable({}, List)
end

---@param optimizer ms.optim.Optimizer
---@param params ms.Tensor[]
---@param index integer  the group's index in the runtime, from 0
function group.add(optimizer, params, index)
  rawset(optimizer.param_groups, index + 1,
    setmetatable({ _optimizer = optimizer, _params = params, _index = index }, Group))
end

--- Check that the script has not replaced groups or parameters, which the runtime would not notice,
--- and apply changes of `betas`.
---@param optimizer ms.optim.Optimizer
function group.check(optimizer)
  local list, n = rawget(optimizer, 'param_groups'), 0
  if getmetatable(list) ~= List then
    arguments.array(optimizer._name, 'param_groups', list)
  end
  for i = 1, #list do -- one group needs no loop, so the trace goes on
    local entry = list[i]
    if getmetatable(entry) ~= Group or entry._optimizer ~= optimizer or entry._index ~= i - 1 then
      refuse_entry(optimizer._name, i)
    end
    take_betas(entry)
    n = n + #entry._params
  end
  local expected = runtime.n_params(optimizer._handle)
  if n ~= expected then
    errors.raise('ValueError', '%s: param_groups hold %d parameters, the optimizer has %d; groups '
      .. 'and parameters are added by opt:add_param_group', optimizer._name, n, expected)
  end
end

return group
