--- What compile has done in this process.

local Graph = require 'moonshard.compile.graph'
local program = require 'moonshard_ffi.program'

local report = {}

---@class ms.compile.Report
---@field frames integer    functions and modules of which a call was captured
---@field graphs integer    captured calls, which are replayed
---@field ops integer       operators in them
---@field fsdp_nodes integer  steps of sharded units in them, with skip_fsdp_hooks = false
---@field guards integer    compared values beside arguments
---@field breaks ms.compile.Break[]  calls that cannot be replayed
---@field captures ms.compile.Capture.Info[]

---@class ms.compile.Break
---@field what string  the function or module
---@field reason string  with the position
---@field where? string  'file:line' of the script
---@field module? string  path of the module whose forward ran

---@class ms.compile.Capture.Info  as of the last report in which the function existed
---@field name string
---@field graph? ms.compile.Graph  nil if the function no longer exists
---@field replays integer
---@field backend 'replay'|'partition'|'fuse'
---@field segments integer  of operators, between steps of the host
---@field kernels integer   of the forward
---@field saved_bytes integer  kept from forward to backward
---@field arena_bytes integer  temporary memory of the largest segment
---@field planned_peak integer  bytes of a forward and its backward beside parameters, gradients of
---  leaves and arguments
---@field unplanned_peak integer  the same if each buffer of these kernels had memory of its own
---@field backward_plans integer  one for each way in which gradients arrive and are stored
---@field backward_kernels integer  of the most recent plans

local frames, graphs, ops, fsdp_nodes, n_guards = 0, 0, 0, 0, 0
local captures, breaks = {}, {}

-- Captures by their entries, while their functions exist.
local alive = setmetatable({}, { __mode = 'v' }) ---@type table<table, ms.compile.Captured>

--- Add a capture that replays.
---@param name string
---@param opts table
---@param captured ms.compile.Captured
---@param is_first boolean  of its function or module
---@return ms.compile.Capture.Info  the caller counts its replays
function report.add(name, opts, captured, is_first)
  local info = program.info(captured.program)
  frames, graphs, ops = frames + (is_first and 1 or 0), graphs + 1, ops + info.ops
  n_guards = n_guards + captured.guards:count()
  for _, step in ipairs(opts.skip_fsdp_hooks and {} or captured.steps) do
    fsdp_nodes = fsdp_nodes + (step.name and step.name:find('fsdp.', 1, true) == 1 and 1 or 0)
  end
  info.name, info.backend, info.replays = name, opts.backend, 0
  captures[#captures + 1] = info
  alive[info] = captured
  return info
end

---@param what string  the function or module
---@param broken ms.compile.Break
---@return string reason  with the position
function report.add_break(what, broken)
  local where = broken.where
  if broken.module then
    where = ("%s, in forward of '%s'"):format(where, broken.module)
  end
  local reason = where and ('%s (at %s)'):format(broken.reason, where) or broken.reason
  breaks[#breaks + 1] = {
    what = what, reason = reason, where = broken.where, module = broken.module,
  }
  return reason
end

local function describe(self)
  local lines = { ('%d graphs of %d functions and modules: %d operators, %d guards'):format(
    self.graphs, self.frames, self.ops, self.guards) }
  for _, c in ipairs(self.captures) do
    lines[#lines + 1] = ('  %s (%s): %d replays of %d segments, %d kernels forward and %d backward')
      :format(c.name, c.backend, c.replays, c.segments, c.kernels, c.backward_kernels)
    lines[#lines + 1] = ('    peak %d bytes, %d unplanned; %d backward plans; %d bytes saved, %d '
      .. 'temporary'):format(c.planned_peak, c.unplanned_peak, c.backward_plans, c.saved_bytes,
      c.arena_bytes)
  end
  for _, b in ipairs(self.breaks) do
    lines[#lines + 1] = ('  %s is not replayed: %s'):format(b.what, b.reason)
  end
  return table.concat(lines, '\n')
end

local Report = { __tostring = describe }

local function copy_of(entry)
  local out = {}
  for key, value in next, entry do
    out[key] = value
  end
  return out
end

-- A graph is made when it is read, so that reports are cheap.
local function with_graph(entry)
  return setmetatable(copy_of(entry), {
    __index = function(copy, key)
      local captured = key == 'graph' and alive[entry]
      if captured then
        copy.graph = Graph(captured.program, captured.steps, captured.places)
        return copy.graph
      end
    end,
  })
end

local function update(entry)
  local captured = alive[entry]
  if captured then
    for key, value in next, program.info(captured.program) do
      entry[key] = value
    end
  end
end

--- What compile has done in this process so far. It prints as text.
---@return ms.compile.Report
function report.now()
  local out = {
    frames = frames, graphs = graphs, ops = ops, fsdp_nodes = fsdp_nodes, guards = n_guards,
    captures = {}, breaks = {},
  }
  for i, entry in ipairs(captures) do
    update(entry)
    out.captures[i] = with_graph(entry)
  end
  for i, broken in ipairs(breaks) do
    out.breaks[i] = copy_of(broken)
  end
  return setmetatable(out, Report)
end

return report
