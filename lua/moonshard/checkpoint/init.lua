--- Checkpoints of model, optimizer, loader and the script's own state. All ranks write a checkpoint
--- together, all or nothing, and any number of ranks can read it.
---
--- Every rank writes its own elements; nothing is gathered. Rank 0 writes what is equal on all
--- ranks.
---
--- "All ranks" means those of the group over which the model or optimizer is sharded
--- (`process_group`), counted from 0. Each group needs a path, or a root for steps, of its own: if
--- two groups save to one path, the last one replaces the other's checkpoint.

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

--- Read step, config and other data of a checkpoint, without the tensors.
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

--- Path of the checkpoint under `root` that was saved last, whatever its step (the target of the
--- link `latest`). If that one is damaged or missing: the intact checkpoint with the highest step.
--- Reads every byte. Damaged checkpoints are skipped with a warning; FormatError with the defect of
--- each if all are damaged.
---@param root string
---@return string?  nil if there is no checkpoint
function checkpoint.latest(root)
  validate.path('checkpoint.latest', 'root', root)
  return runtime.latest(root)
end

--- Keep `keep` checkpoints, the one saved last and then those with the highest steps, and remove
--- the others and the remains of writers that died. Warns if a checkpoint has a higher step than
--- the one saved last. Damaged checkpoints and other files are kept; a failure to remove is a
--- warning.
---@param root string
---@param keep integer
function checkpoint.prune(root, keep)
  validate.path('checkpoint.prune', 'root', root)
  arguments.whole('checkpoint.prune', 'keep', keep, nil, 1)
  runtime.prune(root, keep)
end

return namespace.space('checkpoint', checkpoint)
