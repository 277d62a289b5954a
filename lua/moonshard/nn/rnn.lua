--- Recurrent networks: nn.RNN, nn.LSTM (with proj_size: arXiv:1402.1128) and nn.GRU
--- (arXiv:1406.1078) over sequences, and their cells for one step. Each step is composed of linear
--- operators and activations; there is no fused kernel, and packed sequences are not supported.
---
--- D is 2 for bidirectional networks, else 1. R is proj_size, or H if that is 0. G is H times the
--- number of gates: 1 for RNN, 4 for LSTM (input, forget, cell, output), 3 for GRU (reset, update,
--- new).
---
--- Shapes: x (T, N, in), (N, T, in) with batch_first, or (T, in)  y likewise, D R wide
---         state (D num_layers, N, R), of one sample without N; of LSTM { h, c }, c H wide
---         weight_ih_l<k> (G, in), above the first layer (G, D R)  weight_hh_l<k> (G, R)
---         bias_ih_l<k>, bias_hh_l<k> (G)  weight_hr_l<k> (R, H) with proj_size; the backward
---         direction's end with _reverse
--- Init:   all uniform in [-1/sqrt(H), 1/sqrt(H))

local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local check = require 'moonshard.nn.check'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'
local rules = require 'moonshard.nn.rules'
local dropout_streams = require 'moonshard.base.dropout_streams'
local util = require 'moonshard.base.util'

-- -- one step ------------------------------------------------------------------------------------

-- Chunk i of n along the last dimension.
local function part(x, i, n)
  local width = x:size(-1) / n
  return x:narrow(-1, (i - 1) * width + 1, width)
end

-- A step function returns the next state (h, or h and c) from the linear maps of input and h, each
-- (N, G), and the current state.

local function rnn_step(x, hidden, _, _, nonlinearity)
  return ops[nonlinearity](x + hidden)
end

local function lstm_step(x, hidden, _, c)
  local gates = x + hidden
  local input, forget = part(gates, 1, 4):sigmoid(), part(gates, 2, 4):sigmoid()
  local new, output = part(gates, 3, 4):tanh(), part(gates, 4, 4):sigmoid()
  c = forget * c + input * new
  return output * c:tanh(), c
end

local function gru_step(x, hidden, h)
  local reset = (part(x, 1, 3) + part(hidden, 1, 3)):sigmoid()
  local update = (part(x, 2, 3) + part(hidden, 2, 3)):sigmoid()
  local new = (part(x, 3, 3) + reset * part(hidden, 3, 3)):tanh()
  return new + update * (h - new)
end

-- states: number of tensors in a state.
local KINDS = {
  RNN = { gates = 1, states = 1, step = rnn_step },
  LSTM = { gates = 4, states = 2, step = lstm_step },
  GRU = { gates = 3, states = 1, step = gru_step },
}

-- -- arguments -----------------------------------------------------------------------------------

local OPTIONS = { bias = 'flag', device = 'device', dtype = 'floating' }
local SEQUENCE_OPTIONS = util.merged(OPTIONS, {
  num_layers = 'whole', batch_first = 'flag', dropout = 'number', bidirectional = 'flag',
})
local NONLINEARITY = { nonlinearity = { 'tanh', 'relu' } }

-- Set what sequence networks and cells share. Returns the checked options.
local function init_shared(self, input_size, hidden_size, opts, known)
  check.sizes(self._name, 1, { 'input_size', 'hidden_size' }, input_size, hidden_size)
  opts = errors.options(self._name, opts, util.merged(known, self._options))
  self.input_size, self.hidden_size, self.bias = input_size, hidden_size, opts.bias ~= false
  if self._options.nonlinearity then
    self.nonlinearity = opts.nonlinearity or 'tanh'
  end
  return opts
end

-- Declare weights and biases of one layer and direction, or of a cell.
local function declare(self, suffix, input_size, opts)
  local hidden, proj = self.hidden_size, self.proj_size or 0
  local gates, rule = self._kind.gates * hidden, rules.fan_in_uniform(hidden)
  local dtype = { dtype = opts.dtype }
  self:param('weight_ih' .. suffix, { gates, input_size }, rule, dtype)
  self:param('weight_hh' .. suffix, { gates, proj > 0 and proj or hidden }, rule, dtype)
  if self.bias then
    self:param('bias_ih' .. suffix, { gates }, rule, dtype)
    self:param('bias_hh' .. suffix, { gates }, rule, dtype)
  end
  if proj > 0 then
    self:param('weight_hr' .. suffix, { proj, hidden }, rule, dtype)
  end
