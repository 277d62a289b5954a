--- Process groups under torch.distributed's names. Ranks count from 0.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local launch = require 'moonshard.dist.launch'
local validate = require 'moonshard.dist.validate'
local members = require 'moonshard.dist.members'
local notes = require 'moonshard_ffi.notes'

local C = B.C

local process_groups = {}

--- Check that `wanted` lists distinct ranks of the job; returns them in the job's order.
local function checked_ranks(wanted, world_size)
  local ranks, seen = {}, {}
  if #wanted == 0 then
    errors.raise('ValueError', "new_group: 'ranks' is an empty list; a group has a rank at least")
  end
  for i, rank in ipairs(arguments.array('new_group', 'ranks', wanted)) do
    arguments.whole('new_group', ('ranks[%d]'):format(i), rank)
    if rank < 0 or rank >= world_size then
      errors.raise('ValueError', "new_group: ranks[%d] is %.17g; the new group's rank should be "
        .. 'within the world size, which is %d', i, rank, world_size)
    elseif seen[rank] then
      errors.raise('ValueError', 'new_group: rank %d is listed twice', rank)
    end
    seen[rank], ranks[i] = true, rank
  end
  table.sort(ranks)
  return ranks, seen
end

--- Make a group of some ranks of the job. Its order is the job's, not the list's. Collective over
--- all ranks of the job, which must pass the same list. The group exists until
--- destroy_process_group(), or until it is no longer used.
---
---   local even = ms.dist.new_group { 0, 2 } -- false on ranks 1 and 3
---
---@param ranks? integer[]  ranks of the job, from 0; default: all
---@return ms.dist.Group|false group  false if this rank is not a member
function process_groups.new_group(ranks)
  local world = B.world()
  local rank = C.ms_comm_rank(world)
  if ranks ~= nil and type(ranks) ~= 'table' then
    arguments.refuse('new_group', 'ranks', ranks, 'a list of ranks')
  end
  local list, has = checked_ranks(ranks or members.list(world), C.ms_comm_size(world))
  notes.text(world, 'ranks of new_group', table.concat(list, ' '))
  return members.subgroup(world, has[rank] and list or {})
end

--- Destroy a group. Models and loaders on this rank that use it may continue; its shared memory and
--- descriptor are freed when they are gone. Not collective, but a call in the group by another rank
--- raises an error after that. Without a group, or with the group of all ranks, this rank leaves
--- the job: dist.leave().
---@param group? ms.dist.Group|false  false (this rank is not a member): no effect
function process_groups.destroy_process_group(group)
  if group == false then
    return -- this rank is not a member
  elseif group == nil or validate.group('destroy_process_group', group) == B.world() then
    B.check(C.ms_dist_leave())
  else
    arguments.free_group(group)
  end
end

-- The given group, or that of all ranks; nil if this rank is not a member.
local function own_group(what, group)
  if group ~= false then
    return validate.group(what, group)
  end
end

--- This rank's number in a group; -1 if it is not a member.
---@param group? ms.dist.Group|false  default: all ranks
---@return integer  from 0
function process_groups.get_rank(group)
  local own = own_group('get_rank', group)
  return own and C.ms_comm_rank(own) or -1
end

--- Number of ranks in a group; -1 if this rank is not a member.
---@param group? ms.dist.Group|false  default: all ranks
---@return integer
function process_groups.get_world_size(group)
  local own = own_group('get_world_size', group)
  return own and C.ms_comm_size(own) or -1
end

--- The members' ranks in the job, ordered by rank in the group.
---@param group? ms.dist.Group  default: all ranks
---@return integer[]
function process_groups.get_process_group_ranks(group)
  return members.list(validate.group('get_process_group_ranks', group))
end

--- Convert a rank in a group to its rank in the job.
---@param group? ms.dist.Group  default: all ranks
---@param group_rank integer  from 0
---@return integer
function process_groups.get_global_rank(group, group_rank)
  arguments.whole('get_global_rank', 'group_rank', group_rank)
  group = validate.group('get_global_rank', group)
  return members.list(group)[group_rank + 1] or errors.raise('ValueError',
    'Group rank %.17g is not part of group %s', group_rank, tostring(group))
end

--- Convert a rank in the job to its rank in a group.
---@param group? ms.dist.Group  default: all ranks
---@param global_rank integer  from 0
---@return integer
function process_groups.get_group_rank(group, global_rank)
  arguments.whole('get_group_rank', 'global_rank', global_rank)
  group = validate.group('get_group_rank', group)
  for place, rank in ipairs(members.list(group)) do
    if rank == global_rank then
      return place - 1
    end
  end
  errors.raise('ValueError', 'Global rank %.17g is not part of group %s', global_rank,
    tostring(group))
end

local function int32(what, name, value, default, least)
  value = arguments.whole(what, name, value, default, least)
  if value < -2 ^ 31 or value >= 2 ^ 31 then
    errors.raise('ValueError', "%s: '%s' is %.17g, expected a number of 32 bits", what, name, value)
  end
  return value
end

--- Split a group: ranks that pass the same color form a new group, ordered by key and then by their
--- old order. Collective over the group. The result can be passed to fsdp.FSDP as `process_group`.
--- It exists until destroy_process_group(), or until it is no longer used. Errors give ranks as
--- numbers in the job.
---
---   local pair = ms.dist.split(world.rank % 2) -- ranks 0 and 2, ranks 1 and 3
---   local model = fsdp.FSDP(module, { process_group = pair })
---
---@param color integer  negative: this rank joins no group
---@param key? integer  default 0
---@param group? ms.dist.Group  the group to split, default: all ranks
---@return ms.dist.Group|false group  false for a negative color; collectives do not accept it
function process_groups.split(color, key, group)
  if type(color) ~= 'number' then
    arguments.refuse('dist.split', 'color', color, 'a whole number (-1: this rank joins none)')
  end
  key, group = validate.and_group('dist.split', key, group)
  color, key = int32('dist.split', 'color', color), int32('dist.split', 'key', key, 0)
  return B.make_group(C.ms_comm_split, group, color, key)
end

---@class ms.dist.FakeOptions
---@field rank? integer  from 0, default 0
---@field world integer  number of ranks

--- A simulated group: only this rank exists; every other member is assumed to hold this rank's data
--- and to have made the same calls. A model sharded over it (as `process_group`) has the plan, the
--- steps and the memory of this rank in a job of that size; its numerical results are meaningless.
--- Memory that ranks of a host share is reported in full although only a part is allocated. The
--- group has no dist.split, and checkpoints need the other ranks. A process that is not a rank
--- becomes a world of its own: call dist.init before.
---
---   local model = fsdp.FSDP(m, { process_group = ms.dist.fake { rank = 3, world = 1024 } })
---
---@param opts ms.dist.FakeOptions
---@return ms.dist.Group group  exists until destroy_process_group(), or until it is no longer used
function process_groups.fake(opts)
  if type(opts) == 'table' and opts.ranks ~= nil then -- `ranks` is the option of dist.init
    errors.raise('ValueError', "dist.fake: unknown option 'ranks', did you mean 'world'?")
  end
  opts = errors.options('dist.fake', opts, { 'rank', 'world' })
  local world = int32('dist.fake', 'world', opts.world, nil, 1)
  local rank = int32('dist.fake', 'rank', opts.rank, 0, 0)
  launch._faked = launch._faked or not launch.info().initialized
  return B.make_group(C.ms_comm_fake, rank, world)
end

return process_groups
