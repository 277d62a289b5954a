--- Functions of every element of one tensor. A name in `functions` is an operator,
--- ms.ops.<name>(x), and a method, x:<name>(); one in `planned` is still to come, and moves up when
--- it does.

local unary = {}

---@class ms.Unary
---@field erf fun(x: ms.Tensor): ms.Tensor
---@field exp fun(x: ms.Tensor): ms.Tensor
---@field log fun(x: ms.Tensor): ms.Tensor
---@field reciprocal fun(x: ms.Tensor): ms.Tensor
---@field relu fun(x: ms.Tensor): ms.Tensor
---@field sqrt fun(x: ms.Tensor): ms.Tensor
---@field tanh fun(x: ms.Tensor): ms.Tensor

unary.functions = { 'erf', 'exp', 'log', 'reciprocal', 'relu', 'sqrt', 'tanh' }

unary.planned = {
  'abs', 'cos', 'floor', 'log1p', 'log2', 'neg', 'round', 'rsqrt', 'sigmoid', 'sign', 'silu',
  'sin', 'softplus', 'square',
}

return unary
