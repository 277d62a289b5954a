--- The doors of the library: the public functions as hosts call them. A door looks at pointers,
--- handles and counts, refuses what no caller may pass, and goes on to the body; inside the
--- library, and from the shims, calls go straight to bodies.
---
--- `doors.h` gives the definitions in runtime/ their other name: the body of ms_x is msi_body_x.

local doors = {}

local function bare(type)
  return (type:gsub('%f[%w_]const%f[^%w_]', ''):gsub('%s+', ''))
end

-- The parameter that counts the entries of parameter i: n_<name>, or the `ndim` in front of it,
-- else, for what its name says is a list, the first count there is.
local function count_of(fn, i)
  local p = fn.params[i]
  for j, other in ipairs(fn.params) do
    if other.name == 'n_' .. p.name or other.name == 'ndim' and j == i - 1 then
      return other.name
    end
  end
  local is_list = p.name == 'names' or p.name == 'values' or p.name == 'numels' or p.name == 'data'
  for _, other in ipairs(is_list and fn.params or {}) do
    if other.name:find('^n_') or other.name == 'n' then
      return other.name
    end
  end
end

--- What a parameter is: 'out' (an object that comes back), 'handle', 'handles' (a list), 'texts',
--- 'pointer' or 'scalar'; the struct behind a handle; the parameter that counts a list.
---@return string role, string? struct, string? count
function doors.role(fn, i, opaque)
  local type = bare(fn.params[i].type)
  local struct, stars = type:match('^([%w_]+)(%**)$')
  if opaque[struct] and stars == '**' then
    if not fn.params[i].type:find('const%s*%*$') then
      return 'out', struct
    end
    return 'handles', struct, count_of(fn, i)
  elseif opaque[struct] and stars == '*' then
    return 'handle', struct
  elseif type == 'char**' and count_of(fn, i) then
    return 'texts', nil, count_of(fn, i)
  elseif stars ~= '' then
    return 'pointer', nil, count_of(fn, i)
  end
  return 'scalar'
end

--- May parameter i be NULL? A `**out` never, only what comes back in it.
---@return boolean
function doors.may_be_null(fn, i, opaque)
  return fn.params[i].nullable and doors.role(fn, i, opaque) ~= 'out'
end

--- Does the function end an object? Then it does nothing when given nothing, or what was freed
--- before.
---@param fn ms.gen.Function
---@param opaque table<string, boolean>
---@return boolean
function doors.frees(fn, opaque)
  return fn.returns == 'void' and #fn.params == 1 and doors.role(fn, 1, opaque) == 'handle'
    and (fn.name:find('_free$') or fn.name:find('_close$') or fn.name:find('_discard$')) ~= nil
end

