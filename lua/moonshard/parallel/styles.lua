--- Styles of tensor parallelism: how the parameters of a layer are divided, and how its forward
--- moves activations. Between layers an activation is a plain tensor: the whole or this rank's
--- part, as the layouts of the styles say.

local Embedding = require 'moonshard.nn.embedding'
local LayerNorm = require 'moonshard.nn.layer_norm'
local Linear = require 'moonshard.nn.linear'
local LinearGELU = require 'moonshard.nn.linear_gelu'
local RMSNorm = require 'moonshard.nn.rms_norm'
local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local moved = require 'moonshard.parallel.moved'
local ops = require 'moonshard.ops'
local placement = require 'moonshard.dist.placement'

local Shard, REPLICATE, PARTIAL = placement.Shard, placement.Replicate(), placement.Partial()
local ROWS, COLUMNS, LAST = Shard(1), Shard(2), Shard(-1)

---@class ms.parallel.Style
---@field input_layouts ms.dist.Placement
---@field output_layouts ms.dist.Placement
local Style = class('parallel.Style')

local function layout(what, name, value, default)
  if value == nil then
    return default
  elseif not placement._is(value) then
    arguments.refuse(what, name, value, 'dist.Shard(dim) or dist.Replicate()')
  elseif not (value:is_shard() or value:is_replicate()) then
    errors.raise('ValueError', "%s: '%s' is %s, expected Shard(dim) or Replicate()", what, name,
      tostring(value))
  end
  return value
end

local function take_layouts(self, opts, input, output)
  opts = errors.options(self._name, opts, { 'input_layouts', 'output_layouts' })
  self.input_layouts = layout(self._name, 'input_layouts', opts.input_layouts, input)
  self.output_layouts = layout(self._name, 'output_layouts', opts.output_layouts, output)
end

---@class ms.parallel.Rule  how a style treats modules of a class
---@field placements table<string, ms.dist.Placement>  of parameters by name
---@field forward fun(style: ms.parallel.Style, group: ms.dist.Group, module: ms.nn.Module,
---  x: ms.Tensor): ms.Tensor  in place of the module's

--- The rule for a module. TypeError if the style has none for its class.
---@param path string
---@param module ms.nn.Module
---@return ms.parallel.Rule
function Style:_rule(path, module)
  local names = {}
  for i, rule in ipairs(self._rules) do
    if getmetatable(module) == rule.class then
      return rule
    end
    names[i] = rule.class._name
  end
  errors.raise('TypeError', "parallelize: '%s' is a %s, which %s does not divide; expected %s",
    path, module._name, self._name:match '[^.]*$', table.concat(names, ', '))
end

function Style:__tostring()
  return ('%s { input_layouts = %s, output_layouts = %s }'):format(self._name:match '[^.]*$',
    tostring(self.input_layouts), tostring(self.output_layouts))
end

-- The module's own forward on these parameters in place of its own.
local function with_params(module, params, x)
  return getmetatable(module).forward(setmetatable(params, { __index = module }), x)
end

---@class ms.parallel.LayoutOptions
---@field input_layouts? ms.dist.Placement  Shard(dim) if each rank has a part of the input
---@field output_layouts? ms.dist.Placement  Shard(dim): each rank gets a part of the output

-- -- columns -------------------------------------------------------------------------------------

--- Each rank computes a part of the output features: it has rows of a Linear's weight (out, in) and
--- of its bias, or columns of an Embedding's weight. By default the input is Replicate() and the
--- output Shard(-1), which is what RowwiseParallel expects.
---@class ms.parallel.ColwiseParallel: ms.parallel.Style
---@overload fun(opts?: ms.parallel.LayoutOptions): ms.parallel.ColwiseParallel
local ColwiseParallel = class('parallel.ColwiseParallel', Style)

---@param opts? ms.parallel.LayoutOptions
function ColwiseParallel:init(opts)
  take_layouts(self, opts, REPLICATE, LAST)
end

local function by_columns(style, group, module, x)
  local input, output = style.input_layouts, style.output_layouts
  local whole = moved(x, group, input, REPLICATE, PARTIAL, input)
  return moved(with_params(module, {}, whole), group, LAST, output, output, LAST)
