-- State dicts of wrapped models: FULL, SHARDED and LOCAL.
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'
local wrap = require 'support.wrap'

-- PyTorch's two-level model: its own layer and a wrapped one.
local function model(strategy, seed)
  ms.manual_seed(seed or 3)
  local module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5)):materialize()
  module[2] = wrap(module[2], { sharding_strategy = strategy })
  return wrap(module, { sharding_strategy = strategy })
end

local NAMES = { '0.weight', '0.bias', '1.weight', '1.bias' }

local function check_loads(sd, ...)
  local other = model('FULL_SHARD', 4)
  fsdp.state_dict_type(other, ..., other.load_state_dict, other, sd)
  assert.equal(model('FULL_SHARD'):hash(), other:hash())
end

describe('a state dict of type', function()
  it('SHARDED_STATE_DICT has the elements of each rank', function()
    ms.dist.spawn(2, function()
      local m = model 'FULL_SHARD'
      local whole, before = m:state_dict(), m:collectives().all_gather
      local sd = fsdp.state_dict_type(m, 'SHARDED_STATE_DICT', m.state_dict, m)
      assert.equal(before, m:collectives().all_gather)
      assert.same(NAMES, { unpack(sd) })
      for _, name in ipairs(NAMES) do
        local part, full = sd[name], whole[name]
        assert.same(full:shape(), part:shape())
        assert.equal(full:hash(), part:full_tensor():hash())
        if part.local_tensor then
          assert.equal(full:reshape(-1):narrow(1, part.start, part.length):hash(),
            part.local_tensor:hash())
        end
      end
      check_loads(sd, 'SHARDED_STATE_DICT')
      local plain = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5))
      plain:load_state_dict(sd)
      assert.equal(m:hash(), plain:hash())
    end)
  end)

  it('LOCAL_STATE_DICT has the memory of each unit, without padding', function()
    ms.dist.spawn(2, function(rank)
      local m = model 'FULL_SHARD'
      local sd = fsdp.state_dict_type(m, 'LOCAL_STATE_DICT', m.state_dict, m)
      assert.same({ '_flat_param', '1._flat_param' }, { unpack(sd) })
      local flat = sd._flat_param
      assert.same({ { 15 }, rank * 8 + 1, 8 - rank }, { flat:shape(), flat.start, flat.length })
      check_loads(sd, 'LOCAL_STATE_DICT')
      local y = m(ms.ones(2, 4)) -- the root's parameters stay unsharded until its backward
      check_loads(fsdp.state_dict_type(m, 'LOCAL_STATE_DICT', m.state_dict, m), 'LOCAL_STATE_DICT')
      y:sum():backward()
      ms.no_grad(flat.local_tensor.zero_, flat.local_tensor)
      assert.equal(0, m:state_dict()['0.bias']:sum():item())
    end)
  end)

  it('FULL_STATE_DICT may be on rank 0 alone', function()
    ms.dist.spawn(2, function(rank)
      local m = model 'FULL_SHARD'
      m.module:buffer('scale', ms.ones(1))
      local part = nn.Sequential(m, nn.BatchNorm1d(5))
      local sd = fsdp.state_dict_type(m, 'FULL_STATE_DICT',
        { state_dict_config = { rank0_only = true } }, m.state_dict, m)
      assert.equal(rank == 0 and 5 or 0, #sd)
      assert.equal(#sd, #m:state_dict { rank0_only = true })
      assert.equal(rank == 0 and 10 or 5, #part:state_dict { rank0_only = true })
    end)
  end)

  it('LOCAL_STATE_DICT does not go with a device mesh', function()
    ms.dist.spawn(2, function()
      local mesh = ms.dist.init_device_mesh('cpu', { 2 })
      local m = wrap(nn.Sequential(nn.Linear(2, 2)), { device_mesh = mesh,
        auto_wrap_policy = fsdp.always_wrap_policy })
      checks.raises('RuntimeError', 'DeviceMesh is not compatible with LOCAL_STATE_DICT',
        fsdp.set_state_dict_type, m.module[1], 'LOCAL_STATE_DICT')
      assert.equal('FULL_STATE_DICT', fsdp.get_state_dict_type(m).state_dict_type)
      m:state_dict()
    end)
  end)

  it('holds inside its block, and whole parameters under NO_SHARD', function()
    ms.dist.spawn(2, function(rank)
      local m = model 'NO_SHARD'
      fsdp.state_dict_type(m, 'SHARDED_STATE_DICT', function()
        assert.equal('SHARDED_STATE_DICT', fsdp.get_state_dict_type(m).state_dict_type)
        local warnings = ms.capture_warnings(function()
          assert.is_true(ms.is_tensor(m:state_dict()['0.weight']))
        end)
        assert.truthy(rank > 0 or warnings[1].message:find 'full_state_dict will be returned')
      end)
      assert.equal('FULL_STATE_DICT', fsdp.get_state_dict_type(m).state_dict_type)
      local before = fsdp.set_state_dict_type(m, 'LOCAL_STATE_DICT')
      assert.equal('FULL_STATE_DICT', before.state_dict_type)
      checks.raises('RuntimeError', 'Expected state_dict_config of type SHARDED_STATE_DICT',
        fsdp.set_state_dict_type, m, 'SHARDED_STATE_DICT',
        { state_dict_config = { rank0_only = true } })
    end)
  end)
end)

-- Parts of 5 and 1 rows: uneven, and empty on some ranks.
local function rows_model(face, seed)
  ms.manual_seed(seed)
  local m = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))
  if face == 'FSDP' then
    m = fsdp.FSDP(m, { use_orig_params = true })
  else
    fsdp[face](m[1])
    fsdp[face](m)
  end
  return m, ms.optim.SGD(m:parameters(), { lr = 0.1, momentum = 0.9 })
