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

--- Why no bytes of a checkpoint can be written in place, whatever places them; nil where the host's loader leaves them as they are.
function default.repacks(host)
   local repacks = host.repacks
   return is_set(repacks) and "the host repacks what it loads" .. (type(repacks) == "string" and (" (%s)"):format(repacks) or "") or nil
end

-- Of the workers' pipeline: the host may be silent where the meshes are not.
local function stages_of(meshes)
   local most = 1
   for _, mesh in ipairs(meshes) do
      for _, axis in ipairs(mesh.axes) do
         most = axis[1] == "pp" and math.max(most, axis[2]) or most
      end
   end
   return most
end

--- Why the host lets nothing be written in place: a list, empty where it does.
-- @param meshes the workers'
-- @param known what a rule file places all the same: { quantization = { text = true }, pipeline = boolean }; nil: nothing
function default.policies(host, meshes, known)
   local quantization, stages, list = host.quantization, host.pipeline_parallel_size, { default.repacks(host) }
   known = known or { quantization = {} }
   if is_set(quantization) and quantization ~= "" and not known.quantization[quantization] then
      list[#list + 1] = ("the host is quantized (%s)"):format(tostring(quantization))
   end
   if type(stages) == "number" and stages > 1 and not known.pipeline then
      list[#list + 1] = ("the host has %s pipeline stages"):format(check.number(stages))
   elseif stages_of(meshes) > 1 and not known.pipeline then
      list[#list + 1] = ("the workers' mesh has %.0f pipeline stages"):format(stages_of(meshes))
   end
   return list
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

-- The loader's problems, and the dim that it cuts (nil: none); false where its problems leave that unknown.
local function check_loader(param, attributes, tp, problems)
   local loader = attributes.loader
   local key = DIM_OF[loader]
   if not is_set(loader) then
      problems[#problems + 1] = "its loader is not declared"
   elseif loader ~= "replicated" and not key then
      problems[#problems + 1] = ("its loader (%s) is no plain copy"):format(check.found(loader))
   end
   for _, name in ipairs(FORBIDDEN) do
      if is_set(attributes[name]) then
         problems[#problems + 1] = ("the live parameter has %s"):format(name)
      end
   end
   if loader == "replicated" then
      return nil
   elseif not key then
      return false
   end
   local dim = attributes[key]
   if not check.is_integer(dim, 0, #param.shape - 1) then
      problems[#problems + 1] = ("its %s (%s) is no dim of it"):format(key, check.found(dim))
      return false
   elseif is_set(attributes.tp_size) and attributes.tp_size ~= tp then
      problems[#problems + 1] = ("its tp_size (%s) is not the workers' shard axis (%.0f)"):format(
         check.found(attributes.tp_size), tp)
   end
   return dim
end

--- What keeps one parameter from being written in place, before the module rule.
-- @param param { dtype =, shape = }
-- @param live { dtype =, shape =, contiguous =, attributes = } of the same name, or nil
-- @param tp size of the workers' shard axis
-- @return list of every condition that fails, the deciding one first; empty where it goes direct, and then the dim that is
-- cut (nil: none)
function default.problems(param, live, tp)
   if not live then
      return { "no live parameter has its name" }
   end
   local problems = {}
   if live.dtype ~= param.dtype then
      problems[1] = ("its dtype is %s, the live one's %s"):format(param.dtype, live.dtype)
   end
   if not live.contiguous then
      problems[#problems + 1] = "the live parameter is not contiguous"
   end
   local dim = check_loader(param, live.attributes, tp, problems)
   if dim ~= false then
      problems[#problems + 1] = shapes_differ(param.shape, live.shape, dim, tp)
   end
   return problems, dim
end

--- The module of a name: what stands before its last dot.
function default.module(name)
   return name:match("^(.*)%.[^.]*$") or ""
end

return default
