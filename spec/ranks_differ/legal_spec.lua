-- What two ranks may do differently, a line each, with the reason. (What they may not:
-- refused_spec.lua.)
--
-- A line changes the settings of rank 1; rank 0 has the defaults of support/two_ranks.lua.
local ms = require 'moonshard'
local nn, fsdp, optim, data = ms.nn, ms.fsdp, ms.optim, ms.data
local checks = require 'support.checks'
local runs = require 'support.runs'
local shell = require 'support.shell'
local two = require 'support.two_ranks'

local NO_SHARD, PLANNED, WRITER = two.NO_SHARD, two.PLANNED, two.WRITER
local before, changes, counting, frozen = two.before, two.changes, two.counting, two.frozen
local nothing, run, writes = two.nothing, two.run, two.writes

local folder = runs.folder() -- of checkpoints

local function keeps(n)
  return { before_step = before(2, function(model)
    local manager = ms.checkpoint.Manager { root = folder, keep = n }
    for step = 1, 3 do
      manager:save { step = step, model = model }
    end
  end) }
end

-- Full values, of which a rank may take none.
local function gathers(rank0_only)
  return { before_step = before(2, function(model)
    local sd = model:state_dict { rank0_only = rank0_only }
    assert(#sd == (rank0_only and ms.dist.rank() > 0 and 0 or 6))
    fsdp.summon_full_params(model, { rank0_only = rank0_only, writeback = false }, nothing)
  end) }
end

local function scaled(field, value)
  return { before_wrap = function(module) module[2][field] = value end }
end

-- The layers, and a parameter made of a tensor that the rule of no module filled.
local function tied(value)
  return function()
    local module = two.layers()
    module:tie('scale', ms.full({ 4 }, value):requires_grad_(true))
    return module
  end
end

local function with_buffer(value)
  return { before_wrap = function(module) module[2]:buffer('mean', ms.full({ 2 }, value)) end }
end

-- One unit, of which classes shall be left out of mixed precision.
local function ignoring(classes)
  return { after_wrap = function()
    local model = fsdp.FSDP(two.layers(), {
      mixed_precision = { param_dtype = 'bf16', module_classes_to_ignore = classes },
    })
    model(ms.ones(1, 4)):sum():backward()
    assert(#model:units() == 1)
  end }
end

local function evaluate(model)
  ms.no_grad(model, ms.ones(1, 4))
end

local function write_bias(model)
  local bias = model.module[3].bias
  if bias:numel() > 0 then
    ms.no_grad(bias.fill_, bias, 7)
  end
end

local PATCHWORK = 'the model is a patchwork'

-- What a script does to its shards between backward and step, with gradients where there are some.
local function to_shards(fn, clips_first)
  return function(model)
    if clips_first then
      model:clip_grad_norm_(1)
    end
    ms.no_grad(function()
      for p in model:parameters() do
        if p:grad() then
          fn(p, p:grad())
        end
      end
    end)
  end
end

local function update_by_hand(lr)
  return { clip = to_shards(function(p, grad) p:add_(grad, -lr) end), step = nothing }
end

-- A bias of replicas gets these values, behind all backwards, and they are taken for all ranks'.
local function writes_last(...)
  local values = { ... }
  return { options = NO_SHARD, last = function(model)
    for _, value in ipairs(values) do
      ms.no_grad(model.module[3].bias.fill_, model.module[3].bias, value)
    end
    ms.checkpoint.save(folder, 'last', { step = 1, model = model })
    model:state_dict()
    fsdp.summon_full_params(model, { writeback = false }, nothing)
    assert(#model:hash() == 16)
  end }
end

-- { what, settings of rank 1, the reason, what a warning of rank 0 says, settings of both }
local LEGAL = {
  { 'the seed of shards', { seed = 2 },
    'reference programs seed by rank; the first values are a mixture, and dropout draws by rank',
    { PATCHWORK, 'load one state dict on all' } },
  { 'the rule of shards', { before_wrap = function(module)
    module:materialize()
    nn.init.apply_(module[3].bias, nn.init.constant(0.5))
  end }, 'shards cut from different wholes train as one model', { PATCHWORK, "parameter '2.bias'" },
    { before_wrap = function(module) module:materialize() end } },
  { 'the modules made before', { layers = function()
    nn.Linear(3, 3)
    return two.layers()
  end }, 'they shift the random numbers, as another seed would',
    { PATCHWORK, "parameter '0.weight'" } },
  { 'tensors that became parameters', { layers = tied(2) },
    'reference programs draw them after they have seeded by rank',
    { PATCHWORK, "parameter 'scale': rank 1 has another seed, rule or tensor" },
    { layers = tied(1) } },
  { 'the seed of shards that are loaded', { seed = 2 }, 'all begin with what was loaded', nil,
    { after_wrap = function(model) model:load_state_dict(two.all_at(1)) end } },
  { 'values written into a shard', { before_step = before(2, write_bias) },
    'a rank holds its elements alone' },
  { 'values written into a shard of what an evaluation has left', {
    before_step = before(2, function(model)
      evaluate(model)
      write_bias(model)
    end),
  }, 'all gather anew what one has written', nil, {
    options = { sharding_strategy = 'SHARD_GRAD_OP' }, before_step = before(2, evaluate),
  } },
  { 'an update of shards by hand', update_by_hand(0.2),
    'each writes other elements, or none: nothing says which values are right', nil,
    update_by_hand(0.1) },
  { 'gradients dropped by hand', { clip = to_shards(function(p) p:set_grad(nil) end, true) },
    'a rank that holds nothing of a parameter has no gradient either' },
  { 'gradients scaled by hand', { clip = to_shards(function(p, grad)
    p:set_grad(grad * 0.5)
  end, true) }, 'a rank holds the gradients of its elements alone' },
  { 'a frozen parameter by another name of the call', {
    before_wrap = function(module)
      for _, p in ipairs(module[3]:parameters()) do
        p:requires_grad_(false)
      end
    end,
  }, 'flags are compared, not calls', nil, { before_wrap = frozen(3) } },
  { 'a flag that is put back', { before_step = before(2, function(model)
    model.module[3].weight:requires_grad_(false)
    model.module[3].weight:requires_grad_(true)
  end) }, 'nothing ran in between' },
  { "a replica's gradient, written in other steps", { clip = changes(function(bias)
    bias:grad():fill_(1)
    bias:grad():fill_(4)
  end) }, 'values are compared, not writes', nil, {
    options = NO_SHARD, clip = changes(function(bias) bias:grad():fill_(4) end),
  } },
  { 'a replica, written in other steps', writes_last(1, 4), 'values are compared, not writes', nil,
    writes_last(4) },
  { 'a write into a replica that is refused', { before_step = before(2, function(model)
    local bias = model.module[3].bias
    checks.raises('ValueError', 'does not broadcast', ms.no_grad, bias.copy_, bias, ms.ones(2, 9))
  end) }, 'nothing was written', nil, { options = NO_SHARD } },
  { "a shard's gradient", { clip = changes(function(bias)
    if bias:grad() then
      bias:grad():fill_(9)
    end
  end) }, 'a rank holds its elements alone' },
  { 'an optimizer of plain tensors', { before_step = before(2, function()
    local own = ms.ones(2)
    own:requires_grad_(true)
    own:mul(own):sum():backward()
    optim.SGD({ own }, { lr = 1 }):step()
  end) }, "what no unit holds is a rank's own business" },
  { 'a loader of its own', { before_step = before(2, function()
    data.Loader { tokens = counting(50), batch = 1, context = 2, world_size = 1 }:next()
  end) }, 'a loader for one rank deals to nobody else' },
  { 'rows of a batch', { backward = function(loss) loss:mul(1):backward() end },
    'ranks have different data; only collectives must fit' },
  { 'a forward', { after_wrap = function(model)
    local first = model.module[1].forward
    model.module[1].forward = function(self, x) return first(self, x) * 2 end
  end }, 'functions are not compared' },
  { 'a factor set to what it is', { after_wrap = function(model)
    model:set_gradient_factor(nil)
  end }, 'nothing changes', nil, PLANNED },
  { 'settings changed and put back', { before_step = before(2, function(_, opt)
    opt:set_lr(9)
    opt:set_lr(0.1)
  end) }, 'steps are compared, not what was set between them' },
  { 'a mode that is put back', { before_step = before(2, function(model)
    model:eval():train()
  end) }, 'nothing ran in between' },
  { 'the mode of another model', { before_step = before(2, function(model)
    model.module[2][2].training = false
    nn.Linear(2, 2):eval()
  end) }, 'no rank computes with it here', nil, { before_step = before(2, function(model)
    model.module[2][2].training = false
  end) } },
  { "a field of the script's own", scaled('scale', 2), 'the script knows what it means',
    { "field 'scale' of '1' (nn.Sequential) is 1 on rank 0 and 2 on rank 1: if it decides what is "
      .. 'computed, give it one value' }, scaled('scale', 1) },
  { "a field of the script's own, later", { before_step = before(2, function(model)
    model.module[2].scale = 2
  end) }, 'such fields are compared at the first use; ms.dist.same() tells what changes', nil,
    scaled('scale', 1) },
  { 'a field whose name says that it is private', scaled('_file', 'log.1'),
    "it is nobody else's", nil, scaled('_file', 'log.0') },
  { 'the values of a buffer', with_buffer(2), 'running statistics are of the rows of a rank',
    { "buffer '1.mean' is f32 (2) with the hash ", 'if it decides what is computed, give it one '
      .. 'value' }, with_buffer(1) },
  { 'a buffer that one of them has', with_buffer(2), 'nobody computes with those of other ranks',
    { "buffer '1.mean' is missing on rank 0 and f32 (2) with the hash ", 'on rank 1: nothing makes '
      .. 'buffers the same' } },
  { 'classes that mixed precision leaves out, without a policy', ignoring { nn.Linear },
    'only a policy wraps modules of their classes alone', nil, ignoring {} },
  { 'the values of a buffer, later', { before_step = before(2, function(model)
    model.module[2].mean:fill_(2)
  end) }, 'buffers are compared at the first use, and when they are saved', nil, with_buffer(1) },
  { 'a hook on a gradient', { after_wrap = function(model)
    model.module[3].weight:hook(function(grad) return grad * 2 end)
  end }, 'it sees the gradient of its own rows, before it is reduced' },
  { 'a hook on what a module returns', { before_wrap = function(module)
    module[1]:register_forward_hook(function(_, _, output) return output * 2 end)
  end }, 'it sees its own rows' },
  { 'the text to go on from', { last = writes(2, {}, { 3, 4, 5 }) },
    'ranks have different data; only collectives must fit', nil, WRITER },
  { 'how many checkpoints they keep', keeps(1), 'rank 0 removes the old ones, as it was told', nil,
    keeps(2) },
  { 'who takes the full values', gathers(true), 'all gather them, and what a rank does with its '
    .. 'copy is its own business', nil, gathers(false) },
  { 'how tokens are drawn', { last = writes(2, { temperature = 0, top_k = 3, seed = 4 }) },
    "all compute the logits, and who draws from them how is nobody else's business", nil, WRITER },
}

describe('two ranks that differ in', function()
  after_each(function()
    shell.remove_folder(folder)
  end)

  for _, line in ipairs(LEGAL) do
    local what, odd, reason, warned, base = unpack(line, 1, 5)
    it(('%s go on: %s'):format(what, reason), function()
      local reports, cause = run(base or {}, odd)
      assert.is_nil(cause)
      for rank, report in ipairs(reports) do
        assert.equal('ok', report.message, 'rank ' .. rank - 1)
        assert(warned or not report.warnings:find(PATCHWORK, 1, true), report.warnings)
        for _, text in ipairs(warned or {}) do -- once, by rank 0
          local _, times = report.warnings:gsub(text:gsub('%p', '%%%0'), '')
          assert.equal(rank == 1 and 1 or 0, times, report.warnings)
        end
      end
    end)
  end
end)
