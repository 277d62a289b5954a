--- What saving and loading share.

local B = require 'moonshard_ffi'
local parameter = require 'moonshard_ffi.parameter'

local shared = {}

--- Key of a parameter's optimizer state.
function shared.state_key(part, state_name, name)
  return ('%s%s/%s'):format(part.prefix, state_name, name)
end

--- A copy of a plain tensor as 1-D (nil when it has no elements), and the extent of all of it.
function shared.whole(t)
  return parameter.whole(t:clone():reshape(t:numel()), t)
end

--- Run what may fail on one rank only between two collectives. A failure goes to the commit, which
--- raises it on all ranks; alone, the error object itself is raised.
function shared.guarded(comm, handle, fail, discard, fn)
  local ok, err = pcall(fn)
  if ok then
    return err
  end
  local size = B.C.ms_comm_size(comm)
  if size == 1 then
    discard(handle)
    error(err, 0)
  end
  fail(handle, err)
end

return shared
