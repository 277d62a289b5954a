--- Files of u16 and u32 tokens, dtypes that tensors do not support.

local Column = require 'moonshard.data.column'
local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local create = require 'moonshard.base.create'
local dims = require 'moonshard.base.dims'
local errors = require 'moonshard.base.errors'
local runtime = require 'moonshard_ffi.data'

--- Tokens of a mapped file, for data.Loader. Tokens are read as i64 tensors.
---@class ms.data.TokenFile
---@field path string
local TokenFile = class('data.TokenFile')

local WIDTHS = { u16 = 2, u32 = 4 }

-- A header of llm.c: 256 32-bit numbers that begin with magic, version and number of tokens. The
-- fourth number has the upper half of that number here, and is 0 in llm.c.
local HEADER = 1024
local KINDS = {
  [20240520] = { dtype = 'u16', version = 1 },
  [20240801] = { dtype = 'u32', version = 7 },
}

local function header_numbers(head)
  local numbers = {}
  for k = 1, 4 do
    local a, b, c, d = head:byte(4 * k - 3, 4 * k)
    numbers[k] = a + 2 ^ 8 * b + 2 ^ 16 * c + 2 ^ 24 * d
  end
  return unpack(numbers)
end

local HEAD = 16 -- bytes of these numbers

-- The dtype and number of tokens in a header of llm.c; nil if the file does not begin with one.
local function header_of(path, head, size)
  if size < HEADER then
    return nil
  end
  local magic, version, n, upper = header_numbers(head)
  local kind = KINDS[magic]
  if not kind then
    return nil
  elseif version ~= kind.version then
    errors.raise('FormatError', "'%s' has a header of llm.c (magic %d) of version %d, expected "
      .. 'version %d', path, magic, version, kind.version)
  end
  n = n + 2 ^ 32 * upper
  local found = size - HEADER
  if found ~= n * WIDTHS[kind.dtype] or n == 0 then
    errors.raise('FormatError', "'%s' has %d bytes behind its header of llm.c, expected %.0f for "
      .. 'the %.0f %s tokens that the header gives', path, found, n * WIDTHS[kind.dtype], n,
      kind.dtype)
  end
  return kind.dtype, n
end

--- The dtype and number of tokens in a header of llm.c; nil if the file does not begin with one.
---@param path string
---@param bytes ms.Tensor  u8, the contents of the file
---@return 'u16'|'u32'|nil dtype, integer? n
function TokenFile._header(path, bytes)
  local size = bytes:size(1)
  return header_of(path, size >= HEADER
    and string.char(unpack(bytes:narrow(1, 1, HEAD):totable())) or '', size)
end

local COLUMNS = { u16 = 'uint16_t', u32 = 'uint32_t' }
local BLOCK = 2 ^ 20

--- All tokens of a file that has a header, or a name that ends in .u16 or .u32, without a tensor;
--- nil for another file.
---@param path string
---@param file file*  open for reading; the position is at its beginning after nil
---@return ms.data.Column?
function TokenFile._read(path, file)
  local size = file:seek 'end'
  file:seek 'set'
  local dtype = header_of(path, file:read(HEAD) or '', size)
  local named = path:match '%.(u%d%d)$'
  file:seek('set', dtype and HEADER or 0)
  dtype = dtype or COLUMNS[named] and named
  if not dtype then
    return nil
  elseif size % WIDTHS[dtype] ~= 0 then
    errors.raise('FormatError', "'%s' has %d bytes, expected tokens of %d bytes each", path, size,
      WIDTHS[dtype])
  end
  local ids = Column(COLUMNS[dtype])
  for block in function() return file:read(BLOCK) end do
    ids:append_bytes(block)
  end
  return ids
end

local function number_bytes(n)
  return string.char(n % 256, math.floor(n / 2 ^ 8) % 256, math.floor(n / 2 ^ 16) % 256,
    math.floor(n / 2 ^ 24) % 256)
end

--- The header of a file of n tokens.
---@param dtype 'u16'|'u32'
---@param n integer
---@return string
function TokenFile._header_of(dtype, n)
  for magic, kind in pairs(KINDS) do -- one has the dtype
    if kind.dtype == dtype then
      local numbers = number_bytes(magic) .. number_bytes(kind.version) .. number_bytes(n)
        .. number_bytes(math.floor(n / 2 ^ 32))
      return numbers .. ('\0'):rep(HEADER - #numbers)
    end
  end
end

---@param path string
---@param bytes ms.Tensor  u8, the contents of the file
---@param dtype 'u16'|'u32'
function TokenFile:init(path, bytes, dtype)
  local width, named, n = WIDTHS[dtype], TokenFile._header(path, bytes)
  if named and named ~= dtype then
    errors.raise('FormatError', "'%s' holds %s tokens by its header, expected %s", path, named,
      dtype)
  elseif not named and bytes:size(1) % width ~= 0 then
    errors.raise('FormatError', "'%s' has %d bytes, expected tokens of %d bytes each", path,
      bytes:size(1), width)
  end
  n = n or bytes:size(1) / width
  self.path, self._dtype = path, dtype
  self._bytes = bytes:narrow(1, named and HEADER + 1 or 1, n * width):reshape(n, width)
end

--- Number of tokens.
---@return integer
function TokenFile:numel()
  return self._bytes:size(1)
end

---@return integer[]  (n)
function TokenFile:shape()
  return { self:numel() }
end

---@return 'u16'|'u32'
function TokenFile:dtype()
  return self._dtype
end

--- Copy some tokens.
---@param dim integer  1
---@param start integer  from 1
---@param length integer
---@return ms.Tensor  i64 (length)
function TokenFile:narrow(dim, start, length)
  dims.index(dim, 1, 'narrow')
  arguments.whole('narrow', 'start', start)
  local out = create.empty(arguments.whole('narrow', 'length', length, nil, 0), { dtype = 'i64' })
  runtime.read(out, self._bytes, start < 0 and start + self:numel() or start - 1)
  return out
end

function TokenFile:__tostring()
  return ("TokenFile('%s', %d tokens of %s)"):format(self.path, self:numel(), self._dtype)
end

return TokenFile
