--- `moonshard doctor`: what this machine has for training, and what is missing.

local B = require 'moonshard_ffi'
local machine = require 'moonshard.base.machine'
local probe = require 'moonshard_ffi.probe'

local doctor = {}

-- A step of sharded training, in a process of its own: what kills it does not kill the doctor.
local JOB = [[
local ok, why = pcall(function()
  local ms = require "moonshard"
  local world = ms.dist.init { ranks = %d }
  local model = ms.fsdp.FSDP(ms.nn.Sequential { ms.nn.Linear(64, 64), ms.nn.ReLU() })
  local opt = ms.optim.AdamW(model:parameters(), { lr = 0.1 })
  local loss = model(ms.ones(8, 64)):mean()
  loss:backward()
  opt:step()
  loss:item()
  if world.rank == 0 then
    print("works " .. ms.numerics():gsub(", build.*", ""))
  end
end)
if not ok then
  print("fails " .. tostring(why):gsub("\n.*", ""))
end]]

local function say(name, format, ...)
  print(('%-16s%s'):format(name, format:format(...)))
end

local function read(path)
  local file = io.open(path)
  local text = file and file:read '*a'
  if file then
    file:close()
  end
  return text or ''
end

local function size(bytes)
  local unit = bytes < 2 ^ 30 and { 2 ^ 20, 'MiB' } or { 2 ^ 30, 'GiB' }
  return (('%.1f %s'):format(bytes / unit[1], unit[2]):gsub('%.0 ', ' '))
end

local function one_line(text)
  return (tostring(text):gsub('\n.*', ''))
end

-- -- processor and memory ------------------------------------------------------------------------

