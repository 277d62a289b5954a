--- How measured values are written.

local text = {}

---@param seconds number
---@return string
function text.seconds(seconds)
  if seconds < 1e-3 then
    return ('%.3g us'):format(seconds * 1e6)
  elseif seconds < 1 then
    return ('%.3g ms'):format(seconds * 1e3)
  end
  return ('%.2f s'):format(seconds)
end

---@param bytes number
---@return string
function text.mebibytes(bytes)
  return ('%.0f MiB'):format(bytes / 2 ^ 20)
end

---@param value number
---@return string
function text.rate(value)
  return ('%.0f tok/s'):format(value)
end

---@param bytes number  a second
---@return string
function text.throughput(bytes)
  return ('%.1f MB/s'):format(bytes * 1e-6)
end

---@param value number
---@return string
function text.flops(value)
  return ('%.1f GF/s'):format(value * 1e-9)
end

---@param value number
---@return string
function text.ratio(value)
  return ('%.3f'):format(value)
end

--- How many times better: "1.46", "3213".
---@param value number
---@return string
function text.times(value)
  return (value < 100 and '%.2f' or '%.0f'):format(value)
end

---@param value number
---@return string
function text.percent(value)
  return ('%.0f %%'):format(100 * value)
end

--- One line of the table.
---@return string
function text.columns(label, ours, theirs, ratio, of_peak, their_peak)
  local line = ('%-50s %12s %12s %7s %8s %9s'):format(label, ours, theirs, ratio, of_peak,
    their_peak)
  return (line:gsub('%s+$', ''))
end

--- Arguments as words of a command line, sorted: "context=128 heads=4 ...".
---@param args table<string, string|number>
---@return string
function text.words(args)
  local words = {}
  for key, value in pairs(args) do
    words[#words + 1] = key .. '=' .. value
  end
  table.sort(words)
  return table.concat(words, ' ')
end

return text
