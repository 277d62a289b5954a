--- Functions that are called again after a garbage collection if memory was exhausted. They make a
--- tensor and have no other effect: operators without a process group, and a few others.

local MAKERS = {
  ms_data_map = true,
  ms_safetensors_get = true,
  ms_safetensors_slice = true,
  ms_tensor_arange = true,
  ms_tensor_detach = true,
  ms_tensor_empty = true,
  ms_tensor_from_doubles = true,
  ms_tensor_full = true,
  ms_tensor_meta = true,
  ms_tensor_to_host = true,
}

---@param shim ms.gen.Shim
---@return boolean
return function(shim)
  for _, p in ipairs(shim.params) do
    if p.type:find('ms_comm', 1, true) then
      return false
    end
  end
  return MAKERS[shim.original] or shim.original:find('^ms_op_') ~= nil
end
