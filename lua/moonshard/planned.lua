--- Names that scripts for PyTorch use and that are still to come: asking for one raises
--- NotImplementedError, not that there is no such thing.

local function names(text)
  local list = {}
  for name in text:gmatch('%S+') do
    list[name] = name
  end
  return list
end

local planned = {}

--- Functions of tensors, in `ms` and as methods.
planned.functions = names [[
  abs argmax argmin argsort bmm chunk clamp cos cumsum einsum erf expand expand_as flatten flip
  floor gather index_select isfinite isinf isnan log1p log2 logsumexp masked_fill masked_select max
  min neg nonzero norm outer prod repeat round rsqrt scatter sigmoid sign silu sin softmax sort
  split square squeeze stack std tile topk tril triu unbind unique unsqueeze var view_as
]]

--- Ways to make tensors, in `ms`.
planned.creation = names [[
  empty_like eye full_like linspace multinomial rand_like randint randn_like randperm
]]

--- Places and types: fields of `ms`, methods of tensors.
planned.places = {
  cuda = 'CUDA', nccl = 'NCCL', compile = 'compile', f16 = 'f16', float16 = 'f16', half = 'f16',
}

planned.layers = names [[
  AvgPool2d BCELoss BCEWithLogitsLoss BatchNorm1d BatchNorm2d Conv1d Conv2d Flatten GRU GroupNorm
  Identity L1Loss LSTM LeakyReLU LogSoftmax MaxPool2d ModuleDict MultiheadAttention NLLLoss RMSNorm
  RNN SiLU Sigmoid Softmax SyncBatchNorm Transformer TransformerEncoder TransformerEncoderLayer
]]

return planned
