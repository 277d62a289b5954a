--- Groups by the names that torch.distributed has for them. Ranks count from 0, as everywhere.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local launch = require 'moonshard.dist.launch'
local validate = require 'moonshard.dist.validate'
local members = require 'moonshard.dist.members'
local notes = require 'moonshard_ffi.notes'

local C = B.C

local process_groups = {}

--- Those of the job's ranks that are `wanted`, in the order of the job.
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
      errors.raise('ValueError', 'new_group: rank %d stands twice', rank)
    end
    seen[rank], ranks[i] = true, rank
  end
  table.sort(ranks)
  return ranks, seen
end

--- A group of some ranks of the job, in the job's order whatever that of the list. Collective over
--- all ranks of the job, with one list. It lasts until destroy_process_group(), or
--- until nothing uses it.
---
---   local even = ms.dist.new_group { 0, 2 } -- false on ranks 1 and 3
---
---@param ranks? integer[]  in the job, from 0; default: all
---@return ms.dist.Group|false group  false: this rank is none of them
function process_groups.new_group(ranks)
  local world = B.world()
  local rank = C.ms_comm_rank(world)
  if ranks ~= nil and type(ranks) ~= 'table' then
    arguments.refuse('new_group', 'ranks', ranks, 'a list of ranks')
  end
  local list, has = checked_ranks(ranks or members.list(world), C.ms_comm_size(world))
  notes.text(world, 'ranks of new_group', table.concat(list, ' '))
  return B.make_group(C.ms_comm_split, world, has[rank] and 0 or -1, rank)
end

--- End a group: it goes, and with it the memory and descriptor that its ranks share, when no model
--- or loader on this rank holds it any more; they may use it until then. Not collective,
--- but what another rank calls in it after this one has let it go is an error. Without a group, or
--- with that of all ranks, this rank leaves the job: dist.leave().
---@param group? ms.dist.Group|false  false: of others, nothing to end here
function process_groups.destroy_process_group(group)
  if group == false then
    return -- this rank is none of its members
  elseif group == nil or validate.group('destroy_process_group', group) == B.world() then
    B.check(C.ms_dist_leave())
  else
    arguments.free_group(group)
  end
end

-- That of all ranks when none is given; nil for one that this rank is not in.
local function own_group(what, group)
  if group ~= false then
    return validate.group(what, group)
  end
end

--- This rank's place in a group; -1 in one that it is not in.
---@param group? ms.dist.Group|false  default: all ranks
---@return integer  from 0
function process_groups.get_rank(group)
  local own = own_group('get_rank', group)
  return own and C.ms_comm_rank(own) or -1
end

--- How many ranks a group has; -1 for one that this rank is not in.
---@param group? ms.dist.Group|false  default: all ranks
---@return integer
function process_groups.get_world_size(group)
  local own = own_group('get_world_size', group)
  return own and C.ms_comm_size(own) or -1
end

--- The ranks of a group as the job counts them, by their places in the group.
---@param group? ms.dist.Group  default: all ranks
---@return integer[]
function process_groups.get_process_group_ranks(group)
  return members.list(validate.group('get_process_group_ranks', group))
end

--- The rank in the job of the one that has a place in a group.
---@param group? ms.dist.Group  default: all ranks
---@param group_rank integer  from 0
---@return integer
function process_groups.get_global_rank(group, group_rank)
  arguments.whole('get_global_rank', 'group_rank', group_rank)
  group = validate.group('get_global_rank', group)
  return members.list(group)[group_rank + 1] or errors.raise('ValueError',
    'Group rank %.17g is not part of group %s', group_rank, tostring(group))
end

--- The place in a group of a rank of the job.
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

--- Divide a group: those of its ranks that give the same color form a group of their own, ordered
--- by key and, where keys are equal, as before. Collective over the group that is divided. What
--- comes back is what fsdp.FSDP takes as `process_group`; it lasts until destroy_process_group(),
--- or until nothing uses it. Errors name ranks by their rank in the job.
---
---   local pair = ms.dist.split(world.rank % 2) -- ranks 0 and 2, ranks 1 and 3
---   local model = fsdp.FSDP(module, { process_group = pair })
---
---@param color integer  below 0: this rank joins none
---@param key? integer  default 0
---@param group? ms.dist.Group  the group that is divided, default: all ranks
---@return ms.dist.Group|false group  false for a color below 0: no collective takes it
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
---@field world integer  how many ranks

--- A group of any number of ranks of which this one is there and no other: every member holds what
--- this rank holds, and has done what it would have to do. A model that is sharded over it (as
--- `process_group`) is planned and steps as on that rank of so many, and holds as many bytes; what
--- it computes means nothing. Memory that the ranks of a host share is counted whole and taken in
--- part. It cannot be divided; checkpoints need the other ranks. A process that is no rank yet is a
--- world of its own from then on: dist.init comes before.
---
---   local model = fsdp.FSDP(m, { process_group = ms.dist.fake { rank = 3, world = 1024 } })
---
---@param opts ms.dist.FakeOptions
---@return ms.dist.Group group  until destroy_process_group(), or until nothing uses it
function process_groups.fake(opts)
  if type(opts) == 'table' and opts.ranks ~= nil then -- as dist.init has it
    errors.raise('ValueError', "dist.fake: unknown option 'ranks', did you mean 'world'?")
  end
  opts = errors.options('dist.fake', opts, { 'rank', 'world' })
  local world = int32('dist.fake', 'world', opts.world, nil, 1)
  local rank = int32('dist.fake', 'rank', opts.rank, 0, 0)
  launch._faked = launch._faked or not launch.info().initialized
  return B.make_group(C.ms_comm_fake, rank, world)
end

return process_groups
