-- What the examples say before they do anything, and what they leave behind.

local lfs = require 'lfs'
local ms = require 'moonshard'
local checks = require 'support.checks'
local json = require 'moonshard.base.json'
local shell = require 'support.shell'

local TREE = lfs.currentdir()
local MODEL = ' --layers=1 --width=32 --heads=2 --context=32 --tokens=128 --sample=0'

describe('an example', function()
  local folder

  before_each(function()
    folder = shell.make_folder()
    shell.write(folder .. '/text', ('in the beginning was the word. '):rep(200))
  end)

  after_each(function()
    shell.remove_folder(folder)
  end)

  local function run(example, flags)
    return shell.run(folder, ('luajit %s/examples/%s.lua %s'):format(TREE, example, flags))
  end

  local function train(flags)
    return run('train', '--data=text --out=out --ranks=2' .. MODEL .. ' ' .. flags)
  end

  local function succeeds(code, output)
    assert.equal(0, code, output)
    return output
  end

  -- It leaves with 2 and says so once.
  local function refuses(text, code, output)
    assert.equal(2, code, output)
    local first, last = output:find(text, 1, true)
    assert.truthy(first, ("no '%s' in:\n%s"):format(text, output))
    assert.falsy(output:find(text, last, true), 'said twice:\n' .. output)
    assert.falsy(output:find('traceback', 1, true), output)
  end

  it('names the nearest flag and the nearest word', function()
    refuses("unknown flag '--stpes'; the nearest is '--steps'", run('train', '--stpes=3'))
    refuses("unknown flag '--lenght'; the nearest is '--length'", run('sample', 'x --lenght=3'))
    refuses("--strategy is one of FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, got 'FULLSHARD'; "
      .. "the nearest is 'FULL_SHARD'", run('train', '--strategy=FULLSHARD'))
    refuses("--preset is one of tiny, small, gpt2, got 'gpt3'; the nearest is 'gpt2'",
      run('train', '--preset=gpt3'))
    refuses("--dtype is one of bf16, f32, got 'f16'", run('train', '--dtype=f16'))
    assert.is_nil(lfs.attributes(folder .. '/train-out'))
  end)

  it('checks values before anything is made', function()
    for flag, why in pairs {
      ['steps=0'] = 'a whole number from 1', ['steps=1.5'] = 'a whole number from 1',
      ['lr=nan'] = 'a number from 0', ['lr=inf'] = 'a number from 0', ['lr=x'] = 'a number from 0',
      ['clip=0'] = 'a number above 0', ['dropout=1'] = 'a number from 0 below 1',
      ['ranks=-1'] = 'a whole number from 0', ['keep=0'] = 'a whole number from 1',
    } do
      local name, value = flag:match('^(.*)=(.*)$')
      refuses(("--%s wants %s, got '%s'"):format(name, why, value), run('train', '--' .. flag))
    end
    refuses('--out must not be empty', run('train', '--out='))
    refuses('--width=30 cannot be dealt to 4 heads evenly', run('train', '--width=30'))
    refuses('cannot read no/such/text', run('train', '--data=no/such/text'))
    refuses('cannot read .', run('train', '--data=.'))
    shell.write(folder .. '/text', 'in the beginning')
    for _, out in ipairs { 'text', 'text/below', '/proc/none', '/proc' } do
      local code, output = run('train', '--data=text --out=' .. out)
      assert.equal(2, code, output)
      assert.truthy(output:find('^train: [^\n]+\n$'), output)
      assert.truthy(output:find(out, 1, true), output)
    end
    refuses('text/checkpoints: Not a directory', run('train', '--data=text --out=text --resume'))
    refuses('which checkpoint?', run('sample', ''))
    refuses("unexpected word 'the'", run('sample', 'x --prompt In the'))
  end)

  it('checks that every rank has text before the first step', function()
    refuses('--micro-batches=3 cannot be dealt to 2 ranks evenly', train('--micro-batches=3'))
    shell.write(folder .. '/text', ('in the beginning '):rep(70)) -- 1190 bytes: one window of 60
    refuses('the text for validation (the last 5 %; --validate=0 does without) is too short: '
      .. 'the tokens hold 1 windows of 32, one step takes 2', train('--steps=2'))
    succeeds(train('--steps=2 --validate=0'))
    succeeds(train('--out --out=dashes --steps=1 --validate=0')) -- a folder as good as another
    assert.equal('directory', lfs.attributes(folder .. '/--out=dashes', 'mode'))
    shell.write(folder .. '/text', 'in the beginning')
    refuses('the text (its first 95 %) is too short', train('--steps=2 --out=other'))
  end)

  it('validates where there are fewer rows than in a step', function()
    shell.write(folder .. '/text', ('in the beginning '):rep(80)) -- two windows, four rows a step
    local output = succeeds(train('--steps=2 --tokens=256'))
    assert.truthy(output:find('step 2  validation loss %d'), output)
  end)

  it('begins no second run in a used folder, and says what it holds', function()
    succeeds(train('--steps=3'))
    refuses('out holds a run already (out/checkpoints/step-00000003, metrics up to step 3); '
      .. '--resume continues it, --out=FOLDER begins elsewhere', train('--steps=3'))
    succeeds(train('--steps=4 --resume'))
    assert.truthy(ms.checkpoint.latest(folder .. '/out/checkpoints'):find('4$'))
  end)

  it('continues a run only with the model and the text it was begun with', function()
    succeeds(train('--steps=2 --seed=3'))
    refuses('train: --resume: out/checkpoints/step-00000002 was made with --layers=1 --tokens=128 '
      .. '--seed=3, this run has --layers=2 --tokens=256 --seed=1\n',
      train('--steps=3 --seed=1 --resume --layers=2 --tokens=256'))
    local token_file = shell.read(folder .. '/out/train.u8')
    shell.write(folder .. '/other', ('in the beginning was a word.. '):rep(200))
    refuses('--resume: other is not the text of the run in out, whose out/train.u8 is other',
      train('--steps=3 --seed=3 --resume --data=other'))
    assert.equal(token_file, shell.read(folder .. '/out/train.u8'))
    local output = succeeds(train('--steps=3 --seed=3 --resume --dropout=0.1 --lr=0.001'))
    assert.truthy(output:find('step 3/3', 1, true), output)
  end)

  it('continues a run with the flags it was trained with, and says which others rule', function()
    local function optimizer()
      local group = json.decode(shell.read(ms.checkpoint.latest(folder .. '/out/checkpoints')
        .. '/manifest.json')).meta.optimizer.groups[1]
      return { group.weight_decay, group.lr }
    end
    local function changes(output)
      local lines = {}
      for line in output:gmatch('train: ([^\n]+)') do
        lines[#lines + 1] = line
      end
      return lines
    end
    succeeds(train('--steps=3 --lr=0.01 --weight-decay=0.25'))
    assert.equal(0.25, optimizer()[1])
    assert.same({
      '--steps=6 from step 4 on, before it was 3: learning rates are those of a run of that length',
      'warm-up takes 6 steps, before it was 3: at most --steps',
    }, changes(succeeds(train('--steps=6 --resume'))))
    assert.same({ 0.25, 0.01 }, optimizer()) -- the last step of the warm-up reaches --lr
    assert.same({
      '--lr=0.02 from step 7 on, before it was 0.01',
      '--warmup=0 from step 7 on, before it was 50',
      '--weight-decay=0 from step 7 on, before it was 0.25',
      '--clip=2 from step 7 on, before it was 1',
    }, { unpack(changes(succeeds(train('--steps=7 --resume --lr=0.02 --warmup=0 --weight-decay=0 '
      .. '--clip=2'))), 2) })
    assert.equal(0, optimizer()[1])
    assert.same({}, changes(succeeds(train('--resume'))))
  end)

  it('continues a run with its text and its model, too', function()
    succeeds(train('--steps=2 --seed=3 --micro-batches=4'))
    shell.remove_folder(folder .. '/text')
    local output = succeeds(run('train', '--out=out --resume --ranks=2 --steps=3 --sample=0'))
    assert.truthy(output:find('learning 5,890 bytes of out/train.u8', 1, true), output)
    assert.truthy(output:find('128 tokens a step in 4 micro-batches', 1, true), output)
    assert.truthy(output:find('step 3/3', 1, true), output)
    refuses('--resume: out/checkpoints/step-00000003 was made with --layers=1 --width=32 '
      .. '--heads=2 --context=32 --tokens=128, this run has --layers=6 --width=384 --heads=6 '
      .. '--context=256 --tokens=8192', run('train', '--out=out --resume --preset=small'))
  end)

  it('never validates or saves with 0', function()
    local output = succeeds(train('--steps=2 --validate=0 --save=0'))
    assert.truthy(output:find('learning 5,890 bytes of text, validating on nothing; metrics.jsonl '
      .. 'and checkpoints go to out\n', 1, true), output)
    assert.falsy(output:find('validation', 1, true), output)
    assert.is_nil(ms.checkpoint.latest(folder .. '/out/checkpoints'))
    refuses('out holds a run already (metrics up to step 2)', train('--steps=3'))
  end)

  -- Equal rows a micro-batch, so that what more of them take is gradients.
  it('predicts what a step of many micro-batches holds', function()
    if os.getenv 'MS_DEVICE' == 'fake' then
      pending 'products take their work space when they run'
    end
    local predicted, peak = {}, {}
    for i, n in ipairs { 2, 32 } do -- 1 and 16 a rank: none and four gradients between them
      local output = succeeds(run('train', ('--data=text --ranks=2 --steps=2 --layers=1 --width=32 '
        .. '--heads=2 --context=32 --validate=0 --save=0 --sample=0 --out=out%d --tokens=%d '
        .. '--micro-batches=%d'):format(n, 32 * n, n)))
      predicted[i] = 1024 * output:match('predicted peak ([%d.]+) KiB a rank')
      for line in io.lines(('%s/out%d/metrics.jsonl'):format(folder, n)) do
        peak[i] = json.decode(line).peak_bytes or peak[i]
      end
    end
    checks.close(predicted[2] - predicted[1], peak[2] - peak[1], 0.1)
  end)

  it('writes metrics that read back, and nothing unfinished', function()
    succeeds(train('--steps=3 --save=2'))
    local steps, losses = {}, 0
    for line in io.lines(folder .. '/out/metrics.jsonl') do
      local record = json.decode(line)
      if record.validation_loss then
        losses = losses + 1
      elseif record.step then
        steps[#steps + 1] = record.step
      end
    end
    assert.same({ 1, 2, 3 }, steps)
    assert.equal(1, losses)
    local names = {}
    for name in lfs.dir(folder .. '/out') do
      names[#names + 1] = name
    end
    table.sort(names)
    assert.same({ '.', '..', 'checkpoints', 'metrics.jsonl', 'train.u8', 'valid.u8' }, names)
  end)

  it('trains under a launcher as it does by itself, and in place as in a wrapper', function()
    local launched = succeeds(shell.run(folder, ('%s/bindings/moonshard run -n 2 --no-prefix '
      .. '%s/examples/train.lua --data=text --out=out --steps=2 --hash%s'):format(TREE, TREE,
      MODEL)))
    local forked = succeeds(train('--out=other --steps=2 --hash --api=fully_shard'))
    assert.equal(forked:match('parameters %S+'), launched:match('parameters %S+'))
  end)

  it('learns to classify shapes, on one rank and on two', function()
    for ranks = 1, 2 do
      local output = succeeds(run('classify', '--steps=60 --test=256 --ranks=' .. ranks))
      assert.truthy(tonumber(output:match('accuracy ([%d.]+) %%')) > 60, output)
    end
    refuses('--batch=9 cannot be dealt to 2 ranks evenly', run('classify', '--ranks=2 --batch=9'))
  end)

  it('learns to write sequences in reverse, on one rank and on two', function()
    for ranks = 1, 2 do
      local output = succeeds(run('translate', '--steps=150 --layers=1 --longest=6 --test=128 '
        .. '--ranks=' .. ranks))
      assert.truthy(tonumber(output:match('accuracy ([%d.]+) %%')) > 60, output)
    end
    refuses('--test=9 cannot be dealt to 2 ranks evenly', run('translate', '--ranks=2 --test=9'))
  end)

  it('fine-tunes a model with adapters alone, on one rank and on two', function()
    shell.write(folder .. '/other', ('4 + 7 = 11; '):rep(1000))
    succeeds(train('--steps=20'))
    for _, how in ipairs { '--ranks=1 --base=out', '--ranks=2 --data=text --base-steps=20' } do
      local output = succeeds(run('lora', how .. ' --tune=other --steps=40 --rank=4 --rows=8 '
        .. '--out=adapted'))
      assert.truthy(output:find('%d+ of %d+ parameters are trainable'), output)
      local before = tonumber(output:match('loss on other before: ([%d.]+)'))
      local after = tonumber(output:match('loss after: ([%d.]+)'))
      assert.is_true(after < before, output)
      assert.equal(after, tonumber(output:match('loss with it: ([%d.]+)')), output)
    end
    local names = ms.checkpoint.read_safetensors(folder .. '/adapted/adapters.safetensors')
    assert.equal(2 * 4 * 2, #names) -- blocks, projections, matrices
    assert.same({ 4, 128 }, names['h.0.attn.qkv.lora_a.weight']:shape())
    refuses('--rows=9 cannot be dealt to 2 ranks evenly',
      run('lora', '--ranks=2 --tune=other --data=text --rows=9 --out=adapted'))
    refuses('adapted/tune/valid.u8 has 310 bytes, one step takes 16 rows of 64',
      run('lora', '--ranks=1 --tune=text --data=other --out=adapted --base-steps=1'))
    refuses('no/such/model', run('lora', '--base=no/such/model --tune=other'))
  end)

  it('writes the same text from a checkpoint for the same seed', function()
    succeeds(train('--steps=2'))
    local a = succeeds(run('sample', 'out --length=30 --prompt=in --seed=7'))
    assert.equal('in', a:sub(1, 2))
    assert.equal(2 + 30 + 1, #a)
    assert.equal(a, succeeds(run('sample', 'out/checkpoints --length=30 --prompt=in --seed=7')))
    assert.equal(a, succeeds(run('sample', ms.checkpoint.latest(folder .. '/out/checkpoints')
      .. ' --length=30 --prompt=in --seed=7')))
    assert.equal('in\n', succeeds(run('sample', 'out --length=0 --prompt=in')))
    local greedy = succeeds(run('sample', 'out --length=30 --temperature=0 --top-k=0'))
    assert.equal(greedy, succeeds(run('sample', 'out --length=30 --temperature=0 --seed=5')))
    refuses('(luajit examples/train.lua --out=no/such/folder trains a model first)',
      run('sample', 'no/such/folder'))
  end)

  it('says which checkpoints it cannot write text with', function()
    ms.checkpoint.save(folder .. '/other', 'a', {
      step = 1, model = ms.nn.Linear(2, 2), config = { width = 4 },
    })
    refuses('holds no model of examples/train.lua: ', run('sample', 'other'))
    assert.equal(0, os.execute(("rm '%s'/other/a/*.safetensors"):format(folder)))
    refuses('which is not intact', run('sample', 'other'))
  end)

  -- 0.2 s of one core and 14 MB.
  it('plans 70 B parameters over 16,384 ranks in no time and no memory', function()
    shell.write(folder .. '/measured.lua', ([[
      arg = { [0] = '%s/examples/plan.lua' }
      dofile(arg[0])
      print(io.open('/proc/self/status'):read('*a'):match('VmHWM:%%s+%%d+ kB'))
    ]]):format(TREE))
    local began = ms.time()
    local output = succeeds(shell.run(folder, 'luajit measured.lua'))
    assert.is_true(ms.time() - began < 5)
    assert.is_true(tonumber(output:match('VmHWM:%s+(%d+) kB')) < 100e3, output)
    assert.truthy(output:find('^70,383,304,704 parameters in 87 units, rank 0 of 16384'), output)
    assert.truthy(output:find('masters +16.4 MiB'), output)
    refuses("plan.lua: unknown flag '--rnaks'; the nearest is '--ranks'", run('plan', '--rnaks=8'))
    refuses("--ranks wants a whole number from 1 below 2147483648, got '99999999999'",
      run('plan', '--ranks=99999999999'))
    assert.truthy(output:find('reduced in f32, 1 micro-batch\n', 1, true), output)
    for flags, message in pairs { -- order does not matter
      ['--ranks=8 --rank=8'] = 'ValueError: rank 8 of a fake group, expected 0 to 7',
      ['--micro-batches=9999999999999'] = 'ValueError: a plan for 9999999999999 micro-batches',
      ['--width=7'] = 'ValueError: width 7 is not a multiple of 64 heads',
    } do
      local code, text = run('plan', flags)
      assert.equal(1, code)
      assert.equal('plan.lua: ' .. message, text:sub(1, 10 + #message))
      assert.is_nil(text:find('traceback'), text)
    end
    assert.truthy(succeeds(run('plan', '--strategy=NO_SHARD --ranks=4'))
      :find('masters +393.3 GiB  f32, and a copy in bf16\n'))
  end)
end)
