--- Datasets, token files, and the loaders that deal their samples to ranks.

local naming = require 'moonshard.internal.naming'
local data = require 'moonshard.data.tokens'

return naming.space('data', data, {
  Loader = 'moonshard.data.loader',
  DataLoader = 'moonshard.data.data_loader',
  Dataset = 'moonshard.data.dataset',
  TensorDataset = 'moonshard.data.tensor_dataset',
  Subset = 'moonshard.data.subset',
})