end

local function step(m, opt, rank)
  m(ms.full({ 2, 3 }, 1 + rank)):square():mean():backward()
  opt:step()
  opt:zero_grad()
end

-- Of the parameters, and of the momentum.
local function hashes_of(m, opt)
  local state, hashes = fsdp.state_dict_type(m, 'FULL_STATE_DICT', fsdp.optim_state_dict, m,
    opt).state, { fsdp.get_state(m):hash() }
  for _, name in ipairs(m:state_dict()) do
    hashes[#hashes + 1] = state[name] and state[name].momentum_buffer:hash() or 'none'
  end
  return table.concat(hashes, ' ')
end

describe('a state dict of fully_shard', function()
  it('shares the memory of sharded parameters, without communication', function()
    ms.dist.spawn(2, function(rank)
      local m, opt = rows_model('fully_shard', 1)
      step(m, opt, rank)
      local before = fsdp.get_state(m):collectives()
      local sd, state = m:state_dict(), fsdp.optim_state_dict(m, opt).state
      assert.equal(before.all_gather, fsdp.get_state(m):collectives().all_gather)
      local weight, momentum = sd['0.weight'], state['0.weight'].momentum_buffer
      assert.same({ { 5, 3 }, { 3 - rank, 3 } }, { weight:shape(), weight:to_local():shape() })
      assert.same({ ms.dist.Shard(1) }, weight:placements())
      assert.same({ 3 - rank, 3 }, momentum:to_local():shape())
      assert.equal(m[1].weight:full_tensor():hash(), weight:full_tensor():hash())
      step(m, opt, rank)
      assert.equal(m[1].weight:full_tensor():hash(), weight:full_tensor():hash())
      assert.equal(weight:full_tensor():hash(),
        m:state_dict { full_state_dict = true }['0.weight']:hash())
      assert.equal(rank == 0 and 4 or 0, #m:state_dict { rank0_only = true })
    end)
  end)

  it('loads into every other form of the model, and theirs into it', function()
    ms.dist.spawn(3, function(rank)
      local faces = { 'fully_shard', 'replicate', 'FSDP' }
      for i, face in ipairs(faces) do
        local m, opt = rows_model(face, i)
        step(m, opt, rank)
        for _, other in ipairs(faces) do
          local to, its = rows_model(other, 9)
          fsdp.state_dict_type(m, 'SHARDED_STATE_DICT', function()
            to:load_state_dict(m:state_dict())
            its:load_state_dict(fsdp.optim_state_dict_to_load(to, its,
              fsdp.optim_state_dict(m, opt)))
          end)
          assert.equal(hashes_of(m, opt), hashes_of(to, its))
        end
      end
    end)
  end)

  it('moves by checkpoints between 1, 2, 3, 4 and 8 ranks, and to FSDP and back', function()
    local worlds, faces, root = { 1, 2, 3, 4, 8 }, { 'fully_shard', 'FSDP' }, os.tmpname() .. '.d'
    local function each(fn)
      for _, world in ipairs(worlds) do
        for _, face in ipairs(faces) do
          fn(world, face)
        end
      end
    end
    for _, world in ipairs(worlds) do
      ms.dist.spawn(world, function(rank)
        for i, face in ipairs(faces) do
          local m, opt = rows_model(face, i)
          step(m, opt, rank)
          ms.checkpoint.save(root, face .. world, { step = 1, model = m, optimizer = opt,
            config = { hashes = hashes_of(m, opt) } })
        end
      end)
    end
    for _, world in ipairs(worlds) do
      ms.dist.spawn(world, function()
        for _, face in ipairs(faces) do
          each(function(saved_world, saved_face)
            local m, opt = rows_model(face, 9)
            local meta = ms.checkpoint.load(root .. '/' .. saved_face .. saved_world,
              { model = m, optimizer = opt })
            assert.equal(meta.config.hashes, hashes_of(m, opt))
          end)
        end
      end)
    end
    os.execute('rm -rf ' .. root .. ' ' .. root:sub(1, -3))
  end)
end)
