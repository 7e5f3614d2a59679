--- From a rule's strip and one parameter to a target: ranges of the parameter, the view of the live tensor, the layout on
-- the workers. Thousands of parameters share a few of them; each different one goes to C once, as a template.
-- @module sluice.target

local check = require "sluice.check"
local default = require "sluice.default"
local rule_body = require "sluice.rule_body"
local scales = require "sluice.scales"
local words = require "sluice.words"

local target = {}

local IN_BLOCKS, BLOCK = "float8_e4m3fn", 128 -- as base/cast.h: what is converted in blocks that share a scale
local SPLITS = { ceil = 0, balanced = 1 }
local CHUNK = 2
local TO_END = -1
local MOST_DIMS = 8
local LONGEST_SHOWN = 200
local MOST_TEMPLATES = 2 ^ 18

local function fail(said, name, text, ...)
   check.raise("SCRIPT", ('%s: %s "%s": %s %s'):format(said.place, said.word or "rule", check.shorten(said.pattern, LONGEST_SHOWN),
      check.shorten(name, LONGEST_SHOWN), text:format(...)))
end

-- ---- captured numbers ----

-- The entry of a pick's list that this name's capture names.
local function picked(pick, entry, matcher, said, name)
   if pick.each then
      return pick.each
   end
   local text = entry.bound[pick.capture]
   if not text then
      local wild = said.names[pick.capture]
      text = name:sub(matcher.from[wild], matcher.to[wild])
   end
   local number = text:find("^%d+$") and #text < 10 and tonumber(text)
   local value = number and pick.list[number + 1]
   if not value then
      fail(said, name, 'has {%s} = %s; pick("%s") has entries 0 to %d', pick.capture, text, pick.capture, #pick.list - 1)
   end
   return value
end

-- What each pick of a list gives for this name, a text that is equal where all give the same, and how many copies there are
-- where a pick gives a list, as an each does.
local function pick_all(picks, entry, matcher, said, name)
   if #picks == 0 then
      return picks, ""
   end
   local numbers, copies, key = {}, nil, nil
   for i, pick in ipairs(picks) do
      local number = picked(pick, entry, matcher, said, name)
      if type(number) == "table" then
         if copies and copies ~= #number then
            fail(said, name, "is picked %d and %d copies of", copies, #number)
         end
         copies = #number
         key = (key or "") .. (pick.each and "" or table.concat(number, "+") .. ",") -- an each is the same for every name
      else
         key = key and key .. number .. "," or #picks == 1 and number or number .. ","
      end
      numbers[i] = number
   end
   return numbers, key, copies
end

-- The numbers of one copy.
local function of_copy(numbers, copy)
   local own = {}
   for i, number in ipairs(numbers) do
      own[i] = type(number) == "table" and number[copy] or number
   end
   return own
end

-- The list with its picks replaced by the numbers that they gave.
local function settle(list, picks, numbers)
   local settled = {}
   for i, value in ipairs(list) do
      settled[i] = value
      local pick = rule_body.pick_in(value)
      for k = 1, pick and #picks or 0 do
         if picks[k] == pick then
            local number = numbers[k]
            settled[i] = { kind = words.kind(value), dim = value.dim, axis = value.axis, count = value.count, step = value.step,
                           start = number, at = number, coordinate = number }
         end
      end
   end
   return settled
end

local function kind_of(value)
   return value.kind or words.kind(value)
end

-- ---- ranges ----

local function ranges(list, ndim, what, said, name, shape)
   local result, selected = {}, 0
   for dim = 0, ndim - 1 do
      result[dim + 1] = { 0, 1, TO_END, 0 }
   end
   for _, slice in ipairs(list) do
      if slice.dim >= ndim then
         fail(said, name, "of shape %s: %s slices dim %d of %d dims", shape, what, slice.dim, ndim)
      elseif kind_of(slice) == "index" then
         result[slice.dim + 1] = { slice.at, 1, 1, 1 }
         selected = selected + 1
      else
         result[slice.dim + 1] = { slice.start, slice.step, slice.count or TO_END, 0 }
      end
   end
   return result, selected
end

local function count_selects(list)
   local count = 0
   for _, slice in ipairs(list) do
      count = count + (kind_of(slice) == "index" and 1 or 0)
   end
   return count
end

-- ---- layouts ----

local function axis_in(mesh, name)
   for number, axis in ipairs(mesh.axes) do
      if axis[1] == name then
         return number - 1, axis[2]
      end
   end
end

local function holds_all(mesh, names)
   for _, name in ipairs(names) do
      if not axis_in(mesh, name) then
         return false
      end
   end
   return true
end

-- The first mesh with every axis named that any mesh has; axes of size 1 matter only if that finds one.
local function choose_mesh(meshes, placements, said, name)
   local all, cutting = {}, {}
   for _, placement in ipairs(placements) do
      local largest
      for _, mesh in ipairs(meshes) do
         local _, size = axis_in(mesh, placement.axis)
         largest = math.max(largest or 0, size or 0)
      end
      all[#all + 1] = largest > 0 and placement.axis or nil
      cutting[#cutting + 1] = largest > 1 and placement.axis or nil
   end
   for _, names in ipairs({ all, cutting }) do
      for _, mesh in ipairs(meshes) do
         if holds_all(mesh, names) then
            return mesh
         end
      end
   end
   fail(said, name, "needs the axes %s in one mesh of the workers", table.concat(cutting, ", "))
end

-- Whether a rank can be left without elements by a cut of `extent` into `parts`.
local function leaves_none(extent, parts, placement)
   local piece = placement.chunk or math.ceil(extent / parts)
   if placement.split == "balanced" then
      return extent < parts
   end
   return (parts - 1) * piece >= extent
end

-- The mesh, the placements as numbers, whether every worker surely holds elements, and whether those without clear theirs.
local function layout(meshes, placements, extents, said, name)
   local mesh = choose_mesh(meshes, placements, said, name)
   local numbers, cut, everywhere, others_empty = {}, {}, true, false
   for _, placement in ipairs(placements) do
      local axis, size = axis_in(mesh, placement.axis)
      if kind_of(placement) == "pin" then
         if placement.coordinate >= (size or 1) then
            fail(said, name, 'is pinned to %s %.0f; the workers have %.0f of them', placement.axis, placement.coordinate,
               size or 1)
         elseif (size or 1) > 1 then
            numbers[#numbers + 1] = { axis, -1, placement.coordinate, 0, 0 }
            everywhere = false
         end
      elseif kind_of(placement) == "first" then
         if (size or 1) > 1 then
            if #extents == 0 then
               fail(said, name, 'has no dims here; first("%s") needs one', placement.axis)
            end
            numbers[#numbers + 1] = { axis, 0, size, CHUNK, extents[1] }
            everywhere, others_empty = false, true
         end
      elseif axis and (size > 1 or placement.chunk) then
         local parts = placement.parts or size
         numbers[#numbers + 1] = { axis, placement.dim, parts, placement.chunk and CHUNK or SPLITS[placement.split or "ceil"],
                                   placement.chunk or 0 }
         local extent = extents[placement.dim + 1]
         everywhere = everywhere and extent ~= nil and not cut[placement.dim] and not leaves_none(extent, parts, placement)
         cut[placement.dim] = true
      end
   end
   return mesh.name, numbers, everywhere, others_empty
end

-- ---- targets ----

-- Extents of the strip, in its dims.
local function strip_extents(from, shape)
   local extents = {}
   for dim, range in ipairs(from) do
      if range[4] == 0 then
         extents[#extents + 1] = range[3] == TO_END and math.ceil((shape[dim] - range[1]) / range[2]) or range[3]
      end
   end
   return extents
end

local function order_of(strip, ndim, said, name)
   if strip.permute and #strip.permute ~= ndim then
      fail(said, name, "has %d dims here; permute has %d", ndim, #strip.permute)
   end
   local order = {}
   for i = 1, ndim do
      order[i] = strip.permute and strip.permute[i] or i - 1
   end
   return order
end

--- The dtype in which a strip lands, nil for the parameter's own. A scale is no number of the model's: it stays as it is.
-- @param entry of rule.lua
function target.converted(context, entry, strip, param)
   local to, general = strip.convert, context.set.convert
   if to == nil and type(general) == "table" then
      local found = general:find(param.ruled)
      to = found and found.dtype
   elseif to == nil and param.dtype == "float32" then
      to = general
   end
   to = not param.weight and to ~= param.dtype and to or nil
   if to == IN_BLOCKS then
      local block = context.set.scales and context.set.scales.block
      if not block or block[1] ~= BLOCK or block[2] ~= BLOCK then
         fail(entry.said, param.canonical, 'is converted to %s, with scales: the file must say where they land, as scales = { ending = '
            .. '"_scale_inv", block = { %d, %d } }', to, BLOCK, BLOCK)
      end
   end
   return to
end

-- A view of the elements, for their scales: a number for each block of the live tensor's last two dims.
local function view_in_blocks(view)
   local made = { unpack(view) }
   for dim = math.max(1, #view - 1), #view do
      local start, step, count, select = unpack(view[dim])
      made[dim] = { math.floor(start / BLOCK), step, count == TO_END and count or math.ceil(count / BLOCK), select }
   end
   return made
end

local function make(context, strip, said, param, at, from, placements, to)
   local name, shape = param.canonical, param.shape
   local shown = default.shape_text(shape)
   local source, dropped = ranges(from, #shape, "from", said, name, shown)
   local ndim = #shape - dropped
   local live_ndim = ndim + count_selects(at)
   if live_ndim > MOST_DIMS then
      fail(said, name, "of shape %s: with the index of at, its live tensor would have %d dims; %d are allowed", shown, live_ndim,
         MOST_DIMS)
   end
   local view = ranges(at, live_ndim, "at", said, name, shown)
   local mesh, numbers, everywhere, others_empty = layout(context.meshes, placements, strip_extents(source, shape), said, name)
   local pad = strip.pad or others_empty and "empty" or "none"
   local order, template = order_of(strip, ndim, said, name), context.plan.template
   local made = { id = template(mesh, numbers, source, view, order, pad, to), everywhere = everywhere }
   if to == IN_BLOCKS then
      made.scales = template(mesh, numbers, source, view_in_blocks(view), order, pad, "float32", true)
   end
   return made
end

-- A strip that only clears: `at` says as many of the live tensor's dims as it needs to.
local function make_clearing(context, said, param, at, placements)
   local last = 0
   for _, slice in ipairs(at) do
      last = math.max(last, slice.dim + 1)
   end
   local source, view = ranges({}, #param.shape), ranges(at, last)
   local mesh, numbers = layout(context.meshes, placements, {}, said, param.canonical)
   return { id = context.plan.template(mesh, numbers, source, view, {}, "clear"), everywhere = false }
end

local function joined(pins, placements)
   if #pins == 0 then
      return placements
   end
   local list = {}
   for _, part in ipairs({ pins, placements }) do
      for i = 1, #part do
         list[#list + 1] = part[i]
      end
   end
   return list
end

-- Of a scale: what the strip says of its weight, counted in blocks.
local function count_in_blocks(context, said, param, pins, strip)
   local mesh = choose_mesh(context.meshes, joined(pins, strip.layout), said, param.canonical)
   local function size(axis)
      local _, found = axis_in(mesh, axis)
      return found or 1
   end
   return scales.in_blocks(context.set.scales.block, param.weight.shape, strip, size, function(text, ...)
      fail(said, param.canonical, "goes as its weight, counted in blocks: %s", text:format(...))
   end)
end

local function make_for(context, strip, said, param, pins, numbers, to)
   local at, placements = settle(strip.at, strip.picks, numbers), settle(strip.layout, strip.picks, numbers)
   if strip.zero then
      return make_clearing(context, said, param, at, joined(pins, placements))
   end
   local from = settle(strip.from, strip.picks, numbers)
   if param.weight then
      from, at, placements = count_in_blocks(context, said, param, pins,
         { from = from, at = at, layout = placements, permute = strip.permute })
   end
   return make(context, strip, said, param, at, from, joined(pins, placements), to)
end

--- The templates of one strip for one parameter: one, or as many as its picks give copies.
-- @param context { plan =, meshes =, set = }
-- @param strip of rule.lua
-- @param entry of rule.lua, right after its matcher found the name that rules match
-- @param pins settled pins that a `where` adds, and their text
-- @return list of { id =, everywhere = whether each worker surely holds elements, scales = of a conversion in blocks, the id of the
-- target that its scales are }
function target.templates(context, strip, entry, matcher, param, pins, pins_key)
   local said, name = entry.said, param.ruled
   local numbers, key, copies = pick_all(strip.picks, entry, matcher, said, name)
   key = (param.weight and param.weight.shape_key .. "/" or "") .. param.shape_key .. "|" .. pins_key .. "|" .. key
   local to = not strip.zero and target.converted(context, entry, strip, param) or nil
   if to then
      key = to .. "|" .. key
   end
   local found = strip.templates[key]
   if not found then
      found = {}
      context.templates = (context.templates or 0) + (copies or 1)
      if context.templates > MOST_TEMPLATES then
         fail(said, name, "is one too many: the rules make more than %d different targets", MOST_TEMPLATES)
      end
      for copy = 1, copies or 1 do
         found[copy] = make_for(context, strip, said, param, pins, copies and of_copy(numbers, copy) or numbers, to)
      end
      strip.templates[key] = found
   end
   return found
end

--- The pins that a `where` adds to a name, with the captured numbers filled in.
-- @return list of pins, and a text that is equal for equal lists
function target.pins(where, matcher, name)
   local numbers, key = pick_all(where.picks, where, matcher, where.said, name)
   key = where.number .. ":" .. key
   local found = where.settled[key]
   if not found then
      found = settle(where.pins, where.picks, numbers)
      where.settled[key] = found
   end
   return found, key
end

return target
