--- `moonshard repl`: luajit's prompt with `ms` in it. What an expression gives is printed, a chunk
--- may take several lines, an error is one line without a traceback, and a Ctrl-C ends what runs or
--- what is being typed.

local errors = require 'moonshard_ffi.errors'
local interrupt = require 'moonshard_ffi.interrupt'
local naming = require 'moonshard.internal.naming'
local util = require 'moonshard.util'

local tostring, stdin, stdout = tostring, io.stdin, io.stdout -- globals are the script's own

local repl = {}

-- As luajit calls what is typed.
local CHUNK = '=stdin'

---@return function? chunk, string? mistake
local function compile(text)
  -- as arguments and not as `return ...`, which could be a tail call: dist.init looks for CHUNK
  local expression, mistake = loadstring('return (function(...) return ... end)('
    .. text:gsub('^%s*=', '') .. '\n)', CHUNK)
  if expression or text:byte() == 27 then -- ESC, of a key that moves: bytecode begins so
    return expression, mistake
  end
  return loadstring(text, CHUNK)
end

local function ask(prompt)
  stdout:write(prompt)
  stdout:flush()
  return stdin:read('*l')
end

local function put(line)
  stdout:write(line, '\n')
end

local HELP = [[
What is typed is Lua; what an expression gives is printed: ms.randn(2, 3):sum()
ms is the library, and ms, ms.nn, ms.optim, ... alone say what is in them.
Globals stay, locals last as long as their chunk, which may take several lines.
Ctrl-C ends what runs or is being typed; exit, quit or Ctrl-D leaves.]]

-- Words that mean nothing in Lua; a global of that name comes first.
local COMMANDS = {
  help = function() put(HELP) end,
  exit = function() os.exit(0) end,
}
COMMANDS.quit = COMMANDS.exit

local function command(text)
  local word = text:match('^%s*(%a+)%s*;?%s*$') or text:match('^%s*(%a+)%s*%(%s*%)%s*;?%s*$')
  return word and rawget(_G, word) == nil and COMMANDS[word] or nil
end

-- The next chunk; nil and why not, or nil at the end of the input.
local function read()
  local text = ask('> ')
  if text and command(text) then
    return command(text)
  end
  while text do
    local chunk, mistake = compile(text)
    if chunk or not mistake:find("near '<eof>'", 1, true) then
      return chunk, mistake
    end
    local more = ask('>> ')
    text = more and text .. '\n' .. more
  end
  return nil, nil
end

local function say(err)
  if interrupt.is(err) then
    put('\ninterrupted') -- the terminal shows ^C
  else
    put((errors.is(err) and err.kind .. ': ' or '') .. errors.text(naming.suggest(err)))
  end
end

local DEEP, LONG = 3, 20

-- Tables that do not say what they are by themselves show what is in them.
local function text(value, depth)
  local meta = getmetatable(value)
  if type(value) ~= 'table' or depth > DEEP or type(meta) == 'table' and meta.__tostring then
    return tostring(value)
  end
  local parts = {}
  for i = 1, math.min(#value, LONG + 1) do
    parts[i] = text(value[i], depth + 1)
  end
  for _, key in ipairs(util.sorted_keys(value)) do
    parts[#parts + 1] = key .. ' = ' .. text(value[key], depth + 1)
  end
  if #parts > LONG then
    parts[LONG + 1] = '...'
  end
  return '{ ' .. table.concat(parts, ', ', 1, math.min(#parts, LONG + 1)) .. ' }'
end

local function show(...)
  local texts, n = {}, select('#', ...)
  for i = 1, n do
    texts[i] = text((select(i, ...)), 1)
  end
  if n > 0 then
    put(table.concat(texts, '\t'))
  end
end

local function answer(chunk, mistake)
  if not chunk then
    error(mistake, 0)
  end
  show(chunk())
end

-- What the prompt does by itself fails by an interrupt, or would fail again and again.
local function attempt(fn, ...)
  local ok, result, mistake = interrupt.pcall(fn, ...)
  if not ok and not interrupt.is(result) then
    error(result, 0)
  end
  return ok, result, mistake
end

--- Read, run and print until the input ends.
function repl.run()
  _G.ms = require 'moonshard'
  jit.off() -- compiled loops do not look whether they are interrupted
  jit.flush()
  put('moonshard ' .. _G.ms.version .. ', a prompt of one rank: ms is there; help says more')
  local ok, result, mistake
  repeat
    ok, result, mistake = attempt(read)
    local ended = ok and not (result or mistake)
    if ok and not ended then
      ok, result = interrupt.pcall(answer, result, mistake)
    end
    while not ok do
      ok, result = attempt(say, result)
    end
  until ended
  put('')
end

return repl
