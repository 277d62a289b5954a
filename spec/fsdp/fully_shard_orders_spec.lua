-- The order in which fully_shard gathers, frees and reduces the groups of a model, as PyTorch's.

local scripts = require 'support.scripts'

-- Runs on each of two ranks: make() a model of blocks, then steps, between lines on stderr. The
-- root has a parameter before its blocks, or behind them. `block` 'Shift': backward reads no
-- parameter. Rank 1 logs.
local SCRIPT = [[
local nn, fsdp = ms.nn, ms.fsdp
local model, block, x, loss, before

local Shift = nn.Module.extend 'Shift'
function Shift:init() self:param('bias', { 4 }) end
function Shift:forward(y) return y + self.bias end

local Net = nn.Module.extend 'Net'
function Net:init(n, root, class)
  self.n, self.root = n, root
  for i = 1, n do
    self:child('b' .. i, class(4, 4))
  end
  if root then
    self:param('gain', { 4 })
  end
end
function Net:forward(y)
  y = self.root == 'before' and y * self.gain or y
  for i = 1, self.n do
    y = self['b' .. i](y)
  end
  return y * (self.root == 'behind' and self.gain or 2)
end

local function recompute(when, o)
  if o.recompute == when then
    nn.checkpoint(model, { policy = function(m) return ms.is(m, nn.Linear) end })
  end
end
local function make(o)
  model, block, loss = nil, nil, nil
  ms.collect() -- frees the groups of the model before
  model, block = Net(o.blocks, o.root, o.block == 'Shift' and Shift or nn.Linear), {}
  recompute('before', o)
  for i = 1, o.blocks do
    block[i] = fsdp.fully_shard(model['b' .. i], { reshard_after_forward = o.reshard })
  end
  fsdp.fully_shard(model, { reshard_after_forward = o.reshard })
  recompute('after', o)
end
local function forward() loss = model(x):sum() end
local function backward() loss:backward() end
local function evaluate() ms.no_grad(model, x) end

local function mark(name)
  local now = ms.dist.counts()
  if ms.dist.rank() == 1 then
    io.stderr:write(('mark %s %d %d\n'):format(name, now.all_gather - before.all_gather,
      now.reduce_scatter - before.reduce_scatter))
  end
  before = ms.dist.counts()
end
]]

local ALL = '+r +1 -1 +2 -2 +3 -3' -- a forward of three blocks; the root is kept
local BACK = '+3 +2 =3 -3 +1 =2 -2 =1 -1 =r -r'
local KEPT = '=3 -3 =2 -2 =1 -1 =r -r'

