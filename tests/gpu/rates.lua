--- Rates of single things on a GPU, for run.sh: `luajit tests/gpu/rates.lua NAME key=value ...`
--- prints one line of JSON. Names:
---   copy        bytes=  bytes a second of copies on the card, to it and from it (pinned memory)
---   collectives bytes= ranks=  bytes that a rank receives from others in a second: all_gather to
---                     `bytes` on each rank, exchange (all_to_all) and reduce_scatter of `bytes`
---   attention   rows= heads= length= width=  FLOP/s in bf16, causal, forward and backward
---                     (torch_train.py measures PyTorch's)

local ms = require 'moonshard'
local json = require 'moonshard.base.json'

local name, o = arg[1], {}
for i = 2, #arg do
  local key, value = arg[i]:match '^([%w_]+)=(.*)$'
  o[key] = tonumber(value)
end

local CALLS, SAMPLES = 10, 5

-- Seconds of one call in the fastest of some groups of calls. `fence` returns when they have run.
local function seconds(fn, fence)
  local best = math.huge
  for _ = 0, SAMPLES do -- the first warms up, and is not the fastest
    fence()
    local begin = ms.time()
    for _ = 1, CALLS do
      ms.scope(fn)
    end
    fence()
    best = math.min(best, (ms.time() - begin) / CALLS)
  end
  return best
end

-- Waits for what wrote t, by reading its last element.
local function reading(t)
  return function()
    return t:narrow(1, t:shape()[1], 1):item()
  end
end

local rates = {}

function rates.copy()
  local n = o.bytes / 4
  local from, to = ms.ones(n), ms.zeros(n)
  local host = ms.ones(n):to 'cpu'
  local function copying(a, b)
    return function()
      a:copy_(b)
    end
  end
  return {
    on_card = 2 * o.bytes / seconds(copying(to, from), reading(to)), -- read and written
    to_card = o.bytes / seconds(copying(to, host), reading(to)),
    from_card = o.bytes / seconds(copying(host, from), reading(host)),
  }
end

function rates.collectives()
  local world = ms.dist.init { ranks = o.ranks }
  local w = world.world_size
  local n = math.floor(o.bytes / 4 / w)
  local part, all, other = ms.ones(n), ms.ones(n * w), ms.ones(n * w)
  local received = 4 * n * (w - 1)
  local function rate(fn, result)
    ms.dist.barrier()
    local slowest = ms.dist.all_reduce(ms.full({ 1 }, seconds(fn, reading(result))), 'max')
    return received / slowest:item()
  end
  local result = {
    all_gather = rate(function() ms.dist.all_gather(all, part) end, all),
    exchange = rate(function() ms.dist.all_to_all_single(other, all) end, other),
    reduce_scatter = rate(function() ms.dist.reduce_scatter(part, all) end, part),
  }
  return world.rank == 0 and result or nil
end

function rates.attention()
  local x = {}
  for i = 1, 4 do -- queries, keys, values, the gradient of the result
    x[i] = ms.randn(o.rows, o.heads, o.length, o.width):to(ms.bf16)
  end
  local fence, leaves = reading(ms.ones(1)), {}
  for i = 1, 3 do
    leaves[i] = x[i]:detach():requires_grad_()
  end
  local function attend()
    return ms.ops.scaled_dot_product_attention(leaves[1], leaves[2], leaves[3], {
      is_causal = true,
    })
  end
  local forward = seconds(function() ms.no_grad(attend) end, fence)
  local both = seconds(function()
    attend():backward(x[4])
    for i = 1, 3 do
      leaves[i]:set_grad(nil)
    end
  end, fence)
  local flops = 2 * o.rows * o.heads * o.length ^ 2 * o.width -- of half of the scores
  return { forward = flops / forward, backward = 2.5 * flops / (both - forward) }
end

local result = rates[name]()
if result then
  print(json.encode(result))
end
