--- Groups of ranks, as ms.dist.split() and ms.dist.fake() give them: what they say of themselves.
---
--- Touches: moonshard_ffi.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local missing = require 'moonshard.missing'

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

local metatable = {}

function metatable.__index(_, name)
  return Group[name] or missing('a group of ranks', tostring(name), { 'rank', 'size' },
    name == 'world_size' and 'write group:size()' or nil)
end

function metatable.__tostring(group)
  if C.ms_comm_size(group) == 0 then
    return 'Group(gone)'
  end
  return ('%sGroup(rank=%d, size=%d)'):format(C.ms_comm_is_fake(group) and 'Fake' or '',
    group:rank(), group:size())
end

B.define_group_methods(metatable)

return Group
