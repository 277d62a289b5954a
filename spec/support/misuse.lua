--- luajit misuse.lua SEED COUNT PART PARTS PROGRESS
---
--- Calls every public function that has a signature wrongly: each argument in turn is each kind of
--- rubbish, each option too, one argument more, then COUNT random mixtures. What may not happen is
--- printed, one line each. The call being made stands in the file PROGRESS, so that a crash or a
--- hang is found.

local ms = require 'moonshard'
local B = require 'moonshard_ffi'
local signatures = require 'support.signatures'
local surface = require 'support.surface'

local seed, count, part, parts = tonumber(arg[1]), tonumber(arg[2]), tonumber(arg[3]),
  tonumber(arg[4])
local progress = assert(io.open(arg[5], 'w'))
local LARGE = 1e3 -- above it, a number of things to do is no misuse, only long

math.randomseed(seed + part * 1000003)

-- -- rubbish -------------------------------------------------------------------------------------

local function cyclic()
  local t = { 1 }
  t[1], t.self = t, t
  return t
end

local function released()
  local t = ms.rand(2, 3)
  t:release()
  return t
end

local rubbish = {
  { 'nil', function() return nil end },
  { 'true', function() return true end },
  { 'false', function() return false end },
  { "'abc'", function() return 'abc' end },
  { "''", function() return '' end },
  { "'3'", function() return '3' end },
  { 'a long string', function() return ('x'):rep(5000) end },
  { '1.5', function() return 1.5 end },
  { '-1', function() return -1 end },
  { '0', function() return 0 end },
  { '7', function() return 7 end },
  { '-2^31 - 1', function() return -2 ^ 31 - 1 end },
  { '2^53', function() return 2 ^ 53 end },
  { '2^63', function() return 2 ^ 63 end },
  { '1e300', function() return 1e300 end },
  { 'inf', function() return math.huge end },
  { '-inf', function() return -math.huge end },
  { 'nan', function() return 0 / 0 end },
  { '{}', function() return {} end },
  { '{ 1, 2 }', function() return { 1, 2 } end },
  { '{ -1, 1.5 }', function() return { -1, 1.5 } end },
  { "{ 'a' }", function() return { 'a' } end },
  { '{ {} }', function() return { {} } end },
  { '{ nope = 1 }', function() return { nope = 1 } end },
  { '{ 1, nope = 1 }', function() return { 1, nope = 1 } end },
  { '{ [1.5] = {} }', function() return { [1.5] = {} } end },
  { 'a cyclic table', cyclic },
  { 'a function', function() return function() end end },
  { 'a C function', function() return os.clock end },
  { 'a coroutine', function() return coroutine.create(function() end) end },
  { '5LL', function() return 5LL end },
  { 'a struct', function() return B.new('ms_memory_stats') end },
  { 'a pointer', function() return B.cast('void *', 16) end },
  { 'a userdata', function() return newproxy(true) end },
  { 'rand(2, 3)', function() return ms.rand(2, 3) end },
  { 'rand(7)', function() return ms.rand(7) end },
  { 'a scalar', function() return ms.ones {} end },
  { 'rand(0, 3)', function() return ms.rand(0, 3) end },
  { 'f64 (2, 3)', function() return ms.rand(2, 3, { dtype = 'f64' }) end },
  { 'i64 (2, 2)', function() return ms.tensor({ { 9, -9 }, { 1, 2 } }, { dtype = 'i64' }) end },
  { 'bool (2, 3)', function() return ms.rand(2, 3):gt(0.5) end },
  { 'a released tensor', released },
  { '{ a released tensor }', function() return { released() } end },
  { '{ rand(2), 3 }', function() return { ms.rand(2), 3 } end },
  { 'a module', function() return ms.nn.Linear(2, 2) end },
  { 'a class', function() return ms.nn.Linear end },
  { '{ a class }', function() return { ms.nn.Linear } end },
  { 'an optimizer', function()
    return ms.optim.SGD(ms.nn.Linear(2, 2):parameters(), { lr = 1 })
  end },
  { 'an error', function()
    return select(2, pcall(ms.error, 'ValueError', 'made by hand'))
  end },
}

local SURPLUS = { true, 7, { nope = 1 }, ms.ones(2) }

