--- Init info in the seed's form, schema_version 2: two-axis meshes without names on the trainers' side, one mesh
-- [replica, shard] on the workers', whose axes Sluice calls dp and tp.
-- @module sluice.init_seed_form

local check = require "sluice.check"
local core = require "sluice.core"
local init_params = require "sluice.init_params"

local form = {
   required = { "schema_version", "master_address", "master_port", "rank_offset", "world_size", "dst_mesh_dims", "params" },
   optional = { "nccl_unique_id_b64", "max_cta" },
}

local PARAM_KEYS = { "name", "dtype_name", "shape", "src_mesh_dims", "src_placements" }
local PARAM_OPTIONAL = { "allow_full_fallback" }
local MOST_RANKS = 2 ^ 31 - 1

-- A pair of positive integers with the given product.
local function is_mesh(dims, product)
   return check.is_list(dims) and #dims == 2 and check.is_integer(dims[1], 1, MOST_RANKS)
      and check.is_integer(dims[2], 1, MOST_RANKS) and dims[1] * dims[2] == product
end

local function mesh_rule(product, of)
   return ("must be two integers of at least 1 whose product is %s (%.0f)"):format(of, product)
end

local PLACEMENT_RULE = "must be null or two codes, one of them -1 and the other a dim of the shape"

-- Which mesh axis (0 or 1) shards which dim; nothing where all replicate.
local function read_placements(param, i)
   local codes = param.src_placements
   if codes == core.null then
      return
   end
   local ndim = #param.shape
   if not check.is_list(codes) or #codes ~= 2 or not check.is_integer(codes[1], -1, ndim - 1)
      or not check.is_integer(codes[2], -1, ndim - 1) or (codes[1] == -1) == (codes[2] == -1) then
      check.fail(codes, PLACEMENT_RULE, "params", i, "src_placements")
   end
   local axis = codes[1] == -1 and 1 or 0
   local dim = codes[axis + 1]
   local parts = param.src_mesh_dims[axis + 1]
   if param.shape[dim + 1] % parts ~= 0 then
      check.fail(codes, ("must shard a dim that divides evenly; dim %d of shape %s does not divide by %.0f"):format(
         dim, check.found(param.shape), parts), "params", i, "src_placements")
   end
   return axis, dim, parts
end

-- Meshes and layouts go to C once each; gives the layout's number.
local function layout_of(builder, meshes, param, axis, dim, parts)
   local dims = param.src_mesh_dims
   local name = ("%.0fx%.0f"):format(dims[1], dims[2])
   local layouts = meshes[name]
   if not layouts then
      builder.mesh(false, name, { "", dims[1], "", dims[2] })
      layouts = {}
      meshes[name] = layouts
   end
   local key = axis and axis * 8 + dim or -1
   local number = layouts[key]
   if not number then
      number = builder.layout(name, axis and { { axis, dim, parts, 0, 0 } } or {})
      layouts[key] = number
   end
   return number
end

--- What the source digest is of.
function form.hashed(info)
   return { params = info.params, schema_version = info.schema_version }
end

--- Checks meshes and parameters and gives them to the builder.
function form.read(info, builder, trainers, workers)
   local dst = info.dst_mesh_dims
   if not is_mesh(dst, workers) then
      check.fail(dst, mesh_rule(workers, "world_size - rank_offset"), "dst_mesh_dims")
   end
   builder.mesh(true, "", { "dp", dst[1], "tp", dst[2] })
   local seen, meshes = {}, {}
   for i, param in ipairs(info.params) do
      if not check.is_object(param) then
         check.fail(param, "must be an object", "params", i)
      end
      check.keys(param, PARAM_KEYS, PARAM_OPTIONAL, "params", i)
      init_params.check(param, i, seen, 1)
      if not is_mesh(param.src_mesh_dims, trainers) then
         check.fail(param.src_mesh_dims, mesh_rule(trainers, "rank_offset"), "params", i, "src_mesh_dims")
      end
      local number = layout_of(builder, meshes, param, read_placements(param, i))
      builder.param(param.name, param.dtype_name, param.shape, number, param.allow_full_fallback ~= false)
   end
end

return form
