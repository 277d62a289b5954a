-- lua/moonshard/dist: tensors that the ranks of a mesh divide
local ms = require 'moonshard'
local checks = require 'support.checks'
local dist = ms.dist

local Shard, Replicate, Partial = dist.Shard, dist.Replicate, dist.Partial

-- 1, 2, ... in that shape.
local function counting(...)
  local shape, n = { ... }, 1
  for _, size in ipairs(shape) do
    n = n * size
  end
  return ms.arange(1, n + 1):f32():reshape(shape)
end

describe('placements', function()
  it('are equal by value, and print', function()
    assert.equal(Shard(1), Shard(1))
    assert.not_equal(Shard(1), Shard(2))
    assert.not_equal(Partial 'max', Partial())
    assert.equal('Shard(2) Replicate() Partial(sum) Flat()', table.concat({ tostring(Shard(2)),
      tostring(Replicate()), tostring(Partial()), tostring(dist.Flat()) }, ' '))
    assert.is_true(Shard(1):is_shard() and Shard(1):is_shard(1) and not Shard(1):is_shard(2))
    checks.raises('ValueError', "'dim' is 0", Shard, 0)
    checks.raises('ValueError', "'op' is 'product', expected one of sum", Partial, 'product')
  end)
end)

describe('a sharded tensor', function()
  -- Parts of (5, 2) on three ranks, as torch.chunk(5 rows, 3) gives: 2, 2, 1; of (4, 2): 2, 2, 0.
  it('has uneven and empty parts as torch.chunk', function()
    dist.spawn(3, function(rank)
      local mesh = dist.init_device_mesh('cpu', { 3 })
      local x = dist.distribute_tensor(counting(5, 2) * (rank + 1), mesh, { Shard(1) })
      checks.close(({ { 1, 2, 3, 4 }, { 5, 6, 7, 8 }, { 9, 10 } })[rank + 1], x:to_local())
      assert.same({ { 5, 2 }, 2, 2, 10, 'f32' }, { x:shape(), x:size(2), x:dim(), x:numel(),
        x:dtype() })
      assert.equal(("ShardedTensor(shape=(5, 2), dtype='f32', placements=(Shard(1)), "
        .. 'local=(%d, 2))'):format(rank == 2 and 1 or 2), tostring(x))
      checks.close(counting(5, 2):totable(), x:full_tensor())
      local even = dist.distribute_tensor(counting(4, 2), mesh, { Shard(-2) })
      assert.equal(Shard(1), even:placements()[1])
      assert.same({ rank == 2 and 0 or 2, 2 }, even:to_local():shape())
      checks.close(counting(4, 2):totable(), even:full_tensor())
      assert.same({ 4 * rank + 1, rank == 2 and 0 or 4 }, { rank == 2 and 9 or even.start,
        even.length })
      local columns = dist.distribute_tensor(counting(2, 5), mesh, { Shard(2) })
      assert.same({ 2, rank == 2 and 1 or 2 }, columns:to_local():shape())
      checks.close(counting(2, 5):totable(), columns:full_tensor())
    end)
  end)

  it('is made of parts', function()
    dist.spawn(2, function(rank)
      local mesh = dist.init_device_mesh('cpu', { 2 })
      local make = dist.ShardedTensor.from_local
      assert.same({ 6, 2 }, make(ms.ones(3, 2), mesh, { Shard(1) }):shape())
      local x = make(ms.full({ 2 - rank, 2 }, rank), mesh, { Shard(1) }, { shape = { 3, 2 } })
      checks.close({ 0, 0, 0, 0, 1, 1 }, x:full_tensor())
      checks.close({ 3 }, make(ms.full({ 1 }, rank + 1), mesh, { Partial() }):full_tensor())
      checks.raises('ValueError', ('this rank has (%d, 2) of a tensor (5, 2) with placements '
        .. '(Shard(1)), expected (%d, 2)'):format(2 + rank, 3 - rank), make, ms.ones(2 + rank, 2),
        mesh, { Shard(1) }, { shape = { 5, 2 } })
      checks.raises('ValueError', '2 placements, expected one for each of the 1 dimensions', make,
        ms.ones(2), mesh, { Shard(1), Shard(1) })
      checks.raises('IndexError', 'placements[1] is Shard(3), but the tensor has 2 dimensions',
        make, ms.ones(2, 2), mesh, { Shard(3) })
      checks.raises('TypeError', "'mesh' is a group of ranks, expected a mesh", make, ms.ones(2),
        dist.world(), { Shard(1) })
    end)
  end)

  it('is redistributed between all placements', function()
    local targets = { Shard(1), Shard(2), Shard(3), Replicate(), Partial(), Partial 'max' }
    dist.spawn(3, function()
      local mesh = dist.init_device_mesh('cpu', { 3 })
      for _, shape in ipairs { { 5, 4, 2 }, { 3, 0, 2 } } do
        local whole = counting(unpack(shape))
        for _, from in ipairs(targets) do
          local x = dist.distribute_tensor(whole, mesh, { from })
          for _, to in ipairs(targets) do
            local y = x:redistribute { to }
            local expected = dist.distribute_tensor(whole, mesh, { to })
            assert.equal(to, y:placements()[1])
            assert.same(expected:to_local():shape(), y:to_local():shape())
            checks.close(whole:totable(), y:full_tensor())
          end
        end
      end
      local sums = dist.ShardedTensor.from_local(counting(4, 2), mesh, { Partial() })
      checks.close((counting(4, 2) * 3):totable(), sums:redistribute({ Shard(1) }):full_tensor())
      local average = dist.ShardedTensor.from_local(counting(4), mesh, { Partial 'avg' })
      checks.close({ 1, 2, 3, 4 }, average:redistribute({ Shard(1) }):full_tensor())
    end)
  end)

  it('is divided by both dimensions of a mesh', function()
    local pairs_of = {
      { Shard(1), Shard(1) }, { Shard(1), Shard(2) }, { Shard(2), Shard(1) },
      { Replicate(), Shard(1) }, { Shard(2), Replicate() }, { Partial(), Shard(2) },
      { Replicate(), Replicate() },
    }
    dist.spawn(4, function(rank)
      local mesh = dist.init_device_mesh('cpu', { 2, 2 })
      local whole = counting(5, 3)
      local nested = dist.distribute_tensor(whole, mesh, { Shard(1), Shard(1) })
      -- 5 rows are 3 + 2, and those 2 + 1 and 1 + 1
      local parts = { { 1, 2, 3, 4, 5, 6 }, { 7, 8, 9 }, { 10, 11, 12 }, { 13, 14, 15 } }
      checks.close(parts[rank + 1], nested:to_local())
      for _, from in ipairs(pairs_of) do
        local x = dist.distribute_tensor(whole, mesh, from)
        for _, to in ipairs(pairs_of) do
          local y = x:redistribute(to)
          local expected = dist.distribute_tensor(whole, mesh, to):to_local()
          if to[1] == Partial() then
            assert.same(expected:shape(), y:to_local():shape())
          else
            checks.close(expected:totable(), y:to_local())
          end
          checks.close(whole:totable(), y:full_tensor())
        end
      end
    end)
  end)

  it('computes on its parts', function()
    dist.spawn(3, function()
      local mesh = dist.init_device_mesh('cpu', { 3 })
      local a, b = counting(4, 2), counting(4, 2) + 1
      local x = dist.distribute_tensor(a, mesh, { Shard(1) })
      local y = dist.distribute_tensor(b, mesh, { Shard(1) })
      local function same(expected, result)
        assert.equal(Shard(1), result:placements()[1])
        checks.close(expected:totable(), result:full_tensor())
      end
      same(a + b, x + y)
      same(a - b, x - y)
      same(a * b, x * y)
      same(a / b, x / y)
      same(a * 2 - 1, 2 * x - 1)
      same(1 / a, 1 / x)
      same(-a, -x)
      same(a + b * 2, (x + 0):add_(y, 2))
      same((a - 1) * b / 2, (x + 0):sub_(1):mul_(y):div_(2))
      same(b, (x + 0):copy_(y))
      same(a * 0, (x + 0):zero_())
      for _, p in ipairs { 2, 1, 3, 0, math.huge, -math.huge } do
        checks.close(a:norm(p):item(), x:norm(p):item())
      end
      local sums = dist.ShardedTensor.from_local(a, mesh, { Partial() })
      checks.close((a * 3):norm():item(), sums:norm():item(), 1e-5)
      checks.close((a * 9):totable(), ((sums + sums * 2)):full_tensor())
      checks.raises('RuntimeError', 'mul: a tensor with placements (Partial(sum)) does not take a '
        .. 'tensor', function() return sums * sums end)
      checks.raises('RuntimeError', 'add_: a tensor with placements (Partial(sum)) does not take a '
        .. 'number', sums.add_, sums, 1)
      checks.raises('RuntimeError', 'div: a tensor', function() return 1 / sums end)
      checks.raises('ValueError', 'add: the operands are (4, 2) (Shard(1)) and (4, 2) '
        .. '(Partial(sum)), expected equal', function() return x + sums end)
      checks.raises('TypeError', "add: 'operand' is a tensor, expected a number or a "
        .. 'dist.ShardedTensor', function() return x + a end)
    end)
  end)
end)

