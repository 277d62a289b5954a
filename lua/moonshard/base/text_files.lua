--- Small files of a model's folder: JSON objects, and files that are copied as they are.

local errors = require 'moonshard.base.errors'
local json = require 'moonshard.base.json'

local text_files = {}

--- The bytes of a file; nil if it does not exist.
---@param path string
---@return string?
function text_files.read(path)
  local file, reason, code = io.open(path, 'rb')
  if not file and code == 2 then -- ENOENT
    return nil
  end
  local text
  if file then
    text, reason = file:read '*a'
    file:close()
  end
  return text or errors.raise('IOError', 'read %s: %s', path, tostring(reason))
end

--- Write a file: a failure leaves an old one as it is.
---@param path string
---@param text string
function text_files.write(path, text)
  local written = path .. '.tmp'
  local file, reason = io.open(written, 'wb')
  local ok = file
  if file then
    ok, reason = file:write(text)
    local closed, other = file:close()
    ok, reason = ok and closed, reason or other
  end
  if ok then
    ok, reason = os.rename(written, path)
  end
  if not ok then
    os.remove(written)
    errors.raise('IOError', 'write %s: %s', path, tostring(reason))
  end
end

--- Read a JSON object.
---@param path string
---@return table value, string path, string text
function text_files.object(path)
  local text = text_files.read(path)
  if not text then
    errors.raise('IOError', 'open %s: No such file', path)
  end
  local value = json.decode(text, path)
  if type(value) ~= 'table' or getmetatable(value) == json.array or value == json.null then
    errors.raise('FormatError', '%s: expected an object', path)
  end
  return value, path, text
end

return text_files
