--- Looks up entries of a module's arrays of parameters, buffers and children. The arrays only grow,
--- so long ones (a list of a thousand blocks) keep an index.

local FEW = 8 -- up to this length a scan is as fast

local function scanned(list, by, value)
  for i = 1, #list do
    if list[i][by] == value then
      return list[i]
    end
  end
end

--- The first entry of a list whose field `by` holds this value, or nil.
---@param list table[]  of one module; the fields `name` and `key` of an entry do not change
---@param by 'name'|'key'
---@return table?
return function(list, by, value)
  local n = #list
  if n <= FEW then
    return scanned(list, by, value)
  end
  local field = by == 'name' and '_by_name' or '_by_key'
  local index = list[field]
  if not index then
    index = { n = 0, entries = {} }
    list[field] = index
  end
  local entries = index.entries
  for i = index.n + 1, n do
    local at = list[i][by]
    entries[at] = entries[at] or list[i]
  end
  index.n = n
  return entries[value]
end
