--- Helpers of specs with ranks: a small model, hashes, files, reports of ranks.

local ms = require 'moonshard'
local buffer = require 'string.buffer'
local shell = require 'support.shell'

local runs = {}

--- A transformer of one layer.
function runs.gpt()
  return ms.models.GPT { vocab = 13, layers = 1, heads = 2, width = 10, context = 4, dropout = 0.1 }
end

--- Hash of the values of all parameters. Collective.
function runs.hash_of(model)
  local sd, parts = model:state_dict { full_state_dict = true }, {}
  for i, name in ipairs(sd) do
    parts[i] = sd[name]:hash()
  end
  return table.concat(parts)
end

local LAUNCHED = os.getenv 'MOONSHARD_SPEC_LAUNCHED'

--- A path that does not exist; in launched ranks that of rank 0.
function runs.folder()
  local path = os.tmpname()
  os.remove(path)
  if LAUNCHED then
    ms.dist.init()
    path = ms.dist.broadcast_object(path)
  end
  return path
end

--- Run `fn(rank)` as two ranks: forked ones, or those in which launched() repeats the test.
function runs.pair(fn)
  if not LAUNCHED then
    ms.dist.spawn(2, fn)
    return
  end
  fn(ms.dist.init().rank)
  ms.dist.barrier()
end

--- Repeat the tests of a file that are tagged #pair in two processes of the launcher: they walk
--- tables in different orders, which forked ranks do not.
---@param spec string
function runs.launched(spec)
  local code, output = shell.run('.', ('env MOONSHARD_SPEC_LAUNCHED=1 bindings/moonshard run -n 2 '
    .. 'luajit $(command -v busted) --tags=pair %s'):format(spec))
  assert(code == 0 and output:find '[1-9]%d* success', output)
end

--- Append a line to a file, from any rank.
function runs.write(path, text)
  local file = assert(io.open(path, 'a'))
  file:write(text, '\n')
  file:close()
end

--- The lines of a file. Removes the file.
function runs.lines(path)
  local out = {}
  for line in io.lines(path) do
    out[#out + 1] = line
  end
  os.remove(path)
  return out
end

--- Run `fn(rank)` as n ranks. It returns a report, and an error for the rank to raise, or nil.
---@return table<integer, string> reports  by rank
---@return string? cause  of the job's failure
function runs.reports(n, fn)
  local path = runs.folder()
  local _, cause = pcall(ms.dist.spawn, n, function(rank)
    local text, err = fn(rank)
    local file = assert(io.open(path .. rank, 'w'))
    file:write(text)
    file:close()
    if err then
      error(err, 0)
    end
  end)
  local reports = {}
  for rank = 0, n - 1 do
    local file = assert(io.open(path .. rank), 'rank ' .. rank .. ' said nothing')
    reports[rank] = file:read('*a')
    file:close()
    os.remove(path .. rank)
  end
  return reports, cause and cause.message
end

--- The result of `fn(...)` in a new process. A process that computes opens its device and cannot
--- fork ranks afterwards.
---@return any  nil, booleans, numbers, strings and tables of them
function runs.alone(fn, ...)
  local path, n, args = runs.folder(), select('#', ...), { ... }
  ms.dist.spawn(1, function()
    local file = assert(io.open(path, 'w'))
    file:write(buffer.encode(fn(unpack(args, 1, n))))
    file:close()
  end)
  local file = assert(io.open(path))
  local bytes = file:read '*a'
  file:close()
  os.remove(path)
  return buffer.decode(bytes)
end

return runs
