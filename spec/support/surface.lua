--- Every public function of the library by name, found by walking what a script can reach: the
--- tables of `ms`, its classes, the methods of tensors. Names that begin with '_' are private.

local ms = require 'moonshard'

---@class spec.Entry
---@field name string  'ms.ops.sum', 'ms.nn.Linear' (the constructor), 'ms.nn.Module:train'
---@field fn fun(...): any
---@field class ms.Class?

-- What a class gives to the library; scripts make objects, call modules, print them, name policies.
local GIVEN = { init = true, forward = true, extra_repr = true, choose = true }

-- Each class has an `extend` of its own, which are one but for the class.
local function is_given(class, method)
  return GIVEN[method] or method == 'extend' and rawget(class, '_parent') ~= nil
end

local function called(module, ...)
  return module(...)
end

local function is_class(value)
  return type(value) == 'table' and type(rawget(value, '_name')) == 'string'
end

local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do
    if type(key) == 'string' and key:sub(1, 1) ~= '_' then
      keys[#keys + 1] = key
    end
  end
  table.sort(keys)
  return keys
end

-- Load what a table loads when it is first asked for: the names stand in tables its __index knows.
local function load_lazy(t)
  local meta = getmetatable(t)
  local index = type(meta) == 'table' and rawget(meta, '__index')
  for i = 1, type(index) == 'function' and 20 or 0 do
    local _, value = debug.getupvalue(index, i)
    for key in pairs(type(value) == 'table' and value or {}) do
      pcall(function() return t[key] end) -- what is planned and missing raises
    end
  end
end

local function can_be_called(value)
  local meta = type(value) == 'table' and getmetatable(value)
  return type(value) == 'function' or type(meta) == 'table' and meta.__call ~= nil
end

local function walk(out, seen, path, t)
  load_lazy(t)
  for _, key in ipairs(sorted_keys(t)) do
    local value = rawget(t, key)
    local name = path .. '.' .. key
    if is_class(value) and not seen[value] then
      seen[value] = true
      out[#out + 1] = { name = name, fn = value, class = value }
      for _, method in ipairs(sorted_keys(value)) do
        if not is_given(value, method) and type(value[method]) == 'function' then
          out[#out + 1] = { name = name .. ':' .. method, fn = value[method], class = value }
        end
      end
      if rawget(value, 'forward') then
        out[#out + 1] = { name = name .. ':forward', fn = called, class = value }
      end
    elseif can_be_called(value) and not is_class(value) then
      out[#out + 1] = { name = name, fn = value }
    elseif type(value) == 'table' and not seen[value] and not is_class(value) then
      seen[value] = true
      walk(out, seen, name, value)
    end
  end
end

local leaf = ms.ones(1):requires_grad_(true)

local surface = {
  hook = leaf:hook(function() end), -- whose methods every hook has
}

--- All of them, in order of their names.
---@return spec.Entry[]
function surface.entries()
  local out, seen = {}, { [ms] = true }
  walk(out, seen, 'ms', ms)
  local tensor = require 'moonshard.tensor'
  for _, name in ipairs(sorted_keys(tensor)) do
    out[#out + 1] = { name = 'tensor:' .. name, fn = tensor[name] }
  end
  for _, name in ipairs(sorted_keys(surface.hook)) do
    out[#out + 1] = { name = 'hook:' .. name, fn = surface.hook[name] }
  end
  return out
end

return surface
