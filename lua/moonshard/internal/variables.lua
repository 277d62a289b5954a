--- Warns of variables of the environment that are nearly those the library reads.

local errors = require 'moonshard.internal.errors'

local variables = {}

local PREFIX = 'MS_'
local NAMES = {
  'COMM_ANNOUNCE', 'COMM_SPIN_US', 'COMM_TIMEOUT', 'CPU_ISA', 'CUDASIM_CARDS', 'CUDASIM_CONNECT',
  'CUDASIM_SEED', 'DEVICE', 'FAIL_ALLOC', 'FAKE_CARDS', 'FAKE_GUARD', 'FAKE_ORDER', 'FAKE_SEED',
  'LOG', 'NCCL_DETERMINISTIC', 'ONEDNN', 'PLUGIN_DIR', 'SLOTS', 'STOP_TIMEOUT',
}

local known = {}
for _, name in ipairs(NAMES) do
  known[name] = true
end

--- A job that is started looks once for all its ranks. What is near to no name is somebody else's.
function variables.warn()
  local file = io.open('/proc/self/environ')
  for entry in (file and file:read('*a') or ''):gmatch('[^%z]+') do
    local name = entry:match('^' .. PREFIX .. '([%w_]+)=')
    local near = name and not known[name] and errors.nearest(name, NAMES)
    if near then
      errors.warn('UserWarning', ('%s%s of the environment sets nothing, did you mean %s%s?')
        :format(PREFIX, name, PREFIX, near))
    end
  end
  if file then
    file:close()
  end
end

return variables
