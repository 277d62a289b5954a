--- Groups of ranks, as ms.dist.split() and ms.dist.fake() give them: what they say of themselves.
---
--- Touches: moonshard.dist.members, moonshard.errors, moonshard_ffi.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.internal.errors'
local members = require 'moonshard.dist.members'
local naming = require 'moonshard.internal.naming'

local C = B.C

---@class ms.dist.Group: ffi.cdata*
local Group = {}

--- This rank's place in the group, from 0.
---@return integer
function Group:rank()
  return C.ms_comm_rank(arguments.group('Group.rank', 'self', self))
end

--- How many ranks it has.
---@return integer
function Group:size()
  return C.ms_comm_size(arguments.group('Group.size', 'self', self))
end

--- Its ranks, as all ranks count them; of a fake group 0, 1, ...
---@return integer[]
function Group:ranks()
  return members.list(arguments.group('Group.ranks', 'self', self))
end

local metatable = {}

-- What stands elsewhere.
local INSTEAD = {
  world_size = 'group:size()', get_world_size = 'group:size()',
  get_rank = 'group:rank()',
}
for _, name in ipairs {
  'all_gather', 'all_reduce', 'barrier', 'broadcast', 'counts', 'reduce_scatter', 'same',
  'stop_requested', 'wait_seconds',
} do
  INSTEAD[name] = ('dist.%s(..., group)'):format(name)
end
INSTEAD.split = 'dist.split(color, key, group)'

local function no_field(name)
  naming.missing('a group of ranks', tostring(name), { 'rank', 'ranks', 'size' }, INSTEAD[name])
end

function metatable.__index(_, name)
  return Group[name] or no_field(name)
end

function metatable.__newindex(_, name)
  errors.raise('KeyError', "a group of ranks takes no field '%s'", tostring(name):sub(1, 80))
end

-- What else may be written of an object, and is none of a group's.
for name, instead in next, {
  __len = 'its size is group:size()', __ipairs = 'its ranks are ipairs(group:ranks())',
  __pairs = 'its ranks are ipairs(group:ranks())', __call = 'it is not called',
  __add = 'it is no number', __sub = 'it is no number', __concat = 'its text is tostring(group)',
} do
  metatable[name] = function()
    errors.raise('TypeError', 'a group of ranks cannot do this: %s', instead)
  end
end

function metatable.__tostring(group)
  if arguments.is_gone(group) then
    return 'Group(gone)'
  elseif C.ms_comm_is_fake(group) then
    return ('FakeGroup(rank=%d, size=%d)'):format(group:rank(), group:size())
  end
  return ('Group(rank=%d, size=%d, ranks={%s})'):format(group:rank(), group:size(),
    members.text(group))
end

B.define_group_methods(metatable)

return Group
