--- Einstein summation, composed of permute, reshape, sum and batched products.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local dims = require 'moonshard.base.dims'
local errors = require 'moonshard.base.errors'
local positions = require 'moonshard.ops.positions'
local util = require 'moonshard.base.util'

local C, calls = B.C, B.calls

local einsum = {}

local info = B.new('ms_tensor_info')

-- A term is a tensor with a label for each dimension: a letter, or for a dimension of an ellipsis a
-- number (counted from the end).

local function fail(equation, ...)
  errors.raise('ValueError', "einsum: '%s': %s", equation, string.format(...))
end

-- Labels of a subscript, e.g. 'b...ij', of an operand with `n` dimensions. For the result n is nil,
-- and its ellipsis has `wide` dimensions. @return labels, number of dimensions of the ellipsis
local function labels_of(equation, text, n, wide)
  local first, last = text:find('...', 1, true)
  local letters = first and text:sub(1, first - 1) .. text:sub(last + 1) or text
  if letters:find('[^%a]') then
    fail(equation, "'%s', expected letters and at most one '...'", text)
  end
  local rest = n == nil and (wide or 0) or n - #letters
  if rest < 0 or (rest > 0 and not first and n ~= nil) then
    fail(equation, "'%s' for %d dimensions, expected one letter each", text, n)
  end
  local labels = {}
  for i = 1, first and first - 1 or #letters do
    labels[i] = letters:sub(i, i)
  end
  for i = rest, 1, -1 do
    if first then
      labels[#labels + 1] = i
    end
  end
  for i = first or #letters + 1, #letters do
    labels[#labels + 1] = letters:sub(i, i)
  end
  return labels, first and rest or 0
end

local function permuted(x, order)
  local axes = B.new('int32_t[?]', math.max(#order, 1))
  for i, d in ipairs(order) do
    axes[i - 1] = d - 1
  end
  return calls.permute(x, #order, axes)
end

local function reshaped(x, sizes)
  return calls.reshape(x, dims.shape(sizes, 'einsum', 0))
end

local function place(labels, wanted)
  for i, label in ipairs(labels) do
    if label == wanted then
      return i
    end
  end
end

-- The diagonal of dimensions i < j, as the last dimension.
local function diagonal(equation, term, i, j)
  local sizes, order, kept, labels = term.x:shape(), {}, {}, {}
  if sizes[i] ~= sizes[j] then
    fail(equation, "sizes %d and %d of '%s' differ", sizes[i], sizes[j], term.labels[i])
  end
  for d = 1, #sizes do
    if d ~= i and d ~= j then
      order[#order + 1], labels[#labels + 1] = d, term.labels[d]
      kept[#kept + 1] = sizes[d]
    end
  end
  local n = sizes[i]
  labels[#labels + 1] = term.labels[i]
  order[#order + 1], order[#order + 2] = i, j
  kept[#kept + 1] = n * n
  local square = reshaped(permuted(term.x, order), kept)
  local index = calls.tensor_arange(C.MS_DTYPE_I64, 1, n + 1, n)
  return { x = positions.index_select(square, #kept, index), labels = labels }
end

-- Take diagonals of repeated labels, and remove dimensions of size 1 that broadcast to another
-- size.
local function plain(equation, term, size)
  for i = 1, #term.labels do
    for j = i + 1, #term.labels do
      if term.labels[i] == term.labels[j] then
        return plain(equation, diagonal(equation, term, i, j), size)
      end
    end
  end
  local sizes, kept, labels = term.x:shape(), {}, {}
  for d, label in ipairs(term.labels) do
    if sizes[d] ~= 1 or size[label] == 1 then
      kept[#kept + 1], labels[#labels + 1] = sizes[d], label
    end
  end
  return { x = #kept < #sizes and reshaped(term.x, kept) or term.x, labels = labels }
end

-- Sum over the labels that are not in `needed`.
local function summed(term, needed)
  local mask, labels = 0, {}
  for d, label in ipairs(term.labels) do
    if needed[label] then
      labels[#labels + 1] = label
    else
      mask = mask + 2 ^ (d - 1)
    end
  end
  return mask == 0 and term or { x = calls.sum(term.x, mask, false), labels = labels }
end

-- The term as (batch, rows, columns), given by three lists of labels.
local function as_matrices(term, lists, size)
  local order, sizes = {}, {}
  for k, list in ipairs(lists) do
    sizes[k] = 1
    for _, label in ipairs(list) do
      order[#order + 1] = place(term.labels, label)
      sizes[k] = sizes[k] * size[label]
    end
  end
  return reshaped(permuted(term.x, order), sizes)
end

-- Matrix products need floats; integers are multiplied and summed.
local function product(x, y)
  calls.tensor_describe(x, info)
  if C.ms_dtype_is_floating(info.dtype) then
    return calls.matmul(x, y)
  end
  return calls.sum(calls.mul(x:unsqueeze(4), y:unsqueeze(2)), 4, false)
end

-- Contract two terms. Labels that are in no other term and not in `needed` are summed.
local function contract(a, b, needed, size)
  local batch, inner, rows, columns = {}, {}, {}, {}
  local in_a, in_b = {}, {}
  for _, label in ipairs(a.labels) do in_a[label] = true end
  for _, label in ipairs(b.labels) do in_b[label] = true end
  a = summed(a, setmetatable({}, { __index = function(_, l) return needed[l] or in_b[l] end }))
  b = summed(b, setmetatable({}, { __index = function(_, l) return needed[l] or in_a[l] end }))
  for _, label in ipairs(a.labels) do
    local list = not in_b[label] and rows or needed[label] and batch or inner
    list[#list + 1] = label
  end
  for _, label in ipairs(b.labels) do
    if not in_a[label] then
      columns[#columns + 1] = label
    end
  end
  local labels, sizes = {}, {}
  for _, list in ipairs { batch, rows, columns } do
    for _, label in ipairs(list) do
      labels[#labels + 1], sizes[#sizes + 1] = label, size[label]
    end
  end
  local x = as_matrices(a, { batch, rows, inner }, size)
  local y = as_matrices(b, { batch, inner, columns }, size)
  return { x = reshaped(#inner == 0 and calls.mul(x, y) or product(x, y), sizes), labels = labels }
end

-- Labels of an implicit result: those that occur once, in order, after the ellipsis.
local function implied(terms, wide)
  local count, labels = {}, {}
  for _, term in ipairs(terms) do
    for _, label in ipairs(term.labels) do
      count[label] = (count[label] or 0) + 1
    end
  end
  for label, n in pairs(count) do
    if type(label) == 'string' and n == 1 then
      labels[#labels + 1] = label
    end
  end
  table.sort(labels)
  for i = 1, wide do
    table.insert(labels, 1, i)
  end
  return labels
end

local function terms_of(equation, left, operands)
  local terms, wide, n = {}, 0, 0
  for text in (left .. ','):gmatch('([^,]*),') do
    n = n + 1
    if operands[n] ~= nil then
      local labels, rest = labels_of(equation, text, operands[n]:dim())
      terms[n], wide = { x = operands[n], labels = labels }, math.max(wide, rest)
    end
  end
  if n ~= #operands then
    fail(equation, '%d subscripts for %d tensors, expected one each', n, #operands)
  end
  return terms, wide
end

-- The size of every label. A size of 1 broadcasts to another one.
local function sizes_of(equation, terms)
  local size = {}
  for _, term in ipairs(terms) do
    for d, n in ipairs(term.x:shape()) do
      local label = term.labels[d]
      local other = size[label] or 1
      if n ~= other and n ~= 1 and other ~= 1 then
        fail(equation, "dimension '%s' has sizes %d and %d", label, other, n)
      end
      size[label] = other == 1 and n or other
    end
  end
  return size
end

local function result_labels(equation, right, terms, wide, size)
  if right == nil then
    return implied(terms, wide)
  end
  local labels, seen = labels_of(equation, right, nil, wide), {}
  for _, label in ipairs(labels) do
    if seen[label] or size[label] == nil then
      fail(equation, "'%s' in the result is %s", label,
        seen[label] and 'repeated' or 'in no operand')
    end
    seen[label] = true
  end
  return labels
end

-- Labels of the result and of the terms from index `first` on.
local function needed_after(result, terms, first)
  local needed = {}
  for _, label in ipairs(result) do
    needed[label] = true
  end
  for k = first, #terms do
    for _, label in ipairs(terms[k].labels) do
      needed[label] = true
    end
  end
  return needed
end

--- Sum of products: einsum('bij,bjk->bik', a, b). Each letter labels a dimension. Letters that are
--- not in the result are summed, a letter that occurs twice in an operand takes its diagonal, and
--- '...' labels any further dimensions, which broadcast. Without '->' the result has the letters
--- that occur once, in order. Operands are multiplied from left to right.
---@param equation string
---@param ... ms.Tensor  of one dtype; or a list of tensors
---@return ms.Tensor
function einsum.einsum(equation, ...)
  arguments.text('einsum', 'equation', equation)
  local operands = { ... }
  if type(operands[1]) == 'table' then
    operands = arguments.array('einsum', 'operands', operands[1])
  end
  for i = 1, math.max(#operands, 1) do
    arguments.tensor('einsum', 'operand ' .. i, operands[i])
  end
  local text = equation:gsub('%s', '')
  local left, right = text:match('^(.-)%->(.*)$')
  local terms, wide = terms_of(equation, left or text, operands)
  local size = sizes_of(equation, terms)
  local result = result_labels(equation, right, terms, wide, size)
  for k, term in ipairs(terms) do
    terms[k] = plain(equation, term, size)
  end
  local term = terms[1]
  for k = 2, #terms do
    term = contract(term, terms[k], needed_after(result, terms, k + 1), size)
  end
  term = summed(term, needed_after(result, {}, 1))
  local order, sizes = {}, {}
  for i, label in ipairs(result) do
    order[#order + 1], sizes[i] = place(term.labels, label), size[label]
  end
  return permuted(term.x, order):reshape(sizes)
end

--- a (..., K), b (..., K) -> a's other dimensions, then b's: the sum of products over the last
--- dimension. If a or b has no dimensions, it multiplies elementwise.
---@param a ms.Tensor
---@param b ms.Tensor
---@return ms.Tensor
function einsum.inner(a, b)
  local m = arguments.tensor('inner', 'a', a):dim()
  local n = arguments.tensor('inner', 'b', b):dim()
  if m == 0 or n == 0 then
    return calls.mul(a, b)
  elseif a:size(-1) ~= b:size(-1) then
    errors.raise('ValueError', 'inner: last dimensions are %d and %d, expected one size',
      a:size(-1), b:size(-1))
  end
  local sizes, others, k = a:shape(), b:shape(), a:size(-1)
  sizes[m], others[n] = nil, nil
  local rows, columns = util.product(sizes), util.product(others)
  for d = 1, n - 1 do
    sizes[#sizes + 1] = others[d]
  end
  local wide = calls.permute(reshaped(b, { columns, k }), 2, B.new('int32_t[2]', 1, 0))
  return reshaped(calls.matmul(reshaped(a, { rows, k }), wide), sizes)
end

return einsum
