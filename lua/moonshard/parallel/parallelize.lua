--- Divides the parameters of a model by a plan of styles.

local B = require 'moonshard_ffi'
local Divided = require 'moonshard.dist.divided'
local arguments = require 'moonshard_ffi.arguments'
local distribute = require 'moonshard.dist.distribute'
local errors = require 'moonshard.base.errors'
local meshes = require 'moonshard.dist.mesh'
local names = require 'moonshard.nn.names'
local parameter = require 'moonshard_ffi.parameter'
local scope = require 'moonshard.base.scope'
local styles = require 'moonshard.parallel.styles'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'
local without_jit = require 'moonshard.base.without_jit'

local WHAT = 'parallelize'

---@class ms.parallel.Layer
---@field path string
---@field module ms.nn.Module
---@field style ms.parallel.Style
---@field rule ms.parallel.Rule

-- A Lua pattern for a path in which '*' is one name.
local function pattern_of(key)
  return '^' .. key:gsub('[^%w_*]', '%%%0'):gsub('%*', '[^.]+') .. '$'
end

local function checked_plan(plan)
  if util.is(plan, styles.Style) then
    return { [''] = plan }
  end
  for _, key in ipairs(util.ordered_keys(arguments.list(WHAT, 'plan', plan))) do
    if type(key) ~= 'string' then
      arguments.refuse(WHAT, 'a key of plan', key, 'the path of a module')
    elseif not util.is(plan[key], styles.Style) then
      arguments.refuse(WHAT, ("plan['%s']"):format(key), plan[key], 'a style such as '
        .. 'parallel.ColwiseParallel()')
    end
  end
  return plan
end

-- The layers that the plan names, in module order.
local function layers_of(module, plan)
  local keys, paths, found, layers = util.sorted_keys(plan), {}, {}, {}
  for i, entry in ipairs(tree.walk(module)) do
    local by
    paths[i] = entry.path
    for _, key in ipairs(keys) do
      if entry.path:find(pattern_of(key)) then
        if by then
          errors.raise('ValueError', "%s: the plan names '%s' twice, by '%s' and '%s', expected "
            .. 'one style', WHAT, entry.path, by, key)
        end
        by, found[key] = key, true
      end
    end
    if by then
      layers[#layers + 1] = {
        path = entry.path, module = entry.module, style = plan[by],
        rule = plan[by]:_rule(entry.path, entry.module),
      }
    end
  end
  for _, key in ipairs(keys) do
    if not found[key] then
      local near = errors.nearest(key, paths)
      errors.raise('KeyError', "%s: no module has the path '%s'%s", WHAT, key,
        near and (", did you mean '%s'?"):format(near) or '')
    end
  end
  return layers
end

local function check_layer(layer)
  if layer.module._parallel then
    errors.raise('RuntimeError', "%s: '%s' is divided already", WHAT, layer.path)
  elseif rawget(layer.module, '_sealed') or tree.manager(layer.module) then
    errors.raise('RuntimeError', "%s: '%s' is sharded by FSDP, expected a plain module; divide "
      .. 'first, then shard over the other dimension of the mesh', WHAT, layer.path)
  elseif rawget(layer.module, 'forward') then
    errors.raise('RuntimeError', "%s: the forward of '%s' was replaced, expected that of %s", WHAT,
      layer.path, layer.module._name)
  end
end

---@class ms.parallel.Use  a parameter under one of its names
---@field name string  path
---@field module ms.nn.Module
---@field entry ms.nn.DeclaredParam
---@field tensor ms.Tensor
---@field placement ms.dist.Placement?  nil: outside the plan

local function check_divides(use, world_size)
  local dim = use.placement and use.placement.dim
  local size = dim and use.tensor:size(dim)
  if size and size % world_size ~= 0 then
    errors.raise('ValueError', "%s: dimension %d of '%s' has size %d, expected a multiple of %d, "
      .. 'the number of ranks that divide it', WHAT, dim, use.name, size, world_size)
  end
end

