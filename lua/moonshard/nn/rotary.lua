--- Rotary positions (arXiv:2104.09864): position p turns the pair of elements i and i + D / 2 of a
--- head by the angle p f_i. Models differ in their frequencies f_i.
---
--- Frequencies and angles are f32 in every model, as in the programs that trained the published
--- weights; only cosines and sines are cast.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local class = require 'moonshard.base.class'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'
local json = require 'moonshard.base.json'
local ops = require 'moonshard.ops'
local scope = require 'moonshard.base.scope'
local util = require 'moonshard.base.util'

--- Tables for ops.rotary():
---
---     local rotary = ms.nn.Rotary(64, { rope_theta = 500000 })
---     local cos, sin = rotary:tables(length, q:dtype(), 0)
---     q, k = ops.rotary(q, cos, sin), ops.rotary(k, cos, sin)   -- (B, T, H, 64)
---@class ms.nn.Rotary
---@field frequencies number[]  D / 2
---@field factor number  of cosines and sines
---@overload fun(width: integer, parameters?: table): ms.nn.Rotary
---@field _tables table<string, { length: integer, cos: ms.Tensor, sin: ms.Tensor }>  by dtype
local Rotary = class('nn.Rotary')

-- -- frequencies by kind -------------------------------------------------------------------------

local single = B.new('float[1]')

local function f32(x)
  single[0] = x
  return single[0]
end

-- 1 / theta^(2 i / width), i from 0. Each step is rounded to f32, as where the published weights
-- were trained: at position 8,192 an exact f_i would differ by 0.002 in the angle.
local function plain(theta, width)
  local list = {}
  for i = 1, width / 2 do
    list[i] = f32(1 / f32(theta ^ f32(2 * (i - 1) / width)))
  end
  return list
end

local function mapped(list, fn)
  local out = {}
  for i, f in ipairs(list) do
    out[i] = fn(f, i)
  end
  return out
end

local kinds = {}

function kinds.default(list)
  return list
end

function kinds.linear(list, p)
  return mapped(list, function(f) return f / p.factor end)
end

-- Long wavelengths are stretched, short ones kept, those between are mixed.
function kinds.llama3(list, p)
  local original, low, high = p.original_max_position_embeddings, p.low_freq_factor,
    p.high_freq_factor
  return mapped(list, function(f)
    local turns = original * f / (2 * math.pi)
    local share = math.min(math.max((turns - low) / (high - low), 0), 1)
    return (1 - share) * f / p.factor + share * f
  end)
end

local function growth(scale, factor)
  return factor <= 1 and 1 or 0.1 * scale * math.log(factor) + 1
end

-- arXiv:2309.00071; beta_fast and beta_slow are turns over the original length.
function kinds.yarn(list, p)
  local width = 2 * #list
  local function index(turns)
    return width * math.log(p.original_max_position_embeddings / (turns * 2 * math.pi))
      / (2 * math.log(p.rope_theta))
  end
  local low, high = index(p.beta_fast), index(p.beta_slow)
  if p.truncate then
    low, high = math.floor(low), math.ceil(high)
  end
  low, high = math.max(low, 0), math.min(high, width - 1)
  high = high == low and high + 0.001 or high
  local factor = p.attention_factor
  if not factor and p.mscale and p.mscale_all_dim and p.mscale ~= 0 and p.mscale_all_dim ~= 0 then
    factor = growth(p.mscale, p.factor) / growth(p.mscale_all_dim, p.factor)
  end
  return mapped(list, function(f, i)
    local ramp = math.min(math.max((i - 1 - low) / (high - low), 0), 1)
    return f / p.factor * ramp + f * (1 - ramp)
  end), factor or growth(1, p.factor)
end

-- Numbers that a kind requires, and its defaults.
local REQUIRED = {
  default = {},
  linear = { 'factor' },
  llama3 = { 'factor', 'low_freq_factor', 'high_freq_factor' },
  yarn = { 'factor' },
}
local DEFAULTS = { beta_fast = 32, beta_slow = 1, truncate = true }
local NUMBERS = {
  'rope_theta', 'factor', 'low_freq_factor', 'high_freq_factor', 'beta_fast', 'beta_slow',
  'original_max_position_embeddings', 'attention_factor', 'mscale', 'mscale_all_dim',
}

-- -- reading config.json -------------------------------------------------------------------------