local function pick(list)
  return list[math.random(#list)]
end

-- -- watching ------------------------------------------------------------------------------------

local function told(problem, call, detail)
  print(('%s: %s: %s'):format(problem, call, tostring(detail):gsub('%s+', ' '):sub(1, 300)))
  io.flush()
end

local kinds = {}
for _, kind in ipairs(B.errors.kinds) do
  kinds[kind] = kind ~= 'InternalError' and kind ~= 'HookError'
end

local RAW = {
  'attempt to', 'bad argument', 'cannot convert', 'bad FFI', 'stack overflow',
  'argument check', 'not enough memory',
}

local function check_error(call, err, raises)
  if not ms.errors.is(err) then
    return told('raw', call, err)
  elseif raises then
    return
  elseif not kinds[err.kind] or type(err.message) ~= 'string' or #err.message < 8 then
    return told('untyped', call, err)
  end
  for _, text in ipairs(RAW) do
    if err.message:find(text, 1, true) then
      return told('raw', call, err)
    end
  end
end

local function check_state(call)
  if B.state.depth ~= 0 or B.C.ms_scope_depth() ~= 0 then
    told('state', call, 'a scope is left open')
    os.exit(1)
  elseif not ms.is_grad_enabled() then
    told('state', call, 'gradients are off')
    B.C.ms_grad_enabled_set(true)
  end
end

local function run(call, entry, args, n, wrong)
  local raises = signatures.raises[entry.name]
  progress:seek('set', 0)
  progress:write(call, '\n', (' '):rep(200), '\n')
  progress:flush()
  local ok, err = pcall(entry.fn, unpack(args, 1, n))
  if not ok then
    check_error(call, err, raises)
  elseif wrong and not raises then
    told('silent', call, 'nothing was raised')
  end
  check_state(call)
  return ok, err
end

--- A few steps of training: the bits they give say whether anything was left behind.
local function probe()
  ms.manual_seed(3)
  local model = ms.nn.Sequential(ms.nn.Linear(4, 8), ms.nn.GELU(), ms.nn.LayerNorm(8),
    ms.nn.Linear(8, 2))
  local opt = ms.optim.AdamW(model:parameters(), { lr = 1e-2 })
  for i = 1, 3 do
    local loss = ms.ops.mse_loss(model(ms.randn(5, 4, { seed = i })), ms.randn(5, 2, { seed = -i }))
    loss:backward()
    opt:step()
    opt:zero_grad()
  end
  local text = {}
  for i, p in ipairs(model:parameters()) do
    text[i] = p:hash()
  end
  return table.concat(text, ' ')
end

-- -- calls ---------------------------------------------------------------------------------------

local function values(arguments)
  local out = {}
  for i, a in ipairs(arguments) do
    out[i] = a.value
  end
  return out, #arguments
end

local function is_wrong(argument, value)
  if value == nil then -- a null pointer as well
    return not argument.optional
  end
  return not argument.may(value)
end

local function too_long(argument, value)
  return argument.bounded and type(value) == 'number' and math.abs(value) > LARGE
end

local function copy(t)
  local out = {}
  for key, value in pairs(t) do
    out[key] = value
  end
  return setmetatable(out, getmetatable(t))
end

local function wrong_options(entry, make, i, runnable)
  for name in pairs(make()[i].fields) do
    for _, junk in ipairs(rubbish) do
      local arguments = make()
      local args, n = values(arguments)
      local field, value = arguments[i].fields[name], junk[2]()
      args[i] = copy(args[i])
      args[i][name] = value
      local wrong = is_wrong(field, value)
      if (runnable or wrong) and not too_long(field, value) then
        run(('%s, argument %d, %s = %s'):format(entry.name, i, name, junk[1]), entry, args, n,
          wrong)
      end
    end
  end
end

local function each_argument(entry, make, runnable)
  for i, argument in ipairs(make()) do
    for _, junk in ipairs(argument.fixed and {} or rubbish) do
      local arguments = make()
      local args, n = values(arguments)
      local value = junk[2]()
      args[i] = value
      local wrong = is_wrong(arguments[i], value)
      if (runnable or wrong) and not too_long(argument, value) then
        run(('%s, argument %d = %s'):format(entry.name, i, junk[1]), entry, args, n, wrong)
      end
    end
    if argument.fields then
      wrong_options(entry, make, i, runnable)
    end
    if runnable and not argument.fixed then -- and left out with all after it
      local arguments = make()
      run(('%s with %d arguments'):format(entry.name, i - 1), entry, (values(arguments)), i - 1,
        is_wrong(arguments[i], nil))
    end
  end
end

-- One argument more than the function takes, unless it passes on what it is given.
local function one_more(entry, make)
  for i = 1, signatures.passes_on[entry.name] and 0 or #SURPLUS do
    local args, n = values(make())
    args[n + 1] = SURPLUS[i]
    run(('%s, and argument %d = %s'):format(entry.name, n + 1, tostring(SURPLUS[i])), entry, args,
      n + 1, true)
  end
end

local function mixtures(entry, make)
  for _ = 1, count do
    local arguments = make()
    local args, n = values(arguments)
    local names, long = {}, false
    for i = 1, n do
      if math.random() < 0.5 and not arguments[i].fixed then
        local junk = pick(rubbish)
        args[i] = junk[2]()
        names[#names + 1] = ('%d = %s'):format(i, junk[1])
        long = long or too_long(arguments[i], args[i])
      end
    end
    local i, j = math.random(math.max(n, 1)), math.random(math.max(n, 1))
    if n > 1 and math.random() < 0.3 and not arguments[i].fixed and not arguments[j].fixed then
      args[i], args[j] = args[j], args[i]
      names[#names + 1] = ('%d and %d swapped'):format(i, j)
      long = long or too_long(arguments[i], args[i]) or too_long(arguments[j], args[j])
    end
    if not long then
      run(('%s, arguments %s'):format(entry.name, table.concat(names, ', ')), entry, args, n, false)
    end
  end
end

local function misuse(entry)
  local make = signatures.of[entry.name]
  local runnable = not signatures.ends_something[entry.name]
  if runnable then
    local args, n = values(make())
    local ok, err = run(entry.name .. ', called rightly', entry, args, n, false)
    if not ok and not signatures.raises[entry.name] then
      told('refused', entry.name, err)
    end
  end
  each_argument(entry, make, runnable)
  one_more(entry, make)
  if runnable then
    mixtures(entry, make)
  end
end

ms.dist.init { ranks = 1 }
local expected = probe()
for i, entry in ipairs(surface.entries()) do
  if i % parts == part and signatures.of[entry.name] then
    ms.capture_warnings(misuse, entry)
    if probe() ~= expected then
      told('state', entry.name, 'training gives other bits afterwards')
    end
  end
end
print 'done'
B.C.ms_dist_exit(0)
