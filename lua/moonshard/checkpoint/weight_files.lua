--- The tensors of a model's folder: `model.safetensors`, or the files that
--- `model.safetensors.index.json` lists. They are read into parameters one by one, and each rank
--- reads its own elements only. They are written one file at a time.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local dtype = require 'moonshard.base.dtype'
local errors = require 'moonshard.base.errors'
local finally = require 'moonshard.base.finally'
local json = require 'moonshard.base.json'
local parameter = require 'moonshard_ffi.parameter'
local runtime = require 'moonshard_ffi.checkpoint'
local scope = require 'moonshard.base.scope'
local text_files = require 'moonshard.base.text_files'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'

---@class ms.checkpoint.WeightFiles
---@field path string  of the file, or of the index
---@field names string[]  of all tensors, sorted
---@field _at table<string, { file: ffi.cdata*, index: integer, path: string }>  by name
---@field _files ffi.cdata*[]
local WeightFiles = class('checkpoint.WeightFiles')

-- The names of the file, and of the index of several.
local function names_of(stem)
  local single = (stem or 'model') .. '.safetensors'
  return single, single .. '.index.json'
end

-- What `read` returns of the open file, or nil if the file cannot be opened.
local function of_file(path, read)
  local file = io.open(path, 'rb')
  if not file then
    return nil
  end
  local found = read(file)
  file:close()
  return found
end

local function exists(path)
  return of_file(path, function() return true end)
end

