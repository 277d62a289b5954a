--- What compile has done in this process.

local report = {}

---@class ms.compile.Report
---@field frames integer    functions and modules of which a call was captured
---@field graphs integer    captured calls, which are replayed
---@field ops integer       operators in them
---@field fsdp_nodes integer  steps of sharded units in them, with skip_fsdp_hooks = false
---@field guards integer    compared values beside arguments
---@field breaks { what: string, reason: string }[]  calls that cannot be replayed
---@field captures ms.compile.Capture.Info[]

---@class ms.compile.Capture.Info
---@field name string
---@field backend 'replay'|'partition'|'fuse'
---@field segments integer  of operators, between steps of the host
---@field kernels integer   of the forward
---@field saved_bytes integer  kept from forward to backward
---@field arena_bytes integer  temporary memory of the largest segment

local frames, graphs, ops, fsdp_nodes, n_guards = 0, 0, 0, 0, 0
local captures, breaks = {}, {}

--- Add a capture that replays.
---@param info table  of the program
---@param opts table
---@param is_first boolean  of its function or module
---@param steps ms.compile.Step[]
---@param guards integer
function report.add(name, info, opts, is_first, steps, guards)
  frames, graphs, ops = frames + (is_first and 1 or 0), graphs + 1, ops + info.ops
  n_guards = n_guards + guards
  for _, step in ipairs(opts.skip_fsdp_hooks and {} or steps) do
    fsdp_nodes = fsdp_nodes + (step.name and step.name:find('fsdp.', 1, true) == 1 and 1 or 0)
  end
  captures[#captures + 1] = {
    name = name, backend = opts.backend, segments = info.segments, kernels = info.kernels,
    saved_bytes = info.saved_bytes, arena_bytes = info.arena_bytes,
  }
end

---@param what string  the function or module
---@param reason string
function report.add_break(what, reason)
  breaks[#breaks + 1] = { what = what, reason = reason }
end

local function describe(self)
  local lines = { ('%d graphs of %d functions and modules: %d operators, %d guards'):format(
    self.graphs, self.frames, self.ops, self.guards) }
  for _, c in ipairs(self.captures) do
    lines[#lines + 1] = ('  %s (%s): %d segments, %d kernels, %d bytes saved, %d temporary')
      :format(c.name, c.backend, c.segments, c.kernels, c.saved_bytes, c.arena_bytes)
  end
  for _, b in ipairs(self.breaks) do
    lines[#lines + 1] = ('  %s is not replayed: %s'):format(b.what, b.reason)
  end
  return table.concat(lines, '\n')
end

local Report = { __tostring = describe }

local function copies(list)
  local out = {}
  for i, entry in ipairs(list) do
    out[i] = {}
    for key, value in next, entry do
      out[i][key] = value
    end
  end
  return out
end

--- What compile has done in this process so far. It prints as text.
---@return ms.compile.Report
function report.now()
  return setmetatable({
    frames = frames, graphs = graphs, ops = ops, fsdp_nodes = fsdp_nodes, guards = n_guards,
    captures = copies(captures), breaks = copies(breaks),
  }, Report)
end

return report
