-- A GPT on two ranks against the unsharded model: losses, gradients, parameters and text. The
-- unsharded model runs the batches of both ranks and averages. spec/nn/table_spec.lua does this for
-- every module.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local wrapped = require 'support.wrap'
local samples = require 'support.samples'
local runs = require 'support.runs'

local STEPS = 4

local function make()
  return ms.models.GPT {
    vocab = 13, layers = 2, heads = 2, width = 12, context = 6, dropout = 0.1,
  }
end

local function batch(step, half)
  local x, y = {}, {}
  for b = 1, 2 do
    x[b], y[b] = {}, {}
    for t = 0, 5 do
      local at = 7 * (2 * half + b) + 3 * t + 5 * step
      x[b][t + 1], y[b][t + 1] = at % 13, (at + 3) % 13
    end
  end
  return ms.tensor(x, { dtype = 'i64' }), ms.tensor(y, { dtype = 'i64' })
end

local function set_samples(step, half)
  samples.begin(step * 4 + half * 2)
end

local function optimizer(kind, model)
  if kind == 'SGD' then
    return optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9, nesterov = true })
  end
  return optim.AdamW(model:parameters(), { lr = 0.01, weight_decay = 0.1 })
end

-- Losses of both halves per step, norms, final parameters, text.
local function reference(kind)
  ms.manual_seed(5)
  local model = make()
  local opt = optimizer(kind, model)
  local out = { losses = {}, norms = {}, params = {} }
  for step = 1, STEPS do
    for half = 0, 1 do
      set_samples(step, half)
      local loss = model(batch(step, half))
      out.losses[#out.losses + 1] = loss:item()
      loss:backward(ms.full({}, 0.5))
    end
    out.norms[step] = optim.clip_grad_norm_(model:parameters(), 0.5):item()
    opt:step()
    opt:zero_grad()
  end
  local sd = model:state_dict()
  for _, name in ipairs(sd) do
    out.params[name] = sd[name]:totable()
  end
  out.text = model:generate({ 1, 2 }, 8, { seed = 3 })
  return out
end

local function same_as(expected, opts, kind, rank, fn)
  ms.manual_seed(5)
  local model = wrapped(make(), opts)
  local opt = optimizer(kind, model)
  for step = 1, STEPS do
    set_samples(step, rank)
    local loss = model(batch(step, rank))
    checks.close(expected.losses[2 * step - 1 + rank], loss:item(), 2e-5)
    loss:backward()
    checks.close(expected.norms[step], model:clip_grad_norm_(0.5):item(), 2e-5)
    opt:step()
    opt:zero_grad()
  end
  local sd = model:state_dict()
  for _, name in ipairs(sd) do
    checks.close(expected.params[name], sd[name], 1e-4)
  end
  assert.same(expected.text, model:generate({ 1, 2 }, 8, { seed = 3 }))
  if fn then
    fn(model)
  end
end

local function blocks(m) return ms.is(m, nn.TransformerBlock) end

local VARIANTS = {
  { 'FULL_SHARD by block', { auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerBlock } } },
  { 'FULL_SHARD, original parameters, everything wrapped',
    { auto_wrap_policy = fsdp.always_wrap_policy, use_orig_params = true } },
  { 'SHARD_GRAD_OP in one unit', { sharding_strategy = 'SHARD_GRAD_OP' } },
  { 'NO_SHARD by block', { sharding_strategy = 'NO_SHARD',
    auto_wrap_policy = fsdp.lambda_auto_wrap_policy(blocks) } },
  { 'one strategy per module', { use_orig_params = true,
    auto_wrap_policy = fsdp.CustomPolicy(function(m)
      return blocks(m) and { sharding_strategy = 'SHARD_GRAD_OP', backward_prefetch = 'none' }
        or ms.is(m, nn.Embedding)
    end), forward_prefetch = true, backward_prefetch = 'BACKWARD_POST' } },
}

local function bits_net()
  ms.manual_seed(4)
  return nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 3))
end

-- Gradients of one rank's inputs in one step.
local function run_backward(model, step, rank)
  local x = (ms.arange(12):to('f32'):reshape(4, 3) * (0.3 + rank) + step):sin()
  model(x):to('f32'):square():mean():backward()
end

local function trained_bits(model, backwards)
  local opt = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
  for step = 1, 20 do
    backwards(model, step)
    opt:step()
    opt:zero_grad()
  end
end

-- The sum of the tensors first to last of a list, by halves.
local function tree_sum(list, first, last)
  local middle = math.floor((first + last) / 2)
  return first == last and list[first]
    or tree_sum(list, first, middle) + tree_sum(list, middle + 1, last)
