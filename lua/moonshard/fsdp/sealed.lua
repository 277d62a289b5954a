--- Modules after units were made over their parameters: they take no other child or parameter, and
--- a tensor assigned to a parameter's field is written into the unit.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local parameter = require 'moonshard_ffi.parameter'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'

local sealed = {}

function sealed.refuse_new(module, what, name)
  errors.raise('RuntimeError', "%s '%s' of %s is new, but FSDP has made its units already: change "
    .. 'the model before it is wrapped, or at least before its first use', what, name, module._name)
end

function sealed.child_replaced(module, entry, now)
  tree.place(module, entry, entry.module)
  errors.raise('RuntimeError', "child '%s' of %s was %s after FSDP had made its units, which hold "
    .. 'the parameters of the old one; the field shows that again. Change the model before it is '
    .. 'wrapped, or at least before its first use', tree.join(tree.path(module), entry.name),
    tree.describe(module), now == nil and 'set to nil'
      or ('replaced by %s'):format(arguments.noun(now)))
end

local function refuse_param(module, p, now)
  rawset(module, p.name, p.tensor)
  local tensor = parameter.is_tensor(now)
  local what = tensor
    and ('replaced by a tensor (%s)'):format(table.concat(parameter.shape(now), ', '))
    or now == nil and 'set to nil' or 'replaced by ' .. arguments.noun(now)
  local advice = now == nil and 'To keep it from training: module.%s:requires_grad_(false)'
    or 'Write into it instead: fsdp.summon_full_params(model, nil, ms.no_grad, function() '
      .. 'module.%s:copy_(t) end)'
  errors.raise('RuntimeError', "parameter '%s' of %s was %s after FSDP %s; the field shows the "
    .. 'parameter again. ' .. advice, tree.join(tree.path(module), p.name), tree.describe(module),
    what, tensor and 'wrapped the model' or 'took it into a unit, which would never see that',
    p.name)
end

-- The tensor has the shape that the field shows now; its gradient is written, too.
local function write_back(module, p, now)
  local held = p.tensor
  local expected, found = parameter.shape(held), parameter.shape(now)
  rawset(module, p.name, held)
  if table.concat(expected, ' ') ~= table.concat(found, ' ') then
    errors.raise('RuntimeError', "Cannot writeback when the parameter shape changes: '%s' of %s "
      .. 'has shape (%s), the tensor that replaced it (%s)',
      tree.join(tree.path(module), p.name), tree.describe(module), table.concat(expected, ', '),
      table.concat(found, ', '))
  end
  local to, from = held:detach(), now:detach()
  to:copy_(from)
  if parameter.has_grad(now) then
    held:set_grad(now:grad())
  end
  to:release()
  from:release()
  return held
end

-- Does a parameter show this rank's rows where a forward would read them?
local function shows_rows(state, p)
  return state.shard_layout == 'rows' and not state._tree.running
    and not util.equal(parameter.shape(p.tensor), state:_whole_shape(p.tensor))
end

--- RuntimeError for a call of a module outside the forward that gathers its parameters: rows have
--- the dimensions of a whole parameter, so operators accept them.
---@param module ms.nn.Module
---@param own ms.fsdp.State?  of the module, which gathers its parameters
local function check_called(module, own)
  for _, p in ipairs(module._params) do
    local state = p.tensor and parameter.manager(p.tensor) -- nil: the field was cleared
    if state and state ~= own and shows_rows(state, p) then
      errors.raise('RuntimeError', "%s was called outside the forward of '%s', which gathers its "
        .. "parameters: '%s' is this rank's shard (%s) of (%s). Call that module, register its "
        .. 'method that calls this one (fsdp.register_fsdp_forward_method), or call its unshard() '
        .. 'before', tree.describe(module), state:_unit_name(), p.name,
        table.concat(parameter.shape(p.tensor), ', '),
        table.concat(state:_whole_shape(p.tensor), ', '))
    end
  end
end

--- Handle an assignment to the field of a parameter: write a tensor into the unit; refuse other
--- values, and tensors before there is a unit.
---@param module ms.nn.Module
---@param p ms.nn.DeclaredParam
---@param now any
---@return ms.Tensor  the parameter
function sealed.param_assigned(module, p, now)
  if parameter.manager(p.tensor) and parameter.is_tensor(now) then
    return write_back(module, p, now)
  end
  return refuse_param(module, p, now)
end

--- The seal of modules whose parameters are divided by rows.
sealed.by_rows = util.merged(sealed, { check_called = check_called })

return sealed
