--- Chat formats: the texts of conversations as models were trained on them.
---
--- Model folders have their format as a Jinja template. There is no Jinja engine here: a template
--- is recognized by the digest of its text, and its format is a row of FORMATS.

local arguments = require 'moonshard_ffi.arguments'
local chat_template = require 'moonshard.data.chat_template'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local json = require 'moonshard.base.json'
local runtime = require 'moonshard_ffi.data'
local util = require 'moonshard.base.util'

---@class ms.data.Segment
---@field text string
---@field learned boolean  the text of an answer or its end-of-turn token
---@field special boolean  text of the format that consists of special tokens. In other segments
---  text like '<|im_end|>' is no special token

---@class ms.data.Chat.Format
---@field header string[]  before each message: special tokens and text in turn; %s is the role
---@field close string  the end-of-turn token
---@field after? string  text after it
---@field bos? string
---@field trim? boolean  white space at both ends of messages is removed
---@field system? string  the system message of conversations without one
---@field dated? string|true  a system message with this date always begins (true: today)
---@field names? table<string, string>  roles by other names
---@field alternate? boolean  user and assistant take turns, without a system message
---@field thinks? boolean  '<think>' opens the last answer; earlier ones lose their thinking
---@field templates string[]  XXH3 of known templates without a line feed at the end

local function chatml(row)
  row.header, row.close, row.after = { '<|im_start|>', '%s\n' }, '<|im_end|>', '\n'
  return row
end

local function llama3(row)
  row.header = { '<|start_header_id|>', '%s', '<|end_header_id|>', '\n\n' }
  row.close, row.bos, row.trim = '<|eot_id|>', '<|begin_of_text|>', true
  return row
end

---@type table<string, ms.data.Chat.Format>
local FORMATS = {
  chatml = chatml {
    templates = { 'a04f41d813a07b13', '4c6e807ee5fe9f4a', 'da206a9e46a4ac01' },
  },
  qwen2 = chatml {
    system = 'You are a helpful assistant.', templates = { 'd5d943bd0bd9082f' },
  },
  ['qwen2.5'] = chatml {
    system = 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.',
    templates = { '2469c9508f79506e' },
  },
  qwen3 = chatml { thinks = true, templates = { 'c9e0155c80737cf2' } },
  ['qwen3-2507'] = chatml { templates = { '8fb5d937b1e8f5d0' } },
  smollm2 = chatml {
    system = 'You are a helpful AI assistant named SmolLM, trained by Hugging Face',
    templates = { '99ab995e9629dacd' },
  },
  llama3 = llama3 { templates = { '9799ad6e2dea0594' } },
  ['llama3.1'] = llama3 { dated = '26 Jul 2024', templates = { '6ca7779b7730196a' } },
  ['llama3.2'] = llama3 { dated = true, templates = { 'c3d57e38f5ff0756' } },
  gemma = {
    header = { '<start_of_turn>', '%s\n' }, close = '<end_of_turn>', after = '\n', bos = '<bos>',
    trim = true, names = { assistant = 'model' }, alternate = true,
    templates = { '2c2e86beabccd2a4' },
  },
}

--- A chat format. `data.chat()` makes it.
---@class ms.data.Chat
---@field name string
---@field close string  the end-of-turn token: generation stops at it
---@field bos? string  the token that begins conversations
---@field date? string  of formats with a date
local Chat = class('data.Chat')

---@param name string
---@param date? string
function Chat:init(name, date)
  local format = FORMATS[name]
  self.name, self.close, self.bos, self._format = name, format.close, format.bos, format
  if format.dated then
    self.date = date or format.dated == true and os.date '%d %b %Y' or format.dated
  end
end

