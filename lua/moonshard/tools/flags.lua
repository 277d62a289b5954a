--- Command-line flags: --name=value or --name value, --switch; a mistyped flag or
--- word names the nearest one. A specification is an array of { name, default, help, rule }; the
--- default's type is the accepted type (number, string, boolean); the rule restricts it:
---   numbers   whole = true, from = (the least), above = (less than all), below = (more than all)
---   strings   one_of = words, filled = true (not empty), alone = value of the flag without one

local errors = require 'moonshard.base.errors'
local ms = require 'moonshard'

local flags = {}

local function unknown(name, spec)
  local names = {}
  for i, flag in ipairs(spec) do
    names[i] = flag[1]
  end
  local nearest = errors.nearest(name, names)
  return ("unknown flag '--%s'%s (--help lists all)"):format(name,
    nearest and ("; the nearest is '--%s'"):format(nearest) or '')
end

-- What a number of this rule is called in messages.
local function wanted(rule)
  local text = rule.whole and 'a whole number' or 'a number'
  for _, bound in ipairs { 'from', 'above', 'below' } do
    if rule[bound] then
      text = ('%s %s %s'):format(text, bound, tostring(rule[bound]))
    end
  end
  return text
end

local function allows_number(rule, number)
  return number == number and math.abs(number) ~= math.huge
    and (not rule.whole or number % 1 == 0)
    and number >= (rule.from or -math.huge)
    and number > (rule.above or -math.huge)
    and number < (rule.below or math.huge)
end

-- What is wrong with this word, or nil.
local function mistake_in_word(name, rule, word)
  if rule.filled and word == '' then
    return ('--%s must not be empty'):format(name)
  elseif not rule.one_of then
    return nil
  end
  for _, known in ipairs(rule.one_of) do
    if word == known then
      return nil
    end
  end
  local nearest = errors.nearest(word, rule.one_of)
  return ("--%s is one of %s, got '%s'%s"):format(name, table.concat(rule.one_of, ', '), word,
    nearest and ("; the nearest is '%s'"):format(nearest) or '')
end

--- A flag for the device of the process, which parse() chooses.
flags.device = { 'device', '', 'cpu, cuda or cuda:N (default: MS_DEVICE, else cpu; ranks share the '
  .. 'cards in turn)' }

---@param spec table[]  { name, default, help, rule }
---@param program string
---@param about string
---@return string
function flags.help(spec, program, about)
  local lines = { ('usage: luajit %s [flags]'):format(program), about, '' }
  for _, flag in ipairs(spec) do
    local name, default, help = flag[1], flag[2], flag[3]
    local left = type(default) == 'boolean' and '--' .. name
      or ('--%s=%s'):format(name, tostring(default))
    lines[#lines + 1] = ('  %-28s %s'):format(left, help)
  end
  return table.concat(lines, '\n')
end

local function convert(flag, text)
  local name, default, rule = flag[1], flag[2], flag[4] or {}
  if type(default) == 'number' then
    local number = tonumber(text)
    if not number or not allows_number(rule, number) then
      return nil, ("--%s wants %s, got '%s'"):format(name, wanted(rule), text)
    end
    return number
  elseif type(default) == 'boolean' then
    if text ~= 'true' and text ~= 'false' then
      return nil, ("--%s is a switch: --%s, --%s=true or --%s=false, got '%s'"):format(
        name, name, name, name, text)
    end
    return text == 'true'
  end
  return text, mistake_in_word(name, rule, text)
end

--- Parse `argv`. Words that are no flags are collected under `rest`.
---@param argv string[]
---@param spec table[]
---@return table<string, any>? values  nil on a mistake
---@return string? mistake
function flags.parse(argv, spec)
  local values, known, given = { rest = {} }, {}, {}
  for _, flag in ipairs(spec) do
    values[flag[1]], known[flag[1]] = flag[2], flag
  end
  local i = 1
  while i <= #argv do
    local word = argv[i]
    local name, text = word:match('^%-%-([%w%-]+)=(.*)$')
    name = name or word:match('^%-%-([%w%-]+)$')
    if not name then
      values.rest[#values.rest + 1] = word
    elseif not known[name] then
      return nil, unknown(name, spec)
    else
      local default = known[name][2]
      local rule = known[name][4]
      if not text and type(default) == 'boolean' then
        text = 'true'
      elseif not text and rule and rule.alone then
        text = rule.alone
      elseif not text then
        i = i + 1
        text = argv[i]
        if not text then
          return nil, ('--%s wants a value'):format(name)
        end
      end
      local value, mistake = convert(known[name], text)
      if mistake then
        return nil, mistake
      end
      values[name], given[name] = value, true
    end
    i = i + 1
  end
  values.given = given
  if given.device and known.device == flags.device then
    local ok, problem = pcall(ms.device, values.device)
    return ok and values or nil, not ok and '--' .. tostring(problem) or nil
  end
  return values
end

--- The flags of a command of `moonshard`. With --help, prints the help.
---@param words string[]
---@param spec table[]
---@param usage string  'finetune FOLDER DATA... [flags]'
---@param about string
---@return table<string, any>? values  nil after --help; ValueError for a mistake
function flags.command(words, spec, usage, about)
  local values, mistake = flags.parse(words, spec)
  if not values then
    errors.raise('ValueError', '%s: %s', usage:match '%a+', mistake)
  elseif values.help then
    print((flags.help(spec, '', about):gsub('^usage:[^\n]*', 'usage: moonshard ' .. usage)))
    return nil
  end
  return values
end

--- The flags of an example that takes no other words. With --help, prints the help and exits.
---@param spec table[]
---@param program string
---@param about string
---@param fail fun(message: string)  called for a mistake; does not return
---@return table<string, any> values
function flags.read(spec, program, about, fail)
  local o, mistake = flags.parse(arg, spec)
  if not o then
    fail(mistake)
  elseif o.help then
    print(flags.help(spec, program, about))
    os.exit(0)
  elseif o.rest[1] then
    fail(("unexpected word '%s' (--help lists the flags)"):format(o.rest[1]))
  end
  return o
end

return flags
