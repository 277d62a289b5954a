-- lua/moonshard/json.lua and bindings/json.c
local checks = require 'support.checks'
local json = require 'moonshard.json'

describe('json', function()
  it('writes one line with sorted keys', function()
    assert.equal('{"a":[1,2.5,true],"b":"x\\n\\"","c":{},"d":null}',
      json.encode { d = json.null, c = {}, b = 'x\n"', a = { 1, 2.5, true } })
    assert.equal('[]', json.encode(setmetatable({}, json.array)))
    assert.equal('0.10000000000000001', json.encode(0.1))
    assert.equal('9007199254740991', json.encode(2 ^ 53 - 1))
  end)

  it('reads what it wrote', function()
    local value = { name = 'h.0', list = { 1, { 2, 3 } }, flag = false, pi = math.pi }
    assert.same(value, json.decode(json.encode(value)))
    assert.equal(json.null, json.decode('null'))
    assert.equal('[]', json.encode(json.decode('[]')))
    assert.equal('\195\164', json.decode('"\\u00e4"'))
  end)

  it('refuses what has no JSON form', function()
    checks.raises('ValueError', 'no number for', json.encode, { 0 / 0 })
    checks.raises('TypeError', 'a function has no JSON form', json.encode, { print })
    checks.raises('TypeError', 'number keys', json.encode, { [7] = 1 })
    local deep = {}
    for _ = 1, 70 do
      deep = { deep }
    end
    checks.raises('ValueError', 'nested', json.encode, deep)
  end)

  it('refuses malformed text, naming the place', function()
    checks.raises('FormatError', 'line 1', json.decode, '{"a":1,}')
    checks.raises('FormatError', 'duplicate', json.decode, '{"a":1,"a":2}')
    checks.raises('FormatError', 'line 2', json.decode, '{"a":1}\nx')
    checks.raises('FormatError', 'line 1', json.decode, '')
  end)
end)
