-- lua/moonshard/data/tokenize.lua, corpus.lua and tools/tokenize.lua: files of text into tokens
local checks = require 'support.checks'
local ms = require 'moonshard'
local scripts = require 'support.scripts'
local shell = require 'support.shell'
local tokenize = require 'moonshard.data.tokenize'

local fixture = ms.json.decode(shell.read 'tests/fixtures/tokens.json')

local function line_of(text)
  return ms.json.encode { text = text, other = 1 } .. '\n'
end

local function same(expected, ids)
  assert.equal(table.concat(expected, ' '), table.concat(ids, ' '))
end

describe('tokenize', function()
  local folder

  setup(function()
    folder = shell.make_folder()
    for _, name in ipairs { 'gpt2', 'qwen', 'llama2', 'llama3' } do
      os.execute(("mkdir '%s/%s'"):format(folder, name))
      local file = fixture.cases[name].file
      for _, token in ipairs(file.added_tokens) do
        token.rstrip = false -- '<mask>' takes the end of its line
      end
      shell.write(('%s/%s/tokenizer.json'):format(folder, name), ms.json.encode(file))
    end
  end)

  teardown(function() shell.remove_folder(folder) end)

  local function path(name)
    return folder .. '/' .. name
  end

  -- The tokens of a file, encoded by `ranks` in pieces of about `bytes`.
  local function encoded(tok, opts, ranks, bytes)
    local plan = tokenize.plan {
      tokenizer = tok, files = opts.files, out = path 'out.bin', format = opts.format or 'auto',
      dtype = opts.dtype or 'auto', eos = opts.eos, piece_bytes = bytes,
    }
    ms.dist.spawn(ranks, function(rank) tokenize.run(plan, rank, ranks, function() end) end)
    tokenize.clean(plan, ranks)
    local tokens = ms.data.tokens(path 'out.bin')
    assert.equal(opts.dtype or 'u16', tokens:dtype())
    return tokens:narrow(1, 1, tokens:numel()):totable()
  end

  local function append(to, from)
    for _, id in ipairs(from) do
      to[#to + 1] = id
    end
  end

  it('gives the tokens of the whole text for every cut of it', function()
    local parts = {}
    for i, line in ipairs(fixture.lines) do
      parts[i] = line .. ({ '\n', 'x\n', '9\r\n', 'y\n\n  \n', 'z\r', 'e\n\204\129' })[i % 6 + 1]
    end
    local text = table.concat(parts) .. 'a\255\n'
    shell.write(path 'text', text)
    for name, eos in pairs { gpt2 = '<|end|>', qwen = '<|end|>', llama3 = '<|end|>',
      llama2 = '</s>' } do
      local tok = ms.data.Tokenizer(path(name))
      assert.equal(name ~= 'llama2', tok:_cuts_lines())
      local expected = tok:encode(text)
      if name ~= 'llama2' then -- which ends a text itself
        expected[#expected + 1] = tok:id(eos)
      end
      for ranks = 1, 2 do
        same(expected, encoded(tok, { files = { path 'text' }, eos = eos }, ranks, 1))
      end
    end
  end)

  it('makes documents of lines and of records', function()
    local tok, texts = ms.data.Tokenizer(path 'llama3'), {}
    local lines, records, of_lines, of_records = {}, {}, {}, {}
    for i, line in ipairs(fixture.lines) do
      texts[i] = line:gsub('[\r\n]+', ' ')
      lines[i], records[i] = texts[i] .. (i % 2 == 0 and '\r\n' or '\n'), line_of(line)
      append(of_lines, texts[i] ~= '' and tok:encode(texts[i]) or {})
      append(of_records, tok:encode(line))
      for _, ids in ipairs { texts[i] ~= '' and of_lines or {}, of_records } do
        if ids[#ids] ~= tok:id '<|end|>' or line == '' then -- it begins with it, too
          ids[#ids + 1] = tok:id '<|end|>'
        end
      end
    end
    shell.write(path 'lines', table.concat(lines))
    shell.write(path 'records.jsonl', table.concat(records, '\n'))
    for bytes = 40, 200, 80 do
      same(of_lines, encoded(tok, {
        files = { path 'lines' }, format = 'lines', eos = '<|end|>', dtype = 'u32',
      }, 2, bytes))
      same(of_records, encoded(tok, {
        files = { path 'records.jsonl' }, eos = '<|end|>',
      }, 2, bytes))
    end
  end)

  it('is a command with counts', function()
    shell.write(path 'qwen/tokenizer_config.json', '{"eos_token":"<|end|>"}')
    shell.write(path 'a.jsonl', line_of 'the world' .. '{"text": "it\'s\240\159 the\128"}\n')
    local words = ("bindings/moonshard tokenize '%s' '%s' --ranks=2 --out='%s'"):format(
      path 'qwen', path 'a.jsonl', path 'a.bin')
    local output, code = scripts.shell(words)
    assert.equal(0, code, output)
    local tok = ms.data.Tokenizer(path 'qwen')
    local expected = tok:encode 'the world<|end|>it\'s\239\191\189 the\239\191\189<|end|>'
    same(expected, ms.data.tokens(path 'a.bin'):narrow(1, 1, #expected):totable())
    for _, text in ipairs {
      'documents        2\n', 'tokens           ' .. #expected .. '\n', 'invalid UTF-8    2 parts',
      ('bytes per token  %.3f\n'):format(23 / #expected), ', tokens of u16\n',
    } do
      assert.truthy(output:find(text, 1, true), output)
    end
    assert.equal(0, select(2, scripts.shell(words .. ' --no-eos')))
    assert.equal(#expected - 2, ms.data.tokens(path 'a.bin'):numel())
  end)

  it('names the file and line of an error, and leaves an old result', function()
    shell.write(path 'old.bin', 'old')
    for text, message in pairs {
      ['{"text": 3}\n'] = "'text' is a number, expected a string",
      ['{"txt": "a"}\n'] = "'text' is missing, expected a string",
      ['[1]\n'] = "the line is no object, expected one with the key 'text'",
      ['{"text": "a\n'] = 'malformed JSON at line 1, byte ',
    } do
      shell.write(path 'bad.jsonl', line_of(('a '):rep(2 ^ 19)) .. '\n' .. line_of 'b' .. text)
      local output, code = scripts.shell(("bindings/moonshard tokenize '%s' '%s' --out='%s'")
        :format(path 'gpt2', path 'bad.jsonl', path 'old.bin') .. " --eos='<|end|>'")
      assert.equal(1, code, output)
      assert.truthy(output:find('bad.jsonl:4: ' .. message, 1, true), output)
      assert.is_nil(output:find('traceback', 1, true))
      assert.equal('old', shell.read(path 'old.bin'))
    end
    assert.equal('', (scripts.shell(("ls '%s' | grep tmp"):format(folder))))
  end)

  it('refuses words that it does not understand', function()
    local tok = path 'gpt2'
    for words, message in pairs {
      [tok] = 'expected a tokenizer and one or more files',
      [tok .. ' a.txt'] = 'no --out=PATH given',
      [tok .. ' a.txt --out=b --formt=text'] = "the nearest is '--format'",
      [tok .. ' a.txt --out=b --eos=a --no-eos'] = '--eos and --no-eos exclude each other',
      [tok .. ' a.txt --out=b'] = 'no eos_token in ',
      [tok .. ' a.txt --out=b --ranks=0'] = '--ranks wants a whole number from 1 below 129',
    } do
      local output, code = scripts.shell('bindings/moonshard tokenize ' .. words)
      assert.equal(2, code, output)
      assert.truthy(output:find(message, 1, true), output)
    end
    checks.raises('IOError', 'open /no/such: No such file', encoded, ms.data.Tokenizer(tok),
      { files = { '/no/such' }, eos = '<|end|>' }, 1)
  end)
end)
