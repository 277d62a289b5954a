-- lua/moonshard/dist/mesh.lua: ranks laid out in dimensions, and FSDP along one of them.
local ms = require 'moonshard'
local checks = require 'support.checks'

local dist = ms.dist

local function text(group)
  return group and table.concat(group:ranks(), ' ')
end

describe('a mesh', function()
  it('has a group along each dimension', function()
    dist.spawn(4, function(rank)
      local mesh = dist.init_device_mesh('cpu', { 2, 2 }, { mesh_dim_names = { 'dp', 'tp' } })
      local row, column = math.floor(rank / 2), rank % 2
      assert.equal("DeviceMesh((dp=2, tp=2), 'cpu')", tostring(mesh))
      assert.same({ 2, 2, 2, 4, 2, 2 }, { mesh.ndim, mesh.shape[1], mesh.shape[2], mesh:size(),
        mesh:size(1), mesh:size 'tp' })
      assert.equal(rank, mesh:get_rank())
      assert.same({ row, column }, mesh:get_coordinate())
      assert.same({ row, column, column }, { mesh:get_local_rank(1), mesh:get_local_rank 'tp',
        mesh['tp']:get_local_rank() })
      assert.equal(('%d %d'):format(column, column + 2), text(mesh:get_group 'dp'))
      assert.equal(('%d %d'):format(2 * row, 2 * row + 1), text(mesh:get_group(2)))
      assert.equal(text(mesh['dp']:get_group()), text(mesh:get_all_groups()[1]))
      assert.equal(mesh.tp, mesh['tp'])
      assert.equal(10 ^ column + 10 ^ (column + 2),
        dist.all_reduce(ms.full({ 1 }, 10 ^ rank), mesh:get_group 'dp'):item())
      checks.raises('RuntimeError', "get_group: the DeviceMesh has 2 dimensions; 'mesh_dim' needs",
        mesh.get_group, mesh)
      checks.raises('KeyError', "Invalid mesh_dim_name 'pp' specified. Valid mesh_dim_names are "
        .. '{dp, tp}', mesh.get_group, mesh, 'pp')
      checks.raises('KeyError', "Invalid mesh_dim_name 'pp'", function() return mesh['pp'] end)
      checks.raises('IndexError', "'mesh_dim' is 3, expected 1 to 2", mesh.size, mesh, 3)
      checks.raises('KeyError', "takes no field 'x'", function() mesh.x = 1 end)
    end)
  end)

  it('can be sliced by several names', function()
    dist.spawn(4, function(rank)
      local names = { mesh_dim_names = { 'pp', 'dp', 'tp' } }
      local mesh = dist.init_device_mesh('cpu', { 2, 1, 2 }, names)
      local part = mesh[{ 'pp', 'tp' }]
      assert.equal("DeviceMesh((pp=2, tp=2), 'cpu')", tostring(part))
      assert.same({ math.floor(rank / 2), rank % 2 }, part:get_coordinate())
      assert.equal(text(mesh:get_group 'tp'), text(part:get_group(2)))
      assert.equal(text(mesh:get_group 'pp'), text(part['pp']:get_group()))
      assert.equal(tostring(rank), text(mesh['dp']:get_group()))
      checks.raises('KeyError', "'pp' comes after a later dimension", function()
        return mesh[{ 'tp', 'pp' }]
      end)
    end)
  end)

  it('may leave ranks out', function()
    dist.spawn(3, function(rank)
      local mesh = dist.init_device_mesh('cpu', { 2 })
      assert.equal(2, mesh:size())
      assert.equal(rank < 2 and '0 1' or false, text(mesh:get_group()))
      assert.same(rank < 2 and { rank } or nil, mesh:get_coordinate())
      if rank == 2 then
        checks.raises('RuntimeError', 'get_local_rank: this rank is outside the mesh',
          mesh.get_local_rank, mesh)
      end
      checks.raises('RuntimeError', 'Cannot slice a DeviceMesh without mesh_dim_names!', function()
        return mesh[{ 'dp' }]
      end)
      checks.raises('KeyError', "a DeviceMesh without mesh_dim_names has no 'dp'", function()
        return mesh['dp']
      end)
    end)
  end)

  it('of one dimension over all ranks uses the group of all ranks', function()
    dist.spawn(2, function()
      assert.equal(dist.world(), dist.init_device_mesh('cpu', { 2 }):get_group())
    end)
  end)

  it('refuses wrong shapes, names and devices', function()
    dist.spawn(2, function()
      local try = dist.init_device_mesh
      for _, case in ipairs {
        { 'RuntimeError', 'Mesh should not be bigger than default world size 2, but found 4 ranks!',
          'cpu', { 2, 2 } },
        { 'RuntimeError', 'Found len(mesh_dim_names): 1 and len(mesh_shape): 2.', 'cpu', { 2, 1 },
          { 'dp' } },
        { 'RuntimeError', "Each mesh_dim_name must be unique. Found repeated mesh_dim_name 'dp'",
          'cpu', { 2, 1 }, { 'dp', 'dp' } },
        { 'ValueError', "a dimension cannot be called 'size'", 'cpu', { 2 }, { 'size' } },
        { 'TypeError', "'mesh_shape' is a number, expected a list of sizes", 'cpu', 2 },
        { 'ValueError', "device = 'tpu', expected 'cpu' or 'cuda'", 'tpu', { 2 } },
      } do
        checks.raises(case[1], case[2], try, case[3], case[4],
          case[5] and { mesh_dim_names = case[5] })
      end
    end)
  end)

  it('fails when ranks ask for different shapes', function()
    checks.raises('CommError', 'the ranks differ: shape of init_device_mesh is 2 1 on rank 0 and '
      .. '1 2 on rank 1', dist.spawn, 2, function(rank)
      dist.init_device_mesh('cpu', rank == 0 and { 2, 1 } or { 1, 2 })
    end)
  end)

  it('of one dimension can be given to FSDP', function()
    dist.spawn(4, function(rank)
      local mesh = dist.init_device_mesh('cpu', { 2, 2 }, { mesh_dim_names = { 'dp', 'tp' } })
      for _, option in ipairs { 'device_mesh', 'process_group' } do
        local model = ms.fsdp.FSDP(ms.nn.Linear(4, 4), { [option] = mesh['dp'] })
        assert.equal(2, model.world_size)
        assert.equal(math.floor(rank / 2), model.rank)
        model(ms.ones(1, 4)):sum():backward()
        checks.raises('ValueError', ("FSDP: '%s' has 2 dimensions"):format(option),
          ms.fsdp.FSDP, ms.nn.Linear(4, 4), { [option] = mesh })
      end
      checks.raises('TypeError', "FSDP: 'device_mesh' is a group of ranks, expected a DeviceMesh",
        ms.fsdp.FSDP, ms.nn.Linear(4, 4), { device_mesh = mesh:get_group 'dp' })
    end)
  end)
end)
