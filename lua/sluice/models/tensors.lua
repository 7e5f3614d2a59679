--- Holds a checkpoint's list of tensors against what the model's configuration asks for.

local check = require "sluice.models.check"

local tensors = {}

local weight_dtypes = { bfloat16 = true, float16 = true, float32 = true }

local function shape_text(shape)
   return "[" .. table.concat(shape, ", ") .. "]"
end

local function same_shape(a, b)
   if #a ~= #b then
      return false
   end
   for i = 1, #a do
      if a[i] ~= b[i] then
         return false
      end
   end
   return true
end

--- The set of names in the list; fails on one that stands there twice.
function tensors.names(list)
   local holds = {}
   for _, tensor in ipairs(list) do
      if holds[tensor.name] then
         check.fail("checkpoint: tensor %s is listed twice", check.shown(tensor.name))
      end
      holds[tensor.name] = tensor
   end
   return holds
end

--- The dtype of the weights: that of the first tensor of a weight's dtype, or nil.
function tensors.dtype(list)
   for _, tensor in ipairs(list) do
      if weight_dtypes[tensor.dtype] then
         return tensor.dtype
      end
   end
   return nil
end

-- Tensors of layers that a scaled-down model leaves out are no surprise.
local function is_left_out(name, config, layer_pattern)
   local layer = tonumber(name:match(layer_pattern) or nil)
   return layer ~= nil and layer >= config.num_hidden_layers and layer < config.all_layers
end

--- Fails unless the checkpoint holds exactly the parameters (in any order), with their shapes and dtypes.
function tensors.match(params, list, config, layer_pattern)
   local holds, wanted = tensors.names(list), {}
   for _, param in ipairs(params) do
      local tensor = holds[param.name]
      wanted[param.name] = true
      if not tensor then
         check.fail("checkpoint: tensor %s is missing: %s wants %s %s", check.shown(param.name), config.title, param.dtype,
            shape_text(param.shape))
      elseif not same_shape(tensor.shape, param.shape) then
         check.fail("checkpoint: tensor %s has the shape %s: %s wants %s", check.shown(param.name), shape_text(tensor.shape),
            config.title, shape_text(param.shape))
      elseif tensor.dtype ~= param.dtype then
         check.fail("checkpoint: tensor %s has the dtype %s: %s wants %s", check.shown(param.name), tensor.dtype, config.title,
            param.dtype)
      end
   end
   for _, tensor in ipairs(list) do
      if not wanted[tensor.name] and not is_left_out(tensor.name, config, layer_pattern) then
         check.fail("checkpoint: tensor %s %s is no part of %s", check.shown(tensor.name), shape_text(tensor.shape), config.title)
      end
   end
end

return tensors
