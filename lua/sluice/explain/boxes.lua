--- Boxes of a tensor as lists of ranges { from, to } or { from, to, step }, half open; what is left of one when others are
-- taken away.
-- @module sluice.explain.boxes

local boxes = {}

local MOST = 2048 -- boxes taken away; each may be held against each

local function extent(range)
   return math.ceil((range[2] - range[1]) / (range[3] or 1))
end

--- How many elements a box has.
function boxes.volume(box)
   local volume = 1
   for _, range in ipairs(box) do
      volume = volume * math.max(extent(range), 0)
   end
   return volume
end

--- All of a tensor.
function boxes.whole(shape)
   local box = {}
   for d, size in ipairs(shape) do
      box[d] = { 0, size }
   end
   return box
end

local function key_without(box, dim)
   local parts = {}
   for d, range in ipairs(box) do
      parts[d] = d == dim and "*" or table.concat(range, ":")
   end
   return table.concat(parts, ",")
end

local function stepped_dim(box)
   for d, range in ipairs(box) do
      if range[3] then
         return d
      end
   end
end

-- Boxes whose stepped ranges interleave without a gap become one box; false where a stepped range is left.
local function merge_stepped(list)
   local plain, groups = {}, {}
   for _, box in ipairs(list) do
      local dim = stepped_dim(box)
      if not dim then
         plain[#plain + 1] = box
      else
         local range = box[dim]
         local key = ("%s|%d|%d|%d"):format(key_without(box, dim), range[3], extent(range), math.floor(range[1] / range[3]))
         groups[#groups + 1] = not groups[key] and key or nil
         groups[key] = groups[key] or { dim = dim, box = box, starts = {}, count = 0 }
         local group = groups[key]
         group.count = group.count + (group.starts[range[1]] and 0 or 1)
         group.starts[range[1]] = true
      end
   end
   for _, key in ipairs(groups) do
      local group = groups[key]
      local range = group.box[group.dim]
      local step, low = range[3], range[1] - range[1] % range[3]
      if group.count ~= step then
         return false
      end
      local merged = { unpack(group.box) }
      merged[group.dim] = { low, low + step * extent(range) }
      if stepped_dim(merged) then
         return false
      end
      plain[#plain + 1] = merged
   end
   return plain
end

local function meet(a, b)
   for d, range in ipairs(a) do
      if range[1] >= b[d][2] or b[d][1] >= range[2] then
         return false
      end
   end
   return true
end

-- Appends what of `box` lies outside `hole` to `list`.
local function cut(box, hole, list)
   if not meet(box, hole) then
      list[#list + 1] = box
      return
   end
   local rest = { unpack(box) }
   for d, range in ipairs(box) do
      local low, high = math.max(range[1], hole[d][1]), math.min(range[2], hole[d][2])
      for _, side in ipairs({ { range[1], low }, { high, range[2] } }) do
         if side[1] < side[2] then
            local part = { unpack(rest) }
            part[d] = side
            list[#list + 1] = part
         end
      end
      rest[d] = { low, high }
   end
end

--- What is left of a box when others are taken away.
-- @return list of boxes, or nil where they are too many or interleave so that no few boxes say it
function boxes.subtract(box, holes)
   if boxes.volume(box) == 0 then
      return {}
   elseif #holes > MOST or stepped_dim(box) then
      return nil
   end
   local plain = merge_stepped(holes)
   if not plain then
      return nil
   end
   local left = { box }
   for _, hole in ipairs(plain) do
      local next_left = {}
      for _, part in ipairs(left) do
         cut(part, hole, next_left)
      end
      left = next_left
   end
   return left
end

--- Whether one comes before the other, dim by dim.
function boxes.before(a, b)
   for d, range in ipairs(a) do
      if b[d] and range[1] ~= b[d][1] then
         return range[1] < b[d][1]
      end
   end
   return false
end

return boxes
