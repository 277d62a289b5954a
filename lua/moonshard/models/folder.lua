--- A model's folder: config.json and safetensors files, as the `transformers` package reads and
--- writes them.

local arguments = require 'moonshard_ffi.arguments'
local WeightFiles = require 'moonshard.checkpoint.weight_files'
local Writer = require 'moonshard.checkpoint.writer'
local errors = require 'moonshard.base.errors'
local json = require 'moonshard.base.json'
local lora = require 'moonshard.models.lora'
local text_files = require 'moonshard.base.text_files'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'

local folder = {}

--- Read config.json.
---@param path string  of the folder
---@return table config, string file, string text
function folder.config(path)
  return text_files.object(path .. '/config.json')
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

--- Do the files have the names of a body that was saved alone?
---@param files ms.checkpoint.WeightFiles
---@param names ms.models.TiedNames
---@return boolean
function folder.is_body(files, names)
  return finder(files, names.body)(names.embedding) ~= names.embedding
end

-- -- loading and saving --------------------------------------------------------------------------

--- Read the parameters of a model, sharded or not, without those of its adapters. Collective if
--- they are sharded.
---@param files ms.checkpoint.WeightFiles
---@param model ms.nn.Module  a Decoder, or a wrapper around one
---@param names ms.models.TiedNames
---@param tie boolean  embedding and head are one parameter
---@param ignored string[]  patterns of names in files that the model need not have
function folder.load(files, model, names, tie, ignored)
  local find, adapted = finder(files, names.body), lora.parameters(model)
  local head_only = tie and not files:has(find(names.embedding))
  files:load(model, function(name)
    if not adapted[name] then
      return head_only and name == names.embedding and names.head or find(name)
    end
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

-- Files of the tokenizer and of generation, which are copied from the folder that was loaded.
local COPIED = {
  'tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json', 'added_tokens.json',
  'vocab.json', 'merges.txt', 'tokenizer.model', 'chat_template.jinja', 'generation_config.json',
}

local function write_others(path, source, config)
  text_files.write(path .. '/config.json', config .. '\n')
  for _, name in ipairs(source and source ~= path and COPIED or {}) do
    local text = text_files.read(source .. '/' .. name)
    if text then
      text_files.write(path .. '/' .. name, text)
    end
  end
end

-- The full weight; with an adapter, its product is added. Collective.
local function value_of(tensor, adapter, transposed)
  local value = tensor:full_tensor():detach()
  return adapter and lora.merged(value, adapter.lora_A.weight:full_tensor(),
    adapter.lora_B.weight:full_tensor(), adapter, transposed) or value
end

-- The weights of a model without those of its adapters.
local function weights_of(model, opts)
  local prefix = model.without_prefix and model._body .. '.' or ''
  local adapters, own, list = {}, lora.parameters(model), {}
  for _, entry in ipairs(lora.below(model)) do
    adapters[entry.path .. '.weight'] = opts.merge and entry.module or nil
  end
  for _, p in ipairs(tree.prepared_params(model)) do
    if not own[p.name] then
      list[#list + 1] = {
        name = p.name:sub(1, #prefix) == prefix and p.name:sub(#prefix + 1) or p.name,
        numel = util.product(p.shape), dtype = opts.dtype or p.tensor:dtype(),
        value = function()
          return value_of(p.tensor, adapters[p.name], lora.is_transposed(p.module))
        end,
      }
    end
  end
  return list, next(own) ~= nil
end

local MAX_SHARD_SIZE = 5e9

---@param path string
---@param model ms.nn.Module
---@param opts ms.models.SaveOptions
function folder.save(path, model, opts)
  local what = 'save_pretrained'
  arguments.text(what, 'path', path)
  local most = opts.max_shard_size or MAX_SHARD_SIZE
  if most <= 0 or most ~= most then
    errors.raise('ValueError', "%s: 'max_shard_size' is %g, expected a number of bytes above 0",
      what, most)
  end
  local text = text_of(config_of(model, opts.dtype), model.config_text) -- may fail
  local writer = Writer(what, path, model, opts.process_group)
  local weights, has_adapter = weights_of(model, opts)
  if has_adapter and opts.merge == nil then
    errors.raise('ValueError', '%s: the model has an adapter: merge = true adds it to the weights, '
      .. 'merge = false writes the weights without it; save_adapter() writes the adapter', what)
  end
  WeightFiles.write(path, writer, weights, most)
  writer:run(function() write_others(path, model.source, text) end)
end

return folder
