--- Errors are values with a kind, `{ kind, message, where, traceback }`, that print as "kind:
--- message". They can be concatenated and have the methods of strings, which operate on that text.
---
--- The kinds are the runtime's status codes. `failed` raises the error of a failed call into C;
--- `raise` raises errors that Lua detects.

local pcall, tostring = pcall, tostring -- also where a script has lost them

local errors = {}

--- An error of the library.
---@class ms.Error
---@field kind string       'ValueError', 'TypeError', 'RuntimeError', 'CommError', ...
---@field message string    one line, lower case
---@field where string      'file.lua:12' of the caller, or ''
---@field traceback string  the Lua stack where it was raised
---@field forward? string|false  the module whose forward raised it: 'h.1.attn (my.Attn)'
local Error = {}
Error.__index = Error

local function text_of(value)
  return getmetatable(value) == Error and value.kind .. ': ' .. value.message or value
end

for name, fn in next, string do
  Error[name] = function(self, ...)
    return fn(text_of(self), ...)
  end
end

function Error.__concat(a, b)
  return text_of(a) .. text_of(b)
end

-- Is this called by a C handler, such as luajit's for errors that a script does not catch?
local function is_uncaught()
  local handler, raiser = debug.getinfo(3, 'S'), debug.getinfo(4, 'f')
  return handler ~= nil and handler.what == 'C' and raiser ~= nil and raiser.func == error
end

--- Is it a file of the library? An error's position is the first one outside them.
---@param source string  as debug.getinfo() has it
---@return boolean?
function errors.is_own(source)
  return source:find('moonshard_ffi/', 1, true) or source:find('lua/moonshard/', 1, true)
    or source:find('lua/5.1/moonshard/', 1, true)
    or source:find('moonshard/calls.lua', 1, true)
end

