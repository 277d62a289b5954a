--- Helpers of specs: comparing tensors, expecting errors, counting tensors.

local ms = require 'moonshard'

local checks = {}

local function flatten(value, out)
  out = out or {}
  if type(value) == 'table' then
    for _, entry in ipairs(value) do
      flatten(entry, out)
    end
  else
    out[#out + 1] = value
  end
  return out
end

--- Fail unless a tensor (or nested table) is close to a nested table of numbers.
---@param expected table|number
---@param actual ms.Tensor|table|number
---@param atol? number  default 1e-6, with the same relative to the expected value
function checks.close(expected, actual, atol)
  atol = atol or 1e-6
  if ms.is_tensor(actual) then
    actual = actual:totable()
  end
  local a, e = flatten(actual), flatten(expected)
  if #a ~= #e then
    error(('%d values, expected %d'):format(#a, #e), 2)
  end
  for i = 1, #e do
    if not (a[i] == e[i] or math.abs(a[i] - e[i]) <= atol + atol * math.abs(e[i])) then
      error(('value %d is %.9g, expected %.9g'):format(i, a[i], e[i]), 2)
    end
  end
end

--- Fail unless `fn(...)` raises an error of this kind whose message contains `text`.
---@param kind string
---@param text string
---@param fn fun(...)
---@return ms.Error
function checks.raises(kind, text, fn, ...)
  local ok, err = pcall(fn, ...)
  if ok then
    error(('nothing was raised, expected %s: ...%s...'):format(kind, text), 2)
  elseif not ms.errors.is(err) then
    error(('raised %s, expected %s: ...%s...'):format(tostring(err), kind, text), 2)
  elseif err.kind ~= kind or not err.message:find(text, 1, true) then
    error(('raised %s, expected %s: ...%s...'):format(tostring(err), kind, text), 2)
  end
  return err
end

--- Number of live tensors after a full collection. Compiled traces are flushed, because they hold
--- objects.
---@return integer
function checks.live_handles()
  jit.flush()
  ms.collect()
  return ms.memory().live_handles
end

--- Close the library, so that the next spec can start ranks. Fails when tensors are alive.
function checks.close_library()
  local alive = checks.live_handles()
  ms.close()
  if alive ~= 0 then
    error(('%d tensors are alive'):format(alive), 2)
  end
end

return checks
