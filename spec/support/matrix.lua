--- Cases of the functional matrix (spec/support/m2n_matrix.lua): which fit a world, what each rank holds of them, which m2n can
-- express, and their init info and rules. Nothing here comes from src/plan/.
--
-- A case: { name =, group =, shape =, dtype =, item = bytes, trainers =, workers =, source = layout, destination = layout }, with
-- layouts in the oracle's form and a `mesh` name each.

local oracle = require "spec.support.oracle"

local matrix = { groups = require "spec.support.m2n_matrix" }

local ITEM = {
   int8 = 1, uint8 = 1, bool = 1, float8_e4m3fn = 1, float8_e5m2 = 1, float8_e8m0fnu = 1, float4_e2m1fn_x2 = 1, float16 = 2, bfloat16 = 2,
   int16 = 2, uint16 = 2, int32 = 4, uint32 = 4, float32 = 4, int64 = 8, uint64 = 8, float64 = 8,
}

-- ---- layouts ----

local function shard(axis, dim, more)
   local placement = { axis = axis, shard = dim }
   for key, value in pairs(more or {}) do
      placement[key] = value
   end
   return placement
end

-- By word: axes and placements over n ranks; f is the number behind the colon. nil where the ranks cannot be laid out so.
local cuts = {
   r = function(n) return { n }, {} end,
   s = function(n, _, d) return { n }, { shard(0, d) } end,
   rs = function(n, f, d) return { f, n / f }, { shard(1, d) } end,
   sr = function(n, f, d) return { f, n / f }, { shard(0, d) } end,
   rsr = function(n, f, d) return { 2, f, n / 2 / f }, { shard(1, d) } end,
   ss = function(n, f, d, shape) return { f, n / f }, { shard(0, d), shard(1, (d + 1) % #shape) } end,
   nest = function(n, f, d) return { f, n / f }, { shard(0, d), shard(1, d) } end,
   tsen = function(n, f, d) return { f, n / f }, { shard(1, d), shard(0, d) } end,
   kv = function(n, f, d)
      if n % f == 0 then
         return { n }, { shard(0, d, { parts = f }) }
      end
   end,
   even = function(n, _, d) return { n }, { shard(0, d, { split = "balanced" }) } end,
   chunk = function(n, _, d, shape) return { n }, { shard(0, d, { chunk = math.ceil(shape[d + 1] / n) + 1 }) } end,
   pin = function(n, f, d) return { f, n / f }, { { axis = 0, pin = f - 1 }, shard(1, d) } end,
   inner = function(n, f, d) return { n / f, f }, { { axis = 1, pin = f - 1 }, shard(0, d) } end,
}

-- The layout of a side, or nil where its ranks cannot be laid out so.
local function layout_of(word, first, n, dim, shape)
   local name, f = word:match("^(%a+):?(%d*)$")
   local axes, placements = cuts[name](n, tonumber(f), dim, shape)
   if not axes then
      return nil
   end
   for _, size in ipairs(axes) do
      if size < 1 or size % 1 ~= 0 then
         return nil
      end
   end
   return { first = first, axes = axes, placements = placements, mesh = table.concat(axes, "x") }
end

--- The shares of a world: trainers and workers; nil where the ratio does not come out even.
local function shares_of(world, ratio)
   local trainers = world * ratio[1] / (ratio[1] + ratio[2])
   if trainers % 1 == 0 and trainers >= 1 and trainers < world then
      return trainers, world - trainers
   end
end

local function add_cases(list, group, world, ratio)
   local trainers, workers = shares_of(world, ratio)
   if not trainers then
      return
   end
   for _, shape in ipairs(group.shapes) do
      for _, dtype in ipairs(group.dtypes) do
         for _, cut in ipairs(group.cuts) do
            for _, dims in ipairs(group.dims) do
               local source = layout_of(cut[1], 0, trainers, dims[1], shape)
               local destination = layout_of(cut[2], trainers, workers, dims[2], shape)
               if source and destination then
                  list[#list + 1] = {
                     group = group.name, shape = shape, dtype = dtype, item = ITEM[dtype], trainers = trainers, workers = workers,
                     source = source, destination = destination,
                     name = ("%s [%s] %s %s to %s, dims %d to %d"):format(group.name, table.concat(shape, ","), dtype, cut[1], cut[2],
                        dims[1], dims[2]),
                  }
               end
            end
         end
      end
   end
end

--- Every case that fits a world, in the table's order: lists by "trainers:workers" and the keys in order.
-- @param most leave out tensors of more bytes
function matrix.cases(world, most)
   local by_shares, order = {}, {}
   for _, group in ipairs(matrix.groups) do
      local worlds = group.worlds or { 2, 32 }
      for _, ratio in ipairs(world >= worlds[1] and world <= worlds[2] and (group.shares or { { 1, 1 } }) or {}) do
         local cases = {}
         add_cases(cases, group, world, ratio)
         for _, case in ipairs(cases) do
            local key = case.trainers .. ":" .. case.workers
            if not by_shares[key] then
               by_shares[key] = {}
               order[#order + 1] = key
            end
            if not most or matrix.bytes(case) <= most then
               table.insert(by_shares[key], case)
            end
         end
      end
   end
   return by_shares, order
end

--- Bytes of the whole tensor.
function matrix.bytes(case)
   local bytes = case.item
   for _, extent in ipairs(case.shape) do
      bytes = bytes * extent
   end
   return bytes
end

--- The longest extent of a shape; 1 where it has none.
function matrix.longest(shape)
   return math.max(1, unpack(shape))
end

-- Where the i-th of n pieces of an extent begins and ends, counted from the extent's own beginning.
local function piece(extent, placement, n, i)
   if placement.split == "balanced" then
      local size, longer = math.floor(extent / n), extent % n
      local from = i * size + math.min(i, longer)
      return from, from + size + (i < longer and 1 or 0)
   end
   local size = placement.chunk or math.ceil(extent / n)
   return math.min(i * size, extent), math.min((i + 1) * size, extent)
end

--- What a rank holds under a layout: { {from, to}, ... }; nil where a pin keeps it away.
function matrix.box(layout, shape, rank)
   local coordinates, box = oracle.coordinates(layout, rank), {}
   for d = 1, #shape do
      box[d] = { 0, shape[d] }
   end
   for _, placement in ipairs(layout.placements) do
      local size, coordinate = layout.axes[placement.axis + 1], coordinates[placement.axis + 1]
      if placement.pin and coordinate ~= placement.pin then
         return nil
      elseif placement.shard then
         local parts, interval = placement.parts or size, box[placement.shard + 1]
         local from, to = piece(interval[2] - interval[1], placement, parts, math.floor(coordinate / (size / parts)))
         box[placement.shard + 1] = { interval[1] + from, interval[1] + to }
      end
   end
   return box
end

-- ---- what m2n can express ----

local MOST_DIMS, MOST_SOURCES, MOST_TARGETS = 3, 16, 64

-- Whether every rank of [start, start + a * b) holds what two axes (a, b), of which `axis` cuts dim d evenly, would give it.
local function is_two_axes(boxes, start, a, b, axis, d, shape)
   local parts = axis == 1 and a or b
   if shape[d] % parts ~= 0 then
      return false
   end
   for i = 0, a * b - 1 do
      local box, number = boxes[start + i], axis == 1 and math.floor(i / b) or i % b
      for k = 1, #shape do
         local from = k == d and number * shape[k] / parts or 0
         local to = k == d and from + shape[k] / parts or shape[k]
         if box[k][1] ~= from or box[k][2] ~= to then
            return false
         end
      end
   end
   return true
end

local function holds_whole(boxes, start, count, shape)
   for rank = start, start + count - 1 do
      for k = 1, #shape do
         if boxes[rank][k][1] ~= 0 or boxes[rank][k][2] ~= shape[k] then
            return false
         end
      end
   end
   return true
end

--- One side as m2n would have to be told it, found by trying all there is: { start =, a =, b =, axis =, dim =, parts = }, where parts
-- is 1 for a tensor that every rank holds whole; or nil.
function matrix.two_axes(layout, shape, ranks)
   local boxes, start, count = {}, nil, 0
   for rank = layout.first, layout.first + ranks - 1 do
      boxes[rank] = matrix.box(layout, shape, rank)
      start, count = start or (boxes[rank] and rank), count + (boxes[rank] and 1 or 0)
   end
   for rank = start, start + count - 1 do
      if not boxes[rank] then
         return nil
      end
   end
   if holds_whole(boxes, start, count, shape) then
      return { start = start, a = count, b = 1, axis = 2, dim = 0, parts = 1 }
   end
   for a = 1, count do
      for d = 1, count % a == 0 and #shape or 0 do
         for axis = 1, 2 do
            if is_two_axes(boxes, start, a, count / a, axis, d, shape) then
               return { start = start, a = a, b = count / a, axis = axis, dim = d - 1, parts = axis == 1 and a or count / a }
            end
         end
      end
   end
end

-- The most shards of one side that meet a shard of the other, one by one.
local function most_met(shape, mine, theirs)
   if mine.parts == 1 or theirs.parts == 1 or mine.dim ~= theirs.dim then
      return theirs.parts
   end
   local extent, most = shape[mine.dim + 1], 0
   for i = 0, mine.parts - 1 do
      local met = 0
      for k = 0, theirs.parts - 1 do
         local from = math.max(i * extent / mine.parts, k * extent / theirs.parts)
         local to = math.min((i + 1) * extent / mine.parts, (k + 1) * extent / theirs.parts)
         met = met + (from < to and 1 or 0)
      end
      most = math.max(most, met)
   end
   return most
end

--- Whether nccl_m2n can move a case: true and both sides as it is told them, or false and why: "source", "destination" (a layout
-- that is none of its two axes), "dims", "sources" or "targets" (its fixed tables).
function matrix.m2n_can(case)
   local source = matrix.two_axes(case.source, case.shape, case.trainers)
   local destination = source and matrix.two_axes(case.destination, case.shape, case.workers)
   if not source or not destination then
      return false, source and "destination" or "source"
   elseif most_met(case.shape, destination, source) > MOST_SOURCES then
      return false, "sources"
   elseif most_met(case.shape, source, destination) > MOST_TARGETS then
      return false, "targets"
   elseif #case.shape > MOST_DIMS and (source.parts > 1 or destination.parts > 1) then
      return false, "dims"
   end
   return true, source, destination
end

return matrix
