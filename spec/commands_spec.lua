-- Every command that a page or the head of an example shows, run as it is written there. The list
-- is read from the pages: a command that is not in `runs` below fails, and so does an entry that no
-- page shows any more. What takes minutes is shortened by flags added at its end.
--
-- Commands run in a folder of links to this tree, as in a newcomer's checkout: without the
-- variables the specs run under (but for the folder of a build that is no release); what they
-- write goes away with the folder.

local json = require 'moonshard.base.json'
local lfs = require 'lfs'
local shell = require 'support.shell'
local small_model = require 'support.small_model'

local TREE = lfs.currentdir()
local RELEASE = os.getenv('MOONSHARD_LIB') == TREE .. '/build/release'
local SHORT = ' --steps=2 --tokens=256 --width=32 --layers=1 --context=64 --sample=8'
local SMALL = ' --quick --no-torch --steps=1'

-- -- what the pages show -------------------------------------------------------------------------

local PROGRAMS = { './dev', 'luajit', 'moonshard', 'mpirun', 'python3', '.ci/run', 'busted' }

-- The command a piece of text begins with, or nil: what follows two blanks or a '#' describes it. A
-- program's name without words is no command, unless it is a file of this tree; nor is the verb of
-- the launcher without a script.
local function command_in(text)
  local command = text:gsub('%s%s.*$', ''):gsub('%s+#.*$', ''):gsub('%s+$', '')
  local program = command:gsub('^[A-Z_]+=%S+%s+', ''):match('^%S+')
  for _, known in ipairs(PROGRAMS) do
    if program == known and command ~= 'moonshard run'
      and (program ~= command or command:find('/', 1, true)) then
      return command
    end
  end
end

-- Call `each` with every command of a Markdown page: indented lines and `spans`, not Lua.
local function commands_of_page(path, each)
  local text = shell.read(path):gsub('```lua.-```', '')
  for line in text:gmatch('[^\n]+') do
    local command = command_in(line:match('^    (.*)$') or '')
    if command then
      each(command)
    else
      for span in line:gmatch('`([^`]+)`') do
        command = command_in(span)
        if command then
          each(command)
        end
      end
    end
  end
end

-- The same of a Lua file: indented lines of its comments.
local function commands_of_file(path, each)
  for comment in shell.read(path):gmatch('%-%-%-   ([^\n]+)') do
    local command = command_in(comment)
    if command then
      each(command)
    end
  end
end

