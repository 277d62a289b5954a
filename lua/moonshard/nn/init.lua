--- Layers.

local namespace = require 'moonshard.base.namespace'

-- Classes by file; a file that defines several returns a table of them.
local FILES = {
  ['moonshard.nn.module'] = { 'Module' },
  ['moonshard.nn.linear'] = { 'Linear' },
  ['moonshard.nn.linear_gelu'] = { 'LinearGELU' },
  ['moonshard.nn.embedding'] = { 'Embedding' },
  ['moonshard.nn.layer_norm'] = { 'LayerNorm' },
  ['moonshard.nn.rms_norm'] = { 'RMSNorm' },
  ['moonshard.nn.group_norm'] = { 'GroupNorm' },
  ['moonshard.nn.batch_norm'] = { '_BatchNorm', 'BatchNorm1d', 'BatchNorm2d', 'BatchNorm3d' },
  ['moonshard.nn.sync_batch_norm'] = { 'SyncBatchNorm' },
  ['moonshard.nn.conv'] = { '_ConvNd', 'Conv1d', 'Conv2d', 'Conv3d' },
  ['moonshard.nn.conv_transpose'] = { 'ConvTranspose1d', 'ConvTranspose2d', 'ConvTranspose3d' },
  ['moonshard.nn.upsample'] = { 'Upsample' },
  ['moonshard.nn.pool'] = {
    'MaxPool1d', 'MaxPool2d', 'MaxPool3d', 'AvgPool1d', 'AvgPool2d', 'AvgPool3d',
    'AdaptiveAvgPool1d', 'AdaptiveAvgPool2d', 'AdaptiveAvgPool3d',
  },
  ['moonshard.nn.dropout'] = { 'Dropout' },
  ['moonshard.nn.activations'] = {
    'GELU', 'ReLU', 'LeakyReLU', 'SiLU', 'Sigmoid', 'Tanh', 'Softplus', 'Softmax', 'LogSoftmax',
  },
  ['moonshard.nn.identity'] = { 'Identity' },
  ['moonshard.nn.flatten'] = { 'Flatten' },
  ['moonshard.nn.sequential'] = { 'Sequential' },
  ['moonshard.nn.module_list'] = { 'ModuleList' },
  ['moonshard.nn.module_dict'] = { 'ModuleDict' },
  ['moonshard.nn.parameter_list'] = { 'ParameterList' },
  ['moonshard.nn.rnn'] = { 'RNN', 'LSTM', 'GRU', 'RNNCell', 'LSTMCell', 'GRUCell' },
  ['moonshard.nn.multihead_attention'] = { 'MultiheadAttention' },
  ['moonshard.nn.transformer'] = { 'Transformer' },
  ['moonshard.nn.transformer_encoder'] = { 'TransformerEncoder' },
  ['moonshard.nn.transformer_decoder'] = { 'TransformerDecoder' },
  ['moonshard.nn.transformer_encoder_layer'] = { 'TransformerEncoderLayer' },
  ['moonshard.nn.transformer_decoder_layer'] = { 'TransformerDecoderLayer' },
  ['moonshard.nn.causal_self_attention'] = { 'CausalSelfAttention' },
  ['moonshard.nn.feed_forward'] = { 'FeedForward' },
  ['moonshard.nn.swiglu'] = { 'SwiGLU' },
  ['moonshard.nn.grouped_query_attention'] = { 'GroupedQueryAttention' },
  ['moonshard.nn.rotary'] = { 'Rotary' },
  ['moonshard.nn.transformer_block'] = { 'TransformerBlock' },
  ['moonshard.nn.losses'] = {
    'MSELoss', 'CrossEntropyLoss', 'NLLLoss', 'BCEWithLogitsLoss', 'L1Loss', 'SmoothL1Loss',
    'HuberLoss',
  },
  ['moonshard.nn.checkpoint'] = { 'checkpoint' },
  ['moonshard.nn.checkpoint_wrapper'] = { 'checkpoint_wrapper' },
  ['moonshard.nn.rules'] = { 'init' },
}

local lazy = {}
for file, names in next, FILES do
  for _, name in ipairs(names) do
    lazy[name] = file
  end
end

