-- the generated cdef: LuaJIT and the C compiler see the same structs and every function exists
local ffi = require 'ffi'
local B = require 'moonshard_ffi'

local function rows()
  local type, field = ffi.new('const char *[1]'), ffi.new('const char *[1]')
  local offset, nbytes = ffi.new('int64_t[1]'), ffi.new('int64_t[1]')
  local list, i = {}, 0
  while B.C.msf_abi_row(i, type, field, offset, nbytes) == 1 do
    list[#list + 1] = {
      type = ffi.string(type[0]),
      field = ffi.string(field[0]),
      offset = tonumber(offset[0]),
      nbytes = tonumber(nbytes[0]),
    }
    i = i + 1
  end
  return list
end

describe('the ABI', function()
  it('sees every public struct and field where the C compiler put them', function()
    local structs, fields = 0, 0
    for _, row in ipairs(rows()) do
      if row.field == '' then
        structs = structs + 1
        assert.equal(row.nbytes, ffi.sizeof(row.type), row.type)
      else
        fields = fields + 1
        assert.equal(row.offset, ffi.offsetof(row.type, row.field), row.type .. '.' .. row.field)
      end
    end
    assert.is_true(structs >= 8 and fields >= 60)
  end)

  it('finds every declared function in the library', function()
    local n = 0
    for name in require('moonshard_ffi.library').cdef_text:gmatch('([%w_]+)%(') do
      assert.has_no_error(function() return B.C[name] end)
      n = n + 1
    end
    assert.is_true(n > 150)
  end)

  it('has one hash for the declarations, the library and the Lua module', function()
    assert.equal(16, #B.core.abi_hash)
    assert.equal(B.core.abi_hash, ffi.string(B.C.ms_abi_hash()))
  end)
end)