end

-- The mean of the gradients of all ranks' inputs.
local function mean_of_backwards(world)
  return function(model, step)
    local grads = {}
    for rank = 0, world - 1 do
      run_backward(model, step, rank)
      for i, p in ipairs(model:parameters()) do
        grads[i] = grads[i] or {}
        table.insert(grads[i], p:grad())
        p:set_grad(nil)
      end
    end
    for i, p in ipairs(model:parameters()) do
      p:set_grad(tree_sum(grads[i], 1, world) * (1 / world))
    end
  end
end

-- FSDP in f32 and with mixed precision, whose gradients are not rounded to param_dtype before they
-- are reduced, as a plain model's would be.
local MIXED = { param_dtype = 'bf16', reduce_dtype = 'f32' }

describe('after 20 steps of SGD', function()
  for _, world in ipairs { 1, 2, 4 } do
    it(('fully_shard, FSDP and the plain model have equal bits: %d ranks'):format(world), function()
      ms.dist.spawn(world, function(rank)
        local plain = bits_net()
        trained_bits(plain, mean_of_backwards(world))
        local hashes = { f32 = runs.hash_of(plain) }
        for _, precision in ipairs { 'f32', 'bf16' } do
          local policy = precision == 'bf16' and MIXED or nil
          local net, sharded = bits_net(), bits_net()
          for _, module in ipairs { sharded[1], sharded[3], sharded } do
            fsdp.fully_shard(module, { mp_policy = policy })
          end
          for _, model in ipairs { sharded, wrapped(net, { mixed_precision = policy,
            auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear } }) } do
            trained_bits(model, function(m, step) run_backward(m, step, rank) end)
            hashes[precision] = hashes[precision] or runs.hash_of(model)
            assert.equal(hashes[precision], runs.hash_of(model), precision)
          end
        end
        assert.not_equal(hashes.f32, hashes.bf16)
      end)
    end)
  end
end)