local function bf16_units(flags)
  local found = {}
  for _, unit in ipairs { { 'amx_bf16', 'AMX' }, { 'avx512_bf16', 'AVX-512' } } do
    found[#found + 1] = flags:find(' ' .. unit[1] .. ' ', 1, true) and unit[2] or nil
  end
  return found[1] and table.concat(found, ', ') or 'none: bf16 products are computed in f32'
end

local function say_processor(cores)
  local info = read '/proc/cpuinfo'
  local _, processors = info:gsub('processor%s*:', '')
  local limit = os.getenv 'MS_CPU_ISA'
  say('processor', '%s', info:match('model name%s*:%s*([^\n]*)') or 'unknown')
  say('cores', '%d of %d', cores, processors)
  say('kernels', '%s%s', machine.cpu_isa(), limit and (' (MS_CPU_ISA=%s)'):format(limit) or '')
  say('bf16 units', '%s', bf16_units(' ' .. (info:match('flags%s*:%s*([^\n]*)') or '') .. ' '))
end

-- The smallest limit of this process's cgroup and those above it: version 2, else 1.
local function cgroup_memory()
  local groups, least = read '/proc/self/cgroup', nil
  local function look(root, path, file)
    path = (path or ''):gsub('/$', '')
    repeat
      local limit = tonumber(read(root .. path .. '/' .. file):match('^%d+'))
      if limit and limit < 2 ^ 60 then -- version 1 has a large number for none
        least = math.min(limit, least or limit)
      end
      local is_root = path == ''
      path = path:match('^(.*)/[^/]*$') or ''
    until is_root
  end
  look('/sys/fs/cgroup', groups:match('0::(/[^\n]*)'), 'memory.max')
  look('/sys/fs/cgroup/memory', groups:match(':memory:(/[^\n]*)'), 'memory.limit_in_bytes')
  return least
end

local function say_memory()
  local info = read '/proc/meminfo'
  local function of(name)
    return (tonumber(info:match(name .. ':%s*(%d+) kB')) or 0) * 1024
  end
  local limit = cgroup_memory()
  local total, free = probe.file_system '/dev/shm'
  say('memory', '%s, %s available', size(of 'MemTotal'), size(of 'MemAvailable'))
  say('cgroup limit', '%s', limit and size(limit) or 'none')
  say('/dev/shm', '%s', total and ('%s, %s free; only NCCL uses it')
    :format(size(total), size(free)) or 'missing; only NCCL uses it')
end

local function say_limits()
  local limits = read '/proc/self/limits'
  for _, row in ipairs { { 'address space', 'Max address space', true },
    { 'locked memory', 'Max locked memory', true }, { 'open files', 'Max open files' },
    { 'processes', 'Max processes' } } do
    local soft = limits:match(row[2] .. '%s+(%S+)') or 'unknown'
    say(row[1], '%s', row[3] and tonumber(soft) and size(tonumber(soft)) or soft)
  end
end

-- -- libraries -----------------------------------------------------------------------------------

-- The path of a plug-in, or nil.
local function plugin_path(name, folder)
  for _, where in ipairs { os.getenv 'MS_PLUGIN_DIR' or folder, folder } do
    local path = ('%s/libmoonshard_%s.so'):format(where, name)
    local file = io.open(path)
    if file then
      file:close()
      return path
    end
  end
end

local function say_products(folder)
  local library = machine.numerics():match('^[^,]*, ([^,]*)')
  if library == 'none' then
    local path = plugin_path('onednn', folder)
    local reason = os.getenv 'MS_ONEDNN' == '0' and 'MS_ONEDNN is 0'
      or not path and 'libmoonshard_onednn.so is not in ' .. folder
    if not reason then
      local opened, why = probe.library { path }
      reason = opened and path .. ' is of another version' or one_line(why)
    end
    say('matrix library', 'missing: %s; own kernels are slower', reason)
  else
    say('matrix library', '%s', library)
  end
  for _, dtype in ipairs { 'f32', 'bf16' } do
    say(dtype .. ' products', '%s', machine.matmul_name(dtype))
  end
end

-- Print the libraries for GPUs; returns which were found.
local function say_libraries()
  local found = {}
  for _, row in ipairs(probe.libraries) do
    local library, name = probe.library(row.sonames)
    local ok, version = pcall(row.version, library)
    found[row.name] = library ~= nil
    say(row.name, '%s', not library and 'missing: ' .. one_line(name)
      or ('%s (%s)'):format(ok and version or 'unknown version', name))
  end
  return found
end

-- -- devices -------------------------------------------------------------------------------------

-- Train on a device; true, or false with the reason.
local function trains(interpreter, device, ranks)
  local pipe = io.popen(("MS_DEVICE=%s MS_COMM_TIMEOUT=30 %s -e '%s' 2>&1"):format(device,
    interpreter, JOB:format(ranks)))
  local output = pipe and pipe:read '*a' or ''
  if pipe then
    pipe:close()
  end
  local words = output:match('works ([^\n]*)')
  return words ~= nil, words or output:match('fails ([^\n]*)') or output:match('([^\n]+)\n*$')
    or 'its process ends without output'
end

-- Whether there is a driver with cards.
local function say_driver()
  local driver, reason = probe.driver()
  if not driver then
    say('driver', 'missing: %s', one_line(reason))
    say('cards', 'unknown without a driver')
    return false
  end
  local text = read '/proc/driver/nvidia/version'
  local release = text:match 'Module%s+(%S+)' or text:match 'x86_64%s+(%S+)'
  say('driver', '%s, CUDA up to %s', release or 'unknown release', driver.cuda)
  if not driver.cards[1] then
    say('cards', 'missing: %s', driver.failed or 'the driver has none')
  end
  for i, card in ipairs(driver.cards) do
    say('card ' .. i - 1, '%s, %s, compute capability %s', card.name, size(card.bytes),
      card.capability)
  end
  return driver.cards[1] ~= nil
end

local function say_plugin(name, folder)
  local path = plugin_path(name:lower(), folder)
  say(name .. ' plug-in', '%s', path or ('missing: libmoonshard_%s.so is not in %s')
    :format(name:lower(), folder))
  return path ~= nil
end

-- 'no: needs ...' with the names of what was not found; nil if all was.
local function missing(have, needs)
  local names = {}
  for _, name in ipairs(needs) do
    names[#names + 1] = not have[name] and name or nil
  end
  return names[1] and 'no: needs ' .. table.concat(names, ', ')
end

-- Print what can be used, and what is missing for the rest. True if training on the CPU works.
local function say_uses(interpreter, have)
  local begin = machine.time()
  local works, text = trains(interpreter, 'cpu', 2)
  say('CPU training', '%s', works and ('yes: a step of 2 ranks by shared memory took %.2f s')
    :format(machine.time() - begin) or 'no: ' .. text)
  local lacks = missing(have, { 'the CUDA plug-in', 'a driver with a card', 'cuBLASLt' })
  if not lacks then
    local on_card, how = trains(interpreter, 'cuda', 1)
    lacks = (on_card and 'yes: ' or 'no: ') .. how
  end
  say('CUDA training', '%s', lacks)
  say('NCCL transport', '%s',
    missing(have, { 'the NCCL plug-in', 'a driver with a card', 'NCCL' }) or 'yes')
  say('several hosts', works and 'yes: on the CPU, by TCP (moonshard run --hosts)' or 'no')
  return works
end

--- Print the facts, one a line.
---@param cores integer  that this process may use
---@param folder string  of libmoonshard.so
---@param interpreter string  luajit, as a word for the shell
---@return boolean  true if training on the CPU works
function doctor.main(cores, folder, interpreter)
  say('version', '%s', B.string(B.C.ms_version()))
  say('library', '%s', folder)
  say_processor(cores)
  say_memory()
  say_limits()
  say_products(folder)
  local cuda_plugin, nccl_plugin = say_plugin('CUDA', folder), say_plugin('NCCL', folder)
  local cards = say_driver()
  local have = say_libraries()
  have['the CUDA plug-in'], have['the NCCL plug-in'] = cuda_plugin, nccl_plugin
  have['a driver with a card'] = cards
  return say_uses(interpreter, have)
end

return doctor
