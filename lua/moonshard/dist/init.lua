--- Ranks from Lua: starting them, groups of them, and collectives over all or some.
---
---   local world = ms.dist.init()      -- this script now runs once per rank
---   ms.dist.all_reduce(t, 'sum')
---
--- `init` joins the ranks a launcher started (`moonshard run`), or forks them from a script that
--- was started plainly: the first process then only supervises and never returns.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'
local validate = require 'moonshard.dist.validate'
local mesh = require 'moonshard.dist.mesh'
local messages = require 'moonshard.dist.messages'
local namespace = require 'moonshard.base.namespace'
local notes = require 'moonshard_ffi.notes'
local objects = require 'moonshard.dist.objects'
local ops = require 'moonshard.ops'
local parts = require 'moonshard.dist.parts'
local autograd = require 'moonshard.autograd'
local process_groups = require 'moonshard.dist.process_groups'
local uncaught = require 'moonshard.base.uncaught'
local work = require 'moonshard.dist.work'

local C, calls = B.C, B.calls

local dist = {}

local MAX_DEFAULT_RANKS = 8

local info = B.new('ms_dist_info')
local rank_out = B.new('int32_t[1]')
local code_out = B.new('int32_t[1]')
local cause_out = B.new('const char *[1]')
local launch_out = B.new('ms_launch *[1]')

---@class ms.dist.World
---@field rank integer              from 0
---@field world_size integer
---@field local_rank integer        among the ranks of this host
---@field local_world_size integer
---@field cores integer             cores this rank may run on
---@field initialized boolean
---@field launcher string           'none', 'fork', 'run' or 'thread'
---@field transport string          'self' or 'shm'

-- What a launcher started is a rank from the beginning, whether or not it has called init.
local function look()
  C.ms_dist_info_get(info)
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

