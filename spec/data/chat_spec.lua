-- lua/moonshard/data/chat.lua against transformers with the models' templates
-- (tests/fixtures/chats.py)
local checks = require 'support.checks'
local ms = require 'moonshard'
local runtime = require 'moonshard_ffi.data'
local small_model = require 'support.small_model'
local shell = require 'support.shell'

local read = shell.read

local fixture = ms.json.decode(read 'tests/fixtures/chats.json')
local names = {}
for name in pairs(fixture.formats) do
  names[#names + 1] = name
end
table.sort(names)

local function joined(segments, kind)
  local out = {}
  for _, segment in ipairs(segments) do
    if not kind or segment[kind] then
      out[#out + 1] = segment.text
    end
  end
  return table.concat(out)
end

local function write(path, text)
  local file = assert(io.open(path, 'w'))
  file:write(text)
  file:close()
end

describe('data.chat', function()
  for _, name in ipairs(names) do
    it('renders as transformers: ' .. name, function()
      local known, chat = fixture.formats[name], ms.data.chat(name, { date = '29 Feb 2024' })
      if name == 'llama3.1' then
        chat = ms.data.chat(name)
      end
      -- of the template for folders, which the fixture's script rendered to the same texts
      assert.equal(known.written, runtime.hash(chat:template() or ''))
      for i, messages in ipairs(fixture.conversations) do
        local text, label = known.texts[i], ('conversation %d'):format(i)
        if text == ms.json.null then
          checks.raises('ValueError', 'message ', chat.segments, chat, messages)
        else
          assert.equal(text, joined(chat:segments(messages)), label)
          assert.equal(known.prompts[i], joined(chat:prompt(messages)), label)
        end
      end
    end)
  end

  it('learns answers with their end-of-turn token, and nothing else', function()
    local messages = fixture.conversations[2]
    for name, expected in pairs { -- order does not matter
      chatml = '\n\n Hi, there.\227\128\128\194\133 \n<|im_end|>\tFine <|im_end|>',
      llama3 = 'Hi, there.<|eot_id|>Fine<|eot_id|>',
      gemma = 'Hi, there.<end_of_turn>Fine<end_of_turn>',
      qwen3 = '\n\n Hi, there.\227\128\128\194\133 \n<|im_end|>'
        .. '<think>\n\n</think>\n\n\tFine <|im_end|>',
    } do
      local chat = ms.data.chat(name)
      assert.equal(expected, joined(chat:segments(messages), 'learned'))
      assert.equal(expected, joined(chat:prompt(messages), 'learned'))
    end
  end)

  it('takes no text of users for special tokens', function()
    local segments = ms.data.chat('chatml'):segments {
      { role = 'user', content = '<|im_end|>' }, { role = 'assistant', content = '<|im_end|>' },
    }
    assert.equal('<|im_start|><|im_end|><|im_start|><|im_end|>', joined(segments, 'special'))
  end)

  it('recognizes the template of a folder', function()
    local folder = os.tmpname()
    os.remove(folder)
    assert(os.execute('mkdir ' .. folder) == 0)
    local text = small_model.CHAT_TEMPLATE
    local config = folder .. '/tokenizer_config.json'
    write(config, ms.json.encode { chat_template = text })
    assert.equal('smollm2', ms.data.chat(folder).name)
    write(config, ms.json.encode { chat_template = {
      { name = 'tool_use', template = 'x' }, { name = 'default', template = text },
    } })
    assert.equal('smollm2', ms.data.chat(folder).name)
    write(folder .. '/chat_template.jinja', text .. ' ')
    checks.raises('ValueError', "/chat_template.jinja' is not known; give template = NAME, one of "
      .. 'chatml, gemma, llama3,', ms.data.chat, folder)
    write(folder .. '/chat_template.jinja', text .. '\n')
    assert.equal('smollm2', ms.data.chat(folder).name)
    write(folder .. '/chat_template.jinja', ms.data.chat('gemma'):template())
    assert.equal('gemma', ms.data.chat(folder).name)
    os.execute('rm -r ' .. folder)
    checks.raises('ValueError', "is not the name of a format or a folder with a template; give "
      .. 'template = NAME, one of', ms.data.chat, folder)
    for name, format in pairs(require('moonshard.data.chat')._formats) do -- order does not matter
      assert.equal(table.concat(fixture.formats[name].digests, ' '),
        table.concat(format.templates, ' '))
    end
  end)

  it('takes today once where a format has a date', function()
    local chat = ms.data.chat 'llama3.2'
    local text = joined(chat:segments { { role = 'user', content = 'Hi' } })
    assert.truthy(text:find('Today Date: ' .. chat.date .. '\n\n<|eot_id|>', 1, true))
    assert.equal('26 Jul 2024', ms.data.chat('llama3.1').date)
    assert.is_nil(ms.data.chat('llama3').date)
  end)

  it('names the message that it cannot render', function()
    local chat = ms.data.chat 'qwen2.5'
    for text, messages in pairs { -- order does not matter
      ["message 1 has the role 'tool', expected one of system, user, assistant"] =
        { { role = 'tool', content = '' } },
      ['message 2 is not of the form'] = { { role = 'user', content = '' }, { role = 'user' } },
      ['message 1 calls tools'] = { { role = 'assistant', content = '', tool_calls = {} } },
      ['no messages'] = {},
    } do
      checks.raises('ValueError', text, chat.segments, chat, messages)
    end
  end)
end)
