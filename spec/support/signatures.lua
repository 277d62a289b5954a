--- How every public function is called rightly: its arguments, each with a value that is right and
--- a test of what may be right. Everything else must be refused.

local ms = require 'moonshard'

local signatures = {}

---@class spec.Argument
---@field value any  a right one
---@field may fun(value: any): boolean  false: certainly wrong
---@field optional boolean
---@field fields table<string, spec.Argument>?  of a table of options

-- -- kinds of arguments --------------------------------------------------------------------------

local function maybe(argument)
  argument.optional = true
  return argument
end

--- A number of things to do: many of them are no misuse, only long.
local function bounded(argument)
  argument.bounded = true
  return argument
end

--- Not to be replaced: calling something else calls something else.
local function fixed(argument)
  argument.fixed = true
  return argument
end

local function is_live(v)
  return ms.is_tensor(v) and not tostring(v):find('^tensor%(released')
end

local function callable(v)
  local meta = type(v) == 'table' and getmetatable(v)
  return type(v) == 'function' or type(meta) == 'table' and meta.__call ~= nil
end

local function is_whole(v)
  return type(v) == 'number' and v % 1 == 0
end

local function kind(may)
  return function(value)
    return { value = value, may = may, optional = false }
  end
end

local function of_type(name)
  return kind(function(v) return type(v) == name end)
end

local tensor, whole, number = kind(is_live), kind(is_whole), of_type 'number'
local flag, text, list, fn = of_type 'boolean', of_type 'string', of_type 'table', kind(callable)
local function any(value)
  return maybe(kind(function() return true end)(value))
end
local scalar = kind(function(v) return is_live(v) or type(v) == 'number' end)
local operand = kind(function(v)
  return is_live(v) or type(v) == 'number' or type(v) == 'boolean'
end)
local dtype = kind(function(v) return type(v) == 'string' and rawget(ms, v) == v end)
local dims = kind(function(v) return is_whole(v) or type(v) == 'table' end)

local function choice(value, ...)
  local allowed = { ... }
  return kind(function(v)
    for _, c in ipairs(allowed) do
      if v == c then
        return true
      end
    end
    return v == value
  end)(value)
end

local function object(value, class)
  return kind(function(v) return ms.is(v, class) end)(value)
end

--- A table of options whose values are themselves arguments.
local function options(fields)
  local value = {}
  for name, field in pairs(fields) do
    value[name] = field.value
  end
  local o = kind(function(v)
    if type(v) ~= 'table' then
      return false
    end
    for key in pairs(v) do
      if not fields[key] then
        return false
      end
    end
    return true
  end)(value)
  o.fields = fields
  return o
end

-- -- what they are called with -------------------------------------------------------------------

local function x() return tensor(ms.rand(2, 3)) end
local function bools() return tensor(ms.rand(2, 3):gt(0.5)) end
local function ids() return tensor(ms.tensor({ { 0, 1 }, { 1, 2 } }, { dtype = 'i64' })) end
local function leaf() return tensor(ms.rand(2, 3, { requires_grad = true })) end
local function square() return tensor(ms.rand(3, 3)) end
local function pass(...) return ... end

local function linear() return ms.nn.Linear(3, 3) end
local function module(m) return object(m or linear(), ms.nn.Module) end

local function wrapped()
  local model
  ms.capture_warnings(function() model = ms.fsdp.FSDP(linear()) end)
  return object(model, ms.fsdp.FSDP)
end

local function gpt()
  return ms.models.GPT { vocab = 8, layers = 1, heads = 1, width = 4, context = 4 }
end

local function optimizer()
  return ms.optim.SGD(linear():parameters(), { lr = 0.1 })
end

local function tokens() return ms.tensor({ 1, 2, 3, 4, 5, 6, 7, 8, 9 }, { dtype = 'u8' }) end

local function loader()
  return ms.data.Loader { tokens = tokens(), batch = 1, context = 2 }
end

local folder = os.getenv 'MS_MISUSE_DIR' or '/tmp'
local root = folder .. '/checkpoints'

local function tensor_options(more)
  local fields = { dtype = maybe(dtype 'f32'), requires_grad = maybe(flag(false)) }
  for name, field in pairs(more or {}) do
    fields[name] = field
  end
  return maybe(options(fields))
end

