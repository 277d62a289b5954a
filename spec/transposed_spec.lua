-- kernels/cpu/tile.c: operands that are dense in another dimension than the result
local ms = require 'moonshard'

describe('a transposed operand', function()
  for _, dtype in ipairs { 'f32', 'f64', 'bf16', 'f16', 'i64', 'i32', 'u8', 'bool' } do
    it('is read right: ' .. dtype, function()
      ms.manual_seed(1)
      for _, size in ipairs { { 3, 5 }, { 130, 17 }, { 16, 128 }, { 300, 70 }, { 1, 9 } } do
        local x = (ms.randn(size[2], size[1]) * 50):to(dtype)
        local dense = x:t():contiguous()
        local rows, cols = x:totable(), dense:totable()
        for i = 1, size[2] do
          for j = 1, size[1] do
            assert.equal(rows[i][j], cols[j][i])
          end
        end
        assert.is_true(ms.equal(dense:to('f32'), x:t():to('f32')))
        assert.is_true(ms.equal(dense:to('f64') + 1, x:to('f64'):t() + ms.ones(1, size[2], {
          dtype = 'f64' })))
        assert.is_true(ms.equal(dense:eq(dense), x:t():eq(dense)))
        local four = ms.randn(2, size[1], 3, size[2]):to(dtype):permute(4, 3, 2, 1)
        assert.is_true(ms.equal(four:contiguous():permute(4, 3, 2, 1),
          four:permute(4, 3, 2, 1)))
      end
    end)
  end

  it('may exceed the caches', function()
    local x = ms.randn(700, 513)
    assert.is_true(ms.equal(x:t():contiguous():t(), x))
  end)
end)
