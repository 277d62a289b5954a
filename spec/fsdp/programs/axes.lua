--- The options that random programs draw, one row each.
---
--- name, then values, the default first.
--- legal(value, p)     false where the combination is refused, or says nothing; default: legal
--- bits                true: with the default in its place the results have equal bits
---
--- A row acts in functions of (value, r, ...), r being a run (run.lua) of the wrapped model or of
--- the plain one (not r.sharded). They are called where the value is not the default:
--- before(value, r)            nothing is made yet
--- net(value, r, net)          the plain module
--- options(value, r, o, net)   options of FSDP
--- wrapped(value, r, model)    returns another model, or nil
--- sharded(value, r, parts)    fully_shard made these: a list, and by name
--- batch(value, r, parts, last)  the same, before each forward; last: of the step
--- child(value, r, o, i)       options of the i-th child (policy hand)
--- ready(value, r)             models are made, the optimizer is not
--- gradients(value, r)         after the backwards of a step
--- stepped(value, r, s)        after step s
--- finish(value, r)            after the last one

local ffi = require 'ffi'
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local net_classes = require 'fsdp.programs.net'
local Addend, Block = net_classes.Addend, net_classes.Block

local HYBRID = { HYBRID_SHARD = true, _HYBRID_SHARD_ZERO2 = true }
local OFTEN, SELDOM = 0.6, 0.12
local function set(name) return function(value, _, o) o[name] = value end end
local function mixed(name)
  return function(value, _, o)
    o.mixed_precision = o.mixed_precision or {}
    o.mixed_precision[name] = value
  end
end

local function is_block(module) return ms.is(module, Block) end

local axes = { SELDOM = SELDOM }

--- Are blocks and layers sharded one by one? fully_shard has no policies. It refuses parameters
--- that are tied across groups, and a group runs on all ranks or on none.
function axes.by_hand(p)
  return p.policy == 'hand' or p.face == 'fully_shard' and p.policy ~= 'none' and not p.tied
    and p.unused ~= 'rank'
end

