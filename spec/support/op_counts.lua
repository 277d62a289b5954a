--- Counts the operators that run. The runtime exports this for specs; no public header has it.

local ffi = require 'ffi'
local B = require 'moonshard_ffi'

ffi.cdef [[
  typedef struct ms_op_counter ms_op_counter;
  int32_t ms_op_counter_new(ms_op_counter **out);
  void ms_op_counter_free(ms_op_counter *c);
  int32_t ms_op_counter_n(const ms_op_counter *c, int32_t *n);
  const char *ms_op_counter_get(const ms_op_counter *c, int32_t i, int64_t *n_ran,
                                int64_t *n_recorded);
]]

local op_counts = {}

local function read(counter)
  local n, n_ran, n_recorded = ffi.new 'int32_t[1]', ffi.new 'int64_t[1]', ffi.new 'int64_t[1]'
  local ran, recorded = {}, {}
  B.check(B.C.ms_op_counter_n(counter, n))
  for i = 0, n[0] - 1 do
    local name = ffi.string(B.C.ms_op_counter_get(counter, i, n_ran, n_recorded))
    ran[name] = (ran[name] or 0) + tonumber(n_ran[0]) -- x + y and x + 1 are two of one name
    if n_recorded[0] > 0 then
      recorded[name] = (recorded[name] or 0) + tonumber(n_recorded[0])
    end
  end
  return ran, recorded
end

--- Call a function and count the operators that succeed, and those that autograd records, by name.
---@param fn function
---@return table<string, integer> ran, table<string, integer> recorded
function op_counts.of(fn, ...)
  local out = ffi.new 'ms_op_counter *[1]'
  B.check(B.C.ms_op_counter_new(out))
  local fine, why = pcall(fn, ...)
  local read_fine, ran, recorded = pcall(read, out[0])
  B.C.ms_op_counter_free(out[0])
  if not fine or not read_fine then
    error(fine and ran or why, 0)
  end
  return ran, recorded
end

return op_counts
