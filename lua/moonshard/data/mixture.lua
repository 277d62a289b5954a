--- Token streams mixed by weight.

local TokenFile = require 'moonshard.data.token_file'
local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local parameter = require 'moonshard_ffi.parameter'
local runtime = require 'moonshard_ffi.data'
local util = require 'moonshard.base.util'

--- Token streams from which data.Loader takes windows in the proportion of their weights. Which
--- stream a sample comes from depends only on its number and the weights: of the first n samples a
--- stream has its share of n, off by less than the number of streams. Each stream is read in an
--- order of its own, once before any window repeats. An epoch has as many samples as all streams
--- together have windows.
---
---   local code, web = ms.data.tokens 'code.bin', ms.data.tokens 'web.bin'
---   local loader = ms.data.Loader {
---     tokens = ms.data.Mixture { { code, 3 }, { web, 1 } }, batch = 8, context = 1024,
---   }
---@class ms.data.Mixture
---@overload fun(streams: { [1]: ms.Tensor|ms.data.TokenFile, [2]: number }[]): ms.data.Mixture
local Mixture = class('data.Mixture')

-- The tokens that the runtime reads.
local function ids_of(what, name, tokens)
  return util.is(tokens, TokenFile) and tokens._bytes or arguments.tensor(what, name, tokens)
end

---@param streams { [1]: ms.Tensor|ms.data.TokenFile, [2]: number }[]  tokens and weight of each
function Mixture:init(streams)
  self._ids, self._weights, self._counts = {}, {}, {}
  for k, stream in ipairs(arguments.array(self._name, 'streams', streams)) do
    local name = ('streams[%d]'):format(k)
    local weight = arguments.number(self._name, name .. '[2]',
      arguments.array(self._name, name, stream)[2])
    if not (weight > 0 and weight < math.huge) then
      errors.raise('ValueError', '%s: the weight of stream %d is %g, expected a positive number',
        self._name, k, weight)
    end
    self._ids[k], self._weights[k] = ids_of(self._name, name .. '[1]', stream[1]), weight
  end
  if #self._ids == 0 then
    errors.raise('ValueError', '%s: no streams, expected one at least', self._name)
  end
end

-- Number of windows of each stream.
local function counts_of(self, context)
  local counts = self._counts[context] or {}
  for k = #counts + 1, #self._ids do
    counts[k] = runtime.n_windows(self._ids[k], context)
    if counts[k] == 0 then
      errors.raise('ValueError', '%s: stream %d has no window of %d tokens', self._name, k, context)
    end
  end
  self._counts[context] = counts
  return counts
end

-- Number of windows of all streams.
function Mixture:_n_windows(context)
  local total = 0
  for _, n in ipairs(counts_of(self, context)) do
    total = total + n
  end
  return total
end

-- The stream of a sample, and the sample's number in it. The first stream has floor((i + 1) w) of
-- the samples 0 .. i, w being its share; the rest is divided in the same way.
local function stream_of(self, i)
  local weights, left = self._weights, 0
  for _, weight in ipairs(weights) do
    left = left + weight
  end
  for k = 1, #weights - 1 do
    local share = weights[k] / left
    local before, after = math.floor(i * share), math.floor((i + 1) * share)
    if after > before then
      return k, before
    end
    i, left = i - before, left - weights[k]
  end
  return #weights, i
end

-- Fill windows as runtime.windows() does.
function Mixture:_windows(x, y, sample, _, seed, shuffle)
  local counts = counts_of(self, x:size(2))
  for b = 1, x:size(1) do
    local k, i = stream_of(self, sample + b - 1)
    runtime.windows(x:narrow(1, b, 1), y:narrow(1, b, 1), self._ids[k], i, counts[k], seed,
      shuffle)
  end
  parameter.begin_samples(sample)
end

-- A hash of the streams and their weights.
function Mixture:_digest()
  local parts = {}
  for k, ids in ipairs(self._ids) do
    parts[k] = ('%.0f %.17g'):format(runtime.digest(ids), self._weights[k])
  end
  return runtime.hash(table.concat(parts, '\n'))
end

function Mixture:__tostring()
  local total, shares = 0, {}
  for _, weight in ipairs(self._weights) do
    total = total + weight
  end
  for k, weight in ipairs(self._weights) do
    shares[k] = ('%.3g%%'):format(100 * weight / total)
  end
  return ('Mixture(%s)'):format(table.concat(shares, ', '))
end

-- A single stream with the methods of a mixture.
local Stream = class('data.Stream')

function Stream:init(ids)
  self._ids = ids
end

function Stream:_n_windows(context)
  return runtime.n_windows(self._ids, context)
end

function Stream:_windows(x, y, ...)
  runtime.windows(x, y, self._ids, ...)
end

function Stream:_digest()
  return runtime.digest(self._ids)
end

-- The source of a loader's `tokens`.
function Mixture._source(what, tokens)
  return util.is(tokens, Mixture) and tokens or Stream(ids_of(what, 'tokens', tokens))
end

return Mixture