local function bias_options(more)
  local fields = { bias = maybe(flag(true)), dtype = maybe(dtype 'f32') }
  for name, field in pairs(more or {}) do
    fields[name] = field
  end
  return maybe(options(fields))
end

local function adam_options()
  return maybe(options {
    lr = maybe(number(0.1)), betas = maybe(list { 0.9, 0.99 }), eps = maybe(number(1e-8)),
    weight_decay = maybe(number(0)), maximize = maybe(flag(false)),
  })
end

local function parameters() return list(linear():parameters()) end

-- -- the table -----------------------------------------------------------------------------------

local of = {}

local function unary(...)
  for _, name in ipairs { ... } do
    of['ms.ops.' .. name] = function() return { x() } end
    of['tensor:' .. name] = of['ms.ops.' .. name]
  end
end

local function both(name, make) -- an operator and the method of its name
  of['ms.ops.' .. name], of['tensor:' .. name] = make, make
end

unary('exp', 'log', 'sqrt', 'tanh', 'relu', 'reciprocal', 'log_softmax', 'clone')
for _, name in ipairs { 'add', 'sub', 'mul', 'div' } do
  both(name, function() return { scalar(ms.rand(2, 3)), scalar(ms.rand(3)) } end)
end
for _, name in ipairs { 'eq', 'ne', 'lt', 'le', 'gt', 'ge' } do
  both(name, function() return { x(), operand(1) } end)
end
for _, name in ipairs { 'sum', 'mean' } do
  both(name, function() return { x(), maybe(dims(1)), maybe(flag(true)) } end)
end
both('pow', function() return { x(), number(2) } end)
both('gelu', function() return { x(), maybe(choice('none', 'tanh')) } end)
both('matmul', function() return { square(), square() } end)
both('all', function() return { bools() } end)
both('any', function() return { bools() } end)
both('equal', function() return { x(), x() } end)
both('allclose', function() return { x(), x(), maybe(number(1)), maybe(number(1)) } end)
both('select', function() return { x(), whole(1), whole(2) } end)
both('narrow', function() return { x(), whole(1), whole(1), whole(1) } end)
both('transpose', function() return { x(), whole(1), whole(2) } end)
both('reshape', function() return { x(), dims { 3, 2 } } end)
both('permute', function() return { x(), dims { 2, 1 } } end)
of['tensor:view'] = of['tensor:reshape']
of['ms.ops.affine'] = function() return { x(), number(1), number(2) } end
of['ms.ops.cast'] = function() return { x(), dtype 'f64' } end
of['tensor:to'] = of['ms.ops.cast']
of['ms.ops.cat'] = function() return { list { ms.rand(2), ms.rand(2) }, maybe(whole(1)) } end
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
  'i64', 'u8', 'bool', 'zero_', 'grad', 't',
} do
  of['tensor:' .. name] = function() return { x() } end
end
of['tensor:size'] = function() return { x(), whole(1) } end
of['tensor:item'] = function() return { tensor(ms.rand(1)) } end
of['tensor:fill_'] = function() return { x(), number(1) } end
of['tensor:copy_'] = function() return { x(), tensor(ms.rand(3)) } end
of['tensor:add_'] = function() return { x(), scalar(ms.rand(3)), maybe(number(2)) } end
of['tensor:requires_grad_'] = function() return { x(), maybe(flag(true)) } end
of['tensor:backward'] = function()
  return { tensor((leaf().value * 2):sum()), maybe(tensor(ms.ones {})) }
end
of['tensor:set_grad'] = function() return { leaf(), maybe(x()) } end
of['tensor:release'] = function()
  return { kind(ms.is_tensor)(ms.rand(2)) } -- twice is legal
end
of['tensor:hook'] = function() return { leaf(), fn(function() end) } end
of['tensor:accumulate_hook'] = of['tensor:hook']
of['tensor:remove_hook'] = function()
  local t = leaf()
  return { t, whole(t.value:hook(function() end)) }
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
of['ms.full'] = function() return { sizes { 2 }, number(1), tensor_options() } end
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

of['ms.all'], of['ms.any'] = of['tensor:all'], of['tensor:any']
of['ms.equal'], of['ms.allclose'] = of['tensor:equal'], of['tensor:allclose']
of['ms.where'], of['ms.cat'], of['ms.matmul'] =
  of['ms.ops.where'], of['ms.ops.cat'], of['tensor:matmul']
