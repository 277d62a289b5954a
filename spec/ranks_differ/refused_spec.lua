-- What two ranks may not do differently, a line each: caught on all ranks at once and named. (What
-- is legal: legal_spec.lua.)
--
-- A line changes the settings of rank 1; rank 0 has the defaults of support/two_ranks.lua.
local ms = require 'moonshard'
local nn, fsdp, optim, data = ms.nn, ms.fsdp, ms.optim, ms.data
local runs = require 'support.runs'
local shell = require 'support.shell'
local two = require 'support.two_ranks'

local DEFAULTS, NO_SHARD, PLANNED, WRITER = two.DEFAULTS, two.NO_SHARD, two.PLANNED, two.WRITER
local before, changes, counting, frozen = two.before, two.changes, two.counting, two.frozen
local layers, merged, nothing, on, run = two.layers, two.merged, two.nothing, two.on, two.run
local transformer, writes = two.transformer, two.writes

local SOON = 5 -- seconds; errors come within one, but tests share their machine

local function adamw(opts)
  return function(model) return optim.AdamW(model:parameters(), opts) end
end

local function sgd(opts)
  return function(model) return optim.SGD(model:parameters(), opts) end
end

local ADAMW = { optimizer = adamw { lr = 0.1 } }

-- A linear layer far down, and the freezing of one of its parameters on the second step.
local function deep()
  local module = nn.Linear(4, 2)
  for _ = 1, 30 do
    module = nn.Sequential { module }
  end
  return module
end

