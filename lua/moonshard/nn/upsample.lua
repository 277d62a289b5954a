--- Resizes spatial dimensions, see moonshard.ops.interpolate.

local Module = require 'moonshard.nn.module'
local interpolate = require 'moonshard.ops.interpolate'
local ops = require 'moonshard.ops'
local util = require 'moonshard.base.util'

---@class ms.nn.Upsample: ms.nn.Module
---@field size integer|integer[]|nil
---@field scale_factor number|number[]|nil
---@field mode string
---@field align_corners boolean?
---@field recompute_scale_factor boolean?
---@overload fun(opts: ms.ops.InterpolateOptions): ms.nn.Upsample
local Upsample = Module.extend('nn.Upsample')

local FIELDS = { 'size', 'scale_factor', 'mode', 'align_corners', 'recompute_scale_factor' }

---@param opts ms.ops.InterpolateOptions
function Upsample:init(opts)
  opts = util.merged({ mode = 'nearest' }, interpolate.options(self._name, opts))
  for _, name in ipairs(FIELDS) do
    self[name] = opts[name]
  end
end

---@param x ms.Tensor  (N, C, ...)
---@return ms.Tensor
function Upsample:forward(x)
  local opts = {}
  for _, name in ipairs(FIELDS) do
    opts[name] = self[name]
  end
  return ops.interpolate(x, opts)
end

local function text(value)
  return type(value) == 'table' and ('(%s)'):format(table.concat(value, ', ')) or tostring(value)
end

function Upsample:extra_repr()
  local name = self.size == nil and 'scale_factor' or 'size'
  return ("%s=%s, mode='%s'"):format(name, text(self[name]), self.mode)
end

return Upsample
