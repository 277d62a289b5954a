--- Batch normalisation of (N, C, ...) whose training statistics are over the batches of all ranks
--- of a group. Batch sizes may differ between ranks. Forward and backward are collective.

local BatchNorm = require('moonshard.nn.batch_norm')._BatchNorm
local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'
local functional = require 'moonshard.dist.functional'
local ops = require 'moonshard.ops'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'

---@class ms.nn.SyncBatchNorm: ms.nn._BatchNorm
---@field process_group ms.dist.Group?  nil: all ranks
---@overload fun(num_features: integer, opts?: table): ms.nn.SyncBatchNorm
local SyncBatchNorm = BatchNorm.extend('nn.SyncBatchNorm')

SyncBatchNorm._expected_dims = '2 or more'

---@param num_features integer
---@param opts? ms.nn.BatchNorm.Options|{ process_group?: ms.dist.Group }
function SyncBatchNorm:init(num_features, opts)
  if type(opts) == 'table' and opts.process_group ~= nil then
    self.process_group = arguments.group(self._name, 'process_group', opts.process_group)
    opts = util.merged(opts)
    opts.process_group = nil
  end
  BatchNorm.init(self, num_features, opts)
end

local CONVERT = 'nn.SyncBatchNorm.convert_sync_batchnorm'

--- Convert all batch normalisations in a module, and the module itself if it is one, to
--- SyncBatchNorm. They keep their parameters, buffers, hooks and settings. Unlike PyTorch's, they
--- stay the same objects. Call it before wrapping the model.
---@param module ms.nn.Module
---@param process_group? ms.dist.Group  default: all ranks
---@return ms.nn.Module module
function SyncBatchNorm.convert_sync_batchnorm(module, process_group)
  if not tree.is_module(module) then
    arguments.refuse(CONVERT, 'module', module, 'a module')
  elseif process_group ~= nil then
    arguments.group(CONVERT, 'process_group', process_group)
  end
  for _, part in ipairs(module:modules()) do
    if util.is(part, BatchNorm) then
      setmetatable(part, SyncBatchNorm)
      rawset(part, 'process_group', process_group)
    end
  end
  return module
end

function SyncBatchNorm:_is_local()
  return not self.training or B.C.ms_comm_size(self.process_group or B.world()) == 1
end

-- Two reductions: of the values, and of the squared differences from the mean. A difference of
-- squares would cancel.
function SyncBatchNorm:_statistics(x)
  if self:_is_local() then
    return BatchNorm._statistics(self, x)
  end
  local group = self.process_group or B.world()
  local channels, over = self.num_features, self._all_but_channels(x)
  local own = create.full({ 1 }, x:numel() / math.max(channels, 1), { dtype = x:dtype() })
  local sums = functional.all_reduce(ops.cat { x:sum(over), own }, 'sum', group)
  local n = sums:narrow(1, channels + 1, 1):detach()
  if n:item() == 1 then
    errors.raise('ValueError', 'Expected more than 1 value per channel when training, got 1 on '
      .. 'all ranks')
  end
  local divisor = n:clamp(1) -- statistics of an empty batch are 0, as in the base class
  local mean = self._channels(sums:narrow(1, 1, channels) / divisor, x)
  local centred = x - mean
  local squares = functional.all_reduce(centred:square():sum(over), 'sum', group)
  return mean, self._channels(squares / divisor, x), centred, n:item()
end

return SyncBatchNorm
