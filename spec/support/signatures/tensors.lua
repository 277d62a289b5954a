--- How operators, methods of tensors, and what makes tensors are called rightly.

local ms = require 'moonshard'
local kinds = require 'support.signatures.kinds'
local surface = require 'support.surface'
local unary = require 'moonshard.unary'

local maybe, is_whole, kind, tensor = kinds.maybe, kinds.is_whole, kinds.kind, kinds.tensor
local whole, number, flag, text = kinds.whole, kinds.number, kinds.flag, kinds.text
local list, array, fn, any = kinds.list, kinds.array, kinds.fn, kinds.any
local scalar, operand, filler = kinds.scalar, kinds.operand, kinds.filler
local dtype, dims, choice, options = kinds.dtype, kinds.dims, kinds.choice, kinds.options
local x, bools, ids, leaf, square = kinds.x, kinds.bools, kinds.ids, kinds.leaf, kinds.square
local pass, linear, tensor_options = kinds.pass, kinds.linear, kinds.tensor_options

local of = {}

local function both(name, make) -- an operator and the method of its name
  of['ms.ops.' .. name], of['tensor:' .. name] = make, make
end

for _, name in ipairs(unary.functions) do
  both(name, function() return { x() } end)
end
both('clone', function() return { x() } end)
for _, name in ipairs { 'add', 'sub', 'mul', 'div' } do
  both(name, function() return { scalar(ms.rand(2, 3)), scalar(ms.rand(3)) } end)
end
for _, name in ipairs { 'eq', 'ne', 'lt', 'le', 'gt', 'ge' } do
  both(name, function() return { x(), operand(1) } end)
end
local keepdim = kinds.kind(function(v) return type(v) == 'boolean' or type(v) == 'table' end)
for _, name in ipairs { 'sum', 'mean' } do
  both(name, function() return { x(), maybe(dims(1)), maybe(keepdim(true)) } end)
end
both('log_softmax', function() return { x(), maybe(whole(1)) } end)
both('softmax', function() return { x(), maybe(whole(1)) } end)
both('maximum', function() return { x(), x() } end)
both('minimum', function() return { x(), x() } end)
both('clamp', function() return { x(), maybe(number(0)), maybe(number(1)) } end)
for _, name in ipairs { 'isnan', 'isinf', 'isfinite' } do
  both(name, function() return { x() } end)
end
both('pow', function() return { x(), number(2) } end)
both('gelu', function() return { x(), maybe(choice('none', 'tanh')) } end)
both('softplus', function() return { x(), maybe(number(1)), maybe(number(20)) } end)
both('matmul', function() return { square(), square() } end)
both('all', function() return { bools() } end)
both('any', function() return { bools() } end)
both('equal', function() return { x(), x() } end)
local tolerance = kinds.kind(function(v) return type(v) == 'number' or type(v) == 'table' end)
both('allclose', function() return { x(), x(), maybe(tolerance(1)), maybe(number(1)) } end)
both('select', function() return { x(), whole(1), whole(2) } end)
both('narrow', function() return { x(), whole(1), whole(1), whole(1) } end)
both('transpose', function() return { x(), whole(1), whole(2) } end)
both('reshape', function() return { x(), dims { 3, 2 } } end)
both('permute', function() return { x(), dims { 2, 1 } } end)
local function row() return tensor(ms.rand(3)) end
both('mm', function() return { square(), square() } end)
both('mv', function() return { square(), row() } end)
both('dot', function() return { row(), row() } end)
both('outer', function() return { row(), row() } end)
local function batch() return tensor(ms.rand(2, 3, 3)) end
both('bmm', function() return { batch(), batch() } end)
local function product_options()
  return maybe(options { beta = maybe(number(2)), alpha = maybe(number(3)) })
