--- The report of `moonshard plan`: tables for a terminal, JSON, and a timeline as SVG.

local ms = require 'moonshard'
local report = require 'moonshard.train.report'

local plan_report = {}

---@class ms.tools.Plan
---@field rank integer
---@field hosts integer
---@field ranks_per_host integer
---@field steps integer  that ran
---@field script_seconds number  that the plan took
---@field memory ms.Memory
---@field slots string
---@field rates ms.tools.PlanRates?
---@field step ms.tools.PlanStep  the last one

-- 1.5e12, 'FLOP' -> "1.50 TFLOP"
local function scaled(n, unit)
  local prefixes, i = { '', 'k', 'M', 'G', 'T', 'P', 'E' }, 1
  while n >= 1000 and i < #prefixes do
    n, i = n / 1000, i + 1
  end
  return (n == 0 and '0' or '%.3g %s%s'):format(n, prefixes[i], unit)
end

local function bytes(n)
  return n == 0 and '0' or report.bytes(n)
end

local function rate(n)
  return n < math.huge and scaled(n, 'B') .. '/s' or 'any rate'
end

local function milliseconds(s)
  return ('%.2f ms'):format(s * 1000)
end

-- -- tables --------------------------------------------------------------------------------------

local KINDS = { 'parameter', 'gradient', 'optimizer', 'activation', 'arena', 'scratch' }
local SHOWN = { arena = 'slots', scratch = 'work space' }

