-- What two ranks may not do differently: an error on both names the difference within seconds.
-- Each case changes settings of rank 1; rank 0 has the defaults below.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local runs = require 'support.runs'
local shell = require 'support.shell'
local util = require 'moonshard.base.util'

local SOON = 5 -- seconds; errors come within one, but tests share their machine
local merged = util.merged

local function layers()
  return nn.Sequential {
    nn.Linear(4, 6), nn.Sequential { nn.Linear(6, 6), nn.Dropout(0.1) }, nn.Linear(6, 2),
  }
end

local function nothing() end

local DEFAULTS = {
  seed = 1, steps = 2, layers = layers, options = {},
  before_wrap = nothing, -- (module)
  ignored = nothing, -- (module)
  after_wrap = nothing, -- (model)
  optimizer = function(model) return optim.SGD(model:parameters(), { lr = 0.1 }) end,
  before_step = nothing, -- (step, model, opt)
  backward = function(loss) loss:backward() end,
  last = function(model) ms.no_grad(model, ms.ones(1, 4)) end,
}

local function train(s)
  ms.manual_seed(s.seed)
  local module = s.layers()
  s.before_wrap(module)
  local model = fsdp.FSDP(module, merged({
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Sequential }, use_orig_params = true,
    ignored_modules = s.ignored(module),
  }, s.options))
  s.after_wrap(model)
  local opt = s.optimizer(model)
  for step = 1, s.steps do
    s.before_step(step, model, opt)
    ms.scope(function() s.backward(model(ms.ones(2, 4)):sum(), step) end)
    model:clip_grad_norm_(1)
    opt:step()
    opt:zero_grad()
  end
  s.last(model)
end

-- Of each rank: the seconds it took and 'ok', or its error.
local function run(base, odd)
  local reports, cause = runs.reports(2, function(rank)
    local began, ok, err = ms.time(), nil, nil
    ms.capture_warnings(function()
      ok, err = pcall(train, merged(merged(DEFAULTS, base), rank == 1 and odd or {}))
    end)
    return ('%.3f\n%s'):format(ms.time() - began, ok and 'ok' or ms.errors.describe(err)),
      not ok and err or nil
  end)
  local out = {}
  for rank = 0, 1 do
    local seconds, message = reports[rank]:match '^(.-)\n(.*)$'
    out[rank] = { seconds = tonumber(seconds), message = message }
  end
  return out, cause
end

local function sgd(opts)
  return { optimizer = function(model) return optim.SGD(model:parameters(), opts) end }
end

local function adamw(opts)
  return { optimizer = function(model) return optim.AdamW(model:parameters(), opts) end }
end

local function second(fn)
  return { before_step = function(step, ...)
    if step == 2 then
      fn(...)
    end
  end }
end

local function precision(opts) return { options = { mixed_precision = opts } } end

local folder = runs.folder() -- of two checkpoints

local function loads(name)
  return second(function(model)
    for step = 1, 2 do
      ms.checkpoint.save(folder, 'step' .. step, { step = step, model = model })
    end
    if name then
      ms.checkpoint.load(folder .. '/' .. name, { model = model })
    end
  end)
end

local function all_at(value)
  return { after_wrap = function(model)
    local sd = model:state_dict()
    for _, name in ipairs(sd) do
      sd[name] = ms.full(sd[name]:shape(), value)
    end
    model:load_state_dict(sd)
  end }
end