end
both('addmm', function() return { row(), square(), square(), product_options() } end)
both('baddbmm', function() return { row(), batch(), batch(), product_options() } end)
both('masked_fill', function() return { x(), bools(), scalar(2) } end)
both('tril', function() return { x(), maybe(whole(1)) } end)
both('triu', function() return { x(), maybe(whole(1)) } end)
both('unsqueeze', function() return { x(), whole(1) } end)
both('squeeze', function() return { x(), maybe(dims(1)) } end)
both('flatten', function() return { x(), maybe(whole(1)), maybe(whole(2)) } end)
both('view_as', function() return { x(), x() } end)
both('movedim', function() return { x(), dims(1), dims(2) } end)
both('expand', function() return { x(), dims { 2, 3 } } end)
both('expand_as', function() return { x(), x() } end)
both('tile', function() return { x(), dims { 2, 1 } } end)
both('repeat', function() return { x(), dims { 2, 1 } } end)
both('flip', function() return { x(), dims(1) } end)
both('split', function() return { x(), dims(1), maybe(whole(1)) } end)
both('chunk', function() return { x(), kinds.positive(2), maybe(whole(1)) } end)
both('unbind', function() return { x(), maybe(whole(1)) } end)
of['ms.ops.stack'] = function() return { array { ms.rand(2), ms.rand(2) }, maybe(whole(1)) } end
of['ms.stack'] = of['ms.ops.stack']
of['tensor:view'] = of['tensor:reshape']
of['ms.ops.affine'] = function() return { x(), number(1), number(2) } end
of['ms.ops.cast'] = function() return { x(), dtype 'f64' } end
of['tensor:to'] = of['ms.ops.cast']
of['ms.ops.cat'] = function() return { array { ms.rand(2), ms.rand(2) }, maybe(whole(1)) } end
of['ms.ops.linear'] = function() return { x(), square(), maybe(tensor(ms.rand(3))) } end
of['ms.ops.linear_gelu'] = function()
  return { x(), square(), maybe(tensor(ms.rand(3))), maybe(choice('none', 'tanh')) }
end
of['ms.ops.embedding'] = function() return { square(), ids() } end
of['ms.ops.layer_norm'] = function()
  return { x(), maybe(tensor(ms.rand(3))), maybe(tensor(ms.rand(3))), maybe(number(1e-5)) }
end
local function attention_options()
  return maybe(options { causal = maybe(flag(true)), scale = maybe(number(1)) })
end
of['ms.ops.attention'] = function()
  local function heads() return tensor(ms.rand(1, 2, 3, 4)) end
  return { heads(), heads(), heads(), attention_options() }
end
of['ms.ops.attention_packed'] = function()
  return { tensor(ms.rand(1, 3, 12)), whole(2), attention_options() }
end
of['ms.ops.site'] = function() return { text 'h.0' } end
of['ms.ops.dropout'] = function()
  return { x(), number(0.5), any 'here', maybe(whole(0)) }
end
of['ms.ops.cross_entropy'] = function()
  return { x(), tensor(ms.tensor({ 0, 2 }, { dtype = 'i64' })),
    maybe(options { ignore_index = maybe(whole(-100)), reduction = maybe(choice('sum', 'mean')) }) }
end
of['ms.ops.mse_loss'] = function()
  return { x(), x(), maybe(options { reduction = maybe(choice('sum', 'mean')) }) }
end
of['ms.ops.where'] = function() return { bools(), scalar(ms.rand(3)), scalar(2) } end
of['tensor:where'] = function() return { scalar(ms.rand(2, 3)), bools(), scalar(2) } end

for _, name in ipairs {
  'shape', 'stride', 'dim', 'numel', 'dtype', 'requires_grad', 'is_leaf', 'is_parameter',
  'is_contiguous', 'version', 'totable', 'hash', 'detach', 'contiguous', 'f32', 'f64', 'bf16',
  'f16', 'i64', 'i32', 'u8', 'bool', 'zero_', 'grad', 't',
} do
  of['tensor:' .. name] = function() return { x() } end
end
of['tensor:size'] = function() return { x(), whole(1) } end
of['tensor:item'] = function() return { tensor(ms.rand(1)) } end
of['tensor:fill_'] = function() return { x(), filler(1) } end
of['tensor:copy_'] = function() return { x(), tensor(ms.rand(3)) } end
of['tensor:add_'] = function() return { x(), scalar(ms.rand(3)), maybe(number(2)) } end
of['tensor:requires_grad_'] = function() return { x(), maybe(flag(true)) } end
of['tensor:backward'] = function()
  return {
    tensor((leaf().value * 2):sum()), maybe(tensor(ms.ones {})),
    maybe(options { retain_graph = maybe(flag(true)), create_graph = maybe(flag(false)) }),
  }
end
of['tensor:set_grad'] = function() return { leaf(), maybe(x()) } end
of['tensor:release'] = function()
  return { kind(ms.is_tensor)(ms.rand(2)) } -- twice is legal
end
of['tensor:hook'] = function() return { leaf(), fn(function() end) } end
of['tensor:accumulate_hook'] = of['tensor:hook']
of['tensor:remove_hook'] = function()
  local t = leaf()
  local hook = t.value:hook(function() end) -- again is legal
  return { t, kind(function(v) return v == hook end)(hook) }
end

of['hook:remove'] = function()
  return { maybe(kind(function(v) return v == surface.hook end)(surface.hook)) }
end

-- Sizes and options share their place.
local sizes = kind(function(v) return is_whole(v) and v >= 0 or type(v) == 'table' end)
for _, name in ipairs { 'zeros', 'ones', 'empty' } do
  of['ms.' .. name] = function() return { maybe(sizes { 2, 3 }), tensor_options() } end
