-- lua/moonshard/models/gpt.lua: parameters, initial values, loss, training, generate
local ms = require 'moonshard'
local nn = ms.nn
local checks = require 'support.checks'

local function tiny(opts)
  local all = { vocab = 11, layers = 2, heads = 2, width = 8, context = 6 }
  for _, name in ipairs { 'tie', 'bias', 'dropout', 'layers' } do
    if opts and opts[name] ~= nil then
      all[name] = opts[name]
    end
  end
  return ms.models.GPT(all)
end

local function ids(rows)
  return ms.tensor(rows, { dtype = 'i64' })
end

describe('models.GPT', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('has the parameters of its shape, the head tied to the token table', function()
    -- block: two norms 4 C, qkv 3 C C + 3 C, proj C C + C, fc 4 C C + 4 C, out 4 C C + C
    local block = 4 * 8 + 12 * 64 + 9 * 8
    local expected = 11 * 8 + 6 * 8 + 2 * block + 2 * 8
    assert.equal(expected, tiny():num_parameters())
    assert.equal(expected + 11 * 8, tiny { tie = false }:num_parameters())
  end)

  it('names them as checkpoints do', function()
    local names = {}
    for name in tiny { layers = 1, tie = false }:named_parameters() do
      names[#names + 1] = name
    end
    assert.same({
      'wte.weight', 'wpe.weight', 'h.0.ln_1.weight', 'h.0.ln_1.bias', 'h.0.attn.qkv.weight',
      'h.0.attn.qkv.bias', 'h.0.attn.proj.weight', 'h.0.attn.proj.bias', 'h.0.ln_2.weight',
      'h.0.ln_2.bias', 'h.0.mlp.fc.weight', 'h.0.mlp.fc.bias', 'h.0.mlp.out.weight',
      'h.0.mlp.out.bias', 'ln_f.weight', 'ln_f.bias', 'lm_head.weight',
    }, names)
  end)

  it('has the initial values of GPT-2',
    function()
      local model = ms.models.GPT { vocab = 64, layers = 2, heads = 2, width = 128, context = 4 }
      model:materialize()
      local function deviation(t)
        return math.sqrt((t * t):mean():item())
      end
      checks.close(0.02, deviation(model.wte.weight), 0.001)
      checks.close(0.02, deviation(model.h[1].mlp.fc.weight), 0.0005)
      checks.close(0.01, deviation(model.h[2].attn.proj.weight), 0.0005)
      checks.close(0.01, deviation(model.h[1].mlp.out.weight), 0.0005)
      assert.equal(0, deviation(model.h[1].attn.qkv.bias))
      assert.equal(1, deviation(model.ln_f.weight))
    end)

  it('returns logits, or with targets their mean cross-entropy', function()
    local model = tiny()
    local x, y = ids { { 1, 2, 3 }, { 4, 5, 6 } }, ids { { 2, 3, 4 }, { 5, 6, -100 } }
    local logits = model(x)
    assert.same({ 2, 3, 11 }, logits:shape())
    local rows, sum = logits:totable(), 0
    for b, row in ipairs(y:totable()) do
      for t, target in ipairs(row) do
        if target >= 0 then
          local total = 0
          for _, v in ipairs(rows[b][t]) do
            total = total + math.exp(v)
          end
          sum = sum + math.log(total) - rows[b][t][target + 1]
        end
      end
    end
    checks.close(sum / 5, model(x, y):item(), 1e-5)
  end)

  it('has the losses and gradients of documents alone for a row that packs them', function()
    local model = tiny()
    local rows = { { 1, 2, 3 }, { 4, 5 }, { 6, 7, 8, 9 } }
    local loss = 0
    for _, row in ipairs(rows) do
      local summed = model(ids { row }, ids { row }, { reduction = 'sum' })
      summed:backward()
      loss = loss + summed:item()
    end
    local gradients = {}
    for i, p in ipairs(model:parameters()) do
      gradients[i] = p:grad():totable()
    end
    model:zero_grad()
    local row = ids { { 1, 2, 3, 4, 5, 6, 7, 8, 9 } } -- longer than the context
    local opts = { positions = ids { { 0, 1, 2, 0, 1, 0, 1, 2, 3 } } }
    local packed = model(row, row, opts) * 9
    packed:backward()
    checks.close(loss, packed:item(), 1e-4)
    for i, p in ipairs(model:parameters()) do
      checks.close(gradients[i], p:grad(), 1e-5)
    end
    opts.positions = ids { { 6 } }
    checks.raises('IndexError', 'embedding', function()
      return model(ids { { 1 } }, nil, opts):hash() -- a device reports it late
    end)
  end)

  it('learns a short row and generates it', function()
    local model = tiny()
    local opt = ms.optim.AdamW(model:parameters(), { lr = 0.02, weight_decay = 0 })
    local x, y = ids { { 1, 2, 3, 4, 5 } }, ids { { 2, 3, 4, 5, 1 } }
    for _ = 1, 60 do
      model(x, y):backward()
      opt:step()
      opt:zero_grad()
    end
    assert.is_true(model(x, y):item() < 0.1)
    assert.same({ 3, 4, 5 }, model:generate({ 1, 2 }, 3, { temperature = 0 }))
  end)

  it('generates the same tokens for the same seed, past its context',
    function()
      local model = tiny { dropout = 0.5 }
      model.drop:eval()
      local heard = {}
      local a = model:generate({ 1 }, 12, { seed = 4, on_token = function(t)
        heard[#heard + 1] = t
      end })
      assert.equal(12, #a)
      assert.same(a, heard)
      assert.same(a, model:generate({ 1 }, 12, { seed = 4 }))
      assert.not_same(a, model:generate({ 1 }, 12, { seed = 5 }))
      assert.is_true(model.training)
      assert.is_false(model.drop.training)
      assert.is_true(ms.is_grad_enabled())
    end)

  it('generates from the last tokens of a row longer than its context', function()
    local model = tiny()
    local long, short = { 9, 9, 9, 1, 2, 3, 4, 5, 6 }, { 1, 2, 3, 4, 5, 6 }
    assert.same(model:generate(short, 1, { temperature = 0 }),
      model:generate(long, 1, { temperature = 0 }))
  end)

  it('lends generate to a causal model of another class', function()
    local Next = nn.Module.extend('Next') -- token t is followed by t + 1
    Next.generate = ms.models.GPT.generate
    function Next:init() self:child('table', nn.Embedding(5, 5)) end
    function Next:forward(rows) return self.table(rows) end
    local model = Next():materialize()
    local function set(table)
      for i = 1, 5 do
        for j = 1, 5 do
          table.weight[i][j] = j == i % 5 + 1 and 1 or 0
        end
      end
    end
    ms.no_grad(set, model.table)
    checks.raises('TypeError', "generate: field 'context' of Next is nil, expected a whole number "
      .. "above 0: it continues a GPT, or a causal model with the fields 'context' (most tokens in "
      .. "a row) and 'vocab'", model.generate, model, { 1 }, 1)
    model.context = 3
    checks.raises('TypeError', "field 'vocab' of Next is nil", model.generate, model, { 1 }, 1)
    model.vocab = 0
    checks.raises('TypeError', "field 'vocab' of Next is 0", model.generate, model, { 1 }, 1)
    model.vocab = 5
    assert.same({ 3, 4, 0, 1 }, model:generate({ 2 }, 4, { temperature = 0 }))
  end)

  it('counts 6 operations per multiplied parameter, and attention', function()
    local model = tiny()
    local multiplied = model:num_parameters() - 6 * 8 -- positions are only added
    assert.equal(6 * multiplied + 6 * 2 * 6 * 8, model:flops_per_token())
    assert.equal(model:flops_per_token(), tiny { tie = false }:flops_per_token())
  end)

  it('refuses rows longer than its context and wrong shapes', function()
    checks.raises('ValueError', 'rows have 7 tokens, the context is 6', tiny(),
      ids { { 1, 2, 3, 4, 5, 6, 7 } })
    checks.raises('ValueError', 'GPT: ids have shape (3), expected (rows, tokens)', tiny(),
      ids { 1, 2, 3 })
    checks.raises('TypeError', "generate: 'ids' is a tensor, expected a list", tiny().generate,
      tiny(), ids { 1, 2 }, 3)
    checks.raises('ValueError', 'models.GPT: layers is 1.5, expected a whole number above 0',
      ms.models.GPT, { vocab = 2, layers = 1.5, heads = 1, width = 2, context = 2 })
    checks.raises('ValueError', 'models.GPT: layers is 1000000000, expected at most 4096',
      ms.models.GPT, { vocab = 2, layers = 1e9, heads = 1, width = 2, context = 2 })
    checks.raises('ValueError', 'at least one token', tiny().generate, tiny(), {}, 3)
    checks.raises('TypeError', "'ids[2]' is a string, expected a whole number", tiny().generate,
      tiny(), { 1, 'x' }, 3)
    assert.is_true(ms.is(tiny().h[1], nn.TransformerBlock))
  end)
end)