---@class ms.nn
---@field Module ms.nn.Module
---@field Linear ms.nn.Linear
---@field LinearGELU ms.nn.LinearGELU
---@field Embedding ms.nn.Embedding
---@field LayerNorm ms.nn.LayerNorm
---@field RMSNorm ms.nn.RMSNorm
---@field GroupNorm ms.nn.GroupNorm
---@field _BatchNorm ms.nn._BatchNorm
---@field BatchNorm1d ms.nn.BatchNorm1d
---@field BatchNorm2d ms.nn.BatchNorm2d
---@field BatchNorm3d ms.nn.BatchNorm3d
---@field SyncBatchNorm ms.nn.SyncBatchNorm
---@field _ConvNd ms.nn._ConvNd
---@field Conv1d ms.nn.Conv1d
---@field Conv2d ms.nn.Conv2d
---@field Conv3d ms.nn.Conv3d
---@field ConvTranspose1d ms.nn.ConvTranspose1d
---@field ConvTranspose2d ms.nn.ConvTranspose2d
---@field ConvTranspose3d ms.nn.ConvTranspose3d
---@field Upsample ms.nn.Upsample
---@field MaxPool1d ms.nn.MaxPool1d
---@field MaxPool2d ms.nn.MaxPool2d
---@field MaxPool3d ms.nn.MaxPool3d
---@field AvgPool1d ms.nn.AvgPool1d
---@field AvgPool2d ms.nn.AvgPool2d
---@field AvgPool3d ms.nn.AvgPool3d
---@field AdaptiveAvgPool1d ms.nn.AdaptiveAvgPool1d
---@field AdaptiveAvgPool2d ms.nn.AdaptiveAvgPool2d
---@field AdaptiveAvgPool3d ms.nn.AdaptiveAvgPool3d
---@field Dropout ms.nn.Dropout
---@field GELU ms.nn.GELU
---@field ReLU ms.nn.ReLU
---@field LeakyReLU ms.nn.LeakyReLU
---@field SiLU ms.nn.SiLU
---@field Sigmoid ms.nn.Sigmoid
---@field Tanh ms.nn.Tanh
---@field Softplus ms.nn.Softplus
---@field Softmax ms.nn.Softmax
---@field LogSoftmax ms.nn.LogSoftmax
---@field Identity ms.nn.Identity
---@field Flatten ms.nn.Flatten
---@field Sequential ms.nn.Sequential
---@field ModuleList ms.nn.ModuleList
---@field ModuleDict ms.nn.ModuleDict
---@field ParameterList ms.nn.ParameterList
---@field RNN ms.nn.RNN
---@field LSTM ms.nn.LSTM
---@field GRU ms.nn.GRU
---@field RNNCell ms.nn.RNNCell
---@field LSTMCell ms.nn.LSTMCell
---@field GRUCell ms.nn.GRUCell
---@field MultiheadAttention ms.nn.MultiheadAttention
---@field Transformer ms.nn.Transformer
---@field TransformerEncoder ms.nn.TransformerEncoder
---@field TransformerDecoder ms.nn.TransformerDecoder
---@field TransformerEncoderLayer ms.nn.TransformerEncoderLayer
---@field TransformerDecoderLayer ms.nn.TransformerDecoderLayer
---@field CausalSelfAttention ms.nn.CausalSelfAttention
---@field FeedForward ms.nn.FeedForward
---@field SwiGLU ms.nn.SwiGLU
---@field GroupedQueryAttention ms.nn.GroupedQueryAttention
---@field Rotary ms.nn.Rotary
---@field TransformerBlock ms.nn.TransformerBlock
---@field MSELoss ms.nn.MSELoss
---@field CrossEntropyLoss ms.nn.CrossEntropyLoss
---@field checkpoint fun(fn: ms.nn.Module|function, ...): ...
---@field checkpoint_wrapper ms.nn.CheckpointWrapper
---@field NLLLoss ms.nn.NLLLoss
---@field BCEWithLogitsLoss ms.nn.BCEWithLogitsLoss
---@field L1Loss ms.nn.L1Loss
---@field SmoothL1Loss ms.nn.SmoothL1Loss
---@field HuberLoss ms.nn.HuberLoss
---@field init ms.nn.init
return namespace.space('nn', {}, lazy)
