--- A model of the time of a step: what a rank computes and communicates in program order, as the
--- device 'plan' traced it, at given rates.
---
--- Compute is one queue. All communication of a rank is another one: transfers run one at a time,
--- in the order in which the program enqueues them. A gather waits until its slot was released, a
--- unit until it is gathered, a reduction until the backward of its unit has run, and the step ends
--- when both queues are empty. Products, convolutions and attention take time by their operations,
--- and at a rate of memory other kernels and the optimizer by the bytes that they read and write.
---
--- Collectives are rings in the order of the group: of n ranks each sends (n - 1) / n of the bytes
--- of a gather or reduce-scatter, and twice that for an all-reduce. With hybrid sharding gradients
--- are scattered in the shard group, then each shard is all-reduced over its replicas. Where a ring
--- passes several hosts, all ranks of a host carry equal parts of what goes to other hosts. A part
--- of the tensor goes from rank to rank, n - 1 times, and each of these sends has a latency.

local B = require 'moonshard_ffi'

local C = B.C

local plan_model = {}

---@class ms.tools.PlanRates
---@field flops number  floating-point operations a second of a rank, as products reach them
---@field link number  bytes a second that each rank sends to another host
---@field host_link number  bytes a second that each rank sends to others of its host
---@field memory number  bytes a second that other kernels read and write
---@field latency number  seconds of a send to another host, besides its bytes
---@field host_latency number  and of one within the host

---@class ms.tools.PlanTraffic  bytes that a rank sends
---@field within number  to ranks of its host
---@field between number  to other hosts, its share of what the host sends

---@class ms.tools.PlanUnit
---@field name string
---@field forward number  floating-point operations
---@field backward number  with what checkpoints compute again
---@field gathered number  bytes that a rank sends for its parameters
---@field reduced number  and for its gradients
---@field compute number  seconds
---@field exposed number  seconds that compute waits for communication

---@class ms.tools.PlanSpan
---@field queue 'compute'|'link'
---@field kind 'forward'|'backward'|'gather'|'reduce'|'other'
---@field name string  of the unit or the collective
---@field from number
---@field to number

---@class ms.tools.PlanStep
---@field units ms.tools.PlanUnit[]  in the order of their first event
---@field traffic table<string, ms.tools.PlanTraffic>  'parameters', 'gradients', 'other'
---@field flops number
---@field moved number  bytes that kernels other than products, convolutions and attention move
---@field targets number  of losses that are differentiated
---@field memory { [1]: number, [2]: number }[]  seconds, and bytes held then
---@field seconds number  of the step; 0 without rates
---@field compute number  seconds
---@field exposed number
---@field communication number
---@field within number  seconds in which links within the host are in use
---@field between number  and links to other hosts
---@field spans ms.tools.PlanSpan[]

---@class ms.tools.PlanEvent
---@field kind integer
---@field slot integer
---@field ranks integer
---@field shards integer
---@field first integer
---@field step integer
---@field across integer
---@field flops number
---@field targets number
---@field nbytes number
---@field live number
---@field name string?

--- The device's events since ms_plan_start().
---@return ms.tools.PlanEvent[]
function plan_model.events()
  local out, n = B.new('const ms_plan_event *[1]'), B.new('int64_t[1]')
  B.check(C.ms_plan_events(out, n))
  local list = {}
  for i = 1, tonumber(n[0]) do
    local e = out[0][i - 1]
    list[i] = {
      kind = e.kind, slot = e.slot, ranks = e.ranks, shards = e.shards,
      first = e.first, step = e.step, across = e.across, flops = e.flops,
      targets = e.targets, nbytes = e.nbytes, live = e.live,
      name = e.name ~= nil and B.string(e.name) or nil,
    }
  end
  return list
end

-- -- communication -------------------------------------------------------------------------------

