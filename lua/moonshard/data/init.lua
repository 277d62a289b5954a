--- Token files and the loader that deals their windows to ranks.

local namespace = require 'moonshard.namespace'
local data = require 'moonshard.data.tokens'

return namespace('data', data, { Loader = 'moonshard.data.loader' },
  require('moonshard.planned').datasets)
