--- Compiled functions and modules: calls are captured once and then replayed as lists of kernels,
--- with the bits of the eager calls. See docs/compile.md.

local Frame = require 'moonshard.compile.frame'
local arguments = require 'moonshard_ffi.arguments'
local custom_op = require 'moonshard.compile.custom_op'
local errors = require 'moonshard.base.errors'
local report = require 'moonshard.compile.report'
local tree = require 'moonshard.nn.tree'

---@class ms.compile.Options
---@field backend? 'replay'|'partition'|'fuse'  or PyTorch's name: 'aot_eager',
---  'aot_eager_decomp_partition', 'inductor'. All replay the recorded kernels; 'partition' and
---  'fuse' (default) compute cheap results again in backward in place of saving them
---@field fullgraph? boolean  RuntimeError for a call that cannot be captured (default false)
---@field skip_fsdp_hooks? boolean  the report does not count the steps of sharded units (default
---  true)
---@field skip_fsdp_guards? boolean  accepted
---@field dynamic? boolean  accepted: each shape has a capture, at most 8 are kept
---@field mode? 'default'|'reduce-overhead'|'max-autotune'|'max-autotune-no-cudagraphs'  accepted

local BACKENDS = {
  replay = 'replay', aot_eager = 'replay',
  partition = 'partition', aot_eager_decomp_partition = 'partition',
  fuse = 'fuse', inductor = 'fuse',
}

local KNOWN = {
  backend = {
    'replay', 'partition', 'fuse', 'aot_eager', 'aot_eager_decomp_partition', 'inductor',
  },
  fullgraph = 'flag', skip_fsdp_hooks = 'flag', skip_fsdp_guards = 'flag', dynamic = 'flag',
  mode = { 'default', 'reduce-overhead', 'max-autotune', 'max-autotune-no-cudagraphs' },
}

local function options_of(given)
  given = errors.options('compile', given, KNOWN)
  return {
    backend = BACKENDS[given.backend or 'fuse'],
    fullgraph = given.fullgraph,
    skip_fsdp_hooks = given.skip_fsdp_hooks ~= false,
  }
end

local function name_of(fn)
  local info = debug.getinfo(fn, 'S')
  return ('the function at %s:%d'):format(info.short_src, info.linedefined)
end

local compile = {}

-- A callable that runs `fn`, compiled.
local function callable(name, fn, opts)
  local frame = Frame(name, fn, fn, opts)
  return function(...)
    return frame:call(...)
  end
end

--- A callable that does what a function or module does. Its first call with arguments of some
--- shapes, dtypes and other values is eager, the second one is captured, and later ones replay its
--- kernels, without Lua and with the same bits, as long as nothing else that it reads has changed.
---@param fn ms.nn.Module|fun(...): ...
---@param opts? ms.compile.Options
---@return fun(...): ...
function compile.compile(fn, opts)
  opts = options_of(opts)
  local name = tree.is_module(fn) and tree.describe(fn)
    or name_of(arguments.fn('compile', 'fn', fn))
  return callable(name, fn, opts)
end

--- A compiled form of a function that trains: it runs forwards, their backwards, and steps of
--- optimizers and schedulers. Calls are captured and replayed as by compile(). The function must be
--- one program: `fullgraph` is true by default.
---@param fn fun(...): ...
---@param opts? ms.compile.Options
---@return fun(...): ...
function compile.compile_step(fn, opts)
  opts = options_of(opts)
  opts.fullgraph = opts.fullgraph ~= false
  return callable(name_of(arguments.fn('compile_step', 'fn', fn)), fn, opts)
end

--- Compile a module in place (Module:compile).
---@param module ms.nn.Module
---@param opts? ms.compile.Options
---@return ms.nn.Module module
function compile.module(module, opts)
  Frame.of_module(module, options_of(opts))
  return module
end

return {
  compile = compile.compile,
  compile_module = compile.module,
  compile_step = compile.compile_step,
  compile_report = report.now,
  custom_op = custom_op,
}
