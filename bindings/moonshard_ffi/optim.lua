--- Optimizers: a record around the runtime's ms_optim, freed with it.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'

local C, calls = B.C, B.calls

local optim = {}

local OPTIONS_BYTES = B.sizeof 'ms_optim_options'
local KINDS = { SGD = 0, Adam = 1, AdamW = 2, RMSprop = 3, Adagrad = 4, Lion = 5 }

-- Names of options in scripts, and in the runtime's struct.
local NUMBERS = {
  'lr', 'momentum', 'dampening', 'weight_decay', 'eps', 'alpha', 'lr_decay',
  'initial_accumulator_value',
}
local FLAGS = { 'nesterov', 'maximize', 'amsgrad', 'centered' }

--- All of them.
optim.names = { 'betas', unpack(NUMBERS) }
for _, name in ipairs(FLAGS) do
  table.insert(optim.names, name)
end

---@param kind 'SGD'|'Adam'|'AdamW'|'RMSprop'|'Adagrad'|'Lion'
function optim.new(kind)
  local out = B.new('ms_optim *[1]')
  B.check(C.ms_optim_new(out, KINDS[kind]))
  return B.gc(out[0], C.ms_optim_free)
end

--- Defaults of a kind as a Lua table.
function optim.defaults(kind)
  local o = B.new('ms_optim_options')
  B.check(C.ms_optim_options_init(o, OPTIONS_BYTES, KINDS[kind]))
  return optim.from_struct(o)
end

function optim.from_struct(o)
  local out = { betas = { o.beta1, o.beta2 } }
  for _, name in ipairs(NUMBERS) do
    out[name] = o[name]
  end
  for _, name in ipairs(FLAGS) do
    out[name] = o[name]
  end
  return out
end

local function expect(kind, name, value)
  if type(value) ~= kind then
    B.errors.raise('TypeError', '%s is %s, expected a %s', name, arguments.noun(value), kind)
  end
  return value
end

-- Write what `given` names over the struct.
local function overlay(o, given)
  for _, name in ipairs(NUMBERS) do
    if given[name] ~= nil then
      o[name] = expect('number', name, given[name])
    end
  end
  for _, name in ipairs(FLAGS) do
    if given[name] ~= nil then
      o[name] = expect('boolean', name, given[name])
    end
  end
  if given.betas ~= nil then
    if #arguments.array('optimizer', 'betas', given.betas) ~= 2 then
      B.errors.raise('ValueError', 'betas are %d numbers, expected 2', #given.betas)
    end
    o.beta1 = expect('number', 'betas[1]', given.betas[1])
    o.beta2 = expect('number', 'betas[2]', given.betas[2])
  end
end

--- Append a group. @return its index, from 0
function optim.add_group(handle, kind, params, options)
  local o = B.new('ms_optim_options')
  local index = B.new('int32_t[1]')
  B.check(C.ms_optim_options_init(o, OPTIONS_BYTES, KINDS[kind]))
  overlay(o, options)
  local refs, n = B.array(arguments.array('params', 'list', params), 'params')
  calls.optim_add_group(handle, refs, n, o, index)
  return index[0]
end

local function options_of(handle, group)
  local o = B.new('ms_optim_options')
  o.struct_size = OPTIONS_BYTES
  B.check(C.ms_optim_options_get(handle, group, o))
  return o
end

--- Options of a group as a Lua table.
function optim.options(handle, group)
  local o = options_of(handle, group)
  return optim.from_struct(o)
end

--- Change options of a group. ValueError leaves them as they were.
function optim.set_options(handle, group, given)
  local o = options_of(handle, group)
  overlay(o, given)
  B.check(C.ms_optim_options_set(handle, group, o))
end

function optim.step(handle)
  B.check(C.ms_optim_step(handle))
end

function optim.zero_grad(handle)
  B.check(C.ms_optim_zero_grad(handle))
end

---@return integer
function optim.n_params(handle)
  return C.ms_optim_n_params(handle)
end

---@return string[]  names of the buffers a parameter may have
function optim.state_names(handle)
  local names = {}
  for s = 1, C.ms_optim_n_states(handle) do
    names[s] = B.string(C.ms_optim_state_name(handle, s - 1))
  end
  return names
end

--- Parameter i (from 1) in order of addition.
function optim.param(handle, i)
  return calls.optim_param(handle, i - 1)
end

--- State buffer s of parameter i (both from 1): 1-D over the local elements; nil when it has none.
function optim.state(handle, i, s)
  return calls.optim_state(handle, i - 1, s - 1)
end

local steps = B.new('int64_t[1]')

---@return integer
function optim.steps(handle, i)
  B.check(C.ms_optim_steps(handle, i - 1, steps))
  return tonumber(steps[0])
end

function optim.set_steps(handle, i, n)
  B.check(C.ms_optim_steps_set(handle, i - 1, n))
end

--- Give parameter i its optional state s (both from 1), or remove it.
---@param exists boolean
function optim.set_state(handle, i, s, exists)
  B.check(C.ms_optim_state_set(handle, i - 1, s - 1, exists))
end

--- Scale plain gradients to a total norm. @return the norm before: a tensor, (), f64
function optim.clip(params, max_norm, norm_type, error_if_nonfinite)
  local refs, n = B.array(params, 'params')
  return calls.clip_grad_norm(refs, n, max_norm, norm_type, error_if_nonfinite)
end

return optim
