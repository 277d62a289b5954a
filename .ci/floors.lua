-- The rooms of lua/ and bindings/ from the lowest up, each with the rooms that it may require: the
-- twin of ms_room() in CMakeLists.txt. luajit .ci/floors.lua: prints each other require, late ones
-- included, and each circle of files; exits with 1 if there is one.
local ROOMS = {
  { "bindings/moonshard_ffi/" },
  { "lua/moonshard/base/", "bindings/moonshard_ffi/" },
  { "lua/moonshard/ops/", "lua/moonshard/base/" },
  { "lua/moonshard/tensor/", "lua/moonshard/ops/" },
  { "lua/moonshard/autograd/", "lua/moonshard/tensor/" },
  { "lua/moonshard/dist/", "lua/moonshard/autograd/" },
  { "lua/moonshard/nn/", "lua/moonshard/dist/" },
  { "lua/moonshard/optim/", "lua/moonshard/dist/" },
  { "lua/moonshard/data/", "lua/moonshard/dist/" },
  { "lua/moonshard/amp/", "lua/moonshard/optim/" },
  { "lua/moonshard/schedule.lua", "lua/moonshard/base/" },
  { "lua/moonshard/parallel/", "lua/moonshard/nn/" },
  { "lua/moonshard/fsdp/", "lua/moonshard/nn/", "lua/moonshard/amp/" },
  { "lua/moonshard/checkpoint/", "lua/moonshard/nn/" },
  { "lua/moonshard/models/", "lua/moonshard/checkpoint/" },
  { "lua/moonshard/compile/", "lua/moonshard/nn/" },
  { "lua/moonshard/ema.lua", "lua/moonshard/nn/" },
  { "lua/moonshard/train/", "lua/moonshard/checkpoint/", "lua/moonshard/optim/" },
  { "lua/moonshard/reference/", "lua/moonshard/tensor/" },
  { "lua/moonshard/ms.lua", "lua/moonshard/fsdp/", "lua/moonshard/checkpoint/",
    "lua/moonshard/ema.lua", "lua/moonshard/models/", "lua/moonshard/data/",
    "lua/moonshard/parallel/", "lua/moonshard/compile/", "lua/moonshard/train/",
    "lua/moonshard/schedule.lua", "lua/moonshard/reference/" },
  { "lua/moonshard/init.lua", "lua/moonshard/ms.lua" },
  { "lua/moonshard/tools/", "lua/moonshard/init.lua" },
  { "lua/moonshard/internal/", "lua/moonshard/tools/" },
}

local allowed = {} -- of each room: itself, the rooms it names and those below them
for _, room in ipairs(ROOMS) do
  local below = { [room[1]] = true }
  for i = 2, #room do
    for name in pairs(allowed[room[i]]) do below[name] = true end
  end
  allowed[room[1]] = below
end

local function room_of(file)
  for _, room in ipairs(ROOMS) do
    if file:find(room[1], 1, true) == 1 then return room[1] end
  end
end

local files, by_module = {}, {}
for file in io.popen("find lua bindings/moonshard_ffi -name '*.lua' | sort"):lines() do
  files[#files + 1] = file
  by_module[file:gsub("^%a+/", ""):gsub("/init%.lua$", ""):gsub("%.lua$", ""):gsub("/", ".")] = file
end

local bad, requires = false, {}
local function complain(...)
  print("floors: " .. string.format(...))
  bad = true
end

for _, file in ipairs(files) do
  local room = room_of(file) or complain("%s is in no room", file)
  local n = 0
  requires[file] = {}
  for line in io.lines(file) do
    n = n + 1
    -- a name in quotes is a require, too: namespaces load their files at first use
    for name in line:gsub("^%s*%-%-.*", ""):gmatch("['\"](moonshard[%w_.]*)['\"]") do
      local other = by_module[name]
      if other and other ~= file then
        table.insert(requires[file], other)
        if room and not allowed[room][room_of(other)] then
          complain("%s:%d requires %s, which %s may not use", file, n, name, room)
        end
      end
    end
  end
end

local state, path, circle = {}, {}, nil
local function visit(file)
  state[file], path[#path + 1] = "open", file
  for _, other in ipairs(requires[file]) do
    if state[other] == "open" and not circle then
      circle = { other }
      for i = #path, 1, -1 do
        table.insert(circle, 1, path[i])
        if path[i] == other then break end
      end
    elseif not state[other] then
      visit(other)
    end
  end
  state[file], path[#path] = "done", nil
end
for _, file in ipairs(files) do
  if not state[file] then visit(file) end
end
if circle then
  complain("files require each other in a circle: %s", table.concat(circle, " -> "))
end

os.exit(bad and 1 or 0)
