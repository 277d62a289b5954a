--- Start, description and stop of the ranks of a job.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local validate = require 'moonshard.dist.validate'
local uncaught = require 'moonshard.base.uncaught'

local C = B.C

local launch = {}

local MAX_DEFAULT_RANKS = 8

local info = B.new('ms_dist_info')
local rank_out = B.new('int32_t[1]')
local code_out = B.new('int32_t[1]')
local cause_out = B.new('const char *[1]')
local launch_out = B.new('ms_launch *[1]')

---@class ms.dist.World
---@field rank integer  from 0
---@field world_size integer
---@field local_rank integer  among the ranks of this host
---@field local_world_size integer
---@field host integer  number of this host, from 0
---@field hosts integer  number of hosts
---@field cores integer  number of cores this rank may run on
---@field initialized boolean
---@field launcher string  'none', 'fork', 'run', 'thread' or 'plan'
---@field transport string  'self', 'shm'; on several hosts 'shm+tcp' or 'shm+ucx'

-- While a script is planned: this rank, the number of ranks, and of those on each host.
local planned = nil

-- Make this process rank `rank` of a job whose other ranks do not exist (`moonshard plan`).
---@param rank integer
---@param hosts integer
---@param ranks_per_host integer
function launch._plan(rank, hosts, ranks_per_host)
  B.check(C.ms_comm_fake_world(rank, hosts * ranks_per_host))
  planned = { rank = rank, world = hosts * ranks_per_host, on_host = ranks_per_host }
end

-- A process started by a launcher is a rank before it calls init.
local function look()
  C.ms_dist_info_get(info)
  if planned then
    info.rank, info.local_rank = planned.rank, planned.rank % planned.on_host
    info.world_size, info.local_world_size = planned.world, planned.on_host
    info.host = math.floor(planned.rank / planned.on_host)
    info.n_hosts = planned.world / planned.on_host
    info.launcher = 'plan'
    return info
  end
  if not info.initialized and C.ms_dist_launched() then
    B.check(C.ms_dist_join())
    uncaught.install()
    C.ms_dist_info_get(info)
  end
  return info
end

local function describe(world)
  return ('rank %d of %d (launcher %s, transport %s)'):format(world.rank, world.world_size,
    world.launcher, world.transport)
end

--- This process's rank and the job; before init forks, a world of one rank.
---@return ms.dist.World
function launch.info()
  look()
  return setmetatable({
    rank = info.rank,
    world_size = info.world_size,
    local_rank = info.local_rank,
    local_world_size = info.local_world_size,
    host = info.host,
    hosts = info.n_hosts,
    cores = info.cores,
    initialized = info.initialized,
    launcher = B.string(info.launcher),
    transport = B.string(info.transport),
  }, { __tostring = describe })
end

local function no_group(what, group, method)
  if group ~= nil then
    errors.raise('TypeError', '%s() is of all ranks, but got %s; in a group write group:%s()', what,
      arguments.noun(group), method)
  end
end

---@param group? nil  use group:rank() for a group
---@return integer  from 0
function launch.rank(group)
  no_group('dist.rank', group, 'rank')
  return look().rank
end

---@param group? nil  use group:size() for a group
---@return integer
function launch.world_size(group)
  no_group('dist.world_size', group, 'size')
  return look().world_size
end

-- -- starting ranks ------------------------------------------------------------------------------

local function check_ranks(what, ranks)
  arguments.whole(what, 'ranks', ranks, nil, 1)
  if ranks > C.MS_MAX_RANKS then
    errors.raise('ValueError', "%s: 'ranks' is %.17g, expected 1 to %d", what, ranks,
      C.MS_MAX_RANKS)
  end
end

--- Fork ranks. Returns nothing in a rank; in the caller it returns the launch to wait for.
local function fork(ranks)
  jit.flush() -- compiled traces refer to tensors
  B.collect() -- free unreferenced tensors, which prevent a fork
  B.check(C.ms_launch_fork(launch_out, ranks, rank_out))
  return rank_out[0] < 0 and launch_out[0] or nil
end

---@return integer exit_code, string cause
local function wait(job)
  B.check(C.ms_launch_wait(job, code_out, cause_out))
  return code_out[0], B.string(cause_out[0])
end

---@class ms.dist.InitOptions
---@field ranks? integer  number of ranks (default: the launcher's, else one for each core, at most
---  8)

local function init_options(what, opts)
  opts = errors.options(what, opts, { 'ranks', 'hosts', 'backend', 'timeout' })
  if opts.hosts ~= nil then
    errors.raise('NotImplementedError', '%s: several hosts are not supported yet', what)
  elseif opts.backend ~= nil then
    if opts.backend == 'fake' then
      errors.raise('ValueError', "%s: write dist.fake { rank = r, world = n } for a group of ranks "
        .. 'that are not there', what)
    end
    errors.raise('NotImplementedError', '%s: a choice of backends is not supported yet; the ranks '
      .. 'of a host talk through its memory', what)
  elseif opts.timeout ~= nil then
    errors.raise('ValueError', "%s: 'timeout' is not an option; set how long ranks wait with "
      .. 'MS_COMM_TIMEOUT=SECONDS in the environment', what)
  end
  if opts.ranks ~= nil then
    check_ranks(what, opts.ranks)
  end
  return opts
end

launch._is_prompt = false -- of the moonshard command, whose input several ranks would read

