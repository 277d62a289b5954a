--- Drawn numbers, and numbers as the text that compare.py reads: JSON has no NaN.

local draw = {}

local SPECIAL = { 0 / 0, math.huge, -math.huge, 0, -0.0, 1e-40, -1e-40, 1, -1 }

--- A stream of numbers from a seed (Park and Miller's minimal standard generator).
---@param seed integer
---@return fun(n: integer?): number random  in (0, 1); with n an integer of 1 to n
function draw.stream(seed)
  local state = (seed * 48271 + 11) % 2147483647
  local function random(n)
    state = (state * 16807) % 2147483647
    return n and math.floor(state / 2147483647 * n) + 1 or state / 2147483647
  end
  for _ = 1, 5 do -- seeds that follow each other begin alike
    random()
  end
  return random
end

--- Numbers of [-2, 2); with `special` four in ten are NaN, infinite, of either zero, denormal.
---@param random fun(n: integer?): number
---@param n integer
---@param special boolean
---@param also? number  one more special value
---@return number[]
function draw.values(random, n, special, also)
  local values, n_special = {}, #SPECIAL + (also and 1 or 0)
  for i = 1, n do
    local x = random() * 4 - 2
    values[i] = special and random() < 0.4 and (SPECIAL[random(n_special)] or also) or x
  end
  return values
end

--- A tensor's elements, row after row.
---@param t ms.Tensor
---@return string[]
function draw.texts(t)
  local out = {}
  for i, x in ipairs(t:reshape(t:numel()):totable()) do
    x = x == true and 1 or x or 0
    out[i] = x ~= x and 'nan' or x == math.huge and 'inf' or x == -math.huge and '-inf'
      or (x == 0 and 1 / x < 0) and '-0' or ('%.17g'):format(x)
  end
  return out
end

return draw
