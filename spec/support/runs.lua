--- What specs of checkpoints share: a small model, hashes, files.

local ms = require 'moonshard'

local runs = {}

--- A transformer of one layer.
function runs.gpt()
  return ms.models.GPT { vocab = 13, layers = 1, heads = 2, width = 10, context = 4, dropout = 0.1 }
end

--- Hash of the values of all parameters. Collective.
function runs.hash_of(model)
  local sd, parts = model:state_dict(), {}
  for i, name in ipairs(sd) do
    parts[i] = sd[name]:hash()
  end
  return table.concat(parts)
end

--- A path at which nothing is.
function runs.folder()
  local path = os.tmpname()
  os.remove(path)
  return path
end

--- Append a line to a file, from any rank.
function runs.write(path, text)
  local file = assert(io.open(path, 'a'))
  file:write(text, '\n')
  file:close()
end

--- The lines of a file, which is removed.
function runs.lines(path)
  local out = {}
  for line in io.lines(path) do
    out[#out + 1] = line
  end
  os.remove(path)
  return out
end

return runs
