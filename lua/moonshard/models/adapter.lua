--- The adapter of a Decoder: low-rank adapters beside its linear layers, in files that the `peft`
--- package reads and writes.

local WeightFiles = require 'moonshard.checkpoint.weight_files'
local Writer = require 'moonshard.checkpoint.writer'
local adapter_config = require 'moonshard.models.adapter_config'
local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local errors = require 'moonshard.base.errors'
local finally = require 'moonshard.base.finally'
local lora = require 'moonshard.models.lora'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'
local without_jit = require 'moonshard.base.without_jit'

local adapter = {}

local matches = adapter_config.matches

-- -- which layers --------------------------------------------------------------------------------

local HEAD = 'lm_head'

-- Linear layers by path, and their paths in order.
local function linears(model)
  local out = {}
  for _, entry in ipairs(tree.walk(model)) do
    if lora.fits(entry.module) then
      out[#out + 1], out[entry.path] = entry.path, entry.module
    end
  end
  return out
end

local function ends_of(paths)
  local out = {}
  for _, path in ipairs(paths) do
    local name = path:match '[^.]*$'
    out[#out + 1], out[name] = not out[name] and name or nil, true
  end
  return out
end

-- The layers that the option `targets` names. A list has names and ends of paths, as in peft; a
-- string other than 'all-linear' is a pattern of the whole path.
local function chosen(what, paths, targets)
  local function refuse(value)
    errors.raise('ValueError', "%s: '%s' matches no linear layer, expected one of %s, or a path",
      what, value, table.concat(ends_of(paths), ', '))
  end
  local wanted, out = {}, {}
  for _, path in ipairs(paths) do
    wanted[path] = targets == 'all-linear' and path ~= HEAD
      or type(targets) == 'string' and path:find('^' .. targets .. '$') ~= nil
  end
  for _, name in ipairs(type(targets) == 'table' and targets or {}) do
    local found = false
    for _, path in ipairs(paths) do
      found = matches(name, path) or found
      wanted[path] = wanted[path] or matches(name, path)
    end
    if not found then
      refuse(name)
    end
  end
  for _, path in ipairs(paths) do
    out[#out + 1] = wanted[path] and path or nil
  end
  return #out > 0 and out or refuse(type(targets) == 'string' and targets or '')
end

-- The names for adapter_config.json: the last parts of the paths, if these choose the same layers,
-- else whole paths.
local function names_of(model, paths)
  local short, is_chosen = ends_of(paths), {}
  for _, path in ipairs(paths) do
    is_chosen[path] = true
  end
  for _, path in ipairs(linears(model)) do
    if short[path:match '[^.]*$'] and not is_chosen[path] then
      return paths
    end
  end
  return short
end

local function check_head(what, model, paths)
  local tied = model[model._body][model._embedding].weight
  for _, path in ipairs(paths) do
    if path == HEAD and rawequal(model.lm_head.weight, tied) then
      errors.raise('NotImplementedError', '%s: an adapter of %s is not supported if its weight is '
        .. 'that of the embedding', what, HEAD)
    end
  end
end

local function check_free(what, model)
  if #lora.below(model) > 0 then
    errors.raise('RuntimeError', '%s: the model has an adapter; merge_adapter() first', what)
  end
  for _, entry in ipairs(tree.walk(model)) do
    if tree.manager(entry.module) then
      errors.raise('RuntimeError', '%s: %s is sharded; add the adapter before sharding: '
        .. 'from_pretrained(path, { adapter = ..., wrap = ... })', what,
        tree.describe(entry.module))
    end
  end
end

-- Freeze the model, and put adapters beside its layers. `of(path)` returns the options of one.
local function attach(what, model, paths, of)
  check_free(what, model)
  check_head(what, model, paths)
  model:requires_grad_(false)
  local modules = linears(model)
  for _, path in ipairs(paths) do
    lora.attach(modules[path], of(path))
    modules[path].lora:train(model.training)
  end
end

---@class ms.models.AdapterOptions
---@field r? integer  inner width (default 8)
---@field alpha? number  the product is scaled by alpha / r (default 8)
---@field dropout? number  of the input of adapters, while training (default 0)
---@field targets? 'all-linear'|string|string[]  the layers: all but the head (default), names or
---  ends of paths, or a Lua pattern that matches whole paths
---@field rslora? boolean  scale by alpha / sqrt(r) (default false)
---@field dtype? ms.DType  of the adapters (default 'f32', whatever the model has)

local OPTIONS = {
  r = 'count', alpha = 'number', dropout = 'number', targets = 'any', rslora = 'flag',
  dtype = 'floating',
}

--- See Decoder:add_adapter().
---@param model ms.models.Decoder
---@param opts? ms.models.AdapterOptions
function adapter.add(model, opts)
  local what = 'add_adapter'
  opts = errors.options(what, opts, OPTIONS)
  local targets = opts.targets == nil and 'all-linear' or opts.targets
  if type(targets) ~= 'string' then
    for i, name in ipairs(arguments.array(what, 'targets', targets)) do
      arguments.text(what, ('targets[%d]'):format(i), name)
    end
  end
  local one = {
    r = arguments.whole(what, 'r', opts.r, 8, 1), alpha = opts.alpha or 8,
    dropout = opts.dropout or 0, rslora = opts.rslora or false, dtype = opts.dtype or 'f32',
  }
  local paths = chosen(what, linears(model), targets)
  without_jit.run(attach, what, model, paths, function() return one end)
end

-- -- files ---------------------------------------------------------------------------------------

local STEM = 'adapter_model'
local PREFIX = 'base_model.model.'

-- The name in files of the parameter that a model calls `<path>.lora.lora_A.weight`.
local function name_in_file(name)
  local path, matrix = name:match '^(.*)%.lora%.(lora_[AB]%.weight)$'
  return path and PREFIX .. path .. '.' .. matrix
end

-- The most frequent value of a field, and those that differ by path.
local function pattern_of(list, field)
  local counts, common, pattern = {}, nil, {}
  for _, entry in ipairs(list) do
    local value = entry.module[field]
    counts[value] = (counts[value] or 0) + 1
    common = common and counts[common] >= counts[value] and common or value
  end
  for _, entry in ipairs(list) do
    local value = entry.module[field]
    pattern[entry.path] = value ~= common and value or nil
  end
  return common, pattern
end

local function text_of(model, list)
  local paths = {}
  for i, entry in ipairs(list) do
    paths[i] = entry.path
  end
  local r, rank_pattern = pattern_of(list, 'r')
  local alpha, alpha_pattern = pattern_of(list, 'alpha')
  return adapter_config.text({
    r = r, alpha = alpha, dropout = list[1].module.dropout.p, rslora = list[1].module.rslora,
    targets = names_of(model, paths), rank_pattern = rank_pattern, alpha_pattern = alpha_pattern,
  }, model.source, lora.is_transposed(linears(model)[list[1].path]))
end

--- See Decoder:save_adapter().
---@param path string
---@param model ms.nn.Module  a Decoder, or a wrapper around one
function adapter.save(path, model, opts)
  local what = 'save_adapter'
  arguments.text(what, 'path', path)
  opts = errors.options(what, opts, { process_group = 'group' })
  local list = lora.below(model)
  if #list == 0 then
    errors.raise('RuntimeError', '%s: the model has no adapter, call add_adapter() before', what)
  end
  local text, weights = text_of(model, list), {}
  local writer = Writer(what, path, model, opts.process_group)
  for _, p in ipairs(tree.prepared_params(model)) do
    local name = name_in_file(p.name)
    weights[#weights + 1] = name and {
      name = name, numel = util.product(p.shape), dtype = p.tensor:dtype(),
      value = function() return p.tensor:full_tensor():detach() end,
    } or nil
  end
  WeightFiles.write(path, writer, weights, math.huge, STEM)
  writer:run(function() adapter_config.write(path, text) end)
end

local MATRICES = { '.lora_A.weight', '.lora_B.weight' }

-- The path of the layer of a tensor, or nil.
local function path_of(name)
  for _, matrix in ipairs(MATRICES) do
    if name:sub(1, #PREFIX) == PREFIX and name:sub(-#matrix) == matrix then
      return name:sub(#PREFIX + 1, -#matrix - 1)
    end
  end
end

-- Tensors of features that are not supported, by parts of their names.
local FEATURES = {
  { 'lora_embedding_', 'an adapter of an embedding' },
  { 'lora_magnitude_vector', 'DoRA' },
  { '%.lora_B%.bias$', 'a bias of an adapter' },
  { 'modules_to_save', 'modules_to_save' },
}

local function check_tensors(files, modules)
  local unexpected, matched = {}, 0
  for _, name in ipairs(files.names) do
    for _, feature in ipairs(FEATURES) do
      if name:find(feature[1]) then
        errors.raise('NotImplementedError', "%s: '%s' belongs to %s, which is not supported",
          files.path, name, feature[2])
      end
    end
    local path = path_of(name)
    if path and modules[path] then
      matched = matched + 1
    else
      unexpected[#unexpected + 1] = name
    end
  end
  local example = PREFIX .. modules[1] .. MATRICES[1]
  if #files.names == 0 then
    errors.raise('KeyError', "%s: has no tensors, expected names such as '%s'", files.path, example)
  elseif matched == 0 then
    errors.raise('KeyError', "%s: none of its %d tensors belongs to a linear layer of the model: "
      .. "it has %s, expected names such as '%s'", files.path, #files.names,
      util.listed(unexpected, 2), example)
  elseif #unexpected > 0 then
    errors.raise('KeyError', '%s: has %s, which belong to no linear layer of the model', files.path,
      util.listed(unexpected, 4))
  end
end

-- The layers of the files, in the model's order. Those that the config names must be there.
local function layers_of(files, modules, config)
  local out, missing = {}, {}
  local all = type(config.targets) == 'table' and not config.some_layers
  for _, path in ipairs(modules) do
    local has, expected = false, false
    for _, matrix in ipairs(MATRICES) do
      has = files:has(PREFIX .. path .. matrix) or has
    end
    for _, name in ipairs(all and config.targets or {}) do
      expected = expected or matches(name, path)
    end
    out[#out + 1] = has and path or nil
    for _, matrix in ipairs((has or expected) and MATRICES or {}) do
      local name = PREFIX .. path .. matrix
      missing[#missing + 1] = not files:has(name) and name or nil
    end
  end
  if #missing > 0 then
    errors.raise('KeyError', '%s: has no %s, which the adapter needs', files.path,
      util.listed(missing, 4))
  end
  return out
end

local function options_of(config, from, path, dtype)
  return {
    r = adapter_config.lookup(from, config.rank_pattern, path, config.r),
    alpha = adapter_config.lookup(from, config.alpha_pattern, path, config.alpha),
    dropout = config.dropout, rslora = config.rslora, dtype = dtype, init = { kind = 'none' },
  }
end

-- A model that has an adapter keeps it, if the files have the same one.
local function check_equal(what, list, paths, of)
  local function refuse(path, has, expected)
    errors.raise('ValueError', "%s: the adapter in the files differs from the model's: '%s' has %s "
      .. 'in the files, %s in the model', what, path, has, expected)
  end
  local wanted = {}
  for _, path in ipairs(paths) do
    wanted[path] = true
  end
  for _, entry in ipairs(list) do
    if not wanted[entry.path] then
      refuse(entry.path, 'no adapter', 'one')
    end
    wanted[entry.path] = nil
    local opts = of(entry.path)
    for _, field in ipairs { 'r', 'alpha', 'rslora' } do
      if opts[field] ~= entry.module[field] then
        refuse(entry.path, ('%s %s'):format(field, tostring(opts[field])),
          tostring(entry.module[field]))
      end
    end
  end
  for _, path in ipairs(paths) do
    if wanted[path] then
      refuse(path, 'an adapter', 'none')
    end
  end
end

local function prepare(what, model, files, config, from, dtype)
  local modules, list = linears(model), lora.below(model)
  check_tensors(files, modules)
  local paths = layers_of(files, modules, config)
  local function of(path)
    return options_of(config, from, path, dtype)
  end
  if #list > 0 then
    check_equal(what, list, paths, of)
  else
    without_jit.run(attach, what, model, paths, of)
  end
end

local function with_files(path, fn, ...)
  local files = WeightFiles(path, STEM)
  return finally.run(function() files:close() end, nil, fn, files, ...)
end

--- Put the adapter of a folder beside the model's layers, without its values.
---@param what string
---@param model ms.models.Decoder
---@param path string
---@param dtype? ms.DType
function adapter.prepare(what, model, path, dtype)
  local config, from = adapter_config.read(path)
  with_files(path, function(files)
    prepare(what, model, files, config, from, dtype or 'f32')
  end)
end

--- Read the values of the adapter. Collective if it is sharded.
---@param model ms.nn.Module
---@param path string
function adapter.read(model, path)
  with_files(path, function(files)
    files:load(model, name_in_file, function() return false end)
  end)
end

-- -- merging -------------------------------------------------------------------------------------

--- See Decoder:merge_adapter().
---@param model ms.models.Decoder
function adapter.merge(model)
  local list = lora.below(model:materialize())
  if #list == 0 then
    errors.raise('RuntimeError', 'merge_adapter: the model has no adapter')
  end
  for _, entry in ipairs(tree.walk(model)) do
    if tree.manager(entry.module) then
      errors.raise('RuntimeError', 'merge_adapter: %s is sharded; save_pretrained(path, { merge = '
        .. 'true }) writes the merged model', tree.describe(entry.module))
    end
  end
  local modules = linears(model)
  autograd.no_grad(function()
    for _, entry in ipairs(list) do
      local linear, its = modules[entry.path], entry.module
      linear.weight:copy_(lora.merged(linear.weight, its.lora_A.weight, its.lora_B.weight, its,
        lora.is_transposed(linear)))
      lora.detach(linear)
    end
  end)
  model:requires_grad_(true)
end

--- Add the adapter to the weights of a model, sharded or not, and keep it without effect, so that
--- the model computes what the merged one does. Collective.
---@param model ms.models.Decoder
function adapter.fold(model)
  local modules = linears(model)
  for _, entry in ipairs(lora.below(model)) do
    local linear, its = modules[entry.path], entry.module
    model:load_state_dict({ [entry.path .. '.weight'] = lora.merged(linear.weight:full_tensor(),
      its.lora_A.weight:full_tensor(), its.lora_B.weight:full_tensor(), its,
      lora.is_transposed(linear)) }, { strict = false })
    its.scale = 0
  end
end

return adapter
