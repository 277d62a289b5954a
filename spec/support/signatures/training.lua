--- How optimizers, loaders, schedules, ranks, sharding and checkpoints are called rightly.

local ms = require 'moonshard'
local kinds = require 'support.signatures.kinds'

local maybe, fixed, callable, kind = kinds.maybe, kinds.fixed, kinds.callable, kinds.kind
local tensor, whole, number, flag = kinds.tensor, kinds.whole, kinds.number, kinds.flag
local text, list, array, fn = kinds.text, kinds.list, kinds.array, kinds.fn
local any, dtype = kinds.any, kinds.dtype
local choice, object, options, x = kinds.choice, kinds.object, kinds.options, kinds.x
local pass, linear, module, wrapped = kinds.pass, kinds.linear, kinds.module, kinds.wrapped
local optimizer, tokens, loader, folder = kinds.optimizer, kinds.tokens, kinds.loader, kinds.folder
local root, adam_options, parameters = kinds.root, kinds.adam_options, kinds.parameters
local positive, zero_grad_options = kinds.positive, kinds.zero_grad_options

local of = {}

-- -- optimizers, data, schedules -----------------------------------------------------------------

of['ms.optim.Optimizer'] = function() -- abstract
  return { any(nil) }
end
of['ms.optim.SGD'] = function()
  return { parameters(), maybe(options {
    lr = maybe(number(0.1)), momentum = maybe(number(0.9)), dampening = maybe(number(0)),
    weight_decay = maybe(number(0)), nesterov = maybe(flag(true)), maximize = maybe(flag(false)),
  }) }
end
of['ms.optim.Adam'] = function() return { parameters(), adam_options() } end
of['ms.optim.AdamW'] = of['ms.optim.Adam']
local function on_optimizer(name, ...)
  local more = { ... }
  of['ms.optim.Optimizer:' .. name] = function()
    local o = optimizer()
    local args = { object(o, ms.optim.Optimizer) }
    for i, make in ipairs(more) do
      args[i + 1] = make(o)
    end
    return args
  end
end
on_optimizer('step')
on_optimizer('zero_grad', zero_grad_options)
on_optimizer('state_dict')
on_optimizer('load_state_dict', function(o) return list(o:state_dict()) end)
on_optimizer('set_lr', function() return number(0.2) end, function() return maybe(whole(1)) end)
on_optimizer('add_param_group', function() return list { params = linear():parameters() } end)
of['ms.optim.clip_grad_norm_'] = function()
  return { parameters(), number(1), maybe(number(2)) }
end

local function scheduler_of(name, make, all_optional)
  local full = 'ms.optim.lr_scheduler.' .. name
  of[full] = function()
    local o = optimizer()
    local fields = make(o)
    fields.last_epoch = maybe(whole(-1))
    local given = options(fields)
    return { object(o, ms.optim.Optimizer), all_optional and maybe(given) or given }
  end
end
scheduler_of('StepLR', function()
  return { step_size = positive(2), gamma = maybe(number(0.5)) }
end)
scheduler_of('MultiStepLR', function()
  return { milestones = array { 1, 2 }, gamma = maybe(number(0.5)) }
end)
scheduler_of('ConstantLR', function()
  return { factor = maybe(number(0.5)), total_iters = maybe(whole(2)) }
end, true)
scheduler_of('LinearLR', function()
  return { start_factor = maybe(number(0.5)), end_factor = maybe(number(1)),
    total_iters = maybe(positive(2)) }
end, true)
scheduler_of('ExponentialLR', function() return { gamma = number(0.5) } end)
scheduler_of('CosineAnnealingLR', function()
  return { T_max = positive(2), eta_min = maybe(number(0)) }
end)
scheduler_of('LambdaLR', function()
  return { lr_lambda = fn(function() return 1 end) }
end)
scheduler_of('OneCycleLR', function()
  return { max_lr = number(1), total_steps = positive(4), pct_start = maybe(number(0.5)),
    anneal_strategy = maybe(choice('cos', 'linear')), cycle_momentum = maybe(flag(true)),
    base_momentum = maybe(number(0.8)), max_momentum = maybe(number(0.9)),
    div_factor = maybe(number(25)), final_div_factor = maybe(number(10)),
    three_phase = maybe(flag(false)) }
end)
local function step_lr()
  return ms.optim.lr_scheduler.StepLR(optimizer(), { step_size = 2 })
