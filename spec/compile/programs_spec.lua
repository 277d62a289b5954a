--- Random functions of tensors: compiled by every back end, values and gradients have the bits of
--- eager calls, with gradients stored and added, and after something that they depend on changed.
--- MS_PROGRAMS: how many (default 40), MS_SEED: the first.

local ms = require 'moonshard'
local maker = require 'compile.programs.maker'

local FIRST, COUNT = tonumber(os.getenv 'MS_SEED' or 1), tonumber(os.getenv 'MS_PROGRAMS' or 40)
local BACKENDS = { 'replay', 'partition', 'fuse' }

-- Results of a call, and the leaves' gradients after a backward from those that require grad.
local function observe(p, fn, args)
  local results, loss = { fn(unpack(args)) }, nil
  for i, t in ipairs(results) do
    if t:requires_grad() then
      local term = (t * t):sum() * i
      loss = loss and loss + term or term
    end
    results[i] = t:detach():clone()
  end
  if loss then
    loss:backward()
  end
  for _, leaf in ipairs(p.leaves) do
    results[#results + 1] = leaf:grad() and leaf:grad():clone() or false
  end
  return results
end

local function clear(p)
  for _, leaf in ipairs(p.leaves) do
    leaf:set_grad(nil)
  end
end

-- Calls with the arguments and with others; gradients of the second are added.
local function observe_all(p, fn)
  local others = {}
  for i, a in ipairs(p.args) do
    others[i] = a * 0.5 + 0.125
  end
  clear(p)
  return { observe(p, fn, p.args), observe(p, fn, others), observe(p, fn, p.args) }
end

-- The first difference as text.
local function difference(expected, found)
  for call, results in ipairs(expected) do
    for i, wanted in ipairs(results) do
      local got = found[call][i]
      if not wanted ~= not got or wanted and not ms.equal(wanted, got) then
        return ('call %d, result %d'):format(call, i)
      end
    end
  end
end

-- What a compiled function depends on.
local CHANGES = {
  freezes = function(p, on)
    for _, leaf in ipairs(p.leaves) do
      leaf:requires_grad_(not on)
    end
  end,
  transposes = function(p)
    for i, a in ipairs(p.args) do
      p.args[i] = a:t():contiguous():t() -- other strides, the same values
    end
  end,
  writes = function(p)
    for _, leaf in ipairs(p.leaves) do
      ms.no_grad(function()
        leaf:mul_(0.5)
      end)
    end
  end,
}

describe('random functions', function()
  it('have the bits of eager calls when they are compiled', function()
    local broken = {}
    for seed = FIRST, FIRST + COUNT - 1 do
      local p = maker.draw(seed)
      local compiled = ms.compile(p.fn, { backend = BACKENDS[seed % 3 + 1] })
      local graphs = ms.compile_report().graphs
      local function check(what)
        local found = difference(observe_all(p, p.fn), observe_all(p, compiled))
        assert(not found, found and ('MS_SEED=%d MS_PROGRAMS=1: %s%s\n%s'):format(seed, what, found,
          p.text))
      end
      check ''
      check 'again: '
      if ms.compile_report().graphs == graphs then
        broken[#broken + 1] = seed
      end
      for _, name in ipairs { 'freezes', 'transposes', 'writes' } do
        CHANGES[name](p, true)
        check('it ' .. name .. ': ')
        check('it ' .. name .. ', again: ')
        if name == 'freezes' then
          CHANGES[name](p, false)
        end
      end
    end
    assert.same({}, broken) -- all are replayed
  end)
end)
