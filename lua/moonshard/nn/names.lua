--- Names of parameters (the paths of their modules) and random streams.

local parameter = require 'moonshard_ffi.parameter'
local trace = require 'moonshard.base.trace'
local tree = require 'moonshard.nn.tree'

local names = {}

local function paths_below(top)
  local paths = {}
  for _, entry in ipairs(tree.walk(top)) do
    paths[entry.module] = entry.path
  end
  return paths
end

-- A table that computes `make(top)` on the first access of each outermost module.
local function by_top(make)
  return setmetatable({}, {
    __index = function(made, top)
      made[top] = make(top)
      return made[top]
    end,
  })
end

--- tree.path() of many modules, with one walk over each of their trees.
---@param modules ms.nn.Module[]
---@return string[]
function names.paths(modules)
  local below, paths = by_top(paths_below), {}
  for i, module in ipairs(modules) do
    local home = rawget(module, '_home')
    paths[i] = home and not rawget(home, '_owner') and below[home][module]
      or below[tree.outermost(module)][module] or ''
  end
  return paths
end

--- Random stream of the tree below a module: that of its earliest made module. So two trees draw
--- different values for equal names, and the values do not depend on wrapping or on the order of
--- assembly.
---@return integer
function names.stream(module)
  local first
  for _, entry in ipairs(tree.walk(module)) do
    local stream = rawget(entry.module, '_stream')
    first = stream and math.min(first or stream, stream) or first
  end
  return first or 0
end

-- [Note: homes] A module may be part of several trees, for example of a probe that uses layers of a
-- model. Its home is the outermost module that names its parameters: the first that was
-- materialised. A home is replaced if it was never called, became part of a larger model, or no
-- longer contains the module.
local function home_of(module, top, paths)
  local home = rawget(module, '_home')
  if home == top or not (home and rawget(home, '_ready') and not rawget(home, '_owner')
    and paths[home][module]) then
    home = top
    rawset(module, '_home', top)
  end
  return home
end

--- Paths of this module and of all below it, with the random streams of their trees.
---@return { module: ms.nn.Module, path: string, stream: integer }[]
function names.locations(module)
  local top, out = tree.outermost(module), {}
  local paths, streams = by_top(paths_below), by_top(names.stream)
  for i, entry in ipairs(tree.walk(module)) do
    local home = home_of(entry.module, top, paths)
    out[i] = {
      module = entry.module, path = paths[home][entry.module] or '', stream = streams[home],
    }
  end
  return out
end

local function names_below(top)
  local out = {}
  for _, p in ipairs(tree.params(top)) do
    out[parameter.key(p.tensor)] = p.name
  end
  return out
end

--- Name all parameters below an outermost module by their paths. The name also determines the
--- initial values of parameters that have none yet.
---@param top ms.nn.Module
function names.assign_names(top)
  local paths, names_in = by_top(paths_below), by_top(names_below)
  local streams = by_top(names.stream)
  for _, p in ipairs(tree.params(top)) do
    local home = home_of(p.module, top, paths)
    local name = home == top and p.name or names_in[home][parameter.key(p.tensor)]
    if parameter.name(p.tensor) ~= name then
      parameter.set_name(p.tensor, name)
    end
    parameter.set_stream(p.tensor, streams[home])
  end
end

--- If a module replaced another one since the last walk, and its model is calling it now, update
--- the tree before the module is named.
---@param module ms.nn.Module
function names.join_caller(module)
  local caller = trace.module()
  local top = caller and tree.outermost(caller)
  if top and tree.contains(top, module) then
    tree.walk(top)
  end
end

return names
