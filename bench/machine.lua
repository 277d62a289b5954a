--- What the figures were measured on.

local machine = {}

local function first_match(path, pattern)
  local file = io.open(path)
  local found = file and file:read('*a'):match(pattern)
  if file then
    file:close()
  end
  return found
end

local function output_of(command)
  local pipe = io.popen(command)
  local line = pipe:read('*l')
  pipe:close()
  return line
end

---@param ms ms
---@return string
function machine.describe(ms)
  return ('%s, %d cores, %s, bf16 by %s, %s, load %s, %s'):format(
    first_match('/proc/cpuinfo', 'model name%s*:%s*([^\n]*)') or 'unknown processor',
    ms.dist.info().cores, ms.cpu_isa(), ms.matmul_name(ms.bf16),
    'Linux ' .. (first_match('/proc/sys/kernel/osrelease', '[^\n]*') or ''),
    first_match('/proc/loadavg', '%S+') or '?', os.date('%Y-%m-%d'))
end

--- The dtype in which PyTorch trains fastest here: bf16 where the processor multiplies it (AMX,
--- AVX512-BF16), else f32, since without these units bf16 costs it a factor of two to three.
---@return 'bf16'|'f32'
function machine.fastest_dtype()
  local flags = first_match('/proc/cpuinfo', 'flags%s*:([^\n]*)') or ''
  return flags:find('_bf16', 1, true) and 'bf16' or 'f32'
end

--- Version of the PyTorch this python imports, or nil.
---@param python string
---@return string?
function machine.torch_version(python)
  return output_of(("%s -c 'import torch; print(torch.__version__)' 2>/dev/null"):format(python))
end

return machine
