--- A description of a sharded model.

local arguments = require 'moonshard_ffi.arguments'
local runtime = require 'moonshard_ffi.fsdp'
local tree = require 'moonshard.nn.tree'

local UNITS = { 'KiB', 'MiB', 'GiB', 'TiB' }

local function bytes(n)
  local i = 0
  while n >= 1024 and UNITS[i + 1] do
    n, i = n / 1024, i + 1
  end
  return i == 0 and ('%d bytes'):format(n) or ('%.1f %s'):format(n, UNITS[i])
end

local function dtypes(info)
  local text = 'computes in ' .. info.param_dtype
  if info.param_dtype ~= info.dtype or info.reduce_dtype ~= info.param_dtype then
    text = ('%s, computes in %s, reduces in %s'):format(info.dtype, info.param_dtype,
      info.reduce_dtype)
  end
  return text
end

local function frozen_in(state)
  local n = 0
  for _, tensor in ipairs(state:_managed()) do
    n = n + (tensor:requires_grad() and 0 or 1)
  end
  return n > 0 and (', %d of them frozen'):format(n) or ''
end

local function line_of(state, path)
  local name = ('%s (%s)'):format(path == '' and 'the root' or path, state:wrapped()._name)
  local reason = state.reason
  if not state._unit then
    return ('%s: no parameters of its own [%s]'):format(name, reason)
  end
  local info = runtime.info(state._unit)
  return ('%s: %s, %d parameter%s%s, %d elements, %s a rank, %s [%s]'):format(name,
    state.sharding_strategy, info.n_params, info.n_params == 1 and '' or 's', frozen_in(state),
    info.numel, bytes(info.shard_bytes), dtypes(info), reason)
end

--- One line for each instance of a sharded model, in module order: its path and class, strategy,
--- parameters, elements, bytes of its shard, dtypes, and why it is an instance. Makes the units;
--- calls no other rank.
---@param model ms.nn.Module
---@return string
local function explain(model)
  if not tree.is_module(model) then
    arguments.refuse('explain', 'model', model, 'a module')
  end
  model:_prepare()
  local lines = {}
  for _, entry in ipairs(tree.walk(model)) do
    local state = tree.manager(entry.module)
    lines[#lines + 1] = state and line_of(state, entry.path) or nil
  end
  return table.concat(lines, '\n')
end

return explain
