--- Handles of operations with `async_op = true`, as torch.distributed's Work.
---
--- A collective is finished when the call returns, because its ranks wait for each other in it. A
--- message between two ranks makes progress in wait(), in is_completed(), and whenever this rank
--- waits for others.

local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'

---@class ms.dist.Work
local Work = class 'dist.Work'

---@param result any  the result of the call without async_op
---@param message? { wait: fun(), is_completed: (fun(): boolean), result: fun(): any }
function Work:init(result, message)
  self._result, self._message = result, message
end

--- Wait until the operation is finished. CommError if a peer failed.
---@return boolean true
function Work:wait()
  if self._message then
    self._message.wait()
  end
  return true
end

--- Is it finished? Does not wait.
---@return boolean
function Work:is_completed()
  return self._message == nil or self._message.is_completed()
end

--- The result of the call without async_op, once it is finished.
---@return any
function Work:result()
  self:wait()
  if self._message then
    return self._message.result()
  end
  return self._result
end

local work = {}

--- Check the options of a collective; returns async_op.
---@param what string
---@param opts? { async_op?: boolean }
---@return boolean async_op
function work.is_async(what, opts)
  return errors.options(what, opts, { async_op = 'flag' }).async_op or false
end

--- The return value of a collective: a handle or the result.
---@param async boolean
function work.of(async, result, message)
  if async then
    return Work(result, message)
  end
  return result
end

return work
