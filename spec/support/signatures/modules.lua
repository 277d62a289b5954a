--- How modules, their layers and models are called rightly.

local ms = require 'moonshard'
local kinds = require 'support.signatures.kinds'

local maybe, bounded, fixed, is_whole = kinds.maybe, kinds.bounded, kinds.fixed, kinds.is_whole
local kind, tensor, whole, number = kinds.kind, kinds.tensor, kinds.whole, kinds.number
local flag, text, list, array = kinds.flag, kinds.text, kinds.list, kinds.array
local fn, dtype = kinds.fn, kinds.dtype
local choice, object, options, x = kinds.choice, kinds.object, kinds.options, kinds.x
local ids, pass, linear, module, gpt = kinds.ids, kinds.pass, kinds.linear, kinds.module, kinds.gpt
local bias_options, positive, size = kinds.bias_options, kinds.positive, kinds.size
local rule, zero_grad_options = kinds.rule, kinds.zero_grad_options

local of = {}

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
  return { module(gpt()), array { 1, 2 }, bounded(whole(2)), maybe(options {
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
on_module('zero_grad', zero_grad_options)
on_module('apply', function() return fn(pass) end)
for _, name in ipairs { 'half', 'bfloat16', 'float', 'double' } do
  on_module(name)
end
local to_dtype = kind(function(v)
  local has_one, name = pcall(function() return ms.is_tensor(v) and v:dtype() end)
  name = name or v
  return has_one and type(name) == 'string' and name:match '^b?f%d+$' ~= nil
end)
on_module('to', function() return to_dtype 'f64' end, function() return maybe(choice 'cpu') end)
on_module('train', maybe_flag)
on_module('requires_grad_', maybe_flag)
on_module('parameters', maybe_flag)
on_module('named_parameters', maybe_flag, maybe_flag)
on_module('named_modules', maybe_flag)
on_module('get_submodule', function() return text '' end)
on_module('register_forward_hook', function() return fn(pass) end)
on_module('register_forward_pre_hook', function() return fn(pass) end)
on_module('param', function() return text 'scale' end, function() return array { 3 } end,
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

return of