local function freezes(suffix)
  return before(2, function(model)
    for name, p in model.module:named_parameters() do
      p:requires_grad_(name:sub(-#suffix) ~= suffix)
    end
  end)
end

-- What tells the names apart stands in their middle.
local function long_name(middle)
  return function()
    local module = nn.Module()
    module:param(('_'):rep(100) .. middle:sub(1, 4) .. ('_'):rep(100), { 4 })
    return module
  end
end

local function state_dict_of(value)
  return function(model)
    local sd = model:state_dict()
    for _, name in ipairs(sd) do
      sd[name] = ms.full(sd[name]:shape(), value)
    end
    model:load_state_dict(sd)
  end
end

-- Gradients are dropped before each step, by what `of` gives for (model, step), if anything.
local function drops(of)
  return { zero_grad = nothing, before_step = function(step, model)
    local dropping = of(model, step)
    if dropping then
      dropping:zero_grad()
    end
  end }
end

-- Two models of one architecture, used, and then taken in this order.
local function of_two(first, second, act, opts)
  return merged({ steps = 0, last = nothing, after_wrap = function(model)
    local models = { model, two.wrapped(opts) }
    for _, m in ipairs(models) do
      m(ms.ones(1, 4)):sum():backward()
    end
    act(models[first], models)
    act(models[second], models)
    ms.dist.barrier()
  end }, { options = opts })
end

local function two_models(what, act, told, opts)
  return { 'which of two models ' .. what, of_two(2, 1, act, opts), told, of_two(1, 2, act, opts) }
end

-- The model of the program and another one like it, in this order, get other values.
local function loads_two(first, second)
  return function(model)
    local models = { model, two.wrapped() }
    models[first]:load_state_dict(two.all_at(1))
    models[second]:load_state_dict(two.all_at(2))
  end
end

local folder = runs.folder() -- of checkpoints

-- Two checkpoints, of which `load` may take one.
local function with_checkpoints(load)
  return before(2, function(model)
    for step = 1, 2 do
      ms.checkpoint.save(folder, 'step' .. step, { step = step, model = model })
    end
    load(model)
  end)
end

local function loads(name)
  return { before_step = with_checkpoints(function(model)
    ms.checkpoint.load(folder .. '/' .. name, { model = model })
  end) }
end

-- The last bias gets this value, behind all backwards, and then something is asked.
local function written_last(act)
  local function with(value)
    return { options = NO_SHARD, last = function(model)
      ms.no_grad(model.module[3].bias.fill_, model.module[3].bias, value)
      act(model)
    end }
  end
  return with(8), with(7)
end

local function replica_written_last(what, told, act)
  local odd, base = written_last(act)
  return { 'other values written into a replica before ' .. what, odd, told, base }
end

-- A module without parameters in the place of the dropout.
local function holding(make)
  return function()
    local module = layers()
    module[2][2] = make()
    return module
  end
end

local function write_then(fn)
  return function(model)
    model:generate({ 1 }, 1)
    fn(model)
    model(ms.tensor({ { 1 } }, { dtype = 'i64' }))
  end
end

-- The second of three units stands out of a forward without gradients.
local function three_units()
  local module = nn.Sequential { layers()[2], layers()[2], layers()[2] }
  function module:forward(x)
    x = self[1](x)
    return self[3](self._skips and x or self[2](x))
  end
  return module
end

local function evaluates(skips)
  return function(model)
    for _, skipping in ipairs { false, skips } do -- the first fixes what is prefetched
      model.module._skips = skipping
      ms.no_grad(model, ms.ones(1, 6))
    end
    ms.dist.barrier()
  end
end

-- { what, settings of rank 1, what both ranks are told, settings of both (default: none) }
local ERRORS = {
  -- models
  { 'a layer more', { layers = function()
    local module = layers()
    module[4] = nn.Linear(2, 2)
    return nn.Sequential { module[1], module[2], module[3], module[4] }
  end }, 'the ranks wrapped different models: unit 0 is' },
  { 'a parameter of another shape', { layers = function()
    return nn.Sequential { nn.Linear(4, 6), layers()[2], nn.Linear(6, 3) }
  end }, 'the ranks wrapped different models: unit 0 is' },
  { 'equal sizes in other shapes', { layers = function()
    local module = nn.Sequential { nn.Linear(6, 4, { bias = false }) }
    return module
  end }, "parameter 0 of unit 'nn.Sequential' is '0.weight' (6, 4) on rank 0 and '0.weight' (4, 6)",
    { layers = function() return nn.Sequential { nn.Linear(4, 6, { bias = false }) } end } },
  { 'a parameter of another name', { layers = function()
    local module = nn.Module()
    module:child('first', nn.Linear(4, 6))
    module.forward = function(self, x) return self.first(x) end
    return module
  end }, 'the ranks wrapped different models: unit 0 is' },
  { 'a parameter of another long name', { layers = long_name 'right' },
    ' (4) on rank 1, not the same where it is cut', { layers = long_name 'left' } },
  { 'a parameter of another dtype', { layers = function()
    local module = nn.Module()
    module:param('w', { 4 }, nil, { dtype = 'f64' })
    return module
  end }, 'dtypes f32/f32/f32) on rank 0', { layers = function()
    local module = nn.Module()
    module:param('w', { 4 })
    return module
  end } },
  { 'a frozen parameter', { before_wrap = frozen(3) },
    "'2.weight' (2, 6) on rank 0 and '2.weight' (2, 6), frozen on rank 1" },
  { 'a parameter frozen later', { before_step = before(2, function(model)
    model.module[3].weight:requires_grad_(false)
  end) }, "rank 1 has requires_grad of '2.weight' false, rank 0 has" },
  { 'a parameter thawed later', { before_step = before(2, function(model)
    model.module[3].weight:requires_grad_(true)
  end) }, "rank 1 has requires_grad of '2.weight' true, rank 0 has",
    { before_wrap = frozen(3) } },
  { 'a parameter with a long path, frozen later', { before_step = freezes('bias') },
    "0.weight' false where rank 1 has requires_grad of '0.0.",
    { layers = deep, options = { auto_wrap_policy = function() return false end },
      before_step = freezes('weight') } },
  { 'an ignored module', { ignored = function(module) return { module[3] } end },
    'the ranks wrapped different models' },
  { 'the number of heads', { layers = transformer { heads = 4 } }, 'the ranks wrapped different '
    .. "models: 'h.0.attn' is nn.CausalSelfAttention (heads 2) on rank 0 and "
    .. 'nn.CausalSelfAttention (heads 4) on rank 1', WRITER },
  { 'the probability of dropout', { layers = holding(function() return nn.Dropout(0.2) end) },
    "'1.1' is nn.Dropout (p 0.1) on rank 0 and nn.Dropout (p 0.2) on rank 1" },
  { 'the eps of a norm', { layers = holding(function()
    return nn.LayerNorm(6, { elementwise_affine = false, eps = 1e-6 })
  end) }, "'1.1' is nn.LayerNorm (eps 1e-05) on rank 0 and nn.LayerNorm (eps 1e-06) on rank 1",
    { layers = holding(function() return nn.LayerNorm(6, { elementwise_affine = false }) end) } },
  { 'the form of an activation',
    { layers = holding(function() return nn.GELU { approximate = 'tanh' } end) },
    'nn.GELU (approximate none) on rank 0 and nn.GELU (approximate tanh) on rank 1',
    { layers = holding(nn.GELU) } },
  { 'an activation', { layers = holding(nn.Tanh) },
    "'1.1' is nn.Dropout (p 0.1) on rank 0 and nn.Tanh on rank 1" },
  { 'a layer more, without parameters', { before_wrap = function(module)
    module:append(nn.Tanh())
  end }, "'3' is missing on rank 0 and nn.Tanh on rank 1" },
  { 'the mode', { after_wrap = function(model) model:eval() end },
    'training of modules is true on rank 0 and false on rank 1' },
  { 'the mode of one module', { after_wrap = function(model) model.module[2][2]:eval() end },
    'training of modules is true on rank 0 and true, but of 1.1 on rank 1' },
  { 'the mode from one step on', { before_step = before(2, function(model) model:eval() end) },
    'rank 1 has training of modules false' },
  { 'a mode that is assigned', { before_step = before(2, function(model)
    model.module[2][2].training = false
  end) }, 'rank 1 has training of modules true, but of 1.1, rank 0 has not' },
  { 'the probability of dropout from one step on', { before_step = before(2, function(model)
    model.module[2][2].p = 0.2
  end) }, "p of '1.1' 0.2" },
  { 'the probability of dropout at one step', { before_step = function(step, model)
    model.module[2][2].p = step == 2 and 0.25 or 0.1
  end }, "p of '1.1' is 0.2 on rank 0 and 0.25 on rank 1", { before_step = function(step, model)
    model.module[2][2].p = step == 2 and 0.2 or 0.1
  end } },
  { 'the mode after text was written', { last = write_then(function(model) model:eval() end) },
    'rank 0 has training of modules true, rank 1 has not',
    merged(WRITER, { last = write_then(nothing) }) },

  -- options
  { 'the strategy', { options = { sharding_strategy = 'SHARD_GRAD_OP' } },
    'FULL_SHARD, dtypes f32/f32/f32) on rank 0 and' },
  { 'the wrap policy', { options = { auto_wrap_policy = fsdp.always_wrap_policy } },
    'the ranks wrapped different models: unit' },
  { 'param_dtype', { options = { mixed_precision = { param_dtype = 'bf16' } } },
    'dtypes f32/bf16/bf16) on rank 1' },
  { 'reduce_dtype',
    { options = { mixed_precision = { param_dtype = 'bf16', reduce_dtype = 'f32' } } },
    'dtypes f32/bf16/bf16) on rank 0',
    { options = { mixed_precision = { param_dtype = 'bf16' } } } },
  { 'buffer_dtype', { options = { mixed_precision = { buffer_dtype = 'bf16' } } },
    "buffer_dtype of FSDP '' is -1 on rank 0 and 2 on rank 1" },
  { 'cast_forward_inputs', { options = { mixed_precision = { cast_forward_inputs = true } } },
    "cast_forward_inputs of FSDP '' is 0 on rank 0 and 1 on rank 1" },
  { 'cast_root_forward_inputs',
    { options = { mixed_precision = { cast_root_forward_inputs = false } } },
    "cast_root_forward_inputs of FSDP '' is 1 on rank 0 and 0 on rank 1" },
  { 'limit_all_gathers', { options = { limit_all_gathers = false } },
    "limit_all_gathers of FSDP '' is 1 on rank 0 and 0 on rank 1" },
  { 'use_orig_params', { options = { use_orig_params = false } },
    'use_orig_params, FULL_SHARD, dtypes f32/f32/f32) on rank 0' },
  { 'backward_prefetch', { options = { backward_prefetch = 'BACKWARD_POST' } },
    'backward_prefetch is BACKWARD_PRE on rank 0 and BACKWARD_POST on rank 1' },
  { 'forward_prefetch', { options = { forward_prefetch = true } },
    "forward_prefetch of the tree's options is 0 on rank 0 and 1 on rank 1" },

  -- values
  { 'the seed of replicas', { seed = 2 },
    "replicas of parameter '0.weight' (unit 'nn.Sequential', NO_SHARD) have other values on rank 1",
    { options = NO_SHARD } },
  { 'the rule of replicas', { before_wrap = function(module)
    module:materialize()
    ms.no_grad(module[3].bias.fill_, module[3].bias, 0.5)
  end }, "replicas of parameter '2.bias'", { options = NO_SHARD } },
  { 'values written into a replica', { before_step = before(2, function(model)
    ms.no_grad(model.module[3].bias.fill_, model.module[3].bias, 7)
  end) }, "rank 1 has values written to '0.weight', rank 0 has", { options = NO_SHARD } },
  { 'other values written into a replica', { before_step = before(2, function(model)
    ms.no_grad(model.module[3].bias.fill_, model.module[3].bias, 7)
  end) }, "hash of values written to '2.bias' is not the same on ranks 0 and 1", {
    options = NO_SHARD,
    before_step = before(2, function(model)
      ms.no_grad(model.module[3].bias.fill_, model.module[3].bias, 8)
    end),
  } },
  replica_written_last('checkpoint.save', "the hash of parameter '2.bias', of which every rank "
    .. 'holds a replica, is', function(model)
    ms.checkpoint.save(folder, 'last', { step = 1, model = model })
  end),
  replica_written_last('export', "state_dict of unit 'nn.Sequential': replicas of parameter "
    .. "'2.bias' (NO_SHARD) have other values on rank 1 than on rank 0", function(model)
    ms.checkpoint.export(folder .. '/last.safetensors', model)
  end),
  replica_written_last('state_dict', "state_dict of unit 'nn.Sequential': replicas of parameter "
    .. "'2.bias'", function(model) model:state_dict() end),
  replica_written_last('hash', "hash of unit 'nn.Sequential': replicas of parameter '2.bias'",
    function(model) model:hash() end),
  replica_written_last('summon_full_params',
    "summon_full_params of unit 'nn.Sequential': replicas of parameter '2.bias'",
    function(model) fsdp.summon_full_params(model, { writeback = false }, nothing) end),
  { 'other values written into a replica inside summon_full_params',
    { before_step = before(2, function(model)
      local bias = model.module[3].bias
      fsdp.summon_full_params(model, nil, ms.no_grad, bias.fill_, bias, 7)
    end) }, "summon_full_params: '2.bias' was left with other values on rank 1 than on rank 0", {
      options = NO_SHARD,
      before_step = before(2, function(model)
        local bias = model.module[3].bias
        fsdp.summon_full_params(model, nil, ms.no_grad, bias.fill_, bias, 8)
      end),
    } },
  { 'values written inside summon_full_params', { before_step = before(2, function(model)
    local bias = model.module[3].bias
    fsdp.summon_full_params(model, nil, ms.no_grad, bias.fill_, bias, 7)
  end) }, "summon_full_params: '2.bias' was left with other values on rank 1 than on rank 0", {
    before_step = before(2, function(model)
      fsdp.summon_full_params(model, nil, function() end)
    end),
  } },
  { 'one element written inside summon_full_params, that this rank does not hold',
    { before_step = before(2, function(model)
      local first = model.module[1].weight
      fsdp.summon_full_params(model, nil, function()
        ms.no_grad(function() first[1]:fill_(7) end)
      end)
    end) }, "'0.weight' was left with other values on rank 1 than on rank 0", {
      before_step = before(2, function(model)
        fsdp.summon_full_params(model, nil, function() end)
      end),
    } },
  { "a replica's gradient, dropped", { clip = changes(function(bias)
    bias:set_grad(nil)
  end) }, "where rank 1 has dropped gradient of '2.bias'", { options = NO_SHARD } },
  { "a replica's gradient, dropped and not clipped", { clip = on(1, function(model)
    model.module[3].bias:set_grad(nil)
  end) }, "where rank 1 has dropped gradient of '2.bias'",
    { options = NO_SHARD, clip = nothing } },
  { "a replica's gradient, dropped before the next is added",
    { before_step = before(2, function(model) model.module[3].bias:set_grad(nil) end) },
    "number of gradients added to of unit 'nn.Sequential' is 4 on rank 0 and 3 on rank 1",
    { options = NO_SHARD, zero_grad = nothing } },
  { "a replica's gradient, written before the next is added",
    { before_step = before(2, function(model) model.module[3].bias:grad()[1] = 9 end) },
    "where rank 1 has changed gradient of '2.bias'",
    { options = NO_SHARD, zero_grad = nothing } },
  { "a replica's gradient, set", { clip = changes(function(bias)
    bias:set_grad(nil)
    bias:set_grad(ms.ones(2))
  end) }, "where rank 1 has changed gradient of '2.bias'", { options = NO_SHARD } },
  { "a replica's gradient, written through a view", { clip = changes(function(bias)
    bias:grad():narrow(1, 1, 1):fill_(9)
  end) }, "hash of changed gradient of '2.bias' is not the same on ranks 0 and 1",
    { options = NO_SHARD, clip = changes(function(bias) bias:grad()[1] = 8 end) } },
  { 'values loaded before the model is wrapped', { before_wrap = function(module)
    module:load_state_dict({ ['2.bias'] = ms.ones(2) }, { strict = false })
  end }, "parameter '2.bias' (unit '2') was loaded or written before its first use, with other "
    .. 'values on rank 1 than on rank 0',
    { before_wrap = function(module) module:materialize() end,
      options = { auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear } } } },
  { 'values written before the model is wrapped', { before_wrap = function(module)
    module:materialize()
    ms.no_grad(module[3].bias.fill_, module[3].bias, 0.5)
  end }, "parameter '2.bias' (unit 'nn.Sequential') was loaded or written before its first use",
    { before_wrap = function(module) module:materialize() end } },
  { 'which of two models the values are loaded into first', { after_wrap = loads_two(2, 1) },
    "(unit 'nn.Sequential') was loaded or written before its first use, with other values on rank "
    .. '1 than on rank 0', { after_wrap = loads_two(1, 2) } },
  { 'a state dict of other values', { after_wrap = state_dict_of(2) },
    "rank 1 was given other values for '0.weight' than rank 0; no rank has loaded anything",
    { after_wrap = state_dict_of(1) } },
  { 'a state dict loaded by one rank', { before_step = before(2, function(model)
    model:load_state_dict({ '2.bias', ['2.bias'] = ms.ones(2) }, { strict = false })
  end) }, 'in load_state_dict)' },
  { 'a state dict taken by one rank', { before_step = before(2, function(model)
    model:state_dict()
  end) }, "in state_dict of unit 'nn.Sequential')" },
  { 'parameters summoned by one rank', { before_step = before(2, function(model)
    fsdp.summon_full_params(model, nil, nothing)
  end) }, "in summon_full_params of unit 'nn.Sequential')" },
  { 'apply by one rank', { before_step = before(2, function(model)
    model:apply(nothing)
  end) }, "in summon_full_params of unit 'nn.Sequential')" },
  { 'a hash taken by one rank', { before_step = before(2, function(model)
    model:hash()
  end) }, "in hash of unit 'nn.Sequential')" },
  { 'gradients clipped twice by one rank', { before_step = before(2, function(model)
    model:clip_grad_norm_(1)
  end) }, 'in clip_grad_norm_); before that they differ: rank 0 has batch of data.Loader' },
  { 'a checkpoint saved by one rank', { before_step = before(2, function(model)
    ms.checkpoint.save(folder, 'step1', { step = 1, model = model })
  end) }, 'in checkpoint.save)' },
  { 'a question whether to stop by one rank', { before_step = before(2, function()
    ms.dist.stop_requested()
  end) }, 'in stop_requested)' },
  { 'a first use of FSDP by one rank', { after_wrap = function(model) model:plan() end },
    'in the first use of FSDP (number of units))',
    { after_wrap = function() ms.dist.barrier() end } },

  -- two models of one architecture
  two_models('is called', function(m) m(ms.ones(1, 4)) end, 'rank 0 calls unshard(f32, 46 '
    .. "elements, unit 'nn.Sequential', slot 1, generation 2), rank 1 calls unshard(f32, 46 "
    .. "elements, unit 'nn.Sequential' of model 2, slot 1"),
  two_models('has its state dict taken', function(m) m:state_dict() end, "in state_dict of unit "
    .. "'nn.Sequential'), rank 1 calls all_gather(92 bytes, in state_dict of unit 'nn.Sequential' "
    .. 'of model 2)'),
  two_models('is hashed', function(m) m:hash() end, "in hash of unit 'nn.Sequential' of model 2)"),
  two_models('is clipped', function(m) m:clip_grad_norm_(1) end, 'rank 0 has clip_grad_norm_ '
    .. '(max_norm 1, norm_type 2) where rank 1 has clip_grad_norm_ of model 2 (max_norm 1'),
  two_models('is summoned', function(m) fsdp.summon_full_params(m, nil, nothing) end,
    "in summon_full_params of unit 'nn.Sequential' of model 2)"),
  two_models('is saved', function(m)
    ms.checkpoint.save(folder, 'step1', { step = 1, model = m })
  end, 'rank 0: the number of the model is 1 on rank 0 and 2 on rank 1'),
  two_models('has its optimizer saved', function(m)
    local opt = optim.SGD(m:parameters(), { lr = 0.1 })
    ms.checkpoint.save(folder, 'step1', { step = 1, optimizer = opt })
  end, "rank 0: the number of the optimizer's model is 1 on rank 0 and 2 on rank 1"),
  two_models('is read into', function(m, models)
    ms.checkpoint.save(folder, 'step1', { step = 1, model = models[1] })
    ms.checkpoint.load(folder .. '/step1', { model = m })
  end, 'rank 0 has checkpoint.load where rank 1 has checkpoint.load of model 2'),
  two_models('drops its gradients', function(m) m:zero_grad() end,
    'rank 0 has zero_grad where rank 1 has zero_grad of model 2'),
  two_models('takes a step', function(m)
    optim.SGD(m:parameters(), { lr = 0.1 }):step()
  end, 'rank 0 has parameters of SGD (group 1, number 6) where rank 1 has parameters of SGD of '
    .. 'model 2 (group 1, number 6)', NO_SHARD),
  two_models('is loaded', function(m) m:load_state_dict(two.all_at(1)) end,
    "rank 0 has values loaded into '0.weight' where rank 1 has values loaded into '0.weight' of "
    .. 'model 2'),

  { 'the checkpoint loaded', loads 'step2', 'expected one checkpoint on all ranks', loads 'step1' },
  { 'a checkpoint loaded by one rank', loads 'step1', 'in checkpoint.load)',
    { before_step = with_checkpoints(nothing) } },
  { 'what is loaded', { before_step = with_checkpoints(function(model)
    ms.checkpoint.load(folder .. '/step1', { model = model, optimizer = adamw {} (model) })
  end) }, 'what is loaded is model on rank 0 and model, optimizer on rank 1', loads 'step1' },
  { 'a checkpoint that is not there', loads 'step3', 'step3/manifest.json', loads 'step1' },

  -- optimizers
  { 'the optimizer', { optimizer = adamw {} },
    'rank 0 has parameters of SGD (group 1, number 6) where rank 1 has parameters of AdamW' },
  { 'lr', { optimizer = sgd { lr = 0.2 } },
    'lr of step of SGD is 0.1 on rank 0 and 0.2 on rank 1' },
  { 'momentum', { optimizer = sgd { lr = 0.1, momentum = 0.9 } },
    'momentum of step of SGD is 0 on rank 0 and 0.9 on rank 1' },
  { 'dampening', { optimizer = sgd { lr = 0.1, momentum = 0.9, dampening = 0.5 } },
    'dampening of step of SGD is 0 on rank 0 and 0.5 on rank 1',
    { optimizer = sgd { lr = 0.1, momentum = 0.9 } } },
  { 'nesterov', { optimizer = sgd { lr = 0.1, momentum = 0.9, nesterov = true } },
    'nesterov of step of SGD is 0 on rank 0 and 1 on rank 1',
    { optimizer = sgd { lr = 0.1, momentum = 0.9 } } },
  { 'maximize', { optimizer = sgd { lr = 0.1, maximize = true } },
    'maximize of step of SGD is 0 on rank 0 and 1 on rank 1' },
  { 'weight_decay', { optimizer = adamw { lr = 0.1, weight_decay = 0.5 } },
    'weight_decay of step of AdamW is 0.01 on rank 0 and 0.5 on rank 1', ADAMW },
  { 'betas', { optimizer = adamw { lr = 0.1, betas = { 0.9, 0.95 } } },
    'betas[2] of step of AdamW is 0.999 on rank 0 and 0.95 on rank 1', ADAMW },
  { 'eps', { optimizer = adamw { lr = 0.1, eps = 1e-6 } },
    'eps of step of AdamW is 1e-08 on rank 0 and 1e-06 on rank 1', ADAMW },
  { 'lr from one step on', { before_step = before(2, function(_, opt) opt:set_lr(0.3) end) },
    'lr of step of SGD is 0.1 on rank 0 and 0.3 on rank 1' },
  { 'the number of parameters', { optimizer = function(model)
    local params = model:parameters()
    params[#params] = nil
    return optim.SGD(params, { lr = 0.1 })
  end }, 'number of parameters of SGD is 6 on rank 0 and 5 on rank 1' },
  { 'the order of parameters', { optimizer = function(model)
    local params = model:parameters()
    params[1], params[2] = params[2], params[1]
    return optim.SGD(params, { lr = 0.1 })
  end }, 'order of parameters of SGD is not the same on ranks 0 and 1' },
  { 'the groups', { optimizer = function(model)
    local params = model:parameters()
    local last = table.remove(params)
    return optim.SGD({ { params = params }, { params = { last } } }, { lr = 0.1 })
  end }, 'number of parameters of SGD is 6 on rank 0 and 5 on rank 1' },
  { 'the lr of a group', { before_step = before(3, function(_, opt) opt:set_lr(0.5, 2) end) },
    'lr of step of SGD is 0.1 on rank 0 and 0.5 on rank 1', { optimizer = function(model)
      local params = model:parameters()
      local last = table.remove(params)
      return optim.SGD({ { params = params }, { params = { last } } }, { lr = 0.1 })
    end } },
  { 'a skipped step', { step = on(2, nothing, function(opt) opt:step() end) },
    'rank 0 has step of SGD (group 1, lr 0.1' },
  { 'a step too many', { step = on(2, function(opt)
    opt:step()
    opt:step()
  end, function(opt) opt:step() end) }, 'rank 1 has step of SGD (group 1, lr 0.1' },
  { 'gradients not dropped', { zero_grad = on(2, nothing, function(opt) opt:zero_grad() end) },
    'rank 0 has zero_grad of SGD' },
  { "gradients that the model's zero_grad does not drop",
    drops(function(model, step) return step ~= 2 and model end),
    'rank 0 has zero_grad where rank 1 has batch of data.Loader',
    drops(function(model) return model end) },
  { "gradients that a layer's zero_grad does not drop", drops(function(model)
    return model.module[1]
  end), "rank 0 has zero_grad of '1' where rank 1 has zero_grad of '0'",
    drops(function(model) return model.module[2] end) },
  { 'optimizer state of another step', { before_step = before(3, function(_, opt)
    local sd = opt:state_dict()
    for _, entry in ipairs(sd.state) do
      entry.steps = 10
    end
    opt:load_state_dict(sd)
  end) }, 'steps of state loaded into AdamW is 2 on rank 0 and 10 on rank 1', merged(ADAMW, {
    before_step = before(3, function(_, opt) opt:load_state_dict(opt:state_dict()) end),
  }) },

  -- gradients
  { 'the clip bound', { clip = function(model) model:clip_grad_norm_(2) end },
    'max_norm of clip_grad_norm_ is 1 on rank 0 and 2 on rank 1' },
  { 'the norm', { clip = function(model) model:clip_grad_norm_(1, math.huge) end },
    'norm_type of clip_grad_norm_ is 2 on rank 0 and inf on rank 1' },
  { 'no clipping', { clip = on(2, nothing, DEFAULTS.clip) },
    'rank 0 has clip_grad_norm_ (max_norm 1, norm_type 2) where rank 1 has step of SGD' },
  { 'clipping of replicas between steps', { before_step = before(2, DEFAULTS.clip) },
    'rank 1 has clip_grad_norm_ (max_norm 1, norm_type 2)', { options = NO_SHARD } },
  { 'a step of replicas between steps', { before_step = before(2, function(_, opt)
    opt:step()
  end) }, 'rank 1 has step of SGD', { options = NO_SHARD } },
  { 'the clip bound of replicas', { clip = function(model) model:clip_grad_norm_(2) end },
    'max_norm of clip_grad_norm_ is 1 on rank 0 and 2 on rank 1', { options = NO_SHARD } },
  { 'the gradient factor', { after_wrap = function(model) model:set_gradient_factor(0.25) end },
    'rank 1 has set_gradient_factor (factor 0.25)', PLANNED },
  { 'another gradient factor',
    { after_wrap = function(model) model:set_gradient_factor(0.25) end },
    'factor of set_gradient_factor is 0.5 on rank 0 and 0.25 on rank 1',
    { after_wrap = function(model) model:set_gradient_factor(0.5) end } },
  { 'a forward without backward', { backward = on(2, nothing, DEFAULTS.backward) },
    'collective mismatch' },
  { 'a unit skipped, that was prefetched', { last = evaluates(true) },
    "rank 1 has skipped unit '1'", {
      layers = three_units, options = { forward_prefetch = true }, steps = 0,
      last = evaluates(false),
    } },
  { 'a forward more', { before_step = before(2, function(model)
    ms.no_grad(model, ms.ones(1, 4))
  end) }, 'rank 0 has batch of data.Loader (step 1, micro_batch 0), rank 1 has not' },
  { 'a backward that reduces nothing', { after_wrap = function(model)
    model:no_sync(function() model(ms.ones(1, 4)):sum():backward() end)
  end }, 'rank 1 has no_sync begun, rank 0 has not', { after_wrap = function(model)
    model(ms.ones(1, 4)):sum():backward()
  end } },

  -- data
  { 'the number of tokens to write', { last = writes(3) }, 'collective mismatch', WRITER },
  { 'text written by one rank', { last = function() ms.dist.barrier() end }, 'collective mismatch',
    WRITER },
  { 'the length of the data', { tokens = function() return counting(210) end },
    'tokens of data.Loader is 200 on rank 0 and 210 on rank 1' },
  { 'the data itself', { tokens = function() return counting(200, 1) end },
    'contents of data.Loader is not the same on ranks 0 and 1' },
  { 'the batch size', { loader = { batch = 3 } },
    'batch of data.Loader is 2 on rank 0 and 3 on rank 1' },
  { 'the context', { loader = { context = 4 } },
    'context of data.Loader is 5 on rank 0 and 4 on rank 1', { loader = { context = 5 } } },
  { 'micro-batches', { loader = { micro_batches = 2 } },
    'micro_batches of data.Loader is 1 on rank 0 and 2 on rank 1' },
  { "the loader's seed", { loader = { seed = 4 } },
    'seed of data.Loader is 3 on rank 0 and 4 on rank 1' },
  { 'shuffling', { loader = { shuffle = false } },
    'shuffle of data.Loader is 1 on rank 0 and 0 on rank 1' },
  { "the loader's number of ranks", { loader = { rank = 0, world_size = 1 } },
    'rank 0 has data.Loader (tokens 200, batch 2' },
  { 'one more loader for all', { before_step = before(2, function()
    data.Loader { tokens = counting(50), batch = 1, context = 2 }
  end) }, 'rank 1 has data.Loader (tokens 50, batch 1' },
  { 'a batch more', { before_step = before(2, function(_, _, loader) loader:next() end) },
    'rank 1 has batch of data.Loader (step 2, micro_batch 0), rank 0 has not' },
  { "the loader's position", { before_step = before(2, function(_, _, loader)
    loader:load_state { samples = 40, seed = 3, samples_per_step = 4 }
  end) }, 'step of batch of data.Loader is 1 on rank 0 and 10 on rank 1' },
  { 'a step less', { steps = 2 }, 'rank 0 has batch of data.Loader (step 2, micro_batch 0)' },

  -- what scripts say
  { 'ms.dist.same', { after_wrap = function() ms.dist.same('width', 8) end },
    'width is 6 on rank 0 and 8 on rank 1',
    { after_wrap = function() ms.dist.same('width', 6) end } },
  { 'what stands behind a zero byte', { after_wrap = function() ms.dist.same('id', 'a\0c') end },
    'id is "a', { after_wrap = function() ms.dist.same('id', 'a\0b') end } },
}

-- As above, in the last step, after which nothing is called any more: the ranks themselves end
-- well, and the job with an error.
local LAST = {
  { 'lr', { optimizer = sgd { lr = 0.2 } },
    'lr of step of SGD is 0.1 on rank 0 and 0.2 on rank 1' },
  { 'the optimizer', { optimizer = adamw { lr = 0.1 } },
    'rank 0 has parameters of SGD (group 1, number 6) where rank 1 has parameters of AdamW' },
  { 'a skipped step', { step = nothing }, 'rank 0 has parameters of SGD (group 1, number 6) where '
    .. 'rank 1 has zero_grad of SGD' },
  { 'a skipped step and nothing else', { step = nothing, zero_grad = nothing },
    'rank 0 has parameters of SGD', { zero_grad = nothing } },
  { 'a step too many', { zero_grad = function(opt) opt:step() end },
    'rank 1 has step of SGD (group 1, lr 0.1', { zero_grad = nothing } },
  { 'a batch more', { last = function(_, loader) loader:next() end },
    'rank 1 has batch of data.Loader (step 1, micro_batch 0), rank 0 has not' },
  { 'ms.dist.same', { last = function() ms.dist.same('best', 2) end },
    'best is 1 on rank 0 and 2 on rank 1', { last = function() ms.dist.same('best', 1) end } },
}

describe('two ranks that differ in', function()
  after_each(function()
    shell.remove_folder(folder)
  end)

  for _, line in ipairs(ERRORS) do
    local what, odd, told, base = unpack(line)
    it(what .. ' are told so', function()
      for rank, report in ipairs(run(base or {}, odd)) do
        local about = ('rank %d after %.3f s: %s'):format(rank - 1, report.seconds, report.message)
        assert.is_truthy(report.message:find(told, 1, true), about)
        assert.is_true(report.seconds < SOON, about)
      end
    end)
  end

  for _, line in ipairs(LAST) do
    local what, odd, told, base = unpack(line)
    it(what .. ' of the last step are told so when they have left', function()
      local reports, cause = run(merged({ steps = 1, last = nothing }, base or {}),
        merged({ steps = 1 }, odd))
      for rank, report in ipairs(reports) do
        assert.equal('ok', report.message, 'rank ' .. rank - 1)
      end
      assert.is_truthy(cause, 'the job ended well')
      assert.is_truthy(cause:find(told, 1, true), cause)
    end)
  end
end)