local function files_in(folder, ending)
  local paths = {}
  for name in lfs.dir(folder) do
    if name:sub(-#ending) == ending then
      paths[#paths + 1] = folder .. '/' .. name
    end
  end
  table.sort(paths)
  return paths
end

-- All commands in the order they are met, once each.
local function shown()
  local list, seen = {}, {}
  local function add(command)
    if not seen[command] then
      seen[command], list[#list + 1] = true, command
    end
  end
  commands_of_page('README.md', add)
  commands_of_page('SECURITY.md', add)
  for _, path in ipairs(files_in('docs', '.md')) do
    commands_of_page(path, add)
  end
  for _, folder in ipairs { 'examples', 'bench' } do
    for _, path in ipairs(files_in(folder, '.lua')) do
      commands_of_file(path, add)
    end
  end
  return list
end

-- Lua that the pages show, by the heading above it: one script each.
local function scripts()
  local list, heading, code = {}, nil, nil
  for _, page in ipairs { 'README.md', 'docs/guide.md', 'docs/distributed.md',
    'docs/fully_shard.md', 'docs/finetune.md' } do
    for line in shell.read(page):gmatch('([^\n]*)\n') do
      if line == '```lua' then
        assert(not list[heading], heading .. ' has two scripts')
        code = {}
      elseif line == '```' and code then
        list[heading], code = table.concat(code, '\n') .. '\n', nil
      elseif code then
        code[#code + 1] = line
      else
        heading = line:match('^## (.*)$') or heading
      end
    end
  end
  return list
end

-- -- running it ----------------------------------------------------------------------------------

local checkout

local function succeeds(command)
  local code, output = shell.run(checkout, ('env -u LUA_PATH %s %s'):format(
    RELEASE and '-u MOONSHARD_LIB' or '', command))
  assert.equal(0, code, command .. '\n' .. output)
  return output
end

local function finds(text, output)
  assert.truthy(output:find(text, 1, true), ("no '%s' in:\n%s"):format(text, output))
end

local function trained(command)
  finds('validation loss', succeeds(command .. SHORT))
  assert.equal('directory', lfs.attributes(checkout .. '/train-out/checkpoints', 'mode'))
end

local function tuned(command)
  finds('loss with it:', succeeds(command .. ' --base-steps=2 --steps=2 --rows=2'))
end

-- A model of a folder is trained on two ranks in two steps.
local function finetuned(command)
  small_model.make(checkout .. '/model')
  small_model.write_chats(checkout .. '/chats.jsonl')
  return succeeds(command .. ' --ranks=2 --context=200 --batch=4 --steps=2')
end

-- The training script of README with two steps of a small model, and a text for it.
local function write_script(name, more)
  local code = scripts()['A training script']
  for long, short in pairs { -- order does not matter: each replaces another part
    ['step == 100'] = 'step == 2', ['layers = 4'] = 'layers = 1', ['width = 256'] = 'width = 32',
  } do
    local n
    code, n = code:gsub(long, short)
    assert.equal(1, n)
  end
  shell.write(checkout .. '/text.u8', ('in the beginning was the word. '):rep(400))
  shell.write(checkout .. '/' .. name, code .. (more or ''))
end

local function trains_by_script(command)
  finds('2\t', succeeds(command))
end

-- A command of docs/hosts.md with hosts that are this one, and a rank on each.
local function here(command)
  shell.write(checkout .. '/train.lua', "local ms = require 'moonshard'\nms.dist.init()\n"
    .. "print(ms.dist.rank(), ms.dist.all_reduce(ms.ones(1)):item())\n")
  shell.write(checkout .. '/rsh', '#!/bin/sh\nshift\nexec "$@"\n')
  shell.write(checkout .. '/hosts', 'localhost slots=8\n')
  return (command:gsub('10%.77%.0%.', '127.0.0.'):gsub(':4', ':1'):gsub('=%.%.%.', '=x')
    :gsub('moonshard run', './dev moonshard run --port=29517 --rsh="sh ./rsh"', 1))
end

-- Two processes of a job.
local function together(first, second, ranks)
  local output = succeeds(('sh -c %q'):format(('%s & %s; wait'):format(first, second)))
  for rank = 0, ranks - 1 do
    finds(('%d\t%d\n'):format(rank, ranks), output)
  end
end

-- What runs these specs itself, part by part.
local function part_of_ci(command)
  local found
  for line in shell.read('.ci/run'):gmatch('[^\n]+') do
    found = found or line == 'part ' .. command
  end
  assert.is_true(found, command .. ' is no part of .ci/run')
end

-- What takes minutes, or runs in parts elsewhere, is at least there.
local function part_of_dev(command)
  assert.truthy(shell.read('dev'):find('\n  ' .. command:match('%w+$') .. ') ', 1, true), command)
end

local runs = {
  ['./dev moonshard finetune --help'] = function(command)
    finds('--lora', succeeds(command))
  end,
  ['./dev moonshard finetune model chats.jsonl --show'] = function(command)
    finds('<|im_end|>]]', finetuned(command))
  end,
  ['./dev moonshard finetune model chats.jsonl --out=tuned'] = function(command)
    finds('folder, read back', finetuned(command))
  end,
  ['./dev moonshard generate tuned "Hello" --chat'] = function(command)
    small_model.make(checkout .. '/tuned')
    succeeds(command .. ' --n=2')
  end,
  ['./dev moonshard finetune model chats.jsonl --lora --out=adapter --merge'] = function(command)
    finds('merged, read back', finetuned(command))
  end,
  ['./dev moonshard generate model "Hello" --adapter=adapter --chat'] = function(command)
    finetuned('./dev moonshard finetune model chats.jsonl --lora --out=adapter')
    succeeds(command .. ' --n=2')
  end,
  ['moonshard run --hosts=10.77.0.1:4,10.77.0.2:4 train.lua'] = function(command)
    finds('1\t2\n', succeeds(here(command)))
  end,
  ['MS_NET=ucx moonshard run --hosts=10.77.0.1:4,10.77.0.2:4 train.lua'] = function(command)
    if not lfs.attributes(TREE .. '/build/release/libmoonshard_ucx.so') then
      return pending('libmoonshard_ucx.so is missing')
    end
    finds('1\t2\n', succeeds(here(command)))
  end,
  ['MOONSHARD_SECRET=... moonshard run --hosts=10.77.0.1:4,10.77.0.2:4 --host=0 train.lua']
    = function(command)
      together(here(command), here(command:gsub('host=0', 'host=1')), 2)
    end,
  ['MOONSHARD_SECRET=... moonshard run --hosts=10.77.0.1:4,10.77.0.2:4 --host=1 train.lua']
    = function(command)
      together(here(command), here(command:gsub('host=1', 'host=0')), 2)
    end,
  ['mpirun -n 8 --hostfile hosts luajit train.lua'] = function(command)
    if shell.run('.', 'which mpirun') ~= 0 then
      pending('mpirun is not installed')
    end
    command = here(command):gsub('mpirun', 'mpirun --allow-run-as-root'):gsub('luajit',
      './dev luajit')
    finds('7\t8\n', succeeds(command))
  end,
  ['luajit bench/roofline.lua'] = function(command)
    finds(succeeds(command), shell.read(TREE .. '/docs/gpu.md')) -- the page has its table
  end,
  ['./dev train'] = trained,
  ['./dev train --help'] = function(command)
    finds('--validate', succeeds(command))
  end,
  ['luajit examples/train.lua'] = trained,
  ['luajit examples/train.lua --ranks=4 --steps=300 --out=run1'] = function(command)
    finds('world=4', succeeds(command .. SHORT))
    assert.equal('directory', lfs.attributes(checkout .. '/run1/checkpoints', 'mode'))
  end,
  ['luajit examples/train.lua --compile'] = function(command)
    finds('graphs of 1 functions and modules', succeeds(command .. SHORT .. ' --steps=4'))
  end,
  ['luajit examples/train.lua --resume'] = function(command)
    trained('luajit examples/train.lua')
    local output = succeeds(command .. SHORT .. ' --steps=3')
    finds('step 3/3', output)
    assert.falsy(output:find('step 2/3', 1, true))
  end,
  ['luajit examples/sample.lua train-out --prompt "In the beginning"'] = function(command)
    trained('luajit examples/train.lua')
    local output = succeeds(command)
    assert.equal('In the beginning', output:sub(1, 16))
    assert.equal(16 + 400 + 1, #output)
  end,
  ['luajit examples/classify.lua'] = function(command)
    finds('accuracy', succeeds(command .. ' --steps=2 --batch=8 --test=8'))
  end,
  ['./dev moonshard run -n 2 examples/classify.lua'] = function(command)
    finds('on 2 ranks', succeeds(command .. ' --steps=2 --batch=8 --test=8'))
  end,
  ['luajit examples/translate.lua'] = function(command)
    finds('accuracy', succeeds(command .. ' --steps=2 --batch=8 --test=8'))
  end,
  ['./dev moonshard run -n 2 examples/translate.lua'] = function(command)
    finds('on 2 ranks', succeeds(command .. ' --steps=2 --batch=8 --test=8'))
  end,
  ['luajit examples/lora.lua'] = tuned,
  ['./dev moonshard run -n 2 examples/lora.lua'] = tuned,
  ['luajit examples/lora.lua --base=train-out'] = function(command)
    trained('./dev train')
    tuned(command)
  end,
  ['luajit examples/custom_policy.lua'] = function(command)
    finds('step 5', succeeds(command))
  end,
  ['luajit examples/plan.lua'] = function(command)
    finds('rank 0 of 16384', succeeds(command))
  end,
  ['luajit examples/plan.lua --ranks=8 --layers=12 --width=768 --heads=12 '
    .. '--strategy=SHARD_GRAD_OP'] = function(command)
    finds('rank 0 of 8, SHARD_GRAD_OP', succeeds(command))
  end,
  ['moonshard plan --hosts=2048 --ranks-per-host=8 --flops=400TFLOP/s --link=50GB/s '
    .. '--host-link=450GB/s script.lua'] = function(command)
    shell.write(checkout .. '/script.lua', [[
      local ms = require 'moonshard'
      ms.dist.init { ranks = 2 } -- of a run, which a plan does not take
      local model = ms.fsdp.FSDP(ms.nn.Linear(64, 64))
      local opt = ms.optim.SGD(model:parameters(), { lr = 0.1 })
      for _ = 1, 2 do
        model(ms.zeros(8, 64)):sum():backward()
        opt:step()
      end]])
    finds('rank 0 of 16,384', succeeds('./dev ' .. command))
  end,
  ['./dev moonshard repl'] = function(command)
    finds('a prompt of one rank', succeeds(command))
  end,
  ['./dev moonshard doctor'] = function(command)
    finds('CPU training    yes', succeeds(command))
  end,
  ['moonshard doctor'] = function(command)
    finds('CPU training    yes', succeeds('./dev ' .. command))
  end,
  ['./dev luajit script.lua'] = function(command)
    write_script('script.lua')
    trains_by_script(command)
  end,
  ['./dev moonshard run -n 2 script.lua'] = function(command)
    write_script('script.lua')
    trains_by_script(command)
  end,
  ['moonshard run -n n x.lua'] = function(command)
    write_script('x.lua')
    trains_by_script('./dev ' .. command:gsub('%-n n', '-n 2'))
  end,
  ['moonshard tokenize models/qwen train.jsonl --out=train.bin'] = function(command)
    local fixture = json.decode(shell.read 'tests/fixtures/tokens.json')
    lfs.mkdir(checkout .. '/models')
    lfs.mkdir(checkout .. '/models/qwen')
    shell.write(checkout .. '/models/qwen/tokenizer.json', json.encode(fixture.cases.qwen.file))
    shell.write(checkout .. '/train.jsonl', '{"text": "a"}\n{"text": "b"}\n')
    finds('documents        2\n', succeeds('./dev ' .. command .. " --eos='<|end|>'"))
  end,
  ['moonshard run --help'] = function(command)
    finds('MS_STOP_TIMEOUT=10', succeeds('./dev ' .. command))
  end,
  ['./dev bench'] = function(command)
    finds('sharded step of two Linear(32, 32)', succeeds(command .. ' tiny' .. SMALL))
  end,
  ['./dev bench default comm --quick'] = function(command)
    finds('all_reduce of 32 MiB', succeeds(command .. SMALL))
  end,
  ['./dev bench hosts'] = function(command)
    finds('GPT-2 124M with a rank on each of two hosts', succeeds(command:gsub('hosts', '--help')))
    finds('state_bytes', succeeds('MS_TEST_HOSTS=2 luajit bench/rows.lua train ranks=2 layers=1 '
      .. 'width=48 heads=12 context=128 rows=1 vocab=256 dtype=f32 warmup=1 steps=1'))
  end,
  ['./dev bench --help'] = function(command)
    finds('--no-torch', succeeds(command))
  end,
  ['./dev bench default small gpt2 comm eager tiny start --quick --python=...'] = function(command)
    local python = command:gsub('=%.%.%.', '=/no/such/python'):gsub(' default.* start', ' tiny')
    finds('no PyTorch: /no/such/python cannot import torch', succeeds(python .. ' --steps=1'))
  end,
  ['./dev bench conv attention transformer lora recompute hybrid --python=...'] = function(command)
    finds('two Conv2d forward', succeeds(command:gsub(' attention.*', SMALL)))
  end,
  ['luajit bench/rows.lua train layers=12 width=768 heads=12 context=128 rows=1 vocab=50257 '
    .. 'ranks=2 dtype=bf16 warmup=1 steps=1'] = function(command)
    finds('state_bytes', succeeds(command:gsub('layers=12 width=768', 'layers=1 width=48')))
  end,
  ['luajit bench/rows.lua train layers=4 width=256 heads=4 context=128 rows=8 vocab=256 ranks=2 '
    .. 'dtype=f32 warmup=3 steps=20 api=fully_shard'] = function(command)
    finds('state_bytes', succeeds(command:gsub('layers=4 width=256', 'layers=1 width=48')
      :gsub('steps=20', 'steps=1')))
  end,
  ['luajit bench/rows.lua train ranks=2 layers=12 width=768 heads=12 context=512 rows=2 '
    .. 'vocab=50257 dtype=bf16 warmup=2 steps=2 compile=fuse'] = function(command)
    finds('state_bytes', succeeds(command:gsub('layers=12 width=768', 'layers=1 width=48')
      :gsub('vocab=50257', 'vocab=256')))
  end,
  ['./dev bench compile compile_step --python=...'] = function(command)
    finds('SGD, replay', succeeds(command:gsub(' compile comp', ' comp'):gsub('--python.*',
      '--no-torch --quick')))
  end,
  ['./dev build'] = part_of_ci,
  ['./dev bundle'] = part_of_dev, -- bundle_spec.lua
  ['./dev test'] = part_of_ci,
  ['./dev check'] = part_of_ci,
  ['./dev model'] = part_of_dev, -- minutes
  ['./dev soak'] = part_of_dev,
  ['./dev docs'] = part_of_dev, -- writes into the tree
  ['./dev reference'] = part_of_dev,
  ['./dev test asan'] = part_of_ci,
  ['./dev test cudasim'] = part_of_ci,
  ['./dev test fake'] = part_of_ci,
  ['./dev test tsan'] = part_of_ci,
  ['.ci/run'] = function()
    assert.truthy(lfs.attributes('.ci/run', 'permissions'):find('x', 1, true))
  end,
}

-- The scripts of the pages run with the tree that these specs run with.
local function runs_script(name)
  local code, output = shell.run(checkout, 'luajit ' .. name)
  assert.equal(0, code, output)
  return output
end

-- What the scripts of the pages are, and do.
local parts = {
  ['Two models at once'] = function(code)
    write_script('ignored.lua') -- and its text
    shell.write(checkout .. '/two.lua', code)
    runs_script('two.lua')
    for _, path in ipairs { 'model0/step-00000005', 'model1/step-00000006' } do
      assert.truthy(lfs.attributes(checkout .. '/' .. path), path)
    end
  end,
  ['A script in both'] = function(code)
    shell.write(checkout .. '/both.lua', code)
    finds('loss\t0', runs_script('both.lua'))
  end,
  ['A training script'] = function()
    write_script('script.lua')
    finds('2\t', runs_script('script.lua'))
  end,
  ['Saving, loading, writing text'] = function(code)
    write_script('script.lua', code)
    local output = runs_script('script.lua')
    finds('loaded step 100', output)
    for _, path in ipairs { 'saved/last', 'checkpoints/step-00000100', 'model.safetensors' } do
      assert.truthy(lfs.attributes(checkout .. '/' .. path), path)
    end
  end,
  ['A model of your own'] = function(code)
    shell.write(checkout .. '/model.lua', code .. [[
      assert(model.last.weight:requires_grad() and not model.first.weight:requires_grad())
    ]])
    local losses = {}
    for loss in runs_script('model.lua'):gmatch('%d+\t(%S+)\n') do
      losses[#losses + 1] = tonumber(loss)
    end
    assert.equal(5, #losses)
    assert.is_true(losses[5] < 0.1 and losses[5] < losses[1])
  end,
  ['Data'] = function(code)
    shell.write(checkout .. '/data.lua', [[
      local ms = require 'moonshard'
    ]] .. code .. [[
      print('sizes', train:len(), valid:len(), batches:step(), batches:len())
    ]])
    finds('sizes\t90\t10\t24\t12\n', runs_script('data.lua'))
  end,
  ['A wrap policy of your own'] = function(code)
    shell.write(checkout .. '/policy.lua', [[
      local ms = require 'moonshard'
      local nn, fsdp = ms.nn, ms.fsdp
      ms.dist.init { ranks = 2 }
      local model = ms.models.GPT { vocab = 9, layers = 1, heads = 1, width = 8, context = 8 }
    ]] .. code .. [[
      if ms.dist.rank() == 0 then
        for _, unit in ipairs(model:units()) do print(unit.name, unit.strategy) end
      else
        model:units()
      end
    ]])
    local output = runs_script('policy.lua')
    finds('h.0\tSHARD_GRAD_OP', output)
    finds('wpe\tFULL_SHARD', output) -- wte shares its weight with lm_head: both stay in the root
  end,
  ['Sharded tensors'] = function(code)
    shell.write(checkout .. '/sharded.lua', [[
      local ms = require 'moonshard'
      ms.dist.init { ranks = 2 }
    ]] .. code)
    finds('placements=(Shard(1)), local=(3, 3))', runs_script('sharded.lua'))
  end,
  ['Tensor parallelism'] = function(code)
    shell.write(checkout .. '/parallel.lua', [[
      local ms = require 'moonshard'
      ms.dist.init { ranks = 4 }
      local model, nn = ms.nn.Sequential(), ms.nn
      model.blocks = nn.ModuleList { nn.Sequential() }
      for _, name in ipairs { 'q', 'k', 'v', 'o', 'w1', 'w2' } do
        model.blocks[1][name] = nn.Linear(4, 4)
      end
    ]] .. code .. [[
      model:materialize()
      print('q', model.module.blocks[1].q.weight:placements()[2])
    ]])
    finds('q\tShard(1)', runs_script('parallel.lua'))
  end,
  ['Errors'] = function(code)
    shell.write(checkout .. '/errors.lua', "local ms = require 'moonshard'\n" .. code)
    local output = runs_script('errors.lua')
    finds('ValueError\tmatmul: shapes', output)
    finds('\nfailed: ValueError: matmul: shapes', output)
    finds('errors.lua:2\n', output)
  end,
  ['Operators'] = function(code)
    shell.write(checkout .. '/operators.lua', code)
    finds('\n5\n', runs_script('operators.lua'))
  end,
  ['Parameter groups'] = function(code)
    shell.write(checkout .. '/groups.lua', [[
      local ms = require 'moonshard'
      local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
      ms.dist.init { ranks = 2 }
      local policy = fsdp.ModuleWrapPolicy { nn.Linear }
      local model = nn.Sequential { nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8) }
    ]] .. code .. [[
      model:materialize()
      if ms.dist.rank() == 0 then
        for i, group in ipairs(opt.param_groups) do
          print(#group.params, group.weight_decay, group.lr == lr(99) * factors[i])
        end
      end
    ]])
    local output = runs_script('groups.lua')
    -- two matrices; a bias of each layer and the weight of the norm
    finds('2\t0.1\ttrue\n4\t0\ttrue\n', output)
  end,
  ['A script of one\'s own'] = function(code)
    small_model.make(checkout .. '/model')
    small_model.write_chats(checkout .. '/chats.jsonl')
    shell.write(checkout .. '/tune.lua', code)
    finds('step 1/', runs_script('tune.lua'))
    assert.equal('file', lfs.attributes(checkout .. '/tuned/model.safetensors', 'mode'))
  end,
  ['Ranks without a model'] = function(code)
    shell.write(checkout .. '/sums.lua', code)
    -- ranks bring 1 and 2: their sum is 3, and that of the sums 6
    local output = runs_script('sums.lua')
    finds('sums\ttensor([3., 3.], dtype=', output)
    finds('\t2\ttensor([6.], dtype=', output)
  end,
}

describe('the pages', function()
  before_each(function()
    checkout = shell.make_folder()
    for name in lfs.dir(TREE) do
      if name ~= '.' and name ~= '..' and name ~= 'train-out' then
        assert(lfs.link(TREE .. '/' .. name, checkout .. '/' .. name, true))
      end
    end
  end)

  after_each(function()
    shell.remove_folder(checkout)
  end)

  local known = {}
  for _, command in ipairs(shown()) do
    known[command] = true
    it('show `' .. command .. '`, which runs', function()
      local run = runs[command]
      assert.is_function(run, 'nothing runs this command: add it to `runs`')
      if run ~= part_of_ci and run ~= part_of_dev and command:find('^%./dev') and not RELEASE then
        pending('./dev uses the release build, these specs another one')
      else
        run(command)
      end
    end)
  end

  for heading, code in pairs(scripts()) do -- order does not matter: each has a folder of its own
    it(("show a script under '%s', which runs"):format(heading), function()
      assert.is_function(parts[heading], 'nothing runs this script: add it to `parts`')
      parts[heading](code)
    end)
  end

  it('show ./dev, which runs things in the folder of its user', function()
    if not RELEASE then
      return pending('./dev uses the release build, these specs another one')
    end
    assert(lfs.mkdir(checkout .. '/mine'))
    shell.write(checkout .. '/mine/x.lua', "print(io.open('mine.txt') and 'found')")
    shell.write(checkout .. '/mine/mine.txt', '')
    for _, start in ipairs { 'luajit', 'moonshard run -n 1 --no-prefix' } do
      local code, output = shell.run(checkout .. '/mine', '../dev ' .. start .. ' x.lua')
      assert.equal(0, code, output)
      assert.equal('found\n', output)
    end
    assert(shell.run(checkout .. '/mine', '../dev train' .. SHORT))
    assert.equal('directory', lfs.attributes(checkout .. '/mine/train-out', 'mode'))
  end)

  it('name what is there', function()
    local ms = require 'moonshard'
    local roots = { ms = ms, nn = ms.nn, fsdp = ms.fsdp, optim = ms.optim }
    local n = 0
    for row in shell.read('docs/from-pytorch.md'):gmatch('\n| `[^\n]*') do
      for span in row:match('|.-|(.*)|'):gmatch('`([^`]*)`') do
        for root, path in span:gmatch('%f[%w_](%a+)%.([%a_][%w_.]*)') do
          local value = roots[root]
          for name in path:gmatch(value and '[^.]+' or '$.') do
            value, n = value[name], n + 1
            assert.is_not_nil(value, span)
          end
        end
      end
    end
    assert.is_true(n > 10)
  end)

  it('name every variable that the runtime reads', function()
    local pages = shell.read('docs/architecture.md')
    local _, sources = shell.run(TREE, [[grep -rhE "[\"'](MS|MOONSHARD)_[A-Z_]+" ]]
      .. 'runtime bindings lua kernels')
    local n = 0
    for name in sources:gmatch('["\'](M%u+_[%u_]+)') do
      n = n + 1
      assert.truthy(pages:find('`' .. name, 1, true), 'docs/architecture.md is silent on ' .. name)
    end
    assert.is_true(n > 10)
    local security = shell.read('SECURITY.md')
    for _, name in ipairs { 'MOONSHARD_LIB', 'MS_PLUGIN_DIR', 'LUA_PATH', 'LUA_CPATH', 'PATH' } do
      assert.truthy(security:find('`' .. name .. '`', 1, true), 'SECURITY.md is silent on ' .. name)
    end
  end)

  it('show every command that is run here', function()
    for command in pairs(runs) do
      assert.is_true(known[command], 'no page shows `' .. command .. '`')
    end
  end)
end)
