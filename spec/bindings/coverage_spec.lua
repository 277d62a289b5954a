-- every public function is reached: by Lua, or by a C test
local library = require 'moonshard_ffi.library'
local unary = require 'moonshard.internal.unary'

--- Functions nothing reaches, and why that is right.
local exceptions = {
  ms_error_clear = 'C hosts that poll ms_error_message(); Lua raises and forgets',
  ms_fsdp_unit_layout = 'C hosts that place elements themselves; Lua asks ms_param_local()',
  ms_fsdp_unit_materialize = 'C hosts that fill shards early; ms_fsdp_tree_init() does it for Lua',
}

local function slurp(command)
  local pipe = io.popen(command)
  local text = pipe:read('*a')
  pipe:close()
  return text
end

describe('the public functions', function()
  it('are all used by Lua or tested in C', function()
    local text = slurp "find lua bindings spec tests -name '*.lua' -o -name '*.c' | xargs cat"
    local words = {}
    for word in text:gmatch('[%a_][%w_]*') do
      words[word] = true
    end
    for name in text:gmatch('calls%.([%w_]+)') do
      words['ms_' .. name], words['ms_op_' .. name] = true, true
    end
    for _, name in ipairs(unary.functions) do -- which ops.lua calls by their names
      words['ms_op_' .. name] = true
    end
    local missing = {}
    for name in library.cdef_text:gmatch('%f[%w_](ms_[%w_]+)%(') do
      if not words[name] and not exceptions[name] then
        missing[#missing + 1] = name
      end
    end
    assert.same({}, missing)
  end)
end)
