dofile((arg[0]:match('^(.*)/') or '.') .. '/setup.lua')

--- Writes text with a model that examples/train.lua saved.
---
---   luajit examples/sample.lua train-out --prompt "In the beginning"
---
--- CHECKPOINT is a checkpoint's folder, or a training run's --out (its newest is taken). Runs on
--- one core.

local ms = require 'moonshard'
local flags = require 'moonshard.tools.flags'

local spec = {
  { 'prompt', 'In the beginning', 'how the text begins', { filled = true } },
  { 'length', 400, 'bytes to write', { whole = true, from = 0 } },
  { 'temperature', 0.8, 'of sampling; 0 takes the likeliest byte', { from = 0 } },
  { 'top-k', 40, 'most likely bytes sampled from (0: all)', { whole = true, from = 0 } },
  flags.device,
  { 'seed', 1, 'equal seeds write equal text', { whole = true, from = 0 } },
  { 'help', false, 'this text' },
}

local function fail(message)
  io.stderr:write('sample: ', message, '\n')
  os.exit(2)
end

local o, mistake = flags.parse(arg, spec)
if not o then
  fail(mistake)
elseif o.help then
  print(flags.help(spec, 'examples/sample.lua CHECKPOINT', 'Writes text with a trained model.'))
  os.exit(0)
end
local given = o.rest[1]
  or fail('which checkpoint? Give the --out of a training run, or a folder in it (--help)')
if o.rest[2] then
  fail(("unexpected word '%s' after the checkpoint (quote a prompt of several words)"):format(
    o.rest[2]))
end
local found, path = pcall(function()
  return ms.checkpoint.latest(given .. '/checkpoints') or ms.checkpoint.latest(given) or given
end)
if not found then
  fail(tostring(path))
end

local ok, meta = pcall(ms.checkpoint.read_meta, path)
if not ok then
  fail(('%s (luajit examples/train.lua --out=%s trains a model first)'):format(meta, given))
elseif type(meta.config) ~= 'table' then
  fail(path .. ' does not say what model it holds; examples/train.lua writes ones that do')
end
ms.manual_seed(tonumber(meta.seed)) -- nothing here depends on it, but loading warns of another one
meta.config.flags = nil -- what it was trained with
local made, model = pcall(ms.models.GPT, meta.config)
if not made then
  fail(('%s holds no model of examples/train.lua: %s'):format(path, tostring(model)))
end
local loaded, why = pcall(ms.checkpoint.load, path, { model = model })
if not loaded then
  fail(tostring(why))
end
io.write(o.prompt)
model:generate(ms.data.bytes(o.prompt), o.length, {
  temperature = o.temperature, top_k = o['top-k'], seed = o.seed,
  on_token = function(token)
    io.write(string.char(token))
    io.flush()
  end,
})
io.write('\n')
