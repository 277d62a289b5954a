--- Tensor parallelism: layers of a model are divided among the ranks of one dimension of a mesh.

local namespace = require 'moonshard.base.namespace'
local styles = require 'moonshard.parallel.styles'

return namespace.space('parallel', {
  parallelize = require('moonshard.parallel.parallelize').parallelize,
  ColwiseParallel = styles.ColwiseParallel,
  RowwiseParallel = styles.RowwiseParallel,
  SequenceParallel = styles.SequenceParallel,
})