-- Appends segments. Neighbours of the same kind become one, so that their text is encoded as in one
-- piece, like the text between two special tokens in other libraries.
local function append(list, text, learned, special)
  local last = list[#list]
  if text == '' then
    return
  elseif last and last.special == special and last.learned == learned then
    last.text = last.text .. text
  else
    list[#list + 1] = { text = text, learned = learned, special = special }
  end
end

local SPACES = { '\194\133', '\194\160', '\225\154\128', '\226\128[\128-\138\168\169\175]',
  '\226\129\159', '\227\128\128' }
local ASCII_SPACES = '[\t-\r\28-\31 ]+'

-- Without white space at the ends, as Python's str.strip().
local function trimmed(text)
  local before
  repeat
    before = text
    text = text:gsub('^' .. ASCII_SPACES, ''):gsub(ASCII_SPACES .. '$', '')
    for _, space in ipairs(SPACES) do
      text = text:gsub('^' .. space, ''):gsub(space .. '$', '')
    end
  until text == before
  return text
end

local function without_lines(text)
  return (text:gsub('^\n+', ''):gsub('\n+$', ''))
end

-- The parts of an answer before and after '</think>'.
local function thinking_of(message)
  local content = message.content
  if type(message.reasoning_content) == 'string' then
    return message.reasoning_content, content
  elseif not content:find('</think>', 1, true) then
    return '', content
  end
  local thinking = content:match '^(.-)</think>':gsub('\n+$', '')
  thinking = thinking:match '.*<think>(.*)$' or thinking
  return thinking:gsub('^\n+', ''), (content:match '.*</think>(.*)$':gsub('^\n+', ''))
end

local function append_turn(self, list, role, content, thinking)
  local format, learned = self._format, role == 'assistant'
  for k, text in ipairs(format.header) do
    append(list, text:format(format.names and format.names[role] or role), false, k % 2 == 1)
  end
  if thinking then
    append(list, '<think>', true, true)
    append(list, '\n' .. without_lines(thinking) .. '\n', true, false)
    append(list, '</think>', true, true)
    content = '\n\n' .. content:gsub('^\n+', '')
  end
  append(list, content, learned, false)
  append(list, format.close, learned, true)
  append(list, format.after or '', false, false)
end

local ROLES = { 'system', 'user', 'assistant' }

local function refuse(self, i, text, ...)
  errors.raise('ValueError', "chat format '%s': message %d " .. text, self.name, i, ...)
end

local function check(self, messages)
  local format = self._format
  for i, message in ipairs(arguments.list('chat', 'messages', messages)) do
    if type(message) ~= 'table' or type(message.role) ~= 'string'
      or type(message.content) ~= 'string' then
      refuse(self, i, "is not of the form { role = 'user', content = '...' }")
    elseif message.tool_calls ~= nil and message.tool_calls ~= json.null then
      refuse(self, i, 'calls tools, which is not supported')
    elseif message.role ~= ROLES[2] and message.role ~= ROLES[3]
      and (message.role ~= ROLES[1] or format.alternate) then
      refuse(self, i, "has the role '%s', expected one of %s", message.role:sub(1, 80),
        table.concat(ROLES, ', ', format.alternate and 2 or 1))
    elseif format.alternate and (message.role == 'user') ~= (i % 2 == 1) then
      refuse(self, i, "has the role '%s', expected user and assistant in turn", message.role)
    end
  end
  if #messages == 0 then
    errors.raise('ValueError', "chat format '%s': no messages, expected one at least", self.name)
  end
  return messages
end

-- The system message at the beginning, and the number of the first message after it.
local function opening(self, messages)
  local format, given = self._format, nil
  if messages[1].role == 'system' then
    given = format.trim and trimmed(messages[1].content) or messages[1].content
  end
  if format.dated then
    return ('Cutting Knowledge Date: December 2023\nToday Date: %s\n\n%s'):format(self.date,
      given or ''), given and 2 or 1
  end
  return given or format.system, given and 2 or 1
end

--- The segments of a conversation.
---@param messages { role: 'system'|'user'|'assistant', content: string, reasoning_content?: string
---  }[]  ValueError for other roles, and for roles that the format lacks
---@return ms.data.Segment[]
function Chat:segments(messages)
  check(self, messages)
  local list, format, last_query = {}, self._format, #messages
  append(list, format.bos or '', false, true)
  local system, first = opening(self, messages)
  if system then
    append_turn(self, list, 'system', system)
  end
  for i, message in ipairs(messages) do
    last_query = message.role == 'user' and i or last_query
  end
  for i = first, #messages do
    local message, thinking = messages[i], nil
    local content = format.trim and trimmed(message.content) or message.content
    if format.thinks and message.role == 'assistant' then
      thinking, content = thinking_of(message)
      thinking = i > last_query and (i == #messages or thinking ~= '') and thinking or nil
    end
    append_turn(self, list, message.role, content, thinking)
  end
  return list
end

--- The segments of a conversation and of the header of the next answer, for generation.
---@param messages { role: string, content: string }[]
---@return ms.data.Segment[]
function Chat:prompt(messages)
  local list, format = self:segments(messages), self._format
  for k, text in ipairs(format.header) do
    append(list, text:format(format.names and format.names.assistant or 'assistant'), false,
      k % 2 == 1)
  end
  return list
end

-- The special tokens of each message.
---@return string[]
function Chat:_tokens()
  local out = { self.close, self.bos }
  for k = 1, #self._format.header, 2 do
    out[#out + 1] = self._format.header[k]
  end
  return out
end

--- The ids of segments, and for each whether it is learned.
---@param tokenizer ms.data.Tokenizer
---@param segments ms.data.Segment[]
---@return integer[] ids, boolean[] learned
function Chat:encode(tokenizer, segments)
  local ids, learned = {}, {}
  for _, segment in ipairs(segments) do
    local part = tokenizer:encode(segment.text, {
      special = false, parse_special = segment.special,
    })
    for _, id in ipairs(part) do
      ids[#ids + 1], learned[#learned + 1] = id, segment.learned
    end
  end
  return ids, learned
end

--- The format as a Jinja template, which `transformers` renders to the same texts; nil for a format
--- that thinks.
---@return string?
function Chat:template()
  return chat_template(self._format)
end

function Chat:__tostring()
  return ("Chat('%s')"):format(self.name)
end

local function read(path)
  local file = io.open(path, 'rb')
  local text = file and file:read '*a'
  if file then
    file:close()
  end
  return text
end

--- The text of a folder's template, and its file; nil if it has none.
---@param folder string
---@return string? text, string file
local function template_of(folder)
  local file = folder .. '/chat_template.jinja'
  local text = read(file)
  if text then
    return text, file
  end
  file = folder .. '/tokenizer_config.json'
  text = read(file)
  local config = text and json.decode(text, file)
  local template = type(config) == 'table' and config.chat_template
  if type(template) == 'table' then -- several by name
    for _, entry in ipairs(template) do
      template = type(entry) == 'table' and entry.name == 'default' and entry.template or template
    end
  end
  return type(template) == 'string' and template or nil, file
end

-- A format whose template has the text. Formats with one text are equal.
local function recognized(text)
  text = text:gsub('\n$', '')
  local digest = runtime.hash(text)
  for _, name in ipairs(util.sorted_keys(FORMATS)) do
    local format = FORMATS[name]
    if text == chat_template(format) then
      return name
    end
    for _, known in ipairs(format.templates) do
      if known == digest then
        return name
      end
    end
  end
end

--- The chat format of a model's folder, or of a name: chatml, gemma, llama3, llama3.1, llama3.2,
--- qwen2, qwen2.5, qwen3, qwen3-2507 or smollm2. A folder's format is that of its
--- chat_template.jinja, or of chat_template in its tokenizer_config.json. ValueError if it is not
--- known.
---
---   local chat = ms.data.chat 'models/qwen'
---   local ids = chat:encode(tok, chat:prompt { { role = 'user', content = 'Hello' } })
---@param source string
---@param opts? { date?: string }  the date that Llama 3.1 and 3.2 see, like '26 Jul 2024' (default
---  for 3.1; for 3.2 today's). Keep `chat.date` for the next run: tokens depend on it
---@return ms.data.Chat
local function chat(source, opts)
  arguments.text('data.chat', 'source', source)
  opts = errors.options('data.chat', opts, { date = 'text' })
  local name = FORMATS[source] and source
  if not name then
    local text, file = template_of(source)
    name = text and recognized(text)
    if not name then
      errors.raise('ValueError', "data.chat: %s; give template = NAME, one of %s",
        text and ("the template in '%s' is not known"):format(file)
          or ("'%s' is not the name of a format or a folder with a template"):format(source),
        table.concat(util.sorted_keys(FORMATS), ', '))
    end
  end
  return Chat(name, opts.date)
end

return { chat = chat, Chat = Chat, template_of = template_of, _formats = FORMATS }
