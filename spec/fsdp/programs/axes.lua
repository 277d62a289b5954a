--- The options that random programs draw, one row each.
---
--- name, then values, the default first.
--- legal(value, p)     false where the combination is refused, or says nothing; default: legal
--- bits                a function of the program: with another value the results have equal bits
---
--- A row acts in functions of (value, r, ...), r being a run (programs/run.lua) of the wrapped model
--- or (r.sharded false) of the plain one:
--- before(value, r)            nothing is made yet
--- net(value, r, net)          the plain module
--- options(value, r, o, net)   options of FSDP
--- wrapped(value, r, model)    returns another model, or nil
--- ready(value, r)             models are made, the optimizer is not
--- gradients(value, r)         after the backwards of a step
--- stepped(value, r, s)        after step s
--- finish(value, r)            after the last one

local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local Block = require('fsdp.programs.net').Block

local HYBRID = { HYBRID_SHARD = true, _HYBRID_SHARD_ZERO2 = true }
local function always() return true end
local function set(name) return function(value, _, o) o[name] = value end end
local function mixed(name)
  return function(value, _, o)
    o.mixed_precision = o.mixed_precision or {}
    o.mixed_precision[name] = value
  end
end

local function is_block(module) return ms.is(module, Block) end

local axes = {}

local function row(name)
  return function(entry)
    entry.name, entry.values, entry[1] = name, entry[1], nil
    axes[#axes + 1], axes[name] = entry, entry
  end
end

-- -- the program ---------------------------------------------------------------------------------

row 'world' { { 2, 1, 3, 4 } }
row 'steps' { { 2, 1, 3 } }
row 'micro' { { 1, 2, 3, 4 } }
row 'no_sync' { { false, 1, 2, 3 }, legal = function(from, p) return from < p.micro end }
row 'blocks' { { 2, 3 } }
row 'width' { { 4, 5 } }

-- -- dtypes --------------------------------------------------------------------------------------

local DTYPES = { 'none', 'f16', 'bf16', 'f32', 'f64' }

row 'master' { { 'f32', 'f64' } }
row 'param_dtype' { DTYPES, options = mixed 'param_dtype' }
row 'reduce_dtype' { DTYPES, options = mixed 'reduce_dtype' }

-- -- sharding ------------------------------------------------------------------------------------

row 'strategy' {
  { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD', 'HYBRID_SHARD', '_HYBRID_SHARD_ZERO2' },
  bits = always,
  options = function(value, r, o)
    o.sharding_strategy = value
    o.process_group = HYBRID[value] and { r.groups(r.p.inside) } or nil
  end,
}
row 'inside' { -- ranks of a shard group
  { 1, 2 }, bits = always,
  legal = function(n, p) return HYBRID[p.strategy] and p.world % n == 0 end,
}
row 'use_orig_params' { { true, false }, bits = always, options = set 'use_orig_params' }

local POLICIES = {
  class = fsdp.ModuleWrapPolicy { Block },
  nested = fsdp.transformer_auto_wrap_policy { Block, nn.Linear },
  all = fsdp.always_wrap_policy,
}
row 'policy' {
  { 'none', 'class', 'nested', 'all' }, bits = always,
  options = function(value, _, o) o.auto_wrap_policy = POLICIES[value] end,
}

-- -- communication hooks -------------------------------------------------------------------------

row 'hook' {
  { 'none', 'default', 'fp16', 'bf16' },
  legal = function(_, p) return not HYBRID[p.strategy] end,
  wrapped = function(value, r, model)
    if r.sharded then
      local hooks = fsdp.comm_hooks
      local hook = value ~= 'default' and hooks[value .. '_compress_hook']
        or r.p.strategy == 'NO_SHARD' and hooks.allreduce_hook or hooks.reduce_scatter_hook
      r.state(model):register_comm_hook(hooks.DefaultState(ms.dist.world()), hook)
    end
  end,
}

-- -- gradients -----------------------------------------------------------------------------------

row 'clip' {
  { 'none', 1, 2, 3, math.huge },
  gradients = function(order, r)
    for _, model in ipairs(r.models) do
      for _, max_norm in ipairs { 0.2, 1e9 } do
        local norm
        if r.sharded then
          norm = r.state(model):clip_grad_norm_(max_norm, order)
        else
          norm = optim.clip_grad_norm_(model:parameters(), max_norm, order)
        end
        r.see('norm', 'the norm', norm)
      end
    end
  end,
}

axes.is_block, axes.HYBRID = is_block, HYBRID

return axes