-- +g: a group is gathered, or that begins; -g: freed; =g: reduced. g: a block's number, or r for
-- the root. PyTorch frees a group, then reduces it; here the reduction begins first.
-- Rows: what make() is called with, then code and what it causes. All run with and without
-- activation checkpointing, which adds nothing: the recomputation finds its group gathered.
local ROWS = {
  -- the root has no parameters
  { 'blocks = 1', 'forward()', '+1 -1', 'backward()', '+1 =1 -1' },
  { 'blocks = 2', 'forward()', '+1 -1 +2 -2', 'backward()', '+2 +1 =2 -2 =1 -1' },
  { 'blocks = 3', 'forward()', '+1 -1 +2 -2 +3 -3', 'backward()',
    '+3 +2 =3 -3 +1 =2 -2 =1 -1' },
  { 'blocks = 3, reshard = false', 'forward()', '+1 +2 +3', 'backward()', '=3 -3 =2 -2 =1 -1' },

  -- it is kept after forward, unless the option is true
  { "blocks = 1, root = 'before'", 'forward()', '+r +1 -1', 'backward()', '+1 =1 -1 =r -r' },
  { "blocks = 2, root = 'before'", 'forward()', '+r +1 -1 +2 -2', 'backward()',
    '+2 +1 =2 -2 =1 -1 =r -r' },
  { "blocks = 3, root = 'before'", 'forward()', ALL, 'backward()', BACK },
  { "blocks = 3, root = 'before', reshard = true", 'forward()', ALL .. ' -r', 'backward()',
    '+r ' .. BACK },
  { "blocks = 3, root = 'before', reshard = false", 'forward()', '+r +1 +2 +3', 'backward()',
    KEPT },
  -- PyTorch reduces a root at the end. Here a group is reduced once its gradients are complete, and
  -- freed once backward has passed all that its forward recorded
  { "blocks = 2, root = 'behind'", 'forward()', '+r +1 -1 +2 -2', 'backward()',
    '+2 =r +1 =2 -2 =1 -r -1' },

  -- settings
  { "blocks = 3, root = 'before'",
    'forward(); backward()', ALL .. ' ' .. BACK,
    'model:set_reshard_after_forward(false); forward()', '+r +1 +2 +3', 'backward()', KEPT,
    'model:set_reshard_after_forward(true, false); forward()', '+r +1 +2 +3 -r',
    'backward()', '+r ' .. KEPT,
    'block[2]:set_reshard_after_forward(true); forward()', '+r +1 +2 -2 +3 -r',
    'backward()', '+r +2 =3 -3 =2 -2 =1 -1 =r -r' },
  { "blocks = 3, root = 'before'",
    'model:set_modules_to_forward_prefetch { block[1], block[2] }; forward()',
    '+r +1 +2 -1 -2 +3 -3',
    'block[3]:set_modules_to_backward_prefetch { block[2], block[1] }; backward()',
    '+3 +2 +1 =3 -3 =2 -2 =1 -1 =r -r' },
  { "blocks = 3, root = 'before', block = 'Shift'", 'block[2]:set_unshard_in_backward(false)', '',
    'forward()', ALL, 'backward()', '+3 =3 -3 +1 =2 =1 -1 =r -r' },
  { "blocks = 2, root = 'before'", 'handle = block[2]:unshard { async_op = true }', '+2',
    'handle:wait(); block[1]:unshard()', '+1', 'block[1]:reshard()', '-1',
    'forward()', '+r +1 -1 -2' },

  -- without reduction
  { "blocks = 3, root = 'before'", 'model:set_requires_gradient_sync(false); forward()', ALL,
    'backward()', '+3 +2 -3 +1 -2 -1 -r',
    'model:set_requires_gradient_sync(true); forward()', ALL, 'backward()', BACK },
  { "blocks = 3, root = 'before', reshard = false",
    'model:set_requires_gradient_sync(false); forward()', '+r +1 +2 +3', 'backward()',
    '-3 -2 -1 -r' },
  { "blocks = 3, root = 'before'", 'block[2]:set_requires_gradient_sync(false); forward()', ALL,
    'backward()', '+3 +2 =3 -3 +1 -2 =1 -1 =r -r',
    'fsdp.get_state(model):no_sync(forward)', ALL, 'backward()', -- each has its setting again
    '+3 +2 =3 -3 +1 -2 =1 -1 =r -r' },
  { "blocks = 3, root = 'before'",
    'model:set_requires_gradient_sync(false); model:set_reshard_after_backward(false); forward()',
    ALL, 'backward()', '+3 +2 +1', 'forward()', '-1 -2 -3',
    'model:set_requires_gradient_sync(true); backward()', '+3 +2 =3 +1 =2 =1 =r',
    'model:reshard()', '-r' },

  -- without gradients
  { "blocks = 3, root = 'before'", 'evaluate()', ALL, 'evaluate()', '+1 -1 +2 -2 +3 -3' },
  { "blocks = 3, root = 'before', reshard = true", 'evaluate()', ALL .. ' -r',
    'evaluate()', ALL .. ' -r' },
  { "blocks = 3, root = 'before', reshard = false", 'evaluate()', '+r +1 +2 +3',
    'evaluate()', '' },
}

-- All rows as a script, which names each step by row and index.
local function script_of(recompute)
  local out = { SCRIPT, 'ms.dist.spawn(2, function()',
    'x, before = ms.ones(2, 4), ms.dist.counts()' }
  for i, row in ipairs(ROWS) do
    out[#out + 1] = ("make { %s, recompute = '%s' }"):format(row[1], recompute)
    out[#out + 1] = "mark 'none'"
    for k = 2, #row, 2 do
      out[#out + 1] = ("%s\nmark '%d.%d'"):format(row[k], i, k)
    end
  end
  out[#out + 1] = 'end)'
  return table.concat(out, '\n')
end

local SIGNS = { gather = '+', reshard = '-', reduce = '=' }

-- By step: events, and how many collectives were counted.
local function steps_of(output)
  local steps, events = {}, {}
  for line in output:gmatch '[^\n]+' do
    local event, unit = line:match "trace: rank 1: (%a+) unit '(%w+)'"
    local name, gathers, reductions = line:match '^mark (%S+) (%d+) (%d+)$'
    if name then
      steps[name], events = { table.concat(events, ' '), gathers + 0, reductions + 0 }, {}
    elseif SIGNS[event] then
      events[#events + 1] = SIGNS[event] .. (unit:match '%d' or 'r')
    end
  end
  return steps
end

local function count(text, sign) return select(2, text:gsub('%' .. sign, '')) end

describe('the order of fully_shard', function()
  for _, recompute in ipairs { 'never', 'before', 'after' } do -- sharding
    it('is as in PyTorch, with blocks checkpointed ' .. recompute, function()
      scripts.with_script(script_of(recompute), function(path)
        local output, code = scripts.shell('env MS_LOG=trace luajit ' .. path)
        assert.equal(0, code, output)
        local steps = steps_of(output)
        for i, row in ipairs(ROWS) do
          for k = 2, #row, 2 do
            local events = row[k + 1]
            assert.same({ events, count(events, '+'), count(events, '=') },
              steps[('%d.%d'):format(i, k)], row[1] .. ': ' .. row[k])
          end
        end
      end)
    end)
  end
end)
