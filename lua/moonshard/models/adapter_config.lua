--- adapter_config.json, as the `peft` package reads and writes it.

local config_fields = require 'moonshard.models.config_fields'
local errors = require 'moonshard.base.errors'
local json = require 'moonshard.base.json'
local text_files = require 'moonshard.base.text_files'
local util = require 'moonshard.base.util'

local adapter_config = {}

local FILE = 'adapter_config.json'

---@class ms.models.AdapterConfig
---@field r integer
---@field alpha number
---@field dropout number
---@field rslora boolean
---@field targets string[]|string|nil  names of layers; a string is a regular expression of Python
---@field some_layers boolean  the adapter may lack layers that `targets` names
---@field rank_pattern table<string, integer>  r by the end of a path
---@field alpha_pattern table<string, number>

-- -- reading -------------------------------------------------------------------------------------

-- Fields that change what an adapter computes, and their only supported value.
local ONLY = {
  peft_type = 'LORA', bias = 'none', use_dora = false, lora_bias = false, use_qalora = false,
  modules_to_save = json.null, layer_replication = json.null, alora_invocation_tokens = json.null,
  trainable_token_indices = json.null, target_parameters = json.null, use_bdlora = json.null,
  arrow_config = json.null, kasa_config = json.null, velora_config = json.null,
  monteclora_config = json.null,
}

-- Kinds of initial values that leave the base model as it is. Others (pissa, olora, loftq, ...)
-- change the base weights before training.
local INITS = { gaussian = true, eva = true, orthogonal = true }

local function check_init(from, init)
  if type(init) == 'string' and not INITS[init] then
    errors.raise('NotImplementedError', "%s: init_lora_weights is '%s', which changes the base "
      .. 'model, expected true, false, %s', from, init, table.concat(util.sorted_keys(INITS), ', '))
  end
end

-- Keys are regular expressions that match the end of a path. Plain names are supported.
local function pattern_of(from, config, name, kind)
  local found = config_fields.value(from, config, name, 'object', {})
  for _, key in ipairs(util.sorted_keys(found)) do
    if key:find '[^%w_.%-]' then
      errors.raise('NotImplementedError', "%s: %s has the regular expression '%s', expected names "
        .. 'of layers', from, name, key)
    end
    config_fields.check(from, ('%s.%s'):format(name, key), kind, found[key])
  end
  return found
end

--- Read adapter_config.json of a folder. NotImplementedError for what is not supported, FormatError
--- for a field of another type.
---@param path string
---@return ms.models.AdapterConfig config, string file
function adapter_config.read(path)
  local config, from = text_files.object(path .. '/' .. FILE)
  config_fields.refuse(from, config, ONLY)
  check_init(from, config.init_lora_weights)
  if config.peft_type == nil then
    errors.raise('FormatError', "%s: has no 'peft_type', expected 'LORA'", from)
  end
  local function value(name, kind, absent)
    return config_fields.value(from, config, name, kind, absent)
  end
  local function given(name)
    return config[name] ~= nil and config[name] ~= json.null
  end
  return {
    r = value('r', 'count', 8), alpha = value('lora_alpha', 'number', 8),
    dropout = value('lora_dropout', 'share', 0), rslora = value('use_rslora', 'flag', false),
    targets = value('target_modules', 'names'),
    some_layers = given 'layers_to_transform' or given 'exclude_modules',
    rank_pattern = pattern_of(from, config, 'rank_pattern', 'count'),
    alpha_pattern = pattern_of(from, config, 'alpha_pattern', 'number'),
  }, from
end

--- Does a name of a layer in a config match a path? It matches the whole path or its end.
---@param name string
---@param path string
---@return boolean
function adapter_config.matches(name, path)
  return path == name or path:sub(-#name - 1) == '.' .. name
end

--- The value that a pattern has for a path, or `default`. ValueError if two entries differ.
---@param from string
---@param pattern table<string, number>
---@param path string
---@param default number
---@return number
function adapter_config.lookup(from, pattern, path, default)
  local found
  for _, key in ipairs(util.sorted_keys(pattern)) do
    if adapter_config.matches(key, path) then
      if found and pattern[found] ~= pattern[key] then
        errors.raise('ValueError', "%s: the patterns '%s' and '%s' both match '%s', with %g and %g",
          from, found, key, path, pattern[found], pattern[key])
      end
      found = key
    end
  end
  return found and pattern[found] or default
end

-- -- writing -------------------------------------------------------------------------------------

local function names(list)
  return setmetatable(list, json.array)
end

local FIELDS = {
  'peft_type', 'task_type', 'base_model_name_or_path', 'revision', 'inference_mode', 'r',
  'lora_alpha', 'lora_dropout', 'target_modules', 'bias', 'fan_in_fan_out', 'modules_to_save',
  'use_rslora', 'use_dora', 'init_lora_weights', 'layers_to_transform', 'layers_pattern',
  'rank_pattern', 'alpha_pattern',
}

--- The text of an adapter_config.json. It has the fields that all versions of `peft` know, since an
--- older one refuses a field that it does not know.
---@param config ms.models.AdapterConfig
---@param base string?  the base model's folder
---@param transposed boolean  the weights of the layers are (in, out)
---@return string
function adapter_config.text(config, base, transposed)
  local value = {
    peft_type = 'LORA', task_type = 'CAUSAL_LM', inference_mode = true, bias = 'none',
    base_model_name_or_path = base or json.null, revision = json.null, r = config.r,
    lora_alpha = config.alpha, lora_dropout = config.dropout, fan_in_fan_out = transposed,
    target_modules = names { unpack(config.targets) }, modules_to_save = json.null,
    use_rslora = config.rslora, use_dora = false, init_lora_weights = true,
    layers_to_transform = json.null, layers_pattern = json.null,
    rank_pattern = config.rank_pattern, alpha_pattern = config.alpha_pattern,
  }
  local lines = {}
  for i, name in ipairs(FIELDS) do
    lines[i] = ('  "%s": %s'):format(name, json.encode(value[name]))
  end
  return '{\n' .. table.concat(lines, ',\n') .. '\n}'
end

--- Write it.
---@param path string  of the folder
---@param text string
function adapter_config.write(path, text)
  text_files.write(path .. '/' .. FILE, text .. '\n')
end

return adapter_config
