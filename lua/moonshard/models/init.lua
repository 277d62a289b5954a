--- Whole models.

---@class ms.models
---@field GPT ms.models.GPT
return setmetatable({}, {
  __index = function(models, name)
    if name == 'GPT' then
      local value = require 'moonshard.models.gpt'
      rawset(models, name, value)
      return value
    end
  end,
})
