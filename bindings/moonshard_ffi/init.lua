--- The bindings: the only Lua files that use the FFI. Interface for lua/moonshard:
---   C       the library's namespace (call functions as `B.C.ms_x()`, never cached one by one)
---   calls   a checked, raising caller for every function that takes or returns tensors, or takes a
---           handle and numbers
---   check   raises when a status is not MS_OK
---   core    the C module for functions that may call Lua (backward, hooks)
---   world    the group of all ranks
---   Ref, state, own, array   refs, the depth of scopes, lists of refs for C
---   new, string, cast, copy, gc, sizeof, typeof   the few FFI functions needed to talk to C

local ffi = require 'ffi'
local errors = require 'moonshard_ffi.errors'
local calls = require 'moonshard_ffi.calls'
local library = require 'moonshard_ffi.library'
local arguments = require 'moonshard_ffi.arguments' -- requires the library's types

local C = library.C

---@class ms.bindings
local B = {
  C = C,
  core = library.core,
  folder = library.folder,
  errors = errors,
  new = ffi.new,
  string = ffi.string,
  cast = ffi.cast,
  copy = ffi.copy,
  gc = ffi.gc,
  sizeof = ffi.sizeof,
  typeof = ffi.typeof,
}

--- `depth`: open scopes. `at`: called before calls with tensors while they are recorded, or false.
B.state = { depth = 0, at = false } ---@type { depth: integer, at: false|fun() }

--- A handle and its generation. The methods are defined in moonshard.tensor.
local Ref = ffi.typeof('ms_ref')
B.Ref = Ref

--- Is this value a tensor?
---@return boolean
function B.is_ref(value)
  return ffi.istype(Ref, value)
end

--- Set the methods of refs, once per process.
---@param metatable table
function B.define_methods(metatable)
  ffi.metatype(Ref, metatable)
end

--- Set the methods of groups of ranks, once per process.
---@param metatable table
function B.define_group_methods(metatable)
  ffi.metatype('ms_comm', metatable)
end

-- -- pressure ------------------------------------------------------------------------------------
-- The collector counts 16 bytes for a ref, not its tensor and graph. So each ref that the collector
-- will own first asks the runtime whether a collection is due.

--- Collect twice: the first cycle runs finalizers, the second frees what they referred to.
function B.collect()
  collectgarbage()
  B.core.collect_hooks()
  collectgarbage()
  C.ms_comm_reap()
  C.ms_memory_collected()
end

--- Collect, and return free memory to the system.
function B.give_back()
  B.collect()
  C.ms_memory_trim()
end

local release = C.ms_ref_release

--- Let the collector release a ref.
---@generic T
---@param ref T
---@return T
function B.own(ref)
  if C.ms_memory_collect_due() then
    B.collect()
  end
  return ffi.gc(ref, release)
end

--- Undo own(): the ref was released, or C owns it now.
function B.disown(ref)
  ffi.gc(ref, nil)
end

-- -- failures ------------------------------------------------------------------------------------

local function error_of(status)
  if type(status) ~= 'number' or status % 1 ~= 0 or not errors.kinds[-status] then
    arguments.refuse('check', 'status', status, 'the status of a call')
  end
  local kind = ffi.string(C.ms_status_name(status))
  return errors.new(kind, ffi.string(C.ms_error_message()))
end

--- Raise the runtime's last error, unless `status` is MS_OK.
---@param status integer
function B.check(status)
  if status ~= 0 then
    error(error_of(status), 0)
  end
end

--- Called when a call failed. After MS_OUT_OF_MEMORY it runs a collection to free memory.
local function failed(status)
  local e = error_of(status)
  if status == C.MS_OUT_OF_MEMORY then
    B.give_back()
  end
  error(e, 0)
end

--- Called when a call failed that only makes a tensor. After MS_OUT_OF_MEMORY it collects and
--- repeats the call once, unless the error is a deferred one of a device.
local function again(status, name, ...)
  if status == C.MS_OUT_OF_MEMORY and not C.ms_error_is_late() then
    B.give_back()
    status = C[name](...)
  end
  B.check(status)
end

B.calls = calls.of(library.calls_path, C, ffi, B.state, B.own, failed, again, arguments)

-- -- groups ---------------------------------------------------------------------------------------

local comm_out = ffi.new('ms_comm *[1]')

--- The group of all ranks; the first call joins the job.
---@return ms.dist.Group
function B.world()
  B.check(C.ms_comm_world(comm_out))
  return comm_out[0]
end

-- Groups own file descriptors, which the collector does not see.
local GROUPS_PER_COLLECTION = 64
local n_groups = 0

--- Make a group with `make(out, ...)`. It is freed when no script, model, graph or pending message
--- uses it.
---@param make ffi.cdata*  a function of the runtime
---@return ms.dist.Group|false group  false: this rank is not a member
function B.make_group(make, ...)
  n_groups = n_groups + 1
  if n_groups % GROUPS_PER_COLLECTION == 0 then
    B.collect()
  end
  C.ms_comm_reap()
  B.check(make(comm_out, ...))
  if comm_out[0] == nil then
    return false
  end
  local serial = C.ms_comm_serial(comm_out[0])
  return ffi.gc(comm_out[0], function(group)
    if C.ms_comm_serial(group) == serial then -- else it was freed, or closed with its context
      C.ms_comm_abandon(group)
    end
  end)
end

-- -- small things --------------------------------------------------------------------------------

ffi.cdef [[
  int setenv(const char *name, const char *value, int overwrite);
  int gethostname(char *name, size_t nbytes);
  typedef struct { long seconds, nanoseconds; } moonshard_timespec;
  int clock_gettime(int clock, moonshard_timespec *now);
]]

--- Set a variable of this process's environment, before the runtime reads it.
---@param name string
---@param value string
function B.set_variable(name, value)
  ffi.C.setenv(name, value, 1)
end

local MONOTONIC = 1

--- Seconds of a clock that never jumps.
---@return number
function B.seconds()
  local t = ffi.new('moonshard_timespec')
  ffi.C.clock_gettime(MONOTONIC, t)
  return tonumber(t.seconds) + tonumber(t.nanoseconds) / 1e9
end

--- This host's name.
---@return string
function B.host_name()
  local name = ffi.new('char[256]')
  return ffi.C.gethostname(name, 255) == 0 and ffi.string(name) or 'unknown'
end

local RefArray = ffi.typeof('ms_ref[?]')

--- A C array of refs from a Lua list, and its length. (Check a script's list with arguments.array()
--- first; its loop is too slow for hot paths.)
---@param list ms.Tensor[]
---@param what string  the argument's name in errors
function B.array(list, what)
  local n = #list
  local refs = RefArray(math.max(n, 1))
  for i = 1, n do
    if not ffi.istype(Ref, list[i]) then
      errors.raise('TypeError', '%s: entry %d is %s, expected a tensor', what, i,
        arguments.noun(list[i]))
    end
    refs[i - 1] = list[i]
  end
  return refs, n
end

return B
