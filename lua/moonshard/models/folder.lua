--- A model's folder: config.json and safetensors files, as the `transformers` package reads and
--- writes them.

local arguments = require 'moonshard_ffi.arguments'
local checkpoint = require 'moonshard.checkpoint'
local errors = require 'moonshard.base.errors'
local json = require 'moonshard.base.json'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'

local folder = {}

--- Read config.json.
---@param path string  of the folder
---@return table config, string file, string text
function folder.config(path)
  local name = path .. '/config.json'
  local file, reason = io.open(name, 'rb')
  if not file then
    errors.raise('IOError', 'open %s', reason)
  end
  local text = file:read '*a'
  file:close()
  local config = json.decode(text or '', name)
  if type(config) ~= 'table' or getmetatable(config) == json.array or config == json.null then
    errors.raise('FormatError', '%s: expected an object', name)
  end
  return config, name, text
end

local function write(path, text)
  local written = path .. '.tmp'
  local file, reason = io.open(written, 'wb')
  local ok = file
  if file then
    ok, reason = file:write(text, '\n')
    local closed, other = file:close()
    ok, reason = ok and closed, reason or other
  end
  if ok then
    ok, reason = os.rename(written, path)
  end
  if not ok then
    os.remove(written)
    errors.raise('IOError', 'write %s: %s', path, tostring(reason))
  end
end

-- Names of dtypes in config.json.
local DTYPES = { f32 = 'float32', f64 = 'float64', f16 = 'float16', bf16 = 'bfloat16' }

-- The config with the dtype of the file, in the field that it has already. A config keeps all other
-- fields, also those that this library does not know, so that older and newer readers load it.
local function config_of(model, dtype)
  local config = util.merged({}, model.config)
  local field = config.torch_dtype ~= nil and 'torch_dtype' or 'dtype'
  config[field] = DTYPES[dtype or tree.params(model)[1].tensor:dtype()]
  return config
end

-- `text` with the value of a field replaced, or inserted at the beginning.
local function with_field(text, name, value)
  local key = '("' .. name:gsub('%p', '%%%0') .. '"%s*:%s*)'
  value = json.encode(value):gsub('%%', '%%%%')
  for _, old in ipairs { '"[^"]*"', '[^%s,}]+' } do
    if text:find(key .. old) then
      return (text:gsub(key .. old, '%1' .. value, 1))
    end
  end
  return (text:gsub('{', ('{\n  "%s": %s,'):format(name:gsub('%%', '%%%%'), value), 1))
end

-- The text of a config. Of one that was read, only changed fields differ from its text, so that
-- order, lines and spelling of numbers stay.
local function text_of(config, read)
  local encoded = json.encode(config)
  if not read then
    return encoded
  end
  local before, text = json.decode(read), read
  for _, name in ipairs(util.sorted_keys(config)) do
    local value = config[name]
    if type(value) ~= 'table' and value ~= before[name] then
      text = with_field(text, name, value)
    end
  end
  local ok, after = pcall(json.decode, text)
  return ok and json.encode(after) == encoded and text:gsub('%s*$', '') or encoded
end

-- -- tied weights --------------------------------------------------------------------------------

---@class ms.models.TiedNames
---@field body string  module
---@field embedding string  parameter
---@field head string  parameter

-- Finds a parameter's tensor: that of its name, or of the name without that of the body, which a
-- body that was saved alone lacks.
local function finder(files, body)
  local prefix = body .. '.'
  return function(name)
    local short = name:sub(1, #prefix) == prefix and name:sub(#prefix + 1)
    return not files:has(name) and short and files:has(short) and short or name
  end
end

--- Can embedding and head be one tensor? Not if the files have two with different values, which is
--- a warning.
---@param files ms.checkpoint.WeightFiles
---@param names ms.models.TiedNames
---@return boolean
function folder.ties(files, names)
  local embedding = finder(files, names.body)(names.embedding)
  if not (files:has(embedding) and files:has(names.head)) or files:equal(embedding, names.head) then
    return true
  end
  errors.warn('UserWarning', ("%s: '%s' and '%s' have different values, although the config ties "
    .. 'them: they are loaded as two parameters'):format(files.path, embedding, names.head))
  return false
end

-- -- loading and saving --------------------------------------------------------------------------

--- Read the parameters of a model, sharded or not. Collective if they are sharded.
---@param files ms.checkpoint.WeightFiles
---@param model ms.nn.Module  a Decoder, or a wrapper around one
---@param names ms.models.TiedNames
---@param tie boolean  embedding and head are one parameter
---@param ignored string[]  patterns of names in files that the model need not have
function folder.load(files, model, names, tie, ignored)
  local find = finder(files, names.body)
  local head_only = tie and not files:has(find(names.embedding))
  files:load(model, function(name)
    return head_only and name == names.embedding and names.head or find(name)
  end, function(name)
    if tie and name == names.head then
      return true
    end
    for _, pattern in ipairs(ignored) do
      if name:find(pattern) then
        return true
      end
    end
  end)
end

---@param path string
---@param model ms.nn.Module
---@param opts { dtype?: ms.DType, process_group?: ms.dist.Group }
function folder.save(path, model, opts)
  arguments.text('save_pretrained', 'path', path)
  local text = text_of(config_of(model, opts.dtype), model.config_text) -- may fail
  if checkpoint.export(path .. '/model.safetensors', model, opts) then
    write(path .. '/config.json', text)
  end
end

return folder
