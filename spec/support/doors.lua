--- luajit doors.lua PROGRESS
---
--- Calls every public C function with what no caller may pass: NULL for each pointer, freed
--- handles, counts below 0, numbers that are no dtype, kind or dimension. The list comes from the
--- headers, and so do the fields of structs that are given. What may not happen is printed; the
--- call being made stands in the file PROGRESS.

local ffi = require 'ffi'

local ms = require 'moonshard'
local library = require 'moonshard_ffi.library'
local doors = require 'generator.doors'
local parse = require 'generator.parse'

local C = library.C
local progress = assert(io.open(arg[1], 'w'))
local folder = os.getenv 'MS_MISUSE_DIR' or '/tmp'
local api = parse(library.cdef_text)

local function told(...)
  print((...):format(select(2, ...)))
end

-- -- things to pass ------------------------------------------------------------------------------

local kept = {} -- Lua objects behind pointers that are passed

local function keep(object)
  kept[#kept + 1] = object
  return object
end

local function made(type, fn, ...)
  local out = ffi.new(type .. ' *[1]')
  if fn(out, ...) ~= 0 then
    error(type .. ': ' .. ffi.string(C.ms_error_message()))
  end
  return out[0]
end

local function tensor(dtype, ...)
  local shape = ffi.new('int64_t[8]', ...)
  return made('ms_tensor', C.ms_tensor_full, C['MS_DTYPE_' .. dtype], select('#', ...), shape, 1)
end

local function parameter()
  return made('ms_tensor', C.ms_tensor_parameter, C.MS_DTYPE_F32, 1, ffi.new('int64_t[1]', 2),
    C.MS_INIT_CONSTANT, 0, 0)
end

local function world()
  return made('ms_comm', C.ms_comm_world)
end

local function unit()
  local name = keep(ffi.new('const char *[1]', { 'w' }))
  return made('ms_fsdp_unit', C.ms_fsdp_unit_new, world(), 'u', nil,
    ffi.new('ms_tensor *[1]', { parameter() }), 1, name)
end

local function saved()
  local writer = made('ms_checkpoint_writer', C.ms_checkpoint_begin, world(), folder, 'doors')
  assert(C.ms_checkpoint_commit(writer, nil) == 0)
  return folder .. '/doors'
end

local function safetensors_file()
  local path = folder .. '/doors.safetensors'
  assert(C.ms_safetensors_save(path, ffi.new('ms_tensor *[1]', { tensor('F32', 2) }), 1,
    keep(ffi.new('const char *[1]', { 'a' }))) == 0)
  return path
end

local make = {
  ms_tensor = function() return tensor('F32', 2, 2) end,
  ms_comm = world,
  ms_optim = function() return made('ms_optim', C.ms_optim_new, C.MS_OPTIM_SGD) end,
  ms_layout = function()
    return made('ms_layout', C.ms_layout_flat, ffi.new('int64_t[1]', 4), 1, 1, 1)
  end,
  ms_fsdp_unit = unit,
  ms_fsdp_tree = function()
    return made('ms_fsdp_tree', C.ms_fsdp_tree_new, world(), nil,
      ffi.new('ms_fsdp_unit *[1]', { unit() }), 1, true)
  end,
  ms_checkpoint_writer = function()
    return made('ms_checkpoint_writer', C.ms_checkpoint_begin, world(), folder, 'unfinished')
  end,
  ms_checkpoint = function() return made('ms_checkpoint', C.ms_checkpoint_open, saved()) end,
  ms_checkpoint_loader = function()
    return made('ms_checkpoint_loader', C.ms_checkpoint_load_begin, world(), saved())
  end,
  ms_safetensors = function()
    return made('ms_safetensors', C.ms_safetensors_open, safetensors_file())
  end,
}

local free = {
  ms_tensor = C.ms_tensor_free, ms_optim = C.ms_optim_free, ms_layout = C.ms_layout_free,
  ms_fsdp_unit = C.ms_fsdp_unit_free, ms_fsdp_tree = C.ms_fsdp_tree_free,
  ms_checkpoint_writer = C.ms_checkpoint_discard, ms_checkpoint = C.ms_checkpoint_close,
  ms_checkpoint_loader = C.ms_checkpoint_load_discard, ms_safetensors = C.ms_safetensors_close,
}

-- A pointer to what was there: freed, or never made where nothing can be freed by hand.
local function stale(struct)
  if not free[struct] then
    return ffi.cast(struct .. ' *', keep(ffi.new 'char[4096]'))
  end
  local object = make[struct]()
  free[struct](object)
  return object
end

local function text_list(text)
  return keep(ffi.new('const char *[1]', { text }))
end

local SCALARS = { ndim = 1, n = 1, ranks = 1, world_size = 1, align = 1, context = 1, heads = 1 }

local function value_for(fn, i)
  local p = fn.params[i]
  local role, struct = doors.role(fn, i, api.opaque)
  if role == 'out' then
    return ffi.new(struct .. ' *[1]')
  elseif role == 'handle' then
    return (make[struct] or function() return stale(struct) end)()
  elseif role == 'handles' then
    return ffi.new(struct .. ' *[1]', { make[struct]() })
  elseif role == 'texts' then
    return text_list 'a'
  elseif p.type:find 'char' and not p.type:find '%*%s*%*' and not p.type:find '%*const%s*%*' then
    return keep(ffi.new('char[8]', 'a'))
  elseif role == 'pointer' then
    local buffer = keep(ffi.new('char[4096]'))
    if p.name == 'shape' or p.name == 'numels' then
      ffi.cast('int64_t *', buffer)[0] = 1
    end
    return ffi.cast(p.type, buffer)
  elseif p.type == 'bool' then
    return false
  end
  return SCALARS[p.name] or p.name:find '^n_' and 1 or 0
end

local function arguments_for(fn)
  local args = {}
  for i in ipairs(fn.params) do
    args[i] = value_for(fn, i)
  end
  return args
end

-- -- calls ---------------------------------------------------------------------------------------

local function call(fn, args, what)
  progress:seek('set', 0)
  progress:write(fn.name, ', ', what, '\n', (' '):rep(100), '\n')
  progress:flush()
  C.ms_error_clear()
  local result = C[fn.name](unpack(args, 1, #fn.params))
  return result, ffi.string(C.ms_error_message())
end

local n_calls = 0

-- The call has to fail with a message that says `expected`.
local function refused(fn, args, what, expected)
  n_calls = n_calls + 1
  local result, message = call(fn, args, what)
  if fn.returns == 'ms_status' and not (result < 0 and result >= C.MS_HOOK_ERROR) then
    told('%s, %s: gives %d', fn.name, what, result)
  elseif not message:find(expected, 1, true) then
    told("%s, %s: says '%s', expected '...%s...'", fn.name, what, message, expected)
  end
  local out, struct = 'scalar', nil
  if fn.params[1].type then
    out, struct = doors.role(fn, 1, api.opaque)
  end
  if out == 'out' and args[1] ~= nil and args[1][0] ~= nil then
    told('%s, %s: leaves a %s in %s', fn.name, what, struct, fn.params[1].name)
  end
end

local function with(fn, i, value)
  local args = arguments_for(fn)
  args[i] = value
  return args
end

-- Freed after the others were made: nothing may take its place.
local function with_stale(fn, i, struct, in_list)
  local args = arguments_for(fn)
  local object = stale(struct)
  args[i] = in_list and ffi.new(struct .. ' *[1]', { object }) or object
  return args
end

-- A launch cannot be made here: its functions refuse whatever else they are given.
local function takes_launch(fn)
  for i in ipairs(fn.params) do
    local role, struct = doors.role(fn, i, api.opaque)
    if role == 'handle' and not make[struct] then
      return true
    end
  end
end

local function misuse(fn)
  for i, p in ipairs(fn.params) do
    local role, struct, count = doors.role(fn, i, api.opaque)
    local name = p.name
    if role ~= 'scalar' and not doors.may_be_null(fn, i, api.opaque)
      and (role == 'handle' or not takes_launch(fn)) then
      refused(fn, with(fn, i, nil), name .. ' = NULL', ("'%s' is NULL"):format(name))
    end
    if role == 'handle' then
      refused(fn, with_stale(fn, i, struct), name .. ' freed', ("'%s' is "):format(name))
    elseif role == 'handles' then
      refused(fn, with(fn, i, ffi.new(struct .. ' *[1]')), name .. ' = {NULL}',
        ("'%s' is NULL"):format(name))
      refused(fn, with_stale(fn, i, struct, true), name .. ' = {freed}', ("'%s' is "):format(name))
    elseif role == 'texts' then
      refused(fn, with(fn, i, ffi.new 'const char *[1]'), name .. ' = {NULL}',
        ("'%s' is NULL"):format(name))
    end
    for j, other in ipairs(fn.params) do
      if other.name == count then
        refused(fn, with(fn, j, -1), count .. ' = -1',
          ("'%s' is -1, expected 0 or more"):format(count))
      end
    end
  end
end

local function free_twice(fn)
  local _, struct = doors.role(fn, 1, api.opaque)
  call(fn, { nil }, 'NULL')
  call(fn, { stale(struct) }, 'twice')
  n_calls = n_calls + 2
end

local listed = 0
for _, fn in ipairs(doors.of(api)) do
  if fn.name:find '^ms_' then -- the shims take refs
    listed = listed + 1
    if doors.frees(fn, api.opaque) then
      free_twice(fn)
    else
      misuse(fn)
    end
  end
end

-- -- numbers that are none -----------------------------------------------------------------------

-- Arguments that make the call succeed, where those above do not.
local RIGHT = {
  ms_op_embedding = function() return { nil, tensor('F32', 2, 2), tensor('I64', 2) } end,
  ms_op_cross_entropy = function()
    return { nil, tensor('F32', 2, 2), tensor('I64', 2), -100, 0 }
  end,
  ms_op_where = function()
    return { nil, tensor('BOOL', 2), tensor('F32', 2), tensor('F32', 2) }
  end,
  ms_op_attention_packed = function() return { nil, tensor('F32', 1, 2, 6), 1, false, 0 } end,
  ms_tensor_item = function() return { tensor('F32', 1), ffi.new 'double[1]' } end,
  ms_op_reshape = function() return { nil, tensor('F32', 2), 1, ffi.new('int64_t[8]', 2) } end,
  ms_op_permute = function() return { nil, tensor('F32', 2), 1, ffi.new 'int32_t[8]' } end,
  ms_data_n_windows = function() return { tensor('U8', 9), 2, ffi.new 'int64_t[1]' } end,
  ms_data_map = function() return { nil, folder .. '/tokens', C.MS_DTYPE_U8 } end,
}

-- Parameters that take one of a few numbers, and the functions that answer every number.
local FEW = { dtype = true, kind = true, relation = true, reduction = true, reduce = true,
  ndim = true, root = true, dim = true, index = true, init = true, operation = true }
local ANY_NUMBER = {
  ms_dtype_size = true, ms_dtype_name = true, ms_dtype_is_floating = true, ms_dtype_misfit = true,
  ms_dtype_is_narrow = true,
  ms_matmul_name = true, ms_matmul_scratch = true, ms_error_set = true, ms_dist_abort = true,
}

for _, fn in ipairs(api.functions) do
  for i, p in ipairs(fn.params) do
    if fn.name:find '^ms_' and FEW[p.name] and p.type == 'int32_t' and not ANY_NUMBER[fn.name] then
      for _, number in ipairs { -2, 99, 2 ^ 31 - 1, -2 ^ 31 } do
        local args = RIGHT[fn.name] and RIGHT[fn.name]() or arguments_for(fn)
        args[1] = args[1] or value_for(fn, 1)
        args[i] = number
        local what = ('%s = %d'):format(p.name, number)
        local result, message = call(fn, args, what)
        n_calls = n_calls + 1
        if fn.returns == 'ms_status' and result >= 0 or message == '' then
          told('%s, %s: gives %s', fn.name, what, tostring(result))
        end
      end
    end
  end
end

-- -- fields of structs ---------------------------------------------------------------------------

local function extent(numel)
  return ffi.new('ms_param_extent', { 0, numel, 1, { numel }, C.MS_DTYPE_F32 })
end

local function options(struct, ...)
  local o = ffi.new(struct)
  C[struct .. '_init'](o, ffi.sizeof(o), ...)
  return o
end

local function saved_tensor(begin)
  local writer = make.ms_checkpoint_writer()
  assert(C.ms_checkpoint_add(writer, 'a', extent(2), tensor('F32', 2)) == 0)
  assert(C.ms_checkpoint_commit(writer, nil) == 0)
  return begin(folder .. '/unfinished')
end

local RIGHT_STRUCT = {
  ms_fsdp_unit_options = function() return options 'ms_fsdp_unit_options' end,
  ms_fsdp_tree_options = function() return options 'ms_fsdp_tree_options' end,
  ms_optim_options = function() return options('ms_optim_options', C.MS_OPTIM_SGD) end,
  ms_fsdp_group = function()
    return ffi.new('ms_fsdp_group', { full_numel = 8, shard_numel = 4, trained_numel = 2,
      n_params = 1, orig_dtype = C.MS_DTYPE_F32, param_dtype = C.MS_DTYPE_F32,
      reduce_dtype = C.MS_DTYPE_F32 })
  end,
  ms_param_extent = function() return extent(2) end,
}

-- Calls that succeed, but for the struct they are given; all functions that take one.
local WITH_STRUCT = {
  ms_fsdp_unit_new = function(o)
    return { ffi.new 'ms_fsdp_unit *[1]', world(), 'u', o, ffi.new('ms_tensor *[1]', parameter()),
      1, text_list 'w' }
  end,
  ms_fsdp_group_describe = function(o)
    return { ffi.new 'ms_fsdp_group', world(), 'u', o, ffi.new('ms_tensor *[1]', parameter()), 1,
      text_list 'w' }
  end,
  ms_fsdp_dry_run = function(o)
    local is_group = ffi.istype('ms_fsdp_group', o)
    local group = is_group and o or RIGHT_STRUCT.ms_fsdp_group()
    return { ffi.new 'ms_fsdp_plan', world(), not is_group and o or nil, group, 1, 1 }
  end,
  ms_fsdp_tree_new = function(o)
    return { ffi.new 'ms_fsdp_tree *[1]', world(), o, ffi.new('ms_fsdp_unit *[1]', unit()), 1,
      true }
  end,
  ms_optim_add_group = function(o)
    return { make.ms_optim(), ffi.new('ms_tensor *[1]', parameter()), 1, o, nil }
  end,
  ms_optim_options_set = function(o)
    local optim = make.ms_optim()
    assert(C.ms_optim_add_group(optim, ffi.new('ms_tensor *[1]', parameter()), 1, nil, nil) == 0)
    return { optim, 0, o }
  end,
  ms_checkpoint_add = function(o)
    return { make.ms_checkpoint_writer(), 'a', o, tensor('F32', 2) }
  end,
  ms_checkpoint_read = function(o)
    local checkpoint = saved_tensor(function(path)
      return made('ms_checkpoint', C.ms_checkpoint_open, path)
    end)
    return { checkpoint, 'a', o, tensor('F32', 2) }
  end,
  ms_checkpoint_load_add = function(o)
    local loader = saved_tensor(function(path)
      return made('ms_checkpoint_loader', C.ms_checkpoint_load_begin, world(), path)
    end)
    return { loader, 'a', o, tensor('F32', 2) }
  end,
}

local WRONG = {
  int32_t = { -5, 99, 2 ^ 31 - 1, -2 ^ 31 },
  uint32_t = { 0, 2, 2 ^ 31 },
  int64_t = { -1, 2 ^ 62, -2 ^ 62 },
  double = { 0 / 0, math.huge, -math.huge },
}

-- Of a bound only what is below it is wrong.
local MAY_BE_LARGE = { n_slots = true, n_params = true }
-- What the message calls a field.
local CALLED = {
  strategy = 'sharding strategy', lr = 'learning rate', beta1 = 'beta parameter at index 0',
  beta2 = 'beta parameter at index 1', eps = 'epsilon', dtype = 'dtype', ndim = 'dimensions',
  shape = 'shape', start = 'elements', numel = 'elements',
}

local by_name = {}
for _, struct in ipairs(api.structs) do
  by_name[struct.name] = struct
end

for _, fn in ipairs(api.functions) do
  for _, p in ipairs(fn.params) do
    local struct = by_name[p.type:match('^const ([%w_]+) %*$')]
    if struct and struct.name ~= 'ms_ref' and fn.name:find '^ms_' then
      assert(WITH_STRUCT[fn.name], fn.name .. ' has no row in WITH_STRUCT')
      local right = call(fn, WITH_STRUCT[fn.name](RIGHT_STRUCT[struct.name]()), 'with a right one')
      assert(right == 0, fn.name .. ' does not take what it should')
      for _, field in ipairs(struct.fields) do
        for _, number in ipairs(WRONG[field.type] or {}) do
          if not (MAY_BE_LARGE[field.name] and number > 0) then
            local given = RIGHT_STRUCT[struct.name]()
            if field.array then
              given[field.name][0] = number
            else
              given[field.name] = number
            end
            refused(fn, WITH_STRUCT[fn.name](given),
              ('%s.%s = %g'):format(p.name, field.name, number), CALLED[field.name] or field.name)
          end
        end
      end
    end
  end
end

-- Everything is stale once its context is closed.
local optim, u, t, tree = make.ms_optim(), unit(), tensor('F32', 2), make.ms_fsdp_tree()
C.ms_close()
for name, object in pairs {
  ms_optim_step = optim, ms_optim_zero_grad = optim, ms_fsdp_unit_pre_forward = u,
  ms_fsdp_unit_unshard = u, ms_fsdp_tree_init = tree, ms_fsdp_tree_summon = tree,
  ms_tensor_materialize = t,
} do
  progress:seek('set', 0)
  progress:write(name, ' after ms_close\n', (' '):rep(100), '\n')
  progress:flush()
  if C[name](object) >= 0 then
    told('%s after ms_close: gives MS_OK', name)
  end
end
C.ms_optim_free(optim)
C.ms_fsdp_unit_free(u)
C.ms_fsdp_tree_free(tree)
C.ms_tensor_free(t)

print(('%d calls of %d functions'):format(n_calls, listed))
print 'done'
ms.dist.exit(0)