end
of['ms.optim.lr_scheduler.SequentialLR'] = function()
  local first = step_lr()
  return { object(first.optimizer, ms.optim.Optimizer), options {
    schedulers = list { first }, milestones = array {}, last_epoch = maybe(whole(-1)),
  } }
end
of['ms.optim.lr_scheduler.LRScheduler'] = function() return { any(nil), any(nil) } end
for _, name in ipairs { 'step', 'get_last_lr', 'state_dict' } do
  of['ms.optim.lr_scheduler.LRScheduler:' .. name] = function()
    return { object(step_lr(), ms.optim.lr_scheduler.LRScheduler) }
  end
end
of['ms.optim.lr_scheduler.LRScheduler:load_state_dict'] = function()
  local s = step_lr()
  return { object(s, ms.optim.lr_scheduler.LRScheduler), list(s:state_dict()) }
end
of['ms.optim.lr_scheduler.SequentialLR:state_dict'] = function()
  local s = step_lr()
  s = ms.optim.lr_scheduler.SequentialLR(s.optimizer, { schedulers = { s }, milestones = {} })
  return { object(s, ms.optim.lr_scheduler.LRScheduler) }
end
of['ms.optim.lr_scheduler.SequentialLR:load_state_dict'] = function()
  local s = step_lr()
  s = ms.optim.lr_scheduler.SequentialLR(s.optimizer, { schedulers = { s }, milestones = {} })
  return { object(s, ms.optim.lr_scheduler.LRScheduler), list(s:state_dict()) }
end

local group = kind(function(v) return v == ms.dist.world() end)
local function some_group() return maybe(group(ms.dist.world())) end
of['ms.data.Loader'] = function()
  return { options {
    tokens = tensor(tokens()), batch = positive(1), context = positive(2), seed = maybe(whole(1)),
    shuffle = maybe(flag(true)), rank = maybe(whole(0)), world_size = maybe(positive(1)),
    micro_batches = maybe(positive(1)), process_group = some_group(),
  } }
end
for _, name in ipairs { 'epoch', 'group', 'next', 'state', 'step' } do
  of['ms.data.Loader:' .. name] = function() return { object(loader(), ms.data.Loader) } end
end
of['ms.data.Loader:batches'] = function()
  return { object(loader(), ms.data.Loader), maybe(whole(1)) }
end
of['ms.data.Loader:load_state'] = function()
  local l = loader()
  return { object(l, ms.data.Loader), list(l:state()) }
end
of['ms.data.Loader:check_state'] = of['ms.data.Loader:load_state']
of['ms.data.bytes'] = function() return { text 'abc' } end
of['ms.data.text'] = function() return { array { 97, 98 } } end
of['ms.data.tokens'] = function()
  return { text(folder .. '/tokens'), maybe(choice('u8', 'i64')) }
end

local function schedule_options()
  return options {
    lr = number(0.1), warmup = maybe(number(1)), total = number(10), final = maybe(number(0)),
  }
end
of['ms.schedule.cosine'] = function() return { schedule_options() } end
of['ms.schedule.linear'] = of['ms.schedule.cosine']
of['ms.schedule.constant'] = function()
  return { options { lr = number(0.1), warmup = maybe(number(1)) } }
end

-- -- loss scales ---------------------------------------------------------------------------------

local function scaler_options(more)
  local fields = {
    init_scale = maybe(number(4)), growth_factor = maybe(number(2)),
    backoff_factor = maybe(number(0.5)), growth_interval = maybe(positive(2)),
    enabled = maybe(flag(true)),
  }
  fields.process_group = more
  return maybe(options(fields))
end
of['ms.amp.GradScaler'] = function() return { scaler_options() } end
of['ms.fsdp.ShardedGradScaler'] = function() return { scaler_options(some_group()) } end
local function on_scaler(name, ...)
  local more = { ... }
  of['ms.amp.GradScaler:' .. name] = function()
    local args = { object(ms.amp.GradScaler(), ms.amp.GradScaler) }
    for i, make in ipairs(more) do
      args[i + 1] = make()
    end
    return args
  end
end
local function stepping()
  local p = ms.tensor({ 1, 2 }, { requires_grad = true })
  p:set_grad(ms.ones(2))
  return object(ms.optim.SGD({ p }), ms.optim.Optimizer)
