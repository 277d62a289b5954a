--- generation_config.json, which a folder may have beside config.json.

local errors = require 'moonshard.base.errors'
local json = require 'moonshard.base.json'
local text_files = require 'moonshard.base.text_files'

local generation_config = {}

--- The fields of generation_config.json. FormatError for a file that holds no object.
---@param path string  of the folder
---@return table?  nil if there is no such file
function generation_config.read(path)
  local name = path .. '/generation_config.json'
  return text_files.read(name) and (text_files.object(name)) or nil
end

-- Ids of a field, a number or a list.
local function ids_of(what, value)
  if type(value) == 'number' then
    value = { value }
  end
  for i, id in ipairs(type(value) == 'table' and value or { value }) do
    if type(id) ~= 'number' or id % 1 ~= 0 then
      errors.raise('ValueError', '%s[%d] is %s, expected the id of a token', what, i, tostring(id))
    end
  end
  return value
end

--- The tokens that end a row: those given, else eos_token_id of generation_config.json, else of
--- config.json.
---@param model ms.nn.Module  may have `generation_config` and `config`
---@param given integer|integer[]|false|nil
---@return table<integer, boolean>  by id
function generation_config.ends(model, given)
  local what, ids = "generate: 'eos'", given
  for _, name in ipairs { 'generation_config', 'config' } do
    local fields = model[name]
    if ids == nil and type(fields) == 'table' and fields.eos_token_id ~= json.null then
      what, ids = 'generate: eos_token_id of ' .. name, fields.eos_token_id
    end
  end
  local ends = {}
  for _, id in ipairs(ids and ids_of(what, ids) or {}) do
    ends[id] = true
  end
  return ends
end

return generation_config