local function lines_of(traceback)
  local lines = {}
  for line in traceback:gmatch('\n(\t[^\n]*)') do
    lines[#lines + 1] = line
  end
  return lines
end

--- The script's frames of a stack that the outer stack lacks.
local function inner_frames(traceback, around)
  local inner, outer = lines_of(traceback), lines_of(around)
  while inner[1] and inner[#inner] == outer[#outer] do
    inner[#inner], outer[#outer] = nil, nil
  end
  local kept = {}
  for _, line in ipairs(inner) do
    if not errors.is_own(line) and not line:find('^\t%[C%]') then
      kept[#kept + 1] = '\n' .. line
    end
  end
  return table.concat(kept)
end

function Error:__tostring()
  local text = text_of(self)
  if not self.forward or not is_uncaught() then
    return text
  end
  -- a forward's error is raised again by outer calls, so luajit's traceback lacks its frames
  local frames = inner_frames(self.traceback, debug.traceback('', 2))
  return frames == '' and text or text .. '\nin forward:' .. frames
end

--- Kind names, by negated status code.
errors.kinds = {
  'ValueError', 'TypeError', 'RuntimeError', 'AssertionError', 'NotImplementedError', 'IndexError',
  'KeyError', 'OutOfMemory', 'IOError', 'FormatError', 'CommError', 'DeviceError', 'InternalError',
  'HookError',
}

local status_of = {}
for i, kind in ipairs(errors.kinds) do
  status_of[kind] = -i
end

--- Position of the innermost call that the script made, as in "model.lua:12"; '' outside of one.
---@return string
function errors.caller()
  for level = 3, 40 do
    local info = debug.getinfo(level, 'Sl')
    if not info then
      return ''
    elseif info.currentline > 0 and not errors.is_own(info.source) then
      return ('%s:%d'):format(info.short_src, info.currentline)
    end
  end
  return ''
end

local function escaped(byte)
  return ('\\x%02x'):format(byte:byte())
end

--- Escape control characters except tabs and newlines, as the runtime does: the text may come from
--- an untrusted source.
local function printable(text)
  return (text:gsub('[%z\1-\8\11-\31\127]', escaped))
end

--- Make an error object without raising it.
---@param kind string
---@param message string
---@return ms.Error
function errors.new(kind, message)
  return setmetatable({
    kind = kind,
    message = printable(message),
    where = errors.caller(),
    traceback = debug.traceback('', 2):gsub('^\n', ''),
  }, Error)
end

--- A Lua value's description for messages: "a number", "nil".
---@return string
function errors.noun(value)
  return type(value) == 'nil' and 'nil' or 'a ' .. type(value)
end

local noun = errors.noun

--- Raise an error of one of the kinds.
---@param kind string
---@param format string  a format for string.format if more arguments follow, else the message
function errors.raise(kind, format, ...)
  if not status_of[kind] then
    kind, format = 'ValueError', ("error: the kind is %s, expected one of %s"):format(
      type(kind) == 'string' and "'" .. kind .. "'" or noun(kind),
      table.concat(errors.kinds, ', '))
  elseif type(format) ~= 'string' then
    kind, format = 'TypeError', ('error: the message is %s, expected a string'):format(
      noun(format))
  elseif select('#', ...) > 0 then
    local ok, text = pcall(string.format, format, ...)
    format = ok and text or format -- report the caller's error, not the format's
    format = format:gsub('%f[%w-]%-nan%f[%W]', 'nan') -- the sign of a NaN has no meaning
  end
  error(errors.new(kind, format), 0)
end

--- Is this value an error of the library, as returned by pcall?
---@param value ms.Error|any
---@return boolean
function errors.is(value)
  return getmetatable(value) == Error
end

--- The status code of an error's kind; that of RuntimeError for other values.
---@return integer
function errors.status(value)
  return errors.is(value) and status_of[value.kind] or status_of.RuntimeError
end

--- A text for any raised value, also if its __tostring raises.
local function say(value)
  local meta = getmetatable(value)
  if type(value) == 'string' or type(value) == 'cdata' or type(meta) == 'table'
    and meta.__tostring then
    local ok, text = pcall(tostring, value)
    local said = type(text) == 'string'
    return ok and said and text or ('a %s was raised, which cannot be told: %s'):format(type(value),
      said and text or 'its text is ' .. noun(text))
  elseif type(value) == 'table' and type(rawget(value, 'message')) == 'string' then
    return value.message
  end
  return type(value) == 'number' and tostring(value) or type(value) == 'nil' and 'nil was raised'
    or ('a %s was raised, not a message'):format(type(value))
end

--- The message of any raised value, without its kind.
---@return string
function errors.text(value)
  return errors.is(value) and value.message or say(value)
end

--- One line that describes any raised value, with its position if it has one.
---@return string
function errors.describe(value)
  local text = say(value)
  if errors.is(value) and value.where ~= '' then
    text = value.where .. ': ' .. text
  end
  return (text:match('^[^\n]*'))
end

local ROOM = 3600 -- bytes of a failure report to other ranks, without the surrounding text
local LINE = 1500 -- ... and of its first line

--- The beginning of a text: as many whole lines as fit, or part of the first.
local function cut(text, room)
  if #text <= room then
    return text
  end
  local kept = text:sub(1, room)
  local lines = kept:match('^(.*)\n')
  return lines and lines .. '\n\t...' or kept .. '...'
end

--- The report to other ranks about any raised value.
---@param traceback? string  default: the traceback of an error of the library
---@return string line, string text  the first line; the rest of the message and the stack
function errors.report(value, traceback)
  local line = printable(cut(errors.describe(value), LINE))
  local more = cut(errors.text(value), ROOM):match('^[^\n]*(\n.*)$') or ''
  traceback = traceback or errors.is(value) and value.traceback or ''
  traceback = traceback ~= '' and '\n' .. traceback or ''
  return line, cut(line .. printable(more .. traceback), ROOM)
end

return errors
