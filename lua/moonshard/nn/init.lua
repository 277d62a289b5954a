--- Layers: what models are made of.

local naming = require 'moonshard.internal.naming'

local lazy = {
  Module = 'moonshard.nn.module',
  Linear = 'moonshard.nn.linear',
  LinearGELU = 'moonshard.nn.linear_gelu',
  Embedding = 'moonshard.nn.embedding',
  LayerNorm = 'moonshard.nn.layer_norm',
  Dropout = 'moonshard.nn.dropout',
  GELU = 'moonshard.nn.gelu',
  ReLU = 'moonshard.nn.relu',
  Tanh = 'moonshard.nn.tanh',
  Sequential = 'moonshard.nn.sequential',
  ModuleList = 'moonshard.nn.module_list',
  CausalSelfAttention = 'moonshard.nn.causal_self_attention',
  FeedForward = 'moonshard.nn.feed_forward',
  TransformerBlock = 'moonshard.nn.transformer_block',
  MSELoss = 'moonshard.nn.mse_loss',
  CrossEntropyLoss = 'moonshard.nn.cross_entropy_loss',
  init = 'moonshard.nn.rules',
}

---@class ms.nn
---@field Module ms.nn.Module
---@field Linear ms.nn.Linear
---@field LinearGELU ms.nn.LinearGELU
---@field Embedding ms.nn.Embedding
---@field LayerNorm ms.nn.LayerNorm
---@field Dropout ms.nn.Dropout
---@field GELU ms.nn.GELU
---@field ReLU ms.nn.ReLU
---@field Tanh ms.nn.Tanh
---@field Sequential ms.nn.Sequential
---@field ModuleList ms.nn.ModuleList
---@field CausalSelfAttention ms.nn.CausalSelfAttention
---@field FeedForward ms.nn.FeedForward
---@field TransformerBlock ms.nn.TransformerBlock
---@field MSELoss ms.nn.MSELoss
---@field CrossEntropyLoss ms.nn.CrossEntropyLoss
---@field init ms.nn.init
return naming.space('nn', {}, lazy)
