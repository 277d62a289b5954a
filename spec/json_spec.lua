-- lua/moonshard/base/json.lua and bindings/json.c
local checks = require 'support.checks'
local json = require 'moonshard.base.json'
local ms = require 'moonshard'

describe('json', function()
  it('is ms.json for scripts', function()
    assert.equal('{"epoch":3}', ms.json.encode { epoch = 3 })
    assert.equal(ms.json.null, ms.json.decode('[null]')[1])
  end)

  it('writes one line with sorted keys', function()
    assert.equal('{"a":[1,2.5,true],"b":"x\\n\\"","c":{},"d":null}',
      json.encode { d = json.null, c = {}, b = 'x\n"', a = { 1, 2.5, true } })
    assert.equal('[]', json.encode(setmetatable({}, json.array)))
    assert.equal('0.10000000000000001', json.encode(0.1))
    assert.equal('9007199254740992', json.encode(2 ^ 53))
  end)

  it('reads what it wrote', function()
    local value = { name = 'h.0', list = { 1, { 2, 3 } }, flag = false, pi = math.pi }
    assert.same(value, json.decode(json.encode(value)))
    assert.equal(json.null, json.decode('null'))
    assert.equal('[]', json.encode(json.decode('[]')))
    assert.equal('\195\164', json.decode('"\\u00e4"'))
    assert.equal('a\0b', json.decode(json.encode('a\0b')))
  end)

  it('refuses what has no JSON form', function()
    checks.raises('ValueError', 'no number for', json.encode, { 0 / 0 })
    checks.raises('TypeError', 'a function has no JSON form', json.encode, { print })
    checks.raises('TypeError', "a tensor (or another cdata) has no JSON form (at ['mean'])",
      json.encode, { mean = ms.ones(1) })
    checks.raises('TypeError', "a function has no JSON form (at ['config']['sizes'][2])",
      json.encode, { config = { sizes = { 1, print } } })
    local deep = {}
    for _ = 1, 70 do
      deep = { deep }
    end
    checks.raises('ValueError', 'nested', json.encode, deep)
  end)

  it('refuses a table whose keys are neither 1 to n nor strings, naming the key', function()
    for text, value in pairs {
      ["'name'"] = { 1, 2, name = 'x' },
      ['5'] = { 10, 20, [5] = 1 },
      ['3'] = { [1] = 1, [3] = 3 },
      ['7'] = { [7] = 1 },
      ['1.5'] = { 1, [1.5] = 1 },
      ['0'] = { 1, [0] = 1 },
      ['-2'] = { a = 1, [-2] = 1 },
      ['true'] = { a = 1, [true] = 1 },
      ['(a table)'] = { [{}] = 1 },
      ["'marked'"] = setmetatable({ marked = 1 }, json.array),
      ['2'] = setmetatable({ [2] = 1 }, json.array),
    } do
      text = 'a table with key ' .. text .. ' has no JSON form, expected the keys 1 to n or only '
      checks.raises('TypeError', text, json.encode, value)
      checks.raises('TypeError', text, json.encode, { deep = { { value } } })
    end
    assert.equal('{"1":1,"x":2}', json.encode { ['1'] = 1, x = 2 })
    local holed = { 1, 2, 3 }
    holed[3] = nil -- room for more than there is
    assert.equal('[1,2]', json.encode(holed))
  end)

  it('refuses keys that a NUL byte would cut', function()
    checks.raises('ValueError', "the key 'a\\0b' holds a NUL byte", json.encode,
      { a = 1, ['a\0b'] = 2 })
    checks.raises('ValueError', "the key '\\0' holds a NUL byte", json.encode, { ['\0'] = 1 })
    checks.raises('ValueError', "the key '" .. ('x'):rep(40), json.encode,
      { [('x'):rep(1000) .. '\0'] = 1 })
  end)

  it('refuses malformed text, naming the place', function()
    checks.raises('FormatError', 'line 1', json.decode, '{"a":1,}')
    checks.raises('FormatError', 'duplicate', json.decode, '{"a":1,"a":2}')
    checks.raises('FormatError', 'line 2', json.decode, '{"a":1}\nx')
    checks.raises('FormatError', 'line 1', json.decode, '')
    checks.raises('FormatError', 'a/b: malformed JSON at line 1', json.decode, '{', 'a/b')
  end)
end)
