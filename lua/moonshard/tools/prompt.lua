--- The prompt of `moonshard repl`: an expression prints its values, a statement runs, and one that
--- is not complete goes on in the next line.

local errors = require 'moonshard.base.errors'
local interrupt = require 'moonshard_ffi.interrupt'
local util = require 'moonshard.base.util'

local DEPTH = 4     -- of tables that are shown in tables
local ENTRIES = 100 -- of a table

local shown

-- A key of a table as it is written in a constructor.
local function key_text(key)
  return type(key) == 'string' and key:find '^[%a_][%w_]*$' and key
    or ('[%s]'):format(shown(key, DEPTH))
end

function shown(value, depth)
  local meta = getmetatable(value)
  if type(value) == 'string' and depth > 0 then
    return ('%q'):format(value)
  elseif type(value) ~= 'table' or type(meta) == 'table' and rawget(meta, '__tostring') then
    return tostring(value)
  elseif depth >= DEPTH then
    return next(value) and '{...}' or '{}'
  end
  local parts = {}
  for i, entry in ipairs(value) do
    parts[i] = shown(entry, depth + 1)
  end
  local n = #parts
  for _, key in ipairs(util.ordered_keys(value)) do
    if not (type(key) == 'number' and key >= 1 and key <= n and key % 1 == 0) then
      parts[#parts + 1] = key_text(key) .. ' = ' .. shown(value[key], depth + 1)
    end
  end
  if #parts > ENTRIES then
    parts = util.slice(parts, 1, ENTRIES)
    parts[#parts + 1] = '...'
  end
  return '{' .. table.concat(parts, ', ') .. '}'
end

local function print_values(...)
  local texts = {}
  for i = 1, select('#', ...) do
    texts[i] = shown(select(i, ...), 0)
  end
  if texts[1] then
    print(table.concat(texts, '\t'))
  end
end

-- A function that runs what was typed; nil and a message, which ends in '<eof>' where more is
-- missing. The values of an expression are arguments and no tail call, so that a frame of stdin
-- shows that they were typed.
local function compiled(text)
  local expression, incomplete = loadstring('return ' .. text, '=stdin')
  if expression then
    return loadstring(('(...)(%s\n)'):format(text), '=stdin')
  end
  local chunk, why = loadstring(text, '=stdin')
  if not chunk and incomplete:find "'<eof>'$" then
    why = incomplete
  end
  return chunk, why
end

-- A complete expression or statement from standard input, or nil at its end.
local function read_chunk()
  local text, prompt = '', '> '
  repeat
    io.write(prompt)
    io.flush()
    local line = io.read()
    if not line then
      return nil
    end
    text = text == '' and line:gsub('^%s*=', '') or text .. '\n' .. line
    local chunk, why = compiled(text)
    prompt = '>> '
  until chunk or not why:find "'<eof>'$"
  return compiled(text)
end

-- As luajit's prompt: the text of an error object, and strings with the stack.
local function described(err)
  if type(err) ~= 'string' then
    return errors.is(err) and tostring(err) or errors.describe(err)
  end
  return (debug.traceback(err, 2):gsub("\n\t%[C%]: in function 'xpcall'.*", ''))
end

--- Read, run and print until the end of standard input. To be run by `luajit -e`, where a SIGINT is
--- an error in the code that runs.
return function()
  local ms = require 'moonshard'
  require('moonshard.dist.launch')._is_prompt = true
  _G.ms, _G.nn, _G.optim, _G.fsdp = ms, ms.nn, ms.optim, ms.fsdp
  debug.setmetatable(print, { -- functions are shown as they are called
    __tostring = function(fn)
      local reference = require 'moonshard.reference'
      reference.use(ms, 'moonshard.ms')
      return reference.shown(fn)
    end,
  })
  print(('moonshard %s, a prompt of one rank: ms, nn, optim and fsdp are loaded; ms.help() lists '
    .. 'what there is'):format(ms.version))
  local run = interrupt.catcher(described)
  while true do
    local chunk, why = read_chunk()
    if not chunk and not why then
      io.write('\n')
      return
    end
    local ok, text = false, why
    if chunk then
      ok, text = run(chunk, print_values)
    end
    if not ok then
      io.stderr:write(tostring(text), '\n')
    end
  end
end