-- Bytes that a rank sends in a collective on a tensor of n bytes, as the runtime counts them.
local SENT = {
  all_gather = function(n, ranks) return n * (ranks - 1) end,
  reduce_scatter = function(n, ranks) return n * (ranks - 1) end,
  all_reduce = function(n, ranks) return 2 * n * (ranks - 1) / ranks end,
  all_to_all = function(n, ranks) return n * (ranks - 1) / ranks end,
}

local function pipelined(n, ranks)
  return ranks > 1 and n or 0
end

-- Rings of an event: { bytes that a rank sends, ranks, the first one, distance of neighbours, how
-- often a part goes around }.
local function rings(e, rank)
  local n, ranks, shards = e.nbytes, e.ranks, e.shards
  if e.kind == C.MS_PLAN_COLLECTIVE then
    return { { (SENT[e.name] or pipelined)(n, ranks), ranks, e.first, e.step,
      e.name == 'all_reduce' and 2 or 1 } }
  elseif ranks < 2 then
    return {}
  elseif e.kind == C.MS_PLAN_GATHER then
    return { { n * (ranks - 1) / ranks, ranks, e.first, e.step, 1 } }
  end
  local list, replicas = {}, ranks / shards
  if shards > 1 then
    list[1] = { n * (shards - 1) / shards, shards, e.first, e.step, 1 }
  end
  if replicas > 1 then -- of this rank's shard
    local first = math.floor(rank / (e.across * replicas)) * e.across * replicas + rank % e.across
    list[#list + 1] = { 2 * n / shards * (replicas - 1) / replicas, replicas, first, e.across,
      2 }
  end
  return list
end

local function crossing_of(on_host, ranks, first, step)
  local last, n = math.floor((first + (ranks - 1) * step) / on_host), 0
  for q = 0, ranks - 1 do
    local host = math.floor((first + q * step) / on_host)
    n, last = n + (host ~= last and 1 or 0), host
  end
  return n / ranks
end

-- The part of a ring's sends that goes to another host.
local function crossing(self, ranks, first, step)
  local key = ('%d %d %d'):format(ranks, first, step)
  local part = self.crossings[key] or crossing_of(self.job.on_host, ranks, first, step)
  self.crossings[key] = part
  return part
end

-- Traffic of an event, and seconds: of the slower link, within the host, and to other hosts.
local function transfer(self, e)
  local traffic, seconds, within, between = { within = 0, between = 0 }, 0, 0, 0
  local rates = self.rates
  for _, ring in ipairs(rings(e, self.job.rank)) do
    local sent, ranks, first, step, rounds = unpack(ring)
    local part = crossing(self, ranks, first, step)
    traffic.within = traffic.within + sent * (1 - part)
    traffic.between = traffic.between + sent * part
    if rates then
      local inside, outside = part < 1 and sent / rates.host_link or 0, sent * part / rates.link
      within, between = within + inside, between + outside
      seconds = seconds + math.max(inside, outside)
        + rounds * (ranks - 1) * ((1 - part) * rates.host_latency + part * rates.latency)
    end
  end
  return traffic, seconds, within, between
end

-- -- the step ------------------------------------------------------------------------------------

local Step = {}
Step.__index = Step

