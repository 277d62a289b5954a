--- Elementwise functions of one tensor. Each name in `functions` is an operator, ms.ops.<name>(x),
--- and a method, x:<name>().

local unary = {}

--- Elementwise functions.
---@class ms.Unary
---@field abs fun(x: ms.Tensor): ms.Tensor
---@field ceil fun(x: ms.Tensor): ms.Tensor
---@field cos fun(x: ms.Tensor): ms.Tensor
---@field erf fun(x: ms.Tensor): ms.Tensor
---@field exp fun(x: ms.Tensor): ms.Tensor
---@field expm1 fun(x: ms.Tensor): ms.Tensor
---@field floor fun(x: ms.Tensor): ms.Tensor
---@field log fun(x: ms.Tensor): ms.Tensor
---@field log1p fun(x: ms.Tensor): ms.Tensor
---@field logsigmoid fun(x: ms.Tensor): ms.Tensor
---@field neg fun(x: ms.Tensor): ms.Tensor
---@field reciprocal fun(x: ms.Tensor): ms.Tensor
---@field relu fun(x: ms.Tensor): ms.Tensor
---@field rsqrt fun(x: ms.Tensor): ms.Tensor
---@field sigmoid fun(x: ms.Tensor): ms.Tensor
---@field sign fun(x: ms.Tensor): ms.Tensor
---@field silu fun(x: ms.Tensor): ms.Tensor
---@field sin fun(x: ms.Tensor): ms.Tensor
---@field sqrt fun(x: ms.Tensor): ms.Tensor
---@field square fun(x: ms.Tensor): ms.Tensor
---@field tanh fun(x: ms.Tensor): ms.Tensor
---@field trunc fun(x: ms.Tensor): ms.Tensor

unary.functions = {
  'abs', 'ceil', 'cos', 'erf', 'exp', 'expm1', 'floor', 'log', 'log1p', 'logsigmoid', 'neg',
  'reciprocal', 'relu', 'rsqrt', 'sigmoid', 'sign', 'silu', 'sin', 'sqrt', 'square', 'tanh',
  'trunc',
}

return unary
