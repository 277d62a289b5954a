--- Runs a program on the wrapped and on the plain model, and compares what they show.

local ms = require 'moonshard'
local fsdp, optim = ms.fsdp, ms.optim
local axes = require 'fsdp.programs.axes'
local Net = require('fsdp.programs.net').Net

local run = {}

-- What rows whose value is not the default do at one point of a run.
local function each(point, r, ...)
  local last
  for _, axis in ipairs(axes) do
    local value = r.p[axis.name]
    if axis[point] and (axis.every or value ~= axis.values[1]) then
      last = axis[point](value, r, ...) or last
    end
  end
  return last
end

-- -- a run ---------------------------------------------------------------------------------------

local pairs_of_groups = {} -- by ranks of a shard group; groups last as long as the job

local function groups(inside)
  local rank = ms.dist.rank()
  if not pairs_of_groups[inside] then
    pairs_of_groups[inside] = { ms.dist.split(math.floor(rank / inside)),
      ms.dist.split(rank % inside) }
  end
  return unpack(pairs_of_groups[inside])
end

-- Inputs of one forward: numbers in (-1, 1) that differ in every argument.
local function inputs(p, rank, step, micro, part)
  local x, at = {}, p.seed % 1000 + 17 * rank + 5 * step + 3 * micro + 29 * part
  for i = 1, 3 do
    x[i] = {}
    for j = 1, p.width do
      x[i][j] = math.sin(at * (1.3 + i) + 2.1 * j + i * j)
    end
  end
  return ms.tensor(x, { dtype = p.master })
end

