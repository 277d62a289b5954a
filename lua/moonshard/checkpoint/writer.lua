--- The rank that writes the files of a model, and the outcome that all ranks share.

local B = require 'moonshard_ffi'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local objects = require 'moonshard.dist.objects'
local parameter = require 'moonshard_ffi.parameter'
local runtime = require 'moonshard_ffi.checkpoint'
local sharding = require 'moonshard_ffi.fsdp'
local tree = require 'moonshard.nn.tree'
local validate = require 'moonshard.checkpoint.validate'

---@class ms.checkpoint.Writer
---@field writes boolean  does this rank write
---@field _own boolean  each rank writes files of its own
---@field _comm ms.dist.Group
local Writer = class('checkpoint.Writer')

-- Do ranks pass different paths for a model that each of them holds in full?
local function apart(what, comm, path, model)
  for _, p in ipairs(tree.prepared_params(model)) do
    if parameter.manager(p.tensor) then
      return false
    end
  end
  local paths = sharding.exchange(comm, what, { parameter.text_number(path) })[1]
  for rank = 2, #paths do
    if paths[rank] ~= paths[1] then
      return true
    end
  end
  return false
end

--- Rank 0 writes a model, unless each rank holds it in full and ranks pass different paths: then
--- each writes its own. Collective.
---@param what string  the function, for errors
---@param path string
---@param model ms.nn.Module  materialized by this
---@param group? ms.dist.Group  the option `process_group`
function Writer:init(what, path, model, group)
  local list = validate.parts(what, { model = model })
  self._comm = validate.group(what, list, group)
  model:materialize()
  self._own = apart(what, self._comm, path, model)
  self.writes = self._own or B.C.ms_comm_rank(self._comm) == 0
end

--- Write a safetensors file. Collective, with the same outcome on all ranks.
---@param path string
---@param names string[]  those of other ranks than the writing one are not read
---@param tensors ms.Tensor[]
function Writer:save(path, names, tensors)
  if self._own then
    runtime.save_safetensors(path, names, tensors)
  else
    runtime.export(self._comm, path, names, tensors)
  end
end

--- Run `fn` on the writing rank. Collective: all ranks raise its error.
---@param fn fun()
function Writer:run(fn)
  if self._own or B.C.ms_comm_size(self._comm) == 1 then
    fn()
    return
  end
  local ok, err = true, nil
  if self.writes then
    ok, err = pcall(fn)
  end
  local failed = objects.broadcast_object(not ok and {
    kind = errors.is(err) and err.kind or 'RuntimeError',
    message = errors.is(err) and err.message or tostring(err),
  } or nil, 0, self._comm)
  if failed then
    errors.raise(failed.kind, '%s', ok and 'rank 0: ' .. failed.message or failed.message)
  end
end

return Writer
