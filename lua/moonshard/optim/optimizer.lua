--- The base class of optimizers: parameter groups, steps, gradients, state.
---
--- `opt.param_groups[i].lr` reads and writes a group's option; see moonshard.optim.group.

local arguments = require 'moonshard_ffi.arguments'
local capture = require 'moonshard.base.capture'
local class = require 'moonshard.base.class'
local zero_grad = require 'moonshard.autograd.zero_grad'
local errors = require 'moonshard.base.errors'
local finally = require 'moonshard.base.finally'
local members = require 'moonshard.dist.members'
local param_group = require 'moonshard.optim.group'
local parameter = require 'moonshard_ffi.parameter'
local runtime = require 'moonshard_ffi.optim'
local util = require 'moonshard.base.util'
local whole_state = require 'moonshard.optim.whole_state'

---@class ms.optim.Optimizer
---@field param_groups ms.optim.Group[]  changed only by add_param_group()
---@field defaults table  the options passed to the constructor, used for new groups
local Optimizer = class('optim.Optimizer')

Optimizer._is_optimizer = true
--- Name of the runtime's update rule, and its options. Set by rules.lua.
Optimizer.kind = ''
Optimizer.options = {}

-- -- groups --------------------------------------------------------------------------------------

-- Is the value a group, or meant to be one?
local function is_group(value)
  return arguments.noun(value) == 'a table'
end

-- A list of { params, options } from the constructor's first argument.
local function groups_of(self, params)
  local is_object = type(params) == 'table' and (params._name or params._is_module)
  if type(params) ~= 'table' or is_object then
    errors.raise('TypeError', 'params argument given to the optimizer should be an array of '
      .. 'tensors or of groups, but got %s%s', arguments.noun(params),
      is_object and '; write model:parameters()' or '')
  elseif #arguments.array(self._name, 'params', params) == 0 then
    errors.raise('ValueError', 'optimizer got an empty parameter list')
  end
  if not is_group(params[1]) then
    return { { params = params } }
  end
  for i, entry in ipairs(params) do
    if not is_group(entry) then
      errors.raise('TypeError', '%s: entry %d is no group, though the first one is', self._name, i)
    end
  end
  return params
end

-- Options of PyTorch that select a loop over parameters. They have no effect here: one call updates
-- all parameters.
local LOOPS = { foreach = 'flag', fused = 'flag' }

-- The options without those, which are checked.
local function without_loops(what, given)
  local out, loops = {}, {}
  for name, value in next, given do
    (LOOPS[name] and loops or out)[name] = value
  end
  errors.options(what, loops, LOOPS)
  if loops.foreach and loops.fused then
    errors.raise('RuntimeError', '`fused` and `foreach` cannot be `True` together.')
  end
  return out
end

local function check_given(self, given)
  local is_list = given.params == nil and given[1] ~= nil
  if not is_list then -- a misspelt key of a group gives a better message
    errors.options('a parameter group of ' .. self._name, given,
      { 'params', unpack(self.options) })
  end
  if given.params == nil then
    errors.raise('TypeError', '%s: the group has no params, expected '
      .. '{ params = model:parameters(), ... }', self._name)
  end
end

