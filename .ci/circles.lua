-- Calls that come back to the file they began in, among the C files of one folder.
-- luajit .ci/circles.lua BUILD runtime/fsdp: prints each circle; leaves with 1 when there is one.
local build, folder = arg[1], arg[2]

local function lines(command)
  local pipe = assert(io.popen(command))
  local list = {}

  for line in pipe:lines() do list[#list + 1] = line end
  pipe:close()
  return list
end

local definer, files, wants = {}, {}, {}

for _, object in ipairs(lines(("find %s -path '*/%s/*' -name '*.o' | sort"):format(build, folder))) do
  local file = object:match("(" .. folder:gsub("%p", "%%%0") .. "/.*)%.o$")

  local source = io.open(file) -- an object whose source has gone counts no more

  if source then
    source:close()
    files[#files + 1] = file
    wants[file] = {}
  end
  for _, line in ipairs(source and lines("nm " .. object) or {}) do
    local kind, symbol = line:match("(%a) ([%w_]+)$")

    if kind == "U" then
      table.insert(wants[file], symbol)
    elseif kind and kind:match("[TDBR]") then
      definer[symbol] = file
    end
  end
end
if #files < 2 then
  print("circles: " .. folder .. " has no objects in " .. build)
  os.exit(1)
end

-- The way back to a file that is being visited, as a text; or nil.
local state = {}
local function visit(file, path)
  state[file] = "open"
  for _, symbol in ipairs(wants[file]) do
    local other = definer[symbol]

    if other and other ~= file then
      local here = path .. "\n  " .. file .. " calls " .. symbol

      if state[other] == "open" then return here .. " of " .. other end
      local circle = not state[other] and visit(other, here)

      if circle then return circle end
    end
  end
  state[file] = "done"
end

for _, file in ipairs(files) do
  local circle = not state[file] and visit(file, "")

  if circle then
    print("circles: files of " .. folder .. " that call each other in a circle:" .. circle)
    os.exit(1)
  end
end
