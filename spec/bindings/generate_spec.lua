-- bindings/generate.lua: the dialect of the public headers, and what is made from them
local lfs = require 'lfs'
local shell = require 'support.shell'

local function run(header, options)
  local folder = shell.make_folder()
  assert(lfs.mkdir(folder .. '/moonshard'))
  shell.write(folder .. '/in.i', header)
  shell.write(folder .. '/options.h', options or '')
  local pipe = io.popen(('luajit bindings/generate.lua %s/in.i %s %s/options.h 2>&1; '
    .. 'echo "code $?"'):format(folder, folder, folder))
  local output = pipe:read('*a')
  pipe:close()
  local made = {}
  for _, name in ipairs {
    'shims.c', 'abi_hash.c', 'moonshard/cdef.lua', 'moonshard/calls.lua',
  } do
    local file = io.open(folder .. '/' .. name)
    made[name] = file and file:read('*a')
    if file then
      file:close()
    end
  end
  shell.remove_folder(folder)
  return output, made
end

local TYPES = 'typedef int32_t ms_status; typedef struct ms_tensor ms_tensor;'
  .. 'typedef struct ms_comm ms_comm;'
  .. 'typedef struct ms_ref { ms_tensor *ptr; uint64_t generation; } ms_ref;'

local refused = {
  ['varargs'] = 'ms_status ms_f(int32_t n, ...);',
  ['long'] = 'ms_status ms_f(long n);',
  ['int without a width'] = 'int ms_f(void);',
  ['unsigned without a width'] = 'void ms_f(unsigned n);',
  ['struct ms_ref by value'] = 'ms_status ms_f(ms_ref r);',
  ['a function pointer'] = 'ms_status ms_f(void (*fn)(void));',
  ['a bitfield'] = 'typedef struct ms_x { uint32_t a : 3; } ms_x;',
  ['static'] = 'static int32_t ms_f(void);',
  ['a named enum'] = 'enum ms_color { MS_RED };',
  ['union'] = 'typedef struct ms_x { union { float a; int32_t b; } u; } ms_x;',
  ['type FILE'] = 'ms_status ms_f(FILE *f);',
  ['an unnamed parameter'] = 'ms_status ms_f(int32_t);',
}

describe('the generator', function()
  for why, line in pairs(refused) do
    it('refuses ' .. why .. ' and names the line', function()
      local output = run(TYPES .. line)
      assert.truthy(output:find('code 1', 1, true), output)
      assert.truthy(output:find(why, 1, true), output)
      local shown = line:match('{ (.-);') or line:match('^(.-);')
      assert.truthy(output:find(shown, 1, true), output)
    end)
  end

  it('refuses malformed declarations of options', function()
    for field, why in pairs {
      ['/** Text. @compare */ bool a;'] = 'ms_x_options.a: unknown tag @compare',
      ['/** Text. @values A = MS_A @default B */ int32_t a;'] = "@default is 'B', expected a name",
      ['/** Text. */ bool a; bool b;'] = '1 of 2 fields',
      ['bool a; /**< text */'] = '0 of 1 fields',
    } do
      local output = run(TYPES, ('typedef struct ms_x_options { uint32_t struct_size; %s } '
        .. 'ms_x_options;'):format(field))
      assert.truthy(output:find('code 1', 1, true), output)
      assert.truthy(output:find(why, 1, true), output)
    end
  end)

  it('makes a shim that takes refs for a function that takes handles', function()
    local output, made = run(TYPES
      .. 'ms_status ms_op_pair(ms_tensor **out, const ms_tensor *a, ms_tensor *b, double s);')
    assert.equal('code 0\n', output)
    assert.truthy(made['shims.c']:find(
      'msf_pair(ms_ref *out, const ms_ref *a, const ms_ref *b, double s)', 1, true))
    assert.truthy(made['moonshard/cdef.lua']:find('ms_status msf_pair(', 1, true))
    assert.truthy(made['moonshard/calls.lua']:find('function M.pair(a, b, s)', 1, true))
  end)

  it('reads from MS_NULLABLE what may be NULL, and checks all else', function()
    local output, made = run(TYPES
      .. 'ms_status ms_op_pair(ms_tensor **out, const ms_tensor *a, MS_NULLABLE ms_tensor *b);'
      .. 'ms_status ms_tensor_twin(MS_NULLABLE ms_tensor **out, ms_tensor *t);'
      .. 'ms_status ms_op_sum(ms_tensor **out, ms_tensor *x, ms_comm *group);')
    assert.equal('code 0\n', output)
    for text, file in pairs {
      ['follow(a, &a_'] = 'shims.c', ['follow_optional(b, &b_'] = 'shims.c',
      ["not istype(Ref, b) and b ~= nil then no_tensor('pair', 'b', b)"] = 'moonshard/calls.lua',
      ["not istype(Ref, a) then no_tensor('pair', 'a', a)"] = 'moonshard/calls.lua',
      ['if out.ptr == nil then return nil end'] = 'moonshard/calls.lua',
      ['group != NULL ? MS_OK : no_handle("sum", "group")'] = 'shims.c',
      ['/*MS_NULLABLE*/ ms_tensor *b'] = 'moonshard/cdef.lua',
    } do
      assert.truthy(made[file]:find(text, 1, true), text)
    end
  end)

  it('changes the hash with every change of a header', function()
    local _, a = run(TYPES .. 'ms_status ms_f(int32_t n);')
    local _, b = run(TYPES .. 'ms_status ms_f(int64_t n);')
    local hash = function(made) return made['abi_hash.c']:match('return "(%x+)"') end
    assert.equal(16, #hash(a))
    assert.not_equal(hash(a), hash(b))
  end)
end)
