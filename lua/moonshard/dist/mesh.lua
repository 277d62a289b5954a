--- Device meshes: the ranks of a job arranged in dimensions, and the groups along them.
---
---   local mesh = ms.dist.init_device_mesh('cpu', { 2, 4 }, { mesh_dim_names = { 'dp', 'tp' } })
---   local model = fsdp.FSDP(m, { device_mesh = mesh['dp'] }) -- ranks 0 and 4, 1 and 5, ...
---
--- Dimensions count from 1. Ranks and coordinates (ranks along a dimension) count from 0. The last
--- dimension varies fastest.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local device = require 'moonshard.base.device'
local errors = require 'moonshard.base.errors'
local members = require 'moonshard.dist.members'
local namespace = require 'moonshard.base.namespace'
local notes = require 'moonshard_ffi.notes'

local C = B.C

---@class ms.dist.DeviceMesh
---@field ndim integer
---@field shape integer[]
---@field device_type string
---@field mesh_dim_names string[]|false
local DeviceMesh = {}

local metatable = {}

-- The index of a dimension given as a number or a name.
local function dimension(mesh, what, dim)
  if type(dim) == 'string' then
    for d, name in ipairs(mesh.mesh_dim_names or {}) do
      if name == dim then
        return d
      end
    end
    errors.raise('KeyError', "%s: Invalid mesh_dim_name '%s' specified. Valid mesh_dim_names are "
      .. '{%s}', what, dim, table.concat(mesh.mesh_dim_names or {}, ', '))
  end
  arguments.whole(what, 'mesh_dim', dim)
  if dim < 1 or dim > mesh.ndim then
    errors.raise('IndexError', "%s: 'mesh_dim' is %.17g, expected 1 to %d", what, dim, mesh.ndim)
  end
  return dim
end

local function only_dimension(mesh, what, dim)
  if dim == nil and mesh.ndim > 1 then
    errors.raise('RuntimeError', "%s: the DeviceMesh has %d dimensions; 'mesh_dim' needs to be "
      .. 'specified where there is more than 1', what, mesh.ndim)
  end
  return dimension(mesh, what, dim or 1)
end

--- The group of ranks whose coordinates differ from this rank's in one dimension only.
---@param mesh_dim? integer|string  required if there is more than one
---@return ms.dist.Group|false group  false on a rank that is outside the mesh
function DeviceMesh:get_group(mesh_dim)
  return self._groups[only_dimension(self, 'get_group', mesh_dim)]
end

--- The groups of all dimensions, in order.
---@return (ms.dist.Group|false)[]
function DeviceMesh:get_all_groups()
  return { unpack(self._groups) }
end

--- This rank's coordinate along a dimension.
---@param mesh_dim? integer|string  required if there is more than one
---@return integer  from 0
function DeviceMesh:get_local_rank(mesh_dim)
  local d = only_dimension(self, 'get_local_rank', mesh_dim)
  if not self._coordinate then
    errors.raise('RuntimeError', 'get_local_rank: this rank is outside the mesh')
  end
  return self._coordinate[d]
end

--- This rank's coordinates along all dimensions.
---@return integer[]?  from 0; nil on a rank that is outside the mesh
function DeviceMesh:get_coordinate()
  return self._coordinate and { unpack(self._coordinate) } or nil
end

--- This rank's number in the job.
---@return integer  from 0
function DeviceMesh:get_rank()
  return C.ms_comm_rank(B.world())
end

--- Number of ranks in the mesh, or along a dimension.
---@param mesh_dim? integer|string
---@return integer
function DeviceMesh:size(mesh_dim)
  if mesh_dim ~= nil then
    return self.shape[dimension(self, 'size', mesh_dim)]
  end
  local n = 1
  for _, size in ipairs(self.shape) do
    n = n * size
  end
  return n
end

-- -- making ---------------------------------------------------------------------------------------

local function new(fields)
  fields.ndim = #fields.shape
  return setmetatable(fields, metatable)
end

-- The coordinates of a rank in a mesh of that shape; nil if the rank is outside.
local function coordinate_of(rank, shape)
  local coordinate = {}
  for d = #shape, 1, -1 do
    coordinate[d] = rank % shape[d]
    rank = math.floor(rank / shape[d])
  end
  return rank == 0 and coordinate or nil
end

