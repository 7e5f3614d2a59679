--- Init info in the general form, schema "sluice/1": named meshes of 1 to 8 named axes on both sides, and for each
-- parameter an ordered list of placements, the first outermost; axes that none names replicate.
-- @module sluice.init_general_form

local check = require "sluice.check"
local core = require "sluice.core"
local init_params = require "sluice.init_params"

local form = {
   required = { "schema", "master_address", "master_port", "rank_offset", "world_size", "src_meshes", "dst_meshes", "params" },
   optional = { "nccl_unique_id_b64", "max_cta" },
}

local MESH_KEYS = { "name", "axes" }
local PARAM_KEYS = { "name", "dtype_name", "shape", "src_placements" }
local PARAM_OPTIONAL = { "src_mesh", "allow_full_fallback" }
local MOST_AXES = 8
local MOST_RANKS = 2 ^ 31 - 1
local SPLITS = { ceil = 0, balanced = 1 }
local CHUNK = 2

-- ---- meshes ----

local function read_axes(mesh, ranks, of, key, i)
   local axes = mesh.axes
   if not check.is_list(axes) or #axes < 1 or #axes > MOST_AXES then
      check.fail(axes, "must be a list of 1 to 8 pairs [name, size]", key, i, "axes")
   end
   local flat, sizes, numbers, product = {}, {}, {}, 1
   for k, axis in ipairs(axes) do
      if not check.is_list(axis) or #axis ~= 2 or not check.is_name(axis[1]) or not check.is_integer(axis[2], 1, MOST_RANKS) then
         check.fail(axis, "must be a pair [name, size] with a size of at least 1", key, i, "axes", k)
      elseif sizes[axis[1]] then
         check.fail(axis, "must not repeat an axis name", key, i, "axes", k)
      end
      flat[2 * k - 1], flat[2 * k] = axis[1], axis[2]
      sizes[axis[1]], numbers[axis[1]] = axis[2], k - 1
      product = product * axis[2]
   end
   if product ~= ranks then
      check.fail(axes, ("must have sizes whose product is %s (%.0f), not %s"):format(of, ranks, check.number(product)),
         key, i, "axes")
   end
   return flat, sizes, numbers
end

-- Gives the meshes by name and the only one, where there is one.
local function read_meshes(info, key, workers, ranks, of, builder)
   local meshes = info[key]
   if not check.is_list(meshes) or #meshes < 1 then
      check.fail(meshes, "must be a list of at least one mesh", key)
   end
   local by_name = {}
   for i, mesh in ipairs(meshes) do
      if not check.is_object(mesh) then
         check.fail(mesh, "must be an object", key, i)
      end
      check.keys(mesh, MESH_KEYS, {}, key, i)
      if type(mesh.name) ~= "string" or mesh.name:find("%z") then
         check.fail(mesh.name, "must be a text without zero characters", key, i, "name")
      elseif by_name[mesh.name] then
         check.fail(mesh.name, "must be no other mesh's name", key, i, "name")
      end
      local flat, sizes, numbers = read_axes(mesh, ranks, of, key, i)
      by_name[mesh.name] = { name = mesh.name, sizes = sizes, numbers = numbers, layouts = {} }
      builder.mesh(workers, mesh.name, flat)
   end
   return by_name, #meshes == 1 and by_name[meshes[1].name] or nil
end

-- ---- placements ----

local SHARD_KEYS, SHARD_OPTIONAL = { "axis", "shard" }, { "chunk", "split", "parts" }
local PIN_KEYS = { "axis", "pin" }

-- Placement k of parameter i breaks a rule.
local function refuse(i, k, key, placement, rule, ...)
   check.fail(placement[key], rule:format(...), "params", i, "src_placements", k, key)
end

