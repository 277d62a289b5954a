--- `moonshard plan SCRIPT`: what one rank of a job would hold, send and compute in a step. The
--- script runs unchanged, in this process alone, on the device that computes nothing.

local B = require 'moonshard_ffi'
local device = require 'moonshard.base.device'
local flags = require 'moonshard.tools.flags'
local launch = require 'moonshard.dist.launch'
local ms = require 'moonshard'
local Optimizer = require 'moonshard.optim.optimizer'
local plan_fit = require 'moonshard.tools.plan_fit'
local plan_model = require 'moonshard.tools.plan_model'
local plan_report = require 'moonshard.tools.plan_report'

local plan = {}

local count, from_zero = { whole = true, from = 1 }, { whole = true, from = 0 }

local FLAGS = {
  { 'hosts', 1, 'number of hosts', count },
  { 'ranks-per-host', 8, 'ranks of each', count },
  { 'rank', 0, 'the rank that is planned', from_zero },
  { 'steps', 2, 'optimizer steps to run; the last one is reported', count },
  { 'slots', 'auto', 'where gathered parameters lie: shared (one copy a host), pull or nccl (a '
    .. 'copy a rank); auto: shared on one host, else nccl',
    { one_of = { 'auto', 'shared', 'pull', 'nccl' } } },
  { 'flops', '', 'floating-point operations a second of a rank in products, as 400TFLOP/s: times '
    .. 'are estimated' },
  { 'link', '', 'bytes a second that each rank can send to other hosts, as 50GB/s' },
  { 'host-link', '', 'bytes a second that each rank can send to ranks of its host' },
  { 'latency', 0, 'microseconds of a send to another host, besides its bytes', { from = 0 } },
  { 'host-latency', 0, 'microseconds of a send within the host, besides its bytes', { from = 0 } },
  { 'memory', '', 'bytes a second that a rank reads and writes in other kernels and in the '
    .. 'optimizer, as 2TB/s (default: they take no time)' },
  { 'svg', '', 'file for a timeline of the step' },
  { 'json', '', 'file for the numbers of the report' },
  { 'fit', '', 'bytes that a rank may hold, as 80GiB: plan the combinations of --try and --raise, '
    .. 'and list those that fit, the fastest first (with --flops)' },
  { 'try', '', 'NAME=VALUE,VALUE: values of the flag --NAME of the script; may be repeated' },
  { 'raise', '', 'as --try, with values in the order of the memory that they need: combinations '
    .. 'above one that does not fit are not planned' },
  { 'help', false, 'this text' },
}

local ABOUT = [[
Runs SCRIPT, which is not changed, as one rank of a job whose other ranks do not exist, on a device
that computes nothing: in the time of its host code and with arbitrary values. Prints memory by
kind, as ms.memory() counts it, bytes that the rank sends, and work and time of each unit.
Flags come before SCRIPT; all words after it are arguments of it.]]

local function fail(format, ...)
  ms.error('ValueError', 'plan: ' .. format, ...)
end

local function usage()
  return (flags.help(FLAGS, 'plan', ABOUT):gsub('^usage: [^\n]*',
    'usage: moonshard plan [FLAGS] SCRIPT [ARGUMENT...]'))
end

-- The flags before the script, and the script with its arguments.
local function divided(words)
  local is_switch, at = {}, 1
  for _, flag in ipairs(FLAGS) do
    is_switch[flag[1]] = type(flag[2]) == 'boolean'
  end
  while words[at] and words[at]:find '^%-%-' do
    local name = words[at]:match '^%-%-([%w-]+)$'
    at = at + (name and not is_switch[name] and 2 or 1)
  end
  return { unpack(words, 1, at - 1) }, { unpack(words, at) }
end

local PREFIXES = { [''] = 1, k = 1e3, m = 1e6, g = 1e9, t = 1e12, p = 1e15, e = 1e18 }

-- 5e10 of '50GB/s', 4e14 of '400TFLOP/s'. nil if the flag was not given.
local function rate(o, name, unit)
  local text = o[name]
  if text == '' then
    return nil
  end
  local number, prefix, binary, rest = text:lower():match '^([%d.e+]+)%s*([kmgtpe]?)(i?)(.-)$'
  number = tonumber(number)
  if not number or number <= 0 or not (rest == '' or rest == unit or rest == unit .. '/s') then
    fail("--%s is '%s', expected a rate such as 50G%s/s", name, text, unit:upper())
  end
  local power = math.floor(math.log10(PREFIXES[prefix]) / 3 + 0.5)
  return number * (binary == 'i' and 1024 ^ power or PREFIXES[prefix])
end

-- Rates of the estimate; nil: no times.
local function rates_of(o)
  local rates = {
    flops = rate(o, 'flops', 'flop'), link = rate(o, 'link', 'b'),
    host_link = rate(o, 'host-link', 'b'), memory = rate(o, 'memory', 'b'),
    latency = o.latency * 1e-6, host_latency = o['host-latency'] * 1e-6,
  }
  if not rates.flops then
    if rates.link or rates.host_link or rates.memory or o.svg ~= '' then
      fail 'times need --flops, the operations a second of a rank'
    end
    return nil
  elseif o.hosts > 1 and not rates.link then
    fail('times of %d hosts need --link, the bytes a second between hosts', o.hosts)
  elseif o['ranks-per-host'] > 1 and not rates.host_link then
    fail 'times of several ranks on a host need --host-link, the bytes a second within it'
  end
  for _, name in ipairs { 'link', 'host_link', 'memory' } do
    rates[name] = rates[name] or math.huge
  end
  return rates
