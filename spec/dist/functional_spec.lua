-- lua/moonshard/dist/functional.lua: collectives with gradients
local ms = require 'moonshard'
local dist = ms.dist
local checks = require 'support.checks'
local runs = require 'support.runs'

describe('dist.functional', function()
  local functional = dist.functional

  -- A model's numbers, and those of its gradient.
  local function of_two(fn)
    dist.spawn(2, function(rank)
      local x = ms.tensor({ rank + 1, 10 * (rank + 1) }, { dtype = 'f64' }):requires_grad_(true)
      fn(x, function(expected, y, weights, gradient)
        checks.close(expected, y)
        y:mul(ms.tensor(weights[rank + 1], { dtype = 'f64' })):sum():backward()
        checks.close(gradient[rank + 1], x:grad())
        x:set_grad(nil)
      end, rank)
    end)
  end

  it('returns new tensors with gradients', function()
    of_two(function(x, try, rank)
      local w = { { 1, 2 }, { 3, 5 } } -- of either rank
      try({ 3, 30 }, functional.all_reduce(x), w, { { 4, 7 }, { 4, 7 } })
      try({ 1.5, 15 }, functional.all_reduce(x, 'avg'), w, { { 2, 3.5 }, { 2, 3.5 } })
      try({ 2, 20 }, functional.broadcast(x, 1), w, { { 0, 0 }, { 4, 7 } })
      try({ rank == 0 and 3 or 30 }, functional.reduce_scatter(x), { { 1 }, { 3 } },
        { { 1, 3 }, { 1, 3 } })
      try({ rank == 0 and 1.5 or 15 }, functional.reduce_scatter(x, 'avg'), { { 1 }, { 3 } },
        { { 0.5, 1.5 }, { 0.5, 1.5 } })
      try({ 1, 10, 2, 20 }, functional.all_gather(x), { { 1, 2, 3, 4 }, { 10, 20, 30, 40 } },
        { { 11, 22 }, { 33, 44 } })
      checks.close({ rank + 1, 10 * (rank + 1) }, x)
      local counts = dist.counts()
      assert(counts.all_reduce == 2 * 2 + 1 and counts.broadcast == 1)
      assert(counts.all_gather == 1 + 2 and counts.reduce_scatter == 2 + 1)
    end)
  end)

  it('has a root, or a part for each rank', function()
    of_two(function(x, try, rank)
      local root = rank == 1
      try({ rank == 0 and 2 or 20 }, functional.scatter(x, 1), { { 3 }, { 5 } },
        { { 0, 0 }, { 3, 5 } })
      try(root and { 1, 10, 2, 20 } or { 0, 0, 0, 0 }, functional.gather(x, 1),
        { { 9, 9, 9, 9 }, { 1, 2, 3, 4 } }, { { 1, 2 }, { 3, 4 } })
      try(root and { 3, 30 } or { 0, 0 }, functional.reduce(x, 1), { { 9, 9 }, { 3, 5 } },
        { { 3, 5 }, { 3, 5 } })
      try(root and { 1.5, 15 } or { 0, 0 }, functional.reduce(x, 1, 'avg'), { { 9, 9 }, { 4, 6 } },
        { { 2, 3 }, { 2, 3 } })
      try(rank == 0 and { 1, 2 } or { 10, 20 }, functional.all_to_all_single(x),
        { { 1, 2 }, { 3, 4 } }, { { 1, 3 }, { 2, 4 } })
      try(rank == 0 and { 1, 10, 2 } or { 20 }, functional.all_to_all_single(x,
        rank == 0 and { 2, 1 } or { 0, 1 }, rank == 0 and { 2, 0 } or { 1, 1 }),
        { { 1, 2, 3 }, { 4 } }, { { 1, 2 }, { 3, 4 } })
      try(rank == 0 and { 2, 20 } or { 1, 10 }, functional.permute_tensor(x, { 1, 0 }),
        { { 1, 2 }, { 3, 5 } }, { { 3, 5 }, { 1, 2 } })
      checks.raises('ValueError', 'rank 1 sends to rank 0, expected ranks 0 to 1, each once',
        functional.permute_tensor, x, { 0, 0 })
      local parts = functional.all_to_all { x:narrow(1, 1, 1), x }
      try(rank == 0 and { 1, 2 } or { 1, 10, 2, 20 }, ms.cat(parts, 1),
        { { 1, 2 }, { 3, 4, 5, 6 } }, { { 1 + 3, 4 }, { 2 + 5, 6 } })
    end)
  end)

  it('refuses max and min where x requires grad', function()
    of_two(function(x, _, rank)
      for reduction, expected in pairs { max = { 2, 20 }, min = { 1, 10 } } do
        local constant = x:detach()
        checks.close(expected, functional.all_reduce(constant, reduction))
        checks.close({ expected[rank + 1] }, functional.reduce_scatter(constant, reduction))
        for _, name in ipairs { 'all_reduce', 'reduce_scatter' } do
          local message = "%s: '%s' has no gradient, and x requires one; give it x:detach()"
          checks.raises('NotImplementedError', message:format(name, reduction), functional[name], x,
            reduction)
        end
      end
    end)
  end)

  -- (rows, 3), of which two ranks see one half each.
  local function normalised(x, sums, n)
    local mean = sums(x:sum(1)) / n
    local centred = x - mean
    return centred * (sums((centred ^ 2):sum(1)) / n + 1e-5) ^ -0.5
  end

  -- Operands and results, as numbers.
  local function of_one_batch()
    ms.manual_seed(3)
    local rows, weights = ms.randn(6, 3, { dtype = 'f64' }), ms.randn(6, 3, { dtype = 'f64' })
    rows:requires_grad_(true)
    local y = normalised(rows, function(t) return t end, 6)
    y:mul(weights):sum():backward()
    return {
      rows = rows:totable(), weights = weights:totable(), y = y:totable(),
      grad = rows:grad():totable(),
    }
  end

  it('computes a batch norm over all ranks, with gradients', function()
    local all = runs.alone(of_one_batch)
    dist.spawn(2, function(rank)
      local function own(name)
        return ms.tensor(all[name], { dtype = 'f64' }):narrow(1, 3 * rank + 1, 3)
      end
      local x = own('rows'):clone():requires_grad_(true)
      local mine = normalised(x, functional.all_reduce, 6)
      checks.close(own('y'):totable(), mine, 1e-12)
      mine:mul(own('weights')):sum():backward()
      checks.close(own('grad'):totable(), x:grad(), 1e-12)
    end)
  end)

  it('works in groups of some ranks', function()
    dist.spawn(4, function(rank)
      local pair = dist.split(rank % 2)
      local x = ms.full({ 1 }, 10 ^ rank):requires_grad_(true)
      local sum = rank % 2 == 0 and 101 or 1010
      local y = functional.all_reduce(x, nil, pair)
      checks.close({ sum }, y)
      y:mul(rank + 1):sum():backward()
      checks.close({ rank % 2 == 0 and 4 or 6 }, x:grad())
      checks.close(rank % 2 == 0 and { 1, 100 } or { 10, 1000 }, functional.all_gather(x, pair))
      checks.close({ rank % 2 == 0 and 100 or 1000 }, functional.broadcast(x, 1, pair))
      checks.close({ sum }, functional.reduce_scatter(ms.full({ 2 }, 10 ^ rank), 'sum', pair))
    end)
  end)

  it('is an error on all ranks when one runs no backward', function()
    checks.raises('CommError', 'all_reduce(f32 (1), sum, backward of sequence 1)', dist.spawn, 2,
      function(rank)
        local y = functional.all_reduce(ms.ones(1):requires_grad_(true))
        if rank == 0 then
          y:sum():backward()
        end
        dist.barrier()
      end)
  end)

  it('does not pair the backwards of different collectives', function()
    checks.raises('CommError', 'rank 0 calls all_reduce(f32 (1), sum, backward of sequence 1), '
      .. 'rank 1 calls all_reduce(f32 (1), sum)', dist.spawn, 2, function(rank)
      for _ = 1, 2 do
        local y = functional.all_reduce(ms.ones(1):requires_grad_(rank == 0))
        if rank == 0 then
          y:sum():backward()
        end
      end
    end)
    checks.raises('CommError', 'sum, backward of sequence 1), rank 1 calls all_reduce(f32 (1), '
      .. 'sum, backward of sequence 2)', dist.spawn, 2, function(rank)
      local y = {}
      for i = 1, 2 do
        y[i] = functional.all_reduce(ms.ones(1):requires_grad_(true))
      end
      for i = 1, 2 do
        y[rank == 0 and i or 3 - i]:sum():backward()
      end
    end)
  end)
end)
