--- A folder with a small random model and a tokenizer for conversations, and conversations.

local ms = require 'moonshard'
local runs = require 'support.runs'
local shell = require 'support.shell'

local small_model = {}

--- The template of SmolLM 2: ChatML with a system message of its own.
small_model.CHAT_TEMPLATE = ''
  .. "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' "
  .. "%}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
  .. "Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
  .. "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt "
  .. "%}{{ '<|im_start|>assistant\n' }}{% endif %}"

--- Make a folder with a Llama of two layers, a tokenizer of bytes with tokens of ChatML, and the
--- template above.
---@param folder string
---@param opts? { untrained?: boolean }  the embedding of the last token, <|im_end|>, is zero
function small_model.make(folder, opts)
  local file = ms.json.decode(shell.read 'tests/fixtures/tokens.json').cases.gpt2.file
  for _, token in ipairs { '<|im_start|>', '<|im_end|>' } do
    table.insert(file.added_tokens, {
      id = file.added_tokens[#file.added_tokens].id + 1, content = token, single_word = false,
      lstrip = false, rstrip = false, normalized = false, special = true,
    })
  end
  runs.alone(function()
    ms.manual_seed(3)
    local model = ms.models.Decoder {
      architectures = { 'LlamaForCausalLM' }, model_type = 'llama',
      vocab_size = file.added_tokens[#file.added_tokens].id + 1, hidden_size = 32,
      intermediate_size = 48, num_hidden_layers = 2, num_attention_heads = 4,
      num_key_value_heads = 2, max_position_embeddings = 256,
    }
    model:materialize()
    if opts and opts.untrained then
      ms.no_grad(function()
        local weight = model.model.embed_tokens.weight
        weight:narrow(1, weight:size(1), 1):zero_()
      end)
    end
    model:save_pretrained(folder)
    return true
  end)
  shell.write(folder .. '/tokenizer.json', ms.json.encode(file))
  shell.write(folder .. '/tokenizer_config.json', '{"eos_token":"<|im_end|>"}')
  shell.write(folder .. '/chat_template.jinja', small_model.CHAT_TEMPLATE)
end

--- Write 40 conversations as JSON lines.
---@param path string
function small_model.write_chats(path)
  local lines = {}
  for i = 1, 40 do
    lines[i] = ms.json.encode { messages = {
      { role = 'user', content = ('What follows %d?'):format(i) },
      { role = 'assistant', content = ('%d, and then %d.'):format(i + 1, i + 2) },
    } }
  end
  shell.write(path, table.concat(lines, '\n'))
end

return small_model
