--- A layer whose forward replaces a buffer, the running mean of its outputs, and records this.

local ms = require 'moonshard'
local nn = ms.nn

local RunningMean = nn.Module.extend('RunningMean', nn.Linear)

function RunningMean:init()
  nn.Linear.init(self, 2, 2)
  self:buffer('mean', ms.zeros(2))
end

function RunningMean:forward(x)
  local y = nn.Linear.forward(self, x)
  self.mean = self.mean * 0.9 + y:mean(1) * 0.1
  return y
end

return RunningMean
