--- Boxes of a tensor on paper: which two dims are drawn, where a box lies, what a grid of characters shows. Boxes are
-- { { low, high }, ... }, one range a dim.

local boxes = {}

local function empty(box)
   for _, range in ipairs(box) do
      if range[1] >= range[2] then
         return true
      end
   end
   return false
end

boxes.empty = empty

--- The dims that tell boxes apart, and behind them the longest; at most two, the lower one first, it runs downwards.
-- @param shape the tensor's
-- @param list boxes in it
-- @return the dims, counted from 1, and how many dims are cut in all
function boxes.dims(shape, list)
   local cut, order, ncut = {}, {}, 0
   for d = 1, #shape do
      for _, box in ipairs(list) do
         if not empty(box) and (box[d][1] > 0 or box[d][2] < shape[d]) then
            cut[d] = true
         end
      end
      order[d] = d
      ncut = ncut + (cut[d] and 1 or 0)
   end
   table.sort(order, function(a, b)
      if (cut[a] or false) ~= (cut[b] or false) then
         return cut[a] or false
      elseif shape[a] ~= shape[b] then
         return shape[a] > shape[b]
      end
      return a < b
   end)
   local dims = { order[1], #shape > 1 and order[2] or nil }
   table.sort(dims)
   return dims, ncut
end

-- A frame for a tensor's drawn dims: the plain extents, with room for dims that are not there.
local function ranges_of(box, dims)
   local down = #dims == 2 and box[dims[1]] or { 0, 1 }
   local across = #dims > 0 and box[dims[#dims]] or { 0, 1 }
   return down, across
end

--- The place of a box in a frame of `width` by `height`: x, y, width, height.
function boxes.place(box, shape, dims, width, height)
   local down, across = ranges_of(box, dims)
   local tall = #dims == 2 and math.max(1, shape[dims[1]]) or 1
   local wide = #dims > 0 and math.max(1, shape[dims[#dims]]) or 1
   local x, y = width / wide, height / tall
   return across[1] * x, down[1] * y, (across[2] - across[1]) * x, (down[2] - down[1]) * y
end

--- The places in a list of the boxes in front: those that begin lowest in the dims that are not drawn, and are not empty.
function boxes.front(list, dims)
   local drawn, base, front = {}, {}, {}
   for _, d in ipairs(dims) do
      drawn[d] = true
   end
   for _, box in ipairs(list) do
      for d, range in ipairs(box) do
         base[d] = not empty(box) and math.min(base[d] or range[1], range[1]) or base[d]
      end
   end
   for i, box in ipairs(list) do
      local first = not empty(box)
      for d, range in ipairs(box) do
         first = first and (drawn[d] or range[1] == base[d])
      end
      front[#front + 1] = first and i or nil
   end
   return front
end

--- The smallest box around two; a may be nil.
function boxes.around(a, b)
   if not a then
      a = {}
      for d, range in ipairs(b) do
         a[d] = { range[1], range[2] }
      end
      return a
   end
   for d, range in ipairs(b) do
      a[d][1], a[d][2] = math.min(a[d][1], range[1]), math.max(a[d][2], range[2])
   end
   return a
end

--- What lies where: a grid of rows by columns, each cell the number of the first box that holds its middle, or nil.
function boxes.raster(list, shape, dims, rows, columns)
   local grid = {}
   for i = 1, rows do
      grid[i] = {}
   end
   for number = #list, 1, -1 do
      local x, y, width, height = boxes.place(list[number], shape, dims, columns, rows)
      for i = math.max(1, math.ceil(y + 0.5)), math.min(rows, math.ceil(y + height - 0.5)) do
         for j = math.max(1, math.ceil(x + 0.5)), math.min(columns, math.ceil(x + width - 0.5)) do
            grid[i][j] = number
         end
      end
   end
   return grid
end

return boxes
