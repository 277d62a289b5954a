-- lua/moonshard/surplus.lua: arguments that nobody would look at; spec/misuse_spec.lua tries all
-- public functions
local ms = require 'moonshard'
local checks = require 'support.checks'

describe('a surplus argument', function()
  local x = ms.ones(2, 3)
  local layer = ms.nn.Linear(3, 2)

  it('is refused by functions, with the names of those they take', function()
    for text, call in pairs {
      ['ms.full(sizes, value, opts): a number is one argument too many'] = function()
        ms.full({ 2 }, 1, {}, 3)
      end,
      ['ms.ops.sum(x, over, keepdim): a table is one argument too many'] = function()
        ms.ops.sum(x, 1, true, { dtype = 'f64' })
      end,
      ['ms.ops.exp(x): a tensor is one argument too many'] = function() ms.ops.exp(x, x) end,
      ['ms.time(): a string is one argument too many'] = function() ms.time 'now' end,
      ['schedule.constant(opts): a number'] = function()
        ms.schedule.constant({ lr = 1 }, 2)
      end,
    } do
      checks.raises('TypeError', text, call)
    end
  end)

  it('is refused by methods, the object not counted', function()
    for text, call in pairs {
      ['t:sum(over, keepdim): a number is one argument too many'] = function()
        x:sum(1, true, 3)
      end,
      ['t:item(): a boolean is one argument too many'] = function() x:item(true) end,
      ['Module:train(mode): a number'] = function() layer:train(true, 1) end,
      ['Optimizer:step(): a function'] = function()
        ms.optim.SGD(layer:parameters()):step(print)
      end,
    } do
      checks.raises('TypeError', text, call)
    end
  end)

  it('is refused by constructors and layers', function()
    checks.raises('TypeError', 'nn.Linear(in_features, out_features, opts): a boolean is one '
      .. 'argument too many', ms.nn.Linear, 3, 2, {}, false)
    checks.raises('TypeError', 'nn.Linear(x): a tensor is one argument too many', layer, x, x)
    local Net = ms.class('my.Net', ms.nn.Module)
    checks.raises('TypeError', 'my.Net(): a number is one argument too many', Net, 3)
    function Net:init(width, ...)
      ms.nn.Module.init(self)
      self.width, self.rest = width, select('#', ...)
    end
    assert.equal(2, Net(1, 2, 3).rest)
  end)

  it('that a colon gives is told as one, whatever follows', function()
    for name, call in pairs {
      ['ms.tensor'] = function() ms:tensor { 1 } end,
      ['ms.matmul'] = function() ms:matmul(x, x) end,
      ['ms.is_grad_enabled'] = function() ms:is_grad_enabled() end,
      ['nn.Linear'] = function() ms.nn:Linear(3, 2) end,
      ['optim.SGD'] = function() ms.optim:SGD(layer:parameters(), { lr = 1 }) end,
    } do
      checks.raises('TypeError', ('%s is no method: write %s(...), with a dot'):format(name, name),
        call)
    end
    for problem, call in pairs { -- functions of any number of arguments have no wrapper
      ["zeros: size ms itself (given by a colon; write a dot) of dimension 1 is"] =
        function() ms:zeros(2, 3) end,
      ["no_grad: 'fn' is ms itself (given by a colon; write a dot), expected"] =
        function() ms:no_grad(print) end,
      ["dist.spawn: 'ranks' is dist itself (given by a colon; write a dot), expected"] =
        function() ms.dist:spawn(2, print) end,
    } do
      checks.raises('TypeError', problem, call)
    end
  end)

  it('may be nil', function()
    assert.same({ 2, 2, 2 }, x:sum(1, false, nil):totable())
    assert.same({ 2, 3 }, x:shape(nil))
    assert.equal(3, ms.nn.Linear(3, 2, nil, nil).in_features)
  end)

  it('goes on where a function passes its arguments on', function()
    assert.equal(6, (ms.scope(function(...) return select('#', ...) end, 1, 2, 3, 4, 5, 6)))
    assert.equal(3, ms.no_grad(function(_, _, c) return c end, 1, 2, 3))
  end)
end)
