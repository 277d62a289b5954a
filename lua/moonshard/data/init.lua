--- Datasets, tokenizers, token files, and loaders that shard samples over ranks.

local namespace = require 'moonshard.base.namespace'
local data = require 'moonshard.data.tokens'

return namespace.space('data', data, {
  Loader = 'moonshard.data.loader',
  DataLoader = 'moonshard.data.data_loader',
  Dataset = 'moonshard.data.dataset',
  TensorDataset = 'moonshard.data.tensor_dataset',
  Subset = 'moonshard.data.subset',
  Tokenizer = 'moonshard.data.tokenizer',
  TokenStream = 'moonshard.data.token_stream',
  chat = 'moonshard.data.chat',
  Chat = 'moonshard.data.chat',
  Examples = 'moonshard.data.examples',
  Mixture = 'moonshard.data.mixture',
  PackedLoader = 'moonshard.data.packed_loader',
})
