-- lua/moonshard/checkpoint: which checkpoints of a folder a Manager keeps
local lfs = require 'lfs'
local ms = require 'moonshard'
local checkpoint = ms.checkpoint
local checks = require 'support.checks'
local runs = require 'support.runs'
local shell = require 'support.shell'

describe('a manager of checkpoints', function()
  local root, model, warnings

  before_each(function()
    root = runs.folder()
    model = ms.nn.Linear(2, 2)
    model:materialize()
  end)
  after_each(function() shell.remove_folder(root) end)

  local function save(manager, step)
    local path
    warnings = ''
    for _, warning in ipairs(ms.capture_warnings(function()
      path = manager:save { step = step, model = model }
    end)) do
      warnings = warnings .. warning.message .. '\n'
    end
    return path
  end

  -- Steps of the checkpoints under root.
  local function steps()
    local out = {}
    for name in lfs.dir(root) do
      out[#out + 1] = tonumber(name:match '^step%-(%d+)$')
    end
    table.sort(out)
    return out
  end

  it('deletes nothing without keep', function()
    local manager = checkpoint.Manager { root = root }
    assert.is_false(manager.keep)
    for step = 1, 4 do
      save(manager, step)
      assert.equal('', warnings)
    end
    assert.same({ 1, 2, 3, 4 }, steps())
    assert.equal(4, manager:resume({ model = model }).step)
  end)

  it('never deletes a later step', function()
    local before = checkpoint.Manager { root = root, keep = 10 }
    for step = 10, 14 do
      save(before, step)
    end
    local manager = checkpoint.Manager { root = root, keep = 2 }
    for step = 1, 3 do
      save(manager, step)
      assert.is_truthy(warnings:find(('step %d, though step-00000014 has step 14'):format(step), 1,
        true))
    end
    assert.same({ 2, 3, 10, 11, 12, 13, 14 }, steps())
    assert.equal(3, manager:resume({ model = model }).step)
    save(manager, 13)
    assert.same({ 12, 13, 14 }, steps())
    save(manager, 15)
    assert.equal('', warnings)
    assert.same({ 14, 15 }, steps())
  end)

  it('resumes from its own checkpoints and warns of others', function()
    local manager = checkpoint.Manager { root = root, keep = 2 }
    local opt = ms.optim.AdamW(model:parameters())
    local told
    local function resume()
      local meta
      told = ms.capture_warnings(function()
        meta = manager:resume { model = model, optimizer = opt }
      end)
      return meta and meta.step
    end
    checkpoint.save(root, 'best', { step = 35, model = model }) -- without an optimizer
    assert.is_nil(resume())
    assert.equal(1, #told)
    assert.truthy(told[1].message:find(root .. '/best, which is not named by its step, is '
      .. 'passed over: none is taken', 1, true))
    manager:save { step = 30, model = model, optimizer = opt }
    assert.equal(30, resume())
    assert.same({}, told)
    checkpoint.save(root, 'best', { step = 25, model = model })
    assert.equal(root .. '/best', checkpoint.latest(root))
    assert.equal(30, resume())
    assert.equal(1, #told)
    assert.truthy(told[1].message:find(root .. '/best, which is not named by its step, is '
      .. 'passed over: step-00000030 is taken', 1, true))
    os.execute(("cd '%s' && rm -rf step-00000030 && ln -sfn step-00000030 latest"):format(root))
    checks.raises('FormatError', "latest points at 'step-00000030', but no checkpoint of this "
      .. 'folder is there', resume)
  end)

  it('never deletes a checkpoint with another name', function()
    local manager = checkpoint.Manager { root = root, keep = 2 }
    save(manager, 1)
    for _, name in ipairs { 'best', 'step-1', 'step-00000007', 'latest-1' } do
      checkpoint.save(root, name, { step = 1, model = model })
    end
    for step = 2, 4 do
      save(manager, step)
      assert.equal('', warnings)
    end
    for _, name in ipairs { 'best', 'step-1', 'step-00000007', 'latest-1' } do
      assert.equal(1, checkpoint.read_meta(root .. '/' .. name).step)
    end
    for step = 1, 4 do -- other names do not count
      assert.equal(step > 2, (pcall(checkpoint.read_meta, root .. '/step-0000000' .. step)))
    end
    checkpoint.prune(root, 1) -- prune() deletes any name
    assert.is_false(pcall(checkpoint.read_meta, root .. '/best'))
    assert.equal(root .. '/step-00000004', checkpoint.latest(root))
  end)
end)
