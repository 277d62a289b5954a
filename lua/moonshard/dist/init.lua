--- Distributed training: start of ranks, process groups and collectives.
---
---   local world = ms.dist.init()      -- this script now runs once per rank
---   ms.dist.all_reduce(t, 'sum')
---
--- `init` joins the ranks that a launcher started (`moonshard run`). In a script that was started
--- without one it forks the ranks; the first process then only supervises them and never returns.

local B = require 'moonshard_ffi'
local collectives = require 'moonshard.dist.collectives'
local launch = require 'moonshard.dist.launch'
local mesh = require 'moonshard.dist.mesh'
local messages = require 'moonshard.dist.messages'
local namespace = require 'moonshard.base.namespace'
local objects = require 'moonshard.dist.objects'
local parts = require 'moonshard.dist.parts'
local process_groups = require 'moonshard.dist.process_groups'

local dist = { world = B.world }

for _, functions in ipairs { launch, collectives, process_groups, parts, objects, messages } do
  for name, fn in next, functions do
    dist[name] = name:sub(1, 1) ~= '_' and fn or nil
  end
end
dist.init_device_mesh = mesh.init_device_mesh

local PLACEMENT = 'moonshard.dist.placement'

return namespace.space('dist', dist, {
  functional = 'moonshard.dist.functional', ShardedTensor = 'moonshard.dist.sharded_tensor',
  distribute_tensor = 'moonshard.dist.distribute', Shard = PLACEMENT, Replicate = PLACEMENT,
  Partial = PLACEMENT, Flat = PLACEMENT,
})
