-- test_fully_shard_mixed_precision.py
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'

-- cast_root_forward_inputs, cast_forward_inputs, root without parameters of its own: dtypes that
-- the model, c1 and c2 are given
local EXPECTED = {
  { true, true, true, { 'f16', 'f16', 'f16' } },
  { true, true, false, { 'f32', 'f32', 'f16' } },
  { true, false, true, { 'f16', 'f16', 'f16' } },
  { true, false, false, { 'f32', 'f32', 'f16' } },
  { false, true, true, { 'f32', 'f16', 'f16' } },
  { false, true, false, { 'f32', 'f32', 'f16' } },
  { false, false, true, { 'f32', 'f32' } },
  { false, false, false, { 'f32', 'f32', 'f32' } },
}

local Part, Model = nn.Module.extend 'Part', nn.Module.extend 'Model'

function Part:init(seen)
  self.seen, self.l = seen, nn.Linear(100, 100)
end

function Part:forward(x)
  table.insert(self.seen, x:dtype())
  return self.l(x)
end

function Model:init(seen)
  self.seen, self.c1, self.c2 = seen, Part(seen), Part(seen)
end

function Model:forward(x)
  table.insert(self.seen, x:dtype())
  return self.c2(self.c1(x))
end

describe('TestMixedPrecision', function()
  it('test_float16_cast_forward', function()
    for _, dtype in ipairs { 'f16', 'bf16' } do
      for _, e in ipairs(EXPECTED) do
        local cast_root, cast_child, root_no_params, expected = unpack(e)
        ms.dist.spawn(2, function()
          local seen = {}
          local model, precision = Model(seen), { param_dtype = dtype,
            cast_root_forward_inputs = cast_root, cast_forward_inputs = cast_child }
          local low = { mixed_precision = precision }
          ms.capture_warnings(function()
            assert.equal(model.c2, fsdp.composable(model.c2, low))
            if root_no_params then
              fsdp.composable(model.c1, low)
            end
            fsdp.composable(model, root_no_params and low or nil)
          end)
          local function run()
            model(ms.zeros(2, 100)):sum():backward()
          end
          if cast_root or cast_child then
            run()
          else
            checks.raises('RuntimeError', 'mat1 and mat2 must have the same dtype', run)
          end
          for i, name in ipairs(seen) do
            seen[i] = name == 'bf16' and 'f16' or name
          end
          assert.same(expected, seen)
        end)
      end
    end
  end)
end)
