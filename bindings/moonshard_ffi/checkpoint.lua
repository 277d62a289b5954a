--- Checkpoints and safetensors files: see moonshard/checkpoint.h.

local B = require 'moonshard_ffi'

local C, calls = B.C, B.calls

local checkpoint = {}

--- Begin writing; `add` everything, then `commit` or `discard`.
function checkpoint.begin(comm, root, name)
  local out = B.new('ms_checkpoint_writer *[1]')
  B.check(C.ms_checkpoint_begin(out, comm, root, name))
  return B.gc(out[0], C.ms_checkpoint_discard)
end

---@param extent ms.Extent
---@param part ms.Tensor?
function checkpoint.add(writer, key, extent, part)
  calls.checkpoint_add(writer, key, extent.c, part)
end

function checkpoint.commit(writer, meta_json)
  B.gc(writer, nil)
  B.check(C.ms_checkpoint_commit(writer, meta_json))
end

function checkpoint.discard(writer)
  B.gc(writer, nil)
  C.ms_checkpoint_discard(writer)
end

function checkpoint.open(path)
  local out = B.new('ms_checkpoint *[1]')
  B.check(C.ms_checkpoint_open(out, path))
  return B.gc(out[0], C.ms_checkpoint_close)
end

function checkpoint.close(handle)
  B.gc(handle, nil)
  C.ms_checkpoint_close(handle)
end

---@return string  JSON
function checkpoint.meta(handle)
  return B.string(C.ms_checkpoint_meta(handle))
end

---@return boolean
function checkpoint.has(handle, key)
  return C.ms_checkpoint_has(handle, key)
end

---@return string[]
function checkpoint.keys(handle)
  local keys = {}
  for i = 1, C.ms_checkpoint_n_keys(handle) do
    keys[i] = B.string(C.ms_checkpoint_key(handle, i - 1))
  end
  return keys
end

--- Shape of the whole tensor behind a key.
---@return integer[]
function checkpoint.shape(handle, key)
  local extent = B.new('ms_param_extent')
  B.check(C.ms_checkpoint_extent(handle, key, extent))
  local shape = {}
  for i = 1, extent.ndim do
    shape[i] = tonumber(extent.shape[i - 1])
  end
  return shape
end

--- Read the elements `extent` names into `part`.
function checkpoint.read(handle, key, extent, part)
  calls.checkpoint_read(handle, key, extent.c, part)
end

local path_out = B.new('const char *[1]')

---@return string?  path of the newest complete checkpoint
function checkpoint.latest(root)
  B.check(C.ms_checkpoint_latest(path_out, root))
  return path_out[0] ~= nil and B.string(path_out[0]) or nil
end

function checkpoint.prune(root, keep)
  B.check(C.ms_checkpoint_prune(root, keep))
end

---@param names string[]
---@param tensors ms.Tensor[]
function checkpoint.save_safetensors(path, names, tensors)
  local refs, n = B.array(tensors, 'tensors')
  local texts = B.new('const char *[?]', math.max(n, 1))
  for i = 1, n do
    texts[i - 1] = names[i]
  end
  calls.safetensors_save(path, refs, n, texts)
end

--- All tensors of a file, as copies, in its order.
---@return string[] names, ms.Tensor[] tensors
function checkpoint.load_safetensors(path)
  local out = B.new('ms_safetensors *[1]')
  B.check(C.ms_safetensors_open(out, path))
  local file = B.gc(out[0], C.ms_safetensors_close)
  local names, tensors = {}, {}
  for i = 1, C.ms_safetensors_n(file) do
    names[i] = B.string(C.ms_safetensors_name(file, i - 1))
    tensors[i] = calls.safetensors_get(file, i - 1)
  end
  return names, tensors
end

return checkpoint