local function read_shard(placement, param, size, extents, i, k)
   check.keys(placement, SHARD_KEYS, SHARD_OPTIONAL, "params", i, "src_placements", k)
   local dim, parts, chunk, split = placement.shard, placement.parts, placement.chunk, placement.split
   if not check.is_integer(dim, 0, #param.shape - 1) then
      refuse(i, k, "shard", placement, "must be a dim of shape %s", check.found(param.shape))
   elseif parts ~= nil and (not check.is_integer(parts, 1, size) or size % parts ~= 0) then
      refuse(i, k, "parts", placement, "must divide the axis' size (%.0f)", size)
   elseif chunk ~= nil and split ~= nil then
      refuse(i, k, "split", placement, "must not stand beside chunk")
   elseif split ~= nil and not SPLITS[split] then
      refuse(i, k, "split", placement, 'must be "ceil" or "balanced"')
   elseif chunk ~= nil and not check.is_integer(chunk, 1) then
      refuse(i, k, "chunk", placement, "must be an integer of at least 1")
   end
   parts = parts or size
   local extent = extents[dim + 1] or param.shape[dim + 1]
   if chunk and chunk * parts < extent then
      refuse(i, k, "chunk", placement, "must be large enough for %.0f pieces to hold %.0f", parts, extent)
   end
   extents[dim + 1] = chunk and math.min(chunk, extent) or math.ceil(extent / parts)
   return dim, parts, chunk and CHUNK or SPLITS[split or "ceil"], chunk or 0
end

local function read_placement(placement, param, mesh, used, extents, i, k)
   if not check.is_object(placement) then
      check.fail(placement, "must be an object", "params", i, "src_placements", k)
   end
   local axis = placement.axis
   local size = type(axis) == "string" and mesh.sizes[axis]
   if not size then
      refuse(i, k, "axis", placement, 'must be an axis of mesh "%s"', check.shorten(mesh.name))
   elseif used[axis] then
      refuse(i, k, "axis", placement, "must not be placed twice")
   end
   used[axis] = true
   if placement.pin == nil then
      return mesh.numbers[axis], read_shard(placement, param, size, extents, i, k)
   end
   check.keys(placement, PIN_KEYS, {}, "params", i, "src_placements", k)
   if not check.is_integer(placement.pin, 0, size - 1) then
      refuse(i, k, "pin", placement, "must be a coordinate from 0 to %.0f", size - 1)
   end
   return mesh.numbers[axis], -1, placement.pin, 0, 0
end

local function read_placements(param, i, mesh)
   local placements = param.src_placements
   if placements == core.null then
      return {}
   elseif not check.is_list(placements) then
      check.fail(placements, "must be null or a list of placements", "params", i, "src_placements")
   end
   local list, used, extents = {}, {}, {}
   for k, placement in ipairs(placements) do
      list[k] = { read_placement(placement, param, mesh, used, extents, i, k) }
   end
   return list
end

local function mesh_of(param, i, meshes, only)
   local name = param.src_mesh
   if name == nil and only then
      return only
   end
   local mesh = type(name) == "string" and meshes[name]
   if not mesh then
      check.fail(name, name == nil and "must name one of src_meshes where there are several" or "must name one of src_meshes",
         "params", i, "src_mesh")
   end
   return mesh
end

-- The number of a parameter's layout, which C gets once. What was checked once for a tensor of as many dims needs no second
-- look, unless it holds a chunk, which is checked against the shape.
local function layout_of(builder, param, i, mesh)
   local text = core.canonical(param.src_placements)
   local key = #param.shape .. text
   local number = mesh.layouts[key]
   if not number then
      number = builder.layout(mesh.name, read_placements(param, i, mesh))
      mesh.layouts[key] = number
   elseif text:find('"chunk"', 1, true) then
      read_placements(param, i, mesh)
   end
   return number
end

--- What the source digest is of.
function form.hashed(info)
   return { params = info.params, schema = info.schema, src_meshes = info.src_meshes }
end

--- Checks meshes and parameters and gives them to the builder.
function form.read(info, builder, trainers, workers)
   local meshes, only = read_meshes(info, "src_meshes", false, trainers, "rank_offset", builder)
   read_meshes(info, "dst_meshes", true, workers, "world_size - rank_offset", builder)
   local seen = {}
   for i, param in ipairs(info.params) do
      if not check.is_object(param) then
         check.fail(param, "must be an object", "params", i)
      end
      check.keys(param, PARAM_KEYS, PARAM_OPTIONAL, "params", i)
      init_params.check(param, i, seen, 0)
      local mesh = mesh_of(param, i, meshes, only)
      local number = layout_of(builder, param, i, mesh)
      builder.param(param.name, param.dtype_name, param.shape, number, param.allow_full_fallback ~= false)
   end
end

return form