describe('a parameter of FSDP', function()
  local function check(parameters, whole, placements, locals)
    for i, p in ipairs(parameters) do
      assert.same(whole[i]:shape(), p:global_shape())
      checks.close(whole[i]:totable(), p:full_tensor())
      assert.equal(placements, table.concat({ tostring(p:placements()[1]),
        tostring(p:placements()[2]) }, ' '))
      assert.same(locals[i], p:to_local():shape())
      assert.same({ #p:placements(), 2 }, { p:device_mesh().ndim, p:device_mesh().shape[1] })
    end
  end

  local function model(options)
    ms.manual_seed(5)
    local plain = ms.nn.Linear(2, 3):materialize()
    return plain:deepcopy():parameters(), ms.fsdp.FSDP(plain, options)
  end

  it('has its part, its placements and its mesh', function()
    dist.spawn(4, function(rank)
      local pair = dist.split(math.floor(rank / 2))
      local first = rank % 2 == 0
      local whole, m = model { process_group = pair, shard_layout = 'rows',
        use_orig_params = true }
      local rows = { first and { 2, 2 } or { 1, 2 }, first and { 2 } or { 1 } }
      check(m:parameters(), whole, 'Shard(1) nil', rows)
      local y = m(ms.ones(1, 2)) -- handles show full parameters until the backward
      check(m:parameters(), whole, 'Shard(1) nil', rows)
      y:sum():backward()
      whole, m = model { process_group = pair, use_orig_params = true }
      -- parameters begin at multiples of four elements: 6, 2 of padding, 3, 1 of padding
      check(m:parameters(), whole, 'Flat() nil', { { first and 6 or 0 }, { first and 0 or 3 } })
      local p = ms.fsdp.FSDP(ms.nn.Linear(2, 3), { process_group = pair }):materialize()
        :parameters()[1]
      assert.equal('Flat()', tostring(p:placements()[1]))
      assert.same(p:global_shape(), p:full_tensor():shape())
      local mesh = dist.init_device_mesh('cpu', { 2, 2 })
      whole, m = model { device_mesh = mesh, sharding_strategy = 'HYBRID_SHARD',
        shard_layout = 'rows', use_orig_params = true }
      check(m:parameters(), whole, 'Replicate() Shard(1)', rows)
      local t = ms.ones(2, 3)
      assert.is_true(rawequal(t, t:to_local()) and rawequal(t, t:full_tensor()))
      assert.same({ {}, { 2, 3 } }, { t:placements(), t:global_shape() })
      assert.is_nil(t:device_mesh())
    end)
  end)
end)
