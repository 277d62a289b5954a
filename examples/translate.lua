dofile((arg[0]:match('^(.*)/') or '.') .. '/setup.lua')

--- Trains an encoder and a decoder to write sequences of digits in reverse, on sharded parameters.
---
---   luajit examples/translate.lua                      one rank per core, less than a minute
---   ./dev moonshard run -n 2 examples/translate.lua    the same under a launcher
---
--- Makes its sequences, which have different lengths, prints the loss as it trains, and ends with
--- the accuracy of greedy decoding on sequences that it has not trained on.

local ms = require 'moonshard'
local flags = require 'moonshard.tools.flags'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim

-- Tokens: the digits, and what begins, ends and pads a sequence.
local BEGIN, END, PAD, VOCAB = 10, 11, 12, 13

local count = { whole = true, from = 1 }
local spec = {
  flags.device,
  { 'ranks', 0, 'processes on this host (0: one per core, at most 8)', { whole = true, from = 0 } },
  { 'strategy', 'FULL_SHARD', 'FULL_SHARD, SHARD_GRAD_OP or NO_SHARD',
    { one_of = { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } } },
  { 'layers', 2, 'layers of the encoder, and of the decoder', count },
  { 'width', 64, 'channels', count },
  { 'heads', 4, 'attention heads', count },
  { 'dropout', 0, 'dropout probability', { from = 0, below = 1 } },
  { 'shortest', 3, 'digits of the shortest sequences', count },
  { 'longest', 10, 'digits of the longest sequences', count },
  { 'steps', 400, 'optimizer steps', count },
  { 'batch', 64, 'sequences of one step, over all ranks', count },
  { 'test', 512, 'sequences of the test, over all ranks', count },
  { 'lr', 2e-3, 'highest learning rate', { from = 0 } },
  { 'seed', 1, 'of initial values and sequences', { whole = true, from = 0 } },
  { 'help', false, 'this text' },
}

local function fail(message)
  io.stderr:write('translate: ', message, '\n')
  os.exit(2)
end

local o = flags.read(spec, 'examples/translate.lua', 'Trains an encoder and a decoder on digits.',
  fail)
if o.width % o.heads ~= 0 then
  fail(('--width=%d cannot be dealt to %d heads evenly'):format(o.width, o.heads))
elseif o.shortest > o.longest then
  fail(('--shortest=%d is more than --longest=%d'):format(o.shortest, o.longest))
end

local world = ms.dist.init { ranks = o.ranks > 0 and o.ranks or nil }
local first = world.rank == 0
ms.manual_seed(o.seed)

for _, name in ipairs { 'batch', 'test' } do
  if o[name] % world.world_size ~= 0 then
    if first then
      io.stderr:write(('translate: --%s=%d cannot be dealt to %d ranks evenly\n'):format(name,
        o[name], world.world_size))
    end
    ms.dist.barrier()
    ms.dist.exit(2)
  end
end

-- -- the sequences -------------------------------------------------------------------------------

local LENGTH = o.longest + 1 -- of targets, with what begins or ends them

local function padded(tokens, length)
  for i = #tokens + 1, length do
    tokens[i] = PAD
  end
  return tokens
end

local function tensor(rows)
  return ms.tensor(rows, { dtype = ms.i64 })
end

-- This rank's share of `n` sequences, a function of `seed`: sources (n, longest), what the decoder
-- reads and what it must write (n, LENGTH).
local function sequences(n, seed)
  local sources, read, written = {}, {}, {}
  math.randomseed(seed * world.world_size + world.rank)
  for i = 1, n / world.world_size do
    local length = math.random(o.shortest, o.longest)
    local source, input, output = {}, { BEGIN }, {}
    for t = 1, length do
      local digit = math.random(0, 9)
      source[t], output[length + 1 - t], input[length + 2 - t] = digit, digit, digit
    end
    output[length + 1] = END
    sources[i], read[i] = padded(source, o.longest), padded(input, LENGTH)
    written[i] = padded(output, LENGTH)
  end
  return tensor(sources), tensor(read), tensor(written)
end

-- -- the model -----------------------------------------------------------------------------------

local Translator = nn.Module.extend('Translator')

