--- Point-to-point messages between two ranks of a group. They are part of ms.dist.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local util = require 'moonshard.base.util'
local validate = require 'moonshard.dist.validate'
local work = require 'moonshard.dist.work'

local C, calls = B.C, B.calls

local messages = {}

local message_out, done_out = B.new('ms_message *[1]'), B.new('bool[1]')

---@class ms.dist.MessageOptions
---@field tag? integer  must equal the other side's, default 0
---@field async_op? boolean  return a handle; do not use the tensor until the message is finished

-- The handle's view of a message. It keeps the group alive.
local function handle_of(message, group)
  return {
    group = group,
    wait = function() B.check(C.ms_message_wait(message)) end,
    is_completed = function()
      B.check(C.ms_message_test(message, done_out))
      return done_out[0]
    end,
    result = function() return C.ms_message_peer(message) end,
  }
end

local function checked(what, opts)
  opts = errors.options(what, opts, { tag = 'number', async_op = 'flag' })
  return arguments.whole(what, 'tag', opts.tag, 0, 0), opts.async_op
end

-- A handle, or the other rank once the message is finished.
local function finish(async, group)
  local message = B.gc(message_out[0], C.ms_message_free)
  if async then
    return work.of(true, nil, handle_of(message, group))
  end
  B.check(C.ms_message_wait(message))
  return C.ms_message_peer(message)
end

--- Send a tensor to one rank. Messages between two ranks arrive in the order of their calls,
--- independently of collectives. Returns when the tensor may be changed. CommError if the other
--- rank leaves without receiving it.
---@param t ms.Tensor  contiguous
---@param dst integer  rank in the group
---@param group? ms.dist.Group
---@param opts? ms.dist.MessageOptions
---@return ms.dist.Work?  with async_op
function messages.send(t, dst, group, opts)
  local _
  _, group, opts = validate.tail('send', nil, group, opts)
  local tag, async = checked('send', opts)
  calls.comm_send(message_out, group, arguments.tensor('send', 't', t),
    arguments.whole('send', 'dst', dst, nil, 0), tag)
  local result = finish(async, group)
  return async and result or nil
end

--- Receive a tensor. CommError on both ranks if dtype, number of elements or tag differ.
---@param t ms.Tensor  contiguous; written
---@param src? integer  the sender's rank in the group (default: any)
---@param group? ms.dist.Group
---@param opts? ms.dist.MessageOptions
---@return integer|ms.dist.Work  the sender's rank; with async_op a handle whose result it is
function messages.recv(t, src, group, opts)
  src, group, opts = validate.tail('recv', src, group, opts)
  local tag, async = checked('recv', opts)
  calls.comm_recv(message_out, group, validate.target('recv', 't', t),
    src == nil and -1 or arguments.whole('recv', 'src', src, nil, 0), tag)
  return finish(async, group)
end

-- The function `name` with async_op = true.
local function asynchronous(name)
  return function(t, peer, group, opts)
    peer, group, opts = validate.tail('i' .. name, peer, group, opts)
    opts = util.merged(arguments.list('i' .. name, 'opts', opts or {}))
    opts.async_op = true
    return messages[name](t, peer, group, opts)
  end
end

--- send() with async_op: torch.distributed's isend.
---@type fun(t: ms.Tensor, dst: integer, group?: ms.dist.Group, opts?: table): ms.dist.Work
messages.isend = asynchronous 'send'
--- recv() with async_op: torch.distributed's irecv.
---@type fun(t: ms.Tensor, src?: integer, group?: ms.dist.Group, opts?: table): ms.dist.Work
messages.irecv = asynchronous 'recv'

return messages
