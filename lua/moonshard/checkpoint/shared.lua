--- Code shared by saving and loading.

local B = require 'moonshard_ffi'
local parameter = require 'moonshard_ffi.parameter'

local shared = {}

--- Key of a parameter's optimizer state.
function shared.state_key(part, state_name, name)
  return ('%s%s/%s'):format(part.prefix, state_name, name)
end

--- A 1-D copy of a plain tensor (nil if it has no elements), and the extent of the whole tensor.
function shared.whole(t)
  return parameter.whole(t:clone():reshape(t:numel()), t)
end

--- Run code between two collectives that may fail on one rank only. The error is passed to the
--- commit, which raises it on all ranks; with a single rank the error object itself is raised.
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
