--- What all optimizers share: parameter groups, stepping, dropping gradients, their state.
---
--- A group's options live in the runtime; `opt.param_groups[i].lr` reads and writes them there, and
--- a bad value raises what torch.optim says and changes nothing.
---
--- Touches: moonshard.class, moonshard.errors, moonshard_ffi.optim.

local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.class'
local errors = require 'moonshard.errors'
local notes = require 'moonshard_ffi.notes'
local parameter = require 'moonshard_ffi.parameter'
local runtime = require 'moonshard_ffi.optim'
local receiver = require 'moonshard.receiver'
local util = require 'moonshard.util'

---@class ms.optim.Group  the optimizer's options as fields; setting one takes effect at once
---@field params ms.Tensor[]
---@field lr number
---@field weight_decay number

---@class ms.optim.Optimizer
---@field param_groups ms.optim.Group[]
local Optimizer = class('optim.Optimizer')

--- Kind of the runtime's update rule, and the options it knows; subclasses say.
Optimizer.kind = ''
Optimizer.options = {}

-- -- groups --------------------------------------------------------------------------------------

local Group = {}

function Group:__index(name)
  local optimizer = rawget(self, '_optimizer')
  if optimizer._known[name] then
    return runtime.options(optimizer._handle, rawget(self, '_index'))[name]
  end
end

function Group:__newindex(name, value)
  local optimizer = rawget(self, '_optimizer')
  if name == 'params' or not optimizer._known[name] then
    errors.options('a parameter group of ' .. optimizer._name, { [name] = value },
      optimizer.options)
    errors.raise('KeyError', "'%s' of a parameter group cannot be replaced", name)
  end
  runtime.set_options(optimizer._handle, rawget(self, '_index'), { [name] = value })
end

local function is_group(value)
  return type(value) == 'table' and value.params ~= nil
end

-- One list of { params, options } from what the constructor was given.
local function groups_of(self, params)
  if type(params) ~= 'table' then
    errors.raise('TypeError', 'params argument given to the optimizer should be an array of '
      .. 'tensors or of groups, but got a %s', type(params))
  elseif #params == 0 then
    errors.raise('ValueError', 'optimizer got an empty parameter list')
  end
  if not is_group(params[1]) then
    return { { params = params } }
  end
  for i, group in ipairs(params) do
    if not is_group(group) then
      errors.raise('TypeError', '%s: entry %d is no group, though the first one is', self._name, i)
    end
  end
  return params
end