end

ColwiseParallel._rules = {
  { class = Linear, placements = { weight = ROWS, bias = ROWS }, forward = by_columns },
  { class = LinearGELU, placements = { weight = ROWS, bias = ROWS }, forward = by_columns },
  { class = Embedding, placements = { weight = COLUMNS }, forward = by_columns },
}

-- -- rows ----------------------------------------------------------------------------------------

--- Each rank computes from a part of the input features, and the outputs are summed: it has columns
--- of a Linear's weight (out, in) and the whole bias, or rows of an Embedding's weight, that is a
--- part of the vocabulary. By default the input is Shard(-1), an Embedding's Replicate(), and the
--- output Replicate().
---@class ms.parallel.RowwiseParallel: ms.parallel.Style
---@overload fun(opts?: ms.parallel.LayoutOptions): ms.parallel.RowwiseParallel
local RowwiseParallel = class('parallel.RowwiseParallel', Style)

---@param opts? ms.parallel.LayoutOptions
function RowwiseParallel:init(opts)
  take_layouts(self, opts, nil, REPLICATE)
end

-- A whole parameter that each rank uses for a part of its output, so gradients are summed.
local function shared(tensor, group, output)
  return tensor and moved(tensor, group, REPLICATE, REPLICATE,
    output:is_shard() and PARTIAL or REPLICATE, REPLICATE)
end

local function linear_by_rows(style, group, module, x)
  local input, output = style.input_layouts or LAST, style.output_layouts
  local part = moved(x, group, input, LAST, LAST, input)
  local sum = moved(ops.linear(part, module.weight), group, PARTIAL, output, output, REPLICATE)
  local bias = shared(module.bias, group, output)
  return bias and sum + bias or sum
end

-- Ids of other ranks' rows give zeros.
local function embedding_by_rows(style, group, module, ids)
  local input, output = style.input_layouts or REPLICATE, style.output_layouts
  ids = moved(ids, group, input, REPLICATE, PARTIAL, input)
  local count = module.weight:size(1)
  local own = ids - group:rank() * count
  local is_other = own:lt(0):logical_or(own:ge(count))
  local padding = module.padding_idx and module.padding_idx - group:rank() * count
  local options = padding and padding >= 0 and padding < count and { padding_idx = padding } or nil
  local y = ops.embedding(module.weight, own:masked_fill(is_other, 0), options)
  return moved(y:masked_fill(is_other:unsqueeze(-1), 0), group, PARTIAL, output, output, REPLICATE)
end

RowwiseParallel._rules = {
  { class = Linear, placements = { weight = COLUMNS, bias = REPLICATE }, forward = linear_by_rows },
  { class = Embedding, placements = { weight = ROWS }, forward = embedding_by_rows },
}

-- -- sequences -----------------------------------------------------------------------------------

--- Each rank normalizes a part of the sequence, with the whole parameters. Input and output are
--- Shard(sequence_dim): give the layers around it that layout.
---@class ms.parallel.SequenceParallel: ms.parallel.Style
---@overload fun(opts?: { sequence_dim?: integer }): ms.parallel.SequenceParallel
local SequenceParallel = class('parallel.SequenceParallel', Style)

---@param opts? { sequence_dim?: integer }  2 if it is nil, as of (batch, sequence, features)
function SequenceParallel:init(opts)
  opts = errors.options(self._name, opts, { sequence_dim = 'whole' })
  self.input_layouts = Shard(opts.sequence_dim or 2)
  self.output_layouts = self.input_layouts
end

local function by_sequence(style, group, module, x)
  return with_params(module, {
    weight = shared(module.weight, group, style.output_layouts),
    bias = shared(module.bias, group, style.output_layouts),
  }, x)
end

SequenceParallel._rules = {
  { class = LayerNorm, placements = { weight = REPLICATE, bias = REPLICATE },
    forward = by_sequence },
  { class = RMSNorm, placements = { weight = REPLICATE }, forward = by_sequence },
}

return {
  Style = Style, ColwiseParallel = ColwiseParallel, RowwiseParallel = RowwiseParallel,
  SequenceParallel = SequenceParallel,
}
