--- The few numbers the measurements are boiled down to.

local stats = {}

--- Middle of the sorted array; the mean of the two middle ones when their number is even.
---@param values number[]
---@return number
function stats.median(values)
  local sorted = {}
  for i, value in ipairs(values) do
    sorted[i] = value
  end
  table.sort(sorted)
  local n = #sorted
  if n % 2 == 1 then
    return sorted[(n + 1) / 2]
  end
  return (sorted[n / 2] + sorted[n / 2 + 1]) / 2
end

return stats
