--- What the reference specs share: wrapping without warnings, ranks, a plain model trained on the
--- inputs of all ranks, and a transformer with shared parameters.

local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'
local wrap = require 'support.wrap'

local reference = {
  STRATEGIES = { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' },
  --- Values of offload_params.
  OFFLOADS = { false, true },
  wrap = wrap,
}

--- Paths of all wrapped modules, as in the model before wrapping.
---@return string[]
function reference.wrapped_paths(model)
  local paths = {}
  for path, module in model:named_modules() do
    if ms.is(module, fsdp.FSDP) then
      paths[#paths + 1] = path
    end
  end
  return paths
end

--- Add the mean gradient over the inputs of `world` ranks to a plain model, as data-parallel
--- training computes it.
---@param loss_of fun(model: ms.nn.Module, rank: integer): ms.Tensor
function reference.backward_all(model, world, loss_of)
  for rank = 0, world - 1 do
    loss_of(model, rank):backward(ms.full({}, 1 / world))
  end
end

--- Fail unless a wrapped model has the plain model's parameters, by name, in order. Collective.
function reference.same_parameters(plain, model)
  fsdp.summon_full_params(model, nil, function()
    local wrapped = model:named_parameters()
    for i, entry in ipairs(plain:named_parameters()) do
      assert(wrapped[i].name == entry.name, wrapped[i].name)
      checks.close(entry.tensor:totable(), wrapped[i].tensor, 1e-5)
    end
  end)
end

-- -- models --------------------------------------------------------------------------------------

local SharedTransformer = nn.Module.extend 'TransformerWithSharedParams'

function SharedTransformer:init()
  self.embed_tokens = nn.Embedding(23, 16)
  self.transformer = nn.Transformer {
    d_model = 16, num_encoder_layers = 2, num_decoder_layers = 2, dim_feedforward = 8,
    dropout = 0.1,
  }
  self.output_proj = nn.Linear(16, 23)
  self.output_proj.weight = self.embed_tokens.weight
  self:buffer('vocab_bias', ms.ones(16))
  self:buffer('long_buffer', ms.zeros(16, { dtype = 'i64' }))
  self.bn = nn.BatchNorm1d(2)
end

function SharedTransformer:forward(src, tgt)
  local x = self.embed_tokens(src)
  x = x + self.vocab_bias + self.long_buffer:to(x:dtype())
  return self.output_proj(self.transformer(x, self.bn(self.embed_tokens(tgt))))
end

--- PyTorch's TransformerWithSharedParams, in evaluation and equal on all ranks.
---@return ms.nn.Module  forward(src, tgt) of token ids (length, 2)
function reference.shared_transformer()
  ms.manual_seed(0)
  return SharedTransformer():eval():materialize()
end

return reference
