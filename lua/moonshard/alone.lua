--- Warns of a script that another launcher started several times: each process is a job by itself.

local B = require 'moonshard_ffi'
local errors = require 'moonshard.errors'

-- Variables of torchrun, srun, mpirun (Open MPI) and those of MPICH's kind: how many processes, and
-- which of them this is. Slurm sets these for a batch script too, which is one process, the first.
local LAUNCHERS = {
  { size = 'WORLD_SIZE', rank = 'RANK', least = 0 },
  { size = 'SLURM_NTASKS', rank = 'SLURM_PROCID', least = 1 },
  { size = 'OMPI_COMM_WORLD_SIZE', rank = 'OMPI_COMM_WORLD_RANK', least = 0 },
  { size = 'PMI_SIZE', rank = 'PMI_RANK', least = 0 },
}

--- Say so in a process that is one of several there, and no rank of a job here.
return function()
  if B.C.ms_dist_launched() then
    return
  end
  for _, launcher in ipairs(LAUNCHERS) do
    local size = tonumber(os.getenv(launcher.size))
    local rank = tonumber(os.getenv(launcher.rank))
    if size and rank and size > 1 and rank >= launcher.least then
      errors.warn('UserWarning', ('%s is %.17g and %s is %.17g, but this process is no rank of a '
        .. 'job of that size: each that was started so trains by itself; start the script once, '
        .. 'by moonshard run -n %.17g'):format(launcher.size, size, launcher.rank, rank, size))
      return
    end
  end
end