end
for _, name in ipairs { 'rand', 'randn' } do
  of['ms.' .. name] = function()
    return { maybe(sizes { 2, 3 }), tensor_options { seed = maybe(kind(function(v)
      return is_whole(v) or type(v) == 'string'
    end)(1)) } }
  end
end
of['ms.full'] = function() return { sizes { 2 }, filler(1), tensor_options() } end
of['ms.tensor'] = function()
  return { kind(function(v)
    return type(v) == 'number' or type(v) == 'boolean' or type(v) == 'table'
  end) { { 1, 2 }, { 3, 4 } }, tensor_options() }
end
of['ms.arange'] = function()
  local or_options = kind(function(v) return type(v) == 'number' or type(v) == 'table' end)
  return { number(1), maybe(or_options(5)), maybe(or_options(2)), tensor_options() }
end
of['ms.manual_seed'] = function() return { whole(0) } end
of['ms.get_rng_state'] = function() return {} end
of['ms.set_rng_state'] = function()
  return { options { seed = text '3', tensors = kinds.size(1), tokens = kinds.size(0),
    modules = kinds.size(2), sample = maybe(kinds.size(4)), runs = list { ['0 drop'] = 1 } } }
end

of['ms.all'], of['ms.any'] = of['tensor:all'], of['tensor:any']
of['ms.equal'], of['ms.allclose'] = of['tensor:equal'], of['tensor:allclose']
of['ms.where'], of['ms.cat'], of['ms.matmul'] =
  of['ms.ops.where'], of['ms.ops.cat'], of['tensor:matmul']
of['ms.keep'] = function() return { x() } end
of['ms.is_tensor'] = function() return { any(1) } end
of['ms.is'] = function() return { any(linear()), list(ms.nn.Linear) } end
of['ms.class'] = function() return { text 'my.Class', maybe(list(ms.nn.Module)) } end

local tensors_of = kind(function(v) return ms.is_tensor(v) or type(v) == 'table' end)
of['ms.autograd.grad'] = function()
  local a = leaf()
  return {
    tensors_of((a.value * 2):sum()), tensors_of(a.value), maybe(tensors_of(ms.ones {})),
    maybe(options {
      retain_graph = maybe(flag(true)), create_graph = maybe(flag(false)),
      allow_unused = maybe(flag(true)),
    }),
  }
end
for _, name in ipairs { 'no_grad', 'enable_grad' } do
  of['ms.' .. name] = function() return { fn(pass), any(1) } end
  of['ms.autograd.' .. name] = of['ms.' .. name]
end
of['ms.scope'] = function() return { fn(pass), any(1) } end
of['ms.capture_warnings'] = of['ms.scope']
of['ms.errors.capture_warnings'] = of['ms.scope']
local warning = choice('UserWarning', 'FutureWarning')
of['ms.errors.warn'] = function()
  local world = kind(function(v) return v == ms.dist.world() end)
  return { warning, text 'w', maybe(world(ms.dist.world())) }
end
of['ms.warn'] = of['ms.errors.warn']
of['ms.error'] = function() return { choice('ValueError'), any 'e' } end
of['ms.errors.raise'] = of['ms.error']
of['ms.errors.check'] = function() return { kind(function(v) return v == 0 end)(0) } end
of['ms.errors.is'] = function() return { any(1) } end
of['ms.errors.status'], of['ms.errors.describe'] = of['ms.errors.is'], of['ms.errors.is']
of['ms.errors.choice'] = function()
  return { any 'f', any 'mode', choice('fast', 'slow'), list { 'fast', 'slow' } }
end
of['ms.errors.nearest'] = function() return { text 'bais', list { 'bias' } } end
of['ms.errors.options'] = function() return { any 'f', maybe(list {}), list { 'bias' } } end
of['ms.errors.device'] = function() return { any 'f', choice('cpu') } end

for _, name in ipairs {
  'is_grad_enabled', 'autograd.is_grad_enabled', 'collect', 'cpu_isa', 'is_terminal',
  'matmul_created', 'matmul_kept', 'memory', 'numerics', 'reset_peak_memory', 'time',
  'dist.catch_signals', 'dist.info', 'dist.rank',
  'dist.world', 'dist.world_size', 'nn.init.zeros', 'nn.init.ones',
} do
  of['ms.' .. name] = function() return {} end
end
of['ms.matmul_name'] = function() return { dtype 'f32' } end
of['ms.matmul_peak'] = function() return { dtype 'f32', maybe(number(1e-3)) } end
of['ms.matmul_scratch'] = function() return { dtype 'f32', whole(1), whole(2), whole(3) } end

return of
