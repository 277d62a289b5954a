--- ms.train: the training loop, and its parts for loops of one's own.
---
---     ms.train { model = model, optimizer = opt, data = loader, steps = 1000, out = 'run' }

local Manager = require 'moonshard.checkpoint.manager'
local arguments = require 'moonshard_ffi.arguments'
local checkpoint = require 'moonshard.checkpoint'
local clip = require 'moonshard.optim.clip'
local dist = require 'moonshard.dist'
local errors = require 'moonshard.base.errors'
local finally = require 'moonshard.base.finally'
local losses = require 'moonshard.train.loss'
local machine = require 'moonshard.base.machine'
local memory = require 'moonshard.base.memory'
local namespace = require 'moonshard.base.namespace'
local report = require 'moonshard.train.report'
local runtime = require 'moonshard_ffi.checkpoint'
local util = require 'moonshard.base.util'

---@class ms.train.Options
---@field model ms.nn.Module  sharded, or plain in a job of one rank
---@field optimizer ms.optim.Optimizer
---@field data ms.data.Loader|ms.data.PackedLoader
---@field steps? integer  of the whole run, resumed parts included
---@field epochs? number  in place of steps: passes over the data
---@field schedule? fun(step: integer): number  learning rate of a step, from 0 (ms.schedule);
---  default: the optimizer's
---@field clip? number  largest total norm of the gradients (default: no clipping)
---@field loss? ms.train.LossFn  default: see forward_backward()
---@field validation? ms.data.Loader|ms.data.PackedLoader
---@field validate_every? integer  steps between validations (default: only at the end); the last
---  step is validated too
---@field validation_steps? integer  at most (default: an epoch)
---@field out? string  folder of metrics.jsonl and checkpoints (default: neither is written)
---@field save_every? integer  steps between checkpoints; 0: none but the last (default 0)
---@field keep? integer  newest checkpoints kept (default 2)
---@field save_frozen? boolean  false: checkpoints leave out frozen parameters (default true)
---@field resume? boolean  continue with the newest checkpoint in `out`, to the bits of a run that
---  was not interrupted. Without a checkpoint the run begins (default false: IOError if `out` has
---  a run)
---@field state? table<string, table>  further parts of a checkpoint: ema, scaler, ...
---@field config? table  kept in checkpoints for the script
---@field log_every? integer  steps between lines; 0: none (default 10)
---@field on_step? fun(record: table)  called on each rank after each step

---@class ms.train.Result
---@field step integer  the last step of the run
---@field loss number?  of that step
---@field validation_loss number?  the last one
---@field stopped integer?  the signal that ended the run
---@field seconds number
---@field tokens integer  trained on in this call, over all ranks

local KNOWN = {
  model = 'any', optimizer = 'any', data = 'any', steps = 'whole', epochs = 'number',
  schedule = 'fn', clip = 'number', loss = 'fn', validation = 'any', validate_every = 'whole',
  validation_steps = 'whole', out = 'text', save_every = 'whole', keep = 'whole', resume = 'flag',
  save_frozen = 'flag', state = 'list', config = 'list', log_every = 'whole', on_step = 'fn',
}

local function check_marked(name, value, mark, expected)
  if type(value) ~= 'table' or rawget(value, '_name') or not value[mark] then
    arguments.refuse('train', name, value, expected)
  end
end

local function steps_of(o)
  if (o.steps == nil) == (o.epochs == nil) then
    errors.raise('ValueError', 'train: expected one of steps and epochs, got %s',
      o.steps and 'both' or 'neither')
  end
  local steps = o.steps or math.ceil(o.epochs * o.data.steps_per_epoch)
  if steps < 1 then
    errors.raise('ValueError', 'train: the run has %d steps, expected 1 or more', steps)
  end
  return steps
end

local function checked(opts)
  local o = errors.options('train', opts, KNOWN)
  check_marked('optimizer', o.optimizer, '_is_optimizer', 'an optimizer')
  check_marked('data', o.data, '_is_loader', 'a loader')
  if o.validation ~= nil then
    check_marked('validation', o.validation, '_is_loader', 'a loader')
  end
  if o.resume and not o.out then
    errors.raise('ValueError', 'train: resume needs out, the folder of the run')
  end
  return o
end

-- A second run in a folder would mix its checkpoints and metrics with those of the first.
local function check_unused(out)
  local newest = checkpoint.latest(out .. '/checkpoints')
  local step = report.last_step(out .. '/metrics.jsonl')
  if newest or step then
    errors.raise('IOError', 'train: %s has a run already (%s); resume it with resume = true, or '
      .. 'choose another folder', out, newest or ('metrics up to step %d'):format(step))
  end
end

-- -- a run ---------------------------------------------------------------------------------------

-- Objects of a checkpoint, with further options of a save.
local function parts_of(o, extra)
  local parts = util.merged({ model = o.model, optimizer = o.optimizer, loader = o.data }, extra)
  return util.merged(parts, o.state or {})
