--- composable(module, options): the parameters of a module sharded over ranks in place, without a
--- wrapper, as PyTorch's first composable FSDP. The module keeps its class, fields and paths;
--- get_state(module) has the methods that a wrapped module has.

local Module = require 'moonshard.nn.module'
local State = require 'moonshard.fsdp.state'
local construct = require 'moonshard.fsdp.construct'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local module_tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'

local composable = {}

--- Shard a module in place: with the options, rules and numbers of FSDP(), but that
--- cast_root_forward_inputs casts the inputs of every module this was called on. ValueError for a
--- module that is sharded already.
---@generic M: ms.nn.Module
---@param module M
---@param opts? ms.fsdp.Options
---@return M
function composable.shard(module, opts)
  if not util.is(module, Module) then
    arguments.refuse('composable', 'module', module, 'a module')
  elseif module_tree.manager(module) then
    errors.raise('ValueError', 'composable: %s is sharded already', module._name)
  end
  local normalised, inherited = construct.options_of(opts)
  State(module, module, normalised, inherited, composable.shard)
  return module
end

--- The state of a module that is sharded, in place or by a wrapper: no_sync(), clip_grad_norm_(),
--- unshard(), reshard(), hash(), plan() and the others are its methods. ValueError without.
---@param module ms.nn.Module
---@return ms.fsdp.State
function composable.get_state(module)
  if not util.is(module, Module) then
    arguments.refuse('get_state', 'module', module, 'a module')
  end
  return module_tree.manager(module)
    or errors.raise('ValueError', 'get_state: %s is not sharded itself', module._name)
end

--- Let a call of `module[name]` gather the parameters of a sharded module, as its forward does:
--- model:encode(x) then works as model(x). ValueError for a module that is not sharded, or has no
--- such method.
---@param module ms.nn.Module
---@param name string
function composable.register_forward_method(module, name)
  local state = composable.get_state(module)
  arguments.text('register_forward_method', 'name', name)
  local method = state:wrapped()[name]
  if type(method) ~= 'function' then
    errors.raise('ValueError', "register_forward_method: %s has no method '%s'",
      state:wrapped()._name, name)
  end
  state:register_forward_method(module, name, method)
end

return composable
