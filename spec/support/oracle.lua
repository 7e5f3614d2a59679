--- An independent word on what a plan must do: loops over single elements, and nothing shared with src/plan/. It is slow
-- and too simple to be wrong.
--
-- A layout here is {first = rank of coordinate 0, axes = {sizes}, placements = { {axis = 0-based, shard = dim, parts =,
-- split =, chunk =} or {axis =, pin =}, ... }}; ranks, dims and indices count from 0, lists from 1.

local oracle = {}

--- The sizes of the n pieces of an extent, dealt out one by one.
function oracle.sizes(extent, placement, n)
   local sizes = {}
   for i = 1, n do
      sizes[i] = 0
   end
   if placement.split == "balanced" then
      for element = 0, extent - 1 do
         sizes[element % n + 1] = sizes[element % n + 1] + 1
      end
      return sizes
   end
   local most = placement.chunk
   if not most then
      most = 0
      while most * n < extent do
         most = most + 1
      end
   end
   local piece = 1
   for _ = 1, extent do
      if sizes[piece] == most then
         piece = piece + 1
      end
      sizes[piece] = sizes[piece] + 1
   end
   return sizes
end

--- The coordinate of a rank on each axis, the last axis running fastest; nil outside the mesh.
function oracle.coordinates(layout, rank)
   local all = 1
   for _, size in ipairs(layout.axes) do
      all = all * size
   end
   local rest = rank - layout.first
   if rest < 0 or rest >= all then
      return nil
   end
   local coordinates = {}
   for i, size in ipairs(layout.axes) do
      all = all / size
      coordinates[i] = math.floor(rest / all)
      rest = rest % all
   end
   return coordinates
end

--- For each dim a list by index: whether the rank's part of that dim has it. nil when a pin keeps the tensor away.
function oracle.holds(layout, shape, rank)
   local coordinates = oracle.coordinates(layout, rank)
   if not coordinates then
      return nil
   end
   local holds = {}
   for d = 1, #shape do
      holds[d] = {}
      for index = 0, shape[d] - 1 do
         holds[d][index] = true
      end
   end
   for _, placement in ipairs(layout.placements) do
      local size, coordinate = layout.axes[placement.axis + 1], coordinates[placement.axis + 1]
      if placement.pin then
         if coordinate ~= placement.pin then
            return nil
         end
      else
         local parts = placement.parts or size
         local mine = math.floor(coordinate / (size / parts))
         local dim = holds[placement.shard + 1]
         local extent = 0
         for index = 0, shape[placement.shard + 1] - 1 do
            extent = extent + (dim[index] and 1 or 0)
         end
         local sizes = oracle.sizes(extent, placement, parts)
         local piece, used = 0, 0
         for index = 0, shape[placement.shard + 1] - 1 do
            if dim[index] then
               while used == sizes[piece + 1] do
                  piece, used = piece + 1, 0
               end
               used = used + 1
               dim[index] = piece == mine
            end
         end
      end
   end
   return holds
end

--- Calls visit(index list) for every index of a shape, the last dim running fastest; the list is reused.
function oracle.each(shape, visit)
   local index = {}
   local function go(d)
      if d > #shape then
         visit(index)
         return
      end
      for i = 0, shape[d] - 1 do
         index[d] = i
         go(d + 1)
      end
   end
   go(1)
end

local function inside(holds, index)
   for d = 1, #index do
      if not holds[d][index[d]] then
         return false
      end
   end
   return true
end

--- How many of a dim's indices are held.
function oracle.count(dim)
   local count = 0
   for _, held in pairs(dim) do
      count = count + (held and 1 or 0)
   end
   return count
end

--- The number of a tensor's element in row-major order.
function oracle.number(shape, index)
   local number = 0
   for d = 1, #shape do
      number = number * shape[d] + index[d]
   end
   return number
end

--- A rank's shard: the numbers of the elements that it holds, in row-major order. Empty where it holds none.
function oracle.shard(layout, shape, rank)
   local holds = oracle.holds(layout, shape, rank)
   local list = {}
   if holds then
      oracle.each(shape, function(index)
         if inside(holds, index) then
            list[#list + 1] = oracle.number(shape, index)
         end
      end)
   end
   return list
end

--- The strip of a target: its shape and, by strip dim, the parameter's dim. `source` has for each parameter dim
-- {start, count, step} or {index, select = true}, all numbers given.
function oracle.strip(source)
   local shape, dim_of = {}, {}
   for d, range in ipairs(source) do
      if not range.select then
         shape[#shape + 1] = range[2]
         dim_of[#shape] = d
      end
   end
   return shape, dim_of
end

-- Whether an index is one of {start, count, step} or {index, select = true}.
local function in_range(range, index)
   if range.select then
      return index == range[1]
   end
   for i = 0, range[2] - 1 do
      if range[1] + i * range[3] == index then
         return true
      end
   end
   return false
end

--- What one target must leave in a live tensor of one worker: calls put(byte offset, element number) for every element
-- that the worker holds and put(byte offset, nil) for every element of padding. The target is {source =, layout =,
-- view = {range of each live dim, counts given or nil for the rest}, order = {strip dim of each shown dim}, pad =};
-- the tensor is {shape =, strides = in bytes}. A target with pad "CLEAR" leaves zeros in its view, whose further dims are
-- whole, on every worker that the layout does not keep away.
function oracle.land(param_shape, target, worker, live, put)
   if target.pad == "CLEAR" then
      if oracle.holds(target.layout, {}, worker) then
         oracle.each(live.shape, function(index)
            local offset = 0
            for d = 1, #index do
               if target.view[d] and not in_range(target.view[d], index[d]) then
                  return
               end
               offset = offset + index[d] * live.strides[d]
            end
            put(offset, nil)
         end)
      end
      return
   end
   local strip, dim_of = oracle.strip(target.source)
   local holds = oracle.holds(target.layout, strip, worker)
   if not holds then
      return
   end
   -- Which of the strip's dims each live dim shows, and how many places the view has there.
   local shown, extent, left = {}, {}, 0
   for d, range in ipairs(target.view) do
      if not range.select then
         left = left + 1
         shown[d] = target.order[left] + 1
         local places, at = 0, range[1]
         while at < live.shape[d] and places ~= range[2] do
            places = places + 1
            at = at + range[3]
         end
         extent[shown[d]] = places
      end
   end
   -- The n-th index that is held of a dim goes to the view's n-th place.
   local held = {}
   for d = 1, #strip do
      held[d] = {}
      for index = 0, strip[d] - 1 do
         if holds[d][index] then
            held[d][#held[d] + 1] = index
         end
      end
   end
   oracle.each(extent, function(place)
      local offset = 0
      for d, range in ipairs(target.view) do
         local at = range[1]
         if shown[d] then
            at = at + place[shown[d]] * range[3]
         end
         offset = offset + at * live.strides[d]
      end
      local index = {}
      for d, range in ipairs(target.source) do
         index[d] = range[1]
      end
      for d = 1, #strip do
         local position = held[d][place[d] + 1]
         if not position then
            put(offset, nil)
            return
         end
         index[dim_of[d]] = target.source[dim_of[d]][1] + position * target.source[dim_of[d]][3]
      end
      put(offset, oracle.number(param_shape, index))
   end)
end

return oracle
