--- Compares a program's run on the wrapped model with the plain model's, and with runs that have
--- equal bits by promise.

local ms = require 'moonshard'
local Run = require 'fsdp.programs.run'
local axes = require 'fsdp.programs.axes'
local maker = require 'fsdp.programs.maker'

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

local function largest(value)
  local top = 0
  for _, x in ipairs(type(value) == 'table' and value or {}) do
    top = math.max(top, math.abs(x))
  end
  return top
end

local function show(value, i)
  return type(value) == 'table' and ('%.9g'):format(value[i or 1] or 0/0) or tostring(value)
end

local function differ(found, wanted, i)
  error(('%s%s is %s, expected %s'):format(wanted.what, i and (', element %d,'):format(i) or '',
    show(found.value, i), show(wanted.value, i)), 0)
end

local function compare_values(found, wanted, bound)
  if type(wanted.value) ~= 'table' or type(found.value) ~= 'table' then
    return found.value == wanted.value or differ(found, wanted)
  elseif #found.value ~= #wanted.value then
    error(('%s has %d elements, expected %d'):format(wanted.what, #found.value, #wanted.value), 0)
  end
  for i, x in ipairs(wanted.value) do
    local near = math.abs(x - found.value[i]) <= bound
    if not near then -- NaN too
      differ(found, wanted, i)
    end
  end
end

-- Raise the first difference. `unit` 0: bits; `besides`: an absolute error.
local function compare(found, expected, unit, besides)
  local tops = {}
  for _, e in ipairs(expected) do
    tops[e.kind] = math.max(tops[e.kind] or 0, largest(e.value))
  end
  local nothing = { what = 'nothing' }
  for n = 1, math.max(#found, #expected) do
    local entry, wanted = found[n] or nothing, expected[n] or nothing
    if entry.what ~= wanted.what then
      error(('observation %d is of %s, expected of %s'):format(n, entry.what, wanted.what), 0)
    elseif wanted.kind ~= 'runs' or unit > 0 then -- recomputation has equal bits
      local scale = largest(wanted.value) + 0.1 * tops[wanted.kind]
      compare_values(entry, wanted, 12 * unit * scale + besides)
    end
  end
end

-- Steps of a size of their own go either way where rounding decides a small gradient's sign.
local function besides(p, unit)
  return p.optimizer ~= 'SGD' and unit > 1e-6 and 2 * Run.OPTIMIZERS[p.optimizer].lr * p.steps or 0
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

-- The program that has equal bits by promise: nil if it is the same. Nothing is promised for hooks,
-- nor for kept gradients of replicas, which alone are not rounded to the master's dtype.
local function twin_of(p)
  local twin, changed = p, false
  if p.hook ~= 'none' or p.keep_low and p.strategy == 'NO_SHARD' then
    return nil
  end
  for _ = 1, 2 do -- some values are legal only beside others
    for _, axis in ipairs(axes) do
      if axis.bits and twin[axis.name] ~= axis.values[1] then
        local plainer = maker.changed(twin, axis.name, axis.values[1])
        twin, changed = plainer or twin, changed or plainer ~= nil
      end
    end
  end
  return changed and twin or nil
end

local function labelled(label, fn, ...)
  local ok, value = pcall(fn, ...)
  if not ok then
    error(label .. tostring(value), 0)
  end
  return value
end

-- Do world sizes have equal bits? If gradients are summed once, of a power of two of micro-batches
-- on each rank, and ranks compute nothing else together.
local function is_same_alone(p)
  return p.micro ~= 3 and (p.micro == 1 or p.no_sync == 1) and p.hook == 'none'
    and p.ignored == 'none' and not p.saved and p.reload ~= 'checkpoint'
    and not (p.keep_low and p.strategy == 'NO_SHARD')
end

--- Run a program as one rank of `p.world`. Raises the first difference.
return function(p)
  local found, unit = Run.train(p, 'sharded'), unit_of(p)
  check_replicas(found)
  local twin, alone = twin_of(p), Run.group('each', ms.dist.rank())
  local is_judge = p.seed % ms.dist.world_size() == ms.dist.rank() -- others would see the same
  if is_judge then
    compare(found, labelled('the plain model: ', Run.train, p, 'plain'), unit, besides(p, unit))
  end
  if not is_same_alone(p) and twin then
    labelled('bits of the plainest wrapping: ', compare, found, Run.train(twin, 'sharded'), 0, 0)
  elseif is_judge and is_same_alone(p) then
    labelled('bits of one rank: ', compare, found, Run.train(twin or p, 'alone', alone), 0, 0)
  end
end
