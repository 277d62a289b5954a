--- C functions that scripts call instead of those that take handles.
---
--- A script holds refs {handle, generation}. A shim compares the generation before it uses the
--- handle, and fills a ref for each result:
---   ms_tensor **out                                -> ms_ref *out
---   ms_tensor *x                                   -> const ms_ref *x
---   ms_tensor *const *xs, int32_t n_xs             -> const ms_ref *xs, int32_t n_xs

local shims = {}

--- Ownership for C hosts. Refs have ms_ref_release() and never retain.
local NOT_FOR_SCRIPTS = { ms_tensor_free = true, ms_tensor_retain = true }

---@class ms.gen.Shim: ms.gen.Function
---@field original string  the function that the shim calls
---@field gives boolean  it has an `out` parameter

local function role_of(type)
  local bare = type:gsub('%s+', '')
  if bare == 'ms_tensor**' then
    return 'out'
  elseif bare == 'ms_tensor*' or bare == 'constms_tensor*' then
    return 'in'
  elseif bare == 'ms_tensor*const*' then
    return 'list'
  end
  if bare:find('ms_tensor*', 1, true) then
    error('no rule for a parameter of type ' .. type, 0)
  end
  return 'plain'
end

-- The struct behind a type such as 'const ms_comm *'.
local function handle_of(type)
  return type:gsub('^const ', ''):match('^([%w_]+) %*$')
end

local SHIM_TYPE = { out = 'ms_ref *', ['in'] = 'const ms_ref *', list = 'const ms_ref *' }

