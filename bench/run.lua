--- Measurements that print ratios: `./dev bench`, or `luajit bench/run.lua [names] [--quick]`.
---
--- Each probe runs our side (rows.lua) and, when python can import torch, PyTorch's
--- (torch_rows.py) in turns, every run a fresh set of processes pinned to cores; prints medians.
--- A ratio above 1 means ahead of PyTorch, whatever the unit. Each side trains in its fastest dtype
--- on this machine by default. Rows name both dtypes.

local here = arg[0]:match('^(.*)/') or '.'
dofile(here .. '/../examples/setup.lua')
package.path = here .. '/?.lua;' .. package.path

local ms = require 'moonshard'
local flags = require 'moonshard.tools.flags'
local machine = require 'machine'
local probes = require 'probes'
local stats = require 'stats'
local subprocess = require 'subprocess'
local text = require 'text'

local spec = {
  { 'quick', false, 'one run a side in place of three to five' },
  { 'steps', 0, 'timed training steps of a run (0: as many as the probe says)',
    { whole = true, from = 0 } },
  { 'no-torch', false, 'measure our side only' },
  { 'dtype', 'auto', 'dtype we train in: auto (the fastest here), bf16 or f32',
    { one_of = { 'auto', 'bf16', 'f32' } } },
  { 'torch-dtype', 'auto', 'dtype PyTorch trains in: auto (its fastest here), bf16 or f32',
    { one_of = { 'auto', 'bf16', 'f32' } } },
  { 'python', 'python3', 'the python to ask', { filled = true } },
  { 'help', false, 'this text' },
}
local o, mistake = flags.parse(arg, spec)
if not o then
  io.stderr:write('bench: ', mistake, '\n')
  os.exit(2)
elseif o.help then
  print(flags.help(spec, 'bench/run.lua [names]', 'Measures, beside PyTorch. Names:'))
  for _, probe in ipairs(probes) do
    print(('  %-28s %s'):format(probe.name, probe.about))
  end
  os.exit(0)
end

local ours = ('%s %s/rows.lua'):format(arg[-1] or 'luajit', here)
local theirs = ('OMP_NUM_THREADS=1 %s %s/torch_rows.py'):format(o.python, here)
local torch = not o['no-torch'] and machine.torch_version(o.python)
local dtype = o.dtype == 'auto' and machine.fastest_dtype() or o.dtype
local torch_dtype = o['torch-dtype'] == 'auto' and machine.fastest_dtype() or o['torch-dtype']
local failed = false

-- Results by variant and side: results[variant][field] is the list of values of all runs.
local function run_side(command, probe, args, results)
  local answer, seconds, why = subprocess.answer(('%s %s %s'):format(command, probe.row,
    text.words(args)))
  if not answer then
    failed = true
    io.stderr:write(('bench: no answer from %s %s\n%s\n'):format(command, probe.row, why))
    return
  end
  answer.seconds = seconds
  for field, value in pairs(answer) do
    results[field] = results[field] or {}
    table.insert(results[field], value)
  end
end

-- The same for the rival, in its dtype.
local function rival_args(args)
  local out = {}
  for key, value in pairs(args) do
    out[key] = key == 'dtype' and torch_dtype or value
  end
  return out
end

local function measure(probe)
  local mine, other = {}, {}
  for v, variant in ipairs(probe.variants) do
    mine[v], other[v] = {}, {}
    variant.args.dtype = variant.args.dtype and dtype
    if variant.args.steps and o.steps > 0 then
      variant.args.steps = o.steps
    end
  end
  local runs, torch_runs = o.quick and 1 or probe.runs or 3, o.quick and 1 or 3
  for i = 1, runs do -- interleaved, so that a slow minute of the machine hits all alike
    for v, variant in ipairs(probe.variants) do
      run_side((variant.environment or '') .. ours, probe, variant.args, mine[v])
      if torch and i <= torch_runs and not variant.ours_only then
        run_side(theirs, probe, rival_args(variant.args), other[v])
      end
    end
  end
  return mine, other
end

local function median_of(results, field)
  local values = results[field]
  return values and stats.median(values)
end

local function fraction(mine, tokens_per_s)
  local flops, peak = median_of(mine, 'flops_per_token'), median_of(mine, 'peak_flops')
  return tokens_per_s and flops and tokens_per_s * flops / peak
end

local function show(row, mine, other)
  local a, b = row.value(mine, median_of), row.value(other, median_of)
  local ratio = a and b and (row.less_is_better and b / a or a / b)
  local label, of_peak, their_peak = row.label, nil, nil
  if row.peak then
    local v = row.peak
    label = ('%s, %s / %s'):format(label, dtype, torch_dtype)
    of_peak, their_peak = fraction(mine[v], a), fraction(mine[v], b)
  end
  print(text.columns(label, a and row.format(a) or '-', b and row.format(b) or '-',
    ratio and text.times(ratio) or '-', of_peak and text.percent(of_peak) or '',
    their_peak and text.percent(their_peak) or ''))
end

local wanted = {}
for _, name in ipairs(o.rest) do
  wanted[name] = true
end
local chosen = {}
for _, probe in ipairs(probes) do
  if #o.rest == 0 or wanted[probe.name] then
    chosen[#chosen + 1] = probe
  end
  wanted[probe.name] = nil
end
local unknown = next(wanted)
if unknown then
  io.stderr:write(("bench: no probe '%s' (--help lists them)\n"):format(unknown))
  os.exit(2)
end

print(machine.describe(ms))
print(torch and 'PyTorch ' .. torch or o['no-torch'] and 'PyTorch not asked'
  or ('no PyTorch: %s cannot import torch'):format(o.python))
print(text.columns('', 'moonshard', 'PyTorch', 'ratio', 'of peak', '(PyTorch)'))
for _, probe in ipairs(chosen) do
  local mine, other = measure(probe)
  for _, row in ipairs(probe.rows) do
    show(row, mine, other)
  end
  io.flush()
end
os.exit(failed and 1 or 0)
