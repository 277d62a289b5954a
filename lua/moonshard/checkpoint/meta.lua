--- What a checkpoint holds beside the tensors.
---
--- Touches: moonshard.json, moonshard.nn.runs, moonshard.random, moonshard_ffi.checkpoint.

local errors = require 'moonshard.internal.errors'
local json = require 'moonshard.internal.json'
local random = require 'moonshard.internal.random'
local runs = require 'moonshard.nn.runs'
local runtime = require 'moonshard_ffi.checkpoint'

local meta_data = {}

--- The meta data, checked as far as every checkpoint of ours has them.
---@param source ffi.cdata*  a checkpoint that runtime.open() gave
---@return ms.checkpoint.Meta
function meta_data.read(source)
  local path = runtime.path(source) .. '/manifest.json'
  local meta = json.decode(runtime.meta(source), path)
  local function refuse(name, expected)
    errors.raise('FormatError', "%s: '%s' of the meta data is %s, expected %s", path, name,
      meta[name] == nil and 'nothing' or json.encode(meta[name]), expected)
  end
  if type(meta.step) ~= 'number' then -- the runtime knows its range
    refuse('step', 'a whole number')
  elseif type(meta.seed) ~= 'string' or not meta.seed:find('^%d+$') or #meta.seed > 20 then
    refuse('seed', 'the digits of a seed')
  elseif meta.dropout ~= nil and not runs.valid(meta.dropout) then
    refuse('dropout', 'how often each module ran')
  elseif meta.random ~= nil and not pcall(random.check, 'random', meta.random) then
    refuse('random', 'how many tensors and tokens were drawn, and sites ran')
  elseif meta.config ~= nil and type(meta.config) ~= 'table' then
    refuse('config', 'a table')
  end
  return meta
end

return meta_data
