--- Loss scaling (torch.amp.GradScaler). The loss is multiplied by a scale, so that small gradients
--- do not underflow in f16, and gradients are divided by it before the step. If a gradient is not
--- finite, the step is skipped and the scale decreases; after `growth_interval` steps without one
--- it increases.
---
---     scaler:scale(loss):backward()
---     scaler:step(opt)
---     scaler:update()

local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local class = require 'moonshard.base.class'
local create = require 'moonshard.base.create'
local dist = require 'moonshard.dist'
local errors = require 'moonshard.base.errors'
local members = require 'moonshard.dist.members'
local notes = require 'moonshard_ffi.notes'
local parameter = require 'moonshard_ffi.parameter'
local util = require 'moonshard.base.util'
local Optimizer = require 'moonshard.optim.optimizer'

---@class ms.amp.GradScaler
---@overload fun(opts?: ms.amp.GradScaler.Options): ms.amp.GradScaler
local GradScaler = class 'amp.GradScaler'

---@class ms.amp.GradScaler.Options
---@field init_scale? number  default 65536
---@field growth_factor? number  above 1 (default 2)
---@field backoff_factor? number  below 1 (default 0.5)
---@field growth_interval? integer  steps, default 2000
---@field enabled? boolean  false: all methods pass values through unchanged (default true)

GradScaler._options = {
  init_scale = 'number', growth_factor = 'number', backoff_factor = 'number',
  growth_interval = 'number', enabled = 'flag',
}

local SMALLEST = 2 ^ -126 -- the inverse of a smaller f32 scale is infinite
local LARGEST = 3.4028234663852886e38 -- the largest finite f32

local function check_scale(what, name, scale)
  if not (scale >= SMALLEST and scale <= LARGEST) then
    errors.raise('ValueError', '%s: %s is %g, expected %g to %g', what, name, scale, SMALLEST,
      LARGEST)
  end
end

local function check_factors(growth, backoff)
  if not (growth > 1 and growth < math.huge) then
    errors.raise('AssertionError', 'The growth factor must be > 1.0.')
  elseif not (backoff > 0 and backoff < 1) then
    errors.raise('AssertionError', 'The backoff factor must be < 1.0 and above 0.')
  end
end

---@param opts? ms.amp.GradScaler.Options
function GradScaler:init(opts)
  opts = errors.options(self._name, opts, self._options)
  self._enabled = opts.enabled ~= false
  self._scale = opts.init_scale or 65536
  self._growth_factor = opts.growth_factor or 2
  self._backoff_factor = opts.backoff_factor or 0.5
  self._growth_interval = arguments.whole(self._name, 'growth_interval', opts.growth_interval,
    2000, 1)
  self._growth_tracker = 0
  check_scale(self._name, 'init_scale', self._scale)
  check_factors(self._growth_factor, self._backoff_factor)
  self._states = setmetatable({}, { __mode = 'k' }) -- by optimizer, since the last update()
  self._found = {} -- one tensor for each optimizer
end

-- The group over which these parameters are sharded; nil: this rank decides on its own.
function GradScaler:_group_of(params)
  return (members.of(params))
end

local DEEPEST = 16 -- nesting of lists

local function scaled(self, outputs, depth)
  if parameter.is_tensor(outputs) then
    return outputs * self._scale
  elseif arguments.noun(outputs) ~= 'a table' then
    arguments.refuse('scale', 'outputs', outputs, 'a tensor or a list of them')
  elseif #arguments.array('scale', 'outputs', outputs) == 0 or depth > DEEPEST then
    errors.raise('ValueError', "scale: 'outputs' has a list that %s",
      depth > DEEPEST and 'stands in too many others' or 'is empty')
  end
  local out = {}
  for i, output in ipairs(outputs) do
    out[i] = scaled(self, output, depth + 1)
  end
  return out
end

--- Multiply a loss, or a nested list of losses, by the scale, in its dtype.
---@param outputs ms.Tensor|table
---@return ms.Tensor|table
function GradScaler:scale(outputs)
  if not self._enabled then
    return outputs
  end
  return scaled(self, outputs, 1)
end

local function check_optimizer(what, optimizer)
  if not util.is(optimizer, Optimizer) then
    arguments.refuse(what, 'optimizer', optimizer, 'an optimizer')
  end
end

-- The accumulated gradient of no_sync that grad() shows is not ready to be unscaled.
local function gradient_of(param)
  local grad = param:grad()
  if grad and not parameter.has_grad(param) then
    errors.raise('RuntimeError', 'unscale_: the gradient of %s was accumulated inside no_sync and '
      .. 'is not reduced yet; run the last backward outside no_sync, or with '
      .. 'set_requires_gradient_sync(true)', parameter.name(param))
  end
  return grad
end

-- Multiply in place. Returns a tensor () of the gradient's dtype: NaN if an element is not finite,
-- else 0.
local function unscale(grad, inverse)
  local values = grad * inverse
  grad:copy_(values)
  return (values - values):sum()
end

