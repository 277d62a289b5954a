--- A stack of copies of an encoder layer. Each copy has its own parameters.

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local parts = require 'moonshard.nn.transformer_parts'

---@class ms.nn.TransformerEncoder: ms.nn.Module
---@field layers ms.nn.ModuleList
---@field norm ms.nn.Module?
---@overload fun(layer: ms.nn.Module, n: integer, norm?: ms.nn.Module): ms.nn.TransformerEncoder
local TransformerEncoder = Module.extend('nn.TransformerEncoder')

---@param encoder_layer ms.nn.Module  copied; not part of the encoder itself
---@param num_layers integer
---@param norm? ms.nn.Module  applied after the last layer
function TransformerEncoder:init(encoder_layer, num_layers, norm)
  parts.init_stack(self, encoder_layer, num_layers, norm)
end

local CALL = { mask = 'tensor', src_key_padding_mask = 'tensor', is_causal = 'flag' }

---@param src ms.Tensor
---@param opts? { mask?: ms.Tensor, src_key_padding_mask?: ms.Tensor, is_causal?: boolean }
---@return ms.Tensor
function TransformerEncoder:forward(src, opts)
  opts = errors.options(self._name, opts, CALL)
  local call = {
    src_mask = opts.mask, src_key_padding_mask = opts.src_key_padding_mask,
    is_causal = opts.is_causal,
  }
  for _, layer in ipairs(self.layers) do
    src = layer(src, call)
  end
  return self.norm and self.norm(src) or src
end

return TransformerEncoder
