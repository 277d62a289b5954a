-- Gradients in dtypes of their own: kept low ones, communication hooks, masters and reductions in
-- f64, accumulated or not, in every strategy. The plain f64 model gives norms, gradients and
-- optimizer state.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local wrap = require 'support.wrap'
local hooks = fsdp.comm_hooks

local BOUND = 0.1
local DTYPES = { -- master, param, reduce
  { 'f32', 'bf16', 'bf16' }, { 'f32', 'f16', 'f16' }, { 'f32', 'bf16', 'f32' },
  { 'f32', 'f16', 'f64' }, { 'f64', 'f32', 'f32' }, { 'f64', 'bf16', 'f16' },
}
local TOLERANCE = { bf16 = 0.03, f16 = 0.004, f32 = 1e-5, f64 = 1e-5 }

local function net(dtype)
  ms.manual_seed(1)
  local module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)):materialize()
  return module:to(dtype)
end

-- Micro-batch k of a rank.
local function loss(model, rank, k, dtype)
  local x = ms.full({ 5, 4 }, 0.1 * (2 * rank + k), { dtype = dtype })
  return model(x):to(dtype):square():mean()
end

-- Norm, and the gradients by name once they are clipped.
local function expected(world, n_micro)
  local model = net 'f64'
  for rank = 0, world - 1 do
    for k = 1, n_micro do
      (loss(model, rank, k, 'f64') / world):backward()
    end
  end
  local norm, grads = optim.clip_grad_norm_(model:parameters(), BOUND):item(), {}
  for name, p in model:named_parameters() do
    grads[name] = p:grad()
  end
  return norm, grads
end

local function options(case, groups)
  return {
    sharding_strategy = case.strategy, use_orig_params = case.orig,
    process_group = case.strategy:find 'HYBRID' and groups or nil,
    mixed_precision = { param_dtype = case.dtypes[2], reduce_dtype = case.dtypes[3],
      keep_low_precision_grads = case.keeps },
  }
end

local function check(case, groups, want)
  local rank, master = ms.dist.rank(), case.dtypes[1]
  local tolerance = math.max(TOLERANCE[case.dtypes[2]], TOLERANCE[case.dtypes[3]])
  local model = wrap(net(master), options(case, groups))
  if case.hook then
    model:register_comm_hook(hooks.DefaultState(ms.dist.world()),
      case.strategy == 'NO_SHARD' and hooks.allreduce_hook or hooks.reduce_scatter_hook)
  end
  for _, n_micro in ipairs { 1, 3 } do
    local norm, grads = unpack(want[n_micro])
    local function is_close(got, value, what)
      assert(math.abs(got - value) < tolerance * value, ('%s, %d micro-batches: %s is %g, not %g')
        :format(case.text, n_micro, what, got, value))
    end
    local opt = optim.SGD(model:parameters(), { lr = 0, momentum = 0.9 })
    for k = 1, n_micro - 1 do
      model:no_sync(function() loss(model, rank, k, master):backward() end)
    end
    loss(model, rank, n_micro, master):backward()
    is_close(model:clip_grad_norm_(BOUND):item(), norm, 'the norm')
    is_close(model:clip_grad_norm_(1e9):item(), BOUND, 'the clipped norm')
    opt:step()
    opt:zero_grad()
    local state = fsdp.optim_state_dict(model, opt).state
    for name, grad in pairs(grads) do
      local off = (state[name].momentum_buffer:f64() - grad):abs():max():item()
      is_close(BOUND + off, BOUND, 'the bound with the error of ' .. name)
    end
  end
end

describe('gradients in low precision', function()
  for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD', 'HYBRID_SHARD',
    '_HYBRID_SHARD_ZERO2' } do
    it('are those of the plain model, ' .. strategy, function()
      local hybrid = strategy:find 'HYBRID'
      local world = hybrid and 4 or 2
      ms.dist.spawn(world, function(rank)
        local groups = hybrid and { ms.dist.split(math.floor(rank / 2)), ms.dist.split(rank % 2) }
        local want = { { expected(world, 1) }, [3] = { expected(world, 3) } }
        for n = 0, #DTYPES * 8 - 1 do
          local function bit(k) return math.floor(n / 2 ^ k) % 2 == 1 end
          local case = { strategy = strategy, dtypes = DTYPES[math.floor(n / 8) + 1], orig = bit(0),
            keeps = bit(1), hook = bit(2) }
          case.text = ('%s, original %s, kept %s, hook %s'):format(table.concat(case.dtypes, '/'),
            case.orig, case.keeps, case.hook)
          if not (case.hook and hybrid) then -- refused
            check(case, groups, want)
          end
        end
      end)
    end)
  end
end)
