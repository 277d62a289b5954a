--- A folder of checkpoints.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local parts = require 'moonshard.checkpoint.parts'
local runtime = require 'moonshard_ffi.checkpoint'
local util = require 'moonshard.base.util'
local validate = require 'moonshard.checkpoint.validate'
local loading = require 'moonshard.checkpoint.load'
local save = require 'moonshard.checkpoint.save'

--- Checkpoints of one run, named by step. Each group of a job needs its own root.
---@class ms.checkpoint.Manager
---@field root string
---@field keep integer|false  false: keep all
---@field process_group ms.dist.Group|false  false: determined by each save() and resume(), as by
---  load()
---@overload fun(opts: ms.checkpoint.Manager.Options): ms.checkpoint.Manager
local Manager = class('checkpoint.Manager')

---@class ms.checkpoint.Manager.Options
---@field root string
---@field keep? integer  number of checkpoints to keep, see save() (default: all); rank 0's value
---  is used
---@field process_group? ms.dist.Group  see ms.checkpoint.State

---@param opts ms.checkpoint.Manager.Options
function Manager:init(opts)
  opts = errors.options(self._name, opts, { 'root', 'keep', 'process_group' })
  validate.path(self._name, 'root', opts.root)
  self.root = opts.root
  self.keep = opts.keep ~= nil and arguments.whole(self._name, 'keep', opts.keep, nil, 1)
  self.process_group = opts.process_group ~= nil
    and arguments.group(self._name, 'process_group', opts.process_group)
end

-- Add the manager's process_group to the options of a save or resume.
local function in_group(self, opts)
  if opts.process_group ~= nil or not self.process_group then
    return opts
  end
  return util.merged(opts, { process_group = self.process_group })
end

--- Save `<root>/step-<8 digits>`. Collective. `keep = n` keeps the n newest checkpoints with such
--- names up to the step just saved. Later steps and checkpoints with other names are never deleted.
--- Saving a step below an existing one issues a warning, and resume() will load it. Foreign files
--- in a folder that is replaced are moved aside, and a warning gives their new location.
---@param opts ms.checkpoint.SaveOptions
---@return string path
function Manager:save(opts)
  opts = in_group(self, parts.options('checkpoint.save', opts,
    { 'step', 'config', 'frozen', 'process_group' }))
  arguments.whole('checkpoint.save', 'step', opts.step, nil, 0)
  local path = save(self.root, runtime.step_name(opts.step), opts)
  local comm = validate.group('checkpoint.save', parts.of('checkpoint.save', opts),
    opts.process_group)
  if B.C.ms_comm_leads_host(comm) then -- hosts may have folders of their own
    local ok, err = pcall(runtime.rotate, self.root, opts.step, self.keep or 0)
    if not ok then -- only warn: the new checkpoint is complete, and training can continue
      errors.warn('UserWarning', 'old checkpoints are not removed: ' .. tostring(err), comm)
    end
  end
  return path
end

--- Load the step that was saved last, or else the newest step that is intact on all ranks. Warns if
--- a checkpoint with another name was saved later. Collective. FormatError if there are checkpoints
--- but none is intact; then nothing is changed.
---@param opts ms.checkpoint.LoadOptions
---@return ms.checkpoint.Meta?  nil if there is no checkpoint of a step
function Manager:resume(opts)
  local list
  opts, list = loading.options('checkpoint.resume', opts)
  opts = in_group(self, opts)
  local comm = validate.group('checkpoint.resume', list, opts.process_group)
  local loader = runtime.load_latest_step(comm, self.root)
  return loader and loading.into(comm, loader, opts, list)
end

return Manager