-- The group along dimension d.
local function group_along(world, coordinate, shape, d)
  local ranks, step = {}, 1
  for other = d + 1, #shape do
    step = step * shape[other]
  end
  local first = coordinate and C.ms_comm_rank(world) - coordinate[d] * step
  for i = 1, coordinate and shape[d] or 0 do
    ranks[i] = first + (i - 1) * step
  end
  return members.subgroup(world, ranks)
end

local function checked_shape(what, shape)
  local numel = 1
  if type(shape) ~= 'table' or #arguments.array(what, 'mesh_shape', shape) == 0 then
    arguments.refuse(what, 'mesh_shape', shape, 'a list of sizes')
  end
  for d, size in ipairs(shape) do
    numel = numel * arguments.whole(what, ('mesh_shape[%d]'):format(d), size, nil, 1)
  end
  local world_size = C.ms_comm_size(B.world())
  if numel > world_size then
    errors.raise('RuntimeError', '%s: Mesh should not be bigger than default world size %d, but '
      .. 'found %.17g ranks!', what, world_size, numel)
  end
  return { unpack(shape) }, numel
end

local function checked_names(what, names, ndim)
  if names == nil then
    return false
  end
  local seen = {}
  for d = 1, math.max(#names, ndim) do
    local name = names[d]
    if name == nil or d > ndim then
      errors.raise('RuntimeError', '%s: mesh_shape and mesh_dim_names should have same length! '
        .. 'Found len(mesh_dim_names): %d and len(mesh_shape): %d.', what, #names, ndim)
    end
    arguments.text(what, ('mesh_dim_names[%d]'):format(d), name)
    if seen[name] then
      errors.raise('RuntimeError', '%s: Each mesh_dim_name must be unique. Found repeated '
        .. "mesh_dim_name '%s'", what, name)
    elseif DeviceMesh[name] or name == 'ndim' or name == 'shape' or name:sub(1, 1) == '_'
      or name == 'device_type' or name == 'mesh_dim_names' then
      errors.raise('ValueError', "%s: a dimension cannot be called '%s', which a mesh has itself",
        what, name)
    end
    seen[name] = true
  end
  return { unpack(names) }
end

-- -- parts ----------------------------------------------------------------------------------------

-- The submesh of some dimensions that contains this rank.
local function part(mesh, names)
  local fields = {
    device_type = mesh.device_type, shape = {}, mesh_dim_names = {}, _groups = {},
    _coordinate = mesh._coordinate and {}, _parts = {},
  }
  local last = 0
  for i, name in ipairs(names) do
    local d = dimension(mesh, 'mesh[...]', arguments.text('mesh[...]', 'mesh_dim_names', name))
    if d <= last then
      errors.raise('KeyError', "mesh[...]: '%s' comes after a later dimension; Mesh dims order "
        .. 'is {%s}', name, table.concat(mesh.mesh_dim_names, ', '))
    end
    last = d
    fields.shape[i], fields.mesh_dim_names[i] = mesh.shape[d], name
    fields._groups[i] = mesh._groups[d]
    if mesh._coordinate then
      fields._coordinate[i] = mesh._coordinate[d]
    end
  end
  return new(fields)
end

local FIELDS = {
  'device_type', 'get_all_groups', 'get_coordinate', 'get_group', 'get_local_rank', 'get_rank',
  'mesh_dim_names', 'ndim', 'shape', 'size',
}

-- Implements mesh['dp'], mesh[{ 'dp', 'tp' }] and methods.
function metatable.__index(mesh, key)
  if DeviceMesh[key] then
    return DeviceMesh[key]
  end
  local names = rawget(mesh, 'mesh_dim_names')
  if not names then
    if type(key) == 'table' then
      errors.raise('RuntimeError', 'Cannot slice a DeviceMesh without mesh_dim_names!')
    end
    namespace.missing('a DeviceMesh without mesh_dim_names', tostring(key), FIELDS)
  end
  if type(key) == 'table' and #key > 0 then
    return part(mesh, key)
  elseif type(key) ~= 'string' then
    errors.raise('TypeError', 'mesh[...]: %s is not the name of a dimension', arguments.noun(key))
  end
  local parts = mesh._parts
  parts[key] = parts[key] or part(mesh, { key })
  return parts[key]
end

function metatable.__newindex(_, key)
  errors.raise('KeyError', "a DeviceMesh takes no field '%s'", tostring(key):sub(1, 80))
end

function metatable.__tostring(mesh)
  local dims = {}
  for d, size in ipairs(mesh.shape) do
    dims[d] = mesh.mesh_dim_names and ('%s=%d'):format(mesh.mesh_dim_names[d], size)
      or ('%d'):format(size)
  end
  return ("DeviceMesh((%s), '%s')"):format(table.concat(dims, ', '), mesh.device_type)
end

local mesh_module = {}

---@return boolean
function mesh_module.is(value)
  return type(value) == 'table' and getmetatable(value) == metatable
end

--- Check a mesh that has this rank.
---@param what string
---@param mesh ms.dist.DeviceMesh
---@return ms.dist.DeviceMesh
function mesh_module.checked(what, mesh)
  if not mesh_module.is(mesh) then
    arguments.refuse(what, 'mesh', mesh, 'a mesh of dist.init_device_mesh()')
  elseif not mesh:get_coordinate() then
    errors.raise('RuntimeError', '%s: this rank is outside %s, expected one of its ranks', what,
      tostring(mesh))
  end
  return mesh
end

--- The mesh of groups that exist: one dimension for each of them.
---@param groups ms.dist.Group[]
---@param names? string[]|false
---@return ms.dist.DeviceMesh
function mesh_module.of_groups(groups, names)
  local shape, coordinate = {}, {}
  for d, group in ipairs(groups) do
    shape[d], coordinate[d] = group:size(), group:rank()
  end
  return new {
    device_type = device.kind(), shape = shape, mesh_dim_names = names or false,
    _groups = { unpack(groups) }, _coordinate = coordinate, _parts = {},
  }
end

--- The dimensions of one mesh, then those of another; without names unless both have distinct ones.
---@param a ms.dist.DeviceMesh
---@param b ms.dist.DeviceMesh
---@return ms.dist.DeviceMesh
function mesh_module.joined(a, b)
  local groups, names, seen = {}, {}, {}
  for _, mesh in ipairs { a, b } do
    for d, group in ipairs(mesh:get_all_groups()) do
      local name = names and mesh.mesh_dim_names and mesh.mesh_dim_names[d]
      groups[#groups + 1] = group
      if name and not seen[name] then
        names[#names + 1], seen[name] = name, true
      else
        names = false
      end
    end
  end
  return mesh_module.of_groups(groups, names)
end

--- Have both meshes the same ranks along each dimension?
---@param a ms.dist.DeviceMesh
---@param b ms.dist.DeviceMesh
---@return boolean
function mesh_module.same(a, b)
  local ours, theirs = a:get_all_groups(), b:get_all_groups()
  for d = 1, math.max(#ours, #theirs) do
    if not (ours[d] and theirs[d] and members.same(ours[d], theirs[d])) then
      return false
    end
  end
  return true
end

--- Arrange the job's first ranks as a mesh and make the groups along its dimensions. Collective
--- over all ranks of the job, including those outside the mesh. The groups exist until the job
--- ends.
---@param device_type string  'cpu' or the device of this process
---@param mesh_shape integer[]  its product is at most the number of ranks
---@param opts? { mesh_dim_names?: string[] }
---@return ms.dist.DeviceMesh
function mesh_module.init_device_mesh(device_type, mesh_shape, opts)
  local what = 'init_device_mesh'
  device.is_own(what, device_type)
  opts = errors.options(what, opts, { mesh_dim_names = 'list' })
  local shape, numel = checked_shape(what, mesh_shape)
  local names = checked_names(what, opts.mesh_dim_names, #shape)
  local world, groups = B.world(), {}
  local coordinate = coordinate_of(C.ms_comm_rank(world), shape)
  notes.text(world, 'shape of ' .. what, table.concat(shape, ' '))
  notes.text(world, 'mesh_dim_names of ' .. what, table.concat(names or {}, ' '))
  for d = 1, #shape do
    groups[d] = #shape == 1 and numel == C.ms_comm_size(world) and world
      or group_along(world, coordinate, shape, d)
  end
  return new {
    device_type = device_type, shape = shape, mesh_dim_names = names, _groups = groups,
    _coordinate = coordinate or false, _parts = {},
  }
end

return mesh_module
