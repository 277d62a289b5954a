--- Runs a program on the wrapped and on the plain model, and compares what they show.

local ms = require 'moonshard'
local fsdp, optim = ms.fsdp, ms.optim
local axes = require 'fsdp.programs.axes'
local maker = require 'fsdp.programs.maker'
local Net = require('fsdp.programs.net').Net

local run = {}

-- What rows whose value is not the default do at one point of a run.
local function each(point, r, ...)
  for _, axis in ipairs(axes) do
    local value = r.p[axis.name]
    if axis[point] and value ~= axis.values[1] then
      axis[point](value, r, ...)
    end
  end
end

-- -- a run ---------------------------------------------------------------------------------------

local split = {} -- groups by their description; they last as long as the job

local function group(name, color)
  split[name] = split[name] or ms.dist.split(color)
  return split[name]
end

-- The groups of hybrid sharding with so many ranks in a shard group.
local function groups(inside)
  local rank = ms.dist.rank()
  return group('shard' .. inside, math.floor(rank / inside)),
    group('copy' .. inside, rank % inside)
end

-- Inputs of one forward: numbers from -1 to 1 that differ in every argument.
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

-- An empty folder that all ranks see, while `fn(path)` runs.
local function folder(fn)
  local path = ms.dist.broadcast_object(os.tmpname() .. '.d')
  fn(path)
  ms.dist.barrier()
  if ms.dist.rank() == 0 then
    os.execute(("rm -rf '%s' '%s'"):format(path, path:sub(1, -3)))
  end
end

local Run = {}
Run.__index = Run

