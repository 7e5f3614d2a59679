--- The map of one parameter: how the trainers cut it, how the workers want it, and which shard feeds which slice.
-- Takes what native.open's parts(name) gives. Where there are many shards, neighbours are drawn as one.

local boxes = require "sluice.picture.boxes"
local style = require "sluice.picture.style"
local svg = require "sluice.picture.svg"
local terminal = require "sluice.picture.terminal"
local units = require "sluice.cli.units"
local words = require "sluice.picture.words"

local parameter = {}

local GROUPS, TARGETS = 64, 4
local WIDE, LEFT, TOP, GAP = 300, 70, 40, 70

local function box_list(shards)
   local list = {}
   for i, shard in ipairs(shards) do
      list[i] = shard.box
   end
   return list
end

-- Puts shards into at most GROUPS groups of neighbours. Returns the groups { box, ranks, count (of ranks), shards }, and of each
-- shard its group; nil for empty ones.
local function grouped(shards, dims)
   local order, groups, group_of = {}, {}, {}
   for i, shard in ipairs(shards) do
      order[#order + 1] = not boxes.empty(shard.box) and i or nil
   end
   table.sort(order, function(a, b)
      for _, d in ipairs(dims) do
         local low, other = shards[a].box[d][1], shards[b].box[d][1]
         if low ~= other then
            return low < other
         end
      end
      return a < b
   end)
   local count = math.min(GROUPS, #order)
   for at, i in ipairs(order) do
      local number = math.floor((at - 1) * count / #order) + 1
      local group = groups[number] or { ranks = {}, count = 0, shards = 0 }
      groups[number] = group
      group.box = boxes.around(group.box, shards[i].box)
      for _, rank in ipairs(shards[i].ranks) do
         group.ranks[#group.ranks + 1] = rank
      end
      group.count = group.count + shards[i].replicas
      group.shards = group.shards + 1
      group_of[i] = number
   end
   return groups, group_of, #order
end

-- The pieces of a target, those of one pair of groups as one: { source, worker, box, count }.
local function merged(pieces, source_of, worker_of)
   local list, seen = {}, {}
   for _, piece in ipairs(pieces) do
      local source, worker = source_of[piece.source], worker_of[piece.worker]
      local key = source .. "/" .. worker
      local one = seen[key]
      if not one then
         one = { source = source, worker = worker, count = 0 }
         seen[key] = one
         list[#list + 1] = one
      end
      one.box = boxes.around(one.box, piece.box)
      one.count = one.count + 1
   end
   return list
end

-- Everything that is drawn: dims, sources, targets with their workers and pieces.
local function scene_of(parts)
   local all = box_list(parts.sources)
   for _, target in ipairs(parts.targets) do
      for _, shard in ipairs(target.workers) do
         all[#all + 1] = shard.box
      end
   end
   local dims, ncut = boxes.dims(parts.shape, all)
   local scene = { dims = dims, ncut = ncut, targets = {}, merged = false }
   local source_of, nsources
   scene.sources, source_of, nsources = grouped(parts.sources, dims)
   scene.nsources, scene.merged = nsources, nsources > #scene.sources
   for i = 1, math.min(TARGETS, #parts.targets) do
      local target = parts.targets[i]
      local workers, worker_of, nworkers = grouped(target.workers, dims)
      scene.targets[i] = { live = target.live, workers = workers, nworkers = nworkers,
         pieces = target.pieces and merged(target.pieces, source_of, worker_of), meetings = target.meetings }
      scene.merged = scene.merged or nworkers > #workers
   end
   return scene
end

local function caption(parts, scene, in_text)
   local items = { ("%s %s, %s."):format(parts.dtype, units.shape(parts.shape), units.bytes(parts.bytes)) }
   items[#items + 1] = in_text and "A letter is a trainer shard; on the right stands what the workers want of it."
      or "A colour is a trainer shard; a frame on the right what one worker (and its replicas) wants."
   if #parts.targets == 0 then
      items[#items + 1] = ("It does not move (%s)."):format(parts.mode)
   elseif #parts.targets > TARGETS then
      items[#items + 1] = ("The first %d of its %d destinations."):format(TARGETS, #parts.targets)
   end
   if scene.merged then
      items[#items + 1] = ("There are %d shards: up to %d groups of neighbours are drawn a side."):format(scene.nsources, GROUPS)
   end
   if scene.ncut > 2 then
      items[#items + 1] = ("%d dims are cut; drawn are dims %d and %d, where the others begin."):format(scene.ncut, scene.dims[1] - 1,
         scene.dims[2] - 1)
   end
   return table.concat(items, " ")
end

local function owner(group, noun)
   table.sort(group.ranks)
   local many = group.shards > 1 and (" (%d shards)"):format(group.shards) or ""
   return noun .. " " .. words.some(group.ranks, group.count) .. many
end

local function draw_axes(canvas, parts, scene, high)
   local dims = scene.dims
   if #dims > 0 then
      local d = dims[#dims]
      canvas:text(0, high + 15, "0", { class = "quiet small" })
      canvas:text(WIDE, high + 15, ("%.0f"):format(parts.shape[d]), { class = "quiet small", anchor = "end" })
      canvas:text(WIDE / 2, high + 15, ("dim %d"):format(d - 1), { class = "quiet small", anchor = "middle" })
   end
   if #dims == 2 then
      canvas:text(-6, 10, "0", { class = "quiet small", anchor = "end" })
      canvas:text(-6, high, ("%.0f"):format(parts.shape[dims[1]]), { class = "quiet small", anchor = "end" })
      canvas:text(-10, high / 2, ("dim %d"):format(dims[1] - 1), { class = "quiet small", anchor = "middle", turned = true })
   end
end

local function fill(number, count, width, height)
   local class, colour = style.colour(number, count)
   return style.piece(width, height) .. (class and " " .. class or ""), colour
end

local function label(canvas, x, y, width, height, group)
   local text = group.count == 1 and ("%d"):format(group.ranks[1]) or ("%d +%d"):format(group.ranks[1], group.count - 1)
   if width > 6.4 * #text + 6 and height > 16 then
      canvas:text(x + width / 2, y + height / 2 + 4, text, { class = "on small", anchor = "middle" })
   end
end

-- Calls draw(one, i, x, y, width, height) for each of a list of things with a box, those behind first.
local function each_box(list, parts, scene, high, draw)
   local whole = {}
   for i, one in ipairs(list) do
      whole[i] = one.box
   end
   for _, i in ipairs(boxes.front(whole, scene.dims)) do
      draw(list[i], i, boxes.place(whole[i], parts.shape, scene.dims, WIDE, high))
   end
end

local function panel(high)
   local canvas = svg.new()
   canvas:rect(0, 0, WIDE, high, { class = "panel" })
   return canvas
end

local function draw_sources(parts, scene, high)
   local canvas = panel(high)
   each_box(scene.sources, parts, scene, high, function(group, i, x, y, width, height)
      local class, colour = fill(i, #scene.sources, width, height)
      canvas:rect(x, y, width, height, { class = class, style = colour,
         tip = ("%s: %s"):format(owner(group, "trainer"), words.box(group.box)) })
      label(canvas, x, y, width, height, group)
   end)
   draw_axes(canvas, parts, scene, high)
   return canvas
end

local function draw_target(parts, scene, target, high)
   local canvas = panel(high)
   each_box(target.pieces or {}, parts, scene, high, function(piece, _, x, y, width, height)
      local class, colour = fill(piece.source, #scene.sources, width, height)
      canvas:rect(x, y, width, height, { class = class, style = colour, tip = ("%s → %s: %s%s"):format(
         owner(scene.sources[piece.source], "trainer"), owner(target.workers[piece.worker], "worker"), words.box(piece.box),
         piece.count > 1 and (", in %d pieces"):format(piece.count) or "") })
   end)
   each_box(target.workers, parts, scene, high, function(group, _, x, y, width, height)
      canvas:add(('<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" class="frame" pointer-events="none"/>'):format(x, y, width, height))
      label(canvas, x, y, width, height, group)
   end)
   draw_axes(canvas, parts, scene, high)
   return canvas
end

--- Draws it.
function parameter.draw(parts)
   local scene, canvas = scene_of(parts), svg.new()
   local high = #scene.dims == 2 and 240 or 60
   local right = LEFT + WIDE + GAP
   local holds = scene.nsources == 1 and " holds it" or " hold it"
   canvas:text(LEFT, TOP - 16, "as " .. units.count(scene.nsources, "trainer shard") .. holds)
   canvas:place(LEFT, TOP, draw_sources(parts, scene, high))
   local y = TOP
   for _, target in ipairs(scene.targets) do
      local into = target.live and "into " .. words.tail(target.live, 40) or "whole, to load_weights"
      canvas:text(right, y - 16, into)
      canvas:place(right, y, draw_target(parts, scene, target, high))
      if not target.pieces then
         canvas:text(right + WIDE / 2, y + high / 2, ("%.0f pieces, too many to draw"):format(target.meetings),
            { class = "quiet", anchor = "middle" })
      end
      y = y + high + 60
   end
   return { title = parts.name, caption = caption(parts, scene), width = right + WIDE + 16,
      height = math.max(y - 30, TOP + high + 30), canvas = canvas }
end

-- A grid of letters, framed.
local function letters(grid, colour)
   local lines = {}
   for i, row in ipairs(grid) do
      local items = {}
      for j = 1, row.columns do
         items[j] = row[j] and terminal.hue(terminal.letter(row[j]), row[j], colour) or "·"
      end
      lines[i] = table.concat(items)
   end
   return lines
end

local function raster(list, parts, dims, rows, columns, translate)
   local grid = boxes.raster(list, parts.shape, dims, rows, columns)
   for _, row in ipairs(grid) do
      row.columns = columns
      for j = 1, columns do
         row[j] = row[j] and translate(row[j])
      end
   end
   return grid
end

-- The boxes in front, and the number in the whole list of each.
local function fronts(items, dims)
   local list, front = {}, {}
   for i, item in ipairs(items) do
      list[i] = item.box
   end
   local numbers = boxes.front(list, dims)
   for i, number in ipairs(numbers) do
      front[i] = list[number]
   end
   return front, numbers
end

--- The same in characters: a letter a trainer shard, on the left as the trainers hold it, on the right as workers want it.
function parameter.text(parts, columns, colour)
   local scene = scene_of(parts)
   local lines, wide = { parts.name, caption(parts, scene, true) }, math.max(8, math.min(64, math.floor((columns - 6) / 2)))
   local rows = #scene.dims == 2 and 16 or 1
   local front, numbers = fronts(scene.sources, scene.dims)
   local left = letters(raster(front, parts, scene.dims, rows, wide, function(i)
      return numbers[i]
   end), colour)
   for _, target in ipairs(scene.targets) do
      lines[#lines + 1] = ("%-" .. wide .. "s    "):format("trainers")
         .. (target.live and "into " .. target.live or "whole, to load_weights")
      local pieces, which = fronts(target.pieces or {}, scene.dims)
      local right = letters(raster(pieces, parts, scene.dims, rows, wide, function(i)
         return target.pieces[which[i]].source
      end), colour)
      for i = 1, rows do
         lines[#lines + 1] = left[i] .. "    " .. right[i]
      end
      for i, group in ipairs(target.workers) do
         if i > 16 then
            lines[#lines + 1] = ("   and %d more"):format(#target.workers - 16)
            break
         end
         lines[#lines + 1] = ("   %s want%s %s"):format(owner(group, "worker"), group.count == 1 and "s" or "", words.box(group.box))
      end
   end
   for i, group in ipairs(scene.sources) do
      if i > 16 then
         lines[#lines + 1] = ("   and %d more"):format(#scene.sources - 16)
         break
      end
      lines[#lines + 1] = (" %s %s"):format(terminal.hue(terminal.letter(i), i, colour), owner(group, "trainer"))
   end
   return lines
end

return parameter
