--- What a training run shows and records: the plan, a line or a progress bar per step,
--- metrics.jsonl. Only rank 0 makes one.

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

--- A record as one line of JSON. What is no number there (NaN, infinities) becomes null.
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

-- Step a line of metrics.jsonl is about, if any.
local function step_of(line)
  return tonumber(line:match('"step":(%d+)'))
end

--- Last step that a metrics.jsonl tells of, or nil.
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

--- Keep the lines of metrics.jsonl that come before `step`, so that resuming repeats none.
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
  local out = assert(io.open(path .. '.tmp', 'w'))
  out:write(table.concat(kept, '\n'), #kept > 0 and '\n' or '')
  out:close()
  assert(os.rename(path .. '.tmp', path))
end

-- Columns of the terminal; 80 when it does not tell.
local function columns()
  local pipe = io.popen('stty size </dev/tty 2>/dev/null')
  local text = pipe and pipe:read('*a') or ''
  if pipe then
    pipe:close()
  end
  return tonumber(text:match('^%d+ (%d+)')) or 80
end

---@class report.Options
---@field path string  of metrics.jsonl
---@field first_step integer
---@field total integer  steps of the run
---@field terminal boolean
---@field every integer  steps between lines when the output is no terminal

---@param opts report.Options
function report.new(opts)
  local self = setmetatable({
    total = opts.total, terminal = opts.terminal, every = opts.every,
  }, report)
  cut_back(opts.path, opts.first_step)
  self.file = assert(io.open(opts.path, 'a'))
  if self.file:seek('end') == 0 then
    self.file:write(line_of { schema = 1, kind = 'moonshard metrics' })
  end
  self.bar, self.columns = false, opts.terminal and columns() or 0
  return self
end

--- Print a line of text above the bar.
---@param text string
function report:say(text)
  if self.bar then
    io.write('\r\27[K')
    self.bar = false
  end
  io.write(text, '\n')
  io.flush()
end

--- Record a step and show it.
--- `m` has step, loss, lr, norm, tokens_per_s, forward_ms, backward_ms, optimizer_ms, wait_ms,
--- tflops, peak_bytes and eta.
---@param m table<string, number>
function report:step(m)
  self.file:write(line_of {
    step = m.step, loss = m.loss, lr = m.lr, grad_norm = m.norm, tokens_per_s = m.tokens_per_s,
    forward_ms = m.forward_ms, backward_ms = m.backward_ms, optimizer_ms = m.optimizer_ms,
    exposed_comm_ms = m.wait_ms, tflops = m.tflops, peak_bytes = m.peak_bytes,
  })
  self.file:flush()
  local line = ('step %d/%d  loss %.4f  lr %.2e  norm %.3f  %s tok/s  '
    .. 'fwd %.0f bwd %.0f opt %.0f wait %.1f ms  %.3f TFLOP/s  %s  ETA %s'):format(
    m.step, self.total, m.loss, m.lr, m.norm, report.count(m.tokens_per_s),
    m.forward_ms, m.backward_ms, m.optimizer_ms, m.wait_ms, m.tflops,
    report.bytes(m.peak_bytes), report.clock(m.eta))
  if self.terminal then
    local done = math.floor(20 * m.step / self.total)
    local bar = ('[%s%s] %s'):format(('#'):rep(done), ('.'):rep(20 - done), line)
    io.write('\r\27[K', bar:sub(1, self.columns - 1)) -- a wrapped line could not be overwritten
    io.flush()
    self.bar = true
  end
  if (not self.terminal and (m.step % self.every == 0 or m.step == 1)) or m.step == self.total then
    self:say(line)
  end
end

--- Record anything else, e.g. validation.
---@param record table<string, number|string|boolean>
function report:event(record)
  self.file:write(line_of(record))
  self.file:flush()
end

function report:close()
  if self.bar then
    io.write('\n')
  end
  self.file:close()
end

return report
