-- Calls that come back to the file they began in, among the C files of one folder, besides calls of
-- the symbols that are named.
-- luajit .ci/circles.lua BUILD FOLDER [SYMBOL]...: prints a circle; leaves with 1 if there is one.
local objects = dofile ".ci/objects.lua"

local folder = arg[2]
local files, definer = objects(arg[1], folder)
local wants, state = {}, {}

for _, file in ipairs(files) do wants[file.name] = file.wants end
for i = 3, #arg do
  if not definer[arg[i]] then
    print(("circles: %s is defined by no file of %s"):format(arg[i], folder))
    os.exit(1)
  end
  definer[arg[i]] = nil
end

-- The way back to a file that is being visited, as a text; or nil.
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
  local circle = not state[file.name] and visit(file.name, "")

  if circle then
    print("circles: files of " .. folder .. " that call each other in a circle:" .. circle)
    os.exit(1)
  end
end