local function new(p, sharded)
  local r = { p = p, sharded = sharded, rank = ms.dist.rank(), world = ms.dist.world_size(),
    at = {}, runs = {}, log = {}, groups = groups, inputs = inputs }

  --- Note a tensor, number, string or nil. Of every rank's own: 'loss'.
  function r.see(kind, what, value)
    local entry = { kind = kind, what = what, value = value }
    if ms.is_tensor(value) then
      local t = value:detach()
      entry.dtype, entry.hash = t:dtype(), t:hash()
      entry.value = t:to('f64'):reshape(-1):totable()
    elseif type(value) == 'number' then
      entry.value = { value }
    end
    r.log[#r.log + 1] = entry
  end

  --- The methods of a wrapped model.
  function r.state(model) return model end

  --- Run `fn` with full parameters.
  function r.full(opts, fn)
    if not sharded then
      return fn()
    end
    for i = 1, #r.models do
      local inner = fn
      fn = function() return fsdp.summon_full_params(r.models[i], opts, inner) end
    end
    fn()
  end
  return r
end

local function make(r)
  r.models = {}
  ms.manual_seed(r.p.seed)
  local net = Net(r.p, r.at, r.runs)
  each('net', r, net)
  local model = net
  if r.sharded then
    local o = {}
    each('options', r, o, net)
    o.use_orig_params = r.p.use_orig_params
    ms.capture_warnings(function() model = fsdp.FSDP(net, o) end)
  else
    net:materialize()
  end
  r.models[1] = each('wrapped', r, model) or model
  each('ready', r)
  r.opt = optim.SGD(r.models[1]:parameters(), { lr = 0.1, momentum = 0.9 })
end

local function forward(r, rank, step, micro)
  r.at.rank, r.at.step = rank, step
  local y = r.models[1](inputs(r.p, rank, step, micro, 0))
  return y:to(r.p.master):square():mean() / r.p.micro
end

local function synced(r, fn)
  r.state(r.models[1]):no_sync(fn)
end

local function micro_batch(r, step, micro)
  if r.sharded then
    local loss = forward(r, r.rank, step, micro)
    r.see('loss', ('the loss of micro-batch %d'):format(micro), loss)
    loss:backward()
    return
  end
  for rank = 0, r.world - 1 do
    local loss = forward(r, rank, step, micro)
    if rank == r.rank then
      r.see('loss', ('the loss of micro-batch %d'):format(micro), loss)
    end
    (loss / r.world):backward()
  end
end

--- Train, and give what was seen.
function run.train(p, sharded)
  local r = new(p, sharded)
  each('before', r)
  make(r)
  for step = 1, p.steps do
    for micro = 1, p.micro do
      local from = p.no_sync
      if sharded and from and micro >= from and micro < p.micro then
        synced(r, function() micro_batch(r, step, micro) end)
      else
        micro_batch(r, step, micro)
      end
    end
    each('gradients', r, step)
    r.opt:step()
    r.opt:zero_grad()
    each('stepped', r, step)
  end
  each('finish', r)
  local sd = r.models[1]:state_dict()
  for _, name in ipairs(sd) do
    r.see('param', name, sd[name])
  end
  local state = fsdp.optim_state_dict(r.models[1], r.opt).state
  for _, name in ipairs(sd) do
    local own = state[name]
    r.see('state', 'momentum of ' .. name, own and own.momentum_buffer or 'none')
  end
  return r.log
end

-- -- comparison ----------------------------------------------------------------------------------

local UNIT = { f64 = 2 ^ -52, f32 = 2 ^ -23, f16 = 2 ^ -11, bf16 = 2 ^ -8, fp16 = 2 ^ -11 }

-- The coarsest rounding in a program.
local function unit_of(p)
  local unit = 0
  for _, name in ipairs { 'master', 'param_dtype', 'reduce_dtype', 'buffer_dtype', 'hook' } do
    unit = math.max(unit, UNIT[p[name]] or 0)
  end
  return unit
end

local function largest(list)
  local top = 0
  for _, x in ipairs(list) do
    top = math.max(top, math.abs(x))
  end
  return top
end

local function show(value, i)
  return type(value) == 'table' and ('%.9g'):format(value[i or 1] or 0/0) or tostring(value)
end

local function differ(entry, wanted, i)
  error(('%s%s is %s, expected %s'):format(wanted.what, i and (', element %d,'):format(i) or '',
    show(entry and entry.value, i), show(wanted.value, i)), 0)
end

-- Raise the first difference. `unit` 0: bits.
local function compare(found, expected, unit)
  local tops = {}
  for _, e in ipairs(expected) do
    tops[e.kind] = math.max(tops[e.kind] or 0, type(e.value) == 'table' and largest(e.value) or 0)
  end
  for n, wanted in ipairs(expected) do
    local entry = found[n]
    if not entry or entry.what ~= wanted.what then
      error(('observation %d is of %s, expected of %s'):format(n, entry and entry.what or 'nothing',
        wanted.what), 0)
    elseif type(wanted.value) ~= 'table' or type(entry.value) ~= 'table' then
      if entry.value ~= wanted.value then
        differ(entry, wanted)
      end
    elseif #entry.value ~= #wanted.value then
      error(('%s has %d elements, expected %d'):format(wanted.what, #entry.value, #wanted.value), 0)
    else
      local bound = 32 * unit * (largest(wanted.value) + 0.1 * tops[wanted.kind])
      for i, x in ipairs(wanted.value) do
        local y = entry.value[i]
        if not (math.abs(x - y) <= bound) then
          differ(entry, wanted, i)
        end
      end
    end
  end
end

-- All ranks hold equal bits.
local function check_replicas(log)
  local hashes = {}
  for i, entry in ipairs(log) do
    hashes[i] = entry.kind ~= 'loss' and entry.hash or ''
  end
  local all = ms.dist.all_gather_object(hashes)
  for rank = 2, #all do
    for i, hash in ipairs(all[1]) do
      if all[rank][i] ~= hash then
        error(('%s has other bits on rank %d than on rank 0'):format(log[i].what, rank - 1), 0)
      end
    end
  end
end

-- The program that has equal bits by promise: nil if it is the same.
local function twin_of(p)
  local twin, changed = {}, false
  for _, axis in ipairs(axes) do
    local value = p[axis.name]
    twin[axis.name] = value
    if axis.bits and value ~= axis.values[1] and axis.bits(p) then
      twin[axis.name], changed = axis.values[1], true
    end
  end
  twin.seed = p.seed
  return changed and p.hook == 'none' and twin or nil
end

local function labelled(label, fn, ...)
  local ok, value = xpcall(fn, function(err)
    return type(err) == 'table' and err or tostring(err)
  end, ...)
  if not ok then
    error(label .. tostring(value), 0)
  end
  return value
end

--- Run a program as one rank of `p.world`. Raises the first difference.
function run.check(p)
  local found = labelled('', run.train, p, true)
  check_replicas(found)
  labelled('', compare, found, labelled('the plain model: ', run.train, p, false), unit_of(p))
  local twin = twin_of(p)
  if twin then
    labelled('bits of FULL_SHARD in one unit: ', compare, found, run.train(twin, true), 0)
  end
end

return run
