-- Calls from a room into one that it does not declare in CMakeLists.txt (USES). A room has include
-- paths to no other; but the public headers, which all see, declare functions of every room.
-- luajit .ci/rooms.lua BUILD: prints each such call; leaves with 1 when there is one.
local objects = dofile ".ci/objects.lua"

local names, uses = {}, {}

for name, used in io.open("CMakeLists.txt"):read("*a"):gmatch("\nms_room%(([%w_/]+)([^)]*)%)") do
  names[#names + 1] = name
  uses[name] = { [name] = true }
  for room in used:gmatch("[%w_/]+") do uses[name][room] = true end
end

-- nil for what stands above all rooms
local function room_of(file)
  for _, name in ipairs(names) do
    if file:find("runtime/" .. name .. "/", 1, true) == 1 then return name end
  end
end

local files, definer = objects(arg[1], "runtime")
local bad = false

for _, file in ipairs(files) do
  local room = room_of(file.name)

  for _, symbol in ipairs(room and file.wants or {}) do
    local other = definer[symbol] and room_of(definer[symbol])

    if other and not uses[room][other] then
      print(("rooms: %s calls %s of %s, but %s does not use %s"):format(
        file.name, symbol, definer[symbol], room, other))
      bad = true
    end
  end
end
os.exit(bad and 1 or 0)