-- Whether any gradient on any rank is not finite: 1 or 0, f64, on the device.
local function unscale_all(self, optimizer)
  local params, inverse = optimizer:_params(), 1 / self._scale
  local group, found, n = self:_group_of(params), create.zeros({ 1 }, { dtype = 'f64' }), 0
  local grads = {}
  for _, param in ipairs(params) do
    grads[#grads + 1] = gradient_of(param)
  end
  for _, grad in ipairs(grads) do
    n = n + 1
    if grad:numel() > 0 then
      local odd = unscale(grad, inverse)
      found:add_(odd:ne(odd):to('f64'))
    end
  end
  if group then -- all ranks of the group have used one scale and decide alike
    notes.text(group, 'state of ' .. self._name, ('scale %.17g, factors %.17g and %.17g, %d of %d '
      .. 'steps to growth'):format(self._scale, self._growth_factor, self._backoff_factor,
      self._growth_tracker, self._growth_interval))
    dist.all_reduce(found, 'max', group)
  elseif n == 0 then
    return nil
  end
  return found
end

local FAILED = '%s: dividing the gradients has failed halfway; drop them (zero_grad), and make the '
  .. 'scaler forget (update(get_scale()))'

local function look(self, optimizer)
  self._states[optimizer] = { stage = 'failed' } -- if it fails, some may be divided
  local found = autograd.no_grad(unscale_all, self, optimizer)
  self._found[#self._found + 1] = found
  self._states[optimizer] = { stage = 'unscaled', found = found }
end

--- Divide the gradients of an optimizer's parameters by the scale, in place. Call it before
--- changing gradients, e.g. clipping; otherwise step() does it. Collective if parameters are
--- sharded, also on ranks without gradients. If it fails, some gradients may have been divided:
--- discard all.
---@param optimizer ms.optim.Optimizer
function GradScaler:unscale_(optimizer)
  check_optimizer('unscale_', optimizer)
  if not self._enabled then
    return
  end
  local state = self._states[optimizer]
  if state and state.stage == 'unscaled' then
    errors.raise('RuntimeError',
      'unscale_() has already been called on this optimizer since the last update().')
  elseif state and state.stage == 'failed' then
    errors.raise('RuntimeError', FAILED, 'unscale_')
  elseif state then
    errors.raise('RuntimeError', 'unscale_() is being called after step().')
  end
  look(self, optimizer)
end

--- Call optimizer:step() unless a gradient on any rank is not finite. Waits for the device.
---@param optimizer ms.optim.Optimizer
---@return boolean?  true if the optimizer has stepped
function GradScaler:step(optimizer)
  check_optimizer('step', optimizer)
  if not self._enabled then
    optimizer:step()
    return true
  end
  local state = self._states[optimizer]
  if state and state.stage == 'stepped' then
    errors.raise('RuntimeError', 'step() has already been called since the last update().')
  elseif state and state.stage == 'failed' then
    errors.raise('RuntimeError', FAILED, 'step')
  elseif not state then
    look(self, optimizer)
  end
  local found = self._states[optimizer].found
  if not found then
    self._states[optimizer] = nil
    errors.raise('AssertionError', 'No inf checks were recorded for this optimizer.')
  end
  local steps = found:item() == 0
  if steps then
    optimizer:step()
  end
  self._states[optimizer] = { stage = 'stepped', found = found }
  return steps or nil
end

local function follow(self, overflowed)
  if overflowed then
    self._scale = math.max(self._scale * self._backoff_factor, SMALLEST)
    self._growth_tracker = 0
    return
  end
  self._growth_tracker = self._growth_tracker + 1
  if self._growth_tracker == self._growth_interval then
    local grown = self._scale * self._growth_factor
    self._scale = grown <= LARGEST and grown or self._scale
    self._growth_tracker = 0
  end
end

--- Call after the steps of an iteration: update the scale from what they found, or set it to
--- `new_scale`.
---@param new_scale? number
function GradScaler:update(new_scale)
  if new_scale ~= nil then
    check_scale('update', 'new_scale', arguments.number('update', 'new_scale', new_scale))
  end
  if not self._enabled then
    return
  elseif new_scale ~= nil then
    self._scale = new_scale
  elseif #self._found == 0 then
    errors.raise('AssertionError', 'No inf checks were recorded prior to update.')
  else
    local overflowed = false
    for _, found in ipairs(self._found) do
      overflowed = found:item() > 0 or overflowed
    end
    follow(self, overflowed)
  end
  self._found, self._states = {}, setmetatable({}, { __mode = 'k' })
end

---@return number  1 if not enabled
function GradScaler:get_scale()
  return self._enabled and self._scale or 1
end

---@return boolean
function GradScaler:is_enabled()
  return self._enabled
end

local STATE = {
  scale = '_scale', growth_factor = '_growth_factor', backoff_factor = '_backoff_factor',
  growth_interval = '_growth_interval', _growth_tracker = '_growth_tracker',
}

--- Call it after update(). Empty if not enabled.
---@return table  scale, growth_factor, backoff_factor, growth_interval, _growth_tracker
function GradScaler:state_dict()
  local sd = {}
  for name, field in next, self._enabled and STATE or {} do
    sd[name] = self[field]
  end
  return sd
end

---@param sd table
function GradScaler:load_state_dict(sd)
  arguments.list('load_state_dict', 'sd', sd)
  if not self._enabled then
    return
  elseif next(sd) == nil then
    errors.raise('RuntimeError', 'The source state dict is empty, possibly because it was saved '
      .. 'from a disabled instance of GradScaler.')
  end
  for _, name in ipairs(util.sorted_keys(STATE)) do
    arguments.number('load_state_dict', 'sd.' .. name, sd[name])
  end
  check_scale('load_state_dict', 'sd.scale', sd.scale)
  check_factors(sd.growth_factor, sd.backoff_factor)
  arguments.whole('load_state_dict', 'sd.growth_interval', sd.growth_interval, nil, 1)
  arguments.whole('load_state_dict', 'sd._growth_tracker', sd._growth_tracker, nil, 0)
  for name, field in next, STATE do
    self[field] = sd[name]
  end
end

return GradScaler
