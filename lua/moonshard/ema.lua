--- Exponential moving averages of a model's parameters. Each rank averages its own elements.
---
---   local ema = ms.ema(model, 0.999)
---   ... opt:step(); ema:update()
---   ema:apply(function() return evaluate(model) end)
---
--- Nothing is gathered, and the bits do not depend on the sharding strategy and number of ranks.

local ShardedTensor = require 'moonshard.dist.sharded_tensor'
local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local class = require 'moonshard.base.class'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'
local finally = require 'moonshard.base.finally'
local parameter = require 'moonshard_ffi.parameter'
local scope = require 'moonshard.base.scope'
local state_dict = require 'moonshard.nn.state_dict'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'

---@class ms.ema
---@field decay number
---@field n_averaged integer  updates so far
---@overload fun(model: ms.nn.Module, decay?: number): ms.ema
local EMA = class('ema')

local HALF = { f16 = true, bf16 = true }

---@class ms.ema.Entry
---@field name string
---@field extent ms.Extent  of this rank's elements
---@field average ms.Tensor?  (elements of this rank); nil if empty
---@field param ms.Tensor

-- f16 and bf16 averages would not change by small steps.
local function average_of(part)
  return scope.keep(HALF[part:dtype()] and part:to('f32') or part:clone())
end

local function entry_of(p)
  local part, extent = parameter.part(p.tensor)
  return {
    name = p.name, param = p.tensor, extent = extent, average = part and average_of(part) or nil,
  }
end

local function start(self, model)
  for i, p in ipairs(tree.prepared_params(model:materialize())) do
    self._entries[i] = entry_of(p)
  end
  for i, b in ipairs(state_dict.buffers(model)) do
    self._buffers[i] = { name = b.name, value = scope.keep(b.entry:uncast():clone()) }
  end
end

--- Averages of all parameters of a model, including frozen ones, and copies of its persistent
--- buffers. They start from the current values, in f32 for f16 and bf16 parameters. Wrap the model
--- first; the first use of a wrapped model is collective.
---@param model ms.nn.Module
---@param decay? number  0 to 1 (default 0.999)
function EMA:init(model, decay)
  if not tree.is_module(model) then
    arguments.refuse('ms.ema', 'model', model, 'a module')
  end
  decay = arguments.number('ms.ema', 'decay', decay, 0.999)
  if not (decay >= 0 and decay <= 1) then
    errors.raise('ValueError', "ms.ema: 'decay' is %g, expected 0 to 1", decay)
  end
  self.decay, self.n_averaged = decay, 0
  self._model, self._entries, self._buffers, self._applied = model, {}, {}, false
  autograd.no_grad(scope.run, 'ms.ema', start, self, model)
end

