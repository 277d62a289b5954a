--- The run of `moonshard finetune`: its data, model and loaders, which its plan uses too, and
--- training.

local WeightFiles = require 'moonshard.checkpoint.weight_files'
local adapter = require 'moonshard.models.adapter'
local chats = require 'moonshard.data.chat'
local families = require 'moonshard.models.families'
local folder = require 'moonshard.models.folder'
local meshes = require 'moonshard.dist.mesh'
local ms = require 'moonshard'
local report = require 'moonshard.train.report'
local text_files = require 'moonshard.base.text_files'
local util = require 'moonshard.base.util'

local fsdp, nn = ms.fsdp, ms.nn

local run = {}

--- The positions of the folder's model.
---@param path string
---@return integer
function run.positions(path)
  local config, from = folder.config(path)
  return families.read(from, config).context
end

local function filled(text)
  return text ~= '' and text or nil
end

---@class ms.tools.FinetuneData
---@field all ms.data.Examples
---@field training ms.data.Examples
---@field validation ms.data.Examples?

--- Read and encode the examples. Ranks that are forked later share them.
---@param o table  flags
---@return ms.tools.FinetuneData
function run.data(o)
  local template = filled(o.template)
  if o.date then -- the format of a resumed run has the date of its beginning
    template = ms.data.chat(template or o.folder, { date = o.date })
  end
  local all = ms.data.Examples {
    path = o.data, tokenizer = o.folder, context = o.context, template = template,
    learn = o.learn, too_long = filled(o['too-long']),
  }
  local training, validation = all, nil
  if o.validation > 0 then
    training, validation = all:split { validation = o.validation, seed = o.seed }
  end
  return { all = all, training = training, validation = validation }
end

local SAMPLED = 256 -- rows of the embedding

--- Is the row of a token in the embedding much smaller than others? Then it was never trained, as
--- end-of-turn tokens of base models are not.
---@param path string  of the folder
---@param id integer
---@return boolean
function run.is_untrained(path, id)
  local config, from = folder.config(path)
  local names, files = families.of(from, config).names, WeightFiles(path)
  local name = names.embedding .. '.weight'
  name = files:has(name) and name or names.body .. '.' .. name
  if not files:has(name) then -- a tied head alone
    return false
  end
  local shape = files:shape(name)
  local function norm(row)
    return files:slice(name, row * shape[2], shape[2]):to('f32'):norm():item()
  end
  local norms, n = {}, math.min(SAMPLED, shape[1])
  for k = 1, n do
    norms[k] = norm(math.floor((k - 1) * shape[1] / n))
  end
  table.sort(norms)
  local own = norm(id)
  files:close()
  return own < norms[math.ceil(n / 2)] / 4
end

---@param o table
---@param plan ms.tools.FinetunePlan
---@param set ms.tools.FinetuneData
---@param group? ms.dist.Group  default: all ranks
---@return ms.data.PackedLoader training, ms.data.PackedLoader validation  the training examples if
---  there is no validation set
function run.loaders(o, plan, set, group)
  local function loader(examples)
    return ms.data.PackedLoader {
      examples = examples, batch = plan.rows, micro_batches = plan.micro_batches, seed = o.seed,
      packed = not o['no-pack'], process_group = group,
    }
  end
  return loader(set.training), loader(set.validation or set.training)
end

--- The dtype of the computation. Products of bf16 that the processor computes in f32 gain nothing.
function run.dtype(o)
  if o.dtype ~= 'auto' then
    return o.dtype
  end
  local name = ms.matmul_name 'bf16'
  return (name:find('fp32 by', 1, true) or name:find('own', 1, true)) and 'f32' or 'bf16'
end

local function is_layer(module)
  return ms.is(module, ms.models.DecoderLayer)
end

-- Each layer is a unit. Adapters are units of their own: the weights are frozen, and bf16.
local function sharder(o, group)
  local opts = {
    mesh = group and meshes.of_groups { group } or nil,
    mp_policy = { param_dtype = run.dtype(o), reduce_dtype = 'f32' },
  }
  return function(model)
    for _, layer in ipairs(model:modules()) do
      if is_layer(layer) then
        if o.lora then
          fsdp.fully_shard(ms.models.adapters(layer), opts)
        end
        fsdp.fully_shard(layer, opts)
      end
    end
    fsdp.fully_shard(model, opts)
  end
end

--- A sharded model.
---@param path string  of the folder
---@param o table
---@param its? string|table  its adapter: see from_pretrained()
---@param group? ms.dist.Group
---@return ms.models.Decoder
function run.load(path, o, its, group)
  return ms.models.from_pretrained(path, {
    dtype = o.lora and 'bf16' or 'f32', adapter = its,
    wrap = sharder(util.merged(o, { lora = its ~= nil }), group),
  })
end

