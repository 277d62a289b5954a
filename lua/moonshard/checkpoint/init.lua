--- Checkpoints: model, optimizer, loader and what the script adds, written by all ranks together,
--- all or nothing, and read back on any number of ranks.
---
--- Every rank writes the elements it holds; nothing is gathered. What all ranks hold alike is
--- written by rank 0.
---
--- "All ranks" are those of the group over which the model or optimizer is sharded
--- (`process_group`), counted from 0. Each group saves under a path of its own, and steps under a
--- root of its own: of two groups that save one path, the last one replaces the other's.

local arguments = require 'moonshard_ffi.arguments'
local meta_data = require 'moonshard.checkpoint.meta'
local runtime = require 'moonshard_ffi.checkpoint'
local validate = require 'moonshard.checkpoint.validate'
local namespace = require 'moonshard.base.namespace'
local safetensors = require 'moonshard.checkpoint.safetensors'

local checkpoint = {
  Manager = require 'moonshard.checkpoint.manager',
  save = require 'moonshard.checkpoint.save',
  load = require('moonshard.checkpoint.load').load,
  export = safetensors.export,
  import = safetensors.import,
  read_safetensors = safetensors.read_safetensors,
  write_safetensors = safetensors.write_safetensors,
}

--- What was saved beside the tensors, without reading them.
---@param path string
---@return ms.checkpoint.Meta
function checkpoint.read_meta(path)
  validate.path('checkpoint.read_meta', 'path', path)
  local handle = runtime.open(path)
  local ok, meta = pcall(meta_data.read, handle)
  runtime.close(handle)
  if not ok then
    error(meta, 0)
  end
  return meta
end

--- Path of the checkpoint under `root` that was saved last, whatever its step: where the link
--- `latest` points. When it is broken or gone, that of the newest intact one by step. Reads every
--- byte of it; broken ones are passed over with a warning, and when there are only such it is a
--- FormatError that says what is wrong with each.
---@param root string
---@return string?  nil when there is no checkpoint at all
function checkpoint.latest(root)
  validate.path('checkpoint.latest', 'root', root)
  return runtime.latest(root)
end

--- Remove all checkpoints but `keep`: the one that was saved last, then the newest by step, with a
--- warning when there is one of a greater step. And what died writers left. What cannot be removed
--- is a warning; what is not ours or broken stays.
---@param root string
---@param keep integer
function checkpoint.prune(root, keep)
  validate.path('checkpoint.prune', 'root', root)
  arguments.whole('checkpoint.prune', 'keep', keep, nil, 1)
  runtime.prune(root, keep)
end

return namespace.space('checkpoint', checkpoint)
