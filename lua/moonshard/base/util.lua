--- Small helpers for tables.

local util = {}

--- String keys of a table, sorted: iteration by key in an order that is equal on all ranks.
---@param t table
---@return string[]
function util.sorted_keys(t)
  local keys = {}
  for key in pairs(t) do
    if type(key) == 'string' then
      keys[#keys + 1] = key
    end
  end
  table.sort(keys)
  return keys
end

-- Orders booleans, numbers and strings by type, then by value.
local function is_before(a, b)
  if type(a) ~= type(b) then
    return type(a) < type(b)
  elseif type(a) == 'number' then
    return a < b
  end
  return tostring(a) < tostring(b)
end

--- Keys of a table in an order that is equal on all ranks for equal sets of booleans, numbers and
--- strings.
---@param t table
---@return any[]
function util.ordered_keys(t)
  local keys = {}
  for key in pairs(t) do
    keys[#keys + 1] = key
  end
  table.sort(keys, is_before)
  return keys
end

--- Have both lists equal entries (==)?
---@param a any[]
---@param b any[]
---@return boolean
function util.equal(a, b)
  for i = 1, math.max(#a, #b) do
    if a[i] ~= b[i] then
      return false
    end
  end
  return true
end

--- Number of elements of a shape: the product of its sizes, 1 for an empty list.
---@param sizes integer[]
---@return integer
function util.product(sizes)
  local n = 1
  for _, size in ipairs(sizes) do
    n = n * size
  end
  return n
end

--- A new table with the keys of both; `over` takes precedence.
---@param base table
---@param over table?
---@return table
function util.merged(base, over)
  local out = {}
  for key, value in pairs(base) do
    out[key] = value
  end
  for key, value in pairs(over or {}) do
    out[key] = value
  end
  return out
end

--- Is `found` the class or a subclass of it, or of one that has it as a mixin?
---@param found any
---@param cls ms.Class|table
---@return boolean
function util.inherits(found, cls)
  while type(found) == 'table' do
    if found == cls or cls ~= nil and rawget(found, '_mixin') == cls then
      return true
    end
    found = rawget(found, '_parent')
  end
  return false
end

--- Is this an instance of the class or of a subclass?
---@param object any
---@param cls ms.Class
---@return boolean
function util.is(object, cls)
  return type(object) == 'table' and util.inherits(getmetatable(object), cls)
end

--- Is this an instance of one of the classes?
---@param object any
---@param classes ms.Class[]
---@return boolean
function util.is_any(object, classes)
  for _, cls in ipairs(classes) do
    if util.is(object, cls) then
      return true
    end
  end
  return false
end

--- Entries first .. last of an array (default: to the end).
---@generic T
---@param list T[]
---@param first integer
---@param last? integer
---@return T[]
function util.slice(list, first, last)
  local out = {}
  for i = first, last or #list do
    out[#out + 1] = list[i]
  end
  return out
end

--- The first `most` names as text, and how many there are beside them.
---@param names string[]
---@param most integer
---@return string
function util.listed(names, most)
  local text = table.concat(util.slice(names, 1, math.min(#names, most)), ', ')
  return #names > most and ('%s and %d more'):format(text, #names - most) or text
end

--- Number of entries of a table, whatever their keys.
---@param t table
---@return integer
function util.count(t)
  local n = 0
  for _ in next, t do
    n = n + 1
  end
  return n
end

return util
