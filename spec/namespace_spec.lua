-- lua/moonshard/namespace.lua: names that are not there, and README's list of what is not there yet
local ms = require 'moonshard'
local fsdp = ms.fsdp
local checks = require 'support.checks'

-- What README says is still missing, and how a script would ask for it.
local function linear() return ms.nn.Linear(2, 2) end
local function gpt()
  return ms.models.GPT { vocab = 4, layers = 1, heads = 1, width = 4, context = 4 }
end

local ASKS = {
  ['`fully_shard` (per-parameter sharding)'] = {
    function() return fsdp.fully_shard end,
    function() return fsdp.MixedPrecisionPolicy end,
  },
  ['hybrid sharding'] = {
    function() return fsdp.HYBRID_SHARD end,
    function()
      local mesh = ms.dist.init_device_mesh('cpu', { 1, 1 })
      fsdp.FSDP(linear(), { device_mesh = mesh })
    end,
    function() fsdp.FSDP(linear(), { sharding_strategy = 'HYBRID_SHARD' }) end,
    function() fsdp.FSDP(linear(), { sharding_strategy = '_HYBRID_SHARD_ZERO2' }) end,
    function() return ms.dist.DeviceMesh end,
  },
  ['CPU offload'] = {
    function() fsdp.FSDP(linear(), { cpu_offload = true }) end,
    function() return fsdp.CPUOffload end,
  },
  autocast = {
    function() return ms.autocast end,
    function() return ms.amp.autocast end,
  },
  ['communication hooks'] = {
    function() fsdp.FSDP(linear()):register_comm_hook(nil, print) end,
  },
  ['activation checkpointing'] = {
    function() return fsdp.checkpoint_wrapper end,
    function() return fsdp.apply_activation_checkpointing end,
    function() return ms.utils.checkpoint end,
  },
  ['types of state dicts (`model:state_dict()` is full and `ms.checkpoint` writes shards)'] = {
    function() return fsdp.set_state_dict_type end,
    function() return fsdp.StateDictType end,
    function() return fsdp.optim_state_dict end,
  },
  ['`sync_module_states` and `param_init_fn`'] = {
    function() fsdp.FSDP(linear(), { sync_module_states = true }) end,
    function() fsdp.FSDP(linear(), { param_init_fn = print }) end,
  },
  ['gradients inside `summon_full_params` (`with_grads`)'] = {
    function()
      fsdp.summon_full_params(fsdp.FSDP(linear(), { use_orig_params = true }),
        { with_grads = true }, print)
    end,
  },
  ['saving in the background'] = { function() return ms.checkpoint.async_save end },
  ['CUDA and NCCL'] = {
    function() return ms.cuda end,
    function() return ms.nccl end,
    function() ms.ones(1):to('cuda') end,
    function() ms.zeros(2, { device = 'cuda' }) end,
    function() ms.tensor { 1, 2, device = 'cuda:0' } end,
    function() ms.nn.Linear(2, 2, { device = 0 }) end,
    function() ms.ones(1):to('cuda:0') end,
    function() ms.ones(1):cuda() end,
    function() linear():cuda() end,
    function() fsdp.FSDP(linear()):to('cuda') end,
    function() ms.dist.init { backend = 'nccl' } end,
    function() fsdp.FSDP(linear(), { device_id = 0 }) end,
  },
  ['several hosts and starting failed jobs again'] = {
    function() ms.dist.init { hosts = 2 } end,
  },
  ['compile'] = {
    function() return ms.compile end,
    function() linear():compile() end,
  },
  ['a profiler'] = { function() return ms.profiler end },
  ['hooks on the backward of modules (tensors have `t:hook`)'] = {
    function() linear():register_full_backward_hook(print) end,
  },
  ['more than one thread a rank'] = { function() ms.set_num_threads(2) end },
  ['`autograd.Function`'] = {
    function() return ms.autograd.Function end,
  },
  ['layers beyond those of a GPT (convolutions and norms over batches among them)'] = {
    function() return ms.nn.Conv2d end,
    function() return ms.nn.BatchNorm1d end,
    function() return ms.nn.Softmax end,
    function() return ms.nn.ConvTranspose2d end,
    function() return ms.nn.InstanceNorm1d end,
    function() return ms.nn.AvgPool1d end,
    function() return ms.nn.ZeroPad3d end,
  },
  ["options beyond theirs (`label_smoothing` and class weights and `reduction = 'none'` and "
    .. '`padding_idx` and `amsgrad` and `fused` and `top_p` and `drop_last` among them)'] = {
    function() ms.nn.CrossEntropyLoss { reduction = 'none' } end,
    function() ms.ops.cross_entropy(ms.ones(1, 2), ms.arange(1), { reduction = 'none' }) end,
    function()
      ms.data.Loader { tokens = ms.arange(9), batch = 1, context = 2, drop_last = true }
    end,
    function() ms.nn.CrossEntropyLoss { label_smoothing = 0.1 } end,
    function() ms.nn.CrossEntropyLoss { weight = ms.ones(2) } end,
    function() ms.nn.Embedding(2, 2, { padding_idx = 0 }) end,
    function() ms.optim.Adam({ ms.ones(2) }, { amsgrad = true }) end,
    function() ms.optim.AdamW({ ms.ones(2) }, { fused = true }) end,
    function() ms.optim.SGD({ ms.ones(2) }, { foreach = true }) end,
    function() ms.optim.AdamW({ { params = { ms.ones(2) }, amsgrad = true } }) end,
    function() gpt():generate({ 1 }, 1, { top_p = 0.9 }) end,
  },
  ['tensor functions beyond those it needs (`argmax` and `max` among them)'] = {
    function() ms.ones(2):argmax() end,
    function() ms.ones(2):max() end,
    function() ms.ones(2):argmax(1) end,
    function() return ms.argmax end,
    function() return ms.randint end,
  },
  ['other optimizers'] = {
    function() return ms.optim.RMSprop end,
    function() return ms.optim.ASGD end,
    function() return ms.optim.Rprop end,
  },
  ['messages between two ranks and all-to-all'] = {
    function() return ms.dist.send end,
    function() return ms.dist.all_to_all_single end,
    function() return ms.dist.batch_isend_irecv end,
  },
  ['reductions to one rank and collectives of objects'] = {
    function() return ms.dist.reduce end,
    function() return ms.dist.all_gather_object end,
    function() return ms.dist.broadcast_object_list end,
  },
  ['token files of other numbers than u8 and i64'] = {
    function() ms.data.tokens('tokens', 'uint16') end,
  },
  ['data sets other than windows of tokens (scripts deal batches by `ms.dist.rank()`)'] = {
    function() return ms.data.DataLoader end,
    function() return ms.data.DistributedSampler end,
  },
}

