--- Progress of a training run: a line or a progress bar for each step, and metrics.jsonl. Rank 0
--- makes one. Its functions format numbers for such lines.

local errors = require 'moonshard.base.errors'
local json = require 'moonshard.base.json'

local report = {}
report.__index = report

--- 1234567 -> "1,234,567".
---@param n number
---@return string
function report.count(n)
  local text = ('%d'):format(n)
  local grouped = text:reverse():gsub('(%d%d%d)', '%1,'):reverse()
  return (grouped:gsub('^,', ''))
end

--- Bytes with a unit: "12.4 MiB".
---@param n number
---@return string
function report.bytes(n)
  local units = { 'B', 'KiB', 'MiB', 'GiB', 'TiB' }
  local i = 1
  while n >= 1024 and i < #units do
    n, i = n / 1024, i + 1
  end
  return ((i == 1 and '%d %s') or '%.1f %s'):format(n, units[i])
end

--- Seconds as "1:02:03" or "2:03".
---@param seconds number
---@return string
function report.clock(seconds)
  local s = math.max(0, math.floor(seconds + 0.5))
  if s >= 3600 then
    return ('%d:%02d:%02d'):format(s / 3600, s / 60 % 60, s % 60)
  end
  return ('%d:%02d'):format(s / 60, s % 60)
end

--- Columns aligned: those of numbers to the right, others to the left. The first row is the head.
---@param rows string[][]
---@return string
function report.table(rows)
  local width = {}
  for _, row in ipairs(rows) do
    for c, cell in ipairs(row) do
      width[c] = math.max(width[c] or 0, #cell)
    end
  end
  local lines = {}
  for i, row in ipairs(rows) do
    local cells = {}
    for c, cell in ipairs(row) do
      local is_number = (rows[2] or row)[c]:find('^%d')
      cells[c] = ('%' .. (is_number and '' or '-') .. width[c] .. 's'):format(cell)
    end
    lines[i] = ('  ' .. table.concat(cells, '  ')):gsub('%s+$', '')
  end
  return table.concat(lines, '\n')
end

--- A record as one line of JSON. NaN and infinities become null.
---@param record table<string, number|string|boolean>
---@return string
local function line_of(record)
  local out = {}
  for key, value in next, record do -- the encoder sorts keys
    local odd = type(value) == 'number' and (value ~= value or math.abs(value) == math.huge)
    out[key] = odd and json.null or value
  end
  return json.encode(out) .. '\n'
end

-- The step of a line of metrics.jsonl, if it has one.
local function step_of(line)
  return tonumber(line:match('"step":(%d+)'))
end

--- The last step in a metrics.jsonl, or nil.
---@param path string
---@return integer?
function report.last_step(path)
  local file, last = io.open(path, 'r'), nil
  if file then
    for line in file:lines() do
      last = step_of(line) or last
    end
    file:close()
  end
  return last
end

local function opened(path, mode)
  local file, reason = io.open(path, mode)
  return file or errors.raise('IOError', 'open %s', reason)
end

-- Keep the lines of metrics.jsonl before `step`, so that resuming repeats none.
local function cut_back(path, step)
  local file = io.open(path, 'r')
  if not file then
    return
  end
  local kept = {}
  for line in file:lines() do
    local at = step_of(line)
    if not at or at < step then
      kept[#kept + 1] = line
    end
  end
  file:close()
  local out = opened(path .. '.tmp', 'w')
  out:write(table.concat(kept, '\n'), #kept > 0 and '\n' or '')
  out:close()
  local ok, reason = os.rename(path .. '.tmp', path)
  if not ok then
    errors.raise('IOError', 'rename %s', reason)
  end
end

-- Columns of the terminal; 80 if they are not known.
local function columns()
  local pipe = io.popen('stty size </dev/tty 2>/dev/null')
  local text = pipe and pipe:read('*a') or ''
  if pipe then
    pipe:close()
  end
  return tonumber(text:match('^%d+ (%d+)')) or 80
end

---@class ms.train.report.Options
---@field path? string  of metrics.jsonl (default: none is written)
---@field first_step integer
---@field total integer  steps of the run
---@field unit? string  name of a step in lines (default 'step')
---@field terminal boolean
---@field every integer  steps between lines if the output is not a terminal; 0: no lines

---@param opts ms.train.report.Options
function report.new(opts)
  local self = setmetatable({
    total = opts.total, terminal = opts.terminal, every = opts.every, unit = opts.unit or 'step',
  }, report)
  if opts.path then
    cut_back(opts.path, opts.first_step)
    self.file = opened(opts.path, 'a')
    if self.file:seek('end') == 0 then
      self.file:write(line_of { schema = 1, kind = 'moonshard metrics' })
    end
  end
  self.bar, self.columns = false, opts.terminal and columns() or 0
  return self
end

--- Print a line of text above the bar.
---@param text string
function report:print(text)
  if self.bar then
    io.write('\r\27[K')
    self.bar = false
  end
  io.write(text, '\n')
  io.flush()
end

-- Parts of a step's line, left out where the step has no such number.
local PARTS = {
  { 'loss', 'loss %.4f' }, { 'lr', 'lr %.2e' }, { 'norm', 'norm %.3f' },
  { 'tokens_per_s', '%s tok/s', report.count }, { 'forward_ms', 'fwd %.0f' },
  { 'backward_ms', 'bwd %.0f' }, { 'optimizer_ms', 'opt %.0f' }, { 'wait_ms', 'wait %.1f ms' },
  { 'tflops', '%.3f TFLOP/s' }, { 'peak_bytes', '%s', report.bytes },
  { 'eta', 'ETA %s', report.clock },
}

-- Fields of metrics.jsonl by those of a step.
local RECORDED = {
  step = 'step', loss = 'loss', lr = 'lr', norm = 'grad_norm', targets = 'targets',
  tokens_per_s = 'tokens_per_s', forward_ms = 'forward_ms', backward_ms = 'backward_ms',
  optimizer_ms = 'optimizer_ms', wait_ms = 'exposed_comm_ms', tflops = 'tflops',
  peak_bytes = 'peak_bytes',
}

local function text_of(m, unit, total)
  local parts = { ('%s %d/%d'):format(unit, m.step, total) }
  for _, part in ipairs(PARTS) do
    local value = m[part[1]]
    if value then
      parts[#parts + 1] = part[2]:format(part[3] and part[3](value) or value)
    end
  end
  return table.concat(parts, '  ')
end

--- Record a step and show it.
---@param m table<string, number>  step, loss, and others of RECORDED and PARTS
function report:step(m)
  local record = {}
  for from, to in pairs(RECORDED) do -- order does not matter: the encoder sorts keys
    record[to] = m[from]
  end
  self:event(record)
  if self.every == 0 then
    return
  end
  local line = text_of(m, self.unit, self.total)
  if self.terminal then
    local done = math.floor(20 * m.step / self.total)
    local bar = ('[%s%s] %s'):format(('#'):rep(done), ('.'):rep(20 - done), line)
    io.write('\r\27[K', bar:sub(1, self.columns - 1)) -- a wrapped line could not be overwritten
    io.flush()
    self.bar = true
  end
  if (not self.terminal and (m.step % self.every == 0 or m.step == 1)) or m.step == self.total then
    self:print(line)
  end
end

--- Write a record to metrics.jsonl.
---@param record table<string, number|string|boolean>
function report:event(record)
  if self.file then
    self.file:write(line_of(record))
    self.file:flush()
  end
end

function report:close()
  if self.bar then
    io.write('\n')
  end
  if self.file then
    self.file:close()
  end
end

return report
