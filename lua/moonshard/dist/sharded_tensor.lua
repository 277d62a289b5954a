--- A tensor that the ranks of a mesh divide: PyTorch's DTensor.
---
---   local mesh = ms.dist.init_device_mesh('cpu', { 2 })
---   local x = ms.dist.distribute_tensor(ms.randn(5, 3), mesh, { ms.dist.Shard(1) })
---   x:to_local():shape()                                   -- { 3, 3 }, on rank 1 { 2, 3 }
---   (x * 2):redistribute { ms.dist.Replicate() }:to_local() -- (5, 3)
---
--- State dicts of type SHARDED_STATE_DICT and LOCAL_STATE_DICT contain it for sharded parameters. A
--- tensor of which each rank has a range of elements (placement Flat), rows, or everything, has the
--- fields below: the elements [start, start + length) in row-major order. Operations are not
--- recorded.

local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local class = require 'moonshard.base.class'
local collectives = require 'moonshard.dist.collectives'
local create = require 'moonshard.base.create'
local dims = require 'moonshard.base.dims'
local errors = require 'moonshard.base.errors'
local meshes = require 'moonshard.dist.mesh'
local ops = require 'moonshard.ops'
local placement = require 'moonshard.dist.placement'
local redistribute = require 'moonshard.dist.redistribute'
local runtime = require 'moonshard_ffi.fsdp'
local util = require 'moonshard.base.util'

---@class ms.dist.ShardedTensor
---@field start integer  from 1
---@field length integer
---@field local_tensor ms.Tensor?  (length); nil if the shard is empty
---@field process_group ms.dist.Group  whose ranks have the other shards
---@field replica integer  0; if several groups have equal shards the number of the group
---@operator add(ms.dist.ShardedTensor|number): ms.dist.ShardedTensor
---@operator sub(ms.dist.ShardedTensor|number): ms.dist.ShardedTensor
---@operator mul(ms.dist.ShardedTensor|number): ms.dist.ShardedTensor
---@operator div(ms.dist.ShardedTensor|number): ms.dist.ShardedTensor
---@operator unm: ms.dist.ShardedTensor
local ShardedTensor = class('dist.ShardedTensor')

local FLAT = { placement.Flat() }

--- Of the placement Flat.
---@param shape integer[]  of the whole tensor
---@param dtype ms.DType
---@param start integer  from 1
---@param local_tensor ms.Tensor?  1-D
---@param group ms.dist.Group
---@param replica? integer  number of the group among those with equal shards (default 0)
function ShardedTensor:init(shape, dtype, start, local_tensor, group, replica)
  self._shape, self._dtype, self._placements = shape, dtype, FLAT
  self._local = local_tensor or create.zeros({ 0 }, { dtype = dtype })
  self.start, self.local_tensor = start, local_tensor
  self.length = local_tensor and local_tensor:numel() or 0
  self.process_group, self.replica = group, replica or 0
end

-- The number of this rank among those with equal shards.
local function replica_of(mesh, placements)
  local replica, coordinate = 0, mesh:get_coordinate()
  for d, one in ipairs(placements) do
    replica = one:is_replicate() and replica * mesh.shape[d] + coordinate[d] or replica
  end
  return replica
end

-- The fields that describe a range of elements, if this rank has one: of the placements at most one
-- is Shard(1), and no other divides or reduces.
local function set_range(self)
  local at
  for d, one in ipairs(self._placements) do
    if one:is_shard(1) and not at then
      at = d
    elseif not one:is_replicate() then
      return
    end
  end
  local _, firsts = redistribute.local_shape(self._shape, self._mesh, self._placements)
  local n = self._local:numel()
  self.start = at and (firsts[1] - 1) * util.product(util.slice(self._shape, 2)) + 1 or 1
  self.length, self.local_tensor = n, n > 0 and self._local:reshape(n) or nil
  self.process_group = self._mesh:get_group(at or 1)
  self.replica = replica_of(self._mesh, self._placements)
end

