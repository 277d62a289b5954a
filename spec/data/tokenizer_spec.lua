-- lua/moonshard/data/tokenizer.lua and runtime/tokenizer against the library tokenizers
-- and tiktoken (tests/fixtures/tokens.py, gpt2.py)
local checks = require 'support.checks'
local ms = require 'moonshard'
local shell = require 'support.shell'

local read = shell.read

local fixture = ms.json.decode(read 'tests/fixtures/tokens.json')
local lines, cases = fixture.lines, fixture.cases
local names = {}
for name in pairs(cases) do
  names[#names + 1] = name
end
table.sort(names)

local path = os.tmpname()

local function write(text)
  local file = assert(io.open(path, 'w'))
  file:write(text)
  file:close()
end

-- A tokenizer of a case, whose file `change` may edit.
local function load(name, change)
  local file = ms.json.decode(read 'tests/fixtures/tokens.json').cases[name].file
  if change then
    change(file)
  end
  write(ms.json.encode(file))
  return ms.data.Tokenizer(path)
end

-- The text of ids, decoded one by one. Each part is valid UTF-8.
local function streamed(tok, ids, opts)
  local stream, parts = tok:stream(opts), {}
  for i, id in ipairs(ids) do
    parts[i] = stream:add(id)
    assert.equal(0, select(2, tok:encode(parts[i])))
  end
  return table.concat(parts) .. stream:finish()
end

describe('data.Tokenizer', function()
  teardown(function() os.remove(path) end)

  for _, name in ipairs(names) do
    it('gives the ids and texts of tokenizers: ' .. name, function()
      local case, tok = cases[name], load(name)
      for i, line in ipairs(lines) do
        local ids, n_invalid = tok:encode(line, { special = false })
        assert.equal(table.concat(case.ids[i], ' '), table.concat(ids, ' '), line)
        assert.equal(0, n_invalid)
        assert.equal(case.texts[i], tok:decode(ids, { special = true }))
        assert.equal(case.skipped[i], tok:decode(ids))
        assert.equal(case.texts[i], streamed(tok, ids, { special = true }))
        assert.equal(case.skipped[i], streamed(tok, ids))
      end
      assert.same({ unpack(case.special) }, tok:encode(lines[4]))
    end)
  end

  it("gives GPT-2's ids, by tiktoken", function()
    local golden = ms.json.decode(read 'tests/fixtures/gpt2.json')
    write(ms.json.encode(golden.file))
    local tok = ms.data.Tokenizer(path)
    for _, case in ipairs(golden.cases) do
      local ids = tok:encode(case.text)
      assert.equal(table.concat(case.ids, ' '), table.concat(ids, ' '), case.text)
      assert.equal(case.text, tok:decode(ids))
    end
  end)

  it('decodes what it encoded', function()
    for _, name in ipairs { 'gpt2', 'llama3' } do
      local tok = load(name)
      for _, line in ipairs(lines) do
        if not line:find '<mask>' then -- which takes the spaces beside it
          local ids = tok:encode(line, { special = false })
          assert.equal(line, tok:decode(ids, { special = true }))
        end
      end
    end
  end)

  it('reads a maximal invalid part of UTF-8 as U+FFFD and counts it', function()
    -- as in table 3-8 of the Unicode Standard, 15.0
    local text = 'a\241\128\128\225\128\194b\128c\128\191d'
    local tok = load 'gpt2'
    local ids, n_invalid = tok:encode(text)
    local u = '\239\191\189'
    assert.equal(6, n_invalid)
    assert.equal('a' .. u .. u .. u .. 'b' .. u .. 'c' .. u .. u .. 'd', tok:decode(ids))
  end)

  it('streams text as soon as it is certain', function()
    local tok = load 'gpt2'
    local ids, stream = tok:encode('a\240\159\152\128'), tok:stream() -- U+1F600, a token a byte
    assert.equal(5, #ids)
    for i, text in ipairs { 'a', '', '', '', '\240\159\152\128' } do
      assert.equal(text, stream:add(ids[i]))
    end
    assert.equal('', stream:finish())
    assert.equal('', stream:add(ids[2]))
    assert.equal('\239\191\189', stream:finish())
    tok = load 'llama2'
    stream = tok:stream()
    for _, case in ipairs { -- the first space is the tokenizer's; a run of bytes is one text
      { '\226\150\129', '' }, { '\226\150\129', ' ' }, { '<0x41>', '' }, { '<s>', '' },
      { '<0xFF>', '' }, { '\226\150\129', '\239\191\189\239\191\189 ' }, { '<0x41>', '' },
      { '<s>', '' }, { '\226\150\129', 'A ' },
    } do
      assert.equal(case[2], stream:add(tok:id(case[1])), case[1])
    end
    assert.equal('', stream:finish())
  end)

  it('takes the text of a special token for text where asked', function()
    local tok = load 'gpt2'
    local id = tok:id '<|end|>'
    assert.same({ id }, tok:encode '<|end|>')
    local ids = tok:encode('<|end|>', { parse_special = false })
    assert.is_true(#ids > 1)
    assert.equal('<|end|>', tok:decode(ids))
  end)

  it('has tokens by id and ids by token', function()
    local tok = load 'llama2'
    assert.equal(1, tok:id '<s>')
    assert.equal('<0x00>', tok:token(3))
    assert.is_nil(tok:id 'no such token')
    assert.is_nil(tok:token(10 ^ 6))
    assert.equal('', tok:decode { 10 ^ 6 })
    local largest = 0
    for _, token in ipairs(cases.llama2.file.added_tokens) do
      largest = math.max(largest, token.id)
    end
    assert.equal(largest + 1, tok:vocab_size())
  end)

  it('follows add_bos_token of tokenizer_config.json in a folder', function()
    os.remove(path)
    assert(os.execute(('mkdir %s'):format(path)) == 0)
    finally(function() os.execute(('rm -r %s'):format(path)) end)
    local folder = path
    for file, text in pairs {
      ['tokenizer.json'] = ms.json.encode(cases.llama2.file),
      ['tokenizer_config.json'] = '{"add_bos_token":false,"add_eos_token":true,'
        .. '"eos_token":{"content":"</s>"}}',
    } do
      path = folder .. '/' .. file
      write(text)
    end
    path = folder
    local tok = ms.data.Tokenizer(folder)
    local plain = tok:encode('a', { special = false })
    plain[#plain + 1] = 2
    assert.same(plain, tok:encode 'a')
  end)

  it('names what it does not support', function()
    for expected, change in pairs {
      ["model: models of kind 'Unigram' are not supported, expected 'BPE'"] = function(file)
        file.model.type = 'Unigram'
      end,
      ["pre_tokenizer: pretokenizers[2]: 'Punctuation' is not supported, expected one of Byte"]
        = function(file) file.pre_tokenizer.pretokenizers[2] = { type = 'Punctuation' } end,
      ["normalizer: 'Lowercase' is not supported"] = function(file)
        file.normalizer = { type = 'Lowercase' }
      end,
      ["model: 'end_of_word_suffix' is '</w>', which is not supported"] = function(file)
        file.model.end_of_word_suffix = '</w>'
      end,
      ["'dropout' is 0.1"] = function(file) file.model.dropout = 0.1 end,
    } do
      checks.raises('NotImplementedError', expected, load, 'qwen', change)
    end
    for regex, what in pairs {
      ['\\bx'] = "the escape '\\b'", ['[a&&b]'] = 'an intersection', ['(?m:.)'] = 'this kind of',
      ['\\d{1,3}+'] = 'a repetition', ['[[:alpha:]]'] = 'a class in a class',
      ['[^\\W]'] = 'a negated escape',
    } do
      checks.raises('NotImplementedError', what, load, 'qwen', function(file)
        file.pre_tokenizer.pretokenizers[1].pattern.Regex = regex
      end)
    end
  end)

  it('names the place of a mistake in the file', function()
    for expected, change in pairs {
      ["model: merges[2]: 'xyz' is not in the vocabulary"] = function(file)
        file.model.merges[2] = { 'xyz', 'a' }
      end,
      ['model: merges[1]: a b c, expected two tokens'] = function(file)
        file.model.merges[1] = 'a b c'
      end,
      ["the id of 'q' is out of range, expected an integer from 0"] = function(file)
        file.model.vocab.q = -1
      end,
      ["both have id 5"] = function(file) file.model.vocab.again = 5 end,
      ["added_tokens[2]: '<mask>' has id 7, which the vocabulary gives to another"] = function(file)
        file.added_tokens[2].id = 7
      end,
      ["added_tokens[1]: 'content' is missing, expected a string"] = function(file)
        file.added_tokens[1].content = nil
      end,
      ["'behavior' is 'isolated', expected one of Removed, Isolated, MergedWithPrevious"]
        = function(file) file.pre_tokenizer.pretokenizers[1].behavior = 'isolated' end,
      ["the regular expression '(a' does not compile: missing closing parenthesis"] = function(file)
        file.pre_tokenizer.pretokenizers[1].pattern.Regex = '(a'
      end,
    } do
      checks.raises('FormatError', expected, load, 'qwen', change)
    end
    write '{"model": {"type": "BPE",\n "vocab": '
    checks.raises('FormatError', "'" .. path .. "': malformed JSON at line 2, byte ",
      ms.data.Tokenizer, path)
    checks.raises('IOError', "cannot open '/no/such/file'", ms.data.Tokenizer, '/no/such/file')
  end)

  it('refuses or reads every file with one other value', function()
    local n_refused = 0
    local function try(file)
      write(ms.json.encode(file))
      local ok, tok = pcall(ms.data.Tokenizer, path)
      if ok then
        tok:decode((tok:encode(lines[4])))
      else
        assert.truthy(tok.kind == 'FormatError' or tok.kind == 'NotImplementedError', tok)
        assert.equal("'" .. path .. "': ", tok.message:sub(1, #path + 4))
        n_refused = n_refused + 1
      end
    end
    local function walk(file, node)
      local n = 0
      for key, old in pairs(node) do -- order does not matter
        n = n + 1
        for _, value in ipairs { ms.json.null, true, -1, 'x', {}, ms.json.array } do
          if value ~= ms.json.array then
            node[key] = value
          elseif type(key) == 'string' then
            node[key] = nil
          end
          try(file)
          node[key] = old
        end
        if type(old) == 'table' and old ~= ms.json.null then
          walk(file, old)
        end
        if n == 12 then -- of the vocabulary
          break
        end
      end
    end
    ms.errors.capture_warnings(function()
      for _, name in ipairs { 'llama2', 'qwen' } do
        local file = ms.json.decode(read 'tests/fixtures/tokens.json').cases[name].file
        walk(file, file)
      end
    end)
    assert.is_true(n_refused > 100)
  end)
end)