end
on_scaler('scale', x)
on_scaler('unscale_', stepping)
on_scaler('step', stepping)
on_scaler('update', function() return number(2) end)
on_scaler('get_scale')
on_scaler('is_enabled')
on_scaler('state_dict')
on_scaler('load_state_dict', function() return list(ms.amp.GradScaler():state_dict()) end)

-- -- ranks, sharding -----------------------------------------------------------------------------

local reduction = choice('sum', 'avg', 'max', 'min')
of['ms.dist.all_reduce'] = function() return { x(), maybe(reduction), some_group() } end
of['ms.dist.all_gather'] = function() return { x(), maybe(x()), some_group() } end
of['ms.dist.reduce_scatter'] = function() return { x(), x(), maybe(reduction), some_group() } end
of['ms.dist.broadcast'] = function() return { x(), maybe(whole(0)), some_group() } end
of['ms.dist.functional.all_reduce'] = function()
  return { x(), maybe(reduction), some_group() }
end
of['ms.dist.functional.reduce_scatter'] = of['ms.dist.functional.all_reduce']
of['ms.dist.functional.all_gather'] = function() return { x(), some_group() } end
of['ms.dist.functional.broadcast'] = function() return { x(), maybe(whole(0)), some_group() } end
of['ms.dist.barrier'] = function() return { some_group() } end
of['ms.dist.wait_seconds'] = function() return { some_group() } end
of['ms.dist.stop_requested'] = function() return { some_group() } end
of['ms.dist.same'] = function()
  return { text 'batch', kind(function(v)
    return type(v) == 'string' or type(v) == 'number' or type(v) == 'boolean'
  end)(1), some_group() }
end
of['ms.dist.split'] = function() return { whole(0), maybe(whole(0)), some_group() } end
of['ms.dist.new_group'] = function() return { maybe(list { 0 }) } end
of['ms.dist.init_device_mesh'] = function()
  return { choice 'cpu', list { 1 }, maybe(options { mesh_dim_names = maybe(list { 'dp' }) }) }
end
of['ms.dist.get_rank'] = function()
  return { maybe(kind(function(v) return v == false or v == ms.dist.world() end)(false)) }
end
of['ms.dist.get_world_size'] = of['ms.dist.get_rank']
of['ms.dist.get_process_group_ranks'] = function() return { some_group() } end
of['ms.dist.get_global_rank'] = function() return { some_group(), whole(0) } end
of['ms.dist.get_group_rank'] = of['ms.dist.get_global_rank']
of['ms.dist.destroy_process_group'] = of['ms.dist.get_rank']
of['ms.dist.fake'] = function()
  return { options { rank = maybe(whole(0)), world = positive(2) } }
end
of['ms.dist.counts'] = function() return { some_group() } end
of['ms.dist.init'] = function() return { maybe(options { ranks = maybe(positive(1)) }) } end
of['ms.dist.run'] = function()
  return { maybe(options { ranks = maybe(positive(1)) }), fn(pass) }
end