end

local function clipped(o, root)
  if not o.clip then
    return nil
  elseif root then
    return root:clip_grad_norm_(o.clip)
  end
  return clip.grad_norm_(o.model:parameters(), o.clip)
end

local function train_step(o, root, step)
  local began, waited = machine.time(), dist.wait_seconds()
  if o.schedule then
    o.optimizer:set_lr(o.schedule(step - 1))
  end
  local loss, n_targets, times = losses.forward_backward(o.model, o.data, o.loss)
  local ended = machine.time()
  local norm = clipped(o, root)
  o.optimizer:step()
  o.optimizer:zero_grad()
  local now = machine.time()
  return {
    step = step, loss = loss, targets = n_targets, lr = o.optimizer.param_groups[1].lr,
    norm = norm and norm:item(), forward_ms = times.forward * 1e3,
    backward_ms = times.backward * 1e3, optimizer_ms = (now - ended) * 1e3,
    wait_ms = (dist.wait_seconds() - waited) * 1e3, seconds = now - began, tokens = times.tokens,
  }
end

-- Rates that need a history: tokens a second over the last steps, and the time that is left.
local function add_rates(m, run)
  run.seconds_a_step = run.seconds_a_step and 0.95 * run.seconds_a_step + 0.05 * m.seconds
    or m.seconds
  m.tokens_per_s = m.tokens / run.seconds_a_step
  m.tflops = run.flops_per_token and m.tokens_per_s * run.flops_per_token * 1e-12
  m.peak_bytes = memory.memory().peak_total
  m.eta = (run.total - m.step) * run.seconds_a_step
end

local function validate(run, step)
  local o = run.o
  local loss = losses.evaluate(o.model, o.validation, o.validation_steps, o.loss)
  run.result.validation_loss = loss
  if run.log then
    run.log:event { step = step, validation_loss = loss }
    if o.log_every ~= 0 then
      run.log:print(('step %d  validation loss %.4f  perplexity %.2f'):format(step, loss,
        math.exp(loss)))
    end
  end
end

-- Is it time for what is done every so many steps? 0 and nil: never.
local function is_due(step, every)
  return every ~= nil and every > 0 and step % every == 0
end

-- Log a step, validate and save. Returns the signal that ends the run, or nil.
local function after_step(run, m)
  local o, step = run.o, m.step
  add_rates(m, run)
  run.result.step, run.result.loss = step, m.loss
  run.result.tokens = run.result.tokens + m.tokens
  if run.log then
    run.log:step(m)
  end
  if o.on_step then
    o.on_step(m)
  end
  local stopped, is_last = dist.stop_requested(), step == run.total
  if o.validation and not stopped and (is_last or is_due(step, o.validate_every)) then
    validate(run, step)
  end
  if run.manager and (stopped or is_last or is_due(step, o.save_every)) then
    run.manager:save(parts_of(o, {
      step = step, config = o.config, frozen = o.save_frozen,
    }))
  end
  return stopped
end

local function begin(o)
  local root, first = losses.root_of('train', o.model), dist.rank() == 0
  local run = { o = o, root = root, total = steps_of(o), result = { step = 0, tokens = 0 } }
  if o.out then
    if not o.resume then
      check_unused(o.out)
    end
    runtime.make_folder(o.out)
    run.manager = Manager { root = o.out .. '/checkpoints', keep = o.keep or 2 }
    local meta = o.resume and run.manager:resume(parts_of(o, {}))
    run.result.step = meta and meta.step or 0
  end
  if first then
    run.log = report.new {
      path = o.out and o.out .. '/metrics.jsonl', first_step = run.result.step + 1,
      total = run.total, terminal = machine.is_terminal(), every = o.log_every or 10,
    }
  end
  local model = root and root:wrapped() or o.model
  run.flops_per_token = model.flops_per_token and model:flops_per_token()
  return run
end

--- Train a model: forward and backward of each micro-batch of a step (the loss is divided once, see
--- forward_backward()), clipping, the optimizer's step, validation, lines and metrics.jsonl, and
--- checkpoints. Collective. SIGINT, SIGTERM and SIGHUP end the run after the current step, with a
--- checkpoint if it has a folder. The model is left in training mode.
---@param opts ms.train.Options
---@return ms.train.Result
local function train(opts)
  local o = checked(opts)
  local began, run = machine.time(), begin(o)
  local result = run.result
  o.model:train()
  dist.catch_signals()
  finally.run(function()
    if run.log then
      run.log:close()
    end
  end, nil, function()
    for step = result.step + 1, run.total do
      result.stopped = after_step(run, train_step(o, run.root, step))
      if result.stopped then
        break
      end
    end
  end)
  result.seconds = machine.time() - began
  return result
end

local space = namespace.space('train', {
  forward_backward = losses.forward_backward, evaluate = losses.evaluate,
})
getmetatable(space).__call = function(_, opts)
  return train(opts)
end
return space