end

local function options(words)
  local o, mistake = flags.parse(words, FLAGS)
  if not o then
    fail('%s', mistake)
  elseif o.rank >= o.hosts * o['ranks-per-host'] then
    fail('--rank is %d, expected 0 to %d', o.rank, o.hosts * o['ranks-per-host'] - 1)
  end
  o.rates = rates_of(o)
  if o.slots == 'auto' and o.hosts > 1 then
    o.slots = 'nccl'
  end
  return o
end

-- The report, when the last step has run.
local function finish(o, steps, began)
  local result = {
    rank = o.rank, hosts = o.hosts, ranks_per_host = o['ranks-per-host'], steps = steps,
    slots = o.slots == 'auto' and 'shared' or o.slots, script_seconds = ms.time() - began,
    memory = ms.memory(), rates = o.rates,
    step = plan_model.step(plan_model.events(),
      { rank = o.rank, on_host = o['ranks-per-host'] }, o.rates),
  }
  io.stdout:write(plan_report.text(result))
  if o.json ~= '' then
    plan_report.write(o.json, require('moonshard.base.json').encode(plan_report.numbers(result))
      .. '\n')
  end
  if o.svg ~= '' then
    plan_report.write(o.svg, plan_report.svg(result))
  end
end

-- Make this process the rank.
local function become(o)
  if o.slots ~= 'auto' then
    B.set_variable('MS_SLOTS', o.slots)
  end
  ms.device 'plan'
  device.info() -- opens it
  device._planned = true
  launch._plan(o.rank, o.hosts, o['ranks-per-host'])
  B.check(B.C.ms_plan_start())
end

-- Run the script until its optimizer has made its steps. (A script with several optimizers makes a
-- step with the first one.) The process ends in the last step, from inside the script, which may
-- catch errors.
local function run(o, command, interpreter)
  local script, mistake = loadfile(command[1])
  if not script then
    fail('%s', mistake)
  end
  local first, steps, began = nil, 0, ms.time()
  function Optimizer._after_step(optimizer)
    first = first or optimizer
    steps = steps + (optimizer == first and 1 or 0)
    if optimizer == first and steps == o.steps then
      finish(o, steps, began)
      io.stdout:flush()
      os.exit(0)
    elseif optimizer == first then
      B.check(B.C.ms_plan_start())
    end
  end
  arg = { [-1] = interpreter, [0] = command[1], unpack(command, 2) } -- luacheck: globals arg
  local ok, traceback = xpcall(script, function(err)
    return B.errors.text(err) .. debug.traceback('', 2)
  end, unpack(command, 2))
  if not ok then
    io.stderr:write('moonshard: plan: ', command[1], ': ', traceback, '\n')
    return 1
  end
  io.stderr:write(('moonshard: plan: %s ended after %d optimizer steps, expected %d (--steps)\n')
    :format(command[1], steps, o.steps))
  return 1
end

-- The values of --try and --raise, and the other words.
local function tries_of(words)
  local tries, others, i = {}, {}, 1
  while words[i] do
    local name, value = words[i]:match '^%-%-(%l+)=(.*)$'
    name = name or words[i]:match '^%-%-(%l+)$'
    if name == 'try' or name == 'raise' then
      i = value and i or i + 1
      tries[#tries + 1] = plan_fit.parsed(value or words[i] or '', name == 'raise')
    else
      others[#others + 1] = words[i]
    end
    i = i + 1
  end
  return tries, others
end

local function fit(o, tries, others, command, all)
  if not o.rates or not tries[1] then
    fail '--fit needs --flops, and --try or --raise for what may vary'
  end
  local kept = {}
  for i, word in ipairs(others) do
    if not word:find '^%-%-fit' and others[i - 1] ~= '--fit' then
      kept[#kept + 1] = word
    end
  end
  return plan_fit.run(rate(o, 'fit', 'b'), tries, function(path, words)
    local line = { all[-1], all[0], 'plan' }
    for _, list in ipairs { kept, { '--json=' .. path }, command, words } do
      for _, word in ipairs(list) do
        line[#line + 1] = word
      end
    end
    return line
  end)
end

--- Run the command.
---@param words string[]
---@param all string[]  of the process; [-1]: the interpreter
---@return integer exit_code
function plan.main(words, all)
  local before, command = divided(words)
  local tries, others = tries_of(before)
  local o = options(others)
  if o.help then
    print(usage())
    return 0
  elseif not command[1] then
    fail 'no script given (moonshard plan --help)'
  end
  if o.fit ~= '' then
    return fit(o, tries, others, command, all)
  end
  become(o)
  return run(o, command, all[-1])
end

return plan