local POLICY_ROOT = { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' }
local function fsdp_options()
  return maybe(options {
    sharding_strategy = maybe(choice(unpack(POLICY_ROOT))),
    backward_prefetch = maybe(choice('BACKWARD_PRE', 'BACKWARD_POST', 'none')),
    forward_prefetch = maybe(flag(false)), use_orig_params = maybe(flag(true)),
    limit_all_gathers = maybe(flag(true)),
    auto_wrap_policy = maybe(kind(callable)(ms.fsdp.ModuleWrapPolicy { ms.nn.ReLU })),
    process_group = maybe(group(ms.dist.world())),
    mixed_precision = maybe(options {
      param_dtype = maybe(dtype 'bf16'), reduce_dtype = maybe(dtype 'f32'),
      buffer_dtype = maybe(dtype 'f32'), cast_forward_inputs = maybe(flag(true)),
      cast_root_forward_inputs = maybe(flag(true)), module_classes_to_ignore = maybe(list {}),
    }),
  })
end
of['ms.fsdp.FSDP'] = function() return { module(), fsdp_options() } end
of['ms.fsdp.FSDP:forward'] = function() return { fixed(wrapped()), x() } end
for _, name in ipairs {
  'apply', 'collectives', 'hash', 'reshard', 'units', 'unshard', 'state_dict',
} do
  of['ms.fsdp.FSDP:' .. name] = function() return { wrapped() } end
end
of['ms.fsdp.FSDP:state_dict'] = function()
  return { wrapped(), maybe(options { rank0_only = maybe(flag(false)) }) }
end
of['ms.fsdp.FSDP:plan'] = function()
  return { wrapped(),
    maybe(options { micro_batches = maybe(positive(1)), dry_run = maybe(flag(false)) }) }
end
of['ms.fsdp.FSDP:apply'] = function() return { wrapped(), fn(pass) } end
of['ms.fsdp.FSDP:clip_grad_norm_'] = function()
  return { wrapped(), number(1), maybe(number(2)) }
end
of['ms.fsdp.FSDP:no_sync'] = function() return { wrapped(), fn(pass) } end
of['ms.fsdp.FSDP:set_gradient_factor'] = function() return { wrapped(), maybe(number(1)) } end

local classes = array
of['ms.fsdp.ModuleWrapPolicy'] = function() return { classes { ms.nn.Linear } } end
of['ms.fsdp.transformer_auto_wrap_policy'] = of['ms.fsdp.ModuleWrapPolicy']
of['ms.fsdp.CustomPolicy'] = function() return { fn(function() return false end) } end
of['ms.fsdp.lambda_auto_wrap_policy'] = of['ms.fsdp.CustomPolicy']
of['ms.fsdp.or_policy'] = function() return { list { ms.fsdp.always_wrap_policy } } end
of['ms.fsdp.always_wrap_policy'] = function() return { any(linear()), any(true), any(1) } end
-- Called with a module it is a policy itself.
of['ms.fsdp.size_based_auto_wrap_policy'] = function()
  local first = kind(function(v)
    return ms.is(v, ms.nn.Module) or type(v) == 'table' and next(v) == nil
  end)
  return { maybe(first(linear())), flag(true), number(10) }
end
of['ms.fsdp.enable_wrap'] = function() -- options are looked at where it wraps
  return { maybe(list { use_orig_params = true }), fn(pass) }
end
of['ms.fsdp.wrap'] = function() return { module(), maybe(list {}) } end
of['ms.fsdp.FSDP:register_comm_hook'] = function() return { wrapped() } end
of['ms.fsdp.summon_full_params'] = function()
  return { module(wrapped().value), maybe(options {
    recurse = maybe(flag(true)), writeback = maybe(flag(true)), rank0_only = maybe(flag(false)),
    offload_to_cpu = maybe(flag(false)), with_grads = maybe(flag(false)),
  }), fn(pass) }
end

-- -- checkpoints ---------------------------------------------------------------------------------

local function save_options()
  local model = linear()
  return options {
    step = whole(1), model = maybe(module(model)), config = maybe(list { a = 1 }),
    optimizer = maybe(object(ms.optim.SGD(model:parameters(), { lr = 0.1 }),
      ms.optim.Optimizer)),
    loader = maybe(object(loader(), ms.data.Loader)), process_group = some_group(),
  }
end
local function saved()
  local model = linear()
  local path = ms.checkpoint.save(root, 'saved', { step = 1, model = model })
  return path, model
end
local function manager()
  return object(ms.checkpoint.Manager { root = root }, ms.checkpoint.Manager)
end
of['ms.checkpoint.save'] = function() return { text(root), text 'one', save_options() } end
of['ms.checkpoint.load'] = function()
  local path, model = saved()
  return { text(path), options { model = module(model), process_group = some_group() } }
end
of['ms.checkpoint.read_meta'] = function() return { text((saved())) } end
of['ms.checkpoint.latest'] = function() return { text(root) } end
of['ms.checkpoint.prune'] = function() return { text(root), whole(1) } end
of['ms.checkpoint.Manager'] = function()
  return { options { root = text(root), keep = maybe(positive(2)),
    process_group = some_group() } }
end
of['ms.checkpoint.Manager:save'] = function() return { manager(), save_options() } end
of['ms.checkpoint.Manager:resume'] = function()
  return { manager(), options { model = module(linear()), process_group = some_group() } }
end
local file = folder .. '/x.safetensors'
of['ms.checkpoint.export'] = function()
  return { text(file), module(), maybe(options { process_group = some_group() }) }
end
of['ms.checkpoint.import'] = function()
  local m = linear()
  ms.checkpoint.export(file, m)
  return { text(file), module(m), maybe(options { process_group = some_group() }) }
end
of['ms.checkpoint.write_safetensors'] = function()
  return { text(file), list { a = ms.rand(2) } }
end
of['ms.checkpoint.read_safetensors'] = function()
  ms.checkpoint.write_safetensors(file, { a = ms.rand(2) })
  return { text(file) }
end

return of