of['ms.keep'] = function() return { x() } end
of['ms.is_tensor'] = function() return { any(1) } end
of['ms.is'] = function() return { any(linear()), list(ms.nn.Linear) } end
of['ms.class'] = function() return { text 'my.Class', maybe(list(ms.nn.Module)) } end

for _, name in ipairs { 'no_grad', 'enable_grad' } do
  of['ms.' .. name] = function() return { fn(pass), any(1) } end
  of['ms.autograd.' .. name] = of['ms.' .. name]
end
of['ms.scope'] = function() return { fn(pass), any(1) } end
of['ms.capture_warnings'] = of['ms.scope']
of['ms.errors.capture_warnings'] = of['ms.scope']
local warning = choice('UserWarning', 'FutureWarning')
of['ms.errors.warn'] = function() return { warning, text 'w' } end
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

for _, name in ipairs {
  'is_grad_enabled', 'autograd.is_grad_enabled', 'collect', 'cpu_isa', 'is_terminal',
  'matmul_created', 'matmul_kept', 'memory', 'numerics', 'reset_peak_memory', 'time',
  'dist.barrier',
  'dist.catch_signals', 'dist.info', 'dist.rank', 'dist.stop_requested', 'dist.wait_seconds',
  'dist.world', 'dist.world_size', 'nn.init.zeros', 'nn.init.ones',
} do
  of['ms.' .. name] = function() return {} end
end
of['ms.matmul_name'] = function() return { dtype 'f32' } end
of['ms.matmul_peak'] = function() return { dtype 'f32', maybe(number(1e-3)) } end
of['ms.matmul_scratch'] = function() return { dtype 'f32', whole(1), whole(2), whole(3) } end

-- -- modules -------------------------------------------------------------------------------------

local positive = kind(function(v) return is_whole(v) and v > 0 end)
local size = kind(function(v) return is_whole(v) and v >= 0 end)
local rule = kind(function(v) return type(v) == 'table' and v.kind ~= nil end)

of['ms.nn.Module'] = function() return {} end
of['ms.nn.Linear'] = function()
  return { size(3), size(2), bias_options {
    init = maybe(rule(ms.nn.init.ones())), bias_init = maybe(rule(ms.nn.init.ones())),
  } }
end
of['ms.nn.LinearGELU'] = function()
  return { size(3), size(2), bias_options { approximate = maybe(choice('none', 'tanh')) } }
end
of['ms.nn.Embedding'] = function()
  return { size(3), size(2), maybe(options {
    dtype = maybe(dtype 'f32'), init = maybe(rule(ms.nn.init.ones())),
  }) }
end
of['ms.nn.LayerNorm'] = function()
  return { size(3), bias_options {
    eps = maybe(number(1e-5)), elementwise_affine = maybe(flag(true)),
  } }
end
of['ms.nn.Dropout'] = function() return { maybe(number(0.5)) } end
of['ms.nn.GELU'] = function()
  return { maybe(options { approximate = maybe(choice('none', 'tanh')) }) }
end
of['ms.nn.ReLU'] = function() return {} end
of['ms.nn.Tanh'] = of['ms.nn.ReLU']
of['ms.nn.CausalSelfAttention'] = function()
  return { positive(4), positive(2), bias_options { dropout = maybe(number(0)) } }
end
of['ms.nn.TransformerBlock'] = of['ms.nn.CausalSelfAttention']
of['ms.nn.FeedForward'] = function()
  return { size(4), bias_options {
    dropout = maybe(number(0)), hidden = maybe(size(8)),
    approximate = maybe(choice('none', 'tanh')),
  } }
end
of['ms.nn.MSELoss'] = function()
  return { maybe(options { reduction = maybe(choice('sum', 'mean')) }) }
end
of['ms.nn.CrossEntropyLoss'] = function()
  return { maybe(options { ignore_index = maybe(whole(-100)),
    reduction = maybe(choice('sum', 'mean')) }) }
end
local modules = kind(function(v) return type(v) == 'table' end)
of['ms.nn.ModuleList'] = function() return { maybe(modules { linear(), linear() }) } end
of['ms.nn.Sequential'] = of['ms.nn.ModuleList']
of['ms.models.GPT'] = function()
  return { options {
    vocab = positive(8), layers = positive(1), heads = positive(1), width = positive(4),
    context = positive(4), dropout = maybe(number(0)), bias = maybe(flag(true)),
    tie = maybe(flag(true)), dtype = maybe(dtype 'f32'),
  } }
