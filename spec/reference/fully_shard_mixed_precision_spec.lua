-- test_fully_shard_mixed_precision.py

describe('TestMixedPrecision', function()
  pending('test_float16_cast_forward', 'fsdp.composable')
end)