local function memory_table(memory)
  local rows = { { 'memory of a rank', 'most' } }
  for _, kind in ipairs(KINDS) do
    rows[#rows + 1] = { SHOWN[kind] or kind, bytes(memory.peak[kind]) }
  end
  rows[#rows + 1] = { 'at once', bytes(memory.peak_total) }
  return report.table(rows)
end

local function traffic_table(traffic)
  local rows = { { 'sent by a rank in a step', 'within its host', 'to other hosts' } }
  for _, what in ipairs { 'parameters', 'gradients', 'other' } do
    rows[#rows + 1] = { what, bytes(traffic[what].within), bytes(traffic[what].between) }
  end
  return report.table(rows)
end

-- Units in a row that do the same are one line.
local function are_alike(a, b)
  return a.forward == b.forward and a.backward == b.backward and a.gathered == b.gathered
    and a.reduced == b.reduced
end

local function units_table(step, has_times)
  local head = { 'unit', 'units', 'forward', 'backward', 'parameters', 'gradients' }
  local rows, last = { head }, nil
  if has_times then
    head[7], head[8] = 'compute', 'waits'
  end
  local function add(lines)
    local first, until_ = lines[1], lines[#lines]
    local row = {
      first == until_ and first.name or first.name .. ' .. ' .. until_.name, ('%d'):format(#lines),
      scaled(first.forward, 'FLOP'), scaled(first.backward, 'FLOP'), bytes(first.gathered),
      bytes(first.reduced),
    }
    if has_times then
      local exposed = 0
      for _, unit in ipairs(lines) do
        exposed = exposed + unit.exposed
      end
      row[7], row[8] = milliseconds(first.compute), milliseconds(exposed / #lines)
    end
    rows[#rows + 1] = row
  end
  for _, unit in ipairs(step.units) do
    if last and are_alike(last[1], unit) then
      last[#last + 1] = unit
    else
      if last then
        add(last)
      end
      last = { unit }
    end
  end
  if last then
    add(last)
  end
  return report.table(rows)
end

local function time_lines(plan)
  local step, rates = plan.step, plan.rates
  local ranks = plan.hosts * plan.ranks_per_host
  local lines = {
    ('a step takes %s: compute %s (%.1f %%), waits for communication %s; communication %s, '
      .. '%.1f %% of it behind compute'):format(milliseconds(step.seconds),
      milliseconds(step.compute), 100 * step.compute / step.seconds, milliseconds(step.exposed),
      milliseconds(step.communication), step.communication == 0 and 100
        or 100 * (1 - step.exposed / step.communication)),
  }
  if plan.hosts > 1 then
    lines[2] = ('links within the host are in use for %s, those to other hosts for %s'):format(
      milliseconds(step.within), milliseconds(step.between))
  end
  if step.targets > 0 then
    lines[#lines + 1] = ('%s targets a second, of all ranks'):format(
      report.count(step.targets * ranks / step.seconds))
  end
  lines[#lines + 1] = ('an estimate: products, convolutions and attention at %s/s, other kernels '
    .. 'at %s, rings at %s within a host and %s between hosts, a link for each rank; sends take '
    .. '%.3g us and %.3g us more'):format(scaled(rates.flops, 'FLOP'), rate(rates.memory),
    rate(rates.host_link), rate(rates.link), 1e6 * rates.host_latency, 1e6 * rates.latency)
  return table.concat(lines, '\n')
end

--- The report as text.
---@param plan ms.tools.Plan
---@return string
function plan_report.text(plan)
  local ranks = plan.hosts * plan.ranks_per_host
  local parts = {
    ('rank %d of %s: %d host%s with %d rank%s; step %d, %s slots'):format(plan.rank,
      report.count(ranks), plan.hosts, plan.hosts == 1 and '' or 's', plan.ranks_per_host,
      plan.ranks_per_host == 1 and '' or 's', plan.steps, plan.slots),
    memory_table(plan.memory), traffic_table(plan.step.traffic),
    units_table(plan.step, plan.rates ~= nil),
  }
  parts[#parts + 1] = plan.rates and time_lines(plan) or nil
  return table.concat(parts, '\n\n') .. '\n'
end

--- The numbers of the report, for programs.
---@param plan ms.tools.Plan
---@return table
function plan_report.numbers(plan)
  local step, units = plan.step, {}
  for i, unit in ipairs(step.units) do
    units[i] = unit
  end
  return {
    rank = plan.rank, hosts = plan.hosts, ranks_per_host = plan.ranks_per_host,
    peak_total = plan.memory.peak_total, peak = plan.memory.peak, traffic = step.traffic,
    flops = step.flops, moved = step.moved, targets = step.targets, seconds = step.seconds,
    compute = step.compute, exposed = step.exposed, communication = step.communication,
    within = step.within, between = step.between, units = units,
  }
end

-- -- the timeline --------------------------------------------------------------------------------

local COLOURS = {
  forward = '#4878a8', backward = '#7a5195', gather = '#5b9f6d', reduce = '#d08a3e',
  other = '#999999',
}
local WIDTH, LEFT, LANE, CURVE = 1200, 80, 28, 120

local ENTITIES = { ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;', ['"'] = '&quot;' }

local function escaped(text)
  return (text:gsub('[&<>"]', ENTITIES))
end

local function label(out, x, y, text)
  out[#out + 1] = ('<text x="%.1f" y="%.1f">%s</text>'):format(x, y, escaped(text))
end

local function legend(out, y)
  local x = LEFT
  for _, kind in ipairs { 'forward', 'backward', 'gather', 'reduce', 'other' } do
    out[#out + 1] = ('<rect x="%d" y="%d" width="10" height="10" fill="%s"/>'):format(x, y - 9,
      COLOURS[kind])
    label(out, x + 14, y, kind)
    x = x + 90
  end
end

-- Bytes held over the step. The curve ends at its last event.
local function curve(out, step, x_of, top)
  local most, points = 1, {}
  for _, point in ipairs(step.memory) do
    most = math.max(most, point[2])
  end
  for i, point in ipairs(step.memory) do
    points[i] = ('%.1f,%.1f'):format(x_of(point[1]), top + CURVE * (1 - point[2] / most))
  end
  out[#out + 1] = ('<polyline points="%s" fill="none" stroke="#333333"/>'):format(
    table.concat(points, ' '))
  label(out, 4, top + 10, report.bytes(most))
end

--- A step as SVG: what each queue runs, and the memory of the rank.
---@param plan ms.tools.Plan  with rates
---@return string
function plan_report.svg(plan)
  local step = plan.step
  local lanes = { compute = 40, link = 40 + LANE + 8 }
  local top = lanes.link + LANE + 16
  local out = {
    ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" '
      .. 'font-size="11">'):format(WIDTH + LEFT + 20, top + CURVE + 30),
  }
  local function x_of(seconds)
    return LEFT + WIDTH * seconds / step.seconds
  end
  legend(out, 16)
  label(out, 4, lanes.compute + 18, 'compute')
  label(out, 4, lanes.link + 18, 'link')
  for _, s in ipairs(step.spans) do
    out[#out + 1] = ('<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s"><title>%s %s, %s'
      .. '</title></rect>'):format(x_of(s.from), lanes[s.queue], x_of(s.to) - x_of(s.from), LANE,
      COLOURS[s.kind], s.kind, escaped(s.name), milliseconds(s.to - s.from))
  end
  curve(out, step, x_of, top)
  label(out, LEFT, top + CURVE + 20, '0')
  label(out, LEFT + WIDTH - 60, top + CURVE + 20, milliseconds(step.seconds))
  out[#out + 1] = '</svg>'
  return table.concat(out, '\n') .. '\n'
end

--- Write text to a file. IOError if that fails.
---@param path string
---@param text string
function plan_report.write(path, text)
  local file, reason = io.open(path, 'w')
  if not file then
    ms.error('IOError', 'plan: cannot write %s', reason)
  end
  file:write(text)
  file:close()
end

return plan_report