local function add_file(self, path)
  local file = runtime.open_safetensors(path)
  self._files[#self._files + 1] = file
  local at = {}
  for index, name in ipairs(runtime.safetensors_names(file)) do
    at[name] = { file = file, index = index, path = path }
  end
  return at
end

-- The file of each tensor by its name, of an index.
local function weight_map(path, text)
  local index = json.decode(text, path)
  local map = type(index) == 'table' and index.weight_map
  if type(map) ~= 'table' then
    errors.raise('FormatError', "%s: 'weight_map' is %s, expected the file of each tensor by its "
      .. 'name', path, arguments.noun(map or nil))
  end
  for _, name in ipairs(util.sorted_keys(map)) do
    local file = map[name]
    if type(file) ~= 'string' or file == '' or file:find '[/\\]' then
      errors.raise('FormatError', "%s: the file of '%s' is %s, expected a name in the same folder",
        path, name, type(file) == 'string' and "'" .. file .. "'" or arguments.noun(file))
    end
  end
  return map
end

local function open_index(self, folder, index, text)
  local files = {}
  local map = weight_map(self.path, text)
  for _, name in ipairs(util.sorted_keys(map)) do
    local path = folder .. '/' .. map[name]
    files[path] = files[path] or add_file(self, path)
    self._at[name] = files[path][name] or errors.raise('FormatError', "%s: has no tensor '%s', "
      .. 'which %s says is there', path, name, index)
  end
end

--- Open the files of a folder and check their headers. IOError if it has neither a file nor an
--- index; if it has both, the file is read.
---@param folder string
---@param stem? string  of the files' names (default 'model')
function WeightFiles:init(folder, stem)
  local single, index = names_of(stem)
  self._files, self._at, self.path = {}, {}, folder .. '/' .. index
  local text = not exists(folder .. '/' .. single)
    and of_file(self.path, function(file) return file:read '*a' end)
  if text then
    open_index(self, folder, index, text)
  else
    self.path = folder .. '/' .. single
    self._at = add_file(self, self.path)
  end
  self.names = util.sorted_keys(self._at)
end

function WeightFiles:close()
  for _, file in ipairs(self._files) do
    runtime.close_safetensors(file)
  end
  self._files, self._at = {}, {}
end

---@param name string
---@return boolean
function WeightFiles:has(name)
  return self._at[name] ~= nil
end

--- Elements [start, start + numel) of a tensor.
---@param name string
---@param start integer  from 0
---@param numel integer
---@return ms.Tensor  (numel)
function WeightFiles:slice(name, start, numel)
  local at = self._at[name]
  return runtime.safetensors_slice(at.file, at.index, start, numel)
end

---@param name string
---@return integer[] shape, integer numel
function WeightFiles:shape(name)
  local at = self._at[name]
  return runtime.safetensors_shape(at.file, at.index)
end

local BLOCK = 2 ^ 20 -- elements that are compared at a time

local function equal_blocks(self, a, b, start, n)
  local x, y = self:slice(a, start, n), self:slice(b, start, n)
  return x:dtype() == y:dtype() and parameter.hash_number(x) == parameter.hash_number(y)
end

--- Do two tensors have equal shapes, dtypes and bytes?
---@param a string
---@param b string
---@return boolean
function WeightFiles:equal(a, b)
  local shape, numel = self:shape(a)
  if not util.equal(shape, (self:shape(b))) then
    return false
  end
  for start = 0, numel - 1, BLOCK do
    if not scope.run('from_pretrained', equal_blocks, self, a, b, start,
      math.min(BLOCK, numel - start)) then
      return false
    end
  end
  return true
end

local function check_shape(self, name, p)
  local shape = self:shape(name)
  if not util.equal(shape, p.shape) then
    errors.raise('ValueError', "%s: '%s' has shape (%s), the model's has (%s)", self._at[name].path,
      name, table.concat(shape, ', '), table.concat(p.shape, ', '))
  end
end

local function read_parameter(self, tensor, name)
  local part, extent = parameter.part(tensor)
  if part then
    B.calls.tensor_copy(part, self:slice(name, extent.start, extent.numel))
  end
  parameter.touch(tensor)
end

-- The scope releases what was read before the next parameter is.
local function read_into(self, list)
  for _, entry in ipairs(list) do
    scope.run('from_pretrained', read_parameter, self, entry.tensor, entry.name)
  end
end

-- The tensor of each parameter, checked.
local function plan(self, model, name_of)
  local list, missing = {}, {}
  for _, p in ipairs(tree.prepared_params(model:materialize())) do
    local name = name_of(p.name)
    if name and self:has(name) then
      check_shape(self, name, p)
      list[#list + 1] = { tensor = p.tensor, name = name }
    elseif name then
      missing[#missing + 1] = p.name
    end
  end
  if #missing > 0 then
    errors.raise('KeyError', '%s: has no %s, which the model expects', self.path,
      util.listed(missing, 4))
  end
  return list
end

local function check_rest(self, list, is_ignored)
  local read, rest = {}, {}
  for _, entry in ipairs(list) do
    read[entry.name] = true
  end
  for _, name in ipairs(self.names) do
    rest[#rest + 1] = not read[name] and not is_ignored(name) and name or nil
  end
  if #rest > 0 then
    errors.raise('KeyError', '%s: has %s, which the model does not have (strict = false ignores '
      .. 'them)', self.path, util.listed(rest, 4))
  end
end

--- Read parameters of a model, cast to their dtypes. Names and shapes are checked before anything
--- is read. Collective if parameters are sharded.
---@param model ms.nn.Module
---@param name_of fun(name: string): string?  the tensor of the parameter of that name; nil: the
---  parameter is left as it is
---@param is_ignored fun(name: string): boolean?  may the model have no parameter for this tensor
function WeightFiles:load(model, name_of, is_ignored)
  local list = plan(self, model, name_of)
  check_rest(self, list, is_ignored)
  finally.run(B.give_back, nil, read_into, self, list) -- a step may need the files' memory
end

-- -- writing -------------------------------------------------------------------------------------

---@class ms.checkpoint.Weight  a tensor to be written
---@field name string
---@field numel integer
---@field dtype ms.DType
---@field value fun(): ms.Tensor  collective; asked when its file is written

-- The weights by file, in order. A tensor above the limit has a file of its own.
local function split(weights, most)
  local files, size, total = { {} }, 0, 0
  for _, w in ipairs(weights) do
    local bytes = w.numel * dtype.size(w.dtype)
    if size + bytes > most and #files[#files] > 0 then
      files[#files + 1], size = {}, 0
    end
    table.insert(files[#files], w)
    size, total = size + bytes, total + bytes
  end
  return files, total
end

-- The tensor on the rank that writes; the scope around this releases others.
local function tensor_of(writer, weight)
  local value = weight.value()
  return writer.writes and value:to(weight.dtype) or nil
end

local function write_file(writer, path, weights)
  local names, tensors = {}, {}
  for i, weight in ipairs(weights) do
    names[i], tensors[i] = weight.name, scope.run('save_pretrained', tensor_of, writer, weight)
  end
  writer:save(path, writer.writes and names or {}, tensors)
end

-- The files that an index in the folder lists, and the index. An index that cannot be read lists
-- none.
local function indexed(folder, index)
  local text = of_file(folder .. '/' .. index, function(file) return file:read '*a' end)
  local ok, map = pcall(weight_map, index, text or '{"weight_map": {}}')
  local files = text and { index } or {}
  for _, name in ipairs(ok and util.sorted_keys(map) or {}) do
    files[#files + 1] = map[name]
  end
  return files
end

--- Write tensors to a folder: to one file if it has at most `most` bytes, else to several with an
--- index. Rank 0 holds the tensors of one file at a time, other ranks one tensor. The weights that
--- were in the folder are removed. Collective, with the same outcome on all ranks.
---@param folder string
---@param writer ms.checkpoint.Writer
---@param weights ms.checkpoint.Weight[]
---@param most number  bytes
---@param stem? string  of the files' names (default 'model')
function WeightFiles.write(folder, writer, weights, most, stem)
  local single, index = names_of(stem)
  local files, total = split(weights, most)
  local map, written = {}, {}
  for i, list in ipairs(files) do
    local name = #files == 1 and single
      or single:gsub('%.safetensors$', ('-%05d-of-%05d%%0'):format(i, #files))
    scope.run('save_pretrained', write_file, writer, folder .. '/' .. name, list)
    written[name] = true
    for _, w in ipairs(list) do
      map[w.name] = name
    end
  end
  writer:run(function()
    local old = indexed(folder, index)
    old[#old + 1] = single
    if #files > 1 then
      text_files.write(folder .. '/' .. index, json.encode {
        metadata = { total_size = total }, weight_map = map,
      } .. '\n')
      written[index] = true
    end
    for _, name in ipairs(old) do
      if not written[name] then
        os.remove(folder .. '/' .. name)
      end
    end
  end)
end

return WeightFiles