function Step:unit(name)
  local unit = self.by_name[name]
  if not unit then
    unit = {
      name = name, forward = 0, backward = 0, gathered = 0, reduced = 0, compute = 0, exposed = 0,
    }
    self.by_name[name] = unit
    self.units[#self.units + 1] = unit
  end
  return unit
end

function Step:span(queue, kind, name, from, to)
  if to > from then
    self.spans[#self.spans + 1] = { queue = queue, kind = kind, name = name, from = from, to = to }
  end
end

-- The queue of communication runs an event that can start at `ready`. Returns its end.
function Step:send(e, kind, what, ready)
  local traffic, seconds, within, between = transfer(self, e)
  local total = self.traffic[what]
  total.within, total.between = total.within + traffic.within, total.between + traffic.between
  local from = math.max(self.link_at, ready)
  self.link_at = from + seconds
  self.communication = self.communication + seconds
  self.within, self.between = self.within + within, self.between + between
  self:span('link', kind, e.name, from, self.link_at)
  return self.link_at, traffic.within + traffic.between
end

function Step:wait(until_, name)
  local unit, wait = self:unit(name), math.max(0, until_ - self.at)
  unit.exposed, self.exposed = unit.exposed + wait, self.exposed + wait
  self.at = self.at + wait
end

-- Work between the backwards of units belongs to the root, whose forward came first.
function Step:current()
  return self.forwards[#self.forwards] or self.in_backward or self.root or 'no unit'
end

local on = {}

on[C.MS_PLAN_COMPUTE] = function(self, e)
  local rates = self.rates
  local seconds = rates and e.flops / rates.flops + e.nbytes / rates.memory or 0
  local phase = self.backwards and 'backward' or 'forward'
  self.flops, self.moved = self.flops + e.flops, self.moved + e.nbytes
  self.compute, self.targets = self.compute + seconds, self.targets + e.targets
  if e.flops + seconds > 0 then
    local name = self:current()
    local unit = self:unit(name)
    unit[phase], unit.compute = unit[phase] + e.flops, unit.compute + seconds
    self:span('compute', phase, name, self.at, self.at + seconds)
    self.at = self.at + seconds
  end
end

on[C.MS_PLAN_FORWARD] = function(self, e)
  self.root = self.root or e.name
  if #self.forwards == 0 and e.name == self.root then
    self.backwards, self.in_backward = false, nil
  end
  self.forwards[#self.forwards + 1] = e.name
  self:unit(e.name)
end

on[C.MS_PLAN_FORWARD_END] = function(self)
  self.forwards[#self.forwards] = nil
end

on[C.MS_PLAN_BACKWARD] = function(self, e)
  self.backwards, self.in_backward = true, e.name
end

on[C.MS_PLAN_GATHER] = function(self, e)
  local unit = self:unit(e.name)
  local until_, sent = self:send(e, 'gather', 'parameters', self.released[e.slot] or 0)
  self.gathered[e.name], self.slots[e.name] = until_, e.slot
  unit.gathered = unit.gathered + sent
end

on[C.MS_PLAN_UNSHARD] = function(self, e)
  self:wait(self.gathered[e.name] or 0, e.name)
end

on[C.MS_PLAN_RESHARD] = function(self, e)
  local slot = self.slots[e.name]
  if slot then
    self.released[slot] = self.at
  end
end

on[C.MS_PLAN_REDUCE] = function(self, e)
  local unit = self:unit(e.name)
  local _, sent = self:send(e, 'reduce', 'gradients', self.at)
  unit.reduced = unit.reduced + sent
  self.in_backward = nil
end

on[C.MS_PLAN_COLLECTIVE] = function(self, e)
  self:wait((self:send(e, 'other', 'other', self.at)), self:current())
end

--- What a step computes, sends and takes.
---@param events ms.tools.PlanEvent[]
---@param job { rank: integer, on_host: integer }  the planned rank, and the ranks of a host
---@param rates? ms.tools.PlanRates  nil: no times
---@return ms.tools.PlanStep
function plan_model.step(events, job, rates)
  local function none()
    return { within = 0, between = 0 }
  end
  local self = setmetatable({
    job = job, rates = rates, crossings = {}, units = {}, by_name = {}, spans = {},
    traffic = { parameters = none(), gradients = none(), other = none() },
    flops = 0, moved = 0, targets = 0, memory = {}, compute = 0, exposed = 0,
    communication = 0, within = 0, between = 0, at = 0, link_at = 0,
    forwards = {}, gathered = {}, released = {}, slots = {},
  }, Step)
  for _, e in ipairs(events) do
    on[e.kind](self, e)
    self.memory[#self.memory + 1] = { self.at, e.live }
  end
  self:wait(self.link_at, self:current())
  self.seconds = self.at
  return self
end

return plan_model
