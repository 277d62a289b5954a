--- `moonshard repl`: luajit's prompt with `ms` in it. What an expression gives is printed, a chunk
--- may take several lines, and an error is one line without a traceback.

local errors = require 'moonshard.errors'
local util = require 'moonshard.util'

local repl = {}

-- As luajit calls what is typed.
local CHUNK = '=stdin'

---@return function? chunk, string? mistake
local function compile(text)
  -- as arguments and not as `return ...`, which could be a tail call: dist.init looks for CHUNK
  local expression = loadstring('return (function(...) return ... end)('
    .. text:gsub('^%s*=', '') .. '\n)', CHUNK)
  if expression then
    return expression
  end
  return loadstring(text, CHUNK)
end

local function ask(prompt)
  io.write(prompt)
  io.flush()
  return io.read('*l')
end

-- The next chunk; nil and why not, or nil at the end of the input.
local function read()
  local text = ask('> ')
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
  print(errors.is(err) and ('%s: %s'):format(err.kind, err.message) or tostring(err))
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

local function show(ok, ...)
  if not ok then
    return say((...))
  end
  local texts, n = {}, select('#', ...)
  for i = 1, n do
    texts[i] = text((select(i, ...)), 1)
  end
  if n > 0 then
    print(table.concat(texts, '\t'))
  end
end

--- Read, run and print until the input ends.
function repl.run()
  _G.ms = require 'moonshard'
  print('moonshard ' .. _G.ms.version .. ', a prompt of one rank: ms is there; Ctrl-D leaves')
  while true do
    local ok, chunk, mistake = pcall(read) -- a Ctrl-C is an error wherever Lua runs next
    if not ok then
      say(chunk)
    elseif chunk then
      show(pcall(chunk))
    elseif mistake then
      say(mistake)
    else
      print()
      return
    end
  end
end

return repl
