--- The model of the random programs: blocks and a head, and what single axes add to them.

local ms = require 'moonshard'
local nn = ms.nn

local Block = nn.Module.extend 'Block'

function Block:init(p, at, runs, label)
  self.linear = nn.Linear(p.width, p.width, { dtype = p.master })
  self.at, self.runs, self.label = at, runs, label
end

-- An ignored block computes in its own dtype.
function Block:forward(x, cache)
  assert(not (self.at.fails and self.label == 'b2'), 'this forward fails')
  if not self.at.apart then
    self.runs[self.label] = (self.runs[self.label] or 0) + 1
  end
  local own = self.is_ignored and x:to(self.linear.weight:dtype()) or x
  local y = self.linear(own)
  if self.shift then
    y = y + self.shift:to(y:dtype())
  end
  if cache then
    cache.calls = (cache.calls or 0) + 1
    cache[self.label] = ms.keep(y)
  end
  return x + y:tanh():to(x:dtype())
end

local Net = nn.Module.extend 'Net'

--- `at.rank`, `at.step`: whose inputs a forward has. `at.apart`: it is no training;
--- `at.fails`: it raises.
function Net:init(p, at, runs)
  self.at, self.n = at, p.blocks
  for i = 1, p.blocks do
    self:child('b' .. i, Block(p, at, runs, 'b' .. i))
  end
  self.head = nn.Linear(p.width, p.width, { dtype = p.master })
end

function Net:forward(x, cache)
  if self.gain then
    x = x * self.gain
  end
  for i = 1, self.n do
    x = self['b' .. i](x, cache)
  end
  if self.uses_spare and self.uses_spare(self.at) then
    x = x + self.spare(x)
  end
  return self.head(x)
end

return { Block = Block, Net = Net }
