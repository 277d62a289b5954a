-- `moonshard finetune` and `moonshard generate` on a small random model.
local ms = require 'moonshard'
local scripts = require 'support.scripts'
local shell = require 'support.shell'
local small_model = require 'support.small_model'

local folder = shell.make_folder()
local base, chats = folder .. '/base', folder .. '/chats.jsonl'

local FLAGS = ' --template=chatml --context=64 --batch=8 --steps=6 --lr=0.01 '

local function finetune(flags, data)
  return scripts.shell(('bindings/moonshard finetune %s %s%s%s'):format(base, data or chats, FLAGS,
    flags))
end

-- The numbers of a row in the table at the end.
local function row(output, label)
  local perplexity, far = output:match('\n  ' .. label .. ' +([%d.]+) *(%S*)\n')
  assert(perplexity, output)
  return tonumber(perplexity), tonumber(far)
end

setup(function()
  small_model.make(base)
  small_model.write_chats(chats)
end)
teardown(function() shell.remove_folder(folder) end)

describe('moonshard finetune', function()
  it('trains, plans its memory to the byte, and resumes at another number of ranks', function()
    local out = folder .. '/full'
    local output, code = finetune('--ranks=2 --rows=2 --save=3 --out=' .. out)
    assert.equal(0, code, output)
    assert.truthy(output:find('40 examples', 1, true) and output:find('chatml (given)', 1, true))
    assert.is_true(row(output, 'after') < row(output, 'before') / 2)
    assert.equal(0, select(2, row(output, 'folder, read back')))
    local peak, planned = output:match 'peak memory ([%d.]+ %a+) a rank, planned ([%d.]+ %a+)'
    assert.equal(planned, peak)
    local weights = shell.read(out .. '/model.safetensors')
    shell.remove_folder(out .. '/checkpoints/step-00000006')
    output, code = scripts.shell(('bindings/moonshard finetune %s %s --resume --ranks=1 --out=%s')
      :format(base, chats, out))
    assert.equal(0, code, output)
    assert.truthy(output:find('step 6/6', 1, true) and not output:find('step 3/6', 1, true), output)
    assert.equal(weights, shell.read(out .. '/model.safetensors'))
  end)

  it('writes an adapter and the merged model, with which text is generated', function()
    local out = folder .. '/lora'
    local output, code = finetune('--ranks=2 --lora --rank=4 --merge --out=' .. out)
    assert.equal(0, code, output)
    assert.is_true(row(output, 'after') < row(output, 'before'))
    assert.equal(0, select(2, row(output, 'base and adapter, read back')))
    assert.is_true(select(2, row(output, 'merged, read back')) < 0.05)
    local prompt = ' "What follows 7?" --chat --template=chatml --temperature=0 --n=8'
    local adapted = scripts.shell(('bindings/moonshard generate %s --adapter=%s%s'):format(base,
      out, prompt))
    local plain = scripts.shell(('bindings/moonshard generate %s%s'):format(base, prompt))
    assert.truthy(adapted:find '%S' and plain:find '%S')
    assert.not_equal(plain, adapted)
  end)

  it('saves weights in another dtype and the chat format that its source lacks', function()
    local path, out = folder .. '/plain', folder .. '/bf16'
    small_model.make(path)
    os.remove(path .. '/chat_template.jinja')
    local output, code = scripts.shell(('bindings/moonshard finetune %s %s%s --ranks=1 '
      .. '--save-dtype=bf16 --out=%s'):format(path, chats, FLAGS, out))
    assert.equal(0, code, output)
    assert.truthy(shell.read(out .. '/config.json'):find('"bfloat16"', 1, true))
    assert.equal('chatml', ms.data.chat(out).name)
    local after, stored = row(output, 'after'), row(output, 'folder, read back')
    assert.equal(math.abs(stored / after - 1) > 1e-3,
      output:find('weights were rounded to bf16; --save-dtype=f32 keeps them', 1, true) ~= nil)
  end)

  it('trains on texts and on token files, and compares an adapter with the merged model', function()
    local text, tokens = folder .. '/a.txt', folder .. '/a.bin'
    shell.write(text, ('In the beginning was the word, and the word was long. '):rep(60))
    assert.equal(0, select(2, scripts.shell(('bindings/moonshard tokenize %s %s --out=%s'):format(
      base, text, tokens))))
    local rows = {}
    for i, data in ipairs { text, tokens } do
      local output, code = finetune(('--ranks=%d --lora --out=%s/lora%d'):format(i, folder, i),
        data)
      assert.equal(0, code, output)
      assert.is_true(row(output, 'after') < 0.9 * row(output, 'before'), output)
      local merged, far = row(output, 'merged in memory')
      assert.is_true(far > 0 and far < 0.1, output)
      assert.is_true(math.abs(merged / row(output, 'after') - 1) < 0.02, output)
      rows[i] = output:match 'data: [^\n]*'
    end
    assert.equal(rows[1], rows[2])
  end)

  it('shows what it would do', function()
    local output, code = finetune '--show'
    assert.equal(0, code, output)
    assert.truthy(output:find('<|im_start|>assistant\n[[2, and then 3.<|im_end|>]]', 1, true),
      output)
    assert.truthy(output:find 'time: about [%d.]+ s a step' and output:find 'memory: [%d.]+ MiB')
  end)

  it('warns if the end-of-turn token was never trained', function()
    local path = folder .. '/raw'
    small_model.make(path, { untrained = true })
    local output = scripts.shell(('bindings/moonshard finetune %s %s --show%s'):format(path, chats,
      FLAGS))
    assert.truthy(output:find("the embedding of '<|im_end|>' is far smaller", 1, true), output)
    assert.falsy(finetune '--show':find('far smaller', 1, true))
  end)

  it('chooses rows and checkpoints that fit, or says how much is needed', function()
    local function planned(flags)
      local output = finetune('--show --ranks=1 ' .. flags)
      return tonumber(output:match 'x (%d+) rows? of'), output:match 'checkpointing (%a+)',
        tonumber(output:match 'needs ([%d.]+) MiB'), tonumber(output:match 'memory: ([%d.]+) MiB')
    end
    local rows, checkpointing, _, most = planned ''
    assert.equal(8, rows)
    assert.equal('off', checkpointing)
    rows = planned(('--memory=%.2fMiB'):format(most - 0.1))
    assert.equal(4, rows)
    local _, _, needed = planned '--memory=1KiB'
    _, checkpointing = planned(('--memory=%.2fMiB'):format(needed + 0.05))
    assert.equal('on', checkpointing)
  end)

  it('refuses what it cannot train on', function()
    local empty = folder .. '/empty.jsonl'
    shell.write(empty, '{"messages": [{"role": "user", "content": "a"}]}\n')
    for flags, text in pairs { -- the order does not matter
      ['--context=300'] = '--context=300, but the model of ' .. base .. ' has 256 positions',
      ['--template=chatml2'] = "'chatml2'",
      ['--batch=3 --ranks=2'] = '--batch=3 is not a multiple of 2 ranks',
      ['--merge'] = '--merge needs --lora',
      ['--memory=lots'] = "--memory wants a size such as 8GiB, got 'lots'",
      ['--epoch=1'] = "unknown flag '--epoch'; the nearest is '--epochs'",
    } do
      local output, code = finetune(flags)
      assert.equal(2, code, output)
      assert.truthy(output:find(text, 1, true), output)
    end
    local output, code = finetune('', empty)
    assert.equal(2, code, output)
    assert.truthy(output:find('none has a target to learn', 1, true), output)
  end)
end)