-- The fields of both spellings, without nulls: `rope_parameters` of today, `rope_theta` and
-- `rope_scaling` of before.
local function given(from, config)
  local p = {}
  for _, name in ipairs { 'rope_scaling', 'rope_parameters' } do
    local fields = config[name]
    if fields ~= nil and fields ~= json.null and type(fields) ~= 'table' then
      errors.raise('FormatError', '%s: %s is %s, expected an object', from, name, tostring(fields))
    end
    p = util.merged(p, type(fields) == 'table' and fields or {})
  end
  p.rope_theta = p.rope_theta or config.rope_theta
  p.partial_rotary_factor = p.partial_rotary_factor or config.partial_rotary_factor
  for _, name in ipairs(util.sorted_keys(p)) do
    if p[name] == json.null then
      p[name] = nil
    end
  end
  return p
end

local function check_numbers(from, kind, p)
  for _, name in ipairs(NUMBERS) do
    local value = p[name]
    local is_valid = type(value) == 'number' and value < math.huge
      and (value > 0 or value == 0 and name:find '^mscale') -- 0: as if absent
    if value ~= nil and not is_valid then
      errors.raise('FormatError', "%s: '%s' of the rotary positions is %s, expected a number above "
        .. '0', from, name, tostring(value))
    end
  end
  for _, name in ipairs(REQUIRED[kind]) do
    if p[name] == nil then
      errors.raise('FormatError', "%s: rotary positions of kind '%s' have no '%s'", from, kind,
        name)
    end
  end
end

--- Read the parameters from a decoded config.json. NotImplementedError for a kind that is not
--- known.
---@param from string  the file, for errors
---@param config table
---@param context integer  max_position_embeddings
---@return table parameters  with `kind`
function Rotary.read(from, config, context)
  local p = given(from, config)
  local kind = p.rope_type or p.type or 'default'
  if not REQUIRED[kind] then
    errors.raise('NotImplementedError', "%s: rotary positions of kind '%s' are not supported, "
      .. 'expected one of %s', from, tostring(kind),
      table.concat(util.sorted_keys(REQUIRED), ', '))
  elseif p.partial_rotary_factor and p.partial_rotary_factor ~= 1 then
    errors.raise('NotImplementedError', '%s: partial_rotary_factor is %s, expected 1: turning a '
      .. 'part of a head is not supported', from, tostring(p.partial_rotary_factor))
  end
  p = util.merged(DEFAULTS, p)
  p.kind, p.rope_theta = kind, p.rope_theta or 10000
  p.original_max_position_embeddings = p.original_max_position_embeddings
    or config.original_max_position_embeddings or context
  check_numbers(from, kind, p)
  return p
end

-- -- tables --------------------------------------------------------------------------------------

---@param width integer  of a head, even
---@param parameters? table  of Rotary.read(), or the fields of `rope_parameters` in config.json:
---  `rope_type` is default, linear, llama3 or yarn; `rope_theta` is 10000 by default; others depend
---  on the type (factor, ...)
function Rotary:init(width, parameters)
  if arguments.whole(self._name, 'width', width, nil, 2) % 2 ~= 0 then
    errors.raise('ValueError', '%s: width is %d, expected an even number', self._name, width)
  end
  parameters = arguments.list(self._name, 'parameters', parameters, {})
  if not parameters.kind then
    parameters = Rotary.read(self._name, { rope_parameters = parameters },
      parameters.original_max_position_embeddings or 2048)
  end
  local list, factor = kinds[parameters.kind](plain(parameters.rope_theta, width), parameters)
  self.frequencies, self.factor, self._tables = list, factor or 1, {}
end

local function make(self, least, dtype)
  local length = 2 ^ math.ceil(math.log(least) / math.log(2)) -- rows that grow are seldom computed
  local positions = create.arange(length):to('f32'):unsqueeze(2)
  local angles = positions * create.tensor(self.frequencies)
  local function table_of(t)
    return scope.keep((t * self.factor):to(dtype))
  end
  return { length = length, cos = table_of(ops.cos(angles)), sin = table_of(ops.sin(angles)) }
end

--- Cosines and sines of positions. Tables are kept between calls.
---@param length integer  above all positions; IndexError for others
---@param dtype ms.DType
---@param positions integer|ms.Tensor  the first of those up to length - 1, or i64 (B, T)
---@return ms.Tensor cos, ms.Tensor sin  (T, 1, D / 2) or (B, T, 1, D / 2)
function Rotary:tables(length, dtype, positions)
  local kept = self._tables[dtype]
  if not kept or kept.length < length then
    kept = autograd.no_grad(scope.run, 'rotary', make, self, length, dtype)
    self._tables[dtype] = kept
  end
  local function rows(all)
    if type(positions) == 'number' then
      return all:narrow(1, positions + 1, length - positions):unsqueeze(2)
    end
    return ops.embedding(all:narrow(1, 1, length), positions):unsqueeze(3)
  end
  return rows(kept.cos), rows(kept.sin)
end

return Rotary
