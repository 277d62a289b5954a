--- The formula of inputs and parameters in tests/fixtures/*.py, and comparison with the numbers
--- that those files wrote.

local ms = require 'moonshard'
local json = require 'moonshard.base.json'

local numbers = { TOLERANCE = { f64 = 1e-10, f32 = 1e-5 } }

--- What tests/fixtures/<name>.json holds.
---@param name string
function numbers.read(name)
  local file = assert(io.open(('tests/fixtures/%s.json'):format(name), 'r'))
  local text = file:read('*a')
  file:close()
  return json.decode(text)
end

local function v(k, i)
  return (31 * i * i + 17 * i + 29 * k + 7) % 101 / 50 - 1
end

--- A tensor scale v(k, i) + shift, where i counts elements from 0.
---@param shape integer[]
---@param k integer
---@param dtype ms.DType
---@param scale? number  default 1
---@param shift? number  default 0
---@return ms.Tensor
function numbers.formula(shape, k, dtype, scale, shift)
  local n, values = 1, {}
  for _, size in ipairs(shape) do
    n = n * size
  end
  for i = 1, n do
    values[i] = (scale or 1) * v(k, i - 1) + (shift or 0)
  end
  return ms.tensor(values, { dtype = dtype }):reshape(shape)
end

--- Fail unless `found` is within `tolerance` of `wanted`, relative to 1 + |wanted|.
---@param what string
---@param found number
---@param wanted number
---@param tolerance number
function numbers.near(what, found, wanted, tolerance)
  local near = math.abs(found - wanted) <= tolerance * (1 + math.abs(wanted))
  if not near then -- NaN too
    error(('%s is %.17g, expected %.17g'):format(what, found, wanted), 0)
  end
end

--- Fail unless a tensor has this shape and these values, or weighted sums.
---@param what string
---@param t ms.Tensor
---@param wanted { shape: integer[], values?: number[], sums?: number[] }
---@param tolerance number
function numbers.close(what, t, wanted, tolerance)
  local shape = table.concat(t:shape(), ', ')
  if shape ~= table.concat(wanted.shape, ', ') then
    error(('%s has the shape (%s), expected (%s)'):format(what, shape,
      table.concat(wanted.shape, ', ')), 0)
  end
  local found = t:detach():to('f64'):reshape(-1)
  if wanted.sums then
    local sums = {}
    for j = 1, 3 do
      local weights = numbers.formula({ found:size(1) }, 899 + j, 'f64')
      sums[j] = (found * weights):sum():item()
    end
    found = sums
  else
    found = found:totable()
  end
  for i, value in ipairs(wanted.values or wanted.sums) do
    numbers.near(('%s: number %d'):format(what, i), found[i], value, tolerance)
  end
end

return numbers
