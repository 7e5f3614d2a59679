--- Who fills each part of a live tensor: by parameter, by padding, by nobody. Takes `live` of an answer of sluice.explain.

local boxes = require "sluice.picture.boxes"
local style = require "sluice.picture.style"
local svg = require "sluice.picture.svg"
local terminal = require "sluice.picture.terminal"
local units = require "sluice.cli.units"
local words = require "sluice.picture.words"

local coverage = {}

local LEFT, WIDE, TOP = 70, 400, 14

-- "model.layers.0.experts.17.up_proj" and its like: numbers may differ.
local function kind_of(name)
   return (name:gsub("%f[%w]%d+%f[^%w]", "*"))
end

-- Regions { box, kind, tip } and kinds { name, bytes, count }, at most one a parameter, or one a pattern where there are many.
local function scene_of(live)
   local scene = { regions = {}, kinds = {}, list = {} }
   local by_name, written = {}, live.writes or {}
   local patterns = #written > style.COLOURS
   local function kind(name, bytes)
      local one = by_name[name]
      if not one then
         one = { name = name, bytes = 0, count = 0, number = #scene.kinds + 1 }
         by_name[name] = one
         scene.kinds[one.number] = one
      end
      one.bytes, one.count = one.bytes + bytes, one.count + 1
      return one.number
   end
   local function region(box, number, tip)
      scene.regions[#scene.regions + 1] = { box = box, kind = number, tip = tip }
      scene.list[#scene.list + 1] = box
   end
   for _, write in ipairs(written) do
      if write.live then
         local number = kind(patterns and kind_of(write.parameter) or write.parameter, write.bytes or 0)
         region(write.live, number, ("%s %s: %s"):format(write.parameter, write.source and words.box(write.source) or "",
            words.bytes(write.bytes or 0)))
      end
   end
   for _, write in ipairs(written) do
      for _, box in ipairs(write.cleared or {}) do
         region(box, "cleared", ("%s cleared with %s"):format(words.box(box), write.parameter))
      end
   end
   for _, box in ipairs(live.unwritten or {}) do
      region(box, "unwritten", ("%s: nothing writes it in place"):format(words.box(box)))
   end
   scene.dims, scene.ncut = boxes.dims(live.shape, scene.list)
   return scene
end

local function caption(live, scene)
   local text = ("%s %s, %s on worker rank %d: %s written, %s cleared, %s not written in place."):format(live.dtype,
      units.shape(live.shape), units.bytes(live.bytes), live.rank, units.bytes(live.written_bytes), units.bytes(live.cleared_bytes),
      units.bytes(live.unwritten_bytes))
   if live.writes and live.writes_in_all and live.writes_in_all > #live.writes then
      text = text .. (" The first %d of %d writes."):format(#live.writes, live.writes_in_all)
   end
   if scene.ncut > 2 then
      text = text .. (" %d dims are cut; drawn are dims %d and %d, where the others begin."):format(scene.ncut, scene.dims[1] - 1,
         scene.dims[2] - 1)
   end
   return text
end

local function class_of(kind, kinds)
   if kind == "cleared" then
      return "h2", nil
   elseif kind == "unwritten" then
      return "panel", nil
   end
   return style.colour(kind, kinds)
end

local function legend_of(live, scene)
   local items = {}
   for i, kind in ipairs(scene.kinds) do
      items[i] = { kind = i, text = ("%s%s, %s"):format(words.tail(kind.name, 52), kind.count > 1 and (" (%d)"):format(kind.count) or "",
         units.bytes(kind.bytes)) }
   end
   if live.cleared_bytes > 0 then
      items[#items + 1] = { kind = "cleared", text = ("cleared, %s"):format(units.bytes(live.cleared_bytes)) }
   end
   if live.unwritten_bytes > 0 then
      items[#items + 1] = { kind = "unwritten", text = ("not written in place, %s"):format(units.bytes(live.unwritten_bytes)) }
   end
   return items
end

--- Draws it.
function coverage.draw(live)
   local scene, canvas = scene_of(live), svg.new()
   local high = #scene.dims == 2 and 280 or 60
   local inner = svg.new()
   inner:rect(0, 0, WIDE, high, { class = "panel" })
   for _, i in ipairs(boxes.front(scene.list, scene.dims)) do
      local region = scene.regions[i]
      local x, y, width, height = boxes.place(region.box, live.shape, scene.dims, WIDE, high)
      local class, colour = class_of(region.kind, #scene.kinds)
      inner:rect(x, y, width, height, { class = style.piece(width, height) .. (class and " " .. class or ""), style = colour,
         tip = words.box(region.box) .. " ← " .. region.tip })
   end
   canvas:place(LEFT, TOP, inner)
   if #scene.dims > 0 then
      local d = scene.dims[#scene.dims]
      canvas:text(LEFT, TOP + high + 15, "0", { class = "quiet small" })
      canvas:text(LEFT + WIDE / 2, TOP + high + 15, ("dim %d"):format(d - 1), { class = "quiet small", anchor = "middle" })
      canvas:text(LEFT + WIDE, TOP + high + 15, ("%.0f"):format(live.shape[d]), { class = "quiet small", anchor = "end" })
   end
   if #scene.dims == 2 then
      canvas:text(LEFT - 6, TOP + 10, "0", { class = "quiet small", anchor = "end" })
      canvas:text(LEFT - 6, TOP + high, ("%.0f"):format(live.shape[scene.dims[1]]), { class = "quiet small", anchor = "end" })
      canvas:text(LEFT - 10, TOP + high / 2, ("dim %d"):format(scene.dims[1] - 1),
         { class = "quiet small", anchor = "middle", turned = true })
   end
   local y = TOP + high + 32
   for _, item in ipairs(legend_of(live, scene)) do
      local class, colour = class_of(item.kind, #scene.kinds)
      canvas:rect(LEFT, y, 11, 11, { class = "cell " .. (class or ""), style = colour })
      canvas:text(LEFT + 17, y + 10, item.text, { class = "small" })
      y = y + 18
   end
   return { title = live.name, caption = caption(live, scene), width = LEFT + WIDE + 60, height = y + 4, canvas = canvas }
end

--- The same in characters: a letter a parameter, 0 where padding clears, a dot where nothing writes.
function coverage.text(live, columns, colour)
   local scene = scene_of(live)
   local lines, wide = { live.name, caption(live, scene) }, math.max(8, math.min(72, columns - 4))
   local front, numbers = {}, boxes.front(scene.list, scene.dims)
   for i, number in ipairs(numbers) do
      front[i] = scene.list[number]
   end
   for _, row in ipairs(boxes.raster(front, live.shape, scene.dims, #scene.dims == 2 and 18 or 1, wide)) do
      local items = {}
      for j = 1, wide do
         local kind = row[j] and scene.regions[numbers[row[j]]].kind
         items[j] = kind == "cleared" and "0" or type(kind) == "number" and terminal.hue(terminal.letter(kind), kind, colour) or "·"
      end
      lines[#lines + 1] = table.concat(items)
   end
   for _, item in ipairs(legend_of(live, scene)) do
      local mark = item.kind == "cleared" and "0" or item.kind == "unwritten" and "·"
         or terminal.hue(terminal.letter(item.kind), item.kind, colour)
      lines[#lines + 1] = (" %s %s"):format(mark, item.text)
   end
   return lines
end

return coverage