end

local function check_input(self, x, most)
  local n = arguments.tensor(self._name, 'x', x):dim()
  if n ~= most and n ~= most - 1 then
    errors.raise('ValueError', '%s: x has %d dimensions, expected %d, or %d for one sample',
      self._name, n, most, most - 1)
  elseif x:size(n) ~= self.input_size then
    errors.raise('ValueError', '%s: x is (%s), expected input_size = %d in the last dimension',
      self._name, table.concat(x:shape(), ', '), self.input_size)
  end
  return n == most
end

-- The given state, checked against these shapes, or zeros.
local function state_of(self, given, x, shapes)
  local n, state = self._kind.states, {}
  if given ~= nil and n == 1 then
    given = { given }
  elseif given ~= nil and type(given) ~= 'table' then
    arguments.refuse(self._name, 'state', given, 'a table { h, c }')
  end
  for i = 1, n do
    if given == nil then
      state[i] = create.zeros(shapes[i], { dtype = x:dtype() })
    else
      local name = n == 1 and 'state' or ('state[%d]'):format(i)
      local found = arguments.tensor(self._name, name, given[i]):shape()
      local text, expected = table.concat(found, ', '), table.concat(shapes[i], ', ')
      if text ~= expected then
        errors.raise('ValueError', "%s: '%s' is (%s), expected (%s)", self._name, name, text,
          expected)
      end
      state[i] = given[i]
    end
  end
  return state
end

-- -- sequences -----------------------------------------------------------------------------------

---@class ms.nn._RNNBase: ms.nn.Module
---@field input_size integer
---@field hidden_size integer
---@field num_layers integer
---@field bias boolean
---@field batch_first boolean
---@field dropout number
---@field bidirectional boolean
---@field proj_size integer
local RNNBase = Module.extend('nn._RNNBase')

RNNBase._is_dropout = true -- between layers
RNNBase._settings = {
  'num_layers', 'bias', 'batch_first', 'dropout', 'bidirectional', 'proj_size', 'nonlinearity',
}
RNNBase._options = {}

---@class ms.nn.RNNBase.Options
---@field num_layers? integer  default 1
---@field bias? boolean  default true
---@field batch_first? boolean  x and output are (N, T, ...) (default false)
---@field dropout? number  of the outputs of every layer but the last (default 0)
---@field bidirectional? boolean  default false
---@field dtype? ms.DType

-- Suffixes of the names of a layer's parameters, one for each direction.
local function suffixes(self, layer)
  local suffix = ('_l%d'):format(layer - 1)
  return self.bidirectional and { suffix, suffix .. '_reverse' } or { suffix }
end

local function output_width(self)
  return self.proj_size > 0 and self.proj_size or self.hidden_size
end

