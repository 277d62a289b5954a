--- The Jinja template of a chat format, for the folder of a model whose format its files lack.

-- A text in Jinja, in quotes.
local function quoted(text)
  return "'" .. text:gsub('[\\\']', '\\%0'):gsub('\n', '\\n') .. "'"
end

-- Expressions of a turn; `role` and `content` are expressions.
local function turn(format, role, content)
  local before, after = table.concat(format.header):match '^(.*)%%s(.*)$'
  return ('%s + %s + %s + %s + %s'):format(quoted(before), role, quoted(after), content,
    quoted(format.close .. (format.after or '')))
end

-- The system turn, and `turns`: the messages after it.
local function opening(format)
  local lines, trim = {}, format.trim and ' | trim' or ''
  local function add(text, ...)
    lines[#lines + 1] = text:format(...)
  end
  if not format.dated then
    add('{%%- set turns = messages %%}')
    if format.system then
      add("{%%- if messages[0]['role'] != 'system' %%}{{- %s }}{%%- endif %%}",
        turn(format, "'system'", quoted(format.system)))
    end
    return table.concat(lines, '\n')
  end
  add("{%%- if messages[0]['role'] == 'system' %%}")
  add("{%%- set system = messages[0]['content']%s %%}", trim)
  add('{%%- set turns = messages[1:] %%}')
  add('{%%- else %%}')
  add("{%%- set system = '' %%}")
  add('{%%- set turns = messages %%}')
  add('{%%- endif %%}')
  add('{%%- if date_string is not defined %%}{%%- set date_string = %s %%}{%%- endif %%}',
    format.dated == true and "strftime_now('%d %b %Y')" or quoted(format.dated))
  add('{{- %s }}', turn(format, "'system'",
    "'Cutting Knowledge Date: December 2023\\nToday Date: ' + date_string + '\\n\\n' + system"))
  return table.concat(lines, '\n')
end

---@param format ms.data.Chat.Format
---@return string?  nil for a format that thinks
return function(format)
  if format.thinks then
    return nil
  end
  local assistant = format.names and format.names.assistant or 'assistant'
  local role = assistant == 'assistant' and "message['role']"
    or ("(%s if message['role'] == 'assistant' else message['role'])"):format(quoted(assistant))
  local lines = { format.bos and ('{{- %s }}'):format(quoted(format.bos)) }
  lines[#lines + 1] = opening(format)
  lines[#lines + 1] = '{%- for message in turns %}'
  if format.alternate then
    lines[#lines + 1] = "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
      .. "{{- raise_exception('expected user and assistant in turn') }}{%- endif %}"
  end
  lines[#lines + 1] = ('{{- %s }}'):format(turn(format, role,
    "message['content']" .. (format.trim and ' | trim' or '')))
  lines[#lines + 1] = '{%- endfor %}'
  local before, after = table.concat(format.header):match '^(.*)%%s(.*)$'
  lines[#lines + 1] = ('{%%- if add_generation_prompt %%}{{- %s }}{%%- endif %%}'):format(
    quoted(before .. assistant .. after))
  return table.concat(lines, '\n')
end
