--- Random plans for the property test. A case is a pure function of its seed; everything in it is plain Lua tables in the
-- oracle's words, from which the spec makes the planner's structs.

local oracle = require "spec.support.oracle"

local random = {}

--- A stream of numbers from a seed (xorshift, so that it is the same everywhere): next(low, high), both inclusive.
function random.stream(seed)
   local bit = require "bit"
   local x = bit.bxor(bit.tobit(seed * 2654435761 % 4294967296), 0x5bd1e995)
   if x == 0 then
      x = 1
   end
   local stream = {}
   function stream.next(low, high)
      x = bit.bxor(x, bit.lshift(x, 13))
      x = bit.bxor(x, bit.rshift(x, 17))
      x = bit.bxor(x, bit.lshift(x, 5))
      return low + x % 4294967296 % (high - low + 1)
   end
   function stream.chance(percent)
      return stream.next(1, 100) <= percent
   end
   function stream.pick(list)
      return list[stream.next(1, #list)]
   end
   function stream.shuffle(list)
      for i = #list, 2, -1 do
         local j = stream.next(1, i)
         list[i], list[j] = list[j], list[i]
      end
      return list
   end
   for _ = 1, 8 do
      stream.next(0, 1)
   end
   return stream
end

local function divisors(number)
   local list = {}
   for i = 1, number do
      if number % i == 0 then
         list[#list + 1] = i
      end
   end
   return list
end

-- Axes whose product is at most `most`; now and then all eight of them.
local function axes(r, most)
   local list, size = {}, 1
   for i = 1, r.chance(4) and 8 or r.next(1, 3) do
      local axis = r.next(1, 4)
      if size * axis > most then
         axis = 1
      end
      size = size * axis
      list[i] = axis
   end
   return list, size
end

-- Placements on some of the axes, in any nesting order. Chunks reach what the largest piece has left.
local function placements(r, sizes, shape)
   local order, list, largest = {}, {}, {}
   for i = 1, #sizes do
      order[i] = i - 1
   end
   for d = 1, #shape do
      largest[d] = shape[d]
   end
   for _, axis in ipairs(r.shuffle(order)) do
      local size = sizes[axis + 1]
      if #shape > 0 and r.chance(65) then
         -- Often the same dim again, so that axes nest.
         local dim = #list > 0 and list[#list].shard and r.chance(40) and list[#list].shard or r.next(0, #shape - 1)
         local placement = {axis = axis, shard = dim, parts = r.chance(20) and r.pick(divisors(size)) or size}
         local even = math.ceil(largest[dim + 1] / placement.parts)
         if r.chance(25) then
            placement.split = "balanced"
         elseif r.chance(25) then
            placement.chunk = math.max(1, even + r.next(0, 2))
         end
         largest[dim + 1] = math.min(largest[dim + 1], placement.chunk or even)
         list[#list + 1] = placement
      elseif r.chance(20) then
         list[#list + 1] = {axis = axis, pin = r.next(0, size - 1)}
      end
   end
   return list
end

local function shape_of(r)
   local ndim = r.chance(5) and 8 or r.next(0, 4)
   local shape, most = {}, ({1, 24, 13, 8, 5})[ndim + 1] or 2
   for d = 1, ndim do
      shape[d] = r.next(1, most)
   end
   return shape
end

-- One range within an extent: {start, count, step}, or {index, select = true}.
local function range_of(r, extent)
   local kind = r.next(1, 100)
   if kind <= 55 then
      return {0, extent, 1}
   elseif kind <= 65 then
      return {r.next(0, extent - 1), select = true}
   end
   local step = kind <= 85 and 1 or r.next(1, 3)
   local start = r.next(0, extent - 1)
   return {start, r.next(1, math.floor((extent - 1 - start) / step) + 1), step}
end

-- The strips of a parameter: one, or two that share no element.
local function strips_of(r, shape)
   local first = {}
   for d = 1, #shape do
      first[d] = range_of(r, shape[d])
   end
   local wide = {}
   for d = 1, #shape do
      if not first[d].select and first[d][2] > 1 then
         wide[#wide + 1] = d
      end
   end
   if #wide == 0 or r.chance(60) then
      return {first}
   end
   local cut, second = r.pick(wide), {}
   for d = 1, #shape do
      second[d] = first[d]
   end
   local start, count, step = first[cut][1], first[cut][2], first[cut][3]
   first[cut], second[cut] = nil, nil
   if r.chance(50) then
      local at = r.next(1, count - 1)
      first[cut] = {start, at, step}
      second[cut] = {start + at * step, count - at, step}
   else
      first[cut] = {start, math.ceil(count / 2), step * 2}
      second[cut] = {start + step, math.floor(count / 2), step * 2}
   end
   return {first, second}
end

-- Placements that leave one axis alone, with a pin on it somewhere among them.
local function pinned_placements(r, sizes, shape, pin)
   local others, list = {}, {}
   for i, size in ipairs(sizes) do
      others[i] = i - 1 == pin.axis and 1 or size
   end
   for _, placement in ipairs(placements(r, others, shape)) do
      if placement.axis ~= pin.axis then
         list[#list + 1] = placement
      end
   end
   table.insert(list, r.next(1, #list + 1), pin)
   return list
end

-- One coordinate of an axis has the whole of what other axes' pins let, the others nothing.
local function first_placements(r, sizes, shape)
   local axis, dim, list = r.next(0, #sizes - 1), r.next(0, #shape - 1), {}
   for other, size in ipairs(sizes) do
      if other - 1 ~= axis and r.chance(20) then
         list[#list + 1] = {axis = other - 1, pin = r.next(0, size - 1)}
      end
   end
   list[#list + 1] = {axis = axis, shard = dim, parts = sizes[axis + 1], chunk = shape[dim + 1]}
   return list
end

-- A target of a strip: its layout, its view and, for each worker, the live tensor that fits. `slot` selects a place in an
-- outermost live dim of `slots`, so that several targets share one tensor; `pin` is a placement that the layout must have.
local function target_of(r, case, source, name, slots, slot, pin)
   local strip = oracle.strip(source)
   local first = not pin and #strip > 0 and r.chance(8)
   local target = {source = source, live = name, pad = first and "EMPTY" or r.chance(30),
      layout = {first = case.trainers, axes = case.worker_axes,
         placements = first and first_placements(r, case.worker_axes, strip)
            or pin and pinned_placements(r, case.worker_axes, strip, pin) or placements(r, case.worker_axes, strip)}}
   local boxes, most = {}, {}
   for d = 1, #strip do
      most[d] = 0
   end
   for worker = 0, case.workers - 1 do
      local holds = oracle.holds(target.layout, strip, case.trainers + worker)
      if holds then
         boxes[worker] = {}
         for d = 1, #strip do
            boxes[worker][d] = oracle.count(holds[d])
            most[d] = math.max(most[d], boxes[worker][d])
         end
      end
   end
   target.view, target.order = {}, {}
   if slots then
      target.view[1] = {slot, select = true}
   end
   local order = {}
   for d = 1, #strip do
      order[d] = d
   end
   if r.chance(40) then
      r.shuffle(order)
   end
   local shapes = {}
   for worker in pairs(boxes) do
      shapes[worker] = slots and {slots} or {}
   end
   for i, d in ipairs(order) do
      if #target.view + #order - i < 7 and r.chance(12) then
         target.view[#target.view + 1] = {r.next(0, 2), select = true}
         for _, shape in pairs(shapes) do
            shape[#shape + 1] = 3
         end
      end
      local start, step = r.chance(70) and 0 or r.next(1, 3), r.chance(85) and 1 or r.next(2, 3)
      local fixed = target.pad and r.chance(50)
      local extra = target.pad == true and r.next(0, 2) or 0
      target.view[#target.view + 1] = {start, fixed and most[d] + extra or nil, step}
      target.order[#target.order + 1] = d - 1
      for worker, shape in pairs(shapes) do
         local count = (fixed and most[d] or boxes[worker][d]) + extra
         shape[#shape + 1] = start + (count == 0 and 0 or (count - 1) * step + 1)
      end
   end
   target.ndim = #target.view
   return target, shapes, boxes
end

-- Strides of a tensor in some order of its dims, with room between rows now and then; and the bytes that it spans.
local function strides_of(r, shape, item, memory_order, gaps)
   local strides, reach = {}, item
   for _, d in ipairs(memory_order) do
      strides[d] = reach
      reach = reach * math.max(1, shape[d]) + (gaps and r.chance(30) and r.next(0, 3) * item or 0)
   end
   return strides, reach
end

local function register(r, case, name, dtype, shapes, boxes, ndim)
   local memory_order = {}
   for d = ndim, 1, -1 do
      memory_order[#memory_order + 1] = d
   end
   if r.chance(25) then
      r.shuffle(memory_order)
   end
   local gaps = r.chance(30)
   for worker = 0, case.workers - 1 do
      local shape, empty = shapes[worker], false
      for _, extent in ipairs(boxes[worker] or {}) do
         empty = empty or extent == 0
      end
      if shape and not (empty and r.chance(30)) or (not shape and r.chance(30)) then
         if not shape then
            shape = {}
            for d = 1, ndim do
               shape[d] = 2
            end
         end
         local strides, reach = strides_of(r, shape, dtype.bytes, memory_order, gaps)
         local list = case.live[worker]
         list[#list + 1] = {name = name, dtype = dtype.name, item = dtype.bytes, shape = shape, strides = strides, reach = reach,
            offset = case.bytes[worker]}
         case.bytes[worker] = case.bytes[worker] + reach + r.next(0, 3)
      end
   end
end

-- The target once more, into the same live tensor, on the workers of another coordinate of the pinned axis.
local function twin_of(r, case, target, pin, shapes, boxes)
   local size, twin = case.worker_axes[pin.axis + 1], {}
   local shift = r.next(1, size - 1)
   for key, value in pairs(target) do
      twin[key] = value
   end
   local layout = target.layout
   twin.layout = {first = layout.first, axes = layout.axes, placements = {}}
   local other = {axis = pin.axis, pin = (pin.pin + shift) % size}
   for i, placement in ipairs(layout.placements) do
      twin.layout.placements[i] = placement == pin and other or placement
   end
   local stride = 1
   for axis = pin.axis + 2, #layout.axes do
      stride = stride * layout.axes[axis]
   end
   local there = {}
   for worker in pairs(shapes) do
      there[#there + 1] = worker
   end
   for _, worker in ipairs(there) do
      local moved = worker + (other.pin - pin.pin) * stride
      shapes[moved], boxes[moved] = shapes[worker], boxes[worker]
   end
   return twin
end

local dtypes = {{name = "uint8", bytes = 1}, {name = "bfloat16", bytes = 2}, {name = "float32", bytes = 4},
   {name = "int64", bytes = 8}}

-- A target that only clears a part of a live tensor of its own dtype; the view says some of its dims.
local function clearing_target(r, case, source, name)
   local dtype, shape, shapes = r.pick(dtypes), {}, {}
   for d = 1, r.next(0, 3) do
      shape[d] = r.next(1, 5)
   end
   local target = {source = source, live = name, pad = "CLEAR", view = {}, order = {},
      layout = {first = case.trainers, axes = case.worker_axes, placements = {}}}
   for d = 1, r.next(0, #shape) do
      target.view[d] = range_of(r, shape[d])
   end
   target.ndim = #target.view
   for axis, size in ipairs(case.worker_axes) do
      if r.chance(20) then
         table.insert(target.layout.placements, {axis = axis - 1, pin = r.next(0, size - 1)})
      end
   end
   local boxes = {}
   for worker = 0, case.workers - 1 do
      shapes[worker], boxes[worker] = shape, {0} -- so that some have no such tensor
   end
   register(r, case, name, dtype, shapes, boxes, #shape)
   return target
end

local function param_of(r, case, number)
   local dtype = r.pick(dtypes)
   local param = {name = "p" .. number, dtype = dtype.name, item = dtype.bytes, shape = shape_of(r)}
   param.source = {first = 0, axes = case.trainer_axes, placements = placements(r, case.trainer_axes, param.shape)}
   if r.chance(12) then
      param.full = true
      return param
   end
   param.targets = {}
   local strips = strips_of(r, param.shape)
   if r.chance(15) then -- some of the same elements once more, into a live tensor of their own
      strips[#strips + 1] = strips_of(r, param.shape)[1]
   end
   local shared = #strips == 1 and #param.shape < 8 and r.chance(15)
   for i, source in ipairs(strips) do
      local name, pin = ("live%d.%d"):format(number, i), nil
      local axis = r.next(1, #case.worker_axes)
      if case.worker_axes[axis] > 1 and r.chance(15) then
         pin = {axis = axis - 1, pin = r.next(0, case.worker_axes[axis] - 1)}
      end
      local target, shapes, boxes = target_of(r, case, source, name, shared and 2 or nil, shared and r.next(0, 1) or nil, pin)
      table.insert(param.targets, target)
      if pin then
         table.insert(param.targets, twin_of(r, case, target, pin, shapes, boxes))
      end
      register(r, case, name, dtype, shapes, boxes, target.ndim)
   end
   if r.chance(15) then
      table.insert(param.targets, clearing_target(r, case, strips[1], ("clear%d"):format(number)))
   end
   return param
end

--- The case of a seed: {trainers, workers, trainer_axes, worker_axes, quantum, params = {...}, live = {[worker] = {...}},
-- bytes = {[worker] = bytes of its memory}}.
function random.case(seed)
   local r = random.stream(seed)
   local case = {seed = seed, quantum = r.pick {1, 4, 16, 64, 1048576}, params = {}, live = {}, bytes = {}}
   case.trainer_axes, case.trainers = axes(r, 12)
   case.worker_axes, case.workers = axes(r, 8)
   for worker = 0, case.workers - 1 do
      case.live[worker] = {}
      case.bytes[worker] = 0
   end
   for i = 1, r.chance(30) and 2 or 1 do
      case.params[i] = param_of(r, case, i)
   end
   return case
end

return random
