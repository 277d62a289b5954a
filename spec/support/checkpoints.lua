-- Checkpoints with a changed manifest.
local checkpoint = require 'moonshard'.checkpoint
local json = require 'moonshard.base.json'

local checkpoints = {}

-- Change the manifest of the checkpoint at `path` with the library's own writer.
function checkpoints.with_meta(root, name, run, change)
  local encode = json.encode
  json.encode = function(value)
    if value.seed and value.step then -- not other tables that ranks compare
      change(value)
    end
    return encode(value)
  end
  local ok, err = pcall(checkpoint.save, root, name, run)
  json.encode = encode
  assert(ok, tostring(err))
end

return checkpoints
