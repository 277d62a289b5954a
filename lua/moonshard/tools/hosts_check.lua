--- `moonshard doctor --hosts=a:1,b:1`: ranks print what each host has, and latency and bandwidth
--- between each two hosts. Called by ranks that `moonshard run` starts.

local B = require 'moonshard_ffi'
local ms = require 'moonshard'
local dist = ms.dist

local ROUNDS, MIB = 200, 32
local world

local function own_facts()
  return { name = B.host_name(), version = ms.version, cores = world.cores,
    numerics = ms.numerics() }
end

-- Seconds that `rounds` exchanges of `t` take, each way once.
local function exchange(t, first, second, rounds)
  local begin = B.seconds()
  for _ = 1, rounds do
    if world.rank == first then
      dist.send(t, second)
      dist.recv(t, second)
    else
      dist.recv(t, first)
      dist.send(t, first)
    end
  end
  return B.seconds() - begin
end

-- Microseconds one way, and GiB/s: on the first rank.
local function between(first, second)
  local small, large = ms.zeros(1), ms.zeros(MIB * 2 ^ 18)
  exchange(small, first, second, 10)
  local latency = exchange(small, first, second, ROUNDS) / ROUNDS / 2
  return { latency * 1e6, MIB / 1024 / (exchange(large, first, second, 2) / 4) }
end

local function print_facts(facts)
  for host = 0, world.hosts - 1 do
    local f = facts[host * world.local_world_size + 1]
    print(('host %d  %s: %d ranks, %d cores for each, moonshard %s%s'):format(host, f.name,
      world.local_world_size, f.cores, f.version, f.numerics ~= facts[1].numerics
        and ', other instruction set, matrix library or build than host 0: bits differ' or ''))
  end
end

return function()
  world = dist.init()
  local facts = dist.all_gather_object(own_facts())
  if world.rank == 0 then
    print_facts(facts)
  end
  for a = 0, world.hosts - 1 do
    for b = a + 1, world.hosts - 1 do
      local first, second = a * world.local_world_size, b * world.local_world_size
      local numbers
      if world.rank == first or world.rank == second then
        numbers = between(first, second)
      end
      numbers = dist.all_gather_object(numbers or false)[first + 1]
      if world.rank == 0 then
        print(('hosts %d and %d  latency %.0f us, %.2f GiB/s in messages of %d MiB'):format(a, b,
          numbers[1], numbers[2], MIB))
      end
    end
  end
end
