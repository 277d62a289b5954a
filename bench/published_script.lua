--- A script for plans that are compared with published results: a Llama of any shape, in bf16 with
--- f32 masters and reductions of --reduce, each layer a unit. docs/performance.md has the commands.

dofile((arg[0]:match('^(.*)/') or '.') .. '/../examples/setup.lua')

local ms = require 'moonshard'
local flags = require 'moonshard.tools.flags'
local nn, fsdp = ms.nn, ms.fsdp

local count = { whole = true, from = 1 }
local o, mistake = flags.parse(arg, {
  { 'layers', 32, 'layers', count },
  { 'width', 4096, 'channels', count },
  { 'heads', 32, 'heads', count },
  { 'kv-heads', 8, 'heads of keys and values', count },
  { 'head-dim', 128, 'channels of a head', count },
  { 'mlp', 14336, 'inner channels of the MLP', count },
  { 'vocab', 128256, 'tokens that there are', count },
  { 'context', 8192, 'tokens of a row', count },
  { 'rows', 2, 'rows of a micro-batch of a rank', count },
  { 'micro-batches', 1, 'of a rank', count },
  { 'recompute', 'no', 'layers are computed again in backward', { one_of = { 'no', 'yes' } } },
  { 'strategy', 'FULL_SHARD', 'sharding strategy' },
  { 'reduce', 'f32', 'dtype of reductions' },
})
if not o then
  io.stderr:write('published_script: ', mistake, '\n')
  os.exit(2)
end

local function is_layer(m)
  return ms.is(m, ms.models.DecoderLayer)
end

ms.dist.init()
local model = ms.models.Decoder {
  architectures = { 'LlamaForCausalLM' }, num_hidden_layers = o.layers, hidden_size = o.width,
  num_attention_heads = o.heads, num_key_value_heads = o['kv-heads'], head_dim = o['head-dim'],
  intermediate_size = o.mlp, vocab_size = o.vocab, max_position_embeddings = o.context,
}
if o.recompute == 'yes' then
  nn.checkpoint(model, { policy = is_layer })
end
model = fsdp.FSDP(model, {
  auto_wrap_policy = fsdp.ModuleWrapPolicy {
    o.recompute == 'yes' and nn.checkpoint_wrapper or ms.models.DecoderLayer,
  },
  sharding_strategy = o.strategy, forward_prefetch = true,
  mixed_precision = { param_dtype = 'bf16', reduce_dtype = o.reduce },
})
local opt = ms.optim.AdamW(model:parameters(), { lr = 1e-4 })
local ids = ms.zeros({ o.rows, o.context }, { dtype = 'i64' })
local batches = {}
for i = 1, o['micro-batches'] do
  batches[i] = { ids, ids }
end
while true do
  ms.train.forward_backward(model, batches, function(m, x, y) return m(x, y) * ids:numel() end)
  ms.optim.clip_grad_norm_(model:parameters(), 1)
  opt:step()
  opt:zero_grad()
end