--- The model to train, and its optimizer.
---@param o table
---@param plan ms.tools.FinetunePlan
---@param group? ms.dist.Group
---@return ms.models.Decoder, ms.optim.Optimizer
function run.model(o, plan, group)
  ms.manual_seed(o.seed)
  local model = run.load(o.folder, o, o.lora and {
    r = o.rank, alpha = o.alpha, dropout = o['lora-dropout'],
  } or nil, group)
  if plan.checkpointing then
    nn.checkpoint(model, { policy = is_layer })
  end
  local matrices, vectors = {}, {}
  for _, p in ipairs(model:named_parameters()) do
    if p.tensor:requires_grad() then
      table.insert(#p.shape >= 2 and matrices or vectors, p.tensor)
    end
  end
  local groups = { { params = matrices, weight_decay = o['weight-decay'] } }
  if vectors[1] then
    groups[2] = { params = vectors, weight_decay = 0 }
  end
  return model, ms.optim.AdamW(groups, { lr = o.lr })
end

--- The options of ms.train that a plan and a run share.
---@return ms.train.Options
function run.options(o, plan, model, opt, training, validation)
  local warmup = math.min(plan.steps, math.ceil(o.warmup * plan.steps))
  return {
    model = model, optimizer = opt, data = training, validation = validation, clip = o.clip,
    steps = plan.steps,
    schedule = ms.schedule.cosine { lr = o.lr, total = plan.steps, warmup = warmup },
  }
end

-- -- the result ----------------------------------------------------------------------------------

local DTYPES = { float32 = 'f32', float16 = 'f16', bfloat16 = 'bf16' }

-- The dtype of saved weights: by default that of the folder's config.
local function saved_dtype(o)
  local config = folder.config(o.folder)
  return o['save-dtype'] ~= 'auto' and o['save-dtype'] or DTYPES[config.dtype]
    or DTYPES[config.torch_dtype] or 'f32'
end

-- Give a folder the chat format that the model was trained with, if its source has none.
local function write_template(o, chat, path)
  local text = chat and not chats.template_of(o.folder) and chat:template()
  if text then
    text_files.write(path .. '/chat_template.jinja', text .. '\n')
  end
end

local function save(o, model, chat, is_first)
  local merged = o.merge and o.out .. '/merged' or nil
  if o.lora then
    model:save_adapter(o.out)
  end
  if merged or not o.lora then
    model:save_pretrained(merged or o.out, { dtype = saved_dtype(o), merge = o.merge or nil })
  end
  for _, path in ipairs(is_first and { o.out, merged } or {}) do
    write_template(o, chat, path)
  end
end

local ROUNDING = 1e-3 -- the relative change of perplexity that is worth a line

-- Logits of a micro-batch of validation.
local function logits_of(model, loader)
  model:eval()
  return ms.no_grad(function()
    local ids, _, positions = loader:peek()
    return ms.keep(model(ids, nil, { positions = positions }):to 'f32')
  end)
end

-- Load what was written, and compare it with the model that was trained: rows of the table, and
-- lines below it.
local function read_back(o, validation, trained, after)
  local rows, notes = {}, {}
  local function add(label, model, is_rounded)
    local loss = ms.train.evaluate(model, validation)
    local far = (logits_of(model, validation) - trained):abs():max():item()
    rows[#rows + 1] = { label, ('%.3f'):format(math.exp(loss)), ('%.2g'):format(far) }
    local change = math.abs(math.exp(loss - after) - 1)
    if is_rounded and change > ROUNDING then
      notes[#notes + 1] = ("'%s': the perplexity differs by %.2g %% from the trained model's, as "
        .. 'the weights were rounded to %s; --save-dtype=f32 keeps them'):format(label,
        100 * change, saved_dtype(o))
    end
  end
  if not o.lora then
    add('folder, read back', run.load(o.out, o), saved_dtype(o) ~= 'f32')
    return rows, notes
  end
  local model = run.load(o.folder, o, o.out)
  add('base and adapter, read back', model)
  if not o.merge then
    adapter.fold(model)
    add('merged in memory', model)
    return rows, notes
  end
  model = nil -- luacheck: ignore
  ms.collect()
  add('merged, read back', run.load(o.out .. '/merged', o), saved_dtype(o) ~= 'f32')
  return rows, notes
end

--- Train, save and compare. Forks the ranks.
---@param o table
---@param set ms.tools.FinetuneData
---@param plan ms.tools.FinetunePlan
---@param config table  kept in checkpoints
function run.train(o, set, plan, config)
  local world = ms.dist.init { ranks = o.ranks }
  local first = world.rank == 0
  local model, opt = run.model(o, plan)
  local training, validation = run.loaders(o, plan, set)
  local before = not o.resume and ms.train.evaluate(model, validation)
  local options = run.options(o, plan, model, opt, training, validation)
  local result = ms.train(util.merged(options, {
    out = o.out, resume = o.resume, save_every = o.save, log_every = o.log,
    config = config, save_frozen = not o.lora,
  }))
  if result.stopped then
    ms.dist.exit(128 + result.stopped)
  end
  -- A run that was complete when it was resumed validates nothing.
  local after = result.validation_loss or ms.train.evaluate(model, validation)
  local peak = ms.memory().peak_total
  save(o, model, set.all.chat, first)
  local trained = logits_of(model, validation)
  model, opt, options, result = nil, nil, nil, nil -- luacheck: ignore
  ms.collect()
  local rows = {
    { 'model', 'perplexity', 'largest difference of logits' },
    { 'before', before and ('%.3f'):format(math.exp(before)) or '-', '' },
    { 'after', ('%.3f'):format(math.exp(after)), '' },
  }
  local more, notes = read_back(o, validation, trained, after)
  for _, row in ipairs(more) do
    rows[#rows + 1] = row
  end
  if first then
    print(report.table(rows))
    for _, note in ipairs(notes) do
      print(note)
    end
    print(('peak memory %s a rank, planned %s; %s is in %s'):format(report.bytes(peak),
      report.bytes(plan.peak), o.lora and 'the adapter' or 'the model', o.out))
  end
  ms.dist.exit(0)
end

return run