end

local instances = {
  ['ms.nn.Linear'] = linear,
  ['ms.nn.LinearGELU'] = function() return ms.nn.LinearGELU(3, 3) end,
  ['ms.nn.Embedding'] = function() return ms.nn.Embedding(3, 2) end,
  ['ms.nn.LayerNorm'] = function() return ms.nn.LayerNorm(3) end,
  ['ms.nn.Dropout'] = function() return ms.nn.Dropout(0.5) end,
  ['ms.nn.GELU'] = function() return ms.nn.GELU() end,
  ['ms.nn.ReLU'] = function() return ms.nn.ReLU() end,
  ['ms.nn.Tanh'] = function() return ms.nn.Tanh() end,
  ['ms.nn.CausalSelfAttention'] = function() return ms.nn.CausalSelfAttention(4, 2) end,
  ['ms.nn.TransformerBlock'] = function() return ms.nn.TransformerBlock(4, 2) end,
  ['ms.nn.FeedForward'] = function() return ms.nn.FeedForward(4) end,
  ['ms.nn.Sequential'] = function() return ms.nn.Sequential(linear()) end,
  ['ms.models.GPT'] = gpt,
}
local inputs = {
  ['ms.nn.Embedding'] = ids, ['ms.models.GPT'] = ids,
  ['ms.nn.CausalSelfAttention'] = function() return tensor(ms.rand(1, 2, 4)) end,
  ['ms.nn.TransformerBlock'] = function() return tensor(ms.rand(1, 2, 4)) end,
  ['ms.nn.FeedForward'] = function() return tensor(ms.rand(1, 2, 4)) end,
}
for name, make in pairs(instances) do
  local function self() return object(make(), ms.nn.Module) end
  of[name .. ':forward'] = function()
    return { fixed(self()), (inputs[name] or x)() }
  end
end
of['ms.models.GPT:forward'] = function()
  local m = gpt()
  m:materialize()
  return { fixed(module(m)), ids(), maybe(ids()) }
end
of['ms.models.GPT:generate'] = function()
  return { module(gpt()), list { 1, 2 }, bounded(whole(2)), maybe(options {
    temperature = maybe(number(1)), top_k = maybe(whole(2)), seed = maybe(whole(3)),
    on_token = maybe(fn(pass)),
  }) }
end
of['ms.models.GPT:flops_per_token'] = function() return { module(gpt()), maybe(number(4)) } end
of['ms.models.GPT:activation_bytes'] = function()
  return { module(gpt()), whole(1), whole(4), dtype 'f32' }
end
of['ms.nn.MSELoss:forward'] = function() return { fixed(module(ms.nn.MSELoss())), x(), x() } end
of['ms.nn.CrossEntropyLoss:forward'] = function()
  return { fixed(module(ms.nn.CrossEntropyLoss())), x(),
    tensor(ms.tensor({ 0, 2 }, { dtype = 'i64' })) }
end

local function on_module(name, ...)
  local more = { ... }
  of['ms.nn.Module:' .. name] = function()
    local args = { module() }
    for i, make in ipairs(more) do
      args[i + 1] = make()
    end
    return args
  end
end

for _, name in ipairs {
  'children', 'eval', 'hash', 'materialize', 'modules', 'named_buffers', 'named_children',
  'num_parameters', 'path',
} do
  on_module(name)
end
local function maybe_flag() return maybe(flag(true)) end
local function zero_grad_options()
  return maybe(options { set_to_none = maybe(flag(true)) })
end
on_module('zero_grad', zero_grad_options)
on_module('apply', function() return fn(pass) end)
on_module('train', maybe_flag)
on_module('requires_grad_', maybe_flag)
on_module('parameters', maybe_flag)
on_module('named_parameters', maybe_flag, maybe_flag)
on_module('named_modules', maybe_flag)
on_module('get_submodule', function() return text '' end)
on_module('register_forward_hook', function() return fn(pass) end)
on_module('register_forward_pre_hook', function() return fn(pass) end)
on_module('param', function() return text 'scale' end, function() return list { 3 } end,
  function() return maybe(rule(ms.nn.init.ones())) end,
  function() return maybe(options { dtype = maybe(dtype 'f32'), requires_grad = maybe(flag(true)) })
  end)