local function row(name)
  return function(entry)
    entry.name, entry.values, entry[1] = name, entry[1], nil
    axes[#axes + 1], axes[name] = entry, entry
  end
end

-- -- the program ---------------------------------------------------------------------------------

row 'world' { { 2, 1, 3, 4 } }
row 'hosts' { -- of this machine, connected by TCP
  { 1, 2 }, chance = 0.1, bits = true,
  legal = function(n, p) return p.world % n == 0 end,
}
row 'launched' { { false, true }, chance = 0.03 } -- processes of their own in place of forks
row 'steps' { { 2, 1, 3, 5 } } -- the third call of what is compiled is a replay
row 'micro' { { 1, 2, 3, 4 } }
row 'no_sync' { -- from this micro-batch on
  { false, 1, 2, 3 }, chance = 0.8, legal = function(from, p) return from < p.micro end,
}
row 'forwards' { { 1, 2 }, chance = SELDOM } -- for one backward
row 'models' { { 1, 2 }, chance = SELDOM } -- one after the other, with one optimizer

-- -- the model -----------------------------------------------------------------------------------

row 'blocks' { { 2, 3 } }
row 'width' { { 4, 5 } }
row 'gain' {
  { false, true },
  legal = function(_, p) return p.policy ~= 'hand' end, -- the root has no parameters then
  net = function(_, r, net)
    net:param('gain', { r.p.width }, { kind = 'uniform', a = 0.5, b = 1.5 }, { dtype = r.p.master })
  end,
}
row 'buffers' {
  { false, true },
  net = function(_, r, net)
    for i = 1, r.p.blocks do
      net['b' .. i]:buffer('shift', ms.full({ r.p.width }, 0.1 * i, { dtype = r.p.master }))
    end
  end,
  finish = function(_, r)
    local net = r.nets[1]
    for i = 1, r.p.blocks do
      local block = net['b' .. i]
      local wanted = r.p.buffer_dtype ~= 'none' and not block.is_ignored and r.p.buffer_dtype
        or r.p.master
      r:see('dtype', ('the dtype of b%d.shift'):format(i), r.sharded and block.shift:dtype()
        or wanted)
    end
  end,
}
row 'tied' {
  { false, true }, chance = SELDOM,
  legal = function(_, p) return p.ignored ~= 'module' or p.blocks > 2 end,
  net = function(_, _, net) net.b2.linear.weight = net.b1.linear.weight end,
}
row 'frozen' {
  { 'none', 'weight', 'block' }, chance = SELDOM,
  legal = function(value, p) -- a flat parameter is frozen as a whole
    return p.use_orig_params
      or value == 'block' and p.policy ~= 'none' and p.policy ~= 'size' and not p.tied
  end,
  net = function(value, _, net)
    net.b1.linear.weight:requires_grad_(false)
    net.b1.linear.bias:requires_grad_(value == 'weight')
  end,
}
row 'unused' {
  { 'none', 'never', 'rank', 'step' }, -- by a rank, in a step
  legal = function(value, p) -- a unit of its own runs on all ranks or on none
    return value ~= 'rank' or p.policy == 'none' or p.policy == 'class'
  end,
  net = function(value, r, net)
    net.spare = nn.Linear(r.p.width, r.p.width, { dtype = r.p.master })
    local of = r.of
    net.uses_spare = value == 'rank' and function() return of.rank == 0 end
      or value == 'step' and function() return of.step == 2 end
  end,
}
row 'ignored' {
  { 'none', 'module', 'parameter' }, chance = SELDOM,
  legal = function(value, p) -- the parameter keeps its dtype beside cast ones
    return value == 'module' or p.param_dtype == 'none' or p.param_dtype == p.master
  end,
  net = function(value, r, net) net['b' .. r.p.blocks].is_ignored = value == 'module' end,
  options = function(value, r, o, net)
    if value == 'module' then
      o.ignored_modules = { net['b' .. r.p.blocks] }
    else
      o.ignored_states = { net.head.bias }
    end
  end,
  gradients = function(value, r) -- each rank's own, which the script averages
    for _, net in ipairs(r.sharded and r.nets or {}) do
      local last = net['b' .. r.p.blocks].linear
      for _, p in ipairs(value == 'module' and { last.weight, last.bias } or { net.head.bias }) do
        local grad = p:grad()
        ms.dist.all_reduce(grad, 'sum')
        grad:mul_(1 / r.world)
      end
    end
  end,
}
row 'cache' { -- a table that forward fills
  { false, true }, chance = SELDOM,
  legal = function(_, p) -- one with tensors of another dtype is copied
    return p.recompute == 'none' and p.ignored == 'none'
  end,
}
row 'recompute' { { 'none', 'before', 'after' }, bits = true } -- wrapping, by nn.checkpoint
row 'compile' { -- the sharded models
  { 'none', 'replay', 'partition', 'fuse' }, bits = true,
  ready = function(backend, r)
    for _, model in ipairs(r.sharded and not r.p.whole and r.models or {}) do
      model:compile { backend = backend }
    end
  end,
}
row 'whole' { -- compiled are micro-batches and updates, not models
  { false, true }, bits = true, chance = OFTEN,
  legal = function(_, p) return p.compile ~= 'none' and p.scaler == 'none' and not p.cache end,
}

-- -- dtypes --------------------------------------------------------------------------------------

local DTYPES = { 'none', 'f16', 'bf16', 'f32', 'f64' }

row 'master' { { 'f32', 'f64' } }
row 'param_dtype' { DTYPES, options = mixed 'param_dtype' }
row 'reduce_dtype' { DTYPES, options = mixed 'reduce_dtype' }
row 'buffer_dtype' {
  DTYPES, chance = 1, options = mixed 'buffer_dtype',
  legal = function(_, p) return p.buffers and p.mode ~= 'full' end,
}
row 'keep_low' {
  { false, true }, options = mixed 'keep_low_precision_grads',
  legal = function(_, p) return p.param_dtype ~= 'none' or p.reduce_dtype ~= 'none' end,
}
row 'cast_inputs' { { false, true }, bits = true, options = mixed 'cast_forward_inputs' }

ffi.cdef [[
  int setenv(const char *, const char *, int);
  int unsetenv(const char *);
]]
row 'mode' { -- full: FSDP_USE_FULL_PREC_IN_EVAL
  { 'train', 'eval', 'full' }, chance = SELDOM,
  before = function(value)
    if value == 'full' then
      ffi.C.setenv('FSDP_USE_FULL_PREC_IN_EVAL', '1', 1)
    end
  end,
  wrapped = function(_, _, model) model:eval() end,
  finish = function() ffi.C.unsetenv 'FSDP_USE_FULL_PREC_IN_EVAL' end,
}

-- -- sharding ------------------------------------------------------------------------------------

row 'strategy' {
  { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD', 'HYBRID_SHARD', '_HYBRID_SHARD_ZERO2' },
  bits = true, chance = OFTEN,
  options = function(value, r, o)
    o.sharding_strategy = value
    o.process_group = HYBRID[value] and { r:hybrid_groups(r.p.inside) } or nil
  end,
}
row 'inside' { -- ranks of a shard group
  { 1, 2 }, bits = true, chance = OFTEN,
  legal = function(n, p) return HYBRID[p.strategy] and p.world % n == 0 end,
}
row 'use_orig_params' {
  { false, true }, bits = true, chance = OFTEN, options = set 'use_orig_params',
}
row 'shard_layout' {
  { 'flat', 'rows' }, bits = true, chance = 0.9, options = set 'shard_layout',
  legal = function(_, p) return p.use_orig_params end,
}

local POLICIES = {
  class = fsdp.ModuleWrapPolicy { Block },
  nested = fsdp.transformer_auto_wrap_policy { Block, nn.Linear },
  all = fsdp.always_wrap_policy,
  size = fsdp.size_based_auto_wrap_policy { min_num_params = 21 },
}

-- The first block gathers once for forward and backward.
local KEPT = {
  FULL_SHARD = { sharding_strategy = 'SHARD_GRAD_OP' },
  HYBRID_SHARD = { sharding_strategy = '_HYBRID_SHARD_ZERO2' },
}
local function custom(strategy)
  return fsdp.CustomPolicy(function(module)
    return is_block(module) and module.label == 'b1' and KEPT[strategy] or ms.is(module, nn.Linear)
  end)
end

row 'policy' { -- hand: FSDP of each child
  { 'none', 'class', 'nested', 'all', 'size', 'custom', 'hand' }, bits = true, chance = OFTEN,
  options = function(value, r, o)
    o.auto_wrap_policy = value == 'custom' and custom(r.p.strategy) or POLICIES[value]
  end,
}
row 'mixed' { -- the first child is divided among other ranks than the rest
  { false, true }, bits = true, chance = OFTEN,
  legal = function(_, p)
    return p.policy == 'hand' and p.strategy ~= 'NO_SHARD' and p.hook == 'none' and not p.tied
      and (p.clip == 'none' or p.clip == math.huge) -- a sum of two norms may be rounded otherwise
  end,
  child = function(_, r, o, i)
    if i == 1 then
      local hybrid = HYBRID[r.p.strategy]
      o.sharding_strategy = hybrid and 'FULL_SHARD' or 'HYBRID_SHARD'
      o.process_group = not hybrid and { r:hybrid_groups(2 - r.p.world % 2) } or nil
    end
  end,
}
row 'again' { -- wrapped and used once before
  { false, true }, bits = true, chance = OFTEN,
  legal = function(_, p)
    return p.policy == 'hand' and p.face == 'wrapper' and p.ignored == 'none' and p.hook == 'none'
      and p.unused == 'none' and not p.tied -- the root has no parameters
      and p.param_init_fn == 'none' and p.mode == 'train'
  end,
}
row 'face' { -- fully_shard: without the options it lacks, none of which changes a bit
  { 'wrapper', 'composable', 'fully_shard' }, bits = true, chance = 0.9,
  legal = function(value, p)
    return value ~= 'fully_shard' or not p.keep_low and p.mode ~= 'full' and p.hook == 'none'
      and p.buffer_dtype == 'none' and p.param_init_fn == 'none' and not (p.policy == 'hand'
      and p.tied)
  end,
}

-- -- settings of fully_shard ---------------------------------------------------------------------

local function in_groups(_, p) return p.face == 'fully_shard' and axes.by_hand(p) end
local function stays_in_groups(_, p) return in_groups(_, p) and p.reload ~= 'other_face' end

row 'unsynced' { -- reduces in the last micro-batch only
  { 'none', 'b1', 'head', 'root' }, chance = OFTEN, legal = stays_in_groups,
  batch = function(value, _, parts, is_last)
    parts[value]:set_requires_gradient_sync(is_last, false)
  end,
}
row 'divisor' { -- of the first block's gradients
  { false, 2, 3 }, chance = OFTEN,
  legal = function(_, p) return stays_in_groups(_, p) and p.grads ~= 'kept' end,
  sharded = function(value, _, parts) parts.b1:set_gradient_divide_factor(value) end,
  gradients = function(value, r)
    for _, net in ipairs(r.sharded and {} or r.nets) do
      for _, p in ipairs(net.b1:parameters()) do
        local grad = p:grad()
        if grad then
          grad:mul_(r.world / value)
        end
      end
    end
  end,
}
row 'unread' { -- a module is not gathered in backward
  { false, true }, chance = OFTEN, legal = in_groups,
  net = function(_, r, net) net.addend = Addend(r.p) end,
  sharded = function(_, _, parts) parts.addend:set_unshard_in_backward(false) end,
}
row 'after_forward' {
  { 'by option', 'keep one', 'free all' }, bits = true, chance = OFTEN, legal = in_groups,
  sharded = function(value, _, parts)
    local module = value == 'keep one' and parts.b1 or parts.root
    module:set_reshard_after_forward(value == 'free all')
  end,
}
row 'after_backward' {
  { 'free', 'keep one', 'keep' }, bits = true, chance = OFTEN, legal = in_groups,
  sharded = function(value, _, parts)
    local module = value == 'keep one' and parts.b1 or parts.root
    module:set_reshard_after_backward(false)
  end,
}
row 'prefetched' { -- two modules for each, in any order
  { 'by option', 'forward', 'backward', 'both' }, bits = true, chance = OFTEN,
  legal = function(_, p) return in_groups(_, p) and not p.mixed end,
  sharded = function(value, r, parts)
    for i, module in ipairs(parts) do
      local list = { parts[1 + i * r.p.seed % #parts], parts[1 + (i + r.p.seed) % #parts] }
      if value ~= 'backward' then
        module:set_modules_to_forward_prefetch(list)
      end
      if value ~= 'forward' then
        module:set_modules_to_backward_prefetch(list)
      end
    end
  end,
}
row 'unsharded' { -- the first block, by the script
  { 'no', 'begun', 'waited', 'freed' }, bits = true, chance = OFTEN, legal = in_groups,
  batch = function(value, _, parts)
    local handle = parts.b1:unshard { async_op = value ~= 'waited' }
    if value == 'waited' then
      parts.head:reshard()
    elseif value == 'freed' then
      handle:wait()
      parts.b1:reshard()
    end
  end,
}

-- -- other options of sharding -------------------------------------------------------------------

row 'backward_prefetch' {
  { 'BACKWARD_PRE', 'BACKWARD_POST', 'none' }, bits = true, options = set 'backward_prefetch',
}
row 'forward_prefetch' { { false, true }, bits = true, options = set 'forward_prefetch' }
row 'parameter_slots' { { 0, 1, 2, 9 }, bits = true, options = set 'parameter_slots' }
row 'limit_all_gathers' { { true, false }, bits = true, options = set 'limit_all_gathers' }
row 'cpu_offload' { { false, true }, bits = true, options = set 'cpu_offload' }
row 'sync_module_states' { { false, true }, bits = true, options = set 'sync_module_states' }

-- -- first values --------------------------------------------------------------------------------

row 'materialized' { -- before wrapping
  { false, true }, bits = true,
  legal = function(_, p) return p.param_init_fn == 'none' end,
  net = function(_, _, net) net:materialize() end,
}

local function fill(value, module)
  if value == 'listed' then
    for _, p in ipairs(module:parameters(false)) do
      nn.init.constant_(p, 0.1)
    end
  elseif ms.is(module, nn.Linear) then
    nn.init.constant_(module.weight, 0.1)
    nn.init.constant_(module.bias, 0.2)
  end
end
row 'param_init_fn' { -- not called for ignored modules
  { 'none', 'fields', 'listed' }, chance = SELDOM,
  legal = function(_, p) return p.ignored ~= 'module' end,
  options = function(value, _, o)
    o.param_init_fn = function(module) fill(value, module) end
  end,
  wrapped = function(value, r, net)
    for _, module in ipairs(r.sharded and {} or net:modules()) do
      ms.no_grad(fill, value, module)
    end
  end,
}

local RULES = { 'xavier_uniform_', 'kaiming_normal_', 'orthogonal_', 'eye_' }
row 'init' { -- by nn.init; two such models amplify what is rounded
  { 'none', 'summon', 'apply' }, chance = SELDOM,
  legal = function(_, p) return p.models == 1 end,
  wrapped = function(value, r, model)
    local rule = nn.init[RULES[1 + r.p.seed % #RULES]]
    local function write(module)
      if ms.is(module, nn.Linear) then
        ms.no_grad(rule, module.weight)
      end
    end
    model:materialize()
    ms.manual_seed(2)
    if value == 'apply' then
      model:apply(write)
    else
      r:full_of(model, {}, function()
        for _, module in ipairs(model:modules()) do
          write(module)
        end
      end)
    end
  end,
}

-- -- communication hooks -------------------------------------------------------------------------

row 'hook' {
  { 'none', 'default', 'fp16', 'bf16' },
  legal = function(_, p) return not HYBRID[p.strategy] end,
  wrapped = function(value, r, model)
    if r.sharded then
      local hooks = fsdp.comm_hooks
      local hook = value ~= 'default' and hooks[value .. '_compress_hook']
        or r.p.strategy == 'NO_SHARD' and hooks.allreduce_hook or hooks.reduce_scatter_hook
      r:state(model):register_comm_hook(hooks.DefaultState(ms.dist.world()), hook)
    end
  end,
}

row 'all_reduce_hook' { -- of every module; gradients are multiplied by this
  { 1, 0.5 },
  legal = function(_, p)
    return p.face == 'fully_shard' and p.ignored == 'none' and p.reload ~= 'other_face'
  end,
  chance = 0.5,
  wrapped = function(value, r, model)
    local function scale(grad) grad:mul_(value) end
    for _, module in ipairs(r.sharded and model:modules() or {}) do
      if ms.is(module, fsdp.FSDPModule) then
        module:set_all_reduce_hook(scale)
      end
    end
    for _, p in ipairs(r.sharded and {} or model:parameters()) do
      if p:requires_grad() then
        p:hook(function(grad) return grad * value end)
      end
    end
  end,
}

-- -- optimizers ----------------------------------------------------------------------------------

row 'optimizer' { { 'SGD', 'Adam', 'AdamW', 'RMSprop', 'Adagrad', 'Lion', 'Adamax' } }
row 'foreach' { { false, true }, bits = true, chance = SELDOM }
local function original(_, p) return p.use_orig_params end
row 'groups' { { false, true }, chance = SELDOM, legal = original } -- biases learn at half the rate
row 'reversed' { { false, true }, legal = original } -- rank 1 lists parameters from the end
row 'grads' { { 'none', 'zero', 'kept' } } -- what zero_grad makes of them, or nothing
row 'scaler' {
  { 'none', 'GradScaler', 'ShardedGradScaler' }, chance = SELDOM,
  ready = function(value, r)
    local cls = value == 'GradScaler' and ms.amp.GradScaler or fsdp.ShardedGradScaler
    r.scaler = r.scaler or cls { init_scale = 64, growth_interval = 1 }
  end,
  gradients = function(_, r) r.scaler:unscale_(r.opt) end,
}

-- -- gradients -----------------------------------------------------------------------------------

row 'look' { -- at whole gradients
  { 'none', 'read', 'write back' },
  gradients = function(value, r)
    r:full({ with_grads = true, writeback = value ~= 'read' }, function()
      for _, p in ipairs(r:named()) do
        local grad = p.tensor:grad()
        r:see('grad', 'the gradient of ' .. p.name, grad or 'none')
      end
    end)
  end,
}
row 'clip' {
  { 'none', 1, 2, 3, math.huge },
  gradients = function(order, r)
    for _, model in ipairs(r.models) do
      for _, max_norm in ipairs { 0.2, 1e9 } do
        local norm
        if r.sharded then
          norm = r:state(model):clip_grad_norm_(max_norm, order)
        else
          norm = optim.clip_grad_norm_(model:parameters(), max_norm, order)
        end
        r:see('norm', 'the norm', norm)
      end
    end
  end,
}

-- -- between steps -------------------------------------------------------------------------------

local SUMMON = {
  read = { writeback = false }, write = {}, rank0 = { rank0_only = true, writeback = false },
  offload = { offload_to_cpu = true, rank0_only = true, writeback = false },
}
row 'summon' {
  { 'none', 'read', 'write', 'rank0', 'offload' }, chance = SELDOM,
  legal = function(value, p) return value ~= 'offload' or p.strategy ~= 'NO_SHARD' end,
  stepped = function(value, r)
    r:full(SUMMON[value], function()
      for _, p in ipairs(r:named()) do
        if value == 'write' then
          ms.no_grad(p.tensor.mul_, p.tensor, 0.75)
        else
          local is_whole = r.rank == 0 or not SUMMON[value].rank0_only
          r:see('own', 'the summoned ' .. p.name, is_whole and p.tensor or 'none')
        end
      end
    end)
  end,
}
row 'ema' {
  { false, true }, chance = SELDOM,
  legal = function(_, p) return p.reload == 'none' end,
  ready = function(_, r) r.ema = ms.ema(r.models[1], 0.75) end,
  stepped = function(_, r) r.ema:update() end,
  finish = function(_, r)
    r.ema:apply(function()
      local sd = r.models[1]:state_dict()
      for _, name in ipairs(sd) do
        r:see('param', 'the average of ' .. name, sd[name])
      end
    end)
  end,
}

row 'evaluated' { -- by a forward without gradients
  { false, true }, chance = SELDOM,
  stepped = function(_, r, step)
    r:see('loss', 'the evaluation', ms.no_grad(r.forward, r, step))
  end,
}
row 'failed' { -- forwards that raise in the second block
  { false, true }, bits = true, chance = SELDOM,
  stepped = function(_, r, step)
    r.at.fails = true
    local ok = pcall(r.forward, r, step)
    r.at.fails = false
    assert(not ok, 'a forward that raises succeeds')
  end,
}

-- Another model and optimizer go on with the state of these.
local function by_state_dicts(kind, r)
  kind = kind == 'other_face' and 'SHARDED_STATE_DICT' or kind
  local model, sd, state = r.models[1], nil, nil
  local function both()
    sd, state = model:state_dict(), fsdp.optim_state_dict(model, r.opt)
  end
  local function load()
    r.models[1]:load_state_dict(sd)
    r.opt:load_state_dict(fsdp.optim_state_dict_to_load(r.models[1], r.opt, state))
  end
  if r.sharded then
    fsdp.state_dict_type(model, kind, both)
    r:make()
    fsdp.state_dict_type(r.models[1], kind, load)
  else
    both()
    r:make()
    load()
  end
end

local function parts_of(r)
  local modules = { first = r.models[1], second = r.models[2] }
  return { modules = modules, optimizer = r.opt }
end

local function by_checkpoint(r)
  r:folder(function(root)
    local parts = parts_of(r)
    parts.step = 1
    ms.checkpoint.save(root, 'x', parts)
    r:make()
    ms.checkpoint.load(root .. '/x', parts_of(r))
  end)
end
row 'reload' { -- other_face: sharded tensors of fully_shard are loaded into FSDP
  { 'none', 'FULL_STATE_DICT', 'SHARDED_STATE_DICT', 'LOCAL_STATE_DICT', 'checkpoint',
    'other_face' },
  chance = SELDOM,
  legal = function(value, p)
    return p.steps > 1 and p.grads ~= 'kept' and (value == 'checkpoint' or p.models == 1)
      and (value ~= 'LOCAL_STATE_DICT' or p.strategy ~= 'NO_SHARD' and p.face ~= 'fully_shard')
      and (value ~= 'other_face' or p.face == 'fully_shard')
  end,
  stepped = function(value, r, step)
    if step == 1 and value == 'checkpoint' and r.sharded then
      by_checkpoint(r)
    elseif step == 1 and r.p.models == 1 then
      r.p = value == 'other_face' and setmetatable({ face = 'wrapper' },
        { __index = r.p }) or r.p
      by_state_dicts(value, r)
    end
  end,
}
row 'saved' { -- with an average, at the end; loaded by rank 0 alone
  { false, true }, chance = SELDOM,
  legal = function(_, p) return p.models == 1 end,
  finish = function(_, r)
    local model = r.models[1]
    if r.sharded then
      r:folder(function(root)
        ms.checkpoint.save(root, 'x', { step = 1, model = model, optimizer = r.opt, ema = r.ema,
          more = r.extra })
        local group = r.group('first', r.rank == 0 and 0 or 1)
        if r.rank == 0 then
          model = r:another(group)
          ms.checkpoint.load(root .. '/x', { model = model, process_group = group })
        end
      end)
    end
    local names = r.models[1]:state_dict()
    local sd = r.rank == 0 and model:state_dict { full_state_dict = true } or {}
    for _, name in ipairs(names) do
      r:see('own', 'the saved ' .. name, sd[name] or 'none')
    end
  end,
}

axes.is_block = is_block

return axes
