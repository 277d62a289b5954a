-- Outputs, gradients, buffers and names of every module that PyTorch has, against PyTorch's numbers
-- (tests/fixtures/modules.py).

local ms = require 'moonshard'
local json = require 'moonshard.internal.json'
local nn = ms.nn

local TOLERANCE = { f64 = 1e-10, f32 = 1e-5 }

local function cases()
  local file = assert(io.open('tests/fixtures/modules.json', 'r'))
  local text = file:read('*a')
  file:close()
  return json.decode(text)
end

local function v(k, i)
  return (31 * i * i + 17 * i + 29 * k + 7) % 101 / 50 - 1
end

local function formula(shape, k, dtype, scale, shift)
  local n, values = 1, {}
  for _, size in ipairs(shape) do
    n = n * size
  end
  for i = 1, n do
    values[i] = (scale or 1) * v(k, i - 1) + (shift or 0)
  end
  return ms.tensor(values, { dtype = dtype }):reshape(shape)
end

-- The value that an entry of the file describes. Equal entries give one tensor.
local function decoder(dtype)
  local decode
  local made = {}
  local function map(entry)
    local out = {}
    for key, value in next, entry do
      out[key] = decode(value)
    end
    return out
  end
  function decode(entry)
    if type(entry) ~= 'table' then
      return entry
    elseif entry.shape then
      local key = ('%s %d'):format(table.concat(entry.shape, ' '), entry.k)
      made[key] = made[key] or formula(entry.shape, entry.k, dtype, entry.scale, entry.shift)
      return made[key]
    elseif entry.i64 then
      return ms.tensor(entry.i64, { dtype = 'i64' })
    elseif entry.bool then
      return ms.tensor(entry.bool):gt(0)
    elseif entry.causal then
      return nn.Transformer.generate_square_subsequent_mask(entry.causal, { dtype = dtype })
    elseif entry.module then
      local args = map(entry.args)
      args[#args + 1] = next(entry.opts) and map(entry.opts)
      return nn[entry.module](unpack(args))
    end
    return map(entry)
  end
  return decode
end

local function close(what, t, wanted, tolerance)
  assert.same(wanted.shape, t:shape(), what)
  local found = t:detach():to('f64'):reshape(-1)
  if wanted.sums then
    local sums = {}
    for j = 1, 3 do
      sums[j] = (found * formula({ found:size(1) }, 899 + j, 'f64')):sum():item()
    end
    found = sums
  else
    found = found:totable()
  end
  for i, value in ipairs(wanted.values or wanted.sums) do
    local near = math.abs(found[i] - value) <= tolerance * (1 + math.abs(value))
    if not near then -- NaN too
      error(('%s: number %d is %.17g, expected %.17g'):format(what, i, found[i], value), 0)
    end
  end
end

local function run(case, dtype)
  local decode, tolerance = decoder(dtype), TOLERANCE[dtype]
  local module = decode({ module = case.name, args = case.args, opts = case.opts })
  module:to(dtype):materialize():train(case.training)

  local sd, values = module:state_dict(), {}
  for i, entry in ipairs(case.state) do
    local name, shape, shift = unpack(entry)
    assert.equal(name, sd[i])
    assert.same(shape, sd[name]:shape(), name)
    values[name] = #shape == 0 and sd[name]
      or formula(shape, i - 1, dtype, #shape > 1 and 0.4 or 0.1, shift)
  end
  assert.equal(#case.state, #sd)
  module:load_state_dict(values)

  local given = decode(case.inputs)
  for _, t in ipairs(given) do
    if t:dtype() == dtype then
      t:requires_grad_(true)
    end
  end
  local n = #given
  if next(case.call) then
    given[n + 1] = decode(case.call)
  end
  local outputs = { module(unpack(given)) }
  assert.equal(#case.outputs, #outputs)
  local loss = 0
  for j, y in ipairs(outputs) do
    close('output ' .. j, y, case.outputs[j], tolerance)
    loss = (y * formula(y:shape(), 799 + j, dtype)):sum() + loss
  end
  loss:backward()
  for i = 1, n do
    if case.input_grads[i] then
      close('gradient of input ' .. i, given[i]:grad(), case.input_grads[i], tolerance)
    end
  end
  for name, p in module:named_parameters() do
    close('gradient of ' .. name, p:grad(), case.grads[name], tolerance)
  end
  for name, b in module:named_buffers() do
    close(name, b, case.buffers[name], tolerance)
  end
end

describe('the numbers of PyTorch:', function()
  for i, case in ipairs(cases()) do
    for _, dtype in ipairs { 'f64', 'f32' } do
      local title = ('case %d, nn.%s(%s) in %s, in %s'):format(i, case.name,
        json.encode({ case.args, case.opts }), case.training and 'training' or 'evaluation', dtype)
      it(title, function() run(case, dtype) end)
    end
  end
end)
