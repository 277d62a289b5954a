--- Losses. Reductions are 'mean', 'sum' and 'none', as in PyTorch. Reduced losses of f16 and bf16
--- are f32.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local compare = require 'moonshard.ops.compare'
local dims = require 'moonshard.base.dims'
local errors = require 'moonshard.base.errors'

local C, calls = B.C, B.calls

---@class ms.ops.Losses
local losses = {}

local REDUCTIONS = { 'mean', 'sum', 'none' }
local codes = { mean = C.MS_REDUCTION_MEAN, sum = C.MS_REDUCTION_SUM }

local function reduction_of(what, opts, choices)
  local name = opts.reduction
  return name == nil and 'mean' or errors.choice(what, 'reduction', name, choices or REDUCTIONS)
end

local function widened(x)
  local dtype = x:dtype()
  return (dtype == 'bf16' or dtype == 'f16') and x:to('f32') or x
end

local function reduced(elements, reduction)
  if reduction == 'none' then
    return elements
  end
  elements = widened(elements)
  return reduction == 'mean' and elements:mean() or elements:sum()
end

-- -- of classes ----------------------------------------------------------------------------------

local function same_sizes(a, b)
  if #a ~= #b then
    return false
  end
  for d = 1, #a do
    if a[d] ~= b[d] then
      return false
    end
  end
  return true
end

local info, target_info = B.new('ms_tensor_info'), B.new('ms_tensor_info')

-- Do the targets have the shape of x without dimension `dim` (counted from 0)?
local function fits(dim)
  if dim >= info.ndim or target_info.ndim ~= info.ndim - 1 then
    return false
  end
  for d = 0, info.ndim - 2 do
    if target_info.shape[d] ~= info.shape[d < dim and d or d + 1] then
      return false
    end
  end
  return true
end

-- The class dimension: the given one, else the last, else 2 as in PyTorch if only that fits the
-- targets. The operator raises if the targets do not fit.
local function class_dim(what, x, targets, dim)
  calls.tensor_describe(arguments.tensor(what, 'x', x), info)
  calls.tensor_describe(arguments.tensor(what, 'targets', targets), target_info)
  if dim ~= nil then
    return dims.index(dim, info.ndim, what) + 1
  end
  return not fits(info.ndim - 1) and fits(1) and 2 or info.ndim
end

