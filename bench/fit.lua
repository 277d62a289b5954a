--- Compares `moonshard plan --fit` with runs of everything it chooses from: `luajit bench/fit.lua`.
---
--- Trains a small GPT on real ranks with each combination of options, several times in turns.
--- Compares most bytes held with the plan's, which must be equal, and the time of a target
--- (processor time of the fastest step) with the estimate. Then asks --fit for several limits, and
--- compares the time of its combination with the fastest run that fits. Exits with 1 if bytes
--- differ.

local here = arg[0]:match('^(.*)/') or '.'
dofile(here .. '/../examples/setup.lua')
package.path = here .. '/?.lua;' .. package.path

local ms = require 'moonshard'
local flags = require 'moonshard.tools.flags'
local json = require 'moonshard.base.json'
local machine = require 'machine'
local plan_fit = require 'moonshard.tools.plan_fit'
local report = require 'moonshard.train.report'
local subprocess = require 'subprocess'

local count = { whole = true, from = 1 }
local spec = {
  { 'ranks', 2, 'ranks', count },
  { 'runs', 3, 'runs of each combination', count },
  { 'limits', 3, 'limits to ask --fit for', count },
  { 'script', '', 'flags of every run of fit_script.lua, as "--width=512 --rows=8"' },
  { 'help', false, 'this text' },
}
local o, mistake = flags.parse(arg, spec)
if not o then
  io.stderr:write('bench: ', mistake, '\n')
  os.exit(2)
elseif o.help then
  print(flags.help(spec, 'bench/fit.lua', 'Compares moonshard plan --fit with runs.'))
  os.exit(0)
end

local TRIES = {
  'micro=1,2,4',
  'strategy=FULL_SHARD,SHARD_GRAD_OP,NO_SHARD',
  'wrap=block,root',
  'recompute=blocks,none',
}

local MOONSHARD = ('%s %s/../bindings/moonshard'):format(arg[-1] or 'luajit', here)
local SCRIPT = here .. '/fit_script.lua ' .. o.script

-- What rank 0 of a run prints.
local function run(words)
  local answer, _, why = subprocess.answer(('%s run --no-prefix -n %d %s %s'):format(MOONSHARD,
    o.ranks, SCRIPT, words))
  return answer or error('no answer from a run with ' .. words .. '\n' .. (why or ''))
end

local function output_of(command)
  local pipe = io.popen(command .. ' 2>&1')
  local text = pipe:read '*a'
  pipe:close()
  return text
end

local function planned(rates, words)
  local path = os.tmpname()
  local output = output_of(('%s plan %s --json=%s %s %s'):format(MOONSHARD, rates, path, SCRIPT,
    words))
  local file = io.open(path)
  local text = file:read '*a'
  file:close()
  os.remove(path)
  return text ~= '' and json.decode(text) or error(output)
end

-- The combination that --fit names.
local function fitted(rates, limit)
  local words = { ('%s plan %s --fit=%d'):format(MOONSHARD, rates, limit) }
  for _, try in ipairs(TRIES) do
    words[#words + 1] = '--try=' .. try
  end
  local output = output_of(table.concat(words, ' ') .. ' ' .. SCRIPT)
  return output:match 'fastest that fits: ([^\n]*)' or error(output)
end

-- -- measuring -----------------------------------------------------------------------------------

local measured_rates = run '--rates=true'
local rates = ('--ranks-per-host=%d --flops=%.4g --memory=%.4g --host-link=%.4g'):format(o.ranks,
  measured_rates.flops, measured_rates.memory, measured_rates.host_link)
local rows, by_words, is_equal = {}, {}, true

local tries = {}
for i, try in ipairs(TRIES) do
  tries[i] = plan_fit.parsed(try, false)
end
for i, combination in ipairs(plan_fit.combinations(tries)) do
  local words = table.concat(combination.words, ' ')
  local plan = planned(rates, words)
  rows[i] = {
    words = words, bytes = plan.peak_total, seconds = plan.seconds / plan.targets,
    least = math.huge, most = 0, -- of the runs
  }
  by_words[words] = rows[i]
end
for _ = 1, o.runs do -- in turns, so that a slow minute of the machine hits all alike
  for _, row in ipairs(rows) do
    local answer = run(row.words)
    is_equal = is_equal and answer.peak == row.bytes
    row.peak = answer.peak
    row.least, row.most = math.min(row.least, answer.seconds), math.max(row.most, answer.seconds)
  end
end

-- -- printing ------------------------------------------------------------------------------------

local function microseconds(s)
  return ('%.1f us'):format(s * 1e6)
end

print(machine.describe(ms))
print('plan: ' .. rates)
table.sort(rows, function(a, b) return a.least < b.least end)
local lines = { { 'measured', 'spread', 'plan', 'held', 'plan', 'options' } }
for i, row in ipairs(rows) do
  lines[i + 1] = {
    microseconds(row.least), ('%.0f %%'):format(100 * (row.most / row.least - 1)),
    microseconds(row.seconds), report.bytes(row.peak),
    row.peak == row.bytes and 'equal' or report.bytes(row.bytes), row.words,
  }
end

local in_order, pairs_ = 0, 0
for i, row in ipairs(rows) do
  for j = 1, i - 1 do
    pairs_, in_order = pairs_ + 1, in_order + (rows[j].seconds <= row.seconds and 1 or 0)
  end
end
print('time of a target, and most bytes of a rank:\n' .. report.table(lines))

print(('%d of %d pairs are in the order of the plan'):format(in_order, pairs_))

local sizes = {}
for i, row in ipairs(rows) do
  sizes[i] = row.peak
end
table.sort(sizes)
for i = 1, o.limits do
  local limit = sizes[math.ceil(i * #sizes / o.limits)]
  local best, chosen
  for _, row in ipairs(rows) do -- the fastest first
    best = best or row.peak <= limit and row
  end
  chosen = by_words[fitted(rates, limit)]
  print(('limit %s\n  --fit names  %s\n  fastest run  %s\n  its time is %.1f %% above the fastest')
    :format(report.bytes(limit), chosen.words, best.words,
      100 * (chosen.least / best.least - 1)))
end
os.exit(is_equal and 0 or 1)