local function new(shape, value, mesh, placements)
  local self = setmetatable({}, ShardedTensor)
  self._shape, self._dtype, self._local = shape, value:dtype(), value
  self._mesh, self._placements = mesh, placements
  set_range(self)
  return self
end

-- The whole shape of a tensor whose parts have equal shapes.
local function whole_shape(value, mesh, placements)
  local shape = value:shape()
  for d, one in ipairs(placements) do
    if one.dim then
      shape[one.dim] = shape[one.dim] * mesh.shape[d]
    end
  end
  return shape
end

--- Make a tensor of the ranks' parts. Nothing is sent.
---@param value ms.Tensor  this rank's part; its memory is shared
---@param mesh ms.dist.DeviceMesh
---@param placements ms.dist.Placement[]  one for each dimension of the mesh
---@param opts? { shape?: integer[] }  of the whole tensor; required if parts have different shapes
---@return ms.dist.ShardedTensor
function ShardedTensor.from_local(value, mesh, placements, opts)
  local what = 'ShardedTensor.from_local'
  arguments.tensor(what, 'value', value)
  opts = errors.options(what, opts, { shape = 'list' })
  placements = placement._checked(what, meshes.checked(what, mesh), placements,
    opts.shape and #opts.shape or value:dim())
  local shape = opts.shape and { unpack(opts.shape) } or whole_shape(value, mesh, placements)
  local expected = redistribute.local_shape(shape, mesh, placements)
  if dims.text(expected) ~= dims.text(value:shape()) then
    errors.raise('ValueError', '%s: this rank has %s of a tensor %s with placements %s, expected '
      .. '%s', what, dims.text(value:shape()), dims.text(shape), placement._text(placements),
      dims.text(expected))
  end
  return new(shape, value:detach(), mesh, placements)
end

-- A tensor of the same layout with other local values.
local function like(self, value)
  if self._mesh then
    return new(self._shape, value, self._mesh, self._placements)
  end
  return ShardedTensor(self._shape, value:dtype(), self.start, value:numel() > 0 and value or nil,
    self.process_group, self.replica)
end

--- A tensor of the same layout with these elements.
---@param elements ms.Tensor?  (length); nil: none
---@return ms.dist.ShardedTensor
function ShardedTensor:_with(elements)
  return like(self, elements and elements:reshape(self._local:shape()) or self._local)
end

-- -- what it is ----------------------------------------------------------------------------------

--- Shape of the whole tensor.
---@return integer[]
function ShardedTensor:shape()
  return { unpack(self._shape) }
end

--- Size of one dimension of the whole tensor.
---@param dim integer
---@return integer
function ShardedTensor:size(dim)
  return self._shape[dims.index(dim, #self._shape, 'size') + 1]
end

--- Number of dimensions.
---@return integer
function ShardedTensor:dim()
  return #self._shape
end

---@return ms.DType
function ShardedTensor:dtype()
  return self._dtype
end

--- Number of elements of the whole tensor.
---@return integer
function ShardedTensor:numel()
  return util.product(self._shape)
end

--- This rank's part; a size is 0 if the rank has no entries. The memory is shared.
---@return ms.Tensor  with Flat (length)
function ShardedTensor:to_local()
  return self._local
end

---@return ms.dist.Placement[]  one for each dimension of the mesh
function ShardedTensor:placements()
  return { unpack(self._placements) }
end

---@return ms.dist.DeviceMesh
function ShardedTensor:device_mesh()
  return self._mesh or meshes.of_groups { self.process_group }
end

-- -- moving --------------------------------------------------------------------------------------

local function gathered(self)
  local group, options = self.process_group, { dtype = self._dtype }
  local starts, lengths = unpack(runtime.exchange(group, 'full_tensor',
    { self.start, self.length }))
  local full, part = create.empty(self:numel(), options),
    create.zeros(math.max(1, unpack(lengths)), options)
  if self.local_tensor then
    part:narrow(1, 1, self.length):copy_(self.local_tensor)
  end
  for rank, one in ipairs(collectives.all_gather(part, nil, group)) do
    if lengths[rank] > 0 then
      full:narrow(1, starts[rank], lengths[rank]):copy_(one:narrow(1, 1, lengths[rank]))
    end
  end
  return full:reshape(self._shape)
end

-- Have all ranks the elements of their extents?
local function fits(self, what, extent)
  if not self.start then
    return false
  end
  local own = self.length == extent.numel
    and (extent.numel == 0 or self.start == extent.start + 1)
  return math.max(unpack(runtime.exchange(self.process_group, what, { own and 0 or 1 })[1])) == 0
end

--- The elements of this rank's extent, whatever the placements: those of this rank, or of the
--- gathered tensor if a rank has others. Collective in `process_group`, or over the mesh.
---@param what string  the call that needs them, for errors
---@param extent { start: integer, numel: integer }  start: from 0
---@return ms.Tensor  (numel)
function ShardedTensor:_elements_of(what, extent)
  if fits(self, what, extent) then
    return self.local_tensor or self._local:reshape(0)
  end
  local whole = self:full_tensor():reshape(-1)
  return whole:narrow(1, extent.numel > 0 and extent.start + 1 or 1, extent.numel)
end

--- Gather the whole tensor on every rank. Collective over the mesh, or in `process_group`.
---@return ms.Tensor
function ShardedTensor:full_tensor()
  if not self._mesh then
    return autograd.no_grad(gathered, self)
  end
  local whole = placement._replicated(self._mesh)
  return redistribute.over(self._local, self._mesh, self._placements, whole, self._shape)
end

--- The same tensor with other placements. Collective over the mesh. Of Flat, the whole tensor is
--- gathered.
---@param placements ms.dist.Placement[]  one for each dimension of the mesh
---@return ms.dist.ShardedTensor
function ShardedTensor:redistribute(placements)
  local mesh = self:device_mesh()
  placements = placement._checked('redistribute', mesh, placements, #self._shape)
  local value, from = self._local, self._placements
  if not self._mesh then
    value, from = self:full_tensor(), placement._replicated(mesh)
  end
  return new(self._shape, redistribute.over(value, mesh, from, placements, self._shape), mesh,
    placements)
end

-- -- arithmetic ----------------------------------------------------------------------------------

local function is_sharded(value)
  return util.is(value, ShardedTensor)
end

local function layout_text(self)
  return ('%s %s'):format(dims.text(self._shape), placement._text(self._placements))
end

local function same_layout(a, b)
  return util.equal(a._placements, b._placements) and a.start == b.start
    and dims.text(a._shape) == dims.text(b._shape)
    and meshes.same(a:device_mesh(), b:device_mesh())
end

-- A partial value is a reduction of the parts: few operations on the parts are those on the value.
local LINEAR = { add = 'tensor', sub = 'tensor', add_ = 'tensor', sub_ = 'tensor',
  mul = 'number', div = 'number', mul_ = 'number', div_ = 'number', copy_ = 'tensor' }

local function check_partial(name, self, operand)
  local kind = is_sharded(operand) and 'tensor' or 'number'
  for _, one in ipairs(self._placements) do
    local linear = one.op == 'sum' or one.op == 'avg'
    if one:is_partial() and not (LINEAR[name] == kind and (linear or name == 'copy_')) then
      errors.raise('RuntimeError', '%s: a tensor with placements %s does not take a %s here; '
        .. 'redistribute it to Shard or Replicate first', name, placement._text(self._placements),
        kind)
    end
  end
end

-- The local operand for a tensor of this layout.
local function operand_of(name, self, other)
  if type(other) ~= 'number' then
    if not is_sharded(other) then
      arguments.refuse(name, 'operand', other, 'a number or a dist.ShardedTensor '
        .. '(dist.distribute_tensor() makes one)')
    elseif not same_layout(self, other) then
      errors.raise('ValueError', '%s: the operands are %s and %s, expected equal shapes, '
        .. 'placements and meshes; use redistribute()', name, layout_text(self),
        layout_text(other))
    end
  end
  check_partial(name, self, other)
  return type(other) == 'number' and other or other._local
end

for name, metamethod in next, { add = '__add', sub = '__sub', mul = '__mul', div = '__div' } do
  local op = ops[name]
  ShardedTensor[metamethod] = function(a, b)
    if is_sharded(a) then
      return like(a, autograd.no_grad(op, a._local, operand_of(name, a, b)))
    end
    a = operand_of(name, b, a)
    if name == 'div' then
      check_partial('div', b, b) -- a number divided by a sum
    end
    return like(b, autograd.no_grad(op, a, b._local))
  end
end

function ShardedTensor:__unm()
  return self * -1
end

-- self:name(operand, ...) on the local values.
local function in_place(name)
  ShardedTensor[name] = function(self, operand, ...)
    local value = operand_of(name, self, operand)
    autograd.no_grad(self._local[name], self._local, value, ...)
    return self
  end
end

--- In place: plus alpha * x, minus x, times x, divided by x, for a number or a tensor of equal
--- shape and placements; copy_ takes such a tensor.
---@class ms.dist.ShardedTensor
---@field add_ fun(self: ms.dist.ShardedTensor, x: ms.dist.ShardedTensor|number, alpha?: number):
---  ms.dist.ShardedTensor
---@field sub_ fun(self: ms.dist.ShardedTensor, x: ms.dist.ShardedTensor|number):
---  ms.dist.ShardedTensor
---@field mul_ fun(self: ms.dist.ShardedTensor, x: ms.dist.ShardedTensor|number):
---  ms.dist.ShardedTensor
---@field div_ fun(self: ms.dist.ShardedTensor, x: ms.dist.ShardedTensor|number):
---  ms.dist.ShardedTensor
---@field copy_ fun(self: ms.dist.ShardedTensor, src: ms.dist.ShardedTensor):
---  ms.dist.ShardedTensor
for _, name in ipairs { 'add_', 'sub_', 'mul_', 'div_', 'copy_' } do
  in_place(name)
end

---@return ms.dist.ShardedTensor self
function ShardedTensor:zero_()
  autograd.no_grad(self._local.zero_, self._local)
  return self
end

-- The groups over which the parts of a tensor without partial values are divided.
local function dividing_groups(self)
  local groups, mesh = {}, self:device_mesh()
  for d, one in ipairs(self._placements) do
    groups[#groups + 1] = not one:is_replicate() and mesh:get_group(d) or nil
  end
  return groups
end

-- Local norms join by their maxima, minima or sums of powers.
local function norm(self, p)
  local extreme = p == math.huge and 'max' or p == -math.huge and 'min'
  local own = create.full({}, extreme == 'min' and math.huge or 0, { dtype = 'f64' })
  if self._local:numel() > 0 then
    own = self._local:norm(p):to('f64')
  end
  local is_power = not extreme and p ~= 0
  local total = is_power and own:pow(p) or own
  for _, group in ipairs(dividing_groups(self)) do
    collectives.all_reduce(total, extreme or 'sum', group)
  end
  return (is_power and total:pow(1 / p) or total):to(self._dtype)
end

--- The norm of the whole tensor, equal on all ranks. Collective over the mesh.
---@param p? number  default 2
---@return ms.Tensor  ()
function ShardedTensor:norm(p)
  p = arguments.number('norm', 'p', p, 2)
  local whole = self:placements()
  for d, one in ipairs(whole) do
    whole[d] = one:is_partial() and placement.Replicate() or one
  end
  return autograd.no_grad(norm,
    util.equal(whole, self._placements) and self or self:redistribute(whole), p)
end

function ShardedTensor:__tostring()
  local range = not self._mesh and (', elements %d to %d here'):format(self.start,
    self.start + self.length - 1) or ''
  return ("ShardedTensor(shape=%s, dtype='%s', placements=%s, local=%s%s)"):format(
    dims.text(self._shape), self._dtype, placement._text(self._placements),
    dims.text(self._local:shape()), range)
end

return ShardedTensor
