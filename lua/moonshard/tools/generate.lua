--- `moonshard generate FOLDER PROMPT...`: text of a model from a folder, with an adapter if one is
--- given.

local flags = require 'moonshard.tools.flags'
local ms = require 'moonshard'

local FLAGS = {
  { 'adapter', '', 'folder of a low-rank adapter' },
  { 'n', 200, 'most tokens', { whole = true, from = 1 } },
  { 'temperature', 0.7, 'of sampling; 0: the most likely token', { from = 0 } },
  { 'top-k', 0, 'sample from this many most likely tokens (0: all)', { whole = true, from = 0 } },
  { 'top-p', 1, 'then from the most likely ones that reach this probability', { above = 0 } },
  { 'min-p', 0, 'then from those at least this times as likely as the most likely one',
    { from = 0, below = 1 } },
  { 'repetition-penalty', 1, 'divides logits of tokens that occurred', { above = 0 } },
  { 'chat', false, 'the prompt is the message of a user, and the answer is generated' },
  { 'system', '', 'with --chat: the system message' },
  { 'template', '', "with --chat: its format (default: the folder's, if it is known)" },
  { 'seed', -1, 'equal seeds give equal text (-1: another text each time)',
    { whole = true, from = -1 } },
  { 'dtype', 'f32', 'of the weights and the computation: f32 or bf16',
    { one_of = { 'f32', 'bf16' } } },
  flags.device,
  { 'help', false, 'this text' },
}

local ABOUT = 'Continues each prompt with a model of a folder.'

local generate = {}

local function parsed(words)
  local o = flags.command(words, FLAGS, 'generate FOLDER PROMPT... [flags]', ABOUT)
  if not o then
    return nil
  end
  o.folder, o.prompts = o.rest[1], { unpack(o.rest, 2) }
  if not o.prompts[1] then
    ms.error('ValueError', 'generate: expected a folder of a model and a prompt, got %s',
      o.folder and 'no prompt' or 'neither')
  end
  return o
end

-- Ids of a prompt, and the token that ends an answer if it is one of a chat.
local function encoded(o, tok, prompt)
  if not o.chat then
    return tok:encode(prompt)
  end
  local chat = ms.data.chat(o.template ~= '' and o.template or o.folder)
  local messages = { { role = 'user', content = prompt } }
  if o.system ~= '' then
    table.insert(messages, 1, { role = 'system', content = o.system })
  end
  return chat:encode(tok, chat:prompt(messages)), tok:id(chat.close)
end

-- The ends of the model's configuration, and that of the chat format.
local function ends_of(model, close)
  if not close then
    return nil
  end
  local ends = { close }
  for id in pairs(require('moonshard.models.generation_config').ends(model)) do
    ends[#ends + 1] = id -- a set
  end
  return ends
end

local function write(o, tok, model, prompt)
  local ids, close = encoded(o, tok, prompt)
  if not o.chat then
    io.stdout:write(prompt)
  end
  local stream = tok:stream()
  model:generate(ids, o.n, {
    temperature = o.temperature, top_k = o['top-k'], top_p = o['top-p'], min_p = o['min-p'],
    repetition_penalty = o['repetition-penalty'], eos = ends_of(model, close),
    on_token = function(id)
      io.stdout:write(stream:add(id))
      io.stdout:flush()
    end,
    seed = o.seed >= 0 and o.seed or nil,
  })
  io.stdout:write(stream:finish(), '\n')
end

--- Run the command.
---@param words string[]  after `generate`
---@return integer exit_code
function generate.main(words)
  local o = parsed(words)
  if not o then
    return 0
  end
  local tok = ms.data.Tokenizer(o.folder)
  local model = ms.models.from_pretrained(o.folder, {
    dtype = o.dtype, adapter = o.adapter ~= '' and o.adapter or nil,
  })
  if o.seed < 0 then
    ms.manual_seed(math.floor(ms.time() * 1e6) % 2 ^ 52)
  end
  for i, prompt in ipairs(o.prompts) do
    io.stdout:write(i > 1 and '\n' or '')
    write(o, tok, model, prompt)
  end
  return 0
end

return generate