local function readme_list()
  local file = assert(io.open 'README.md')
  local text = file:read '*a'
  file:close()
  local list = text:match('\nNot yet: (.-)%. Asking'):gsub('%s+', ' ')
  local items = {}
  for item in (list .. ', '):gmatch '(.-), ' do
    items[#items + 1] = item
  end
  return items
end

describe('the library\'s names', function()
  it('are refused when they do not exist, with the nearest one', function()
    for _, case in ipairs {
      { ms, 'rand_n', "ms has no 'rand_n', did you mean 'randn'?" },
      { ms, 'seed', "ms has no 'seed'; write ms.manual_seed(seed)" },
      { ms.nn, 'Liner', "nn has no 'Liner', did you mean 'Linear'?" },
      { ms.nn.init, 'norml', "nn.init has no 'norml', did you mean 'normal'?" },
      { ms.fsdp, 'FSPD', "fsdp has no 'FSPD', did you mean 'FSDP'?" },
      { ms.optim, 'AdamX', "optim has no 'AdamX', did you mean 'Adam'?" },
      { ms.data, 'loader', "data has no 'loader', did you mean 'Loader'?" },
      { ms.models, 'GTP', "models has no 'GTP', did you mean 'GPT'?" },
      { ms.dist, 'allreduce', "dist has no 'allreduce', did you mean 'all_reduce'?" },
      { ms, 'somethingelse', "ms has no 'somethingelse'" },
      { ms, 3, "ms has no '3'" },
    } do
      checks.raises('KeyError', case[3], function() return case[1][case[2]] end)
    end
  end)

  it('are refused on objects that have no others', function()
    local tokens, opt = ms.arange(100), ms.optim.SGD { ms.ones(2) }
    for _, case in ipairs {
      { opt, 'stepp', "optim.Optimizer has no 'stepp', did you mean 'step'?" },
      { opt, 'parm_groups', "did you mean 'param_groups'?" },
      { opt, 'momentum', "'momentum'; write opt.param_groups[i].momentum" },
      { opt, 1, 'optim.Optimizer has no entry 1' },
      { ms.data.Loader { tokens = tokens, batch = 2, context = 4 }, 'nxt', "did you mean 'next'?" },
      { fsdp.CustomPolicy(print), 'chose', "fsdp.Policy has no 'chose'" },
      { ms.checkpoint.Manager { root = 'none' }, 'restore', "checkpoint.Manager has no 'restore'" },
      { ms.checkpoint, 'savee', "checkpoint has no 'savee', did you mean 'save'?" },
      { ms.schedule, 'cosin', "schedule has no 'cosin', did you mean 'cosine'?" },
      { ms.ops, 'lineer', "ms.ops has no 'lineer', did you mean 'linear'?" },
    } do
      checks.raises('KeyError', case[3], function() return case[1][case[2]] end)
    end
  end)

  it('say what to write for functions that are to come', function()
    local a, b = ms.tensor { 1, 2, 4 }, ms.tensor { 3, 0, 4 }
    local given = {
      ms = ms, a = a, b = b, t = ms.tensor { { 0, -1 }, { 3, 4 } }, dim = 1, value = 9,
      mask = ms.tensor { { 0, 1 }, { 0, 0 } }:gt(0),
      ids = ms.tensor { 1, 0, 1, dtype = ms.i64 },
    }
    for name, case in pairs {
      index_select = { { 3, 4 }, { 0, -1 }, { 3, 4 } },
      norm = { expected = 5, t = ms.tensor { 3, 4 } },
    } do
      local texts = {}
      for k, owner in ipairs { ms, ms.ops, a } do
        local ok, err = pcall(function() return owner[name] end)
        assert.is_false(ok)
        assert.equal('NotImplementedError', err.kind)
        texts[k] = err.message:match('; write (.*)$')
      end
      assert.same({ texts[1], texts[1], texts[1] }, texts, name)
      local own = type(case) == 'table' and case.expected and case or { expected = case }
      local chunk = assert(loadstring('return ' .. texts[1]))
      local value = setfenv(chunk, setmetatable(own, { __index = given }))()
      if name == 'isnan' then
        assert.same(own.expected, value:totable())
      else
        checks.close(own.expected, value)
      end
    end
    checks.raises('NotImplementedError', 'data.DistributedSampler: DistributedSampler is not '
      .. 'supported yet; write ms.data.Loader {', function() return ms.data.DistributedSampler end)
    checks.raises('NotImplementedError', 'data.DataLoader: DataLoader is not supported yet; write '
      .. 'ms.data.Loader {', function() return ms.data.DataLoader end)
  end)

  it('say where else a name stands', function()
    checks.raises('KeyError', "ms has no 'sum'; it is a method: t:sum(...)", function()
      return ms.sum
    end)
    checks.raises('KeyError', "ms has no 'layer_norm'; it is ms.ops.layer_norm", function()
      return ms.layer_norm
    end)
    checks.raises('NotImplementedError', 'ms.ops.argmax', function() return ms.ops.argmax end)
    checks.raises('KeyError', "ms has no 'float32'; write ms.f32", function() return ms.float32 end)
    checks.raises('KeyError', "ms has no 'inference_mode'; write ms.no_grad(fn)", function()
      return ms.inference_mode
    end)
    checks.raises('KeyError', "nn has no 'Parameter'; a module declares one", function()
      return ms.nn.Parameter
    end)
    checks.raises('NotImplementedError', 'dist.reduce: reduce is not supported yet; write '
      .. 'dist.all_reduce', function() return ms.dist.reduce end)
    checks.raises('KeyError', "; write dist.all_gather(out, t)", function()
      return ms.dist.all_gather_into_tensor
    end)
    checks.raises('KeyError', "the world has no 'size'; write world.world_size", function()
      return ms.dist.info().size
    end)
    local plain = ms.nn.Linear(2, 2)
    for call, instead in pairs {
      buffers = 'module:named_buffers()', register_buffer = "self:buffer('name', t)",
      clip_grad_norm_ = 'ms.optim.clip_grad_norm_(module:parameters(), max_norm)',
      plan = 'ms.fsdp.FSDP(module):plan()', no_sync = 'fn(): gradients of a model',
      summon_full_params = 'ms.fsdp.summon_full_params(module, {}, fn)',
    } do
      checks.raises('KeyError', ("nn.Linear has no '%s'; write %s"):format(call, instead),
        plain[call], plain, 'mask', ms.ones(2))
    end
    for _, name in ipairs { 'DistributedDataParallel', 'DataParallel', 'parallel' } do
      checks.raises('KeyError', "'; write ms.fsdp.FSDP(m, { sharding_strategy = 'NO_SHARD' })",
        function() return ms.nn[name] end)
    end
    checks.raises('NotImplementedError', "files of 'uint16' are not supported yet; write the "
      .. "tokens as 'i64', eight bytes each", ms.data.tokens, 'tokens', 'uint16')
  end)

  it('are what a namespace prints', function()
    assert.truthy(tostring(ms.optim):find('^optim: Adam AdamW'))
    assert.truthy(tostring(ms):find ' zeros')
  end)

  it('load what is there', function()
    assert.equal('nn.LayerNorm', ms.nn.LayerNorm._name)
    assert.equal(ms.optim.AdamW, ms.optim.AdamW)
    assert.equal('f32', ms.f32)
  end)

  it('raise NotImplementedError for all that README says is not there yet', function()
    local items = readme_list()
    assert.is_true(#items >= 8)
    ms.capture_warnings(function()
      for _, item in ipairs(items) do
        assert(ASKS[item], 'no question is known for ' .. item)
        for _, ask in ipairs(ASKS[item]) do
          checks.raises('NotImplementedError', 'not supported', ask)
        end
      end
    end)
  end)
end)
