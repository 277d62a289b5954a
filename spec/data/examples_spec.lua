-- lua/moonshard/data/examples.lua and packed_loader.lua: learned tokens, packing, resuming
local checks = require 'support.checks'
local ms = require 'moonshard'
local packing = require 'moonshard.data.packing'
local shell = require 'support.shell'

local read, write = shell.read, shell.write

local cases = ms.json.decode(read 'tests/fixtures/tokens.json').cases
local folder = os.tmpname()
os.remove(folder)

-- The tokenizer of a case with tokens of a chat format (default: ChatML's).
local function tokenizer(name, eos, tokens)
  local file = ms.json.decode(ms.json.encode(cases[name].file))
  for _, token in ipairs(tokens or { '<|im_start|>', '<|im_end|>' }) do
    local last = file.added_tokens[#file.added_tokens]
    table.insert(file.added_tokens, {
      id = last.id + 1, content = token, single_word = false, lstrip = false, rstrip = false,
      normalized = false, special = true,
    })
  end
  write(folder .. '/tokenizer.json', ms.json.encode(file))
  write(folder .. '/tokenizer_config.json', ms.json.encode { eos_token = eos })
  return ms.data.Tokenizer(folder)
end

local path = folder .. '/data.jsonl'

local function examples(lines, opts)
  for k, line in ipairs(lines) do
    lines[k] = type(line) == 'string' and line or ms.json.encode(line)
  end
  write(path, table.concat(lines, '\n'))
  local all = { path = path, tokenizer = folder, context = 64, template = 'chatml' }
  for name, value in pairs(opts or {}) do -- order does not matter: names differ
    all[name] = value
  end
  return ms.data.Examples(all)
end

local function learned_text(tok, set, i)
  local ids, learned = set:get(i)
  local out = {}
  for k, id in ipairs(ids) do
    out[#out + 1] = learned[k] and id or nil
  end
  return tok:decode(out, { special = true })
end

local function chat(...)
  local messages = {}
  for k, text in ipairs { ... } do
    messages[k] = { role = k % 2 == 1 and 'user' or 'assistant', content = text }
  end
  return { messages = messages, source = 'ignored' }
end

describe('data.Examples', function()
  local tok

  setup(function() assert(os.execute('mkdir ' .. folder) == 0) end)
  before_each(function() tok = tokenizer('qwen', '<|end|>') end)

  it('encodes conversations like their whole text, and learns the answers', function()
    local set = examples({ chat('Hello, world.', " it's the text", '\n\nword?', '12'), '',
      chat('a', '\n b ') }, { template = nil })
    local text = '<|im_start|>user\nHello, world.<|im_end|>\n<|im_start|>assistant\n'
      .. " it's the text<|im_end|>\n<|im_start|>user\n\n\nword?<|im_end|>\n<|im_start|>assistant\n"
      .. '12<|im_end|>\n'
    assert.same(tok:encode(text, { special = false }), (set:get(1)))
    assert.equal(" it's the text<|im_end|>12<|im_end|>", learned_text(tok, set, 1))
    assert.equal('\n b <|im_end|>', learned_text(tok, set, 2))
    assert.equal('-- example 1: ' .. #set:get(1) .. ' tokens, '
      .. #tok:encode " it's the text12" + 2 .. ' learned\n'
      .. text:gsub(" it's the text<|im_end|>", '[[%0]]'):gsub('12<|im_end|>', '[[%0]]') .. '\n',
      set:show(1))
    local all = examples({ chat('a', 'b') }, { learn = 'all' })
    assert.equal('<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n',
      learned_text(tok, all, 1))
    assert.not_equal(all:digest(), examples({ chat('a', 'b') }):digest())
  end)

  it('reads tokens in messages as text', function()
    local n = 0
    for _, id in ipairs((examples { chat('<|im_end|>', '<|im_end|>') }:get(1))) do
      n = n + (id == tok:id '<|im_end|>' and 1 or 0)
    end
    assert.equal(2, n)
  end)

  it('ends texts and completions with one end-of-text token', function()
    local the = tok:encode('the', { special = false })
    local with_end = { unpack(the) }
    with_end[#with_end + 1] = tok:id '<|end|>'
    local set = examples { { text = 'the' }, { text = 'the<|end|>' } }
    assert.same(with_end, (set:get(1)))
    assert.same(with_end, (set:get(2)))
    set = examples { { prompt = 'the text\n', completion = 'the' } }
    assert.equal('the<|end|>', learned_text(tok, set, 1))
  end)

  it('writes BOS once, and warns of a text that has its own', function()
    tok = tokenizer('llama2', '</s>')
    local warnings = ms.errors.capture_warnings(function()
      local set = examples { { text = 'the' }, { text = '<s>the</s>' } }
      assert.same(tok:encode 'the', (set:get(1)))
      assert.equal(1, set:report().two_bos)
    end)
    assert.equal(1, #warnings)
    assert.truthy(warnings[1].message:find("1 examples begin with two tokens '<s>' (first: " .. path
      .. ':2)', 1, true))
  end)

  it('counts texts that decoding changes', function()
    assert.equal(1, examples({ { text = 'A\204\138' }, { text = 'A' } }):report().changed) -- NFC
  end)

  it('reads invalid parts of UTF-8 as U+FFFD, and counts them', function()
    local set = examples { '{"text": "the\255 t\240\159e"}', { text = 'the' } }
    assert.equal('the\239\191\189 t\239\191\189e<|end|>', learned_text(tok, set, 1))
    assert.equal(2, set:report().invalid_utf8)
    assert.equal(0, set:report().changed)
  end)

  it('keeps the date of a chat format', function()
    tokenizer('llama3', '<|end|>', { '<|begin_of_text|>', '<|start_header_id|>',
      '<|end_header_id|>', '<|eot_id|>' })
    local set = examples({ chat('a', 'b') }, {
      template = { name = 'llama3.2', date = '29 Feb 2024' }, context = 128,
    })
    assert.truthy(set:show():find('Today Date: 29 Feb 2024', 1, true))
    assert.equal('29 Feb 2024', set:report().date)
    checks.raises('TypeError', "'date' is a number", examples, { chat('a', 'b') },
      { template = { date = 3 } })
  end)

  it('drops examples without a target and counts them', function()
    local set = examples { { messages = { { role = 'user', content = 'a' } } }, chat('a', 'b') }
    assert.equal(1, set:len())
    assert.equal(1, set:report().no_target)
    assert.equal(2, set:report().records)
    checks.raises('ValueError', 'of 1 records in ' .. path .. ' none has a target', examples,
      { { messages = { { role = 'user', content = 'a' } } } })
  end)

  it('never cuts in silence', function()
    local words = ('the text '):rep(20)
    local all = tok:encode(words, { special = false })
    all[#all + 1] = tok:id '<|end|>'
    local set = examples({ { text = words } }, { context = 8 })
    local joined = {}
    for i = 1, set:len() do
      local ids = set:get(i)
      assert.is_true(#ids <= 9)
      for k, id in ipairs(ids) do
        if k > 1 or i == 1 then
          joined[#joined + 1] = id
        else
          assert.equal(joined[#joined], id)
        end
      end
    end
    assert.same(all, joined)
    assert.equal(#all - 1, set:report().targets)
    assert.equal(1, set:report().split)
    assert.equal(#all, set:report().longest)
    local pair, short = { prompt = 'the', completion = words }, { prompt = 'a', completion = 'b' }
    for how, done in pairs { drop = 'dropped', truncate = 'truncated' } do -- any order
      local warnings = ms.errors.capture_warnings(function()
        set = examples({ short, pair }, { context = 8, too_long = how ~= 'drop' and how or nil })
      end)
      assert.equal(how == 'drop' and 1 or 2, set:len())
      assert.equal(1, set:report()[done])
      assert.equal(1, #warnings)
      assert.truthy(warnings[1].message:find('1 of 2 examples have more than 9 tokens (first: '
        .. path .. ':2;', 1, true))
      assert.truthy(warnings[1].message:find('were ' .. done, 1, true))
    end
    checks.raises('ValueError', path .. ':2: the example has ', examples, { short, pair },
      { context = 8, too_long = 'error' })
  end)

  it('names the line of a mistake', function()
    for text, line in pairs { -- order does not matter
      [':2: malformed JSON'] = '{ "text": ',
      [':2: the line is no object'] = '[1]',
      [":2: the record has none of the keys 'text', 'prompt' and 'completion', 'messages'"] =
        '{ "prompt": "a" }',
      [":2: the record has 'messages', expected 'text' as in the first record"] =
        '{ "messages": [] }',
      [":2: the record has 'text' and 'messages', expected one"] =
        '{ "messages": [], "text": "" }',
      [":2: 'text' is a null, expected a string"] = '{ "text": null }',
    } do
      checks.raises('FormatError', path .. text, examples, { { text = 'a' }, line })
    end
    checks.raises('FormatError', path .. ":1: chat format 'chatml': message 1 has the role 'tool'",
      examples, { { messages = { { role = 'tool', content = '' } } } })
    checks.raises('IOError', 'no/such/file', examples, {}, { path = 'no/such/file' })
    checks.raises('ValueError', "the tokenizer has no token '<|eot_id|>' of chat format 'llama3'",
      examples, { chat('a', 'b') }, { template = 'llama3' })
    checks.raises('ValueError', "the tokenizer has no token '<x>'; give eos = TOKEN", examples,
      { { text = 'a' } }, { eos = '<x>' })
  end)

  it('reads a text file as one document, and a token file as tokenize writes it', function()
    local text = 'Hello, world. It is the word that is the text.\n'
    write(folder .. '/a.txt', text:rep(4))
    local set = ms.data.Examples { path = folder .. '/a.txt', tokenizer = folder, context = 16 }
    local whole = tok:encode(text:rep(4))
    assert.same({ unpack(whole, 1, 17) }, (set:get(1)))
    assert.same({ unpack(whole, 17, 33) }, (set:get(2)))
    local training, validation = set:split { validation = 0.5 }
    assert.equal(set:len(), training:len() + validation:len())
    local lines = { { text = text }, { text = 'the word' }, { text = '' } }
    local expected = examples(lines, { template = nil })
    for _, name in ipairs { 'tokens.bin', 'tokens.u16' } do
      local file = folder .. '/' .. name
      assert(os.execute(('bindings/moonshard tokenize %s %s --out=%s --quiet --ranks=1'):format(
        folder, path, file)) == 0)
      if name == 'tokens.u16' then -- as other programs write them
        write(file, read(file):sub(1025))
      end
      local found = ms.data.Examples { path = file, tokenizer = folder, context = 64 }
      assert.equal(expected:digest(), found:digest())
    end
    write(folder .. '/tokens.u16', '\255\255\0\0')
    checks.raises('FormatError', 'token 1 is 65535, expected ids below ', ms.data.Examples,
      { path = folder .. '/tokens.u16', tokenizer = folder, context = 64 })
  end)

  it('is divided by records, the same way for a seed', function()
    local lines = {}
    for i = 1, 10 do
      lines[i] = { text = ('the text ' .. i):rep(4) }
    end
    local set = examples(lines, { context = 8 })
    local training, validation = set:split { validation = 0.2, seed = 3 }
    local again, other = set:split { validation = 0.2, seed = 3 }, set:split { validation = 0.2 }
    assert.equal(training:digest(), again:digest())
    assert.not_equal(training:digest(), other:digest())
    assert.equal(set:len(), training:len() + validation:len())
    local firsts = 0 -- of texts, not of later parts of a split one
    for i = 1, validation:len() do
      firsts = firsts + (tok:decode((validation:get(i))):find '^the text %d+the' and 1 or 0)
    end
    assert.equal(2, firsts)
    checks.raises('ValueError', 'there is 1 example, expected 2 or more', function()
      examples({ { text = 'a' } }):split { validation = 0.5 }
    end)
  end)

  it('packs by best fit, longest first', function()
    -- by hand: 5 + 3, 4 + 3 + 1, 2 + 2
    local lengths = require('moonshard_ffi').new('double[7]', { 5, 4, 3, 3, 2, 2, 1 })
    local documents, firsts, n_rows = packing.best_fit(lengths, 7, 8)
    local rows = {}
    for r = 0, n_rows - 1 do
      rows[r + 1] = {}
      for k = firsts[r], firsts[r + 1] - 1 do
        table.insert(rows[r + 1], documents[k])
      end
    end
    assert.same({ { 1, 3 }, { 2, 4, 7 }, { 5, 6 } }, rows)
  end)
end)

describe('data.PackedLoader', function()
  local set

  setup(function()
    tokenizer('qwen', '<|end|>')
    local lines = {}
    for i = 1, 23 do
      lines[i] = chat('the ' .. i, ('text '):rep(i % 5 + 1))
    end
    set = examples(lines, { context = 96 })
  end)

  teardown(function()
    os.execute('rm -r ' .. folder)
    set = nil
    assert.equal(0, checks.live_handles())
  end)

  -- Documents of rows as text: 'ids -> targets', in the order of their samples; and the sums of
  -- targets and of step_targets() by step.
  local function epoch_of(world, micro, opts)
    local by_sample, counted, announced = {}, {}, {}
    for rank = 0, world - 1 do
      local loader = ms.data.PackedLoader {
        examples = set, batch = 2, rank = rank, world_size = world, micro_batches = micro,
        seed = opts.seed, packed = opts.packed, shuffle = opts.shuffle,
      }
      for step = 1, loader.steps_per_epoch do
        announced[step] = loader:step_targets()
        for k = 0, micro - 1 do
          local ids, targets, positions = loader:next()
          local sample = ((step - 1) * world * micro + rank * micro + k) * 2
          ids, targets, positions = ids:totable(), targets:totable(),
            positions and positions:totable()
          for b = 1, 2 do
            local docs = {}
            for t, id in ipairs(ids[b]) do
              if (positions and positions[b][t] or t - 1) == 0 then
                docs[#docs + 1] = {}
              end
              table.insert(docs[#docs], id .. '>' .. targets[b][t])
              counted[step] = (counted[step] or 0) + (targets[b][t] ~= -100 and 1 or 0)
            end
            for d, doc in ipairs(docs) do
              docs[d] = table.concat(doc, ' ')
            end
            by_sample[sample + b] = docs
          end
        end
      end
    end
    return by_sample, counted, announced
  end

  local function expected_documents()
    local out = {}
    for i = 1, set:len() do
      local ids, learned = set:get(i)
      local pairs_of = {}
      for k = 1, #ids - 1 do
        pairs_of[k] = ids[k] .. '>' .. (learned[k + 1] and ids[k + 1] or -100)
      end
      out[i] = table.concat(pairs_of, ' ')
    end
    table.sort(out)
    return out
  end

  it('has every example once an epoch as a document of its own, for any ranks', function()
    for _, packed in ipairs { true, false } do
      local rows, counted, announced = epoch_of(1, 4, { packed = packed, seed = 5 })
      assert.same(counted, announced)
      local found = {}
      for _, docs in ipairs(rows) do
        for _, doc in ipairs(docs) do
          doc = doc:gsub(' 0>%-100', '') -- padding; no text of the examples has the token 0
          found[#found + 1] = doc ~= '0>-100' and doc or nil
        end
      end
      table.sort(found)
      assert.same(expected_documents(), found)
      if packed then -- without packing a row is as wide as its micro-batch needs
        assert.same(rows, (epoch_of(2, 2, { seed = 5 })))
        assert.same(rows, (epoch_of(4, 1, { seed = 5 })))
      end
      local _, _, shared = epoch_of(2, 2, { packed = packed, seed = 5 })
      assert.same(announced, shared)
      assert.not_same(rows, (epoch_of(1, 4, { packed = packed, seed = 6 })))
    end
  end)

  it('pads rows of one example to a multiple of 64 and at most the context', function()
    local loader = ms.data.PackedLoader { examples = set, batch = 23, packed = false }
    local ids, targets, positions = loader:next()
    assert.same({ 23, set:report().longest - 1 <= 64 and 64 or 96 }, ids:shape())
    assert.same(ids:shape(), targets:shape())
    assert.is_nil(positions)
  end)

  it('continues where another loader was, and only over the same examples', function()
    local function loader(opts)
      local all = { examples = set, batch = 2, micro_batches = 2, seed = 1 }
      for name, value in pairs(opts or {}) do -- order does not matter: names differ
        all[name] = value
      end
      return ms.data.PackedLoader(all)
    end
    local first = loader()
    for _ = 1, 2 * first.micro_batches * first.steps_per_epoch + 2 do
      first:next()
    end
    local state = ms.json.decode(ms.json.encode(first:state()))
    local second = loader { batch = 4, micro_batches = 1 }
    second:load_state(state)
    local a, b = (first:next()):totable(), (first:next()):totable()
    assert.same({ a[1], a[2], b[1], b[2] }, (second:peek()):totable())
    assert.same(second:peek():totable(), (second:next()):totable())
    local part = set:split { validation = 0.01, seed = 1 }
    for text, opts in pairs { -- order does not matter
      ['loader with examples of digest ' .. set:digest() .. ', this one has examples of digest '
        .. part:digest()] = { examples = part },
      ['packed = true, this one has packed = false'] = { packed = false },
      ['a context of 96, this one has a context of 128'] = { context = 128 },
    } do
      local other = loader(opts)
      state.n_rows = other.n_rows
      checks.raises('ValueError', text, other.load_state, other, state)
    end
    checks.raises('ValueError', 'expected at most 9 for a context of 8', loader, { context = 8 })
    checks.raises('TypeError', "'examples' is a string, expected data.Examples", loader,
      { examples = path })
  end)
end)
