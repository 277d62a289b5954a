--- Errors, warnings and the checking of option tables.
---
--- What the library raises is a table `{ kind, message }` that prints as "kind: message"; the kinds
--- are those of Python where they mean the same. Warnings pass one queue, so tests can catch them.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local util = require 'moonshard.base.util'

local errors = {}

--- Raise an error: `errors.raise('ValueError', 'expected %d, got %d', 2, 3)`.
---@type fun(kind: string, format: string, ...): any
errors.raise = B.errors.raise

--- Raise what the runtime's last error says unless `status` is 0.
---@type fun(status: integer)
errors.check = B.check

--- Is this value an error of the library?
---@type fun(value: any): boolean
errors.is = B.errors.is

--- The status code of an error's kind; RuntimeError for anything else that was raised.
---@type fun(value: any): integer
errors.status = B.errors.status

--- One line about anything that was raised, with its position.
---@type fun(value: any): string
errors.describe = B.errors.describe

local capturing = false
local said = {} -- what was printed: it is not printed again
local dist_info = B.new('ms_dist_info')

--- Issue a warning: printed to stderr, once and by rank 0, or kept by capture_warnings.
---@param kind 'UserWarning'|'FutureWarning'
---@param message string  one line
---@param group? ffi.cdata*  whose ranks all come to this: its rank 0 says it
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

--- Run a function and give back the warnings it issued instead of printing them.
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
  for _, warning in ipairs(earlier) do -- those of a capture around this one
    B.C.ms_warn(warning.kind, warning.message)
  end
  if not ok then
    error(err, 0)
  end
  return list
end

--- Number of single-character edits between two words.
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

--- The word of a list that is nearest to a mistyped one, or nil when none is near. Of equally near
--- ones that which begins as it does.
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

--- One of a few words: ValueError names them all.
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

-- In order of names, as above.
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

--- Check an options table: an unknown key raises and gives the nearest known one; a wrong value
--- raises where `known` gives a check.
---@param what string      names the function in the error
---@param given table?     nil means no options
---@param known string[]|table<string, string|string[]>  names; or by name a check of
---                        moonshard_ffi.arguments ('flag', 'number', ...) or 'device', or the
---                        words allowed
---@return table given     an empty table when nil was given
function errors.options(what, given, known)
  if given == nil then
    return {}
  elseif arguments.noun(given) ~= 'a table' then
    errors.raise('TypeError', '%s: options are %s, expected a table', what, arguments.noun(given))
  end
  local is_list = arguments.list(what, 'known', known)[1] ~= nil
  local unknown -- the first in order of names: all ranks say the same
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
