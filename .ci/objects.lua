-- What the objects of a folder's C files define and want, as nm says.

local function exists(path)
  local file = io.open(path)

  return file and file:close()
end

-- objects(BUILD, FOLDER): files, each { name =, wants = symbols }, and symbol -> name of the file
-- that defines it.
return function(build, folder)
  local pattern = "^%S-(" .. folder:gsub("%p", "%%%0") .. "/%S*)%.o: ?%s*%x* (%a) ([%w_]+)$"
  local find = "find %s -path '*/%s/*' -name '*.o' -print0 | sort -z | xargs -0 nm -A"
  local files, definer, of = {}, {}, {}
  local pipe = assert(io.popen(find:format(build, folder)))

  for line in pipe:lines() do
    local name, kind, symbol = line:match(pattern)

    if name and of[name] == nil then -- an object whose source has gone counts no more
      of[name] = exists(name) and { name = name, wants = {} } or false
      files[#files + 1] = of[name] or nil
    end
    if name and of[name] then
      if kind == "U" then
        table.insert(of[name].wants, symbol)
      elseif kind:match("[TDBR]") then
        definer[symbol] = name
      end
    end
  end
  pipe:close()
  if #files < 2 then
    print(("%s: %s has no objects in %s"):format(arg[0], folder, build))
    os.exit(1)
  end
  return files, definer
end
