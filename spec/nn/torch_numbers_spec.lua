-- Outputs, gradients, buffers and names of modules, against PyTorch's numbers
-- (tests/fixtures/modules.py).

local ms = require 'moonshard'
local json = require 'moonshard.base.json'
local numbers = require 'support.numbers'
local nn, formula, close = ms.nn, numbers.formula, numbers.close

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

-- The tensors among values, also in tables.
local function flat(values, out)
  for _, value in ipairs(values) do
    if type(value) == 'table' then
      flat(value, out)
    elseif type(value) ~= 'number' then
      out[#out + 1] = value
    end
  end
  return out
end

local function run(case, dtype)
  local decode, tolerance = decoder(dtype), numbers.TOLERANCE[case.dtype or dtype]
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
  local tensors = flat(given, {})
  for _, t in ipairs(tensors) do
    if t:dtype() == dtype then
      t:requires_grad_(true)
    end
  end
  if next(case.call) then
    given[#given + 1] = decode(case.call)
  end
  local outputs = flat({ module(unpack(given)) }, {})
  assert.equal(#case.outputs, #outputs)
  local loss = 0
  for j, y in ipairs(outputs) do
    close('output ' .. j, y, case.outputs[j], tolerance)
    loss = (y * formula(y:shape(), 799 + j, dtype)):sum() + loss
  end
  loss:backward()
  for i, t in ipairs(tensors) do
    if case.input_grads[i] then
      close('gradient of input ' .. i, t:grad(), case.input_grads[i], tolerance)
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
  for i, case in ipairs(numbers.read 'modules') do
    for _, dtype in ipairs { 'f64', 'f32' } do
      local title = ('case %d, nn.%s(%s) in %s, in %s'):format(i, case.name,
        json.encode({ case.args, case.opts }), case.training and 'training' or 'evaluation', dtype)
      it(title, function() run(case, dtype) end)
    end
  end
end)
