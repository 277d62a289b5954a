--- Names that scripts for PyTorch use and that are still to come: asking for one raises
--- NotImplementedError, not that there is no such thing.

local unary = require 'moonshard.unary'

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
  argmax argmin argsort einsum erfc erfinv
  gather index_select logsumexp masked_select max
  min nonzero norm prod roll scatter scatter_add sort
  std topk unique var
]]
for _, name in ipairs(unary.planned) do
  planned.functions[name] = name
end

--- What to write until then, where few words say it: t, a, b, ids and mask are tensors.
planned.instead = {
  erfc = '1 - t:erf()', index_select = 'ms.ops.embedding(t, ids)',
  norm = '(t ^ 2):sum() ^ 0.5',
}

--- What to write for methods of tensors that write in place, where one line does it.
planned.in_place = {
  addcdiv_ = 't:add_(a / b, value)', addcmul_ = 't:add_(a * b, value)',
  clamp_ = 't:copy_(t:clamp(low))',
  detach_ = 't = t:detach()', div_ = 't:copy_(t / x)', lerp_ = 't:add_(x - t, weight)',
  masked_fill_ = 't:copy_(t:masked_fill(mask, value))', mul_ = 't:copy_(t * x)',
  normal_ = 't:copy_(ms.randn(t:shape()))', pow_ = 't:copy_(t ^ p)',
  sub_ = 't:add_(x, -1)', uniform_ = 't:copy_(ms.rand(t:shape()))',
}
for _, name in ipairs(unary.functions) do
  planned.in_place[name .. '_'] = ('t:copy_(t:%s())'):format(name)
end

--- Ways to make tensors, in `ms`.
planned.creation = names [[
  empty_like eye full_like linspace multinomial rand_like randint randn_like randperm
]]

--- Places and types: fields of `ms`, methods of tensors.
planned.places = {
  cuda = 'CUDA', nccl = 'NCCL', compile = 'compile',
}

--- Methods of modules.
planned.methods = { cuda = 'CUDA', compile = 'compile' }
for name in pairs(names [[register_full_backward_hook register_full_backward_pre_hook]]) do
  planned.methods[name] = 'a hook on the backward of a module'
end

--- Rooms and switches of torch, in `ms`.
planned.rooms = {
  autocast = 'autocast', profiler = 'a profiler',
  set_num_threads = 'more than one thread a rank', utils = 'activation checkpointing',
}

--- In `ms.autograd`.
planned.autograd = {
  Function = 'an operation with a backward of its own',
}

--- The layers of torch.nn.
planned.layers = names [[
  AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveLogSoftmaxWithLoss
  AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d
  BCELoss BCEWithLogitsLoss BatchNorm1d BatchNorm2d BatchNorm3d Bilinear CELU CTCLoss
  ChannelShuffle CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d
  ConstantPad3d Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d
  CosineEmbeddingLoss CosineSimilarity CrossMapLRN2d Dropout1d Dropout2d Dropout3d ELU
  EmbeddingBag FeatureAlphaDropout Flatten Fold FractionalMaxPool2d FractionalMaxPool3d GLU GRU
  GRUCell GaussianNLLLoss GroupNorm Hardshrink Hardsigmoid Hardswish Hardtanh HingeEmbeddingLoss
  HuberLoss Identity InstanceNorm1d InstanceNorm2d InstanceNorm3d KLDivLoss L1Loss LPPool1d
  LPPool2d LPPool3d LSTM LSTMCell LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyConv1d
  LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d
  LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d LazyLinear LeakyReLU
  LinearCrossEntropyLoss LocalResponseNorm LogSigmoid LogSoftmax MarginRankingLoss MaxPool1d
  MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d Mish ModuleDict MultiLabelMarginLoss
  MultiLabelSoftMarginLoss MultiMarginLoss MultiheadAttention NLLLoss NLLLoss2d PReLU
  PairwiseDistance ParameterDict ParameterList PixelShuffle PixelUnshuffle PoissonNLLLoss RMSNorm
  RNN RNNBase RNNCell RNNCellBase RReLU ReLU6 ReflectionPad1d ReflectionPad2d ReflectionPad3d
  ReplicationPad1d ReplicationPad2d ReplicationPad3d SELU SiLU Sigmoid SmoothL1Loss SoftMarginLoss
  Softmax Softmax2d Softmin Softplus Softshrink Softsign SyncBatchNorm Tanhshrink Threshold
  Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder
  TransformerEncoderLayer TripletMarginLoss TripletMarginWithDistanceLoss Unflatten Unfold
  Upsample UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d
]]

--- Those of torch.optim.
planned.optimizers = names [[
  ASGD Adadelta Adafactor Adagrad Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SparseAdam
]]
planned.optimizers.swa_utils = 'averaging weights'

--- Those of torch.optim.lr_scheduler.
planned.schedulers = names [[
  ChainedScheduler CosineAnnealingWarmRestarts CyclicLR MultiplicativeLR PolynomialLR
  ReduceLROnPlateau
]]

--- What torch.distributed has besides.
planned.collectives = names [[
  all_gather_coalesced all_reduce_coalesced all_to_all all_to_all_single batch_isend_irecv gather
  gather_into_tensor gather_single irecv isend P2POp recv reduce scatter send
]]
for name in pairs(names [[
  all_gather_object broadcast_object_list gather_object recv_object_list scatter_object_list
  send_object_list
]]) do
  planned.collectives[name] = 'a collective of objects'
end
planned.collectives.shrink_group = 'a group that goes on without some of its ranks'
for name in pairs(names [[DeviceMesh device_mesh]]) do
  planned.collectives[name] = 'a mesh of any ranks (hybrid sharding)'
end
for name in pairs(names [[FileStore HashStore PrefixStore Store TCPStore]]) do
  planned.collectives[name] = 'a store that processes share'
end
planned.collectives.rpc = 'calling functions of other processes'

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