--- Become a world of one rank, or fork.
local function start(what, ranks)
  if ranks == 1 then
    B.check(C.ms_dist_join())
    return
  elseif launch._is_prompt then
    errors.raise('RuntimeError', '%s: a prompt cannot go on as %d ranks; put the script into a '
      .. 'file, or give dist.spawn a function', what, ranks)
  end
  local job = fork(ranks)
  if job then
    local code, cause = wait(job)
    if cause ~= '' then
      io.stderr:write('moonshard: ', cause, '\n')
    end
    C.ms_dist_exit(code)
  end
  uncaught.install()
end

launch._faked = false -- dist.fake made this process a world of one

-- Explains why the job has its number of ranks, and what to do to change it.
local function advice(here)
  if here.launcher ~= 'none' then
    return "leave 'ranks' out to take what was started"
  end
  return (launch._faked and 'dist.fake' or 'a collective, dist.split, FSDP or an init before')
    .. ' made it a world of its own; init comes first'
end

local function check_started(what, here, ranks)
  if ranks ~= nil and ranks ~= here.world_size and not planned then
    errors.raise('RuntimeError', "%s: 'ranks' is %d, but this process is one of %d already: %s",
      what, ranks, here.world_size, advice(here))
  end
end

local function init(what, opts)
  opts = init_options(what, opts)
  local here = launch.info()
  if here.initialized then
    check_started(what, here, opts.ranks)
    return here
  elseif here.launcher ~= 'none' then
    errors.raise('RuntimeError', '%s: this rank has left its job', what)
  end
  start(what, opts.ranks or math.min(here.cores, MAX_DEFAULT_RANKS))
  return launch.info()
end

--- Make this process one of several ranks: join those of a launcher, or fork. The script continues
--- once on each rank. An error that a rank does not catch is reported to all other ranks and to the
--- launcher. A second call has no effect; RuntimeError if it asks for another number of ranks.
---@param opts? ms.dist.InitOptions
---@param more? nil
---@return ms.dist.World
function launch.init(opts, more)
  if type(opts) == 'string' then -- as init_process_group() accepts it
    init_options('dist.init', { backend = opts })
  elseif more ~= nil then
    errors.raise('TypeError', 'dist.init(opts): %s is one argument too many', arguments.noun(more))
  end
  return init('dist.init', opts)
end

--- Call init, then `fn(world, ...)`. An error in fn ends this process and is reported to the other
--- ranks.
---@param opts ms.dist.InitOptions?
---@param fn fun(world: ms.dist.World, ...): ...
---@return ...
function launch.run(opts, fn, ...)
  arguments.fn('dist.run', 'fn', fn)
  local world = init('dist.run', opts)
  if world.world_size == 1 then
    return fn(world, ...)
  end
  local results = { uncaught.call(fn, world, ...) }
  if not results[1] then
    C.ms_dist_exit(1)
  end
  return unpack(results, 2, table.maxn(results))
end

--- Run `fn(rank, world_size, ...)` on `n` forked ranks and wait for them. CommError gives the first
--- rank that failed and its error. If this process receives SIGINT, SIGTERM or SIGHUP meanwhile,
--- the ranks are asked to stop; when they have ended, the signal is raised again in this process,
--- which ends the script unless it handles the signal. RuntimeError if this process is a rank
--- itself, also one of `moonshard run`.
---@param n integer
---@param fn fun(rank: integer, world_size: integer, ...)
function launch.spawn(n, fn, ...)
  check_ranks('dist.spawn', n)
  arguments.fn('dist.spawn', 'fn', fn)
  look() -- a launcher's rank must not start ranks
  local job = fork(n)
  if not job then
    C.ms_dist_exit(xpcall(fn, uncaught.tell, rank_out[0], n, ...) and 0 or 1)
  end
  local code, cause = wait(job)
  C.ms_dist_pass_on_stop()
  if code ~= 0 then
    errors.raise('CommError', '%s', cause ~= '' and cause or 'the ranks left with code ' .. code)
  end
end

--- End this process with `code`. The launcher exits with the first code that is not 0.
---@param code? integer  0 to 255, default 0
function launch.exit(code)
  code = arguments.whole('dist.exit', 'code', code, 0, 0)
  if code > 255 then
    errors.raise('ValueError', "dist.exit: 'code' is %d, expected 0 to 255", code)
  end
  io.flush()
  C.ms_dist_exit(code)
end

--- Leave the job. Later collectives raise errors, and values of this rank are no longer compared.
function launch.leave()
  B.check(C.ms_dist_leave())
end

-- -- stopping ------------------------------------------------------------------------------------

local catching = false

--- From now on SIGINT, SIGTERM, SIGHUP and SIGUSR1 only make stop_requested() return them.
function launch.catch_signals()
  if not catching then
    catching = true
    B.check(C.ms_dist_catch_signals())
  end
end

--- Did any rank receive one of the signals of catch_signals()? Collective; all ranks get the same
--- answer. Groups ask independently: a signal that one group has seen is returned to others at
--- their next call.
---@param group? ffi.cdata*
---@return integer?  the signal's number, or nil
function launch.stop_requested(group)
  group = validate.group('stop_requested', group)
  launch.catch_signals()
  B.check(C.ms_comm_stop_agreed(group, code_out))
  return code_out[0] ~= 0 and code_out[0] or nil
end

return launch
