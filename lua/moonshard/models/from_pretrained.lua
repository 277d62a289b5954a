--- Loading of folders with models.

local Decoder = require 'moonshard.models.decoder'
local WeightFiles = require 'moonshard.checkpoint.weight_files'
local adapter = require 'moonshard.models.adapter'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local families = require 'moonshard.models.families'
local finally = require 'moonshard.base.finally'
local folder = require 'moonshard.models.folder'
local generation_config = require 'moonshard.models.generation_config'
local util = require 'moonshard.base.util'

---@class ms.models.FromPretrainedOptions
---@field dtype? ms.DType  of the parameters; files of other dtypes are cast (default 'f32')
---@field wrap? fun(model: ms.models.Decoder): ms.nn.Module?  shards the model before its weights
---  are read, so that no rank holds all of them; returns a wrapper, or nil if it changed the model
---  in place
---@field strict? boolean  the files have no tensors beside the model's (default true)
---@field adapter? string|ms.models.AdapterOptions  a folder for load_adapter(), or the options of
---  add_adapter(); added before `wrap`, so that it is sharded with the model

local function load(files, path, config, from, text, opts)
  local family = families.of(from, config)
  local names = {
    body = family.names.body, head = 'lm_head.weight',
    embedding = ('%s.%s.weight'):format(family.names.body, family.names.embedding),
  }
  local tie = families.read(from, config).tie
  if tie and not folder.ties(files, names) then
    config, tie = util.merged(config, { tie_word_embeddings = false }), false
  end
  local model = Decoder(config, { dtype = opts.dtype, init = { kind = 'none' } })
  model.config_text, model.source, model.generation_config = text, path,
    generation_config.read(path)
  model.without_prefix = folder.is_body(files, names)
  local loaded = type(opts.adapter) == 'string'
  if loaded then
    adapter.prepare('from_pretrained', model, opts.adapter)
  elseif opts.adapter ~= nil then
    adapter.add(model, opts.adapter)
  end
  model = opts.wrap and opts.wrap(model) or model
  folder.load(files, model, names, tie, opts.strict == false and { '' } or family.ignored)
  if loaded then
    adapter.read(model, opts.adapter)
  end
  return model:eval()
end

--- Load a model from a folder as `transformers` writes it: config.json, and model.safetensors or
--- the files of its index. The model is in evaluation mode, without dropout: call train() before
--- training. NotImplementedError for an architecture or a field that is not supported, KeyError for
--- missing and unexpected tensors, ValueError for other shapes.
---@param path string
---@param opts? ms.models.FromPretrainedOptions
---@return ms.models.Decoder  or what `wrap` returned
return function(path, opts)
  arguments.text('from_pretrained', 'path', path)
  opts = errors.options('from_pretrained', opts,
    { dtype = 'floating', wrap = 'fn', strict = 'flag', adapter = 'any' })
  local config, from, text = folder.config(path)
  families.read(from, config) -- before the files are opened
  local files = WeightFiles(path)
  return finally.run(function() files:close() end, nil, load, files, path, config, from,
    text, opts)
end