---@param input_size integer
---@param hidden_size integer
---@param opts? table
function RNNBase:init(input_size, hidden_size, opts)
  local name = self._name
  opts = init_shared(self, input_size, hidden_size, opts, SEQUENCE_OPTIONS)
  self.num_layers = arguments.whole(name, 'num_layers', opts.num_layers, 1, 1)
  self.proj_size = arguments.whole(name, 'proj_size', opts.proj_size, 0, 0)
  self.batch_first, self.bidirectional = opts.batch_first == true, opts.bidirectional == true
  self.dropout = opts.dropout or 0
  if not (self.dropout >= 0 and self.dropout <= 1) then
    errors.raise('ValueError', 'dropout probability has to be between 0 and 1, but got %g',
      self.dropout)
  elseif self.proj_size >= hidden_size then
    errors.raise('ValueError', "%s: 'proj_size' is %d, expected less than hidden_size = %d", name,
      self.proj_size, hidden_size)
  elseif self.dropout > 0 and self.num_layers == 1 then
    errors.warn('UserWarning', ('%s: dropout %g has no effect with one layer: it follows all '
      .. 'layers but the last'):format(name, self.dropout))
  end
  for layer = 1, self.num_layers do
    local names = suffixes(self, layer)
    for _, suffix in ipairs(names) do
      declare(self, suffix, layer == 1 and input_size or #names * output_width(self), opts)
    end
  end
end

function RNNBase:_materialized(path, stream)
  self._site = dropout_streams.of_module(path, stream, self._site)
end

-- A view of a parameter that all steps use. The gradients of the steps add up in the view, and the
-- parameter gets one gradient, so the order of summation over micro-batches and ranks is that of
-- other modules.
local function shared(p)
  return p and p:reshape(p:shape())
end

-- Run one layer in one direction over x (T, N, in) from the state { h, c }. Returns the outputs (T,
-- N, R) and the last state.
local function run_direction(self, suffix, x, state, is_reverse)
  local step, proj = self._kind.step, shared(self['weight_hr' .. suffix])
  local weight, bias = shared(self['weight_hh' .. suffix]), shared(self['bias_hh' .. suffix])
  local inputs = ops.linear(x, self['weight_ih' .. suffix], self['bias_ih' .. suffix])
  local n, outputs = x:size(1), {}
  local h, c = state[1], state[2]
  for i = 1, n do
    local t = is_reverse and n + 1 - i or i
    h, c = step(inputs:select(1, t), ops.linear(h, weight, bias), h, c, self.nonlinearity)
    h = proj and ops.linear(h, proj) or h
    outputs[t] = h
  end
  return ops.stack(outputs, 1), { h, c }
end

-- Dropout of x (T, N, ...); dimension 2 holds the samples.
local function drop(self, x)
  if not self.training or self.dropout == 0 then
    return x
  end
  local site = self._site or self:materialize()._site
  return ops.dropout(x:transpose(1, 2), self.dropout, site):transpose(1, 2)
end

-- Run all layers over x (T, N, in). `state` holds the tensors of all layers and directions.
local function run_layers(self, x, state)
  local last, at = {}, 0
  for i = 1, #state do
    last[i] = {}
  end
  for layer = 1, self.num_layers do
    local outputs = {}
    for direction, suffix in ipairs(suffixes(self, layer)) do
      at = at + 1
      local first = {}
      for i, t in ipairs(state) do
        first[i] = t:select(1, at)
      end
      local y, final = run_direction(self, suffix, x, first, direction == 2)
      outputs[direction] = y
      for i = 1, #state do
        last[i][at] = final[i]
      end
    end
    x = #outputs == 1 and outputs[1] or ops.cat(outputs, -1)
    x = layer < self.num_layers and drop(self, x) or x
  end
  for i, list in ipairs(last) do
    last[i] = ops.stack(list, 1)
  end
  return x, last
end

---@param x ms.Tensor  (T, N, in), (N, T, in) with batch_first, or (T, in)
---@param state? ms.Tensor|ms.Tensor[]  before the first step; { h, c } for LSTM (default: zeros)
---@return ms.Tensor output, ms.Tensor|ms.Tensor[] state  after the last step; { h, c } for LSTM
function RNNBase:forward(x, state)
  local is_batch = check_input(self, x, 3)
  local time = is_batch and self.batch_first and 2 or 1
  if x:size(time) == 0 then
    errors.raise('ValueError', '%s: x is (%s), expected a sequence of 1 or more in dimension %d',
      self._name, table.concat(x:shape(), ', '), time)
  end
  local layers = self.num_layers * (self.bidirectional and 2 or 1)
  local function shape(width)
    return is_batch and { layers, x:size(3 - time), width } or { layers, width }
  end
  state = state_of(self, state, x, { shape(output_width(self)), shape(self.hidden_size) })
  if not is_batch then
    x = x:unsqueeze(2)
    for i, t in ipairs(state) do
      state[i] = t:unsqueeze(2)
    end
  end
  local y, last = run_layers(self, time == 2 and x:transpose(1, 2) or x, state)
  y = time == 2 and y:transpose(1, 2) or y
  if not is_batch then
    y = y:squeeze(2)
    for i, t in ipairs(last) do
      last[i] = t:squeeze(2)
    end
  end
  return y, #last == 1 and last[1] or last
end

function RNNBase:extra_repr()
  local parts = { ('%d, %d'):format(self.input_size, self.hidden_size) }
  local function add(name, default)
    if self[name] ~= default then
      parts[#parts + 1] = ('%s=%s'):format(name, tostring(self[name]))
    end
  end
  add('proj_size', 0)
  add('num_layers', 1)
  add('bias', true)
  add('batch_first', false)
  add('dropout', 0)
  add('bidirectional', false)
  return table.concat(parts, ', ')
end

---@class ms.nn.RNN.Options: ms.nn.RNNBase.Options
---@field nonlinearity? 'tanh'|'relu'  default 'tanh'

---@class ms.nn.RNN: ms.nn._RNNBase
---@field nonlinearity string
---@overload fun(input_size: integer, hidden_size: integer, opts?: ms.nn.RNN.Options): ms.nn.RNN
local RNN = RNNBase.extend('nn.RNN')
RNN._kind, RNN._options = KINDS.RNN, NONLINEARITY

---@class ms.nn.LSTM.Options: ms.nn.RNNBase.Options
---@field proj_size? integer  width of the projection of h; 0: no projection (default 0)

---@class ms.nn.LSTM: ms.nn._RNNBase
---@overload fun(input_size: integer, hidden_size: integer, opts?: ms.nn.LSTM.Options): ms.nn.LSTM
local LSTM = RNNBase.extend('nn.LSTM')
LSTM._kind, LSTM._options = KINDS.LSTM, { proj_size = 'whole' }

---@class ms.nn.GRU: ms.nn._RNNBase
---@overload fun(input_size: integer, hidden_size: integer, opts?: ms.nn.RNNBase.Options): ms.nn.GRU
local GRU = RNNBase.extend('nn.GRU')
GRU._kind = KINDS.GRU

-- -- cells ---------------------------------------------------------------------------------------

---@class ms.nn._RNNCellBase: ms.nn.Module
---@field input_size integer
---@field hidden_size integer
---@field bias boolean
local RNNCellBase = Module.extend('nn._RNNCellBase')

RNNCellBase._settings = { 'bias', 'nonlinearity' }
RNNCellBase._options = {}

---@class ms.nn.RNNCellBase.Options
---@field bias? boolean  default true
---@field dtype? ms.DType

---@param input_size integer
---@param hidden_size integer
---@param opts? table
function RNNCellBase:init(input_size, hidden_size, opts)
  declare(self, '', input_size, init_shared(self, input_size, hidden_size, opts, OPTIONS))
end

---@param x ms.Tensor  (N, in) or (in)
---@param state? ms.Tensor|ms.Tensor[]  (N, H) or (H); { h, c } for LSTMCell (default: zeros)
---@return ms.Tensor h, ms.Tensor? c  after the step; c for LSTMCell only
function RNNCellBase:forward(x, state)
  local shape = check_input(self, x, 2) and { x:size(1), self.hidden_size } or { self.hidden_size }
  local given = state_of(self, state, x, { shape, shape })
  local h, c = given[1], given[2]
  return self._kind.step(ops.linear(x, self.weight_ih, self.bias_ih),
    ops.linear(h, self.weight_hh, self.bias_hh), h, c, self.nonlinearity)
end

function RNNCellBase:extra_repr()
  return ('%d, %d%s'):format(self.input_size, self.hidden_size, self.bias and '' or ', bias=False')
end

---@class ms.nn.RNNCell.Options: ms.nn.RNNCellBase.Options
---@field nonlinearity? 'tanh'|'relu'  default 'tanh'

---@class ms.nn.RNNCell: ms.nn._RNNCellBase
---@field nonlinearity string
---@overload fun(input_size: integer, hidden_size: integer, opts?: ms.nn.RNNCell.Options): any
local RNNCell = RNNCellBase.extend('nn.RNNCell')
RNNCell._kind, RNNCell._options = KINDS.RNN, NONLINEARITY

---@class ms.nn.LSTMCell: ms.nn._RNNCellBase
---@overload fun(input_size: integer, hidden_size: integer, opts?: ms.nn.RNNCellBase.Options): any
local LSTMCell = RNNCellBase.extend('nn.LSTMCell')
LSTMCell._kind = KINDS.LSTM

---@class ms.nn.GRUCell: ms.nn._RNNCellBase
---@overload fun(input_size: integer, hidden_size: integer, opts?: ms.nn.RNNCellBase.Options): any
local GRUCell = RNNCellBase.extend('nn.GRUCell')
GRUCell._kind = KINDS.GRU

return {
  RNN = RNN, LSTM = LSTM, GRU = GRU, RNNCell = RNNCell, LSTMCell = LSTMCell, GRUCell = GRUCell,
}
