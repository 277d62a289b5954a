--- The base of pooling over windows: MaxPool and AvgPool, in one to three spatial dimensions.
---
--- Shapes: x (N, C, ...) or (C, ...)

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'
local spatial = require 'moonshard.ops.spatial'

---@class ms.nn._Pool: ms.nn.Module
---@field kernel_size integer[]
---@field stride integer[]
---@field padding integer[]
local Pool = Module.extend('nn._Pool')

--- TypeError and ValueError for arguments of other kinds and sizes.
---@param kernel_size integer|integer[]
---@param opts? ms.ops.MaxPoolOptions|ms.ops.AvgPoolOptions
function Pool:init(kernel_size, opts)
  local name, n = self._name, self._spatial
  opts = errors.options(name, opts, self.options)
  self.kernel_size = spatial.sizes(name, 'kernel_size', kernel_size, n, nil, 1)
  self.stride = spatial.sizes(name, 'stride', opts.stride, n, self.kernel_size, 1)
  self.padding = spatial.sizes(name, 'padding', opts.padding, n, 0, 0)
  self._others = {}
  for _, key in ipairs(self.options) do
    if self[key] == nil then
      self._others[key] = opts[key]
    end
  end
end

---@param x ms.Tensor  (N, C, ...) or (C, ...)
---@return ms.Tensor
function Pool:forward(x)
  local opts = { stride = self.stride, padding = self.padding }
  for key, value in next, self._others do
    opts[key] = value
  end
  return ops[self._operator](x, self.kernel_size, opts)
end

function Pool:extra_repr()
  local function tuple(list) return ('(%s)'):format(table.concat(list, ', ')) end
  return ('kernel_size=%s, stride=%s, padding=%s'):format(tuple(self.kernel_size),
    tuple(self.stride), tuple(self.padding))
end

return Pool
