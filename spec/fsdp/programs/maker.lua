--- Draws programs, writes them as text, and makes failing ones small.

local axes = require 'fsdp.programs.axes'

local maker = {}

-- Names of axes that stay at their defaults.
local WITHOUT = ' ' .. (os.getenv 'MS_WITHOUT' or '') .. ' '

--- A program with all defaults but for those given, or nil and the axis that refuses it.
function maker.complete(given)
  local p = { seed = given.seed or 1 }
  for _, axis in ipairs(axes) do
    local value = given[axis.name]
    if value == nil then
      value = axis.values[1]
    end
    p[axis.name] = value
  end
  for _, axis in ipairs(axes) do
    local value = p[axis.name]
    if axis.legal and value ~= axis.values[1] and not axis.legal(value, p) then
      return nil, axis.name
    end
  end
  return p
end

--- The program with another value on one axis, or nil.
function maker.changed(p, name, value)
  local given = {}
  for key, own in pairs(p) do
    given[key] = own
  end
  given[name] = value
  return maker.complete(given)
end

--- The program of a seed. In random order each axis takes another legal value with probability 1/3,
--- or its own `chance`.
function maker.draw(seed)
  local state = seed * 7919 % 2147483647 + 1
  local function below(n)
    state = state * 16807 % 2147483647
    return math.floor(state / 2147483647 * n)
  end
  for _ = 1, 5 do
    below(1)
  end
  local p = maker.complete { seed = seed }
  local order = {}
  for i, axis in ipairs(axes) do
    table.insert(order, 1 + below(i), axis)
  end
  for _, axis in ipairs(order) do
    local legal = {}
    for i = 2, #axis.values do
      legal[#legal + 1] = maker.changed(p, axis.name, axis.values[i])
    end
    local drawn = below(1000) < 1000 * (axis.chance or 1 / 3)
    local choice = legal[1 + below(#legal)]
    if drawn and not WITHOUT:find(' ' .. axis.name .. ' ', 1, true) then
      p = choice or p
    end
  end
  return p
end

local function literal(value)
  return type(value) == 'string' and ("'%s'"):format(value)
    or value == math.huge and 'math.huge' or tostring(value)
end

--- The program as a Lua table of what differs from the defaults.
function maker.text(p)
  local out = { 'seed = ' .. p.seed }
  for _, axis in ipairs(axes) do
    if p[axis.name] ~= axis.values[1] then
      out[#out + 1] = ('%s = %s'):format(axis.name, literal(p[axis.name]))
    end
  end
  return '{ ' .. table.concat(out, ', ') .. ' }'
end

function maker.parse(text)
  return assert(maker.complete(assert(loadstring('return ' .. text))()))
end

--- Reset one axis after another to its default while `fails(p)`.
function maker.shrink(p, fails)
  local again = true
  while again do
    again = false
    for _, axis in ipairs(axes) do
      local smaller = p[axis.name] ~= axis.values[1] and maker.changed(p, axis.name, axis.values[1])
      if smaller and fails(smaller) then
        p, again = smaller, true
      end
    end
  end
  return p
end

return maker
