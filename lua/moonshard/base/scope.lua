--- Scopes: tensors made by a function are released when it returns, except its results.
---
--- A module call is a scope, so activation memory is exact and does not depend on the garbage
--- collector. Results (tensors, also inside tables) move to the enclosing scope, or to the
--- collector if there is none. `keep` takes a tensor out of all scopes.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local trace = require 'moonshard.base.trace'

local C, state, own, is_ref = B.C, B.state, B.own, B.is_ref
local xpcall, select, unpack, type, error = xpcall, select, unpack, type, error
local on_error = trace.on_error

local scope = {}

local LIST = 64
local refs = B.new('ms_ref[?]', LIST)
local found, n_found = {}, 0

local function note(ref)
  n_found = n_found + 1
  found[n_found] = ref
end

--- Find the tensors in a table. The order does not matter, because all of them are kept.
local function search(value, seen)
  if seen[value] then
    return
  end
  seen[value] = true
  for _, entry in next, value do
    if type(entry) == 'table' then
      search(entry, seen)
    elseif is_ref(entry) then
      note(entry)
    end
  end
end

local function search_all(n, ...)
  for i = 1, n do
    local value = select(i, ...)
    if type(value) == 'table' then
      search(value, {})
    elseif is_ref(value) then
      note(value)
    end
  end
end

--- Close the innermost scope, keeping the tensors in found[1 .. n_found].
local function close()
  local list, n = refs, n_found
  if n > LIST then
    list = B.new('ms_ref[?]', n)
  end
  for i = 1, n do
    list[i - 1] = found[i]
  end
  local depth = state.depth - 1
  if depth == 0 then -- before the scope releases them, so that they always have an owner
    for i = 1, n do
      own(found[i])
    end
  end
  n_found = 0
  local status = C.ms_scope_close(list, n)
  state.depth = depth
  for i = 1, n do
    found[i] = nil
  end
  if status ~= 0 then
    B.check(status)
  end
end

local names = {} -- C borrows the name of a scope; this table keeps it alive

local function keep_text(name)
  if not names[name] then
    names[name] = true
  end
  return name
end

-- [Note: arity] The trace compiler cannot return from a vararg function into a protected call. So
-- `body` has up to four explicit arguments and one result; more of them are passed in a table.
local MOST = 4
local packed

local function apply(fn, n, a, b, c, d)
  if n == 1 then
    return fn(a)
  elseif n == 2 then
    return fn(a, b)
  elseif n == 3 then
    return fn(a, b, c)
  elseif n == 0 then
    return fn()
  elseif n == MOST then
    return fn(a, b, c, d)
  end
  return fn(unpack(b, 1, n))
end

-- Close the scope, keeping the results. Returns their number and the first.
local function results(depth, ...)
  while state.depth > depth + 1 do -- a coroutine that yielded inside left these open
    close()
  end
  local n, first = select('#', ...), ...
  if n == 1 and is_ref(first) then -- the most common case
    found[1], n_found = first, 1
  elseif n > 0 then
    search_all(n, ...)
  end
  close()
  if n > 1 then
    packed = { ... }
  end
  return n, first
end

-- Opens and closes the scope inside the protected call, so that `leave` sees an error raised
-- between any two instructions.
local function body(name, fn, n, a, b, c, d)
  local depth = state.depth
  local status = C.ms_scope_open(keep_text(name))
  if status ~= 0 then
    B.check(status)
  end
  state.depth = depth + 1
  local first
  n, first = results(depth, apply(fn, n, a, b, c, d))
  if n == 1 then
    return first
  elseif n > 1 then
    local list = packed
    packed = nil
    return unpack(list, 1, n)
  end
end

trace.mark(body, 4)

-- After a failure the number of open scopes is read from C: `state` may be out of date, because an
-- error can occur between any two instructions.
local function leave(depth, ok, ...)
  if not ok then
    n_found = 0
    while C.ms_scope_depth() > depth do
      C.ms_scope_close(refs, 0)
    end
    state.depth = depth
    error((...), 0)
  end
  return ...
end

--- Run `fn(...)` in a scope and return its results. On an error the scope is closed and the same
--- error object is raised again. Code in the scope must not yield to a coroutine outside.
---@param name string  the scope's name in messages about released tensors
---@param fn fun(...): ...
---@return ...
function scope.run(name, fn, ...)
  local n = select('#', ...)
  if n > MOST then
    return leave(state.depth, xpcall(body, on_error, name, fn, n, (...), { ... }))
  end
  return leave(state.depth, xpcall(body, on_error, name, fn, n, ...))
end

--- Run `fn(...)` in a scope (ms.scope): tensors made in it are released when it returns, except its
--- results.
---@param fn fun(...): ...
---@return ...
function scope.block(fn, ...)
  arguments.fn('ms.scope', 'fn', fn)
  return scope.run('ms.scope', fn, ...)
end

--- Take a tensor out of its scope: it is released when the script no longer refers to it.
---@param t ms.Tensor
---@return ms.Tensor t
function scope.keep(t)
  arguments.tensor('keep', 't', t)
  own(t) -- first: an error after the call would leave it without an owner
  B.calls.scope_keep(t)
  return t
end

return scope
