-- lua/moonshard/parallel: layers divided among ranks compute what the whole layers do
local ms = require 'moonshard'
local checks = require 'support.checks'
local dist, nn, parallel = ms.dist, ms.nn, ms.parallel

local Shard, Replicate = dist.Shard, dist.Replicate
local Colwise, Rowwise = parallel.ColwiseParallel, parallel.RowwiseParallel
local Sequence = parallel.SequenceParallel

local WIDTH, HEAD, VOCABULARY = 8, 2, 12

local Block = nn.Module.extend 'Block'

function Block:init()
  self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH)
  for _, name in ipairs { 'q', 'k', 'v', 'o' } do
    self[name] = nn.Linear(WIDTH, WIDTH)
  end
  self.w1, self.w2 = nn.LinearGELU(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
end

-- (B, T, heads of this rank * HEAD) as (B, heads, T, HEAD)
local function heads(x)
  local shape = x:shape()
  return x:reshape(shape[1], shape[2], shape[3] / HEAD, HEAD):transpose(2, 3)
end

function Block:forward(x)
  local y = self.norm1(x)
  local z = ms.ops.scaled_dot_product_attention(heads(self.q(y)), heads(self.k(y)),
    heads(self.v(y)), { is_causal = true }):transpose(2, 3)
  local shape = z:shape()
  x = x + self.o(z:reshape(shape[1], shape[2], shape[3] * HEAD))
  return x + self.w2(self.w1(self.norm2(x)))
end

local Model = nn.Module.extend 'Model'

function Model:init(padding_idx)
  self.embed = nn.Embedding(VOCABULARY, WIDTH, { padding_idx = padding_idx })
  self.blocks = nn.ModuleList { Block(), Block() }
  self.norm = nn.LayerNorm(WIDTH)
  self.head = nn.Linear(WIDTH, VOCABULARY, { weight = self.embed.weight })
end

function Model:forward(ids)
  local x = self.embed(ids)
  for _, block in ipairs(self.blocks) do
    x = block(x)
  end
  return self.head(self.norm(x))
end

local BLOCK = {
  q = Colwise(), k = Colwise(), v = Colwise(), o = Rowwise(), w1 = Colwise(), w2 = Rowwise(),
}

-- For a model of blocks; with sequences, activations between layers are divided by positions.
local function plan_of(block, head, embed)
  local plan = { embed = embed, head = head }
  for name, style in pairs(block) do
    plan['blocks.*.' .. name] = style
  end
  return plan
end

local IN, OUT = { input_layouts = Shard(2) }, { output_layouts = Shard(2) }
local PLANS = {
  layers = plan_of(BLOCK, Colwise { output_layouts = Replicate() }, Rowwise()),
  sequences = plan_of({
    norm1 = Sequence(), norm2 = Sequence(), q = Colwise(IN), k = Colwise(IN), v = Colwise(IN),
    o = Rowwise(OUT), w1 = Colwise(IN), w2 = Rowwise(OUT),
  }, Colwise { input_layouts = Shard(2), output_layouts = Replicate() }, Rowwise(OUT)),
}
PLANS.sequences.norm = Sequence()

local function made(class, ...)
  ms.manual_seed(11)
  return class(...):double():materialize()
end

-- As the module before materialize(), so that the parts are drawn.
local function divided(class, mesh, plan, ...)
  ms.manual_seed(11)
  return parallel.parallelize(class(...):double(), mesh, plan):materialize()
end

local function same_parameters(expected, found, of)
  local theirs = expected:parameters()
  for i, p in ipairs(found:parameters()) do
    checks.close(of(theirs[i]):totable(), of(p), 1e-10)
  end
end

local function whole_grad(p)
  return #p:placements() == 0 and p:grad() or dist.ShardedTensor.from_local(p:grad(),
    p:device_mesh(), p:placements(), { shape = p:global_shape() }):full_tensor()
end

