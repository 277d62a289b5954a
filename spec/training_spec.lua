-- A GPT under FSDP on processes has the same bits for every strategy, number of ranks and resume.

local ms = require 'moonshard'
local checks = require 'support.checks'
local shell = require 'support.shell'
local wrap = require 'support.wrap'
local fsdp, nn, optim = ms.fsdp, ms.nn, ms.optim

local STEPS, MICRO_BATCHES = 20, 4

-- A token file, the same for all runs.
local function token_file(folder)
  local path = folder .. '/tokens.u8'
  local file = assert(io.open(path, 'wb'))
  local x = 12345
  for _ = 1, 4000 do
    x = (x * 1103515245 + 12345) % 2147483648
    file:write(string.char(math.floor(x / 65536) % 29))
  end
  file:close()
  return path
end

local function build(path, world, o)
  ms.manual_seed(5)
  local model = ms.models.GPT {
    vocab = 29, layers = 2, heads = 2, width = 20, context = 12, dropout = 0.1,
  }
  model = wrap(model, {
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerBlock },
    sharding_strategy = o.strategy or 'FULL_SHARD',
    mixed_precision = o.dtype == 'bf16' and { param_dtype = ms.bf16, reduce_dtype = ms.f32 } or nil,
    use_orig_params = true,
  })
  local opt = optim[o.optimizer or 'AdamW'](model:parameters(), {
    lr = 0.01, momentum = o.optimizer == 'SGD' and 0.9 or nil,
  })
  local loader = ms.data.Loader {
    tokens = ms.data.tokens(path, 'u8'), context = 12, batch = 2, seed = 3, rank = world.rank,
    world_size = world.size, micro_batches = MICRO_BATCHES / world.size,
  }
  model:set_gradient_factor(1 / MICRO_BATCHES)
  return model, opt, loader
end

local function step(model, opt, loader)
  local m = loader.micro_batches
  local function micro_batch()
    model(loader:next()):backward()
  end
  for k = 1, m do
    if k < m then
      model:no_sync(ms.scope, micro_batch)
    else
      ms.scope(micro_batch)
    end
  end
  local norm = model:clip_grad_norm_(0.3):item()
  opt:step()
  opt:zero_grad()
  return norm
end

-- Hash and last norm of a run on `n` ranks.
local function run(folder, n, o)
  local tokens = token_file(folder)
  ms.dist.spawn(n, function(rank, size)
    local model, opt, loader = build(tokens, { rank = rank, size = size }, o)
    local norm
    for _ = 1, STEPS do
      norm = step(model, opt, loader)
    end
    local hash = model:hash()
    if rank == 0 then
      shell.write(folder .. '/result', ('%s %.17g'):format(hash, norm))
    end
  end)
  return shell.read(folder .. '/result')
end

describe('training on ranks that are processes', function()
  local folder

  before_each(function() folder = shell.make_folder() end)
  after_each(function() shell.remove_folder(folder) end)

  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  for _, dtype in ipairs { 'f32', 'bf16' } do
    for _, optimizer in ipairs { 'SGD', 'AdamW' } do
      local title = ('ends with the same bits on 1, 2 and 4 ranks and with every strategy '
        .. '(%s, %s)'):format(dtype, optimizer)
      it(title, function()
        local expected
        for _, n in ipairs { 1, 2, 4 } do
          for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
            local result = run(folder, n, {
              dtype = dtype, optimizer = optimizer, strategy = strategy,
            })
            expected = expected or result
            print(('# %s %s W=%d %-13s %s'):format(dtype, optimizer, n, strategy, result))
            assert.equal(expected, result, ('%d ranks, %s'):format(n, strategy))
          end
        end
      end)
    end
  end

  it('resumes at any step to the same bits on any number of ranks', function()
    local tokens = token_file(folder)
    local whole = run(folder, 2, { dtype = 'bf16' })
    local function root_of(k)
      return folder .. '/checkpoints-' .. k
    end
    ms.dist.spawn(2, function(rank, size)
      local model, opt, loader = build(tokens, { rank = rank, size = size }, { dtype = 'bf16' })
      for k = 1, STEPS - 1 do
        step(model, opt, loader)
        ms.checkpoint.save(root_of(k), 'saved', {
          step = k, model = model, optimizer = opt, loader = loader,
        })
      end
    end)
    for k = 1, STEPS - 1 do
      local n = k % 2 == 0 and 4 or 2
      ms.dist.spawn(n, function(rank, size)
        local model, opt, loader = build(tokens, { rank = rank, size = size }, { dtype = 'bf16' })
        local meta = ms.checkpoint.load(ms.checkpoint.latest(root_of(k)), {
          model = model, optimizer = opt, loader = loader,
        })
        assert(meta.step == k)
        local norm
        for _ = k + 1, STEPS do
          norm = step(model, opt, loader)
        end
        local hash = model:hash()
        if rank == 0 then
          shell.write(folder .. '/result', ('%s %.17g'):format(hash, norm))
        end
      end)
      assert.equal(whole, shell.read(folder .. '/result'), 'resumed after step ' .. k)
    end
  end)

  it('resumes to the same bits after a step that skipped a unit', function()
    local Skips = nn.Module.extend('spec.Skips')
    function Skips:init()
      self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
    end
    function Skips:forward(x, skip)
      x = self.a(x)
      return (skip and x or self.b(x)):sum()
    end
    for _, kind in ipairs { 'AdamW', 'SGD' } do
      for _, part in ipairs { 'save', 'resume' } do
        ms.dist.spawn(2, function(rank)
          ms.manual_seed(1)
          local model = fsdp.FSDP(Skips(), {
            use_orig_params = true, auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
          })
          local opt = optim[kind](model:parameters(), {
            lr = 0.1, momentum = kind == 'SGD' and 0.9 or nil,
            dampening = kind == 'SGD' and 0.5 or nil,
          })
          local function update(skip)
            model(ms.ones(2, 4), skip):backward()
            opt:step()
            opt:zero_grad()
          end
          if part == 'save' then
            update(kind == 'SGD')
            update(true)
            for _, entry in ipairs(opt:state_dict().state) do
              local expected = entry.name:sub(1, 1) == 'a' and 2 or kind == 'SGD' and 0 or 1
              assert(entry.steps == expected, entry.name .. ' counts ' .. entry.steps)
            end
            ms.checkpoint.save(folder .. '/skips', kind, {
              step = 2, model = model, optimizer = opt,
            })
          else
            ms.checkpoint.load(folder .. '/skips/' .. kind, { model = model, optimizer = opt })
          end
          update()
          update()
          local hash = model:hash()
          if rank == 0 then
            shell.write(folder .. '/' .. part, hash)
          end
        end)
      end
      assert.equal(shell.read(folder .. '/save'), shell.read(folder .. '/resume'), kind)
    end
  end)

  it('names the rank that failed, and what it raised, when one rank raises in its '
    .. 'forward', function()
    local tokens = token_file(folder)
    local ok, err = pcall(ms.dist.spawn, 2, function(rank, size)
      local model, opt, loader = build(tokens, { rank = rank, size = size }, {})
      step(model, opt, loader)
      if rank == 1 then
        error('rank one had enough')
      end
      step(model, opt, loader)
    end)
    assert.is_false(ok)
    assert.equal('CommError', err.kind)
    assert.truthy(tostring(err):find('rank 1', 1, true))
    assert.truthy(tostring(err):find('rank one had enough', 1, true))
  end)
end)