describe('two ranks', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  for _, kind in ipairs { 'SGD', 'AdamW' } do
    for _, variant in ipairs(VARIANTS) do
      it(('train as one rank does: %s, %s'):format(variant[1], kind), function()
        local expected = runs.alone(reference, kind)
        ms.dist.spawn(2, function(rank)
          same_as(expected, variant[2], kind, rank)
        end)
      end)
    end
  end

  it('train with an optimizer that was made before wrapping', function()
    local expected = runs.alone(reference, 'AdamW')
    ms.dist.spawn(2, function(rank)
      ms.manual_seed(5)
      local plain = make()
      local opt = optimizer('AdamW', plain)
      local model = wrapped(plain, { auto_wrap_policy = fsdp.ModuleWrapPolicy {
        nn.TransformerBlock }, use_orig_params = true })
      for step = 1, STEPS do
        set_samples(step, rank)
        model(batch(step, rank)):backward()
        model:clip_grad_norm_(0.5)
        opt:step()
        opt:zero_grad()
      end
      local sd = model:state_dict()
      for _, name in ipairs(sd) do
        checks.close(expected.params[name], sd[name], 1e-4)
      end
    end)
  end)

  it('freeze parameters after wrapping', function()
    ms.dist.spawn(2, function()
      ms.manual_seed(5)
      local model = wrapped(make(), { auto_wrap_policy = fsdp.ModuleWrapPolicy {
        nn.TransformerBlock }, use_orig_params = true })
      local opt = optimizer('SGD', model)
      for name, p in model:named_parameters() do
        p:requires_grad_(not name:find('bias'))
      end
      local function hashes()
        local sd, out = model:state_dict(), {}
        for _, name in ipairs(sd) do
          out[name] = sd[name]:hash()
        end
        return out
      end
      local before = hashes()
      model(batch(1, 0)):backward()
      opt:step()
      local after = hashes()
      for name in model:named_parameters() do
        assert.equal(name:find('bias') ~= nil, before[name] == after[name], name)
      end
    end)
  end)

  it('show shards outside forward and full parameters inside', function()
    ms.dist.spawn(2, function(rank)
      local layer = nn.Linear(5, 5, { bias = false })
      local inside
      layer:register_forward_hook(function(m) inside = m.weight:shape() end)
      local model = fsdp.FSDP(nn.Sequential(layer),
        { auto_wrap_policy = fsdp.always_wrap_policy, use_orig_params = true })
      model:materialize()
      -- 25 elements and one of padding over two ranks: 13 and 12
      assert.same({ rank == 0 and 13 or 12 }, layer.weight:shape())
      model(ms.ones(1, 5))
      assert.same({ 5, 5 }, inside)
      assert.same({ rank == 0 and 13 or 12 }, layer.weight:shape())
      assert.equal(25, model:num_parameters())
    end)
  end)

  it('unshard and reshard one instance', function()
    ms.dist.spawn(2, function()
      local model = wrapped(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        { auto_wrap_policy = fsdp.always_wrap_policy })
      model(ms.ones(1, 4)) -- makes the outer instance the root
      model[1]:unshard()
      assert.same({ 4, 4 }, model[1].weight:shape())
      assert.equal(1, model[2].weight:dim())
      local before = model:collectives().all_gather
      model[1]:unshard()
      assert.equal(before, model:collectives().all_gather)
      model[1]:reshard()
      assert.equal(1, model[1].weight:dim())
    end)
  end)

  it('accumulate without communication inside no_sync', function()
    ms.dist.spawn(2, function(rank)
      ms.manual_seed(1)
      local model = fsdp.FSDP(nn.Linear(7, 1, { bias = false }), { use_orig_params = true })
      local function run()
        model(ms.full({ 1, 7 }, rank + 1)):sum():backward()
      end
      run()
      local before = model:collectives().reduce_scatter
      model:no_sync(run)
      assert.equal(before, model:collectives().reduce_scatter)
      run()
      -- each pass adds the mean over ranks of rank + 1, 1.5; that of no_sync comes with the next
      local grad = model.weight:grad()
      checks.close(4.5, grad:mean():item())
      assert.equal(rank == 0 and 4 or 3, grad:numel())
    end)
  end)

  it('compute in bf16 over f32 masters', function()
    ms.dist.spawn(2, function()
      ms.manual_seed(1)
      local model = fsdp.FSDP(make(), {
        auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerBlock },
        mixed_precision = { param_dtype = 'bf16', reduce_dtype = 'f32' },
      })
      local opt = optimizer('AdamW', model)
      local first, last
      for _ = 1, 20 do
        local loss = model(batch(1, 0))
        last = loss:item()
        first = first or last
        loss:backward()
        opt:step()
        opt:zero_grad()
      end
      assert.is_true(last < first - 0.5, ('%g -> %g'):format(first, last))
      assert.equal('f32', model:parameters()[1]:dtype())
    end)
  end)

  it('load and return full state dicts', function()
    local values = runs.alone(function()
      ms.manual_seed(9)
      local out, source = {}, make():state_dict()
      for _, name in ipairs(source) do
        out[name] = source[name]:totable()
      end
      return out
    end)
    ms.dist.spawn(2, function(rank)
      ms.manual_seed(10)
      local model = wrapped(make(), {
        auto_wrap_policy = fsdp.always_wrap_policy, use_orig_params = true,
      })
      local sd, n = {}, 0
      for name in model:named_parameters(true, false) do
        sd[name], n = ms.tensor(values[name]), n + 1
      end
      model:load_state_dict(sd)
      local before = model:collectives().all_gather
      local back = model:state_dict { rank0_only = true }
      assert.equal(#model:units(), model:collectives().all_gather - before)
      assert.equal(rank == 0 and n or 0, #back)
      for _, name in ipairs(back) do
        assert.same(values[name], back[name]:totable())
      end
    end)
  end)

  it('write back their elements after summon_full_params', function()
    ms.dist.spawn(2, function(rank)
      local model = fsdp.FSDP(nn.Linear(3, 3), { use_orig_params = true })
      local values = ms.arange(9):to('f32'):reshape({ 3, 3 })
      fsdp.summon_full_params(model, nil, ms.no_grad, model.weight.copy_, model.weight, values)
      -- 9 + (3) + 3 + (1): eight elements a rank, so rank 1 begins at element 8 of the weight
      checks.close(rank == 0 and { 0, 1, 2, 3, 4, 5, 6, 7 } or { 8 }, model.weight)
      checks.close(values:totable(), model:state_dict()['weight'])
    end)
  end)

  it('take an explicit gradient factor', function()
    ms.dist.spawn(2, function(rank)
      local model
      local warnings = ms.capture_warnings(function()
        model = fsdp.FSDP(nn.Linear(1, 1, { bias = false }), { sharding_strategy = 'NO_SHARD' })
      end)
      assert.equal('FutureWarning', warnings[1].kind)
      assert.equal('The `NO_SHARD` sharding strategy is deprecated. PyTorch has '
        .. '`DistributedDataParallel` instead; here a model wrapped with NO_SHARD replaces it, and '
        .. 'stays supported.', warnings[1].message)
      model:set_gradient_factor(1)
      model(ms.full({ 1, 1 }, rank + 1)):sum():backward()
      checks.close({ { 3 } }, model.weight:grad())
    end)
  end)
end)
