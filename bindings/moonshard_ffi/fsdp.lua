--- FSDP units and trees: calls that need more than a handle and numbers (the others are in
--- moonshard_ffi.calls). A tree owns its units.
---
--- A unit or tree is stored in a holder, which frees it when the holder is collected. The caller
--- makes the holder before the call, so that an error after the call leaks nothing.

local B = require 'moonshard_ffi'
local options = require 'moonshard.options'
local parameter = require 'moonshard_ffi.parameter'

local C, calls = B.C, B.calls

local fsdp = {}

local STATES = {
  [C.MS_UNIT_SHARDED] = 'SHARDED', [C.MS_UNIT_PUBLISHED] = 'PUBLISHED',
  [C.MS_UNIT_UNSHARDED] = 'UNSHARDED',
}

local TRAINING = {
  [C.MS_UNIT_IDLE] = 'IDLE', [C.MS_UNIT_FORWARD] = 'FORWARD',
  [C.MS_UNIT_PRE_BACKWARD] = 'PRE_BACKWARD', [C.MS_UNIT_POST_BACKWARD] = 'POST_BACKWARD',
}

local Hold = B.typeof 'struct { ms_comm *group; double serial; }'

local function release(hold)
  if C.ms_comm_serial(hold.group) == hold.serial then
    C.ms_comm_release(hold.group)
  end
end

--- Keep a group alive, even if the script destroys it, until the result is collected.
---@param comm ffi.cdata*
---@return ffi.cdata*
function fsdp.hold(comm)
  local hold = B.gc(Hold(comm, C.ms_comm_serial(comm)), release)
  C.ms_comm_retain(comm)
  return hold
end

-- Members of a fake group are assumed to have this rank's values.
local function of_this_rank(values)
  local lists = {}
  for i, value in ipairs(values) do
    lists[i] = { value }
  end
  return lists
end

--- All-gather numbers: for each number the list of all ranks' values. Collective.
---@param comm ffi.cdata*
---@param what string  the calling function, for errors
---@param numbers number[]  the same count on every rank
---@return number[][]
function fsdp.exchange(comm, what, numbers)
  if C.ms_comm_is_fake(comm) then
    return of_this_rank(numbers)
  end
  local n, w = #numbers, C.ms_comm_size(comm)
  local mine, all = B.new('double[?]', n), B.new('double[?]', n * w)
  for i = 1, n do
    mine[i - 1] = numbers[i]
  end
  B.check(C.ms_comm_exchange(comm, what, mine, n, all))
  local lists = {}
  for i = 1, n do
    lists[i] = {}
    for rank = 1, w do
      lists[i][rank] = all[(rank - 1) * n + i - 1]
    end
  end
  return lists
end