-- x with dimension `dim` moved to the end.
local function classes_last(x, dim)
  local order = {}
  if dim == info.ndim then
    return x
  end
  for d = 1, info.ndim do
    order[#order + 1] = d ~= dim and d or nil
  end
  order[#order + 1] = dim
  return x:permute(order)
end

local function check_weight(what, weight, n)
  if arguments.tensor(what, 'weight', weight):dim() ~= 1 or weight:size(1) ~= n then
    errors.raise('ValueError', "%s: 'weight' is (%s), expected (%d), one number per class", what,
      table.concat(weight:shape(), ', '), n)
  end
end

-- Loss from f32 or f64 log probabilities with the classes last. `smoothing` is distributed equally
-- over all classes.
local function from_log(what, logp, targets, opts, smoothing)
  local reduction, weight = reduction_of(what, opts), opts.weight
  local ignored = arguments.whole(what, 'ignore_index', opts.ignore_index, -100)
  local rows, counts = calls.nll_loss(logp, targets, ignored), nil
  if weight then
    check_weight(what, weight, logp:size(-1))
    weight = weight:to(logp:dtype())
  end
  if weight or smoothing > 0 or reduction == 'mean' then
    local skip = targets:eq(ignored)
    counts = weight
      and calls.embedding(weight:unsqueeze(2), targets:masked_fill(skip, 0)):squeeze(-1)
      or targets:ne(ignored):to(logp:dtype())
    counts = weight and counts:masked_fill(skip, 0) or counts
    rows = weight and rows * counts or rows
    if smoothing > 0 then
      local all = (weight and logp * weight or logp):sum(-1):masked_fill(skip, 0)
      rows = rows * (1 - smoothing) - all * (smoothing / logp:size(-1))
    end
  end
  if reduction == 'mean' then
    return rows:sum() / counts:sum()
  end
  return reduced(rows, reduction)
end

---@class ms.ops.NLLOptions
---@field weight? ms.Tensor  (C), a factor for each class
---@field ignore_index? integer  target that is not counted (default -100)
---@field reduction? 'mean'|'sum'|'none'  the mean is weighted by the targets' weights
---@field dim? integer  class dimension (default: the last, or 2 if only that fits)

local nll_options = { 'weight', 'ignore_index', 'reduction', 'dim' }

--- Negative log-likelihood of the targets. IndexError if a target is not a class.
---@param x ms.Tensor  log probabilities (..., C) or (N, C, ...)
---@param targets ms.Tensor  i64, from 0, of the shape of x without the class dimension
---@param opts? ms.ops.NLLOptions
---@return ms.Tensor  (); with reduction = 'none' the shape of the targets
function losses.nll_loss(x, targets, opts)
  opts = errors.options('nll_loss', opts, nll_options)
  local dim = class_dim('nll_loss', x, targets, opts.dim)
  return from_log('nll_loss', widened(classes_last(x, dim)), targets, opts, 0)
end

---@class ms.ops.CrossEntropyOptions: ms.ops.NLLOptions
---@field label_smoothing? number  part of each target that is distributed over all classes
---  (default 0)

local cross_entropy_options = { 'ignore_index', 'reduction', 'weight', 'label_smoothing', 'dim' }

-- Loss of targets that are probabilities of the classes.
local function from_probabilities(logits, targets, dim, opts, smoothing)
  local n = logits:dim()
  if not same_sizes(logits:shape(), targets:shape()) then
    errors.raise('ValueError', 'cross_entropy: logits are (%s) and targets (%s), expected '
      .. 'probabilities of one shape, or ids in i64', table.concat(logits:shape(), ', '),
      table.concat(targets:shape(), ', '))
  elseif n > 2 and opts.dim == nil then
    errors.raise('ValueError', "cross_entropy: targets are probabilities of %d dimensions, "
      .. "expected the option 'dim', the dimension of the classes", n)
  end
  local logp = widened(classes_last(logits, dim)):log_softmax()
  targets = classes_last(targets, dim):to(logp:dtype())
  if smoothing > 0 then
    targets = targets * (1 - smoothing) + smoothing / logp:size(-1)
  end
  if opts.weight then
    check_weight('cross_entropy', opts.weight, logp:size(-1))
    targets = targets * opts.weight:to(logp:dtype())
  end
  return reduced((logp * targets):sum(-1):neg(), reduction_of('cross_entropy', opts))
end

--- Negative log-likelihood of `targets` under softmax(logits). IndexError if an id is not a class.
---@param logits ms.Tensor  (..., V), or (N, V, ...) as in PyTorch
---@param targets ms.Tensor  i64 (...), ids from 0; or probabilities of the shape of the logits
---@param opts? ms.ops.CrossEntropyOptions
---@return ms.Tensor  (); with reduction = 'none' one number per target
function losses.cross_entropy(logits, targets, opts)
  opts = errors.options('cross_entropy', opts, cross_entropy_options)
  local reduction = reduction_of('cross_entropy', opts)
  local smoothing = arguments.number('cross_entropy', 'label_smoothing', opts.label_smoothing, 0)
  if not (smoothing >= 0 and smoothing <= 1) then
    errors.raise('ValueError', "cross_entropy: 'label_smoothing' is %g, expected 0 to 1", smoothing)
  end
  local dim = class_dim('cross_entropy', logits, targets, opts.dim)
  if C.ms_dtype_is_floating(target_info.dtype) then
    return from_probabilities(logits, targets, dim, opts, smoothing)
  end
  local last = classes_last(logits, dim)
  if reduction ~= 'none' and smoothing == 0 and not opts.weight then
    return calls.cross_entropy(last, targets,
      arguments.whole('cross_entropy', 'ignore_index', opts.ignore_index, -100), codes[reduction])
  end
  return from_log('cross_entropy', widened(last):log_softmax(), targets, opts, smoothing)
end

-- -- of elements ---------------------------------------------------------------------------------

local function check_pair(what, x, y, name)
  name = name or 'y'
  local a, b = arguments.tensor(what, 'x', x):shape(), arguments.tensor(what, name, y):shape()
  if not same_sizes(a, b) then
    errors.raise('ValueError', '%s: x is (%s) and %s (%s), expected one shape', what,
      table.concat(a, ', '), name, table.concat(b, ', '))
  end
  return a
end

local mse_loss_options = { 'reduction' }

--- Mean squared error: the mean, the sum or each of (x - y)^2.
---@param x ms.Tensor
---@param y ms.Tensor  same shape
---@param opts? { reduction?: 'mean'|'sum'|'none' }
---@return ms.Tensor  (); with 'none' the shape of x
function losses.mse_loss(x, y, opts)
  opts = errors.options('mse_loss', opts, mse_loss_options)
  local reduction = reduction_of('mse_loss', opts)
  if reduction ~= 'none' then
    return calls.mse_loss(x, y, codes[reduction])
  end
  check_pair('mse_loss', x, y)
  return (x - y):square()
end

local l1_loss_options = { 'reduction' }

--- Absolute error: the mean, the sum or each of |x - y|.
---@param x ms.Tensor
---@param y ms.Tensor  same shape
---@param opts? { reduction?: 'mean'|'sum'|'none' }
---@return ms.Tensor  (); with 'none' the shape of x
function losses.l1_loss(x, y, opts)
  opts = errors.options('l1_loss', opts, l1_loss_options)
  check_pair('l1_loss', x, y)
  return reduced((x - y):abs(), reduction_of('l1_loss', opts))
end

-- d^2 / 2 for |d| < delta, else delta (|d| - delta / 2).
local function huber(x, y, delta)
  local size = (x - y):abs()
  local inner = size:clamp(nil, delta)
  return inner * (size - inner * 0.5)
end

local function positive(what, name, value, lowest)
  value = arguments.number(what, name, value, 1)
  if not (value >= 0 and value < math.huge and (value > 0 or lowest == 0)) then
    errors.raise('ValueError', "%s: '%s' is %g, expected a finite number %s", what, name, value,
      lowest == 0 and 'of 0 or more' or 'above 0')
  end
  return value
end

local smooth_l1_options = { 'beta', 'reduction' }

--- d^2 / (2 beta) where |d| < beta, else |d| - beta / 2, with d = x - y.
---@param x ms.Tensor
---@param y ms.Tensor  same shape
---@param opts? { beta?: number, reduction?: 'mean'|'sum'|'none' }  beta: default 1; 0: l1_loss
---@return ms.Tensor  (); with 'none' the shape of x
function losses.smooth_l1_loss(x, y, opts)
  opts = errors.options('smooth_l1_loss', opts, smooth_l1_options)
  local beta = positive('smooth_l1_loss', 'beta', opts.beta, 0)
  check_pair('smooth_l1_loss', x, y)
  return reduced(beta == 0 and (x - y):abs() or huber(x, y, beta) / beta,
    reduction_of('smooth_l1_loss', opts))
end

local huber_options = { 'delta', 'reduction' }

--- d^2 / 2 where |d| < delta, else delta (|d| - delta / 2), with d = x - y.
---@param x ms.Tensor
---@param y ms.Tensor  same shape
---@param opts? { delta?: number, reduction?: 'mean'|'sum'|'none' }  delta: above 0 (default 1)
---@return ms.Tensor  (); with 'none' the shape of x
function losses.huber_loss(x, y, opts)
  opts = errors.options('huber_loss', opts, huber_options)
  local delta = positive('huber_loss', 'delta', opts.delta)
  check_pair('huber_loss', x, y)
  return reduced(huber(x, y, delta), reduction_of('huber_loss', opts))
end

local bce_options = { 'weight', 'pos_weight', 'reduction' }

--- -(p y log(s) + (1 - y) log(1 - s)) with s = sigmoid(x) and p = pos_weight, times weight.
---@param x ms.Tensor
---@param y ms.Tensor  probabilities, same shape
---@param opts? { weight?: ms.Tensor, pos_weight?: ms.Tensor, reduction?: 'mean'|'sum'|'none' }
---  both weights broadcast against x
---@return ms.Tensor  (); with 'none' the shape of x
function losses.binary_cross_entropy_with_logits(x, y, opts)
  local what = 'binary_cross_entropy_with_logits'
  opts = errors.options(what, opts, bce_options)
  check_pair(what, x, y)
  local log = x:neg():softplus(1, 40) -- -log(s); above 40 exp() adds less than a rounding error
  if opts.pos_weight then
    log = log * ((arguments.tensor(what, 'pos_weight', opts.pos_weight) - 1) * y + 1)
  end
  local elements = (1 - y) * x + log
  if opts.weight then
    elements = elements * arguments.tensor(what, 'weight', opts.weight)
  end
  return reduced(elements, reduction_of(what, opts))
end

local KL_REDUCTIONS = { 'mean', 'batchmean', 'sum', 'none' }
local kl_options = { 'log_target', 'reduction' }

--- Kullback-Leibler divergence: target (log(target) - x), 0 where the target is 0.
---@param x ms.Tensor  log probabilities
---@param target ms.Tensor  probabilities, same shape
---@param opts? { log_target?: boolean, reduction?: 'mean'|'batchmean'|'sum'|'none' }  log_target:
---  the target contains log probabilities (default false); batchmean: the sum divided by the size
---  of dimension 1
---@return ms.Tensor  (); with 'none' the shape of x
function losses.kl_div(x, target, opts)
  opts = errors.options('kl_div', opts, kl_options)
  local sizes = check_pair('kl_div', x, target, 'target')
  local log, reduction = target, reduction_of('kl_div', opts, KL_REDUCTIONS)
  if reduction == 'batchmean' and #sizes == 0 then
    errors.raise('ValueError', "kl_div: 'reduction' is 'batchmean' and x has no dimensions, "
      .. 'expected at least 1')
  end
  if arguments.flag('kl_div', 'log_target', opts.log_target, false) then
    target = target:exp()
  else
    log = compare.where(target:eq(0), 1, target):log()
  end
  local elements = target * log - target * x
  if reduction == 'batchmean' then
    return reduced(elements, 'sum') / sizes[1]
  end
  return reduced(elements, reduction)
end

return losses