-- All uses of the parameters of the layers, by key of the tensor in module order.
local function uses_of(module, layers, world_size)
  local placements, groups, by_key = {}, {}, {}
  for _, layer in ipairs(layers) do
    placements[layer.module] = layer.rule.placements
  end
  for _, at in ipairs(tree.walk(tree.outermost(module))) do
    for _, entry in ipairs(at.module._params) do
      local tensor = tree.param(at.module, entry)
      local use = tensor and {
        name = tree.join(at.path, entry.name), module = at.module, entry = entry, tensor = tensor,
        placement = (placements[at.module] or {})[entry.name],
      }
      local key = tensor and parameter.key(tensor)
      if use and not by_key[key] then
        by_key[key] = {}
        groups[#groups + 1] = by_key[key]
      end
      if use then
        check_divides(use, world_size)
        table.insert(by_key[key], use)
      end
    end
  end
  return groups
end

-- A tied parameter is divided in one way.
local function check_tied(uses)
  for _, use in ipairs(uses) do
    if use.placement ~= uses[1].placement then
      local function text(placement)
        return placement and tostring(placement) or 'not divided'
      end
      errors.raise('ValueError', "%s: '%s' (%s) and '%s' (%s) are one parameter, expected equal "
        .. 'placements', WHAT, uses[1].name, text(uses[1].placement), use.name,
        text(use.placement))
    end
  end
end

-- Replace a parameter by this rank's part, under all its names.
local function divide(uses, mesh)
  local whole, placements = uses[1].tensor, { uses[1].placement }
  parameter.materialize(whole)
  local part = scope.keep(distribute.distribute_tensor(whole, mesh, placements):to_local())
  parameter.make(part)
  part:requires_grad_(whole:requires_grad())
  local divided = Divided(part, mesh, placements, whole:shape())
  for _, use in ipairs(uses) do
    use.entry.declared, use.entry.rule = nil, nil
    rawset(use.module, use.entry.name, part)
    tree.param(use.module, use.entry)
    tree.changed(use.module)
    table.insert(use.module._parallel, divided)
  end
end

local function parallelize(module, mesh, plan)
  local group, layers = mesh:get_group(), layers_of(module, plan)
  for _, layer in ipairs(layers) do
    check_layer(layer)
  end
  local all = uses_of(module, layers, group:size())
  for _, uses in ipairs(all) do
    check_tied(uses)
  end
  names.assign_names(tree.outermost(module)) -- they determine initial values
  for _, layer in ipairs(layers) do
    local style, forward = layer.style, layer.rule.forward
    rawset(layer.module, '_parallel', {})
    rawset(layer.module, 'forward', function(self, x)
      return forward(style, group, self, x)
    end)
  end
  for _, uses in ipairs(all) do
    if uses[1].placement then
      divide(uses, mesh)
    end
  end
  B.collect() -- the whole parameters
end

local parallel = {}

--- Divide the parameters of layers among the ranks of a mesh (tensor parallelism). Each parameter
--- becomes a plain one with this rank's part of the first rank's values; initial values are those
--- of the undivided model. Collective over the mesh. Divide before FSDP shards the model over
--- another dimension of the mesh, and before an optimizer is made.
---
---   local mesh = ms.dist.init_device_mesh('cpu', { 2, 2 }, { mesh_dim_names = { 'dp', 'tp' } })
---   ms.parallel.parallelize(model, mesh['tp'], {
---     ['layers.*.w1'] = ms.parallel.ColwiseParallel(),
---     ['layers.*.w2'] = ms.parallel.RowwiseParallel(),
---   })
---   model = ms.fsdp.FSDP(model, { device_mesh = mesh['dp'] })
---
---@generic M: ms.nn.Module
---@param module M
---@param mesh ms.dist.DeviceMesh  of one dimension
---@param plan table<string, ms.parallel.Style>|ms.parallel.Style  styles by paths of modules, in
---  which `*` is any name; or the style of the module itself
---@return M
function parallel.parallelize(module, mesh, plan)
  if not tree.is_module(module) then
    arguments.refuse(WHAT, 'module', module, 'a module')
  elseif meshes.checked(WHAT, mesh).ndim ~= 1 then
    errors.raise('ValueError', '%s: the mesh has %d dimensions, expected one of them, as '
      .. "mesh['tp']", WHAT, mesh.ndim)
  end
  without_jit.run(parallelize, module, mesh, checked_plan(plan))
  return module
end

return parallel
