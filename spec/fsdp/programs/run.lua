--- One run of a program: a model, an optimizer, training steps, and a log of what they show.

local ms = require 'moonshard'
local fsdp, optim = ms.fsdp, ms.optim
local axes = require 'fsdp.programs.axes'
local meshes = require 'moonshard.dist.mesh'
local Net = require('fsdp.programs.net').Net

---@class Run
---@field p table  the program
---@field side 'sharded'|'plain'|'alone'  the wrapped model; the plain model with the inputs of all
---  ranks; a wrapped model in a group of one rank with the inputs of all
---@field sharded boolean  it is wrapped
---@field models ms.nn.Module[]
---@field nets ms.nn.Module[]  what is wrapped
---@field log table[]
local Run = {}
Run.__index = Run

-- What rows whose value is not the default do at one point of a run.
local function each(point, r, ...)
  for _, axis in ipairs(axes) do
    local value = r.p[axis.name]
    if axis[point] and value ~= axis.values[1] then
      axis[point](value, r, ...)
    end
  end
end

-- -- what rows call ------------------------------------------------------------------------------

--- Note a tensor, number or string. Of each rank's own are the kinds 'loss' and 'own'. Collective
--- for a sharded tensor.
function Run:see(kind, what, value)
  if ms.is(value, fsdp.ShardedTensor) then
    value = value:full_tensor()
  end
  local entry = { kind = kind, what = ('%s of step %s'):format(what, self.of.step), value = value }
  if ms.is_tensor(value) then
    local t = value:detach()
    entry.hash, entry.value = t:hash(), t:to('f64'):reshape(-1):totable()
  elseif type(value) == 'number' then
    entry.value = { value }
  end
  self.log[#self.log + 1] = entry
end

--- The methods of a sharded model.
function Run:state(model)
  return self.p.face == 'wrapper' and model or fsdp.get_state(model)
end

--- Run `fn` with full parameters of a model.
function Run:full_of(model, opts, fn)
  if self.sharded then
    fsdp.summon_full_params(model, opts, fn)
  else
    fn()
  end
end

--- The same of all models.
function Run:full(opts, fn)
  for _, model in ipairs(self.models) do
    local inner = fn
    fn = function() self:full_of(model, opts, inner) end
  end
  fn()
end

--- Parameters of all models: name, tensor.
function Run:named()
  local out = {}
  for i, model in ipairs(self.models) do
    for _, entry in ipairs(model:named_parameters()) do
      out[#out + 1] = { name = (i > 1 and i .. ':' or '') .. entry.name, tensor = entry.tensor }
    end
  end
  return out
end

--- Run `fn(path)` with an empty folder of all ranks.
function Run:folder(fn)
  local path = ms.dist.broadcast_object(os.tmpname() .. '.d')
  fn(path)
  ms.dist.barrier()
  if self.rank == 0 then
    os.execute(("rm -rf '%s' '%s'"):format(path, path:sub(1, -3)))
  end
end

local made = {} -- groups by name; they last as long as the job

--- The group of this rank when ranks with equal colors form groups. Collective.
function Run.group(name, color)
  made[name] = made[name] or ms.dist.split(color)
  return made[name]
end

--- The groups of hybrid sharding with so many ranks in a shard group. Collective.
function Run:hybrid_groups(inside)
  return Run.group('shard' .. inside, math.floor(self.rank / inside)),
    Run.group('copy' .. inside, self.rank % inside)
end

--- State of a script's own, of several tensors.
Run.extra = {
  state_dict = function()
    return { mean = ms.ones(2), scale = ms.ones(1), variance = ms.ones(2),
      inner = { a = ms.ones(1), b = ms.ones(1), z = ms.ones(1) } }
  end,
  load_state_dict = function() end,
}

-- -- models and optimizer ------------------------------------------------------------------------

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

local function plain_net(r, runs)
  local net = Net(r.p, r.at, runs)
  each('net', r, net)
  return net
end

--- An untrained model of the same shape over another group.
function Run:another(group)
  return fsdp.FSDP(plain_net(self, {}), { process_group = group, use_orig_params = true })
end

-- fully_shard() with options of FSDP.
local function fully_shard(module, o)
  local precision, group, ignored = o.mixed_precision or {}, o.process_group, o.ignored_states
  for _, m in ipairs(o.ignored_modules or {}) do
    ignored = m:parameters()
  end
  local is_hybrid = type(group) == 'table' and group[2]
  local opts = {
    mesh = group and (is_hybrid and meshes.of_groups({ group[2], group[1] }, { 'copy', 'shard' })
      or meshes.of_groups { group }),
    offload_policy = o.cpu_offload and fsdp.CPUOffloadPolicy {} or nil,
    ignored_params = ignored, mp_policy = {
      param_dtype = precision.param_dtype,
      reduce_dtype = precision.reduce_dtype or precision.param_dtype,
    },
  }
  if o.sharding_strategy == 'NO_SHARD' then
    return fsdp.replicate(module, opts)
  end
  opts.reshard_after_forward = o.sharding_strategy ~= 'SHARD_GRAD_OP'
    and o.sharding_strategy ~= '_HYBRID_SHARD_ZERO2'
  return fsdp.fully_shard(module, opts)
end

local FACES = { wrapper = fsdp.FSDP, composable = fsdp.composable, fully_shard = fully_shard }

local function shard(r, net)
  local o = {}
  each('options', r, o, net)
  o.process_group = r.only or o.process_group
  local face = FACES[r.p.face]
  for i, name in ipairs(axes.by_hand(r.p) and net:parts() or {}) do
    if not net[name].is_ignored then
      local own = {}
      for option, value in pairs(o) do
        own[option] = value
      end
      each('child', r, own, i)
      net[name] = face(net[name], own)
    end
  end
  local model = face(net, o)
  if r.p.again then
    r.at.apart = true
    model(inputs(r.p, r.rank, 0, 1, 0)):sum():backward()
    r.at.apart = false
    model:zero_grad()
    model = face(net, o)
  end
  if r.side == 'alone' then
    r:state(model):set_gradient_factor(1 / r.world)
  end
  return model
end

-- What fully_shard was called on; by name with the checkpoint around it, which has its methods.
local function parts_of(r, net)
  local parts = { net, root = net }
  for _, name in ipairs(axes.by_hand(r.p) and net:parts() or {}) do
    local module = net[name]
    if not module.is_ignored then
      parts[name] = module
      parts[#parts + 1] = r.p.recompute == 'after' and module._is_checkpoint and module.module
        or module
    end
  end
  return parts
end

local RECOMPUTED = { policy = axes.is_block }

local function make_model(r, i)
  ms.manual_seed(r.p.seed + i)
  local net = plain_net(r, r.p.compile == 'none' and r.runs or nil) -- replays count nothing
  if r.p.recompute == 'before' then
    ms.nn.checkpoint(net, RECOMPUTED)
  end
  local model = r.sharded and shard(r, net) or net:materialize()
  if r.p.recompute == 'after' then
    ms.nn.checkpoint(model, RECOMPUTED)
  end
  r.models[i], r.nets[i] = model, net
  each('wrapped', r, model)
  if r.sharded and r.p.face == 'fully_shard' then
    each('sharded', r, parts_of(r, net))
  end
end

--- Options by kind. Epsilons bound what the rounding of small gradients does.
Run.OPTIMIZERS = {
  SGD = { lr = 0.1, momentum = 0.9 }, Adam = { lr = 0.002, eps = 1e-3, weight_decay = 0.1 },
  AdamW = { lr = 0.002, eps = 1e-3, weight_decay = 1 }, RMSprop = { lr = 0.002, eps = 1e-3 },
  Adagrad = { lr = 0.002, eps = 1e-3 }, Lion = { lr = 0.002 },
  Adamax = { lr = 0.002, eps = 1e-3 },
}

local function make_optimizer(r)
  local weights, biases, params = {}, {}, r:named()
  for i = 1, #params do
    local entry = params[r.p.reversed and r.rank == 1 and #params + 1 - i or i]
    table.insert(r.p.groups and entry.name:match 'bias$' and biases or weights, entry.tensor)
  end
  local o = { foreach = r.p.foreach or nil }
  for key, value in pairs(Run.OPTIMIZERS[r.p.optimizer]) do
    o[key] = value
  end
  return optim[r.p.optimizer](r.p.groups and {
    { params = weights }, { params = biases, lr = o.lr / 2 },
  } or weights, o)
end

-- -- training ------------------------------------------------------------------------------------

-- Inputs of a micro-batch, and tables that its forwards fill.
local function given(r, rank, step, micro)
  local xs, caches = {}, {}
  r.of.rank, r.of.step = rank, step
  for part = 1, r.p.forwards do
    xs[part], caches[part] = inputs(r.p, rank, step, micro, part), r.p.cache and {} or nil
  end
  return xs, caches
end

-- The loss of a micro-batch.
local function loss_of(models, p, xs, caches)
  local loss
  for part, x in ipairs(xs) do
    for _, model in ipairs(models) do
      x = model(x, caches[part]):to(p.master)
    end
    local one = x:square():mean() / p.micro
    loss = loss and loss + one or one
  end
  return loss
end

local function see_batch(r, rank, micro, loss, caches)
  for _, cache in ipairs(rank == r.rank and caches or {}) do
    r:see('own', 'calls in the table', cache.calls or 0)
    r:see('own', 'rows in the table', cache.b1 and cache.b1:size(1) or 0)
  end
  if rank == r.rank then
    r:see('loss', ('the loss of micro-batch %d'):format(micro), loss)
  end
end

-- The loss of one micro-batch.
local function forward(r, rank, step, micro)
  local xs, caches = given(r, rank, step, micro)
  local loss = loss_of(r.models, r.p, xs, caches)
  see_batch(r, rank, micro, loss, caches)
  return loss
end

--- The loss of this rank's first micro-batch of a step, beside training. May raise.
function Run:forward(step)
  self.at.apart = true
  local ok, value = pcall(forward, self, self.rank, step, 1)
  self.at.apart = false
  return ok and value or error(value, 0)
end

-- Micro-batches of all ranks, in the order of the tree that sums gradients, or the rank's own.
local function micro_batches(r)
  local own, list = r.side == 'sharded', {}
  for rank = own and r.rank or 0, own and r.rank or r.world - 1 do
    for micro = 1, r.p.micro do
      list[#list + 1] = { rank = rank, micro = micro }
    end
  end
  return list
end

local function in_no_sync(states, fn)
  for _, state in ipairs(states) do
    local inner = fn
    fn = function() state:no_sync(inner) end
  end
  fn()
end

-- Functions of a micro-batch, (xs, caches, sync) -> its loss, and of an update, compiled or not.
local function make_functions(r)
  local models, p, scaler, opt, states = r.models, r.p, r.scaler, r.opt, {}
  local share, empties = r.side == 'plain' and r.world or 1, { set_to_none = p.grads == 'none' }
  for i, model in ipairs(r.sharded and models or {}) do
    states[i] = r:state(model)
  end
  local function batch(xs, caches, sync)
    local loss
    local function run()
      loss = loss_of(models, p, xs, caches)
      local scaled = scaler and scaler:scale(loss) or loss
      if share > 1 then
        scaled = scaled / share
      end
      scaled:backward()
    end
    if sync then
      run()
    else
      in_no_sync(states, run)
    end
    return loss
  end
  local function update()
    if scaler then
      scaler:step(opt)
      scaler:update()
    else
      opt:step()
    end
    if p.grads ~= 'kept' then
      opt:zero_grad(empties)
    end
  end
  local opts = { backend = p.compile, fullgraph = false }
  local is_compiled = p.whole and r.sharded
  r.batch = is_compiled and ms.compile_step(batch, opts) or batch
  r.update = is_compiled and ms.compile_step(update, opts) or update
end

--- Make models and an optimizer, in place of others.
function Run:make()
  self.models, self.nets = {}, {}
  for i = 1, self.p.models do
    make_model(self, i)
  end
  each('ready', self)
  self.opt = make_optimizer(self)
  make_functions(self)
end

local function backwards(r, step)
  local list = micro_batches(r)
  local from = r.side == 'alone' and 1 or r.side == 'sharded' and r.p.no_sync or #list
  for i, batch in ipairs(list) do
    for _, net in ipairs(r.sharded and r.p.face == 'fully_shard' and r.nets or {}) do
      each('batch', r, parts_of(r, net), i == #list)
    end
    local xs, caches = given(r, batch.rank, step, batch.micro)
    local loss = r.batch(xs, caches, i < from or i == #list)
    see_batch(r, batch.rank, batch.micro, loss, caches)
  end
end

local function train_step(r, step)
  backwards(r, step)
  each('gradients', r, step)
  r.update()
  if r.scaler then
    r:see('scale', 'the scale', r.scaler:get_scale())
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
      r:see('param', ('%d:%s'):format(i, name), sd[name])
      r:see('dtype', 'the dtype of ' .. name, sd[name]:dtype())
    end
  end
  local all = r.p.models == 1 and fsdp.optim_state_dict(r.models[1], r.opt).state or {}
  for _, name in ipairs(sorted(all)) do
    for _, key in ipairs(sorted(all[name])) do
      r:see('state ' .. key, ('%s of %s'):format(key, name), all[name][key])
    end
  end
  for i = 1, r.p.blocks do
    r:see('runs', ('runs of block %d'):format(i),
      (r.runs['b' .. i] or 0) / (r.side == 'sharded' and 1 or r.world))
  end
end

local function train(r)
  each('before', r)
  r:make()
  for step = 1, r.p.steps do
    train_step(r, step)
  end
  see_all(r)
  each('finish', r)
end

--- Train, and give what was seen.
---@param only? ms.dist.Group  of the side 'alone'
function Run.train(p, side, only)
  local r = setmetatable({ p = p, side = side, sharded = side ~= 'plain', only = only,
    rank = ms.dist.rank(), world = ms.dist.world_size(), at = {}, of = {}, runs = {},
    log = {} }, Run)
  ms.capture_warnings(train, r)
  return r.log
end

return Run
