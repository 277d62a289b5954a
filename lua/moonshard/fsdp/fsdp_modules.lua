--- The modules of a tree that FSDP shards.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local tree = require 'moonshard.nn.tree'

---@param module ms.nn.Module
---@param opts? { root_only?: boolean }  root_only: none that another one contains
---@return ms.nn.Module[]
return function(module, opts)
  if not tree.is_module(module) then
    arguments.refuse('fsdp_modules', 'module', module, 'a module')
  end
  opts = errors.options('fsdp_modules', opts, { root_only = 'flag' })
  local out, inner = {}, {}
  for _, m in ipairs(module:modules()) do
    if tree.manager(m) then
      out[#out + 1] = not (opts.root_only and inner[m]) and m or nil
      for _, below in ipairs(opts.root_only and m:modules() or {}) do
        inner[below] = below ~= m or inner[m]
      end
    end
  end
  return out
end