on_module('tie', function() return text 'again' end,
  function() return tensor(linear():parameters()[1]) end)
on_module('buffer', function() return text 'mask' end, x,
  function() return maybe(options { persistent = maybe(flag(true)) }) end)
on_module('child', function() return text 'inner' end, module,
  function() return maybe(kind(function(v) return is_whole(v) or type(v) == 'string' end)('i')) end)
on_module('state_dict', function() return maybe(options { rank0_only = maybe(flag(false)) }) end)
of['ms.nn.Module:load_state_dict'] = function()
  local m = linear()
  return { module(m), list(linear():state_dict()), maybe(options { strict = maybe(flag(true)) }) }
end
of['ms.nn.Module:set_buffer'] = function()
  local m = linear()
  m:buffer('mask', ms.rand(2))
  return { module(m), text 'mask', x() }
end
of['ms.nn.Module:set_child'] = function()
  return { module(ms.nn.Sequential(linear())), text '0', module() }
end
of['ms.nn.Module:extend'] = function()
  return { text 'my.Module', maybe(list(ms.nn.Module)) } -- a function of the class, no method
end
of['ms.nn.Module:forward'] = function() return { fixed(module(ms.nn.Module())), x() } end
of['ms.nn.ModuleList:append'] = function() return { module(ms.nn.ModuleList()), module() } end
of['ms.nn.ModuleList:len'] = function() return { module(ms.nn.ModuleList()) } end
of['ms.nn.Sequential:append'] = of['ms.nn.ModuleList:append']
of['ms.nn.Sequential:len'] = of['ms.nn.ModuleList:len']

of['ms.nn.init.constant'] = function() return { number(1) } end
of['ms.nn.init.uniform'] = function() return { number(0), number(1) } end
of['ms.nn.init.normal'] = function() return { maybe(number(0)), maybe(number(1)) } end
of['ms.nn.init.fan_in_uniform'] = function() return { number(3) } end
of['ms.nn.init.xavier_uniform'] = function()
  return { number(3), number(4), maybe(number(1)) }
end
of['ms.nn.init.apply_'] = function()
  return { x(), rule(ms.nn.init.normal()), text 'w' }
end

-- -- optimizers, data, schedules -----------------------------------------------------------------

of['ms.optim.Optimizer'] = function() -- abstract
  return { any(nil) }
end
of['ms.optim.SGD'] = function()
  return { parameters(), maybe(options {
    lr = maybe(number(0.1)), momentum = maybe(number(0.9)), dampening = maybe(number(0)),
    weight_decay = maybe(number(0)), nesterov = maybe(flag(true)), maximize = maybe(flag(false)),
  }) }
end
of['ms.optim.Adam'] = function() return { parameters(), adam_options() } end
of['ms.optim.AdamW'] = of['ms.optim.Adam']
local function on_optimizer(name, ...)
  local more = { ... }
  of['ms.optim.Optimizer:' .. name] = function()
    local o = optimizer()
    local args = { object(o, ms.optim.Optimizer) }
    for i, make in ipairs(more) do
      args[i + 1] = make(o)
    end
    return args
  end
end
on_optimizer('step')
on_optimizer('zero_grad', zero_grad_options)
on_optimizer('state_dict')
on_optimizer('load_state_dict', function(o) return list(o:state_dict()) end)
on_optimizer('set_lr', function() return number(0.2) end, function() return maybe(whole(1)) end)
on_optimizer('add_param_group', function() return list { params = linear():parameters() } end)
of['ms.optim.clip_grad_norm_'] = function()
  return { parameters(), number(1), maybe(number(2)) }
end

of['ms.data.Loader'] = function()
  return { options {
    tokens = tensor(tokens()), batch = positive(1), context = positive(2), seed = maybe(whole(1)),
    shuffle = maybe(flag(true)), rank = maybe(whole(0)), world_size = maybe(positive(1)),
    micro_batches = maybe(positive(1)),
  } }
end
for _, name in ipairs { 'epoch', 'next', 'state', 'step' } do
  of['ms.data.Loader:' .. name] = function() return { object(loader(), ms.data.Loader) } end
end
of['ms.data.Loader:batches'] = function()
  return { object(loader(), ms.data.Loader), maybe(number(1)) }
