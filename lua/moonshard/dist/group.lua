--- Groups of ranks, made by ms.dist.split() and ms.dist.fake().

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local members = require 'moonshard.dist.members'
local namespace = require 'moonshard.base.namespace'

local C = B.C

---@class ms.dist.Group: ffi.cdata*
local Group = {}

--- This rank's number in the group, from 0.
---@return integer
function Group:rank()
  return C.ms_comm_rank(arguments.group('Group.rank', 'self', self))
end

--- Number of ranks in the group.
---@return integer
function Group:size()
  return C.ms_comm_size(arguments.group('Group.size', 'self', self))
end

--- The group's ranks by their numbers in the job; for a fake group 0, 1, ...
---@return integer[]
function Group:ranks()
  return members.list(arguments.group('Group.ranks', 'self', self))
end

local metatable = {}

local function no_field(name)
  namespace.missing('a group of ranks', tostring(name), { 'rank', 'ranks', 'size' })
end

function metatable.__index(_, name)
  return Group[name] or no_field(name)
end

function metatable.__newindex(_, name)
  errors.raise('KeyError', "a group of ranks takes no field '%s'", tostring(name):sub(1, 80))
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
