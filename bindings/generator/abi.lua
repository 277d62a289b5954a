--- The hash of the ABI, and the layout of each public struct as the C compiler sees it.

local bit = require 'bit'
local ffi = require 'ffi'

local abi = {}

abi.declaration = [[
int32_t msf_abi_row(int32_t i, const char **type, const char **field, int64_t *offset,
                    int64_t *nbytes);
]]

--- FNV-1a, 64 bits, as 16 hexadecimal digits.
---@param text string
---@return string
function abi.hash(text)
  local hash = ffi.new('uint64_t', 0xcbf29ce484222325ULL)
  for i = 1, #text do
    hash = bit.bxor(hash, text:byte(i)) * 0x100000001b3ULL
  end
  return bit.tohex(hash, 16)
end

---@param api ms.gen.Api
---@param hash string
---@return string
function abi.source(api, hash)
  local rows = {}
  for _, s in ipairs(api.structs) do
    rows[#rows + 1] = ('    {"%s", "", 0, sizeof(%s)},'):format(s.name, s.name)
    for _, field in ipairs(s.fields) do
      rows[#rows + 1] = ('    {"%s", "%s", offsetof(%s, %s), sizeof(((%s *)0)->%s)},'):format(
        s.name, field.name, s.name, field.name, s.name, field.name)
    end
  end
  return ([[
/* Generated from the public headers: the hash of their text, and what the C compiler made of each
 * struct, so that a Lua loader can compare both with its own view. */
#include "moonshard.h"

const char *ms_abi_hash(void)
{
    return "%s";
}

static const struct {
    const char *type;
    const char *field; /* "" for the struct itself */
    int64_t offset;
    int64_t nbytes;
} rows[] = {
%s
};

MS_API int32_t msf_abi_row(int32_t i, const char **type, const char **field, int64_t *offset,
                           int64_t *nbytes);

/* Row i of the table. @return 0 past its end */
int32_t msf_abi_row(int32_t i, const char **type, const char **field, int64_t *offset,
                    int64_t *nbytes)
{
    if (i < 0 || (size_t)i >= sizeof(rows) / sizeof(rows[0])) {
        return 0;
    }
    *type = rows[i].type;
    *field = rows[i].field;
    *offset = rows[i].offset;
    *nbytes = rows[i].nbytes;
    return 1;
}
]]):format(hash, table.concat(rows, '\n'))
end

return abi