---@param api ms.gen.Api
---@return ms.gen.Shim[]
function shims.of(api)
  local out = {}
  for _, fn in ipairs(api.functions) do
    local shim = {
      name = 'msf_' .. fn.name:gsub('^ms_', ''):gsub('^op_', ''),
      original = fn.name,
      returns = fn.returns,
      params = {},
    }
    local touches = false
    for i, p in ipairs(fn.params) do
      local role = role_of(p.type)
      touches = touches or role ~= 'plain'
      shim.gives = shim.gives or role == 'out'
      if role == 'out' and i ~= 1 then
        error(fn.name .. ': a tensor that comes back must be the first parameter', 0)
      end
      shim.params[i] = {
        name = p.name,
        type = SHIM_TYPE[role] or p.type,
        role = role,
        nullable = p.nullable,
      }
    end
    if touches and not NOT_FOR_SCRIPTS[fn.name] then
      if fn.returns ~= 'ms_status' then
        error(fn.name .. ' takes tensors and returns no status', 0)
      end
      out[#out + 1] = shim
    end
  end
  return out
end

--- Functions of a handle and numbers, which Lua calls without a shim.
---@param api ms.gen.Api
---@return ms.gen.Shim[]
function shims.direct(api)
  local out = {}
  for _, fn in ipairs(api.functions) do
    local first = fn.params[1]
    local fits = fn.returns == 'ms_status' and first and api.opaque[handle_of(first.type)]
    for i, p in ipairs(fn.params) do
      fits = fits and role_of(p.type) == 'plain' and (i == 1 or not p.type:find('*', 1, true))
      p.role = 'plain'
    end
    if fits then
      out[#out + 1] = { name = fn.name, original = fn.name, params = fn.params }
    end
  end
  return out
end

local function spell(type, name)
  return type .. (type:find('%*$') and '' or ' ') .. name
end

local function prototype(shim)
  local params = {}
  for i, p in ipairs(shim.params) do
    params[i] = spell(p.type, p.name)
  end
  return ('%s%s(%s)'):format(spell(shim.returns, ''), shim.name, table.concat(params, ', '))
end

---@param list ms.gen.Shim[]
---@return string
function shims.declarations(list)
  local out = {}
  for i, shim in ipairs(list) do
    out[i] = prototype(shim) .. ';\n'
  end
  return table.concat(out)
end

local HEAD = [[
/* Generated from the public headers: what scripts call instead of functions that take handles.
 * A ref's generation is compared before its handle is followed. */
#include "base.h"
#include "moonshard.h"
#include "tensor.h"

#include <stdlib.h>
#include <string.h>

static ms_status refuse(const ms_ref *ref, const char *function, const char *param)
{
    if (ref == NULL || ref->ptr == NULL) {
        return MS_FAIL(MS_TYPE_ERROR, "%s: '%s' is %s, expected a tensor", function, param,
                       ref == NULL ? "nil" : "a released tensor");
    }
    const char *scope = ms_ref_released_by(ref);

    if (scope[0] == '\0') {
        return MS_FAIL(MS_RUNTIME_ERROR, "%s: '%s' was released", function, param);
    }
    if (strcmp(scope, "ms.close") == 0) {
        return MS_FAIL(MS_RUNTIME_ERROR, "%s: '%s' was released by ms.close()", function, param);
    }
    return MS_FAIL(MS_RUNTIME_ERROR,
                   "%s: '%s' was released at the end of %s; return it or ms.keep it", function,
                   param, scope);
}

static inline ms_status follow(const ms_ref *ref, ms_tensor **t, const char *function,
                               const char *param)
{
    if (MSI_UNLIKELY(ref == NULL || ref->ptr == NULL || ref->ptr->generation != ref->generation)) {
        return refuse(ref, function, param);
    }
    *t = ref->ptr;
    return MS_OK;
}

static inline ms_status no_handle(const char *function, const char *param)
{
    return MS_FAIL(MS_TYPE_ERROR, "%s: '%s' is NULL, expected a handle", function, param);
}

/* As follow(), for a parameter that may be NULL. */
static inline ms_status follow_optional(const ms_ref *ref, ms_tensor **t, const char *function,
                                        const char *param)
{
    *t = NULL;
    return ref != NULL ? follow(ref, t, function, param) : MS_OK;
}

static inline ms_status fill(ms_ref *out, ms_tensor *t, ms_status status)
{
    if (MSI_UNLIKELY(status != MS_OK || t == NULL)) {
        return status;
    }
    out->ptr = t;
    out->generation = t->generation;
    return MS_OK;
}

enum { ON_STACK = 64 };

/* Handles behind a list of refs: in `fixed` when they fit, else in memory the caller frees. */
static ms_status follow_all(const ms_ref *refs, int32_t n, ms_tensor **fixed, ms_tensor ***list,
                            const char *function, const char *param)
{
    *list = fixed;
    if (n > ON_STACK) {
        *list = malloc(sizeof(**list) * (size_t)n);
        if (*list == NULL) {
            return MS_FAIL(MS_OUT_OF_MEMORY, "%s: no memory for %d handles", function, (int)n);
        }
    }
    for (int32_t i = 0; i < n; i++) {
        MS_TRY(follow(&refs[i], &(*list)[i], function, param));
    }
    return MS_OK;
}
]]

local function body(shim, opaque)
  local out, args, cleanup = {}, {}, nil
  local say = function(...)
    out[#out + 1] = (...):format(select(2, ...))
  end
  local label = shim.name:gsub('^msf_', ''):gsub('^tensor_', '')
  for i, p in ipairs(shim.params) do
    if p.role == 'out' then
      say('    ms_tensor *%s_ = NULL;', p.name)
      args[i] = '&' .. p.name .. '_'
    elseif p.role == 'in' then
      say('    ms_tensor *%s_ = NULL;', p.name)
      args[i] = p.name .. '_'
    elseif p.role == 'list' then
      say('    ms_tensor *%s_fixed[ON_STACK], **%s_ = NULL;', p.name, p.name)
      args[i] = p.name .. '_'
      cleanup = p.name
    else
      args[i] = p.name
    end
  end
  say('')
  if shim.gives then
    say('    %s->ptr = NULL;', shim.params[1].name)
    say('    %s->generation = 0;', shim.params[1].name)
  end
  local call = ('%s(%s)'):format(shim.original, table.concat(args, ', '))
  for i, p in ipairs(shim.params) do
    if p.role == 'in' then
      say('    MS_TRY(%s(%s, &%s_, "%s", "%s"));', p.nullable and 'follow_optional' or 'follow',
        p.name, p.name, label, p.name)
    elseif p.role == 'list' then
      say('    ms_status status = follow_all(%s, %s, %s_fixed, &%s_, "%s", "%s");', p.name,
        shim.params[i + 1].name, p.name, p.name, label, p.name)
    elseif not p.nullable and opaque[handle_of(p.type)] then
      say('    MS_TRY(%s != NULL ? MS_OK : no_handle("%s", "%s"));', p.name, label, p.name)
    end
  end
  if cleanup then
    say('')
    say('    if (status == MS_OK) {')
    say('        status = %s;', call)
    say('    }')
    say('    if (%s_ != %s_fixed) {', cleanup, cleanup)
    say('        free(%s_);', cleanup)
    say('    }')
    call = 'status'
  elseif shim.gives then
    say('    ms_status status = %s;', call)
  end
  if shim.gives then
    local name = shim.params[1].name
    say('    return fill(%s, %s_, status);', name, name)
  else
    say('    return %s;', call)
  end
  return table.concat(out, '\n')
end

---@param list ms.gen.Shim[]
---@param opaque table<string, boolean>
---@return string
function shims.source(list, opaque)
  local out = { HEAD }
  for _, shim in ipairs(list) do
    local proto = prototype(shim)
    out[#out + 1] = ('\nMS_API %s;\n%s\n{\n%s\n}\n'):format(proto, proto, body(shim, opaque))
  end
  return table.concat(out)
end

return shims
