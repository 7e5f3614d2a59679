--- Scales that come beside quantized weights, one for each block of elements: finds whose scale a parameter is, and counts
-- what a rule says of the weight in blocks. A block may be a whole dim ("*"): one scale for a row. Who announces, decides and
-- hands over is resolve.lua's matter.
-- @module sluice.scales

local companions = require "sluice.companions"
local words = require "sluice.words"

local scales = {}

local WHOLE = "*" -- all of a dim

--- Pairs weights with their scales. A scale that no rule of its own names gets `weight` and goes by its weight's name, `ruled`;
-- where nobody announces that weight, `weight` is false. Each weight gets its `scale`.
-- @param set of rule.load, which has `scales`
-- @param params with name, canonical and ruled
function scales.pair(set, params)
   local ending, by_name = set.scales.ending, {}
   for _, param in ipairs(params) do
      by_name[param.name] = param
   end
   for _, param in ipairs(params) do
      if param.name:sub(-#ending) == ending and not set.rules:find(param.canonical) then
         local weight = by_name[param.name:sub(1, -#ending - 1)] or false
         param.weight, param.ending = weight, ending
         param.ruled = weight and weight.canonical or param.canonical:sub(1, -#ending - 1)
         param.canonical = param.ruled .. ending
         if weight then
            weight.scale = param
         end
      end
   end
end

--- What a parameter must come with, by scales: its weight, its scale; nil where it is neither.
function scales.partner(set, param)
   local is_scale = param.weight ~= nil
   if is_scale or param.scale then
      return is_scale and param.ruled or param.scale.canonical
   elseif set.scales and companions.is_quantized(param.dtype) then
      return param.canonical .. set.scales.ending
   end
end

-- How many elements of each dim of the weight share a scale: the block is of its last dims.
local function units_of(block, ndim)
   local units = {}
   for dim = 1, ndim do
      units[dim] = block[#block - ndim + dim] or 1
   end
   return units
end

--- The shape that a weight's scale must have; nil where `scale` is that. A dim all of which shares a scale may be left out.
function scales.shape_problem(block, weight, scale)
   local units, wanted, short, all = units_of(block, #weight), {}, {}, 1
   for dim, extent in ipairs(weight) do
      local count = units[dim] == WHOLE and 1 or math.ceil(extent / units[dim])
      wanted[dim], all = count, all * count
      short[#short + 1] = units[dim] ~= WHOLE and count or nil
   end
   local numbers, text = 1, table.concat(scale, ",")
   for _, extent in ipairs(scale) do
      numbers = numbers * extent
   end
   local good = text == table.concat(wanted, ",") or text == table.concat(short, ",") or numbers == 1 and all == 1
   return not good and wanted or nil
end

local function whole(fail, what, size, unit)
   if size % unit ~= 0 then
      fail("%s (%.0f) must be a whole number of blocks of %.0f", what, size, unit)
   end
   return size / unit
end

local function kind_of(value)
   return value.kind or words.kind(value)
end

local function copy(value)
   return { kind = kind_of(value), dim = value.dim, axis = value.axis, start = value.start, count = value.count,
            step = value.step, at = value.at, coordinate = value.coordinate, parts = value.parts, chunk = value.chunk, split = value.split }
end

-- A slice of a dim of which `unit` elements share a scale. Its end may lie inside the last block, its start may not.
local function slice_in_blocks(slice, unit, key, fail)
   local made = copy(slice)
   if unit == 1 then
      return made
   elseif unit == WHOLE then
      fail("%s takes a part of dim %d, all of which shares a scale", key, slice.dim)
   elseif made.kind == "index" then
      fail("%s takes one index of dim %d, of which %.0f share a scale", key, slice.dim, unit)
   elseif slice.step ~= 1 then
      fail("%s takes every %.0f-th element of dim %d, of which %.0f share a scale", key, slice.step, slice.dim, unit)
   end
   made.start = whole(fail, ("%s: the start in dim %d"):format(key, slice.dim), slice.start, unit)
   made.count = slice.count and math.ceil(slice.count / unit)
   return made
end

local function slices_in_blocks(list, units, key, fail)
   local made = {}
   for i, slice in ipairs(list) do
      made[i] = slice_in_blocks(slice, units[slice.dim + 1] or 1, key, fail)
   end
   return made
end

-- A cut may leave a part of a block only at the end of the weight; of a whole dim's scale each part has it all: nil.
local function cut_in_blocks(shard, size, extents, units, fail)
   local made, unit, extent = copy(shard), units[shard.dim + 1] or 1, extents[shard.dim + 1]
   local parts = shard.parts or size
   if unit == WHOLE then
      return nil
   elseif not extent or not (shard.chunk or parts > 1) then
      return made
   end
   local what, piece = ("a worker's part of dim %d"):format(shard.dim), shard.chunk or math.ceil(extent / parts)
   local is_even = shard.split ~= "balanced" or extent % parts == 0
   if unit > 1 then
      whole(fail, what, is_even and piece or piece - 1, unit)
      made.chunk = shard.chunk and shard.chunk / unit
   end
   extents[shard.dim + 1] = piece
   return made
end

--- What a strip says of a weight, counted in blocks: for its scale.
-- @param block elements that share a scale, of the weight's last dims; "*": all of the dim
-- @param weight the weight's shape
-- @param said { at =, from =, layout =, permute = }, with its picks filled in
-- @param size function(axis) -> the size of an axis of the workers
-- @param fail function(text, ...) that raises
-- @return from, at, layout
function scales.in_blocks(block, weight, said, size, fail)
   local units, dropped, taken = units_of(block, #weight), {}, {}
   for _, slice in ipairs(said.from) do
      dropped[slice.dim] = kind_of(slice) == "index"
      taken[slice.dim] = slice
   end
   local strip_units, extents = {}, {}
   for dim = 0, #weight - 1 do
      if not dropped[dim] then
         local slice = taken[dim]
         strip_units[#strip_units + 1] = units[dim + 1]
         extents[#extents + 1] = slice and (slice.count or weight[dim + 1] - slice.start) or weight[dim + 1]
      end
   end
   local chosen, live_units, kept = {}, {}, 0
   for _, slice in ipairs(said.at) do
      chosen[slice.dim] = kind_of(slice) == "index"
   end
   for dim = 0, #strip_units + #said.at - 1 do
      if not chosen[dim] then
         kept = kept + 1
         live_units[dim + 1] = strip_units[said.permute and (said.permute[kept] or -1) + 1 or kept]
      end
   end
   local layout = {}
   for _, placement in ipairs(said.layout) do
      if kind_of(placement) == "shard" then
         placement = cut_in_blocks(placement, size(placement.axis), extents, strip_units, fail)
      end
      layout[#layout + 1] = placement
   end
   return slices_in_blocks(said.from, units, "from", fail), slices_in_blocks(said.at, live_units, "at", fail), layout
end

return scales
