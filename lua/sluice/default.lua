--- The default resolver: what a parameter gets when no rule speaks. In place only where the host declares a loader that is
-- a plain copy and everything agrees with it; shapes check, they never decide.
-- @module sluice.default

local check = require "sluice.check"
local core = require "sluice.core"

local default = {}

local FORBIDDEN = {
   "packed_dim", "packed_factor", "marlin_tile_size", "needs_scalar_to_array", "is_sharded_weight", "is_transposed",
}
local DIM_OF = { column = "output_dim", row = "input_dim" }

local function is_set(value)
   return value ~= nil and value ~= core.null and value ~= false
end

--- Why the host lets nothing be written in place, or nil.
function default.policy(host)
   local quantization, stages = host.quantization, host.pipeline_parallel_size
   if is_set(quantization) and quantization ~= "" then
      return ("the host is quantized (%s)"):format(tostring(quantization))
   elseif type(stages) == "number" and stages > 1 then
      return ("the host has %s pipeline stages"):format(check.number(stages))
   end
end

local function shape_text(shape)
   local items = {}
   for i = 1, #shape do
      items[i] = ("%.0f"):format(shape[i])
   end
   return "[" .. table.concat(items, ",") .. "]"
end

default.shape_text = shape_text

-- Why the shapes do not fit a cut of `dim` (from 0; nil: none) into `tp` parts, or nil.
local function shapes_differ(global, loc, dim, tp)
   local good = #global == #loc
   for i = 1, good and #global or 0 do
      local parts = i - 1 == dim and tp or 1
      good = good and global[i] == loc[i] * parts
   end
   if not good then
      return ("its shape %s and the live one's %s do not agree%s"):format(shape_text(global), shape_text(loc),
         dim and (" with dim %d cut in %.0f"):format(dim, tp) or "")
   end
end

--- The decision for one parameter, before the module rule.
-- @param param { dtype =, shape = }
-- @param live { dtype =, shape =, contiguous =, attributes = } of the same name, or nil
-- @param tp size of the workers' shard axis
-- @return "direct", the dim that is cut (nil: none); or "full", nil, the reason
function default.decide(param, live, tp)
   if not live then
      return "full", nil, "no live parameter has its name"
   elseif live.dtype ~= param.dtype then
      return "full", nil, ("its dtype is %s, the live one's %s"):format(param.dtype, live.dtype)
   elseif not live.contiguous then
      return "full", nil, "the live parameter is not contiguous"
   end
   local attributes = live.attributes
   local loader = attributes.loader
   if not is_set(loader) then
      return "full", nil, "its loader is not declared"
   elseif loader ~= "replicated" and not DIM_OF[loader] then
      return "full", nil, ("its loader (%s) is no plain copy"):format(check.found(loader))
   end
   for _, name in ipairs(FORBIDDEN) do
      if is_set(attributes[name]) then
         return "full", nil, ("the live parameter has %s"):format(name)
      end
   end
   local dim
   if DIM_OF[loader] then
      dim = attributes[DIM_OF[loader]]
      if not check.is_integer(dim, 0, #param.shape - 1) then
         return "full", nil, ("its %s (%s) is no dim of it"):format(DIM_OF[loader], check.found(dim))
      elseif is_set(attributes.tp_size) and attributes.tp_size ~= tp then
         return "full", nil, ("its tp_size (%s) is not the workers' shard axis (%.0f)"):format(
            check.found(attributes.tp_size), tp)
      end
   end
   local problem = shapes_differ(param.shape, live.shape, dim, tp)
   if problem then
      return "full", nil, problem
   end
   return "direct", dim
end

--- The module of a name: what stands before its last dot.
function default.module(name)
   return name:match("^(.*)%.[^.]*$") or ""
end

return default
