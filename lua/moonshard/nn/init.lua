--- Layers: what models are made of.

local lazy = {
  Module = 'module',
  Linear = 'linear',
  LinearGELU = 'linear_gelu',
  Embedding = 'embedding',
  LayerNorm = 'layer_norm',
  Dropout = 'dropout',
  GELU = 'gelu',
  ReLU = 'relu',
  Tanh = 'tanh',
  Sequential = 'sequential',
  ModuleList = 'module_list',
  CausalSelfAttention = 'causal_self_attention',
  FeedForward = 'feed_forward',
  TransformerBlock = 'transformer_block',
  MSELoss = 'mse_loss',
  CrossEntropyLoss = 'cross_entropy_loss',
  init = 'rules',
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
return setmetatable({}, {
  __index = function(nn, name)
    local file = lazy[name]
    if file then
      local value = require('moonshard.nn.' .. file)
      rawset(nn, name, value)
      return value
    end
  end,
})