-- Call `fn(entry, part, tensor)` for each parameter of which this rank has elements.
local function each_part(self, what, fn)
  local params = tree.prepared_params(self._model)
  if #params ~= #self._entries then
    errors.raise('RuntimeError', '%s: the model has %d parameters, expected %d as when the '
      .. 'averages began', what, #params, #self._entries)
  end
  for i, p in ipairs(params) do
    local entry, part, extent = self._entries[i], parameter.part(p.tensor)
    if p.name ~= entry.name or extent.start ~= entry.extent.start
      or extent.numel ~= entry.extent.numel then
      errors.raise('RuntimeError', "%s: parameter %d is '%s' with elements %d to %d here, expected "
        .. "'%s' with %d to %d as when the averages began; make them after the model is wrapped",
        what, i, p.name, extent.start + 1, extent.start + extent.numel, entry.name,
        entry.extent.start + 1, entry.extent.start + entry.extent.numel)
    elseif part then
      fn(entry, part, p.tensor)
    end
  end
end

-- Rounds as torch.lerp(average, value, 1 - decay).
local function blend(average, value, decay)
  local difference = value - average
  if 1 - decay < 0.5 then
    average:add_(difference, 1 - decay)
  else
    average:copy_(value - difference * decay)
  end
end

local function copy_buffers(self)
  for i, b in ipairs(state_dict.buffers(self._model)) do
    self._buffers[i].value:copy_(b.entry:uncast())
  end
end

local function update(self)
  each_part(self, 'ema:update', function(entry, part)
    local value = part:to(entry.average:dtype())
    if self.n_averaged == 0 then
      entry.average:copy_(value)
    else
      blend(entry.average, value, self.decay)
    end
  end)
  copy_buffers(self)
  self.n_averaged = self.n_averaged + 1
end

local function check_not_applied(self, what)
  if self._applied then
    errors.raise('RuntimeError', '%s: the model has the averages now, inside of apply()', what)
  end
end

--- Update the averages: average = decay * average + (1 - decay) * parameter. The first update
--- copies, as in torch.optim.swa_utils.AveragedModel; buffers are always copied.
---@return self
function EMA:update()
  check_not_applied(self, 'ema:update')
  autograd.no_grad(scope.run, 'ema:update', update, self)
  return self
end

-- -- applied to the model ------------------------------------------------------------------------

local function write_buffers(self, values)
  for i, b in ipairs(state_dict.buffers(self._model)) do
    b.entry:prepare_load(values[i])()
  end
end

local function write_averages(self, backup)
  each_part(self, 'ema:apply', function(entry, part, tensor)
    backup.parts[entry.name] = scope.keep(part:clone())
    part:copy_(entry.average:to(part:dtype()))
    parameter.touch(tensor)
  end)
  local values = {}
  for i, b in ipairs(state_dict.buffers(self._model)) do
    backup.buffers[i], values[i] = scope.keep(b.entry:uncast():clone()), self._buffers[i].value
  end
  write_buffers(self, values)
end

local function write_backup(self, backup)
  each_part(self, 'ema:apply', function(entry, part, tensor)
    if backup.parts[entry.name] then
      part:copy_(backup.parts[entry.name])
      parameter.touch(tensor)
    end
  end)
  if #backup.buffers == #self._buffers then
    write_buffers(self, backup.buffers)
  end
end

local function restore(backup)
  local self = backup.ema
  autograd.no_grad(scope.run, 'ema:apply', write_backup, self, backup)
  self._applied = false
end

local function applied(backup, fn, ...)
  autograd.no_grad(scope.run, 'ema:apply', write_averages, backup.ema, backup)
  return fn(...)
end

--- Run `fn(...)` with the averages in the model, for evaluation or export. Afterwards, also after
--- an error, parameters and buffers get their values back, so values that fn writes are lost.
---@param fn fun(...): ...
---@return ...
function EMA:apply(fn, ...)
  arguments.fn('ema:apply', 'fn', fn)
  check_not_applied(self, 'ema:apply')
  self._applied = true
  local backup = { ema = self, parts = {}, buffers = {} }
  return finally.run(restore, backup, applied, backup, fn, ...)
end

-- -- state ---------------------------------------------------------------------------------------

local function value_of(entry)
  local shape, average = entry.extent.shape, entry.average
  local dtype = HALF[entry.extent.dtype] and 'f32' or entry.extent.dtype
  local manager = parameter.manager(entry.param)
  if manager and manager.sharding_strategy ~= 'NO_SHARD' then
    return manager:_sharded(entry.param, average, dtype)
  end
  return average and average:reshape(shape) or create.zeros(shape, { dtype = dtype })
end

---@class ms.ema.State
---@field n_averaged integer
---@field params table<string, ms.Tensor|ms.dist.ShardedTensor>  by name; they share memory
---@field buffers table<string, ms.Tensor>

--- The averages; for sharded parameters this rank's elements. ms.checkpoint.save { ema = ema }
--- saves them for any number of ranks.
---@return ms.ema.State
function EMA:state_dict()
  local sd = { n_averaged = self.n_averaged, params = {}, buffers = {} }
  for _, entry in ipairs(self._entries) do
    sd.params[entry.name] = value_of(entry)
  end
  for _, b in ipairs(self._buffers) do
    sd.buffers[b.name] = b.value
  end
  return sd
end

--- The model's parameters, which determine the group of a checkpoint.
---@return ms.Tensor[]
function EMA:_params()
  local params = {}
  for i, p in ipairs(tree.prepared_params(self._model)) do
    params[i] = p.tensor
  end
  return params
end

-- This rank's elements of a value, which must have this extent.
local function elements_of(what, name, value, entry)
  local extent = entry.extent
  local is_sharded = util.is(value, ShardedTensor)
  if not is_sharded and not parameter.is_tensor(value) then
    arguments.refuse(what, name, value, 'a tensor')
  elseif table.concat(value:shape(), ' ') ~= table.concat(extent.shape, ' ') then
    errors.raise('ValueError', "%s: '%s' has shape (%s), expected (%s)", what, name,
      table.concat(value:shape(), ', '), table.concat(extent.shape, ', '))
  end
  local elements = is_sharded and value:_elements_of(what, extent)
  return extent.numel > 0 and (elements
    or value:detach():reshape(-1):narrow(1, extent.start + 1, extent.numel)) or nil
end

-- Check that `given` and the list have the same names.
local function check_names(what, noun, given, list)
  local known = {}
  for _, entry in ipairs(list) do
    known[entry.name] = true
    if arguments.list(what, noun, given)[entry.name] == nil then
      errors.raise('KeyError', "%s: '%s' has no '%s'", what, noun, entry.name)
    end
  end
  for _, name in ipairs(util.sorted_keys(given)) do
    if not known[name] then
      errors.raise('KeyError', "%s: '%s' has '%s', which the model has not", what, noun, name)
    end
  end
end

local function load(self, sd)
  local what, writes = 'ema:load_state_dict', {}
  for _, entry in ipairs(self._entries) do
    local elements = elements_of(what, entry.name, sd.params[entry.name], entry)
    if elements then
      writes[#writes + 1] = { entry.average, elements }
    end
  end
  for _, b in ipairs(self._buffers) do
    local whole = { extent = { start = 0, shape = b.value:shape(), numel = b.value:numel() } }
    local elements = elements_of(what, b.name, sd.buffers[b.name], whole)
    if elements then
      writes[#writes + 1] = { b.value, elements:reshape(b.value:shape()) }
    end
  end
  for _, write in ipairs(writes) do
    write[1]:copy_(write[2])
  end
  self.n_averaged = sd.n_averaged
end

--- Load a state, all of it or, on an error, nothing. From full tensors, and from sharded ones of
--- any sharding, each rank takes its elements. Collective for ShardedTensors.
---@param sd ms.ema.State
function EMA:load_state_dict(sd)
  check_not_applied(self, 'ema:load_state_dict')
  arguments.list('ema:load_state_dict', 'sd', sd)
  arguments.whole('ema:load_state_dict', 'n_averaged', sd.n_averaged, nil, 0)
  check_names('ema:load_state_dict', 'params', sd.params, self._entries)
  check_names('ema:load_state_dict', 'buffers', sd.buffers, self._buffers)
  autograd.no_grad(scope.run, 'ema:load_state_dict', load, self, sd)
end

function EMA:__tostring()
  return ('ema(decay=%g, n_averaged=%d)'):format(self.decay, self.n_averaged)
end

return EMA