end
of['ms.data.Loader:load_state'] = function()
  local l = loader()
  return { object(l, ms.data.Loader), list(l:state()) }
end
of['ms.data.Loader:check_state'] = of['ms.data.Loader:load_state']
of['ms.data.bytes'] = function() return { text 'abc' } end
of['ms.data.text'] = function() return { list { 97, 98 } } end
of['ms.data.tokens'] = function()
  return { text(folder .. '/tokens'), maybe(choice('u8', 'i64')) }
end

local function schedule_options()
  return options {
    lr = number(0.1), warmup = maybe(number(1)), total = number(10), final = maybe(number(0)),
  }
end
of['ms.schedule.cosine'] = function() return { schedule_options() } end
of['ms.schedule.linear'] = of['ms.schedule.cosine']
of['ms.schedule.constant'] = function()
  return { options { lr = number(0.1), warmup = maybe(number(1)) } }
end

-- -- ranks, sharding -----------------------------------------------------------------------------

local reduction = choice('sum', 'avg', 'max', 'min')
local group = kind(function(v) return v == ms.dist.world() end)
of['ms.dist.all_reduce'] = function() return { x(), maybe(reduction) } end
of['ms.dist.all_gather'] = function() return { x(), maybe(x()) } end
of['ms.dist.reduce_scatter'] = function() return { x(), x(), maybe(reduction) } end
of['ms.dist.broadcast'] = function() return { x(), maybe(whole(0)) } end
of['ms.dist.same'] = function()
  return { text 'batch', kind(function(v)
    return type(v) == 'string' or type(v) == 'number' or type(v) == 'boolean'
  end)(1) }
end
of['ms.dist.counts'] = function() return { maybe(group(ms.dist.world())) } end
of['ms.dist.init'] = function() return { maybe(options { ranks = maybe(positive(1)) }) } end
of['ms.dist.run'] = function()
  return { maybe(options { ranks = maybe(positive(1)) }), fn(pass) }
end

