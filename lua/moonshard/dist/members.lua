--- Members of a group of ranks, for messages and comparisons.

local B = require 'moonshard_ffi'
local parameter = require 'moonshard_ffi.parameter'

local C = B.C

local members = {}

--- The members' ranks in the job, ordered by rank in the group; for a fake group those of the
--- planned job.
---@param group ms.dist.Group
---@return integer[]
function members.list(group)
  local n, list = C.ms_comm_size(group), {}
  local out = B.new('int32_t[?]', n)
  C.ms_comm_ranks(group, out)
  for i = 1, n do
    list[i] = out[i - 1]
  end
  return list
end

--- The group of some members. Collective over all members.
---@param group ms.dist.Group
---@param ranks integer[]  in `group`, of this rank's new group; empty: it joins none
---@return ms.dist.Group|false
function members.subgroup(group, ranks)
  return B.make_group(C.ms_comm_subgroup, group, B.new('int32_t[?]', #ranks + 1, ranks), #ranks)
end

local SHOWN = 16 -- of more members only the first and the last are listed

--- Number of ranks.
---@param group ms.dist.Group
---@return integer
function members.size(group)
  return C.ms_comm_size(group)
end

--- "0, 2", or "0, 1 of a fake group".
---@param group ms.dist.Group
---@return string
function members.text(group)
  local list = members.list(group)
  if #list > SHOWN then
    list = { list[1], list[2], '...', list[#list] }
  end
  return table.concat(list, ', ') .. (C.ms_comm_is_fake(group) and ' of a fake group' or '')
end

--- Have the groups the same members in the same order? A fake group equals only itself.
---@param a ms.dist.Group
---@param b ms.dist.Group
---@return boolean
function members.same(a, b)
  if a == b then
    return true
  elseif C.ms_comm_is_fake(a) or C.ms_comm_is_fake(b) then
    return false
  end
  return table.concat(members.list(a), ' ') == table.concat(members.list(b), ' ')
end

--- The group over which parameters are sharded, or nil. If there are several: the largest, and
--- another one.
---@param params ms.Tensor[]  values that are not tensors are ignored
---@return ms.dist.Group? group, ms.dist.Group? another
function members.of(params)
  local group, another
  for _, param in ipairs(params) do
    local manager = parameter.is_tensor(param) and parameter.manager(param)
    local its = manager and manager.process_group
    if its and group and its ~= group then
      another = its
      if members.size(its) > members.size(group) then
        group, another = its, group
      end
    end
    group = group or its
  end
  return group, another
end

return members
