--- Token files and the loader that deals their windows to ranks.

local data = require 'moonshard.data.tokens'

return setmetatable(data, {
  __index = function(self, name)
    if name == 'Loader' then
      local value = require 'moonshard.data.loader'
      rawset(self, name, value)
      return value
    end
  end,
})
