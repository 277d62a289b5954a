--- Token files and the loader that deals their windows to ranks.

local naming = require 'moonshard.internal.naming'
local data = require 'moonshard.data.tokens'

local LOADER = 'ms.data.Loader { tokens = ids, context = n, batch = rows }'
local OTHERWISE = { DataLoader = LOADER, DistributedSampler = LOADER .. ', which knows its rank' }

return naming.space('data', data, { Loader = 'moonshard.data.loader' }, OTHERWISE)
