--- Text to learn from: a file of the user's, or the King James Bible from Debian's bible-kjv. Its
--- bytes are the tokens; the last 5 % are kept for validation.

local corpus = {}

local function read_all(path)
  local file, why = io.open(path, 'rb')
  if not file then
    error(('cannot read %s: %s'):format(path, why), 0)
  end
  local bytes
  bytes, why = file:read('*a')
  file:close()
  if not bytes then
    error(('cannot read %s: %s'):format(path, why), 0)
  end
  return bytes
end

local function is_there(path)
  local file = io.open(path, 'rb')
  return file ~= nil and file:close()
end

local function make_folder(path)
  local pipe = assert(io.popen(("mkdir -p -- '%s' 2>&1"):format(path:gsub("'", "'\\''"))))
  local complaint = pipe:read('*l')
  pipe:close()
  if complaint then
    error(complaint, 0)
  end
end

-- Ranks that a launcher started write the same file at the same time: each under a name of its own.
local function write_all(path, bytes)
  local status = io.open('/proc/self/stat')
  local own = ('%s.%d'):format(path, status:read('*n'))
  status:close()
  local function check(done, why)
    if not done then
      error(('cannot write %s: %s'):format(path, why), 0)
    end
    return done
  end
  local file = check(io.open(own, 'wb'))
  check(file:write(bytes))
  check(file:close())
  check(os.rename(own, path))
end

local function read_list(paths)
  local texts = {}
  for i, path in ipairs(paths) do
    texts[i] = read_all(path)
  end
  return table.concat(texts, '\n')
end

--- The Bible without its verse labels ("Gen1:1 In the beginning ...").
local function bible()
  local pipe = assert(io.popen("bible -f 'gen1:1-rev22:21' 2>/dev/null", 'r'))
  local lines = {}
  for line in pipe:lines() do
    lines[#lines + 1] = line:gsub('^%w+:%d+ ', '')
  end
  pipe:close()
  if #lines == 0 then
    error('the package bible-kjv is missing (./dev setup installs it); '
      .. 'or give a text with --data=FILE', 0)
  end
  lines[#lines + 1] = ''
  return table.concat(lines, '\n')
end

--- Raises a text when it cannot be read, or is not what the run to be resumed has read.
---@param path string|string[]  '' for that of the run to be resumed, else the Bible; files are read
---  one after the other
---@param out string  folder the token files go to; made when missing
---@param resume boolean  the token files that lie there are those of the same text
---@return { train: string, valid: string, name: string }  files of bytes, and what they are of
function corpus.prepare(path, out, resume)
  local files = { train = out .. '/train.u8', valid = out .. '/valid.u8' }
  if resume and path == '' and is_there(files.train) and is_there(files.valid) then
    files.name = files.train
    return files
  end
  local is_list = type(path) == 'table'
  files.name = path == '' and 'the King James Bible' or is_list and #path .. ' files' or path
  local bytes = (path == '' and bible or is_list and read_list or read_all)(path)
  local cut = math.floor(#bytes * 0.95)
  local parts = { train = bytes:sub(1, cut), valid = bytes:sub(cut + 1) }
  for _, name in ipairs { 'train', 'valid' } do
    local there, earlier = pcall(read_all, files[name])
    if resume and there and earlier ~= parts[name] then
      error(('--resume: %s is not the text of the run in %s, whose %s is other; give the --data '
        .. 'it was begun with'):format(files.name, out, files[name]), 0)
    end
  end
  make_folder(out)
  write_all(files.train, parts.train)
  write_all(files.valid, parts.valid)
  return files
end

return corpus
