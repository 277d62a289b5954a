--- The metadata of a checkpoint: everything except the tensors.

local errors = require 'moonshard.base.errors'
local json = require 'moonshard.base.json'
local random = require 'moonshard.base.random'
local dropout_counters = require 'moonshard.nn.dropout_counters'
local runtime = require 'moonshard_ffi.checkpoint'
local state = require 'moonshard.checkpoint.state'
local util = require 'moonshard.base.util'

local meta_data = {}

--- Read the metadata and check what every checkpoint contains.
---@param source ffi.cdata*  a checkpoint opened by the runtime
---@return ms.checkpoint.Meta
function meta_data.read(source)
  local path = runtime.path(source) .. '/manifest.json'
  local meta = json.decode(runtime.meta(source), path)
  local function refuse(name, expected)
    errors.raise('FormatError', "%s: '%s' of the meta data is %s, expected %s", path, name,
      meta[name] == nil and 'nothing' or json.encode(meta[name]), expected)
  end
  if type(meta.step) ~= 'number' then -- the runtime checks its range
    refuse('step', 'a whole number')
  elseif type(meta.seed) ~= 'string' or not meta.seed:find('^%d+$') or #meta.seed > 20 then
    refuse('seed', 'the digits of a seed')
  elseif meta.random ~= nil and not pcall(random.check, 'random', meta.random) then
    refuse('random', 'how many tensors and tokens were drawn, and sites ran')
  elseif meta.config ~= nil and type(meta.config) ~= 'table' then
    refuse('config', 'a table')
  end
  meta.config = state.decode(meta.config)
  return meta
end

-- Keys of each kind's metadata: for a single part, and for parts with names.
local PLACES = {
  model = { 'model', 'modules' }, optimizer = { 'optimizer', 'optimizers' },
  loader = { 'loader', 'loaders' }, state = { 'states', 'states' },
}

--- Store the metadata of a part.
---@param meta table
---@param part ms.checkpoint.Part
---@param value table
function meta_data.set(meta, part, value)
  local one, many = unpack(PLACES[part.kind])
  if not part.name then
    meta[one] = value
  else
    meta[many] = meta[many] or {}
    meta[many][part.name] = value
  end
end

--- The metadata of a part. KeyError if the checkpoint lacks it.
---@param meta ms.checkpoint.Meta
---@param part ms.checkpoint.Part
---@return table?  nil for a model in an older checkpoint
function meta_data.get(meta, part)
  local one, many = unpack(PLACES[part.kind])
  local value
  if part.name then
    value = type(meta[many]) == 'table' and meta[many][part.name] or nil
  else
    value = meta[one]
  end
  local by_name = type(meta[many]) == 'table' and util.sorted_keys(meta[many]) or {}
  if part.kind == 'model' and not part.name and value == nil and #by_name == 0 then
    value = { dropout = meta.dropout } -- older format
  end
  if type(value) ~= 'table' then
    errors.raise('KeyError', 'the checkpoint has no %s%s', part.label,
      #by_name > 0 and ('; it has %s: %s'):format(many, table.concat(by_name, ', ')) or '')
  elseif value.dropout ~= nil and part.kind == 'model'
    and not dropout_counters.valid(value.dropout) then
    errors.raise('FormatError', "the metadata of the %s have a 'dropout' that is not a table of "
      .. 'call counts by module', part.label)
  end
  return value
end

return meta_data
