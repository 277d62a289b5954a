--- Calls modules one after another. Children are named '0', '1', ...; their indices are 1, 2, ....

local Module = require 'moonshard.nn.module'
local ModuleList = require 'moonshard.nn.module_list'

---@class ms.nn.Sequential: ms.nn.Module
---@field [integer] ms.nn.Module
---@overload fun(...: ms.nn.Module): ms.nn.Sequential
---@overload fun(modules: ms.nn.Module[]): ms.nn.Sequential
local Sequential = Module.extend('nn.Sequential')

-- Not a subclass of ModuleList: policies treat lists differently, because lists have no forward.
Sequential.init = ModuleList.init
Sequential.append = ModuleList.append
Sequential.len = ModuleList.len
ModuleList._count_entries(Sequential)

---@param x ms.Tensor
---@return ms.Tensor
function Sequential:forward(x)
  for i = 1, #self._children do
    local module = self[i]
    if module then -- an entry may be set to nil
      x = module(x)
    end
  end
  return x
end

return Sequential
