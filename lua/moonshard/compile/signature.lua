--- The arguments of captured calls: tensors, also inside plain tables (one level), and other
--- values, which must be equal in later calls.

local B = require 'moonshard_ffi'
local parameter = require 'moonshard_ffi.parameter'
local program = require 'moonshard_ffi.program'
local samples = require 'moonshard.base.samples'
local util = require 'moonshard.base.util'

local calls, is_ref = B.calls, B.is_ref
local next, rawequal, type = next, rawequal, type

local signature = {}

---@class ms.compile.Expected  an argument, or an entry of one that is a plain table
---@field i integer  of the argument
---@field key any  of the entry, or nil
---@field value integer?  of the program: it is a tensor
---@field has_samples boolean?  the tensor is of a batch of a data.Loader
---@field constant any

---@class ms.compile.Signature: ms.compile.Expected[]
---@field n integer  arguments
---@field tables { i: integer, n: integer }[]  arguments that are plain tables, with their sizes

local function is_plain(value)
  return type(value) == 'table' and getmetatable(value) == nil
end

local function before(a, b)
  if type(a) ~= type(b) then
    return type(a) < type(b)
  elseif type(a) == 'number' or type(a) == 'string' then
    return a < b
  end
  return tostring(a) < tostring(b)
end

local function sorted_keys(t)
  local keys = {}
  for key in next, t do
    keys[#keys + 1] = key
  end
  table.sort(keys, before)
  return keys
end

--- The signature of arguments, and the tensors among them in order.
---@param args table  with their number in n
---@return ms.compile.Signature, ms.Tensor[]
function signature.of(args)
  local s, leaves = { n = args.n, tables = {} }, {}
  local function add(i, key, value)
    local entry = { i = i, key = key }
    if is_ref(value) then
      leaves[#leaves + 1] = value
      entry.value, entry.has_samples = #leaves - 1, samples.has(value)
    else
      entry.constant = value
    end
    s[#s + 1] = entry
  end
  for i = 1, args.n do
    local value = args[i]
    if is_plain(value) then
      local keys = sorted_keys(value)
      s.tables[#s.tables + 1] = { i = i, n = #keys }
      for _, key in ipairs(keys) do
        add(i, key, value[key])
      end
    else
      add(i, nil, value)
    end
  end
  return s, leaves
end

local function value_at(entry, args)
  local value = args[entry.i]
  if entry.key ~= nil then
    value = value[entry.key]
  end
  return value
end

local function misfit(entry, text)
  return ('argument %d%s %s'):format(entry.i,
    entry.key ~= nil and (", entry '%s',"):format(tostring(entry.key)) or '', text)
end

--- Set the arguments of a run. Returns how they differ from the signature, or nil.
---@param s ms.compile.Signature
---@param p ffi.cdata*  the program
---@param args table
---@return string?
function signature.set(s, p, args)
  if args.n ~= s.n then
    return ('%d arguments are given, recorded with %d'):format(args.n, s.n)
  end
  for _, t in ipairs(s.tables) do
    if not is_plain(args[t.i]) or util.count(args[t.i]) ~= t.n then
      return ('argument %d has another form'):format(t.i)
    end
  end
  for i = 1, #s do
    local entry = s[i]
    local value = value_at(entry, args)
    if not entry.value then
      if not rawequal(value, entry.constant) then
        return misfit(entry, 'has another value')
      end
    elseif not is_ref(value) or samples.has(value) ~= entry.has_samples then
      return misfit(entry, 'has another form')
    elseif not program.set(p, entry.value, value) then
      return program.misfit(p)
    end
  end
end

--- The tensors of arguments that have the signature.
---@return ms.Tensor[]
function signature.leaves(s, args)
  local leaves = {}
  for i = 1, #s do
    local entry = s[i]
    if entry.value then
      leaves[entry.value + 1] = value_at(entry, args)
    end
  end
  return leaves
end

local info = B.new 'ms_tensor_info'

-- Objects among arguments by identity, without keeping them alive.
local ids, n_ids = setmetatable({}, { __mode = 'k' }), 0

local function id_of(value)
  if type(value) ~= 'table' and type(value) ~= 'function' and type(value) ~= 'cdata' then
    return type(value) .. ' ' .. tostring(value)
  end
  if not ids[value] then
    n_ids = n_ids + 1
    ids[value] = n_ids
  end
  return 'object ' .. ids[value]
end

local function describe(value)
  if not is_ref(value) then
    return id_of(value)
  end
  calls.tensor_describe(value, info)
  local words = { parameter.dtype_name(info.dtype), info.requires_grad and 'grad' or '-',
    samples.has(value) and 'batch' or '-' }
  for d = 0, info.ndim - 1 do
    words[#words + 1] = ('%d:%d'):format(tonumber(info.shape[d]), tonumber(info.stride[d]))
  end
  return table.concat(words, ' ')
end

--- Text that is equal for arguments that may be replayed by the same capture.
---@param args table
---@return string
function signature.text(args)
  local s = signature.of(args)
  local parts = { B.C.ms_grad_enabled() and 'grad' or 'no grad', tostring(s.n) }
  for _, entry in ipairs(s) do
    parts[#parts + 1] = ('%d/%s=%s'):format(entry.i, tostring(entry.key),
      describe(value_at(entry, args)))
  end
  return table.concat(parts, ';')
end

return signature
