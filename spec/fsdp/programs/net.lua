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
  if self.runs and not self.at.apart then
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

-- Its backward reads no parameter.
local Addend = nn.Module.extend 'Addend'

function Addend:init(p)
  self:param('bias', { p.width }, { kind = 'uniform', a = -1, b = 1 }, { dtype = p.master })
end

function Addend:forward(x) return x + self.bias:to(x:dtype()) end

local Net = nn.Module.extend 'Net'

--- `at.apart`: a forward is no training; `at.fails`: it raises.
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
  if self.uses_spare and self.uses_spare() then
    x = x + self.spare(x)
  end
  return self.head(self.addend and self.addend(x) or x)
end

--- The blocks and layers that are sharded by hand.
function Net:parts()
  local out = {}
  for i = 1, self.n do
    out[i] = 'b' .. i
  end
  out[#out + 1] = self.addend and 'addend' or nil
  out[#out + 1] = 'head'
  return out
end

return { Addend = Addend, Block = Block, Net = Net }