function Translator:init()
  self.tokens = nn.Embedding(VOCAB, o.width)
  self.positions = nn.Embedding(LENGTH, o.width)
  self.transformer = nn.Transformer {
    d_model = o.width, nhead = o.heads, num_encoder_layers = o.layers,
    num_decoder_layers = o.layers, dim_feedforward = 4 * o.width, dropout = o.dropout,
    norm_first = true, batch_first = true,
  }
  self.head = nn.Linear(o.width, VOCAB)
end

function Translator:embed(ids)
  return self.tokens(ids) + self.positions(ms.arange(ids:size(2)))
end

-- Tokens after each of `read`. Queries see the target up to themselves, and no padding.
function Translator:decode(memory, hidden, read)
  return self.head(self.transformer.decoder(self:embed(read), memory, {
    tgt_is_causal = true, tgt_key_padding_mask = read:eq(PAD), memory_key_padding_mask = hidden,
  }))
end

-- The most likely token, one after another.
function Translator:greedy(memory, hidden)
  local read = ms.full({ memory:size(1), 1 }, BEGIN, { dtype = ms.i64 })
  for t = 1, LENGTH do
    local last = self:decode(memory, hidden, read):select(2, t)
    read = ms.cat({ read, last:argmax(2, true) - 1 }, 2) -- positions count from 1, tokens from 0
  end
  return read:narrow(2, 2, LENGTH)
end

--- Logits (N, LENGTH, VOCAB) of targets (N, LENGTH); without targets, the tokens it writes.
function Translator:forward(source, read)
  local hidden = source:eq(PAD)
  local memory = self.transformer.encoder(self:embed(source), { src_key_padding_mask = hidden })
  if read == nil then
    return self:greedy(memory, hidden)
  end
  return self:decode(memory, hidden, read)
end

local model = fsdp.FSDP(Translator(), {
  auto_wrap_policy = fsdp.ModuleWrapPolicy {
    nn.TransformerEncoderLayer, nn.TransformerDecoderLayer,
  },
  sharding_strategy = o.strategy,
})
local opt = optim.AdamW(model:parameters(), { lr = o.lr, weight_decay = 0.01 })
local lr_at = ms.schedule.cosine {
  lr = o.lr, warmup = math.min(50, o.steps), total = o.steps, final = 0,
}

-- -- training ------------------------------------------------------------------------------------

local function over_ranks(value, reduction)
  return ms.dist.all_reduce(ms.full({ 1 }, value, { dtype = ms.f64 }), reduction):item()
end

local function train_step(step)
  opt:set_lr(lr_at(step - 1))
  local loss = ms.scope(function()
    local source, read, written = sequences(o.batch, o.seed + step)
    local l = ms.ops.cross_entropy(model(source, read), written, { ignore_index = PAD })
    l:backward()
    return l:item()
  end)
  model:clip_grad_norm_(1.0)
  opt:step()
  opt:zero_grad()
  return over_ranks(loss, 'avg')
end

local begun = ms.time()
if first then
  print(('%d parameters on %d rank%s'):format(model:num_parameters(), world.world_size,
    world.world_size > 1 and 's' or ''))
end
for step = 1, o.steps do
  local loss = train_step(step)
  if first and (step % 50 == 0 or step == o.steps) then
    print(('step %d/%d  loss %.4f'):format(step, o.steps, loss))
    io.flush()
  end
end

-- -- the test ------------------------------------------------------------------------------------

local function text(tokens)
  local length = 0
  while length < #tokens and tokens[length + 1] < BEGIN do
    length = length + 1
  end
  return table.concat(tokens, '', 1, length)
end

-- Of this rank's sequences, how many it writes without a mistake, the end too.
local function correct()
  local source, _, written = sequences(o.test, o.seed + o.steps + 1)
  local out = model(source)
  if first then
    print(('%s -> %s'):format(text(source[1]:totable()), text(out[1]:totable())))
  end
  local right = out:eq(written):logical_or(written:eq(PAD)):to('f32')
  return right:sum(2):eq(LENGTH):to('f32'):sum():item()
end

model:eval()
local right = over_ranks(ms.scope(function() return ms.no_grad(correct) end), 'sum')
if first then
  print(('accuracy %.1f %% on %d new sequences, %.1f s'):format(100 * right / o.test, o.test,
    ms.time() - begun))
end
ms.dist.exit(0)
