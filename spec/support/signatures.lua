--- How every public function is called rightly: its arguments, each with a value that is right and
--- a test of what may be right. Everything else must be refused.

local kinds = require 'support.signatures.kinds'
local util = require 'moonshard.util'

local signatures = {}

local of = {}
for _, subject in ipairs { 'tensors', 'modules', 'training' } do
  of = util.merged(of, require('support.signatures.' .. subject))
end
signatures.of = of

--- What raises as it should: with any arguments, any error of the library is right.
signatures.raises = {
  ['ms.error'] = true, ['ms.errors.raise'] = true, ['ms.errors.check'] = true,
  ['ms.nn.Module:forward'] = true, ['ms.fsdp.FSDP:register_comm_hook'] = true,
  ['ms.optim.Optimizer'] = true, ['ms.optim.lr_scheduler.LRScheduler'] = true,
}

for name in pairs(util.merged(require('moonshard.planned').methods, { buffers = true,
  clip_grad_norm_ = true, register_buffer = true, register_module = true,
  register_parameter = true, plan = true, no_sync = true, summon_full_params = true })) do
  of['ms.nn.Module:' .. name] = function() return { kinds.module() } end
  signatures.raises['ms.nn.Module:' .. name] = true
end

--- What hands all further arguments to a function it is given.
signatures.passes_on = {
  ['ms.no_grad'] = true, ['ms.enable_grad'] = true, ['ms.autograd.no_grad'] = true,
  ['ms.autograd.enable_grad'] = true, ['ms.scope'] = true, ['ms.capture_warnings'] = true,
  ['ms.errors.capture_warnings'] = true, ['ms.dist.run'] = true, ['ms.dist.spawn'] = true,
  ['ms.fsdp.FSDP:no_sync'] = true, ['ms.fsdp.enable_wrap'] = true,
  ['ms.fsdp.summon_full_params'] = true,
}

--- What no fuzzer may call rightly, and why. Wrong arguments are tried where there are any.
signatures.ends_something = {
  ['ms.close'] = 'it frees what the other calls use',
  ['ms.dist.exit'] = 'it ends the process',
  ['ms.dist.destroy_process_group'] = 'there are no ranks afterwards',
  ['ms.dist.leave'] = 'there are no ranks afterwards',
  ['ms.dist.spawn'] = 'it forks',
}
of['ms.close'] = function() return {} end
of['ms.dist.leave'] = of['ms.close']
of['ms.dist.exit'] = function() return { kinds.maybe(kinds.whole(0)) } end
of['ms.dist.spawn'] = function() return { kinds.positive(1), kinds.fn(kinds.pass) } end

return signatures