local function new(p, side)
  local sharded = side ~= 'plain'
  local r = { p = p, side = side, sharded = sharded, rank = ms.dist.rank(), world = ms.dist.world_size(),
    at = {}, runs = {}, log = {}, groups = groups, folder = folder }

  --- Note a tensor, number or string. Of each rank's own are the kinds 'loss' and 'own'.
  function r.see(kind, what, value)
    local entry = { kind = kind, what = ('%s of step %s'):format(what, r.at.step), value = value }
    if ms.is_tensor(value) then
      local t = value:detach()
      entry.hash, entry.dtype = t:hash(), t:dtype()
      entry.value = t:to('f64'):reshape(-1):totable()
    elseif type(value) == 'number' then
      entry.value = { value }
    end
    r.log[#r.log + 1] = entry
  end

  --- The methods of a sharded model.
  function r.state(model)
    return p.face == 'composable' and fsdp.get_state(model) or model
  end

  --- Run `fn` with full parameters of a model.
  function r.full_of(model, opts, fn)
    if sharded then
      fsdp.summon_full_params(model, opts, fn)
    else
      fn()
    end
  end

  --- The same of all models.
  function r.full(opts, fn)
    for _, model in ipairs(r.models) do
      local inner = fn
      fn = function() r.full_of(model, opts, inner) end
    end
    fn()
  end

  --- Parameters of all models: name, tensor.
  function r.named()
    local out = {}
    for i, model in ipairs(r.models) do
      for _, entry in ipairs(model:named_parameters()) do
        out[#out + 1] = { name = (i > 1 and i .. ':' or '') .. entry.name, tensor = entry.tensor }
      end
    end
    return out
  end

  --- An untrained model of the same shape over another group.
  function r.another(other)
    local net = Net(p, r.at, {})
    each('net', r, net)
    return fsdp.FSDP(net, { process_group = other, use_orig_params = true })
  end

  --- The group of rank 0 alone, on rank 0. Collective.
  function r.alone()
    return group('alone', r.rank == 0 and 0 or 1)
  end

  function r.make()
    Run.make(r)
  end

  --- State of a script's own, of several tensors.
  r.extra = {
    state_dict = function()
      return { mean = ms.ones(2), scale = ms.ones(1), variance = ms.ones(2),
        inner = { a = ms.ones(1), b = ms.ones(1), z = ms.ones(1) } }
    end,
    load_state_dict = function() end,
  }
  return r
end

local RECOMPUTED = { policy = axes.is_block }

local function shard(r, net)
  local o = {}
  each('options', r, o, net)
  o.process_group = r.only or o.process_group
  local face = r.p.face == 'composable' and fsdp.composable or fsdp.FSDP
  for i = 1, r.p.policy == 'hand' and r.p.blocks + 1 or 0 do
    local name = i <= r.p.blocks and 'b' .. i or 'head'
    if not net[name].is_ignored then
      net[name] = face(net[name], o)
    end
  end
  local model = face(net, o)
  if r.p.again then
    model(inputs(r.p, r.rank, 0, 1, 0)):sum():backward()
    model:zero_grad()
    model = face(net, o)
  end
  return model
end

local function make_model(r, i)
  ms.manual_seed(r.p.seed + i)
  local net = Net(r.p, r.at, r.runs)
  each('net', r, net)
  if r.p.recompute == 'before' then
    ms.nn.checkpoint(net, RECOMPUTED)
  end
  local model = r.sharded and shard(r, net) or net:materialize()
  if r.side == 'alone' then
    r.state(model):set_gradient_factor(1 / r.world)
  end
  if r.p.recompute == 'after' then
    ms.nn.checkpoint(model, RECOMPUTED)
  end
  r.models[i], r.nets[i] = model, net
  each('wrapped', r, model)
end

local OPTIONS = { -- epsilons that bound what rounding of small gradients does
  SGD = { lr = 0.1, momentum = 0.9 }, Adam = { lr = 0.002, eps = 1e-3, weight_decay = 0.1 },
  AdamW = { lr = 0.002, eps = 1e-3, weight_decay = 1 }, RMSprop = { lr = 0.002, eps = 1e-3 },
  Adagrad = { lr = 0.002, eps = 1e-3 }, Lion = { lr = 0.002 },
}

-- Ends with: is it a bias, or another one-dimensional parameter?
local function halved(name)
  return name:match 'bias$' ~= nil
end

local function make_optimizer(r)
  local groups_of, params = { {}, {} }, r.named()
  for i = 1, #params do
    local entry = params[r.p.reversed and r.rank == 1 and #params + 1 - i or i]
    table.insert(groups_of[r.p.groups and halved(entry.name) and 2 or 1], entry.tensor)
  end
  local o = {}
  for key, value in pairs(OPTIONS[r.p.optimizer]) do
    o[key] = value
  end
  o.foreach = r.p.foreach or nil
  return optim[r.p.optimizer](r.p.groups and {
    { params = groups_of[1] }, { params = groups_of[2], lr = o.lr / 2 },
  } or groups_of[1], o)
end

function Run.make(r)
  r.models, r.nets = {}, {}
  for i = 1, r.p.models do
    make_model(r, i)
  end
  each('ready', r)
  r.opt = make_optimizer(r)
end

-- The loss of one micro-batch, scaled.
local function forward(r, rank, step, micro)
  r.at.rank, r.at.step = rank, step
  local loss
  for part = 1, r.p.forwards do
    local x, cache = inputs(r.p, rank, step, micro, part), r.p.cache and {} or nil
    for _, model in ipairs(r.models) do
      x = model(x, cache):to(r.p.master)
    end
    local one = x:square():mean() / r.p.micro
    loss = loss and loss + one or one
    if cache and rank == r.rank then
      r.see('cache', 'calls in the table', cache.calls or 0)
      r.see('cache', 'rows in the table', cache.b1 and cache.b1:size(1) or 0)
    end
  end
  if rank == r.rank then
    r.see('loss', ('the loss of micro-batch %d'):format(micro), loss)
  end
  return r.scaler and r.scaler:scale(loss) or loss
end

-- Micro-batches of all ranks, in the order of the tree that sums gradients, or the rank's own.
local function micro_batches(r)
  local first, last = r.rank, r.rank
  if r.side ~= 'sharded' then
    first, last = 0, r.world - 1
  end
  local list = {}
  for rank = first, last do
    for micro = 1, r.p.micro do
      list[#list + 1] = { rank = rank, micro = micro }
    end
  end
  return list
end

local function in_no_sync(r, fn)
  for _, model in ipairs(r.models) do
    local inner = fn
    fn = function() r.state(model):no_sync(inner) end
  end
  fn()
end

local function train_step(r, step)
  local p, list = r.p, micro_batches(r)
  local from = r.side == 'alone' and 1 or r.side == 'sharded' and p.no_sync or #list
  for i, batch in ipairs(list) do
    local function backward()
      local loss = forward(r, batch.rank, step, batch.micro)
      if r.side == 'plain' then
        loss = loss / r.world
      end
      loss:backward()
    end
    if i >= from and i < #list then
      in_no_sync(r, backward)
    else
      backward()
    end
  end
  each('gradients', r, step)
  if r.scaler then
    r.scaler:step(r.opt)
    r.scaler:update()
    r.see('scale', 'the scale', r.scaler:get_scale())
  else
    r.opt:step()
  end
  if p.grads ~= 'kept' then
    r.opt:zero_grad { set_to_none = p.grads == 'none' }
  end
  each('stepped', r, step)
end

local function sorted(t)
  local keys = {}
  for key in pairs(t) do
    keys[#keys + 1] = key
  end
  table.sort(keys)
  return keys
end

-- Parameters, buffers, optimizer state, and how often blocks ran for one rank's inputs.
local function see_all(r)
  for i, model in ipairs(r.models) do
    local sd = model:state_dict()
    for _, name in ipairs(sd) do
      r.see('param', ('%d:%s'):format(i, name), sd[name])
      r.see('dtype', 'the dtype of ' .. name, sd[name]:dtype())
    end
  end
  local all = r.p.models == 1 and fsdp.optim_state_dict(r.models[1], r.opt).state or {}
  for _, name in ipairs(sorted(all)) do
    for _, key in ipairs(sorted(all[name])) do
      r.see('state ' .. key, ('%s of %s'):format(key, name), all[name][key])
    end
  end
  for _, name in ipairs(r.p.again and {} or sorted(r.runs)) do
    r.see('runs', ('runs of block %s'):format(name),
      r.runs[name] / (r.side == 'sharded' and 1 or r.world))
  end
end

local function train(r)
  each('before', r)
  r.make()
  for step = 1, r.p.steps do
    train_step(r, step)
  end
  see_all(r)
  each('finish', r)
end

--- Train, and give what was seen. Sides: 'sharded'; 'plain', the plain model with the inputs of all
--- ranks; 'alone', a wrapped model over the group `only` of one rank, with the inputs of
--- all.
function run.train(p, side, only)
  local r = new(p, side)
  r.only = only
  --- The loss of this rank's first micro-batch of a step, beside training; may raise.
  function r.forward(step)
    r.at.apart = true
    local ok, value = pcall(forward, r, r.rank, step, 1)
    r.at.apart = false
    return ok and value or error(value, 0)
  end
  ms.capture_warnings(train, r)
  return r.log
end

-- -- comparison ----------------------------------------------------------------------------------

local UNIT = { f64 = 2 ^ -52, f32 = 2 ^ -23, f16 = 2 ^ -11, bf16 = 2 ^ -8, fp16 = 2 ^ -11 }

-- The coarsest rounding in a program. Kept gradients have param_dtype in evaluation, too.
local function unit_of(p)
  local unit = math.max(UNIT[p.master], UNIT[p.hook] or 0)
  for _, name in ipairs(p.mode ~= 'full' and { 'param_dtype', 'reduce_dtype', 'buffer_dtype' }
    or p.keep_low and { 'param_dtype', 'reduce_dtype' } or {}) do
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

-- Raise the first difference. `unit` 0: bits; `besides`: an absolute error.
local function compare(found, expected, unit, besides)
  local tops = {}
  for _, e in ipairs(expected) do
    tops[e.kind] = math.max(tops[e.kind] or 0, type(e.value) == 'table' and largest(e.value) or 0)
  end
  for n, wanted in ipairs(expected) do
    local entry = found[n]
    if not entry or entry.what ~= wanted.what then
      error(('observation %d is of %s, expected of %s'):format(n, entry and entry.what or 'nothing',
        wanted.what), 0)
    elseif wanted.kind == 'runs' and unit == 0 then
      tops.runs = nil -- recomputation has equal bits, too
    elseif type(wanted.value) ~= 'table' or type(entry.value) ~= 'table' then
      if entry.value ~= wanted.value then
        differ(entry, wanted)
      end
    elseif #entry.value ~= #wanted.value then
      error(('%s has %d elements, expected %d'):format(wanted.what, #entry.value, #wanted.value), 0)
    else
      local bound = 12 * unit * (largest(wanted.value) + 0.1 * tops[wanted.kind]) + besides
      for i, x in ipairs(wanted.value) do
        local y = entry.value[i]
        local near = math.abs(x - y) <= bound
        if not near then -- NaN too
          differ(entry, wanted, i)
        end
      end
    end
  end
end

-- Steps of a size of their own go either way where rounding decides a small gradient's sign.
local function besides(p, unit)
  return p.optimizer ~= 'SGD' and unit > 1e-6 and 2 * OPTIONS[p.optimizer].lr * p.steps or 0
end

-- All ranks hold equal bits.
local function check_replicas(log)
  local hashes = {}
  for i, entry in ipairs(log) do
    hashes[i] = entry.kind ~= 'loss' and entry.kind ~= 'own' and entry.hash or ''
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
  local twin, changed = p, false
  for _ = 1, 2 do -- some values are legal only beside others
    for _, axis in ipairs(axes) do
      if axis.bits and twin[axis.name] ~= axis.values[1] then
        local plainer = maker.changed(twin, axis.name, axis.values[1])
        twin, changed = plainer or twin, changed or plainer ~= nil
      end
    end
  end
  return changed and p.hook == 'none' and twin or nil
end

local function labelled(label, fn, ...)
  local ok, value = pcall(fn, ...)
  if not ok then
    error(label .. tostring(value), 0)
  end
  return value
end

-- Do world sizes have equal bits? If gradients are summed once, over a power of two of micro-batches
-- a rank, and ranks compute nothing else together.
local function is_same_alone(p)
  return p.micro ~= 3 and (p.micro == 1 or p.no_sync == 1) and p.hook == 'none'
    and p.ignored == 'none' and not p.saved and p.reload ~= 'checkpoint'
end

--- Run a program as one rank of `p.world`. Raises the first difference.
function run.check(p)
  local found, unit = run.train(p, 'sharded'), unit_of(p)
  check_replicas(found)
  local twin, alone = twin_of(p), group('each', ms.dist.rank())
  local is_judge = p.seed % ms.dist.world_size() == ms.dist.rank() -- others would see the same
  if is_judge then
    compare(found, labelled('the plain model: ', run.train, p, 'plain'), unit, besides(p, unit))
  end
  if not is_same_alone(p) and twin then
    labelled('bits of the plainest wrapping: ', compare, found, run.train(twin, 'sharded'), 0, 0)
  elseif is_judge and is_same_alone(p) then
    labelled('bits of one rank: ', compare, found, run.train(twin or p, 'alone', alone), 0, 0)
  end
end

return run