-- { what, settings of rank 1, what both ranks are told, settings of both (default: none) }
local CASES = {
  { 'a layer more', { layers = function()
    return nn.Sequential { nn.Linear(4, 6), layers()[2], nn.Linear(6, 2), nn.Linear(2, 2) }
  end }, 'the ranks wrapped different models' },
  { 'a parameter of another shape', { layers = function()
    return nn.Sequential { nn.Linear(4, 6), layers()[2], nn.Linear(6, 3) }
  end }, '(44 elements of f32 in 4 parameters, 23 in each shard) on' },
  { 'a frozen parameter', { before_wrap = function(m) m[3].weight:requires_grad_(false) end },
    "'2.weight' (2, 6) on rank 0 and '2.weight' (2, 6), frozen on rank 1" },
  { 'the probability of dropout', { layers = function()
    local module = layers()
    module[2][2] = nn.Dropout(0.2)
    return module
  end }, "'1.1' is nn.Dropout (p 0.1) on rank 0 and nn.Dropout (p 0.2) on rank 1" },
  { 'the wrap policy', { options = { auto_wrap_policy = fsdp.always_wrap_policy } },
    'the ranks wrapped different models: unit' },
  { 'buffer_dtype', precision { buffer_dtype = 'bf16' },
    "buffer_dtype of FSDP '' is -1 on rank 0 and 2 on rank 1" },
  { 'cast_forward_inputs', precision { cast_forward_inputs = true },
    "cast_forward_inputs of FSDP '' is 0 on rank 0 and 1 on rank 1" },

  { 'the seed of replicas', { seed = 2 },
    "replicas of parameter '0.weight' (unit 'nn.Sequential', NO_SHARD) have other values on rank 1",
    { options = { sharding_strategy = 'NO_SHARD' } } },
  { 'values loaded before the model is wrapped', { before_wrap = function(module)
    module:load_state_dict({ ['2.bias'] = ms.ones(2) }, { strict = false })
  end }, "parameter '2.bias' (unit 'nn.Sequential') was loaded or written before its first use" },
  { 'a state dict of other values', all_at(2),
    "rank 1 was given other values for '0.weight' than rank 0; no rank has loaded anything",
    all_at(1) },
  { 'a state dict loaded by one rank', second(function(model)
    model:load_state_dict({ '2.bias', ['2.bias'] = ms.ones(2) }, { strict = false })
  end), 'collective mismatch' },
  { 'parameters summoned by one rank', second(function(model)
    fsdp.summon_full_params(model, nil, nothing)
  end), 'collective mismatch' },
  { 'a checkpoint saved by one rank', second(function(model)
    ms.checkpoint.save(folder, 'step1', { step = 1, model = model })
  end), 'collective mismatch' },
  { 'a first use of FSDP by one rank', { after_wrap = function(model) model:plan() end },
    'in the first use of FSDP (number of units))',
    { after_wrap = function() ms.dist.barrier() end } },
  { 'the checkpoint loaded', loads 'step2', 'expected one checkpoint on all ranks', loads 'step1' },
  { 'a checkpoint that is not there', loads 'step3', 'step3/manifest.json', loads 'step1' },
  { 'a backward left out', { backward = function(loss, step)
    if step ~= 2 then
      loss:backward()
    end
  end }, 'collective mismatch' },

  { 'the optimizer', adamw { lr = 0.1 },
    'rank 0 has parameters of SGD where rank 1 has parameters of AdamW' },
  { 'lr', sgd { lr = 0.2 }, 'lr of step of SGD is 0.1 on rank 0 and 0.2 on rank 1' },
  { 'betas', adamw { lr = 0.1, betas = { 0.9, 0.95 } },
    'betas[2] of step of AdamW is 0.999 on rank 0 and 0.95 on rank 1', adamw { lr = 0.1 } },
  { 'the number of parameters', { optimizer = function(model)
    local params = model:parameters()
    params[#params] = nil
    return optim.SGD(params, { lr = 0.1 })
  end }, 'number of parameters of SGD is 6 on rank 0 and 5 on rank 1' },
  { 'ms.dist.same', { after_wrap = function() ms.dist.same('width', 8) end },
    'width is 6 on rank 0 and 8 on rank 1',
    { after_wrap = function() ms.dist.same('width', 6) end } },
}

-- Every option of scripts that the runtime has: values, and their texts if those are others.
local VALUES = {
  flag = { false, true }, floating = { nil, 'bf16', texts = { 'f32' } }, count = { 0, 1 },
}
local OF_WHAT = {
  { 'ms_fsdp_unit_options', " of unit 'nn.Sequential'" }, { 'ms_fsdp_tree_options', '' },
}

local function settings(option, value)
  local group = option.group and { [option.group] = { [option.name] = value } }
  return { options = group or { [option.name] = value } }
end

for _, entry in ipairs(OF_WHAT) do
  local struct, of_what = unpack(entry)
  for _, option in ipairs(require('moonshard.options')[struct]) do
    local names = option.values
    local values = names and { names[1][1], names[2][1] } or VALUES[option.kind]
    if option.name then
      local first = values.texts and values.texts[1] or tostring(values[1])
      table.insert(CASES, { option.name, settings(option, values[2]),
        ('%s%s is %s on rank 0 and %s on rank 1'):format(option.name, of_what, first,
          tostring(values[2])), settings(option, values[1]) })
    end
  end
end

describe('two ranks that differ in', function()
  after_each(function() shell.remove_folder(folder) end)

  for _, case in ipairs(CASES) do
    local what, odd, expected, base = unpack(case)
    it(what .. ' get an error that names it', function()
      local reports = run(base or {}, odd)
      for rank = 0, 1 do
        local report = reports[rank]
        local found = ('rank %d after %.3f s: %s'):format(rank, report.seconds, report.message)
        assert.is_truthy(report.message:find(expected, 1, true), found)
        assert.is_true(report.seconds < SOON, found)
      end
    end)
  end

  it('ms.dist.same end the job with an error when no collective follows', function()
    local function says(value)
      return { last = function() ms.dist.same('best', value) end }
    end
    local _, cause = run(says(1), says(2))
    assert.is_truthy(cause and cause:find('best is 1 on rank 0 and 2 on rank 1', 1, true))
  end)
end)

describe('two ranks may differ in', function()
  for what, odd in pairs { -- the order does not matter
    ['the order of parameters in an optimizer'] = { optimizer = function(model)
      local params = model:parameters()
      params[1], params[2] = params[2], params[1]
      return optim.SGD(params, { lr = 0.1 })
    end },
    ['fields of their own modules'] = { before_wrap = function(module) module.mine = 1 end },
    ['a mode, hooks and gradients they change'] = second(function(model) model:eval():train() end),
  } do
    it(what, function()
      local reports = run({}, odd)
      assert.equal('ok', reports[0].message)
      assert.equal('ok', reports[1].message)
    end)
  end
end)
