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
  abs addmm argmax argmin argsort baddbmm bmm chunk clamp cos cumsum dot einsum erf expand expand_as
  flatten flip floor gather index_select isfinite isinf isnan log1p log2 logsumexp masked_fill
  masked_select max maximum min minimum mm mv neg nonzero norm outer prod repeat roll round rsqrt
  scatter scatter_add sigmoid sign silu sin softmax softplus sort split square squeeze stack std
  tile topk tril triu unbind unique unsqueeze var view_as
]]

--- What to write until then, where few words say it: t, a, b, ids and mask are tensors.
planned.instead = {
  abs = 'ms.where(t:lt(0), -t, t)', bmm = 'a:matmul(b)', chunk = 't:narrow(dim, first, n)',
  clamp = 'ms.where(t:lt(low), low, t)', dot = '(a * b):sum()', flatten = 't:reshape(-1)',
  index_select = 'ms.ops.embedding(t, ids)', isnan = 't:ne(t)',
  masked_fill = 'ms.where(mask, value, t)',
  maximum = 'ms.where(a:gt(b), a, b)', minimum = 'ms.where(a:lt(b), a, b)', mm = 'a:matmul(b)',
  neg = '-t', norm = '(t ^ 2):sum() ^ 0.5', outer = 'a:reshape(-1, 1) * b', rsqrt = 't ^ -0.5',
  sigmoid = '1 / (1 + (-t):exp())', softmax = 't:log_softmax(dim):exp()',
  split = 't:narrow(dim, first, n)', square = 't ^ 2', squeeze = 't:reshape(sizes)',
  stack = 'ms.cat({ a:reshape(1, -1), b:reshape(1, -1) }, 1)', unbind = 't[i]',
  unsqueeze = 't:reshape(sizes)', view_as = 't:reshape(a:shape())',
}

--- What to write for methods of tensors that write in place, where one line does it.
planned.in_place = {
  addcdiv_ = 't:add_(a / b, value)', addcmul_ = 't:add_(a * b, value)',
  detach_ = 't = t:detach()', div_ = 't:copy_(t / x)', lerp_ = 't:add_(x - t, weight)',
  mul_ = 't:copy_(t * x)', normal_ = 't:copy_(ms.randn(t:shape()))', pow_ = 't:copy_(t ^ p)',
  sub_ = 't:add_(x, -1)', uniform_ = 't:copy_(ms.rand(t:shape()))',
}
for name in pairs(names [[exp log reciprocal relu sqrt tanh]]) do
  planned.in_place[name .. '_'] = ('t:copy_(t:%s())'):format(name)
end
for name in pairs(names [[abs clamp masked_fill neg rsqrt sigmoid square]]) do
  planned.in_place[name .. '_'] = ('t:copy_(%s)'):format(planned.instead[name])
end

--- Ways to make tensors, in `ms`.
planned.creation = names [[
  empty_like eye full_like linspace multinomial rand_like randint randn_like randperm
]]

--- Places and types: fields of `ms`, methods of tensors.
planned.places = {
  cuda = 'CUDA', nccl = 'NCCL', compile = 'compile', f16 = 'f16', float16 = 'f16', half = 'f16',
}

--- Methods of modules. Layers take a dtype when they are made.
planned.methods = { cuda = 'CUDA', half = 'f16', compile = 'compile' }
for name in pairs(names [[bfloat16 double float to]]) do
  planned.methods[name] = 'moving or casting a model'
end
for name in pairs(names [[register_full_backward_hook register_full_backward_pre_hook]]) do
  planned.methods[name] = 'a hook on the backward of a module'
end

--- Rooms and switches of torch, in `ms`.
planned.rooms = {
  amp = 'autocast', autocast = 'autocast', GradScaler = 'loss scaling', profiler = 'a profiler',
  set_num_threads = 'more than one thread a rank', utils = 'activation checkpointing',
}

--- In `ms.autograd`.
planned.autograd = {
  grad = 'a gradient that is returned', Function = 'an operation with a backward of its own',
}

planned.layers = names [[
  AvgPool2d BCELoss BCEWithLogitsLoss BatchNorm1d BatchNorm2d BatchNorm3d Conv1d Conv2d Conv3d
  Flatten GRU GroupNorm HuberLoss Identity L1Loss LSTM LeakyReLU LogSoftmax MaxPool2d ModuleDict
  MultiheadAttention NLLLoss ParameterList RMSNorm RNN SiLU Sigmoid SmoothL1Loss Softmax Softplus
  SyncBatchNorm Transformer TransformerDecoder TransformerEncoder TransformerEncoderLayer
]]

planned.optimizers = names [[Adadelta Adagrad Adamax LBFGS NAdam RAdam RMSprop]]

planned.collectives = names [[all_to_all gather irecv isend recv reduce scatter send]]
for name in pairs(names [[
  all_gather_object broadcast_object_list gather_object scatter_object_list
]]) do
  planned.collectives[name] = 'a collective of objects'
end

--- Options that layers, optimizers and functions take in PyTorch, by what messages call these.
planned.options = {
  allclose = names 'equal_nan',
  ['nn.CrossEntropyLoss'] = names 'label_smoothing weight',
  ['data.Loader'] = names 'drop_last num_workers pin_memory',
  ['nn.Embedding'] = names 'max_norm padding_idx',
  ['optim.Adam'] = names 'amsgrad capturable differentiable foreach fused',
  ['optim.AdamW'] = names 'amsgrad capturable differentiable foreach fused',
  ['optim.SGD'] = names 'differentiable foreach fused',
  generate = names 'repetition_penalty top_p',
}

--- Words that options take in PyTorch, by the option's name.
planned.words = { reduction = names 'none' }

--- Numbers in files of tokens.
planned.token_types = names 'i16 i32 int16 int32 u16 u32 uint16 uint32'

--- In `data`: batches of anything but windows of tokens.
planned.datasets = names [[
  BatchSampler DataLoader Dataset DistributedSampler IterableDataset RandomSampler Sampler
  TensorDataset
]]

return planned
