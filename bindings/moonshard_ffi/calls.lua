--- The generated callers of C functions. Each is compiled when it is first used: compiling all
--- takes a third of `require 'moonshard'`.

local ffi = require 'ffi'

local calls = {}

---@param path string  of the generated file
---@param ... any  the parameters of its first line, but for the last one
---@return table<string, function>
function calls.of(path, ...)
  local file = assert(io.open(path))
  local text = file:read '*a'
  file:close()
  local head = text:match('^(.-\n)\nfunction')
  local arguments = { ... }
  local handle = setmetatable({}, { -- pointer types by the names of structs
    __index = function(types, name)
      types[name] = ffi.typeof(name .. ' *')
      return types[name]
    end,
  })
  arguments[#arguments + 1] = handle
  return setmetatable({}, {
    __index = function(compiled, name)
      local first = text:find(('\nfunction M.%s('):format(name), 1, true)
      if not first then
        return nil
      end
      local _, last = text:find('\nend\n', first, true)
      local chunk = assert(loadstring(('%s%sreturn M.%s'):format(head, text:sub(first, last), name),
        '@' .. path))
      compiled[name] = chunk(unpack(arguments))
      return compiled[name]
    end,
  })
end

return calls