--- Who this process is among the ranks; a world of one before init forks.
---@return ms.dist.World
function dist.info()
  look()
  return setmetatable({
    rank = info.rank,
    world_size = info.world_size,
    local_rank = info.local_rank,
    local_world_size = info.local_world_size,
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

---@param group? nil  group:rank() tells the place in one
---@return integer  from 0
function dist.rank(group)
  no_group('dist.rank', group, 'rank')
  return look().rank
end

---@param group? nil  group:size() tells that of one
---@return integer
function dist.world_size(group)
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

--- Fork ranks. In a rank this returns nothing; in the caller the launch to wait for.
local function fork(ranks)
  jit.flush() -- compiled traces hold the tensors they were recorded with
  B.collect() -- tensors nobody refers to any more are not in the way
  B.check(C.ms_launch_fork(launch_out, ranks, rank_out))
  return rank_out[0] < 0 and launch_out[0] or nil
end

---@return integer exit_code, string cause
local function wait(launch)
  B.check(C.ms_launch_wait(launch, code_out, cause_out))
  return code_out[0], B.string(cause_out[0])
end

---@class ms.dist.InitOptions
---@field ranks? integer  how many (default: those of the launcher, else one per core, at most 8)

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
    errors.raise('ValueError', "%s: 'timeout' is no option; MS_COMM_TIMEOUT=SECONDS in the "
      .. 'environment says how long a rank waits for another', what)
  end
  if opts.ranks ~= nil then
    check_ranks(what, opts.ranks)
  end
  return opts
end

--- Become a world of one, or fork.
local function start(ranks)
  if ranks == 1 then
    B.check(C.ms_dist_join())
    return
  end
  local launch = fork(ranks)
  if launch then
    local code, cause = wait(launch)
    if cause ~= '' then
      io.stderr:write('moonshard: ', cause, '\n')
    end
    C.ms_dist_exit(code)
  end
  uncaught.install()
end

local faked = false -- by dist.fake this process became a world of one

-- What made this process one of as many ranks as it is, and what to do.
local function advice(here)
  if here.launcher ~= 'none' then
    return "leave 'ranks' out to take what was started"
  end
  return (faked and 'dist.fake' or 'a collective, dist.split, FSDP or an init before')
    .. ' made it a world of its own; init comes first'
end

local function check_started(what, here, ranks)
  if ranks ~= nil and ranks ~= here.world_size then
    errors.raise('RuntimeError', "%s: 'ranks' is %d, but this process is one of %d already: %s",
      what, ranks, here.world_size, advice(here))
  end
end

local function init(what, opts)
  opts = init_options(what, opts)
  local here = dist.info()
  if here.initialized then
    check_started(what, here, opts.ranks)
    return here
  elseif here.launcher ~= 'none' then
    errors.raise('RuntimeError', '%s: this rank has left its job', what)
  end
  start(opts.ranks or math.min(here.cores, MAX_DEFAULT_RANKS))
  return dist.info()
end

--- Become one of several ranks: one of those a launcher started, or fork. The script goes on once
--- per rank. What a rank raises and does not catch becomes the cause that all others and the
--- launcher are told. Called again it changes nothing, and another number of ranks is an error.
---@param opts? ms.dist.InitOptions
---@param more? nil
---@return ms.dist.World
function dist.init(opts, more)
  if type(opts) == 'string' then -- as init_process_group() has it
    init_options('dist.init', { backend = opts })
  elseif more ~= nil then
    errors.raise('TypeError', 'dist.init(opts): %s is one argument too many', arguments.noun(more))
  end
  return init('dist.init', opts)
end

--- init, then `fn(world, ...)`. An error in it ends this process and reaches the other ranks with
--- its message, wherever the script was started.
---@param opts ms.dist.InitOptions?
---@param fn fun(world: ms.dist.World, ...): ...
---@return ...
function dist.run(opts, fn, ...)
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

--- Run `fn(rank, world_size, ...)` on `n` forked ranks and wait for them. CommError names the rank
--- that failed first, and what it raised. A SIGINT, SIGTERM or SIGHUP that reached this process
--- meanwhile asks the ranks to stop; when they have ended it is raised again here, so that the
--- script does not go on as if nothing had been asked: it ends, unless it handles the signal.
--- RuntimeError in a rank, also where `moonshard run` started it.
---@param n integer
---@param fn fun(rank: integer, world_size: integer, ...)
function dist.spawn(n, fn, ...)
  check_ranks('dist.spawn', n)
  arguments.fn('dist.spawn', 'fn', fn)
  look() -- what a launcher started is a rank of its job and starts none
  local launch = fork(n)
  if not launch then
    C.ms_dist_exit(xpcall(fn, uncaught.tell, rank_out[0], n, ...) and 0 or 1)
  end
  local code, cause = wait(launch)
  C.ms_dist_pass_on_stop()
  if code ~= 0 then
    errors.raise('CommError', '%s', cause ~= '' and cause or 'the ranks left with code ' .. code)
  end
end

--- End this process with `code`; the launcher ends with it when it is the first that is not 0.
---@param code? integer  0 to 255, default 0
function dist.exit(code)
  code = arguments.whole('dist.exit', 'code', code, 0, 0)
  if code > 255 then
    errors.raise('ValueError', "dist.exit: 'code' is %d, expected 0 to 255", code)
  end
  io.flush()
  C.ms_dist_exit(code)
end

--- Leave the group of ranks; later collectives are errors, and what this rank does then is compared
--- with nothing.
function dist.leave()
  B.check(C.ms_dist_leave())
end

-- -- stopping ------------------------------------------------------------------------------------

local catching = false

--- From now on SIGINT, SIGTERM, SIGHUP and SIGUSR1 only set what stop_requested() tells.
function dist.catch_signals()
  if not catching then
    catching = true
    B.check(C.ms_dist_catch_signals())
  end
end

--- Did one of the signals of catch_signals() reach any rank? Collective; all ranks get the same
--- answer. Groups ask side by side: a signal that one has been told of, the others are told of when
--- they ask next.
---@param group? ffi.cdata*
---@return integer?  the signal's number, or nil
function dist.stop_requested(group)
  group = validate.group('stop_requested', group)
  dist.catch_signals()
  B.check(C.ms_comm_stop_agreed(group, code_out))
  return code_out[0] ~= 0 and code_out[0] or nil
end

-- -- collectives ---------------------------------------------------------------------------------

dist.world = B.world

local function int32(what, name, value, default, least)
  value = arguments.whole(what, name, value, default, least)
  if value < -2 ^ 31 or value >= 2 ^ 31 then
    errors.raise('ValueError', "%s: '%s' is %.17g, expected a number of 32 bits", what, name, value)
  end
  return value
end

--- Divide a group: those of its ranks that give the same color form a group of their own, ordered
--- by key and, where keys are equal, as before. Collective over the group that is divided. What
--- comes back is what fsdp.FSDP takes as `process_group`; it lasts until destroy_process_group(),
--- or until nothing uses it. Errors name ranks by their rank in the job.
---
---   local pair = ms.dist.split(world.rank % 2) -- ranks 0 and 2, ranks 1 and 3
---   local model = fsdp.FSDP(module, { process_group = pair })
---
---@param color integer  below 0: this rank joins none
---@param key? integer  default 0
---@param group? ms.dist.Group  the group that is divided, default: all ranks
---@return ms.dist.Group|false group  false for a color below 0: no collective takes it
function dist.split(color, key, group)
  if type(color) ~= 'number' then
    arguments.refuse('dist.split', 'color', color, 'a whole number (-1: this rank joins none)')
  end
  key, group = validate.and_group('dist.split', key, group)
  color, key = int32('dist.split', 'color', color), int32('dist.split', 'key', key, 0)
  return B.make_group(C.ms_comm_split, group, color, key)
end

---@class ms.dist.FakeOptions
---@field rank? integer  from 0, default 0
---@field world integer  how many ranks

--- A group of any number of ranks of which this one is there and no other: every member holds what
--- this rank holds, and has done what it would have to do. A model that is sharded over it (as
--- `process_group`) is planned and steps as on that rank of so many, and holds as many bytes; what
--- it computes means nothing. Memory that the ranks of a host share is counted whole and taken in
--- part. It cannot be divided; checkpoints need the other ranks. A process that is no rank yet is a
--- world of its own from then on: dist.init comes before.
---
---   local model = fsdp.FSDP(m, { process_group = ms.dist.fake { rank = 3, world = 1024 } })
---
---@param opts ms.dist.FakeOptions
---@return ms.dist.Group group  until destroy_process_group(), or until nothing uses it
function dist.fake(opts)
  if type(opts) == 'table' and opts.ranks ~= nil then -- as dist.init has it
    errors.raise('ValueError', "dist.fake: unknown option 'ranks', did you mean 'world'?")
  end
  opts = errors.options('dist.fake', opts, { 'rank', 'world' })
  local world = int32('dist.fake', 'world', opts.world, nil, 1)
  local rank = int32('dist.fake', 'rank', opts.rank, 0, 0)
  faked = faked or not look().initialized
  return B.make_group(C.ms_comm_fake, rank, world)
end

local target = validate.target

--- Reduce in place, with equal bits on every rank. Every collective takes an optional group
--- (default: all ranks) and options behind its other arguments; optional arguments may be left out,
--- as in all_reduce(t, group). With `async_op = true` it returns a handle, see ms.dist.Work.
--- RuntimeError for a tensor that requires grad, except inside ms.no_grad.
---@param t ms.Tensor
---@param reduction? ms.dist.Reduction  default 'sum'
---@param group? ms.dist.Group
---@param opts? { async_op?: boolean }
---@return ms.Tensor t
function dist.all_reduce(t, reduction, group, opts)
  reduction, group, opts = validate.tail('all_reduce', reduction, group, opts)
  local async = work.is_async('all_reduce', opts)
  calls.comm_all_reduce(group, target('all_reduce', 't', t),
    validate.reduction('all_reduce', reduction))
  return work.of(async, t)
end

--- Every rank's tensor on every rank: all_gather(t) gives them in a list by rank;
--- all_gather(out, t) fills `out` (W * n) with them, one after another.
---@param a ms.Tensor
---@param b? ms.Tensor
---@param group? ms.dist.Group
---@param opts? { async_op?: boolean }
---@return ms.Tensor[]|ms.Tensor
function dist.all_gather(a, b, group, opts)
  b, group, opts = validate.tail('all_gather', b, group, opts)
  local async = work.is_async('all_gather', opts)
  if b ~= nil then
    calls.comm_all_gather(group, target('all_gather', 'out', a),
      arguments.tensor('all_gather', 't', b))
    return work.of(async, a)
  end
  arguments.tensor('all_gather', 't', a)
  return work.of(async, autograd.no_grad(function()
    local shape, n, w = a:shape(), a:numel(), C.ms_comm_size(group)
    local all = create.empty({ w * n }, { dtype = a:dtype() })
    calls.comm_all_gather(group, all, a)
    local list = {}
    for r = 1, w do
      list[r] = ops.narrow(all, 1, (r - 1) * n + 1, n):reshape(shape)
    end
    return list
  end))
end

--- Each rank's part of the reduction: `input` (W * n) on every rank, `out` (n).
---@param out ms.Tensor
---@param input ms.Tensor
---@param reduction? ms.dist.Reduction  default 'sum'
---@param group? ms.dist.Group
---@param opts? { async_op?: boolean }
---@return ms.Tensor out
function dist.reduce_scatter(out, input, reduction, group, opts)
  reduction, group, opts = validate.tail('reduce_scatter', reduction, group, opts)
  local async = work.is_async('reduce_scatter', opts)
  calls.comm_reduce_scatter(group,
    target('reduce_scatter', 'out', out), arguments.tensor('reduce_scatter', 'input', input),
    validate.reduction('reduce_scatter', reduction))
  return work.of(async, out)
end

--- Rank `root`'s values everywhere, in place: its place in the group (PyTorch's `group_src`, not
--- `src`).
---@param t ms.Tensor
---@param root? integer  default 0
---@param group? ms.dist.Group
---@param opts? { async_op?: boolean }
---@return ms.Tensor t
function dist.broadcast(t, root, group, opts)
  root, group, opts = validate.tail('broadcast', root, group, opts)
  local async = work.is_async('broadcast', opts)
  calls.comm_broadcast(group, target('broadcast', 't', t),
    arguments.whole('broadcast', 'root', root, 0, 0))
  return work.of(async, t)
end

--- Wait until every rank is here.
---@param group? ms.dist.Group
---@param opts? { async_op?: boolean }
function dist.barrier(group, opts)
  local _
  _, group, opts = validate.tail('barrier', nil, group, opts)
  local async = work.is_async('barrier', opts)
  B.check(C.ms_comm_barrier(group))
  return work.of(async)
end

--- Say something that every rank should say here. Nothing is sent: the next collective is a
--- CommError on all ranks, naming the first difference, when a rank said something else or nothing;
--- after the last one, the job ends with that error when all ranks have left.
---
---   ms.dist.same('batch size', batch)
---
---@param label string  what it is about
---@param value string|number|boolean
---@param group? ms.dist.Group
function dist.same(label, value, group)
  arguments.text('dist.same', 'label', label)
  local kind = type(value)
  if kind ~= 'string' and kind ~= 'number' and kind ~= 'boolean' then
    arguments.refuse('dist.same', 'value', value, 'a string, number or boolean')
  end
  notes.text(validate.group('dist.same', group), label,
    kind == 'number' and ('%.17g'):format(value) or tostring(value))
end

local counts = B.new('int64_t[5]')

---@class ms.dist.Counts
---@field all_gather integer      unshards included
---@field reduce_scatter integer  reductions of sharded units included
---@field all_reduce integer
---@field broadcast integer
---@field barrier integer

--- Collectives this rank has called so far, by kind.
---@param group? ms.dist.Group
---@return ms.dist.Counts
function dist.counts(group)
  C.ms_comm_counts(validate.group('counts', group), counts)
  return {
    all_gather = tonumber(counts[0]),
    reduce_scatter = tonumber(counts[1]),
    all_reduce = tonumber(counts[2]),
    broadcast = tonumber(counts[3]),
    barrier = tonumber(counts[4]),
  }
end

--- Seconds this rank has waited for others: exposed communication.
---@param group? ms.dist.Group
---@return number
function dist.wait_seconds(group)
  return C.ms_comm_wait_seconds(validate.group('wait_seconds', group))
end

dist.init_device_mesh = mesh.init_device_mesh
for _, room in ipairs { process_groups, parts, objects, messages } do
  for name, fn in next, room do
    dist[name] = fn
  end
end

return namespace.space('dist', dist, { functional = 'moonshard.dist.functional' })
