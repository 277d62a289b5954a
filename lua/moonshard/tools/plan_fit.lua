--- `moonshard plan --fit=SIZE --try=NAME=VALUE,VALUE --raise=NAME=VALUE,VALUE`: plans a script with
--- combinations of values of its flags, each in a process of its own, and lists those that fit, the
--- fastest first.
---
--- The values of --raise are in the order of the bytes that a rank holds. So combinations above one
--- that is too large are not planned. If two plans contradict that order, all are planned.

local B = require 'moonshard_ffi'
local json = require 'moonshard.base.json'
local ms = require 'moonshard'
local report = require 'moonshard.train.report'

local plan_fit = {}

---@class ms.tools.PlanTry
---@field name string
---@field values string[]
---@field rises boolean  a later value does not hold fewer bytes

---@param text string  NAME=VALUE,VALUE
---@param rises boolean
---@return ms.tools.PlanTry
function plan_fit.parsed(text, rises)
  local name, values = text:match '^%-*([%w_-]+)=(.+)$'
  if not name then
    ms.error('ValueError', "plan: --%s is '%s', expected NAME=VALUE,VALUE",
      rises and 'raise' or 'try', text)
  end
  local try = { name = name, values = {}, rises = rises }
  for value in values:gmatch '[^,]+' do
    try.values[#try.values + 1] = value
  end
  return try
end

--- All combinations: `words` of the script, and the numbers `at` of its values.
---@param tries ms.tools.PlanTry[]
---@return table[] list
function plan_fit.combinations(tries)
  local list = { { words = {}, at = {} } }
  for _, try in ipairs(tries) do
    local longer = {}
    for _, shorter in ipairs(list) do
      for i, value in ipairs(try.values) do
        local words, at = { unpack(shorter.words) }, { unpack(shorter.at) }
        words[#words + 1], at[#at + 1] = ('--%s=%s'):format(try.name, value), i
        longer[#longer + 1] = { words = words, at = at }
      end
    end
    list = longer
  end
  return list
end

-- Does b hold at least the bytes of a, by the order of --raise?
local function is_below(tries, a, b)
  for i, try in ipairs(tries) do
    if a.at[i] > b.at[i] or a.at[i] < b.at[i] and not try.rises then
      return false
    end
  end
  return true
end

local function quoted(words)
  local out = {}
  for i, word in ipairs(words) do
    out[i] = "'" .. word:gsub("'", "'\\''") .. "'"
  end
  return table.concat(out, ' ')
end

-- Start to plan a combination.
local function started(command, combination)
  local path = os.tmpname()
  local line = ('%s 2>&1'):format(quoted(command(path, combination.words)))
  combination.path, combination.pipe = path, assert(io.popen(line))
end

-- Wait for the numbers of a combination that was started, or its error.
local function finish(combination)
  local output = combination.pipe:read '*a'
  combination.pipe:close()
  local file = io.open(combination.path)
  local text = file and file:read '*a' or ''
  if file then
    file:close()
  end
  os.remove(combination.path)
  combination.plan = text ~= '' and json.decode(text) or nil
  combination.why = output:match 'moonshard: plan: ([^\n]*)' or 'it failed'
end

local Search = {}
Search.__index = Search

-- Is a planned combination below this one too large?
function Search:is_bounded(combination)
  for _, other in ipairs(self.planned) do
    if other.plan and other.plan.peak_total > self.budget
      and is_below(self.tries, other, combination) then
      return true
    end
  end
  return false
end

-- Do two plans contradict the order of --raise?
function Search:is_contradicted()
  for _, a in ipairs(self.planned) do
    for _, b in ipairs(self.planned) do
      if a.plan and b.plan and a.plan.peak_total > b.plan.peak_total
        and is_below(self.tries, a, b) then
        return true
      end
    end
  end
  return false
end

-- Plan combinations, as many at once as there are cores, that no bound excludes.
function Search:plan(list, cores, has_bounds)
  local running = {}
  local function wait()
    local combination = table.remove(running, 1)
    finish(combination)
    self.planned[#self.planned + 1] = combination
  end
  for _, combination in ipairs(list) do
    if #running == cores then
      wait()
    end
    combination.is_bounded = has_bounds and self:is_bounded(combination)
    if not combination.is_bounded then
      started(self.command, combination)
      running[#running + 1] = combination
    end
  end
  while running[1] do
    wait()
  end
end

-- Search the combinations. Returns whether the order of --raise was contradicted.
function Search:run(list, cores)
  self:plan(list, cores, true)
  if not self:is_contradicted() then
    return false
  end
  local rest = {}
  for _, combination in ipairs(list) do
    rest[#rest + 1] = combination.is_bounded and combination or nil
  end
  self:plan(rest, cores, false)
  return true
end

-- Seconds of the step, of each target if it has some: combinations may differ in them.
local function cost(plan)
  return plan.seconds / (plan.targets > 0 and plan.targets or 1)
end

-- Those that fit, the best first, then the others in the order of the combinations.
local function sorted(results, budget)
  local fits, others = {}, {}
  for _, result in ipairs(results) do
    local list = result.plan and result.plan.peak_total <= budget and fits or others
    list[#list + 1] = result
  end
  table.sort(fits, function(a, b)
    if cost(a.plan) ~= cost(b.plan) then
      return cost(a.plan) < cost(b.plan)
    end
    return a.plan.peak_total < b.plan.peak_total
  end)
  return fits, others
end

local function row(result, text)
  local plan = result.plan
  return {
    plan and report.bytes(plan.peak_total) or '-',
    plan and ('%.2f ms'):format(1000 * plan.seconds) or '-', text,
    table.concat(result.words, ' '),
  }
end

--- Print the combinations. Returns 1 if none fits.
---@param budget number  bytes of a rank
---@param tries ms.tools.PlanTry[]
---@param command fun(path: string, words: string[]): string[]  plans these words of the script
---@return integer exit_code
function plan_fit.run(budget, tries, command)
  local info = B.new('ms_dist_info')
  B.C.ms_dist_info_get(info)
  local list = plan_fit.combinations(tries)
  local search = setmetatable({ budget = budget, tries = tries, command = command, planned = {} },
    Search)
  local is_contradicted = search:run(list, info.cores)
  local fits, others = sorted(list, budget)
  local rows = { { 'memory', 'step', '', 'options' } }
  for _, result in ipairs(fits) do
    rows[#rows + 1] = row(result, 'fits')
  end
  for _, result in ipairs(others) do
    rows[#rows + 1] = row(result, result.is_bounded and 'not planned'
      or result.plan and 'too large' or result.why)
  end
  print(report.table(rows))
  print(('\nplanned %d of %d combinations%s'):format(#search.planned, #list, is_contradicted
    and ', since memory does not rise in the order of --raise' or ''))
  print(fits[1] and 'fastest that fits: ' .. table.concat(fits[1].words, ' ')
    or ('none fits into %s'):format(report.bytes(budget)))
  return fits[1] and 0 or 1
end

return plan_fit
