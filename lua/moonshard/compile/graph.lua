--- A captured call as text: its operators and the steps of the host between them, in order. A graph
--- is a description, which does not keep the program.

local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local program = require 'moonshard_ffi.program'

---@class ms.compile.Node  an operator or a step of the host
---@field name string
---@field operands integer[]  values; -1 for an omitted operand
---@field results integer[]
---@field in_place boolean  the results are existing values, which it writes
---@field is_step boolean
---@field where? string  'file:line' of the script

---@class ms.compile.Graph
---@field nodes ms.compile.Node[]
---@field values table<integer, { kind: 'argument'|'outer'|'result', dtype: string,
---  shape: integer[], name?: string }>
---@overload fun(p: ffi.cdata*, steps: ms.compile.Step[], places: string[]): ms.compile.Graph
local Graph = class 'compile.Graph'

-- The values that a step gets, in order of its arguments; entries of a table by their keys.
local function add_values(list, of)
  if of == nil then
    return
  elseif of.argument then
    list[#list + 1] = of.argument - 1
  elseif of.value then
    list[#list + 1] = of.value
  elseif of.entries then
    local keys = {}
    for key in next, of.entries do
      keys[#keys + 1] = key
    end
    table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
    for _, key in ipairs(keys) do
      add_values(list, of.entries[key])
    end
  end
end

local function step_node(step)
  local operands = {}
  for _, of in ipairs { step.a, step.b, step.c } do
    add_values(operands, of)
  end
  return {
    name = step.name, operands = operands, results = step.results or {}, in_place = false,
    is_step = true, where = step.where,
  }
end

---@param p ffi.cdata*  the program
---@param steps ms.compile.Step[]
---@param places string[]
function Graph:init(p, steps, places)
  self.nodes, self.values = {}, {}
  local ops, next_op = program.ops(p), 1
  for _, step in ipairs(steps) do
    while step.segment and ops[next_op] and ops[next_op].segment == step.segment do
      local op = ops[next_op]
      op.where, op.is_step = places[op.place], false
      self.nodes[#self.nodes + 1] = op
      next_op = next_op + 1
    end
    if not step.segment then
      self.nodes[#self.nodes + 1] = step_node(step)
    end
  end
  for _, node in ipairs(self.nodes) do
    for _, list in ipairs { node.operands, node.results } do
      for _, value in ipairs(list) do
        self.values[value] = self.values[value] or value >= 0 and program.describe(p, value) or nil
      end
    end
  end
end

--- Number of operators and steps whose name is `name`, or begins with it.
---@param name string
---@return integer
function Graph:count(name)
  if type(name) ~= 'string' then
    errors.raise('TypeError', "graph:count: 'name' is %s, expected a string", arguments.noun(name))
  end
  local n = 0
  for _, node in ipairs(self.nodes) do
    n = n + (node.name:sub(1, #name) == name and 1 or 0)
  end
  return n
end

local function type_of(value)
  return ('%s [%s]'):format(value.dtype, table.concat(value.shape, ', '))
end

local function names_of(list)
  local out = {}
  for i, value in ipairs(list) do
    out[i] = value < 0 and 'nil' or '%' .. value
  end
  return table.concat(out, ', ')
end

local function line_of(self, node)
  local text = ('%s(%s)'):format(node.name, names_of(node.operands))
  local types = {}
  for i, value in ipairs(node.results) do
    types[i] = type_of(self.values[value])
  end
  if types[1] then
    text = ('%s %s %s %s'):format(names_of(node.results), node.in_place and '<-' or '=', text,
      table.concat(types, ', '))
  end
  return node.where and ('%s   -- %s'):format(text, node.where) or text
end

-- Values from outside, in order.
local function inputs_of(self)
  local inputs = {}
  for value, info in next, self.values do
    if info.kind ~= 'result' then
      inputs[#inputs + 1] = value
    end
  end
  table.sort(inputs)
  return inputs
end

local function origin_of(self, value)
  local info = self.values[value]
  return info.kind == 'argument' and ('argument %d'):format(value + 1) or info.name
    or 'from outside'
end

--- One line for each value from outside, then for each operator and step:
--- `%3 = linear(%0, %1, %2) f32 [4, 32]   -- model.lua:12`, with `<-` for an operator in place.
---@return string
function Graph:__tostring()
  local lines = {}
  for _, value in ipairs(inputs_of(self)) do
    lines[#lines + 1] = ('%%%d: %s %s'):format(value, origin_of(self, value),
      type_of(self.values[value]))
  end
  for _, node in ipairs(self.nodes) do
    lines[#lines + 1] = line_of(self, node)
  end
  return table.concat(lines, '\n')
end

local function quoted(text)
  return '"' .. text:gsub('[\\"]', '\\%0'):gsub('\n', '\\n') .. '"'
end

--- Text for Graphviz. Steps of the host are boxes, with dashed edges to what runs before and after.
---@return string
function Graph:dot()
  local lines, made_by = { 'digraph {' }, {}
  local function say(format, ...)
    lines[#lines + 1] = '  ' .. format:format(...)
  end
  for _, value in ipairs(inputs_of(self)) do
    made_by[value] = ('v%d'):format(value)
    say('v%d [shape=plaintext, label=%s];', value,
      quoted(origin_of(self, value) .. '\n' .. type_of(self.values[value])))
  end
  for i, node in ipairs(self.nodes) do
    say('n%d [label=%s%s];', i,
      quoted(node.where and node.name .. '\n' .. node.where or node.name),
      node.is_step and ', shape=box' or '')
    for _, value in ipairs(node.operands) do
      if made_by[value] then
        say('%s -> n%d;', made_by[value], i)
      end
    end
    if i > 1 and (node.is_step or self.nodes[i - 1].is_step) then
      say('n%d -> n%d [style=dashed];', i - 1, i)
    end
    for _, value in ipairs(node.results) do
      made_by[value] = ('n%d'):format(i)
    end
  end
  lines[#lines + 1] = '}'
  return table.concat(lines, '\n')
end

return Graph