--- The parameters of all groups as a new list.
---@return ms.Tensor[]
function Optimizer:_params()
  local params = {}
  for _, group in ipairs(self.param_groups) do
    for _, param in ipairs(group.params) do
      params[#params + 1] = param
    end
  end
  return params
end

--- Append a parameter group.
---@param given { params: ms.Tensor[]|ms.Tensor, [string]: any }  its options override the defaults
function Optimizer:add_param_group(given)
  given = without_loops('add_param_group', arguments.list('add_param_group', 'group', given))
  check_given(self, given)
  local list = given.params
  given.params = nil
  if parameter.is_tensor(list) then
    list = { list }
  end
  list = parameter.originals(arguments.list('add_param_group', 'params', list))
  local index = runtime.add_group(self._handle, self.kind, list, util.merged(self.defaults, given))
  param_group.add(self, util.slice(list, 1), index)
end

-- -- making one ----------------------------------------------------------------------------------

---@param params ms.Tensor[]|table[]  parameters, or groups { params = ..., lr = ... }
---@param opts table?
function Optimizer:init(params, opts)
  if self.kind == '' then
    errors.raise('NotImplementedError', '%s has no update rule; use optim.AdamW or another one',
      self._name)
  end
  local options = type(opts) == 'table' and without_loops(self._name, opts) or opts
  self.defaults = util.merged(errors.options(self._name, options, self.options))
  self._handle = runtime.new(self.kind)
  self._stepped = false -- read by schedulers
  self.param_groups = param_group.list()
  for _, given in ipairs(groups_of(self, params)) do
    self:add_param_group(given)
  end
end

local function step(self)
  param_group.check(self)
  runtime.step(self._handle)
  self._stepped = true
end

Optimizer._after_step = false -- of `moonshard plan`: called after each step

--- Update this rank's elements of every parameter that has a gradient. If a device fails after some
--- have been updated, every later step raises until state is loaded into the optimizer.
function Optimizer:step()
  capture.step('optim.step', step, self)
  if Optimizer._after_step then
    Optimizer._after_step(self)
  end
end

local function zero(self, opts)
  if opts == nil then
    runtime.zero_grad(self._handle)
  else
    zero_grad(self:_params(), opts)
  end
end

--- Release the gradients of all parameters in all groups.
---@param opts? { set_to_none?: boolean }  default true; false fills them with zeros
function Optimizer:zero_grad(opts)
  capture.step('optim.zero_grad', zero, self, opts)
end

local function warn_of_one_rate(self)
  local groups = self.param_groups
  for i = 2, #groups do
    if groups[i].lr ~= groups[1].lr then
      return errors.warn('UserWarning', 'set_lr(lr) gives one rate to all groups, though theirs '
        .. 'differ: set_lr(lr, group) sets that of one', (members.of(self:_params())))
    end
  end
end

--- Set the learning rate of one group, or of all groups with a warning if their rates differ.
---@param lr number
---@param group? integer  from 1
function Optimizer:set_lr(lr, group)
  arguments.number('set_lr', 'lr', lr)
  if group ~= nil and not self.param_groups[group] then
    errors.raise('IndexError', '%s has %d parameter groups, got index %d', self._name,
      #self.param_groups, arguments.whole('set_lr', 'group', group))
  end
  if group == nil then
    warn_of_one_rate(self)
  end
  for i = group or 1, group or #self.param_groups do
    self.param_groups[i].lr = lr
  end
end

-- -- state ---------------------------------------------------------------------------------------

local function entry_of(self, i, group, names)
  local param, state = runtime.param(self._handle, i), {}
  for s, name in ipairs(names) do
    state[name] = runtime.state(self._handle, i, s)
  end
  return {
    name = parameter.name(param), param = param, group = group,
    steps = runtime.steps(self._handle, i), state = state,
  }
end

---@class ms.optim.Entry
---@field name string
---@field param ms.Tensor
---@field group ms.optim.Group
---@field steps integer  number of steps so far
---@field state table<string, ms.Tensor>  1-D over this rank's elements; absent if it has none yet

--- One entry for each parameter in order of addition, and the names of the states.
---@return ms.optim.Entry[]
---@return string[]
function Optimizer:_entries()
  local names, out = runtime.rules[self.kind].states, {}
  for _, group in ipairs(self.param_groups) do
    for _ = 1, #group.params do
      out[#out + 1] = entry_of(self, #out + 1, group, names)
    end
  end
  return out, names
end

---@class ms.optim.StateDict
---@field state { name: string, steps: integer, [string]: ms.Tensor }[]
---@field param_groups table[]  options, and `params`: indices into `state`

--- Copies of this rank's state, by parameter, and the options of the groups. Use
--- moonshard.checkpoint for state that moves to another number of ranks.
---@return ms.optim.StateDict
function Optimizer:state_dict()
  param_group.check(self)
  local entries, names = self:_entries()
  local state = {}
  for i, entry in ipairs(entries) do
    state[i] = { name = entry.name, steps = entry.steps }
    for _, name in ipairs(names) do
      state[i][name] = entry.state[name] and entry.state[name]:clone()
    end
  end
  return { state = state, param_groups = self:_group_options(function(i) return i end) }
end

--- Options of all groups, each with its `params`.
---@param of fun(i: integer): any  the representation of parameter i, in order of addition
---@return table[]
function Optimizer:_group_options(of)
  local out, before = {}, 0
  for g, entry in ipairs(self.param_groups) do
    out[g] = param_group.options(entry)
    out[g].params = {}
    for k = 1, #entry.params do
      out[g].params[k] = of(before + k)
    end
    before = before + #entry.params
  end
  return out
end

--- Check the options for _set_group_options().
function Optimizer:_check_group_options(groups)
  if #groups ~= #self.param_groups then
    errors.raise('ValueError', 'loaded state dict has a different number of parameter groups: '
      .. '%d, expected %d', #groups, #self.param_groups)
  end
  local another = runtime.new(self.kind)
  for i, group in ipairs(groups) do
    runtime.add_group(another, self.kind, {}, arguments.list('load', 'group ' .. i, group))
  end
end

-- Groups without parameters correspond by their order.
local function empty_ones(groups)
  local out = {}
  for _, group in ipairs(groups) do
    out[#out + 1] = #group.params == 0 and group or nil
  end
  return out
end

-- The saved group with exactly the parameters of `own`; with `partial`, parameters that are in no
-- group here are ignored.
local function group_with(what, groups, group_of, own, partial)
  local g, is_own = group_of[own.params[1]], {}
  for _, name in ipairs(own.params) do
    is_own[name] = true
    if group_of[name] == nil or group_of[name] ~= g then
      errors.raise('ValueError', "%s: '%s' is in %s of the loaded state%s; options go to the group "
        .. 'with the same parameters', what, name,
        group_of[name] and 'parameter group ' .. group_of[name] or 'no parameter group',
        g and g ~= group_of[name] and (", but '%s', of the same group here, is in group %d"):format(
          own.params[1], g) or '')
    end
  end
  for _, name in ipairs(groups[g].params) do
    if not is_own[name] and not partial then
      errors.raise('ValueError', "%s: parameter group %d of the loaded state has '%s', which the "
        .. "group of '%s' here does not have; options go to the group with the same parameters",
        what, g, name, own.params[1])
    end
  end
  return groups[g]
end

--- Order the groups of a saved optimizer like this one's, matched by their parameters. ValueError
--- that names a parameter if a group has no match.
---@param what string
---@param groups table[]  options, and `params`: names
---@param names string[]  of this optimizer's parameters, in order of addition
---@param partial? boolean  the saved groups may have more parameters
---@return table[]
function Optimizer:_match_groups(what, groups, names, partial)
  local group_of, out, empty = {}, {}, empty_ones(groups)
  for g, group in ipairs(groups) do
    for _, name in ipairs(group.params) do
      group_of[name] = g
    end
  end
  for i, own in ipairs(self:_group_options(function(k) return names[k] end)) do
    out[i] = #own.params > 0 and group_with(what, groups, group_of, own, partial)
      or table.remove(empty, 1) or errors.raise('ValueError', '%s: parameter group %d is empty, no '
        .. 'group of the loaded state is', what, i)
  end
  return out
end

--- Set the options of all groups, which _check_group_options() has checked. The format is that of
--- _group_options().
function Optimizer:_set_group_options(groups)
  for i, options in ipairs(groups) do
    param_group.set(self.param_groups[i], options)
  end
end

function Optimizer:_set_steps(i, steps)
  runtime.set_steps(self._handle, i, steps)
end

--- Is the state optional? SGD's momentum buffer is made by the first step with momentum, other
--- optional states by the option that needs them. They are kept then.
---@return boolean
function Optimizer:_is_later(state)
  return runtime.rules[self.kind].needs[state] ~= nil
end

--- The initial value of a state.
---@return number
function Optimizer:_first_value(state, group)
  local option = runtime.rules[self.kind].first[state]
  return option and group[option] or 0
end

--- Add or remove optional states of all parameters, so that a load finds exactly those that exist
--- in the checkpoint. In two steps, because the load may fail: memory is allocated now and freed
--- again by `undo`; states are removed by `after`.
---@param exists fun(state: string, i: integer): boolean  i: the parameter, in order of addition
function Optimizer:_await_later_states(exists, after, undo)
  local entries, states = self:_entries()
  for s, state in ipairs(states) do
    for i, entry in ipairs(self:_is_later(state) and entries or {}) do
      local set = function(on) runtime.set_state(self._handle, i, s, on) end
      if not exists(state, i) then
        after[#after + 1] = function() set(false) end
      elseif not entry.state[state] then
        undo[#undo + 1] = function() set(false) end
        set(true)
      end
    end
  end
end

-- Groups correspond by their order and must have the same number of parameters.
local function check_group(self, i, given)
  local what, name = 'load_state_dict', ('param_groups[%d]'):format(i)
  local options = util.merged(arguments.list(what, 'sd.' .. name, given))
  options.params = nil -- absent in tables made by hand
  errors.options(('%s of the state dict loaded into %s'):format(name, self._name), options,
    self.options)
  local own = self.param_groups[i]
  if own and given.params ~= nil
    and #arguments.list(what, ('sd.%s.params'):format(name), given.params) ~= #own.params then
    errors.raise('ValueError', "loaded state dict contains a parameter group that doesn't match "
      .. "the size of optimizer's group: group %d has %d parameters, expected %d", i,
      #given.params, #own.params)
  end
end

-- Number of elements that this rank has of a parameter or plain tensor, and the whole shape.
local function held(param)
  if parameter.is_parameter(param) then
    local _, extent = parameter.part(param)
    return extent.numel, extent.shape
  end
  return parameter.facts(param).numel, parameter.shape(param)
end

-- Check that the state of a parameter matches this rank's elements.
local function check_state(self, i, state)
  local what, place = 'load_state_dict', ('sd.state[%d]'):format(i)
  arguments.list(what, place, state)
  arguments.whole(what, place .. '.steps', state.steps, nil, 0)
  local param = runtime.param(self._handle, i)
  local numel, whole = held(param)
  for _, name in ipairs(runtime.rules[self.kind].states) do
    local given = state[name]
    local shape = given ~= nil and arguments.tensor(what, place .. '.' .. name, given):shape()
    if shape and (#shape ~= 1 or shape[1] ~= numel)
      or not shape and numel > 0 and not self:_is_later(name) then
      local label = parameter.name(param)
      errors.raise('ValueError', "loaded state dict: %s of parameter %s has %s, expected shape (%d)"
        .. ' for its shape (%s)', name, label ~= '' and ("'%s'"):format(label) or tostring(i),
        shape and ('shape (%s)'):format(table.concat(shape, ', ')) or 'nothing', numel,
        table.concat(whole, ', '))
    end
  end
end

-- Is the state keyed by names, as from optim_state_dict() of fsdp?
local function is_by_name(sd)
  for key in next, type(sd.state) == 'table' and sd.state or {} do
    if type(key) == 'string' then
      return true
    end
  end
end

-- Is the state keyed by numbers from 0, as from fsdp.rekey_optim_state_dict()?
local function is_by_id(sd)
  for _, group in ipairs(type(sd.param_groups) == 'table' and sd.param_groups or {}) do
    for _, id in ipairs(type(group) == 'table' and type(group.params) == 'table' and group.params
      or {}) do
      if id == 0 then
        return true
      end
    end
  end
  return false
end

-- Convert such a state to the format of state_dict(). Numbers in `params` of a group refer to its
-- parameters in order.
local function without_ids(self, sd)
  local what, out = 'load_state_dict', { state = {}, param_groups = sd.param_groups }
  arguments.list(what, 'sd.state', sd.state)
  local entries, states = self:_entries()
  for g, group in ipairs(self.param_groups) do
    local given = sd.param_groups[g]
    for k = 1, #group.params do
      local i, id = #out.state + 1, given and given.params[k]
      if id == nil then
        break -- check_group() or _check_group_options() raises then
      end
      local its = sd.state[id]
      if its ~= nil then
        arguments.list(what, ('sd.state[%s]'):format(id), its)
      end
      out.state[i] = whole_state.entry(self, entries[i], states, its,
        function(state, value, extent)
          return whole_state.elements(what, id, state, value, extent)
        end)
    end
  end
  return out
end

-- Check that the state is of an optimizer of the same kind over such parameters.
local function check_state_dict(self, sd)
  local what, n = 'load_state_dict', runtime.n_params(self._handle)
  arguments.list(what, 'sd', sd)
  if is_by_name(sd) then
    errors.raise('ValueError', '%s: the state goes by names of parameters; load what '
      .. 'fsdp.optim_state_dict_to_load(model, optim, sd) gives', what)
  end
  for i, given in ipairs(arguments.list(what, 'sd.param_groups', sd.param_groups)) do
    check_group(self, i, given)
  end
  if #arguments.list(what, 'sd.state', sd.state) ~= n then
    errors.raise('ValueError', 'loaded state dict has %d parameters, expected %d', #sd.state, n)
  end
  self:_check_group_options(sd.param_groups)
  for i, state in ipairs(sd.state) do
    check_state(self, i, state)
  end
end

-- Do all of a load that can fail: allocate state, which `undo` frees. Returns a function for the
-- rest.
local function prepare_load(self, sd, undo)
  local after = {}
  self:_await_later_states(function(state, i)
    return sd.state[i][state] ~= nil
  end, after, undo)
  local entries, names = self:_entries()
  for i, entry in ipairs(entries) do
    local given = sd.state[i]
    for _, name in ipairs(names) do
      local to, from = entry.state[name], given[name] and given[name]:detach()
      if to and from then -- `from` may lack empty states
        after[#after + 1] = function() to:copy_(from) end
      end
    end
    after[#after + 1] = function() self:_set_steps(i, given.steps) end
  end
  after[#after + 1] = function() self:_set_group_options(sd.param_groups) end
  return after
end

local function take_back(undo, ok)
  if not ok then
    for _, one in ipairs(undo) do
      one()
    end
  end
end

--- Load a state of state_dict(), on the same number of ranks. Groups and parameters correspond by
--- their order. Whole state keyed by numbers from 0, as from fsdp.rekey_optim_state_dict() with
--- 'PARAM_ID', is accepted too; parameters without state in it start with initial state. ValueError
--- if the state does not match; on any error nothing is changed.
---@param sd ms.optim.StateDict|table
function Optimizer:load_state_dict(sd)
  if is_by_id(arguments.list('load_state_dict', 'sd', sd)) then
    sd = without_ids(self, sd)
  end
  check_state_dict(self, sd)
  local undo = {}
  local after = finally.run(take_back, undo, prepare_load, self, sd, undo)
  for _, finish in ipairs(after) do
    finish()
  end
end

function Optimizer:__tostring()
  local lines = {}
  for i, entry in ipairs(self.param_groups) do
    lines[i] = '  ' .. tostring(entry):gsub('\n', '\n  ')
  end
  return ('%s(\n%s\n)'):format(self._name:match('[^.]*$'), table.concat(lines, '\n'))
end

return Optimizer
