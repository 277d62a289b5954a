-- Random training programs over all options of FSDP, against the plain model: see programs/.
--
-- MS_PROGRAMS=n programs (200) from MS_SEED=s (1) on; MS_PROGRAM='{ ... }' runs that one.
local ms = require 'moonshard'
package.path = 'spec/?.lua;' .. package.path
local maker = require 'fsdp.programs.maker'
local check = require 'fsdp.programs.check'
local shell = require 'support.shell'
local ffi = require 'ffi'

local BATCH = 10 -- programs that one set of ranks runs

local function body(_, _, programs)
  for i, p in ipairs(programs) do
    local ok, err = pcall(check, p)
    if not ok then
      error(('program %d: %s'):format(i, tostring(err)), 0)
    end
  end
end

-- Run a program by ranks that are processes of their own.
local function launch(p)
  local main = ([[os.exit(require('moonshard.tools.cli').main { [0] = 'moonshard', 'run', '-n',
    '%d', 'luajit', 'spec/fsdp/programs/rank.lua', [=[%s]=] })]]):format(p.world, maker.text(p))
  local code, output = shell.run('.', ('luajit -e "%s"'):format(main))
  if code ~= 0 then
    error('program 1: ' .. output, 0)
  end
end

-- nil, or the index of the program that failed (0: unknown), and why.
local function first_failure(programs)
  local first = programs[1]
  ffi.C.setenv('MS_TEST_HOSTS', tostring(first.hosts), 1)
  local ok, err = pcall(first.launched and launch or ms.dist.spawn, first.launched and first
    or first.world, body, programs)
  if ok then
    return nil
  end
  local text = tostring(type(err) == 'table' and err.message or err)
  local index, why = text:match 'program (%d+): (.*)'
  return tonumber(index or 0), why or text
end

local function alone(p)
  local _, why = first_failure { p }
  return why
end

local function report(p, why)
  local tries = alone(p) and 1 or 4 -- some fail now and then
  local small = maker.shrink(p, function(smaller)
    for _ = 1, tries do
      if alone(smaller) then
        return true
      end
    end
  end)
  return table.concat({ '', ('seed %d: %s'):format(p.seed, why:match '[^\n]*'), maker.text(p),
    'smaller: ' .. (alone(small) or why):match '[^\n]*',
    ('MS_PROGRAM="%s" busted spec/fsdp/programs_spec.lua'):format(maker.text(small)) }, '\n  ')
end

local function run_all(programs, failures)
  while #programs > 0 do
    local index, why = first_failure(programs)
    if not index then
      return
    elseif index == 0 then -- a rank ended in no program's error: which?
      for i, p in ipairs(programs) do
        if alone(p) then
          index = i
          break
        end
      end
      assert(index > 0, 'programs fail only one after another: ' .. why)
    end
    failures[#failures + 1] = report(programs[index], why)
    local rest = {}
    for i = index + 1, #programs do
      rest[#rest + 1] = programs[i]
    end
    programs = rest
  end
end

local function programs_of(first, n)
  local batches, open = {}, {}
  for seed = first, first + n - 1 do
    local p = maker.draw(seed)
    local kind = p.world * 10 + p.hosts
    local batch = not p.launched and open[kind]
    if not batch or #batch == BATCH then
      batch = {}
      open[kind], batches[#batches + 1] = not p.launched and batch or nil, batch
    end
    batch[#batch + 1] = p
  end
  return batches
end

describe('random programs', function()
  it('train as the plain model does', function()
    local one, failures = os.getenv 'MS_PROGRAM', {}
    local batches = one and { { maker.parse(one) } }
      or programs_of(tonumber(os.getenv 'MS_SEED' or 1), tonumber(os.getenv 'MS_PROGRAMS' or 200))
    for _, batch in ipairs(batches) do
      run_all(batch, failures)
    end
    assert(#failures == 0, ('%d programs failed\n%s'):format(#failures,
      table.concat(failures)))
  end)
end)