describe('tensor parallelism', function()
  it('equals the whole model in outputs and gradients', function()
    dist.spawn(2, function()
      local mesh = dist.init_device_mesh('cpu', { 2 })
      local ids = ms.tensor({ { 1, 5, 6, 11 }, { 0, 7, 5, 2 } }, { dtype = 'i64' })
      for _, name in ipairs { 'layers', 'sequences' } do
        local whole, model = made(Model, 5), divided(Model, mesh, PLANS[name], 5)
        assert.same({ 4, 8 }, model.blocks[1].q.weight:shape())
        assert.same({ 8, 4 }, model.blocks[1].o.weight:shape())
        assert.is_true(rawequal(model.head.weight, model.embed.weight))
        assert.same({ 6, 8 }, model.embed.weight:shape())
        assert.equal(Shard(1), model.embed.weight:placements()[1])
        assert.same({ 12, 8 }, model.embed.weight:global_shape())
        same_parameters(whole, model, function(p) return p:full_tensor() end)
        local weights = made(nn.Embedding, 8, 12).weight:detach():reshape(2, 4, 12)
        local expected, found = whole(ids), model(ids)
        checks.close(expected:totable(), found, 1e-10)
        expected:mul(weights):sum():backward()
        found:mul(weights):sum():backward()
        same_parameters(whole, model, whole_grad)
      end
    end)
  end)

  it('gives a whole gradient of the input', function()
    dist.spawn(2, function(rank)
      local mesh = dist.init_device_mesh('cpu', { 2 })
      local whole, model = made(Block), divided(Block, mesh, BLOCK)
      local values = made(nn.Embedding, 6, WIDTH).weight:detach():reshape(2, 3, WIDTH)
      local x, y = values:clone():requires_grad_(true), values:clone():requires_grad_(true)
      whole(x):pow(2):sum():backward()
      model(y):pow(2):sum():backward()
      checks.close(x:grad():totable(), y:grad(), 1e-10)
      -- of an input that is divided by the batch, a rank gets its part of the gradient
      local one = made(nn.Linear, WIDTH, 4)
      x:set_grad(nil)
      one(x):pow(2):sum():backward()
      local own = values:narrow(1, rank + 1, 1):clone():requires_grad_(true)
      local by_batch = divided(nn.Linear, mesh, Rowwise { input_layouts = Shard(1),
        output_layouts = Shard(1) }, WIDTH, 4)
      local z = by_batch(own)
      checks.close(one(values):narrow(1, rank + 1, 1):totable(), z, 1e-10)
      z:pow(2):sum():backward()
      checks.close(x:grad():narrow(1, rank + 1, 1):totable(), own:grad(), 1e-10)
      same_parameters(one, by_batch, whole_grad)
    end)
  end)

  -- Shard the blocks and the model over one dimension of a mesh.
  local SHARDED = {
    { 'FSDP', 'layers', 'Flat() Shard(1)', function(model, mesh)
      return ms.fsdp.FSDP(model, { process_group = mesh:get_group(), use_orig_params = true,
        auto_wrap_policy = ms.fsdp.ModuleWrapPolicy { Block } })
    end },
    { 'FSDP by rows', 'sequences', 'Shard(1) Shard(1)', function(model, mesh)
      return ms.fsdp.FSDP(model, { process_group = mesh:get_group(), use_orig_params = true,
        shard_layout = 'rows', auto_wrap_policy = ms.fsdp.ModuleWrapPolicy { Block } })
    end },
    { 'fully_shard', 'sequences', 'Shard(1) Shard(1)', function(model, mesh)
      for _, module in ipairs { model.blocks[1], model.blocks[2], model } do
        ms.fsdp.fully_shard(module, { mesh = mesh })
      end
      return model
    end },
  }
  for _, case in ipairs(SHARDED) do
    local name, plan, placements, shard = unpack(case)
    it(('is combined with %s over the other dimension of a mesh'):format(name), function()
      dist.spawn(4, function()
        local mesh = dist.init_device_mesh('cpu', { 2, 2 }, { mesh_dim_names = { 'dp', 'tp' } })
        local dp = mesh['dp']:get_local_rank()
        local ids = ms.tensor({ { 1, 5, 6, 11 }, { 0, 7, 5, 2 } }, { dtype = 'i64' })
        local weights = made(nn.Embedding, 8, 12).weight:detach():reshape(2, 4, 12)
        local whole = made(Model)
        local model = shard(divided(Model, mesh['tp'], PLANS[plan]), mesh['dp'])
        local opts = { lr = 0.1, momentum = 0.9 }
        local theirs, ours = ms.optim.SGD(whole:parameters(), opts),
          ms.optim.SGD(model:parameters(), opts)
        local function losses(m, step, batch) -- of each sequence
          local x = m(batch):mul(weights:narrow(1, step % 2 + 1, 1))
          return (x:pow(2) + x):mean({ 2, 3 })
        end
        for step = 1, 5 do
          local expected = losses(whole, step, ids)
          local loss = losses(model, step, ids:narrow(1, dp + 1, 1))
          checks.close({ expected:totable()[dp + 1] }, loss, 1e-10)
          expected:mean():backward()
          loss:mean():backward()
          theirs:step()
          ours:step()
          theirs:zero_grad()
          ours:zero_grad()
          same_parameters(whole, model, function(p) return p:full_tensor() end) -- so gradients, too
        end
        local p = model:parameters()[1] -- embed.weight
        assert.equal(placements, tostring(p:placements()[1]) .. ' ' .. tostring(p:placements()[2]))
        assert.same({ 2, 2 }, p:device_mesh().shape)
      end)
    end)
  end

  it('refuses what it cannot divide', function()
    dist.spawn(2, function()
      local mesh = dist.init_device_mesh('cpu', { 2 })
      local function refuses(kind, message, plan, model, on)
        checks.raises(kind, message, parallel.parallelize, model or Model(), on or mesh, plan)
      end
      refuses('KeyError', "no module has the path 'blocks.0.p', did you mean 'blocks.0.q'?",
        { ['blocks.0.p'] = Colwise() })
      refuses('TypeError', "'blocks.0' is a Block, which ColwiseParallel does not divide; expected "
        .. 'nn.Linear, nn.LinearGELU, nn.Embedding', { ['blocks.*'] = Colwise() })
      refuses('TypeError', "'blocks.0.w1' is a nn.LinearGELU, which RowwiseParallel",
        { ['blocks.0.w1'] = Rowwise() })
      refuses('ValueError', "dimension 1 of 'weight' has size 3, expected a multiple of 2",
        Colwise(), nn.Linear(4, 3))
      refuses('ValueError', "the plan names 'blocks.0.q' twice, by 'blocks.*.q' and 'blocks.0.q'",
        { ['blocks.*.q'] = Colwise(), ['blocks.0.q'] = Colwise() })
      refuses('ValueError', "'embed.weight' (not divided) and 'head.weight' (Shard(1)) are one "
        .. 'parameter', { head = Colwise() })
      refuses('TypeError', "'plan['head']' is a string, expected a style", { head = 'columns' })
      refuses('TypeError', "'mesh' is a group of ranks", BLOCK, Block(), dist.world())
      refuses('ValueError', 'the mesh has 2 dimensions, expected one of them', BLOCK, Block(),
        dist.init_device_mesh('cpu', { 1, 2 }))
      refuses('RuntimeError', "'q' is divided already", { q = Colwise() },
        parallel.parallelize(Block(), mesh, BLOCK))
      local sharded = Block()
      ms.fsdp.FSDP(sharded):materialize()
      refuses('RuntimeError', "'q' is sharded by FSDP", { q = Colwise() }, sharded)
      local odd = parallel.parallelize(nn.Linear(4, 4), mesh, Rowwise(OUT))
      checks.raises('ValueError', 'an activation of shape (1, 3, 4) becomes Shard(2), expected a '
        .. 'size that is a multiple of 2', odd, ms.ones(1, 3, 2))
      checks.raises('ValueError', "'output_layouts' is Partial(sum), expected Shard(dim) or "
        .. 'Replicate()', Colwise, { output_layouts = dist.Partial() })
    end)
  end)
end)