local POLICY_ROOT = { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' }
local function fsdp_options()
  return maybe(options {
    sharding_strategy = maybe(choice(unpack(POLICY_ROOT))),
    backward_prefetch = maybe(choice('BACKWARD_PRE', 'BACKWARD_POST', 'none')),
    forward_prefetch = maybe(flag(false)), use_orig_params = maybe(flag(true)),
    limit_all_gathers = maybe(flag(true)),
    auto_wrap_policy = maybe(kind(callable)(ms.fsdp.ModuleWrapPolicy { ms.nn.ReLU })),
    process_group = maybe(group(ms.dist.world())),
    mixed_precision = maybe(options {
      param_dtype = maybe(dtype 'bf16'), reduce_dtype = maybe(dtype 'f32'),
      buffer_dtype = maybe(dtype 'f32'), cast_forward_inputs = maybe(flag(true)),
      cast_root_forward_inputs = maybe(flag(true)), module_classes_to_ignore = maybe(list {}),
    }),
  })
end
of['ms.fsdp.FSDP'] = function() return { module(), fsdp_options() } end
of['ms.fsdp.FSDP:forward'] = function() return { fixed(wrapped()), x() } end
for _, name in ipairs {
  'apply', 'collectives', 'hash', 'plan', 'reshard', 'units', 'unshard', 'state_dict',
} do
  of['ms.fsdp.FSDP:' .. name] = function() return { wrapped() } end
end
of['ms.fsdp.FSDP:state_dict'] = function()
  return { wrapped(), maybe(options { rank0_only = maybe(flag(false)) }) }
end
of['ms.fsdp.FSDP:apply'] = function() return { wrapped(), fn(pass) } end
of['ms.fsdp.FSDP:clip_grad_norm_'] = function()
  return { wrapped(), number(1), maybe(number(2)) }
end
of['ms.fsdp.FSDP:no_sync'] = function() return { wrapped(), fn(pass) } end
of['ms.fsdp.FSDP:set_gradient_factor'] = function() return { wrapped(), maybe(number(1)) } end

local classes = list
of['ms.fsdp.ModuleWrapPolicy'] = function() return { classes { ms.nn.Linear } } end
of['ms.fsdp.transformer_auto_wrap_policy'] = of['ms.fsdp.ModuleWrapPolicy']
of['ms.fsdp.CustomPolicy'] = function() return { fn(function() return false end) } end
of['ms.fsdp.lambda_auto_wrap_policy'] = of['ms.fsdp.CustomPolicy']
of['ms.fsdp.or_policy'] = function() return { list { ms.fsdp.always_wrap_policy } } end
of['ms.fsdp.always_wrap_policy'] = function() return { any(1) } end
-- Called with a module it is a policy itself.
of['ms.fsdp.size_based_auto_wrap_policy'] = function()
  local first = kind(function(v)
    return ms.is(v, ms.nn.Module) or type(v) == 'table' and next(v) == nil
  end)
  return { maybe(first(linear())), flag(true), number(10) }
end
of['ms.fsdp.enable_wrap'] = function() -- options are looked at where it wraps
  return { maybe(list { use_orig_params = true }), fn(pass) }
end
of['ms.fsdp.wrap'] = function() return { module(), maybe(list {}) } end
of['ms.fsdp.FSDP:register_comm_hook'] = function() return { wrapped() } end
of['ms.fsdp.summon_full_params'] = function()
  return { module(wrapped().value), maybe(options {
    recurse = maybe(flag(true)), writeback = maybe(flag(true)), rank0_only = maybe(flag(false)),
    offload_to_cpu = maybe(flag(false)), with_grads = maybe(flag(false)),
  }), fn(pass) }
end

-- -- checkpoints ---------------------------------------------------------------------------------

local function save_options()
  local model = linear()
  return options {
    step = whole(1), model = maybe(module(model)), config = maybe(list { a = 1 }),
    optimizer = maybe(object(ms.optim.SGD(model:parameters(), { lr = 0.1 }),
      ms.optim.Optimizer)),
    loader = maybe(object(loader(), ms.data.Loader)),
  }
end
local function saved()
  local model = linear()
  local path = ms.checkpoint.save(root, 'saved', { step = 1, model = model })
  return path, model
end
local function manager()
  return object(ms.checkpoint.Manager { root = root }, ms.checkpoint.Manager)
end
of['ms.checkpoint.save'] = function() return { text(root), text 'one', save_options() } end
of['ms.checkpoint.load'] = function()
  local path, model = saved()
  return { text(path), maybe(options { model = maybe(module(model)) }) }
end
of['ms.checkpoint.read_meta'] = function() return { text((saved())) } end
of['ms.checkpoint.latest'] = function() return { text(root) } end
of['ms.checkpoint.prune'] = function() return { text(root), whole(1) } end
of['ms.checkpoint.Manager'] = function()
  return { options { root = text(root), keep = maybe(positive(2)) } }
end
of['ms.checkpoint.Manager:save'] = function() return { manager(), save_options() } end
of['ms.checkpoint.Manager:resume'] = function()
  return { manager(), maybe(options { model = maybe(module(linear())) }) }
end
local file = folder .. '/x.safetensors'
of['ms.checkpoint.export'] = function() return { text(file), module() } end
of['ms.checkpoint.import'] = function()
  local m = linear()
  ms.checkpoint.export(file, m)
  return { text(file), module(m) }
end
of['ms.checkpoint.write_safetensors'] = function()
  return { text(file), list { a = ms.rand(2) } }
end
of['ms.checkpoint.read_safetensors'] = function()
  ms.checkpoint.write_safetensors(file, { a = ms.rand(2) })
  return { text(file) }
end

signatures.of = of

--- What raises as it should: with any arguments, any error of the library is right.
signatures.raises = {
  ['ms.error'] = true, ['ms.errors.raise'] = true, ['ms.errors.check'] = true,
  ['ms.nn.Module:forward'] = true, ['ms.fsdp.FSDP:register_comm_hook'] = true,
  ['ms.optim.Optimizer'] = true,
}

--- What no fuzzer may call rightly, and why. Wrong arguments are tried where there are any.
signatures.ends_something = {
  ['ms.close'] = 'it frees what the other calls use',
  ['ms.dist.exit'] = 'it ends the process',
  ['ms.dist.leave'] = 'there are no ranks afterwards',
  ['ms.dist.spawn'] = 'it forks',
}
of['ms.close'] = function() return {} end
of['ms.dist.leave'] = of['ms.close']
of['ms.dist.exit'] = function() return { maybe(whole(0)) } end
of['ms.dist.spawn'] = function() return { positive(1), fn(pass) } end

return signatures
