--- `moonshard plan --fit=SIZE --try=NAME=VALUE,VALUE`: plans a script with every combination of
--- values of its flags, each in a process of its own, and lists those that fit, the fastest first.

local B = require 'moonshard_ffi'
local json = require 'moonshard.base.json'
local ms = require 'moonshard'
local report = require 'moonshard.train.report'

local plan_fit = {}

-- { 'a=1,2', 'b=x' } -> the lists of words { '--a=1', '--b=x' }, { '--a=2', '--b=x' }
local function combinations(tries)
  local list = { {} }
  for _, try in ipairs(tries) do
    local name, values = try:match '^%-*([%w_-]+)=(.+)$'
    if not name then
      ms.error('ValueError', "plan: --try is '%s', expected NAME=VALUE,VALUE", try)
    end
    local longer = {}
    for _, words in ipairs(list) do
      for value in values:gmatch '[^,]+' do
        longer[#longer + 1] = { unpack(words) }
        table.insert(longer[#longer], ('--%s=%s'):format(name, value))
      end
    end
    list = longer
  end
  return list
end

local function quoted(words)
  local out = {}
  for i, word in ipairs(words) do
    out[i] = "'" .. word:gsub("'", "'\\''") .. "'"
  end
  return table.concat(out, ' ')
end

-- The numbers of a plan that was started, or its error.
local function finished(job)
  local output = job.pipe:read '*a'
  job.pipe:close()
  local file = io.open(job.path)
  local text = file and file:read '*a' or ''
  if file then
    file:close()
  end
  os.remove(job.path)
  return {
    words = job.words, plan = text ~= '' and json.decode(text) or nil,
    why = output:match 'moonshard: plan: ([^\n]*)' or 'it failed',
  }
end

-- Plans of all combinations, as many at once as there are cores.
local function plans(command, list, cores)
  local jobs, results = {}, {}
  for i, words in ipairs(list) do
    local path = os.tmpname()
    local line = ('%s 2>&1'):format(quoted(command(path, words)))
    jobs[i] = { words = words, path = path, pipe = assert(io.popen(line)) }
    if i >= cores then
      results[i - cores + 1] = finished(jobs[i - cores + 1])
    end
  end
  for i = #results + 1, #jobs do
    results[i] = finished(jobs[i])
  end
  return results
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

local function row(result, note)
  local plan = result.plan
  return {
    plan and report.bytes(plan.peak_total) or '-',
    plan and ('%.2f ms'):format(1000 * plan.seconds) or '-', note,
    table.concat(result.words, ' '),
  }
end

--- Print the combinations. Returns 1 if none fits.
---@param budget number  bytes of a rank
---@param tries string[]
---@param command fun(path: string, words: string[]): string[]  plans these words of the script
---@return integer exit_code
function plan_fit.run(budget, tries, command)
  local info = B.new('ms_dist_info')
  B.C.ms_dist_info_get(info)
  local fits, others = sorted(plans(command, combinations(tries), info.cores), budget)
  local rows = { { 'memory', 'step', '', 'options' } }
  for _, result in ipairs(fits) do
    rows[#rows + 1] = row(result, 'fits')
  end
  for _, result in ipairs(others) do
    rows[#rows + 1] = row(result, result.plan and 'too large' or result.why)
  end
  print(report.table(rows))
  print(fits[1] and '\nfastest that fits: ' .. table.concat(fits[1].words, ' ')
    or ('\nnone fits into %s'):format(report.bytes(budget)))
  return fits[1] and 0 or 1
end

return plan_fit
