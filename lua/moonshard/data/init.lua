--- Token files and the loader that deals their windows to ranks.

local namespace = require 'moonshard.namespace'
local data = require 'moonshard.data.tokens'

local LOADER = 'ms.data.Loader { tokens = ids, context = n, batch = rows }'
local OTHERWISE = { DataLoader = LOADER, DistributedSampler = LOADER .. ', which knows its rank' }

return namespace('data', data, { Loader = 'moonshard.data.loader' },
  require('moonshard.planned').datasets, OTHERWISE)
