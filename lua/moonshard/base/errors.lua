--- Errors, warnings and checks of option tables.
---
--- An error of the library is a table `{ kind, message }` that prints as "kind: message". Kinds
--- have Python's names where they mean the same. Warnings go through one queue, so tests can
--- capture them.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local util = require 'moonshard.base.util'

local errors = {}

--- Raise an error: `errors.raise('ValueError', 'expected %d, got %d', 2, 3)`.
---@type fun(kind: string, format: string, ...): any
errors.raise = B.errors.raise

--- Raise the runtime's last error unless `status` is 0.
---@type fun(status: integer)
errors.check = B.check

--- Is this value an error of the library?
---@type fun(value: any): boolean
errors.is = B.errors.is

--- The status code of an error's kind; that of RuntimeError for other values.
---@type fun(value: any): integer
errors.status = B.errors.status

--- One line that describes any raised value, with its source position.
---@type fun(value: any): string
errors.describe = B.errors.describe

local capturing = false
local said = {} -- messages already printed
local dist_info = B.new('ms_dist_info')

--- Issue a warning. Each message is printed to stderr once, by rank 0; capture_warnings keeps it
--- instead.
---@param kind 'UserWarning'|'FutureWarning'
---@param message string  one line
---@param group? ffi.cdata*  a group whose ranks all call this: its rank 0 prints
function errors.warn(kind, message, group)
  if kind ~= 'UserWarning' and kind ~= 'FutureWarning' then
    errors.choice('warn', 'kind', kind, { 'UserWarning', 'FutureWarning' })
  end
  arguments.text('warn', 'message', message)
  local rank = group ~= nil and B.C.ms_comm_rank(arguments.group('warn', 'group', group))
  if not capturing then
    B.C.ms_dist_info_get(dist_info)
    if said[message] or (rank or dist_info.rank) ~= 0 then
      return
    end
    said[message] = true
  end
  B.C.ms_warn(kind, message)
end

local kind_out = B.new('const char *[1]')
local message_out = B.new('const char *[1]')

local function take_warnings()
  local list = {}
  while B.C.ms_warning_take(kind_out, message_out) do
    list[#list + 1] = { kind = B.string(kind_out[0]), message = B.string(message_out[0]) }
  end
  return list
end

--- Run a function and return the warnings it issued instead of printing them.
---@param fn fun(...)
---@return { kind: string, message: string }[]
function errors.capture_warnings(fn, ...)
  arguments.fn('capture_warnings', 'fn', fn)
  local outer, earlier = capturing, take_warnings()
  capturing = true
  B.C.ms_warnings_capture(true)
  local ok, err = pcall(fn, ...)
  local list = take_warnings()
  capturing = outer
  B.C.ms_warnings_capture(outer)
  for _, warning in ipairs(earlier) do -- restore the warnings of an outer capture
    B.C.ms_warn(warning.kind, warning.message)
  end
  if not ok then
    error(err, 0)
  end
  return list
end

--- Edit distance of two words.
local function distance(a, b)
  local row = {}
  for j = 0, #b do
    row[j] = j
  end
  for i = 1, #a do
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local cost = a:byte(i) == b:byte(j) and 0 or 1
      diagonal, row[j] = row[j], math.min(row[j] + 1, row[j - 1] + 1, diagonal + cost)
    end
  end
  return row[#b]
end

--- The known word nearest to a mistyped one, or nil if none is close. Among equally close words,
--- one with the same first letter is preferred.
---@param word string
---@param known string[]
---@return string?
function errors.nearest(word, known)
  arguments.text('nearest', 'word', word)
  arguments.list('nearest', 'known', known)
  local best, best_distance
  local function begins(candidate)
    return candidate:lower():sub(1, #word) == word:lower()
  end
  for _, candidate in ipairs(known) do
    arguments.text('nearest', 'known', candidate)
    local d = distance(word:lower(), candidate:lower())
    if not best or d < best_distance
      or d == best_distance and begins(candidate) and not begins(best) then
      best, best_distance = candidate, d
    end
  end
  local far = math.min(#word, math.max(2, math.floor(#word / 2)) + 1)
  return best and best_distance < far and best or nil
end

local function knows(known, is_list, key)
  if not is_list then
    return known[key] ~= nil
  end
  for i = 1, #known do
    if known[i] == key then
      return true
    end
  end
  return false
end

local function unknown_option(what, key, names)
  if type(key) == 'number' then
    errors.raise('TypeError', '%s: options are a list with entry %s, expected a table of %s', what,
      tostring(key), table.concat(names, ', '))
  end
  local near = type(key) == 'string' and errors.nearest(key, names)
  errors.raise('ValueError', "%s: unknown option '%s'%s", what,
    type(key) == 'string' and key:sub(1, 80) or arguments.noun(key),
    near and (", did you mean '%s'?"):format(near)
      or ', expected one of ' .. table.concat(names, ', '))
end

--- Check that a value is one of a few words; the ValueError lists them.
---@param what string
---@param name string
---@param value any
---@param allowed string[]
---@return string
function errors.choice(what, name, value, allowed)
  for _, choice in ipairs(arguments.list(what, 'allowed', allowed)) do
    arguments.text(what, 'allowed', choice)
    if value == choice then
      return value
    end
  end
  local near = type(value) == 'string' and errors.nearest(value, allowed)
  errors.raise('ValueError', "%s: '%s' is %s, expected one of %s%s", what, name,
    type(value) == 'string' and "'" .. value:sub(1, 80) .. "'" or arguments.noun(value),
    table.concat(allowed, ', '), near and ("; did you mean '%s'?"):format(near) or '')
end

-- Check values in sorted order of their names, so that all ranks raise the same error.
local function check_values(what, given, known)
  for _, name in ipairs(util.sorted_keys(given)) do
    local check, value = known[name], given[name]
    if type(check) == 'table' then
      errors.choice(what, name, value, check)
    else
      arguments[check](what, name, value)
    end
  end
end

--- Check an options table. An unknown key raises an error that suggests the nearest known one; a
--- value that fails its check raises too.
---@param what string  the function's name in errors
---@param given table?  nil: no options
---@param known string[]|table<string, string|string[]>  names; or checks by name: a check of
---  moonshard_ffi.arguments ('flag', 'number', ...), 'device', or a list of allowed words
---@return table given  an empty table for nil
function errors.options(what, given, known)
  if given == nil then
    return {}
  elseif arguments.noun(given) ~= 'a table' then
    errors.raise('TypeError', '%s: options are %s, expected a table', what, arguments.noun(given))
  end
  local is_list = arguments.list(what, 'known', known)[1] ~= nil
  local unknown -- the first in sorted order, so that all ranks raise the same error
  for key in next, given do
    if not knows(known, is_list, key)
      and (unknown == nil or tostring(key) < tostring(unknown)) then
      unknown = key
    end
  end
  if unknown ~= nil then
    unknown_option(what, unknown, is_list and known or util.sorted_keys(known))
  end
  if not is_list and next(given) ~= nil then
    check_values(what, given, known)
  end
  return given
end

return errors
