--- enable_wrap and wrap: a model's constructor decides what is wrapped, its caller how.

local FSDP = require 'moonshard.fsdp.wrapper'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local finally = require 'moonshard.base.finally'
local options = require 'moonshard.fsdp.options'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'

local wrap = {}

local context

local CONTEXT = util.merged(options.KNOWN, { wrapper_cls = 'any' })

--- Run `fn` so that wrap() inside it wraps, with these options.
---@param opts ms.fsdp.Options|{ wrapper_cls?: table }
---@param fn fun(...): ...
---@return ...
function wrap.enable_wrap(opts, fn, ...)
  if context then
    errors.raise('NotImplementedError', 'You are already within an autowrap context and we '
      .. 'currently do not supported nested autowrap.')
  end
  arguments.fn('enable_wrap', 'fn', fn)
  context = util.merged(errors.options('enable_wrap', opts, CONTEXT))
  return finally.run(function() context = nil end, nil, fn, ...)
end

--- Inside enable_wrap: the module wrapped, with these options over its. Outside: the module.
---@param module ms.nn.Module
---@param overrides? ms.fsdp.Options
---@return ms.nn.Module
function wrap.wrap(module, overrides)
  if not tree.is_module(module) then
    arguments.refuse('wrap', 'module', module, 'a module')
  end
  overrides = errors.options('wrap', overrides, CONTEXT)
  if not context then
    return module
  end
  local opts = util.merged(context, overrides)
  local wrapper = opts.wrapper_cls or FSDP
  opts.wrapper_cls = nil
  return wrapper(module, opts)
end

return wrap
