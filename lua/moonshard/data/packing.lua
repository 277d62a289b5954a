--- Best fit decreasing: documents of given lengths into rows of equal capacity.

local B = require 'moonshard_ffi'

local packing = {}

-- Indices from 1, longest first, equal ones in order.
local function by_length(lengths, n, capacity)
  local firsts, order = B.new('int32_t[?]', capacity + 2), B.new('int32_t[?]', math.max(n, 1))
  for i = 0, n - 1 do
    firsts[lengths[i]] = firsts[lengths[i]] + 1
  end
  local at = 0
  for length = capacity, 0, -1 do
    firsts[length], at = at, at + firsts[length]
  end
  for i = 0, n - 1 do
    order[firsts[lengths[i]]] = i + 1
    firsts[lengths[i]] = firsts[lengths[i]] + 1
  end
  return order
end

-- The least space of r or more that a row has left; nil if no row has. Leaf size + s of the tree
-- counts the rows with a space of s, a node those of its children.
local function least_space(tree, size, r)
  local i = size + r
  if tree[i] > 0 then
    return r
  end
  while i > 1 do
    if i % 2 == 0 and tree[i + 1] > 0 then
      i = i + 1
      while i < size do
        i = tree[2 * i] > 0 and 2 * i or 2 * i + 1
      end
      return i - size
    end
    i = math.floor(i / 2)
  end
end

local function add(tree, leaf, change)
  local i = leaf
  while i >= 1 do
    tree[i] = tree[i] + change
    i = math.floor(i / 2)
  end
end

-- The row of each index of `order`, and the number of rows.
local function place(order, lengths, n, capacity)
  local size = 1
  while size < capacity + 1 do
    size = 2 * size
  end
  local tree = B.new('int32_t[?]', 2 * size)
  -- Rows with a space of s: heads[s] and its successors, numbers from 1.
  local heads, after = B.new('int32_t[?]', capacity + 1), B.new('int32_t[?]', n + 1)
  local rows, n_rows = B.new('int32_t[?]', math.max(n, 1)), 0
  for k = 0, n - 1 do
    local length, row = lengths[order[k] - 1]
    local space = least_space(tree, size, length)
    if space then
      row = heads[space]
      heads[space] = after[row]
      add(tree, size + space, -1)
    else
      n_rows = n_rows + 1
      space, row = capacity, n_rows
    end
    rows[k] = row
    space = space - length
    after[row], heads[space] = heads[space], row
    add(tree, size + space, 1)
  end
  return rows, n_rows
end

--- Divide documents into rows. The result depends only on the lengths.
---@param lengths ffi.cdata*  double *, each from 1 to `capacity`
---@param n integer
---@param capacity integer
---@return ffi.cdata* documents  numbers from 1, row after row
---@return ffi.cdata* firsts  row r, from 0, has documents[firsts[r]], ...,
---  documents[firsts[r + 1] - 1]
---@return integer n_rows
function packing.best_fit(lengths, n, capacity)
  local order = by_length(lengths, n, capacity)
  local rows, n_rows = place(order, lengths, n, capacity)
  local firsts, documents = B.new('int32_t[?]', n_rows + 2), B.new('int32_t[?]', math.max(n, 1))
  for k = 0, n - 1 do
    firsts[rows[k] + 1] = firsts[rows[k] + 1] + 1
  end
  for row = 1, n_rows do
    firsts[row + 1] = firsts[row + 1] + firsts[row]
  end
  for k = 0, n - 1 do -- moves firsts[row] to the end of its row, where the next row begins
    local row = rows[k]
    documents[firsts[row]] = order[k]
    firsts[row] = firsts[row] + 1
  end
  return documents, firsts, n_rows
end

return packing
