--- Token files and the loader that deals their windows to ranks.

local naming = require 'moonshard.internal.naming'
local data = require 'moonshard.data.tokens'

return naming.space('data', data, { Loader = 'moonshard.data.loader' })