--- All-gather a string: the list of all ranks' strings. Collective.
---@param comm ffi.cdata*
---@param what string  the calling function, for errors
---@param text string
---@return string[]
function fsdp.exchange_text(comm, what, text)
  local lengths = fsdp.exchange(comm, what, { #text })[1]
  local bytes = {}
  for i = 1, math.max(unpack(lengths)) do
    bytes[i] = text:byte(i) or 0
  end
  local texts, all = {}, fsdp.exchange(comm, what, bytes)
  for rank, length in ipairs(lengths) do
    local chars = {}
    for i = 1, length do
      chars[i] = string.char(all[i][rank])
    end
    texts[rank] = table.concat(chars)
  end
  return texts
end

local function free_unit(holder)
  C.ms_fsdp_unit_free(holder[0])
end

local function free_tree(holder)
  C.ms_fsdp_tree_free(holder[0])
end

---@return ffi.cdata*  for fsdp.unit()
function fsdp.unit_holder()
  return B.gc(B.new('ms_fsdp_unit *[1]'), free_unit)
end

---@return ffi.cdata*  for fsdp.tree()
function fsdp.tree_holder()
  return B.gc(B.new('ms_fsdp_tree *[1]'), free_tree)
end

--- The handle in a holder, or nil.
---@param holder ffi.cdata*
---@return ffi.cdata*?
function fsdp.held(holder)
  return holder[0] ~= nil and holder[0] or nil
end

local CONVERT = {
  choice = function(name, row)
    for _, value in ipairs(row.values) do
      if value[1] == name then
        return C[value[2]]
      end
    end
  end,
  floating = function(name) return parameter.dtype(name) end,
}

-- Fill an options struct from `values` and its groups by name. Other fields keep C's defaults.
local function struct_of(struct, values)
  local o = B.new(struct)
  C[struct .. '_init'](o, B.sizeof(o))
  for _, row in ipairs(options[struct]) do
    local from = row.group and (values[row.group] or {}) or values
    local value, convert = from[row.name or row.field], CONVERT[row.kind]
    if value ~= nil then
      o[row.field] = convert and convert(value, row) or value
    end
  end
  return o
end

local function texts_of(names)
  local texts = B.new('const char *[?]', #names)
  for i = 1, #names do
    texts[i - 1] = names[i]
  end
  return texts
end

--- Make a unit of parameters.
---@param holder ffi.cdata*  a new one for the unit
---@param name string
---@param values table  options of ms_fsdp_unit_options by their names in scripts
---@param tensors ms.Tensor[]
---@param names string[]
function fsdp.unit(holder, comm, name, values, tensors, names)
  local refs, n = B.array(tensors, 'params')
  calls.fsdp_unit_new(holder, comm, name, struct_of('ms_fsdp_unit_options', values), refs, n,
    texts_of(names))
end

--- Set `fn(address of refs)` as the hook of a unit.
---@param moment integer  C.MS_HOOK_*
function fsdp.set_hook(unit, moment, fn)
  B.check(B.core.unit_hook(B.new('ms_fsdp_unit *[1]', unit), moment, fn))
end

--- The properties of a unit that a plan needs.
---@return ffi.cdata* group  for fsdp.dry_run()
function fsdp.group_of(unit)
  local group = B.new('ms_fsdp_group')
  B.check(C.ms_fsdp_unit_describe(unit, group))
  return group
end

--- The same for the unit that fsdp.unit() would make, without making it.
---@return ffi.cdata* group
function fsdp.group(comm, name, values, tensors, names)
  local group, refs, n = B.new('ms_fsdp_group'), B.array(tensors, 'params')
  calls.fsdp_group_describe(group, comm, name, struct_of('ms_fsdp_unit_options', values), refs, n,
    texts_of(names))
  return group
end

--- Make a tree from units in module order, and transfer their ownership to it.
---@param holder ffi.cdata*  a new one for the tree
---@param values table  options of ms_fsdp_tree_options by their names in scripts
---@param units ffi.cdata*[]  their holders
---@param root_has_unit boolean
function fsdp.tree(holder, comm, values, units, root_has_unit)
  local o = struct_of('ms_fsdp_tree_options', values)
  local list = B.new('ms_fsdp_unit *[?]', math.max(#units, 1))
  for i = 1, #units do
    list[i - 1] = units[i][0]
    B.gc(units[i], nil) -- first: an error after the call would leave units with two owners
  end
  local status = C.ms_fsdp_tree_new(holder, comm, o, list, #units, root_has_unit)
  for i = 1, status == 0 and 0 or #units do
    B.gc(units[i], free_unit)
  end
  B.check(status)
end

local one = B.new('ms_ref[1]') -- allocated once, because every forward needs it

---@param outputs ms.Tensor|ms.Tensor[]
function fsdp.unit_post_forward(unit, outputs)
  local refs, n = one, 1
  if type(outputs) == 'table' then
    refs, n = B.array(outputs, 'outputs')
  else
    one[0] = outputs
  end
  calls.fsdp_unit_post_forward(unit, refs, n)
end

--- End a forward that raised `err`.
function fsdp.reset(tree, err)
  local _, text = B.errors.report(err)
  C.ms_error_set(B.errors.status(err), text)
  C.ms_fsdp_tree_reset(tree)
end

--- Report to the peers that this rank failed with `err`.
---@param comm ffi.cdata*
function fsdp.failed(comm, err)
  local _, text = B.errors.report(err)
  C.ms_comm_failed(comm, text)
end

local function unit_list(units)
  local list = B.new('ms_fsdp_unit *[?]', math.max(#units, 1))
  for i = 1, #units do
    list[i - 1] = units[i]
  end
  return list, #units
end

function fsdp.summon(tree, units, with_grads)
  local list, n = unit_list(units)
  B.check(C.ms_fsdp_tree_summon_units(tree, list, n, with_grads))
end

--- Set the units that are gathered ahead once `unit` is gathered.
---@param units ffi.cdata*[]  of its tree
---@param backward boolean  in backward, else in forward
function fsdp.set_prefetch(unit, units, backward)
  local list, n = unit_list(units)
  B.check(C.ms_fsdp_unit_set_prefetch(unit, list, n, backward))
end

--- Full-precision copies of all `n` parameters in one tensor, and the index (from 1) of the first
--- element of each. Collective.
---@return ms.Tensor, integer[]
function fsdp.gather_all(unit, n)
  local offsets, starts = B.new('int64_t[?]', n), {}
  local flat = calls.fsdp_unit_gather_all(unit, offsets)
  for i = 1, n do
    starts[i] = tonumber(offsets[i - 1]) + 1
  end
  return flat, starts
end

---@class ms.Plan  exact bytes that this rank needs in a training step; ms_fsdp_plan defines the
---  step
---@field masters integer    full-precision shards
---@field gradients integer  maximum, including accumulated gradients of no_sync
---@field per_state integer  one optimizer state buffer for all trainable parameters
---@field arena integer      slots, shared by the ranks of the host
---@field param_slots integer  part of the arena: for parameters
---@field own_slots integer  part of param_slots: private to this rank (layouts pull and nccl)
---@field gradient_slots integer  part of the arena: for gradients, one part per rank
---@field own_gradients integer  part of gradient_slots: private to this rank (layout nccl)
---@field param_ring integer  parameter slots that units use in turn
---@field param_homes integer  dedicated parameter slots
---@field gradient_ring integer
---@field gradient_homes integer  dedicated gradient slots
---@field gathered integer  bytes of other ranks' parameters that this rank reads in a step
---@field reduced integer  bytes of other ranks' gradients, or of their sums, that this rank reads
---@field activations? integer  of compiled modules: results, saved and temporary memory
---@field same_numerics boolean  all ranks compute alike, so bits do not depend on strategy and
---  world size

local PLAN = {
  'masters', 'gradients', 'per_state', 'arena', 'param_slots', 'own_slots', 'gradient_slots',
  'own_gradients', 'param_ring', 'param_homes', 'gradient_ring', 'gradient_homes', 'gathered',
  'reduced',
}

local function plan_of(p)
  local plan = { same_numerics = p.same_numerics }
  for _, name in ipairs(PLAN) do
    plan[name] = tonumber(p[name])
  end
  return plan
end

---@param micro_batches integer  backwards of this rank in a step; all but the last are in no_sync
---@param dry boolean  compute from numbers without initialising the tree
---@return ms.Plan
function fsdp.plan(tree, micro_batches, dry)
  local p = B.new('ms_fsdp_plan')
  local get = dry and C.ms_fsdp_tree_dry_run or C.ms_fsdp_tree_plan_get
  B.check(get(tree, micro_batches, p))
  return plan_of(p)
end

--- The plan of the tree that fsdp.tree() would make of such units.
---@param values table  as for fsdp.tree()
---@param groups ffi.cdata*[]  in module order; the root's, if it has one, is the first and marked
---@return ms.Plan
function fsdp.dry_run(comm, values, groups, micro_batches)
  local p, list = B.new('ms_fsdp_plan'), B.new('ms_fsdp_group[?]', #groups)
  for i, group in ipairs(groups) do
    list[i - 1] = group
  end
  B.check(C.ms_fsdp_dry_run(p, comm, struct_of('ms_fsdp_tree_options', values), list, #groups,
    micro_batches))
  return plan_of(p)
end

---@param params ms.Tensor[]  in the same order on all ranks; also of other trees, and plain ones
---@return ms.Tensor  (), f64: the total norm before clipping
function fsdp.clip(tree, params, max_norm, norm_type, error_if_nonfinite)
  local refs, n = B.array(params, 'params')
  return calls.fsdp_tree_clip_grad_norm(tree, refs, n, max_norm, norm_type, error_if_nonfinite)
end

local hash = B.new('uint64_t[1]')

--- A hash of 16 hexadecimal digits over all full parameters. Collective.
---@param params ms.Tensor[]  all parameters of the model in order
---@return string
function fsdp.hash(tree, params)
  local refs, n = B.array(params, 'params')
  calls.fsdp_tree_hash(tree, refs, n, hash)
  return ('%08x%08x'):format(tonumber(hash[0] / 2 ^ 32), tonumber(hash[0] % 2 ^ 32))
end

---@class ms.UnitInfo
---@field name string  path (set by the caller, as is the strategy)
---@field strategy string
---@field n_params integer
---@field numel integer  of the parameters, without padding
---@field padded_numel integer  of all shards together
---@field shard_numel integer
---@field shard_bytes integer  of the master shard
---@field param_dtype string
---@field reduce_dtype string
---@field dtype string  of the master shard
---@field state 'SHARDED'|'PUBLISHED'|'UNSHARDED'
---@field training 'IDLE'|'FORWARD'|'PRE_BACKWARD'|'POST_BACKWARD'
---@field model integer  index of the model in order of first use; 0: not used yet
---@field is_root boolean

---@return ms.UnitInfo
function fsdp.info(unit)
  local i = B.new('ms_fsdp_unit_info')
  B.check(C.ms_fsdp_unit_info_get(unit, i))
  return {
    n_params = i.n_params,
    numel = tonumber(i.numel),
    padded_numel = tonumber(i.padded_numel),
    shard_numel = tonumber(i.shard_numel),
    shard_bytes = tonumber(i.shard_numel * C.ms_dtype_size(i.orig_dtype)),
    param_dtype = parameter.dtype_name(i.param_dtype),
    reduce_dtype = parameter.dtype_name(i.reduce_dtype),
    dtype = parameter.dtype_name(i.orig_dtype),
    state = STATES[i.state],
    training = TRAINING[i.training],
    model = i.model,
    is_root = i.is_root,
  }
end

return fsdp