--- Functions that have a door: those that need a pointer.
---@param api ms.gen.Api
---@return ms.gen.Function[]
function doors.of(api)
  local out = {}
  for _, fn in ipairs(api.functions) do
    for i in ipairs(fn.params) do
      if doors.role(fn, i, api.opaque) ~= 'scalar' and not doors.may_be_null(fn, i, api.opaque) then
        out[#out + 1] = fn
        break
      end
    end
  end
  return out
end

local function body_name(fn)
  return 'msi_body_' .. fn.name:gsub('^ms_', '')
end
doors.body_name = body_name

local function spell(type, name)
  return type .. (type:find('%*$') and '' or ' ') .. name
end

local function prototype(fn, name)
  local params = {}
  for i, p in ipairs(fn.params) do
    params[i] = spell(p.type, p.name)
  end
  return ('%s%s(%s)'):format(spell(fn.returns, ''), name, table.concat(params, ', '))
end
doors.prototype = prototype

local HEAD = [[
/* Generated from the public headers: see bindings/generator/doors.lua. */
#include "base.h"
#include "live.h"
#include "moonshard.h"
#include "tensor.h"

static ms_status no_pointer(const char *function, const char *param)
{
    return MS_FAIL(MS_VALUE_ERROR, "%s: '%s' is NULL, expected a pointer", function, param);
}

static ms_status bad_count(const char *function, const char *param, int64_t n)
{
    return MS_FAIL(MS_VALUE_ERROR, "%s: '%s' is %lld, expected 0 or more", function, param,
                   (long long)n);
}

static ms_status check_tensor(const ms_tensor *t, const char *function, const char *param)
{
    if (MSI_LIKELY(t != NULL && t->refcount > 0)) {
        return MS_OK;
    }
    return MS_FAIL(MS_VALUE_ERROR, "%s: '%s' is %s, expected a tensor", function, param,
                   t == NULL ? "NULL" : "a freed tensor");
}

static ms_status check_object(int32_t kind, const void *object, const char *function,
                              const char *param, const char *type)
{
    bool closed = false;

    if (object == NULL || !msi_live_is(kind, object, &closed)) {
        return MS_FAIL(MS_VALUE_ERROR, "%s: '%s' is %s, expected a live %s", function, param,
                       object == NULL ? "NULL" : "freed", type);
    }
    return closed ? MS_FAIL(MS_RUNTIME_ERROR, "%s: '%s' was closed with its context", function,
                            param)
                  : MS_OK;
}
]]

-- What a door gives back when it refuses and the function has no status.
local FALLBACK = {
  void = '', ['const char *'] = ' ""', bool = ' false', double = ' 0',
}

local function check(fn, p, role, struct, count)
  local label = ('"%s", "%s"'):format(fn.name, p.name)
  if role == 'out' then
    return ('%s == NULL ? no_pointer(%s) : MS_OK'):format(p.name, label)
  elseif struct == 'ms_tensor' then
    return ('check_tensor(%s, %s)'):format('%s', label)
  elseif struct then
    return ('check_object(MSI_LIVE_%s, %s, %s, "%s")'):format(struct:gsub('^ms_', ''):upper(), '%s',
      label, struct)
  end
  return ('%s == NULL%s ? no_pointer(%s) : MS_OK'):format('%s',
    count and (' && %s > 0'):format(count) or '', label)
end

local function source_of(fn, opaque)
  local out, args = {}, {}
  local say = function(...)
    out[#out + 1] = (...):format(select(2, ...))
  end
  local give_up = fn.returns == 'ms_status' and ' status' or FALLBACK[fn.returns]
    or fn.returns:find('%*$') and ' NULL' or ' 0'
  local function refuse_unless(text)
    say('    status = %s;', text)
    say('    if (MSI_UNLIKELY(status != MS_OK)) {')
    say('        return%s;', give_up)
    say('    }')
  end
  say('%s', prototype(fn, body_name(fn)) .. ';')
  say('%s', prototype(fn, fn.name))
  say('{')
  say('    ms_status status;')
  say('')
  local counted = {}
  for i, p in ipairs(fn.params) do
    args[i] = p.name
    local role, struct, count = doors.role(fn, i, opaque)
    local text = role ~= 'scalar' and check(fn, p, role, struct, count)
    if count and not counted[count] then
      counted[count] = true
      refuse_unless(('%s < 0 ? bad_count("%s", "%s", %s) : MS_OK'):format(count, fn.name, count,
        count))
    end
    if role == 'out' then
      refuse_unless(text)
      say('    *%s = NULL;', p.name)
    elseif role == 'handles' or role == 'texts' then
      refuse_unless(('%s == NULL && %s > 0 ? no_pointer("%s", "%s") : MS_OK'):format(p.name, count,
        fn.name, p.name))
      say('    for (int32_t i = 0; i < %s; i++) {', count)
      refuse_unless(text:format(p.name .. '[i]'))
      say('    }')
    elseif p.nullable and struct then
      say('    if (%s != NULL) {', p.name)
      refuse_unless(text:format(p.name))
      say('    }')
    elseif role ~= 'scalar' and not p.nullable then
      refuse_unless(text:format(p.name))
    end
  end
  say('    %s%s(%s);', fn.returns == 'void' and '' or 'return ', body_name(fn),
    table.concat(args, ', '))
  say('}')
  return table.concat(out, '\n')
end

-- Freeing twice, or nothing, does nothing; what was closed with its context may still be freed.
local function free_source_of(fn)
  local p = fn.params[1]
  local struct = bare(p.type):match('^([%w_]+)')
  local alive = struct == 'ms_tensor' and ('%s->refcount > 0'):format(p.name)
    or ('msi_live_is(MSI_LIVE_%s, %s, NULL)'):format(struct:gsub('^ms_', ''):upper(), p.name)
  return ([[
%s;
%s
{
    if (%s != NULL && %s) {
        %s(%s);
    }
}]]):format(prototype(fn, body_name(fn)), prototype(fn, fn.name), p.name, alive, body_name(fn),
    p.name)
end

---@param list ms.gen.Function[]
---@param opaque table<string, boolean>
---@return string
function doors.source(list, opaque)
  local out = { HEAD }
  for _, fn in ipairs(list) do
    local source = doors.frees(fn, opaque) and free_source_of or source_of
    out[#out + 1] = '\n' .. source(fn, opaque) .. '\n'
  end
  return table.concat(out)
end

--- For every file of runtime/.
---@param list ms.gen.Function[]
---@return string
function doors.header(list)
  local out = { '/* Generated: inside the library a public name is its body. */\n' }
  for _, fn in ipairs(list) do
    out[#out + 1] = ('#define %s %s\n'):format(fn.name, body_name(fn))
  end
  return table.concat(out)
end

return doors