--- Append a parameter group.
---@param group { params: ms.Tensor[]|ms.Tensor, [string]: any }  options override the defaults
function Optimizer:add_param_group(group)
  local list = arguments.list('add_param_group', 'group', group).params
  local given = util.merged(group)
  given.params = nil
  errors.options('a parameter group of ' .. self._name, given, self.options)
  if parameter.is_tensor(list) then
    list = { list }
  end
  local index = runtime.add_group(self._handle, self.kind, list, util.merged(self.defaults, given))
  self.param_groups[#self.param_groups + 1] =
    setmetatable({ params = list, _optimizer = self, _index = index }, Group)
end

-- -- making one ----------------------------------------------------------------------------------

---@param params ms.Tensor[]|table[]  parameters, or groups { params = ..., lr = ... }
---@param opts table?
function Optimizer:init(params, opts)
  if self.kind == '' then
    errors.raise('NotImplementedError', '%s has no update rule; use optim.SGD, Adam or AdamW',
      self._name)
  end
  self.defaults = util.merged(errors.options(self._name, opts, self.options))
  self._known = {}
  for _, name in ipairs(self.options) do
    self._known[name] = true
  end
  self._handle = runtime.new(self.kind)
  self.param_groups = {}
  for _, group in ipairs(groups_of(self, params)) do
    self:add_param_group(group)
  end
end

--- Update every parameter that has a gradient, on the elements this rank holds.
function Optimizer:step()
  runtime.step(self._handle)
end

--- Drop the gradients of all parameters in all groups.
---@param opts? { set_to_none?: boolean }  default true; false is not supported yet
function Optimizer:zero_grad(opts)
  if opts ~= nil then
    util.check_zero_grad(opts)
  end
  runtime.zero_grad(self._handle)
end

--- Set the learning rate of all groups, or of one.
---@param lr number
---@param group? integer  from 1
function Optimizer:set_lr(lr, group)
  arguments.number('set_lr', 'lr', lr)
  if group ~= nil and not self.param_groups[group] then
    errors.raise('IndexError', '%s has %d parameter groups, got index %d', self._name,
      #self.param_groups, arguments.whole('set_lr', 'group', group))
  end
  for i = group or 1, group or #self.param_groups do
    self.param_groups[i].lr = lr
  end
end

-- -- state ---------------------------------------------------------------------------------------

--- One entry per parameter, in order of addition: its name, steps taken, and its state buffers
--- (1-D over the elements this rank holds; absent where it holds none).
---@return { name: string, param: ms.Tensor, steps: integer, state: table<string, ms.Tensor> }[]
function Optimizer:_entries()
  local names, out = runtime.state_names(self._handle), {}
  for i = 1, runtime.n_params(self._handle) do
    local param, state = runtime.param(self._handle, i), {}
    for s, name in ipairs(names) do
      state[name] = runtime.state(self._handle, i, s)
    end
    out[i] = {
      name = parameter.name(param),
      param = param,
      steps = runtime.steps(self._handle, i),
      state = state,
    }
  end
  return out, names
end

---@class ms.optim.StateDict
---@field state { name: string, steps: integer, [string]: ms.Tensor }[]
---@field param_groups table[]

--- Copies of this rank's state, by parameter, and the groups' options. For state that moves between
--- numbers of ranks, see moonshard.checkpoint.
---@return ms.optim.StateDict
function Optimizer:state_dict()
  local entries, names = self:_entries()
  local state = {}
  for i, entry in ipairs(entries) do
    state[i] = { name = entry.name, steps = entry.steps }
    for _, name in ipairs(names) do
      state[i][name] = entry.state[name] and entry.state[name]:clone()
    end
  end
  return { state = state, param_groups = self:_group_options() }
end

function Optimizer:_group_options()
  local out = {}
  for i in ipairs(self.param_groups) do
    local all, group = runtime.options(self._handle, i - 1), {}
    for _, name in ipairs(self.options) do
      group[name] = all[name]
    end
    out[i] = group
  end
  return out
end

--- Set the options of all groups, as _group_options() gives them.
function Optimizer:_set_group_options(groups)
  if #groups ~= #self.param_groups then
    errors.raise('ValueError', 'loaded state dict has a different number of parameter groups: '
      .. '%d, expected %d', #groups, #self.param_groups)
  end
  for i, group in ipairs(groups) do
    runtime.set_options(self._handle, i - 1, group)
  end
end

function Optimizer:_set_steps(i, steps)
  runtime.set_steps(self._handle, i, steps)
end

-- Ranks that share parameters must load the state of one moment. A rank that holds nothing of a
-- parameter may have counted no steps of it, so the largest number stands for all.
local function note_loaded(self, entries, steps)
  for _, entry in ipairs(entries) do
    local manager = parameter.manager(entry.param)
    if manager then
      return notes.numbers(manager.process_group, 'state loaded into ' .. self.kind, 'steps',
        { steps })
    end
  end
end

--- Take over what state_dict() gave, on the same number of ranks.
---@param sd ms.optim.StateDict
function Optimizer:load_state_dict(sd)
  local entries, names = self:_entries()
  arguments.list('load_state_dict', 'sd', sd)
  arguments.list('load_state_dict', 'sd.param_groups', sd.param_groups)
  if #arguments.list('load_state_dict', 'sd.state', sd.state) ~= #entries then
    errors.raise('ValueError', 'loaded state dict has %d parameters, expected %d', #sd.state,
      #entries)
  end
  self:_set_group_options(sd.param_groups)
  local most = 0
  for i, entry in ipairs(entries) do
    most = math.max(most, sd.state[i].steps)
    for _, name in ipairs(names) do
      if entry.state[name] and sd.state[i][name] then
        entry.state[name]:copy_(sd.state[i][name])
      end
    end
    self:_set_steps(i, sd.state[i].steps)
  end
  note_loaded(self, entries, most)
end

function Optimizer:__tostring()
  local lines = {}
  for i, group in ipairs(self:_group_options()) do
    lines[#lines + 1] = ('  group %d (%d parameters)'):format(i, #self.param_groups[i].params)
    for _, name in ipairs(self.options) do
      local value = group[name]
      if type(value) == 'table' then
        value = ('(%g, %g)'):format(value[1], value[2])
      end
      lines[#lines + 1] = ('    %s: %s'):format(name, tostring(value))
    end
  end
  return ('%s(\n%s\n)'):format(self._name:match('[^.]*$'), table.concat(lines, '\n'))
end

return receiver.check(Optimizer)
