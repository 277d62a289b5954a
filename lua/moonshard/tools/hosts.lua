--- Jobs on several hosts, for `moonshard run --hosts=a:4,b:4`: the list of hosts, and starting the
--- launchers of the others.

local B = require 'moonshard_ffi'
local errors = require 'moonshard.base.errors'

local hosts = {}

local function refuse(format, ...)
  errors.raise('ValueError', 'run: ' .. format, ...)
end

local function quoted(word)
  return "'" .. word:gsub("'", "'\\''") .. "'"
end

--- Parse 'a:4,b:4'; the first is host 0, where launchers meet.
---@param text string
---@return table[] list  { address, ranks }
function hosts.parse(text)
  local list = {}
  for word in (text .. ','):gmatch('([^,]*),') do
    local address, ranks = word:match('^%[?([^%]]+)%]?:(%d+)$')
    if not address then
      refuse("--hosts is '%s', expected HOST:RANKS of each host, as in a:4,b:4", text)
    end
    list[#list + 1] = { address = address, ranks = tonumber(ranks) }
    if list[#list].ranks ~= list[1].ranks then
      refuse('--hosts has %d ranks on %s and %d on %s, expected equal numbers', list[1].ranks,
        list[1].address, list[#list].ranks, address)
    end
  end
  if #list < 2 then
    refuse("--hosts is '%s', expected at least two hosts", text)
  end
  return list
end

local function random_secret()
  local file = assert(io.open('/dev/urandom', 'rb'))
  local bytes = file:read(16)
  file:close()
  return (bytes:gsub('.', function(c) return ('%02x'):format(c:byte()) end))
end

-- Variables that ranks on other hosts need, besides MS_* and UCX_*.
local PASSED = { MOONSHARD_LIB = true, LUA_PATH = true, LUA_CPATH = true }

local function exports(secret)
  local lines = { 'export MOONSHARD_SECRET=' .. quoted(secret) }
  local file = io.open('/proc/self/environ', 'rb')
  local all = file and file:read('*a') or ''
  if file then
    file:close()
  end
  for name, value in all:gmatch('([%w_]+)=([^%z]*)') do
    if name:find('^MS_') or name:find('^UCX_') or PASSED[name] then
      lines[#lines + 1] = ('export %s=%s'):format(name, quoted(value))
    end
  end
  return table.concat(lines, '\n')
end

--- Start the launchers of the other hosts: `RSH HOST sh -s`, which reads its commands.
---@param o table  flags of run: list, rsh, words (of the whole command), flags_end (the last flag)
---@return table handles
function hosts.start_others(o)
  local handles = {}
  local folder = io.open('/proc/self/cwd') and io.popen('pwd'):read('*l')
  for i = 2, #o.list do
    local words = {}
    for k = -20, #o.words do
      if o.words[k] then
        words[#words + 1] = quoted(o.words[k])
      end
      if k == o.flags_end then -- host 0 starts them again
        words[#words + 1] = ('--host=%d --restarts=0'):format(i - 1)
      end
    end
    local pipe = io.popen(('%s %s sh -s'):format(o.rsh, quoted(o.list[i].address)), 'w')
    pipe:write(('cd %s || exit 1\n%s\nexec %s </dev/null\n'):format(quoted(folder),
      exports(o.secret), table.concat(words, ' ')))
    pipe:flush()
    handles[#handles + 1] = pipe
  end
  return handles
end

--- The runtime's description of this host, and what keeps its texts alive.
---@param o table  list, host (from 0), port, secret, wait
function hosts.describe(o)
  local h = B.new('ms_hosts')
  h.n_hosts, h.host, h.port, h.timeout_s = #o.list, o.host or 0, o.port, o.wait
  h.address, h.secret = o.list[1].address, o.secret
  return h
end

--- Complete the flags of `run --hosts`.
function hosts.prepare(o)
  o.list = hosts.parse(o.hosts)
  o.port, o.wait, o.rsh = o.port or 29500, o.wait or 60, o.rsh or 'ssh'
  o.secret = os.getenv('MOONSHARD_SECRET')
  if o.host and (o.host < 0 or o.host >= #o.list) then
    refuse('--host is %d, expected 0 to %d', o.host, #o.list - 1)
  elseif o.host and not o.secret then
    refuse('--host needs MOONSHARD_SECRET, a text that is equal on all hosts')
  end
  o.secret = o.secret or random_secret()
  o.ranks = o.list[1].ranks
end

return hosts
