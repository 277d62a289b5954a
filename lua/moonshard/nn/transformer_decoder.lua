--- A stack of copies of a decoder layer. Each copy has its own parameters.

local Module = require 'moonshard.nn.module'
local parts = require 'moonshard.nn.transformer_parts'

---@class ms.nn.TransformerDecoder: ms.nn.Module
---@field layers ms.nn.ModuleList
---@field norm ms.nn.Module?
---@overload fun(layer: ms.nn.Module, n: integer, norm?: ms.nn.Module): ms.nn.TransformerDecoder
local TransformerDecoder = Module.extend('nn.TransformerDecoder')

---@param decoder_layer ms.nn.Module  copied; not part of the decoder itself
---@param num_layers integer
---@param norm? ms.nn.Module  applied after the last layer
function TransformerDecoder:init(decoder_layer, num_layers, norm)
  parts.init_stack(self, decoder_layer, num_layers, norm)
end

---@param tgt ms.Tensor
---@param memory ms.Tensor
---@param opts? ms.nn.TransformerDecoder.Call
---@return ms.Tensor
function TransformerDecoder:forward(tgt, memory, opts)
  for _, layer in ipairs(self.layers) do
    tgt = layer(tgt, memory, opts)
  end
  return self.norm and self.norm(tgt) or tgt
end

return TransformerDecoder
