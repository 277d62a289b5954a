--- Layers: what models are made of.

local naming = require 'moonshard.internal.naming'

local lazy = {
  Module = 'moonshard.nn.module',
  Linear = 'moonshard.nn.linear',
  LinearGELU = 'moonshard.nn.linear_gelu',
  Embedding = 'moonshard.nn.embedding',
  LayerNorm = 'moonshard.nn.layer_norm',
  RMSNorm = 'moonshard.nn.rms_norm',
  GroupNorm = 'moonshard.nn.group_norm',
  _BatchNorm = 'moonshard.nn.batch_norm',
  BatchNorm1d = 'moonshard.nn.batch_norm1d',
  BatchNorm2d = 'moonshard.nn.batch_norm2d',
  BatchNorm3d = 'moonshard.nn.batch_norm3d',
  SyncBatchNorm = 'moonshard.nn.sync_batch_norm',
  Dropout = 'moonshard.nn.dropout',
  GELU = 'moonshard.nn.gelu',
  ReLU = 'moonshard.nn.relu',
  LeakyReLU = 'moonshard.nn.leaky_relu',
  SiLU = 'moonshard.nn.silu',
  Sigmoid = 'moonshard.nn.sigmoid',
  Tanh = 'moonshard.nn.tanh',
  Softmax = 'moonshard.nn.softmax',
  LogSoftmax = 'moonshard.nn.log_softmax',
  Identity = 'moonshard.nn.identity',
  Flatten = 'moonshard.nn.flatten',
  Sequential = 'moonshard.nn.sequential',
  ModuleList = 'moonshard.nn.module_list',
  ModuleDict = 'moonshard.nn.module_dict',
  ParameterList = 'moonshard.nn.parameter_list',
  MultiheadAttention = 'moonshard.nn.multihead_attention',
  Transformer = 'moonshard.nn.transformer',
  TransformerEncoder = 'moonshard.nn.transformer_encoder',
  TransformerDecoder = 'moonshard.nn.transformer_decoder',
  TransformerEncoderLayer = 'moonshard.nn.transformer_encoder_layer',
  TransformerDecoderLayer = 'moonshard.nn.transformer_decoder_layer',
  CausalSelfAttention = 'moonshard.nn.causal_self_attention',
  FeedForward = 'moonshard.nn.feed_forward',
  TransformerBlock = 'moonshard.nn.transformer_block',
  MSELoss = 'moonshard.nn.mse_loss',
  CrossEntropyLoss = 'moonshard.nn.cross_entropy_loss',
  checkpoint = 'moonshard.nn.checkpoint',
  checkpoint_wrapper = 'moonshard.nn.checkpoint_wrapper',
  init = 'moonshard.nn.rules',
}

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
---@field Dropout ms.nn.Dropout
---@field GELU ms.nn.GELU
---@field ReLU ms.nn.ReLU
---@field LeakyReLU ms.nn.LeakyReLU
---@field SiLU ms.nn.SiLU
---@field Sigmoid ms.nn.Sigmoid
---@field Tanh ms.nn.Tanh
---@field Softmax ms.nn.Softmax
---@field LogSoftmax ms.nn.LogSoftmax
---@field Identity ms.nn.Identity
---@field Flatten ms.nn.Flatten
---@field Sequential ms.nn.Sequential
---@field ModuleList ms.nn.ModuleList
---@field ModuleDict ms.nn.ModuleDict
---@field ParameterList ms.nn.ParameterList
---@field MultiheadAttention ms.nn.MultiheadAttention
---@field Transformer ms.nn.Transformer
---@field TransformerEncoder ms.nn.TransformerEncoder
---@field TransformerDecoder ms.nn.TransformerDecoder
---@field TransformerEncoderLayer ms.nn.TransformerEncoderLayer
---@field TransformerDecoderLayer ms.nn.TransformerDecoderLayer
---@field CausalSelfAttention ms.nn.CausalSelfAttention
---@field FeedForward ms.nn.FeedForward
---@field TransformerBlock ms.nn.TransformerBlock
---@field MSELoss ms.nn.MSELoss
---@field CrossEntropyLoss ms.nn.CrossEntropyLoss
---@field checkpoint fun(fn: ms.nn.Module|function, ...): ...
---@field checkpoint_wrapper ms.nn.CheckpointWrapper
---@field init ms.nn.init
return naming.space('nn', {}, lazy)
