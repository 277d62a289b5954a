--- Checkpoints and safetensors files: see moonshard/checkpoint.h.

local B = require 'moonshard_ffi'

local C, calls = B.C, B.calls

local checkpoint = {}

--- Begin writing. Call `add` for all tensors, then `commit` or `discard`.
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

--- Record a value that must be equal on all ranks; the commit compares it.
function checkpoint.same(writer, what, text)
  B.check(C.ms_checkpoint_same(writer, what, text))
end

function checkpoint.commit(writer, meta_json)
  B.gc(writer, nil)
  B.check(C.ms_checkpoint_commit(writer, meta_json))
end

function checkpoint.discard(writer)
  B.gc(writer, nil)
  C.ms_checkpoint_discard(writer)
end

--- Make the commit fail on all ranks with this rank's error.
function checkpoint.fail(writer, err)
  C.ms_checkpoint_fail(writer, B.errors.status(err), B.errors.text(err))
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

--- Begin reading a checkpoint. Call `load_add` for all tensors, then `load_commit` or
--- `load_discard`.
function checkpoint.load_begin(comm, path)
  local out = B.new('ms_checkpoint_loader *[1]')
  B.check(C.ms_checkpoint_load_begin(out, comm, path))
  return B.gc(out[0], C.ms_checkpoint_load_discard)
end

--- Begin reading the newest intact checkpoint that is named by its step; nil if no such one exists.
function checkpoint.load_latest_step(comm, root)
  local out = B.new('ms_checkpoint_loader *[1]')
  B.check(C.ms_checkpoint_load_latest_step(out, comm, root))
  return out[0] ~= nil and B.gc(out[0], C.ms_checkpoint_load_discard) or nil
end

--- The argument of `meta` and `keys`. Borrowed from the loader.
function checkpoint.load_source(loader)
  return C.ms_checkpoint_load_source(loader)
end

---@param extent ms.Extent
---@param part ms.Tensor?  overwritten by the commit
function checkpoint.load_add(loader, key, extent, part)
  calls.checkpoint_load_add(loader, key, extent.c, part)
end

function checkpoint.load_fail(loader, err)
  C.ms_checkpoint_load_fail(loader, B.errors.status(err), B.errors.text(err))
end

function checkpoint.load_commit(loader)
  B.gc(loader, nil)
  B.check(C.ms_checkpoint_load_commit(loader))
end

function checkpoint.load_discard(loader)
  B.gc(loader, nil)
  C.ms_checkpoint_load_discard(loader)
end

---@return string  the checkpoint's folder
function checkpoint.path(handle)
  return B.string(C.ms_checkpoint_path(handle))
end

---@return string  JSON
function checkpoint.meta(handle)
  return B.string(C.ms_checkpoint_meta(handle))
end

---@return string[]  also the index of each key, by key
function checkpoint.keys(handle)
  local keys = {}
  for i = 1, C.ms_checkpoint_n_keys(handle) do
    local key = B.string(C.ms_checkpoint_key(handle, i - 1))
    keys[i], keys[key] = key, i
  end
  return keys
end

local path_out = B.new('const char *[1]')

---@return string?  path of the newest complete checkpoint, or nil
function checkpoint.latest(root)
  B.check(C.ms_checkpoint_latest(path_out, root))
  return path_out[0] ~= nil and B.string(path_out[0]) or nil
end

-- Make a folder and its parents; it may exist.
function checkpoint.make_folder(path)
  B.check(C.ms_make_folder(path))
end

function checkpoint.prune(root, keep)
  B.check(C.ms_checkpoint_prune(root, keep))
end

---@return string  the checkpoint's name for a step
function checkpoint.step_name(step)
  return B.string(C.ms_checkpoint_step_name(step))
end

--- Keep `keep` checkpoints named by step, counting down from `step`; 0: keep all.
function checkpoint.rotate(root, step, keep)
  B.check(C.ms_checkpoint_rotate(root, step, keep))
end

local function texts_of(names)
  local texts = B.new('const char *[?]', math.max(#names, 1))
  for i = 1, #names do
    texts[i - 1] = names[i]
  end
  return texts
end

---@param names string[]
---@param tensors ms.Tensor[]
function checkpoint.save_safetensors(path, names, tensors)
  local refs, n = B.array(tensors, 'tensors')
  calls.safetensors_save(path, refs, n, texts_of(names))
end

--- Export by rank 0, for all ranks of a group.
function checkpoint.export(comm, path, names, tensors)
  local refs, n = B.array(tensors, 'tensors')
  calls.safetensors_export(comm, path, refs, n, texts_of(names))
end

---@return ffi.cdata* file
function checkpoint.open_safetensors(path)
  local out = B.new('ms_safetensors *[1]')
  B.check(C.ms_safetensors_open(out, path))
  return B.gc(out[0], C.ms_safetensors_close)
end

function checkpoint.close_safetensors(file)
  B.gc(file, nil)
  C.ms_safetensors_close(file)
end

---@return string[]  in file order
function checkpoint.safetensors_names(file)
  local names = {}
  for i = 1, C.ms_safetensors_n(file) do
    names[i] = B.string(C.ms_safetensors_name(file, i - 1))
  end
  return names
end

--- Shape of the i-th tensor, counted from 1, and its number of elements.
---@return integer[] shape, integer numel
function checkpoint.safetensors_shape(file, i)
  local extent, shape = B.new('ms_param_extent'), {}
  B.check(C.ms_safetensors_extent(file, i - 1, extent))
  for d = 1, extent.ndim do
    shape[d] = tonumber(extent.shape[d - 1])
  end
  return shape, tonumber(extent.numel)
end

--- Elements [start, start + numel) of the i-th tensor, counted from 1.
---@param start integer  from 0
---@return ms.Tensor  (numel)
function checkpoint.safetensors_slice(file, i, start, numel)
  return calls.safetensors_slice(file, i - 1, start, numel)
end

--- Copies of all tensors of a file, in file order.
---@return string[] names, ms.Tensor[] tensors
function checkpoint.load_safetensors(path)
  local file, tensors = checkpoint.open_safetensors(path), {}
  local names = checkpoint.safetensors_names(file)
  for i = 1, #names do
    tensors[i] = calls.safetensors_get(file, i - 1)
  end
  return names, tensors
end

return checkpoint
