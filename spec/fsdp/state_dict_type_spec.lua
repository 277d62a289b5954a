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
