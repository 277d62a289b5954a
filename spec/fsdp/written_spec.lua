-- Values a script writes into parameters of an unsharded replica are the next forward's values.
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'

local PRECISIONS = { 'f32', 'bf16' }

-- One weight (1, 2) on every rank, and what the model makes of (1, 2): w1 + 2 w2.
local function replica(dtype)
  ms.manual_seed(1)
  local model
  ms.capture_warnings(function() -- NO_SHARD's
    model = fsdp.FSDP(nn.Linear(2, 1, { bias = false }), {
      sharding_strategy = 'NO_SHARD',
      mixed_precision = dtype ~= 'f32' and { param_dtype = dtype } or nil,
    })
  end)
  local function result()
    return ms.scope(function()
      return ms.no_grad(function() return model(ms.tensor { { 1, 2 } }):item() end)
    end)
  end
  return model, result
end

-- One forward and backward: the parameters show the master copy afterwards.
local function pass(model)
  ms.scope(function() model(ms.tensor { { 1, 2 } }):sum():backward() end)
end

local WRITES = {
  { 'fill_', function(w) w:fill_(3) end, 9 },
  { 'copy_', function(w) w:copy_(ms.tensor { { 4, 5 } }) end, 14 },
  { 'add_', function(w)
    w:fill_(1)
    w:add_(ms.ones(1, 2))
  end, 6 },
  { 'an optimizer of its own', function(w)
    w:fill_(8)
    w:add_(w:grad():mul(-2)) -- the gradient is the input
  end, 8 - 2 + 2 * (8 - 4) },
  { 'a view of it', function(w) w:detach():reshape(2):fill_(2) end, 6 },
}

describe('a backward over parameters that were written since', function()
  it('names the unit, of which another parameter may be the one', function()
    ms.dist.spawn(2, function()
      local Pair = nn.Module.extend('my.Pair')
      function Pair:init()
        self:param('w', { 5 }, nn.init.ones())
        self:param('v', { 3, 5 }, nn.init.ones())
      end
      function Pair:forward(x)
        return ms.ops.linear(x * self.w, self.v)
      end
      local model = fsdp.FSDP(Pair(), { use_orig_params = true })
      local loss = model(ms.ones(2, 5)):sum()
      fsdp.summon_full_params(model, {}, function()
        ms.no_grad(model.w.fill_, model.w, 2)
      end)
      checks.raises('RuntimeError', "the version counts writes to any parameter of unit 'my.Pair', "
        .. 'by optimizers, loads and summon_full_params too', loss.backward, loss)
    end)
  end)
end)

describe('NO_SHARD parameters', function()
  for _, dtype in ipairs(PRECISIONS) do
    for world = 1, 2 do
      it(('computed in %s show what was written, on %d ranks'):format(dtype, world), function()
        ms.dist.spawn(world, function()
          local model, result = replica(dtype)
          for _, write in ipairs(WRITES) do
            model.weight:set_grad(nil)
            pass(model)
            ms.no_grad(write[2], model.weight)
            assert.equal(write[3], result(), write[1])
            pass(model)
          end
        end)
      end)

      it(('computed in %s show what a loaded state dict says, on %d ranks'):format(dtype, world),
        function()
          ms.dist.spawn(world, function()
            local model, result = replica(dtype)
            pass(model)
            model:load_state_dict { 'weight', weight = ms.tensor { { 6, 7 } } }
            assert.equal(20, result())
          end)
        end)
    end

    it(('computed in %s show what is written while they are in use'):format(dtype), function()
      ms.dist.spawn(1, function()
        local model, result = replica(dtype)
        pass(model)
        local view = model.weight:detach()
        result()
        ms.no_grad(view.fill_, view, 5)
        assert.equal(15, result())
        local x = ms.tensor { { 1, 2 } } -- its gradient needs the weight as it was
        x:requires_grad_(true)
        local loss = model(x):sum()
        ms.no_grad(view.fill_, view, 6)
        checks.raises('RuntimeError', 'modified by an in-place operation', loss.backward, loss)
        assert.equal(18, result())
      end)
    end)
  end
end)
