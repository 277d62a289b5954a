-- names that do not exist, and arguments of the wrong kind
local ms = require 'moonshard'
local checks = require 'support.checks'

local function get(object, name)
  return object[name]
end

describe('a name that does not exist', function()
  it('raises with the nearest one', function()
    local opt = ms.optim.SGD(ms.nn.Linear(2, 2):parameters(), { lr = 1 })
    for _, case in ipairs {
      { ms, 'zeroes', "ms has no 'zeroes', did you mean 'zeros'?" },
      { ms.nn, 'Liner', "nn has no 'Liner', did you mean 'Linear'?" },
      { ms.optim, 'AdamX', "optim has no 'AdamX', did you mean 'Adam'?" },
      { ms.dist, 'barier', "dist has no 'barier', did you mean 'barrier'?" },
      { ms.ones(2), 'summ', "a tensor has no 'summ', did you mean 'sum'?" },
      { opt.param_groups[1], 'lrr', "a parameter group has no 'lrr', did you mean 'lr'?" },
    } do
      checks.raises('KeyError', case[3], get, case[1], case[2])
    end
  end)

  it('raises without one where none is near', function()
    local err = checks.raises('KeyError', "ms.ops has no 'xylophone'", get, ms.ops, 'xylophone')
    assert.is_nil(err.message:find('did you mean', 1, true))
    checks.raises('KeyError', "fsdp has no 'DataParallelMeshDims'", get, ms.fsdp,
      'DataParallelMeshDims')
    checks.raises('KeyError', "ms has no '1'", get, ms, 1)
  end)

  it('is an unknown option, with the nearest one', function()
    checks.raises('ValueError', "optim.SGD: unknown option 'momentumm', did you mean 'momentum'?",
      ms.optim.SGD, { ms.ones(1) }, { lr = 1, momentumm = 1 })
  end)
end)

describe('an argument of the wrong kind', function()
  it('raises with the function, the argument, what was found and what was expected', function()
    checks.raises('TypeError', "nn.Linear: 'in_features' is a string, expected a whole number",
      ms.nn.Linear, 'a', 2)
    checks.raises('TypeError', "nn.Linear: 'out_features' is nil, expected a whole number",
      ms.nn.Linear, 2)
    checks.raises('TypeError', "matmul: 'b' is a number, expected a tensor", ms.ops.matmul,
      ms.ones(2, 2), 3)
    checks.raises('TypeError', "no_grad: 'fn' is a number, expected a function", ms.no_grad, 3)
  end)

  it('may be the table that a colon gives', function()
    checks.raises('TypeError', "nn.Linear: 'in_features' is nn itself (given by a colon; write a "
      .. 'dot), expected a whole number', function() return ms.nn:Linear(2, 2) end)
  end)

  it('may be a list where options belong', function()
    local params = ms.nn.Linear(2, 2):parameters()
    checks.raises('TypeError', 'optim.AdamW: options are a list with entry 1, expected a table of '
      .. 'lr, betas', ms.optim.AdamW, { lr = 1 }, params)
  end)
end)
