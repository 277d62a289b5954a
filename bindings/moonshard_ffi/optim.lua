--- Optimizers: a table around the runtime's ms_optim, which is freed with it.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'

local C, calls = B.C, B.calls

local optim = {}

local OPTIONS_BYTES = B.sizeof 'ms_optim_options'

---@class ms.optim.Rule
---@field kind integer
---@field options string[]
---@field states string[]  names of the state buffers that a parameter may have
---@field needs table<string, string>  the option that enables an optional state
---@field first table<string, string>  the option that gives a state's initial value; else 0

--- The runtime's optimizers by name.
---@type table<string, ms.optim.Rule>
optim.rules = {}
--- Names of the options of all optimizers.
---@type string[]
optim.names = {}

local known, fields = {}, {}

local function texts(list, n)
  local out = {}
  for i = 1, n do
    out[i] = list[i - 1] ~= nil and B.string(list[i - 1]) or nil
  end
  return out
end

-- "betas[1]" and "betas[2]" are one option.
local function add_option(rule, name)
  if rule.options[#rule.options] ~= name then
    table.insert(rule.options, name)
  end
  if not known[name] then
    known[name] = true
    table.insert(optim.names, name)
    if name ~= 'betas' then
      table.insert(fields, name)
    end
  end
end

for kind = 0, C.MS_OPTIM_COUNT - 1 do
  local row = B.new('ms_optim_rule')
  B.check(C.ms_optim_rule_get(row, kind))
  local rule = { kind = kind, options = {}, states = texts(row.state, 3), needs = {}, first = {} }
  for _, field in ipairs(texts(row.option, 7)) do
    add_option(rule, field:match '^[%w_]+')
  end
  local needs, first = texts(row.needs, 3), texts(row.first, 3)
  for s, state in ipairs(rule.states) do
    rule.needs[state], rule.first[state] = needs[s], first[s]
  end
  optim.rules[B.string(row.name)] = rule
end

---@param kind string  'AdamW'
function optim.new(kind)
  local out = B.new('ms_optim *[1]')
  B.check(C.ms_optim_new(out, optim.rules[kind].kind))
  return B.gc(out[0], C.ms_optim_free)
end

local function from_struct(o)
  local out = { betas = { o.beta1, o.beta2 } }
  for _, name in ipairs(fields) do
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

-- Write the named options to the struct.
local function overlay(o, given)
  for _, name in ipairs(fields) do
    if given[name] ~= nil then
      o[name] = expect(type(o[name]), name, given[name])
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
  B.check(C.ms_optim_options_init(o, OPTIONS_BYTES, optim.rules[kind].kind))
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
  return from_struct(options_of(handle, group))
end

--- Change options of a group. On ValueError they are unchanged.
function optim.set_options(handle, group, given)
  local o = options_of(handle, group)
  overlay(o, given)
  B.check(C.ms_optim_options_set(handle, group, o))
end

optim.step, optim.zero_grad = calls.optim_step, calls.optim_zero_grad

---@return integer
function optim.n_params(handle)
  return C.ms_optim_n_params(handle)
end

--- Parameter i (from 1) in order of addition.
function optim.param(handle, i)
  return calls.optim_param(handle, i - 1)
end

--- State buffer s of parameter i (both from 1): 1-D over the local elements, or nil.
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

--- Add or remove the optional state s of parameter i (both from 1).
---@param exists boolean
function optim.set_state(handle, i, s, exists)
  B.check(C.ms_optim_state_set(handle, i - 1, s - 1, exists))
end

--- Scale plain gradients to a maximum total norm. @return the norm before: a tensor, (), f64
function optim.clip(params, max_norm, norm_type, error_if_nonfinite)
  local refs, n = B.array(params, 'params')
  return calls.clip_grad_norm(refs, n, max_norm, norm_type, error_if_nonfinite)
end

return optim
