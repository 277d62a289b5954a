--- Exchange of Lua values between ranks: numbers, strings, booleans and nested tables, encoded as
--- text that does not depend on the machine.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local errors = require 'moonshard.base.errors'
local members = require 'moonshard.dist.members'
local util = require 'moonshard.base.util'
local validate = require 'moonshard.dist.validate'

local C, calls = B.C, B.calls

local objects = {}

local DEEPEST = 100 -- nesting of tables; a cyclic table exceeds it

-- -- encoding ------------------------------------------------------------------------------------

local encode

local function encode_number(value)
  return value ~= value and 'nnan;' or value == math.huge and 'ninf;'
    or value == -math.huge and 'n-inf;' or ('n%.17g;'):format(value)
end

local function refuse(what, place, value)
  errors.raise('TypeError', '%s: %s is %s, expected numbers, strings, booleans and plain tables of '
    .. 'them', what, place, arguments.noun(value))
end

local function encode_table(what, place, value, out, depth)
  if getmetatable(value) ~= nil then
    refuse(what, place, value)
  elseif depth > DEEPEST then
    errors.raise('ValueError', '%s: the value has more than %d tables in each other, or one in '
      .. 'itself', what, DEEPEST)
  end
  out[#out + 1] = '{'
  for key in next, value do
    if type(key) == 'table' then
      refuse(what, 'a key of ' .. place, key)
    end
  end
  for _, key in ipairs(util.ordered_keys(value)) do
    encode(what, 'a key of ' .. place, key, out, depth)
    encode(what, ('%s[%s]'):format(place, tostring(key):sub(1, 40)), value[key], out, depth + 1)
  end
  out[#out + 1] = '}'
end

function encode(what, place, value, out, depth)
  local kind = type(value)
  if kind == 'number' then
    out[#out + 1] = encode_number(value)
  elseif kind == 'string' then
    out[#out + 1] = ('s%d:'):format(#value)
    out[#out + 1] = value
  elseif kind == 'boolean' then
    out[#out + 1] = value and 'T' or 'F'
  elseif kind == 'nil' then
    out[#out + 1] = 'N'
  elseif kind == 'table' then
    encode_table(what, place, value, out, depth)
  else
    refuse(what, place, value)
  end
end

-- LuaJIT 2.1.0-beta3 compiles this recursion so that it may return early, 42 tables deep: a table
-- in itself was sent on one rank, and refused on the other.
jit.off(encode)
jit.off(encode_table)

local SPECIAL = { ['nan'] = 0 / 0, ['inf'] = math.huge, ['-inf'] = -math.huge }

-- Decode the value at position `at`. Returns it and the position after it.
local function decode(text, at)
  local tag = text:sub(at, at)
  if tag == 'n' then
    local stop = text:find(';', at, true)
    local digits = text:sub(at + 1, stop - 1)
    return SPECIAL[digits] or tonumber(digits), stop + 1
  elseif tag == 's' then
    local colon = text:find(':', at, true)
    local stop = colon + tonumber(text:sub(at + 1, colon - 1))
    return text:sub(colon + 1, stop), stop + 1
  elseif tag == '{' then
    local out = {}
    at = at + 1
    while text:sub(at, at) ~= '}' do
      local key, behind = decode(text, at)
      out[key], at = decode(text, behind)
    end
    return out, at + 1
  end
  if tag == 'N' then
    return nil, at + 1
  end
  return tag == 'T', at + 1
end

-- -- moving --------------------------------------------------------------------------------------

local function text_of(what, value)
  local out = {}
  encode(what, "'value'", value, out, 1)
  return table.concat(out)
end

local U8 = B.C.MS_DTYPE_U8

local function bytes_of(text, n)
  local values, shape = B.new('double[?]', n), B.new('int64_t[1]', n)
  for i = 1, #text do
    values[i - 1] = text:byte(i)
  end
  return calls.tensor_from_doubles(U8, 1, shape, values, n)
end

local function text_from(values, first, n)
  local out = {}
  for at = 0, n - 1, 4096 do
    local chunk = {}
    for i = at, math.min(at + 4096, n) - 1 do
      chunk[#chunk + 1] = string.char(values[first + i])
    end
    out[#out + 1] = table.concat(chunk)
  end
  return table.concat(out)
end

local function read(tensor, n)
  local values = B.new('double[?]', n)
  calls.tensor_to_doubles(tensor, values, n)
  return values
end

-- Lengths of the encoded values, by rank.
local function lengths(group, what, n)
  local own, all = B.new('double[1]', n), B.new('double[?]', C.ms_comm_size(group))
  B.check(C.ms_comm_exchange(group, what, own, 1, all))
  return all
end

-- Raise for a fake group: other members would have to send values.
local function check_real(what, group)
  if C.ms_comm_is_fake(group) then
    errors.raise('RuntimeError', '%s: a fake group has no other ranks to exchange values with',
      what)
  end
end

--- Copy rank `root`'s value to every rank: numbers, strings, booleans, nil, and plain tables of
--- them.
---@param value any  used only on `root`
---@param root? integer  rank in the group, default 0
---@param group? ms.dist.Group
---@return any
function objects.broadcast_object(value, root, group)
  local what = 'broadcast_object'
  root, group = validate.and_group(what, root, group)
  root = arguments.whole(what, 'root', root, 0, 0)
  check_real(what, group)
  local text = C.ms_comm_rank(group) == root and text_of(what, value) or ''
  local all = lengths(group, what, #text)
  if root >= C.ms_comm_size(group) then
    errors.raise('ValueError', '%s: root is %d, expected 0 to %d', what, root,
      C.ms_comm_size(group) - 1)
  end
  local n = tonumber(all[root])
  return autograd.no_grad(function()
    local bytes = bytes_of(text, n)
    calls.comm_broadcast(group, bytes, root)
    return (decode(text_from(read(bytes, n), 0, n), 1))
  end)
end

--- Gather every rank's value on every rank, in a table by rank + 1. `n` is the number of ranks,
--- because a value may be nil.
---@param value any  numbers, strings, booleans, nil, and plain tables of them
---@param group? ms.dist.Group
---@return { n: integer, [integer]: any }
function objects.all_gather_object(value, group)
  local what = 'all_gather_object'
  group = validate.group(what, group)
  check_real(what, group)
  local text = text_of(what, value)
  local all, w, most = lengths(group, what, #text), #members.list(group), 0
  for r = 0, w - 1 do
    most = math.max(most, tonumber(all[r]))
  end
  return autograd.no_grad(function()
    local bytes = bytes_of(text, most)
    local gathered = bytes_of('', most * w)
    calls.comm_all_gather(group, gathered, bytes)
    local values, out = read(gathered, most * w), { n = w }
    for r = 0, w - 1 do
      out[r + 1] = decode(text_from(values, r * most, tonumber(all[r])), 1)
    end
    return out
  end)
end

return objects
