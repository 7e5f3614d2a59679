--- Who fills a live tensor of one worker: what each parameter writes, what padding clears, what nobody writes and whether
-- it may stay so.
-- @module sluice.explain.fill

local boxes = require "sluice.explain.boxes"
local core = require "sluice.core"
local resolve = require "sluice.resolve"
local slices = require "sluice.explain.slices"

local fill = {}

local FEW_WRITES = 16
local FEW_TARGETS = 16
local FEW_BOXES = 16

-- ---- what is written ----

local function describe_write(state, write, item)
   local decision = state.view.decision(write.parameter)
   local result = {
      parameter = state.params[write.parameter].name, rule = decision.reason, where = decision.where, problem = write.problem,
   }
   if write.window then
      local window = boxes.volume(write.window) * item
      result.live, result.source, result.bytes = write.live, write.source, write.bytes
      result.cleared_bytes = window - write.bytes
      if result.cleared_bytes > 0 then
         result.cleared = boxes.subtract(write.window, write.live and { write.live } or {})
      end
   end
   return result
end

local function first(list, count)
   local few = {}
   for i = 1, math.min(#list, count) do
      few[i] = list[i]
   end
   return few
end

local function in_order(a, b)
   if not a.window or not b.window then
      return a.window ~= nil and b.window == nil
   end
   return boxes.before(a.window, b.window)
end

-- The writes that land here, sorted by where.
local function land(state, name)
   local here, elsewhere = {}, {}
   for _, write in ipairs(state.view.writes(name)) do
      local list = (write.window or write.problem) and here or elsewhere
      list[#list + 1] = write
   end
   table.sort(here, function(a, b)
      if in_order(a, b) or in_order(b, a) then
         return in_order(a, b)
      end
      return a.parameter < b.parameter or a.parameter == b.parameter and a.target < b.target
   end)
   return here, elsewhere
end

-- ---- what is not ----

local function loaders(state, name)
   local list = {}
   for i, param in ipairs(state.params) do
      if state.view.mode(i) == "full" then
         for _, live in ipairs(resolve.loads(state.context, param)) do
            if live == name then
               local decision = state.view.decision(i)
               list[#list + 1] = { name = param.name, reason = decision.reason, where = decision.where }
            end
         end
      end
   end
   return list
end

-- Why bytes may stay unwritten.
local function add_excuse(state, name, answer)
   local set = state.context.set
   local unsourced = set and set.unsourced and set.unsourced:find(name)
   if unsourced then
      answer.unsourced = { pattern = unsourced.pattern, where = unsourced.place }
   end
   local list = loaders(state, name)
   if list[1] then
      answer.loaded_by = state.all and list or first(list, FEW_WRITES)
   end
end

local function add_unwritten(state, name, answer, writes)
   local holes, taken = {}, 0
   for _, write in ipairs(writes) do
      if write.window then
         holes[#holes + 1] = write.window
         taken = taken + boxes.volume(write.window)
      end
   end
   local whole = boxes.whole(answer.shape)
   local left, count = boxes.subtract(whole, holes), math.max(boxes.volume(whole) - taken, 0)
   if left then
      count = 0
      for _, box in ipairs(left) do
         count = count + boxes.volume(box)
      end
      table.sort(left, boxes.before)
      answer.unwritten = state.all and left or first(left, FEW_BOXES)
   end
   answer.unwritten_bytes = count * core.dtypes[answer.dtype]
   if count > 0 then
      add_excuse(state, name, answer)
   end
end

--- The answer on a live tensor: of this worker, or one that rules name and other workers have; nil where nobody knows it.
function fill.live(state, name)
   local live = state.context.live[name]
   local writes, absent = land(state, name)
   if not live then
      if not writes[1] and not absent[1] then
         return nil
      end
      local named = first(#absent > 0 and absent or writes, FEW_TARGETS)
      return { name = name, elsewhere = slices.holders(state, named), writes = {}, named_by = state.params[named[1].parameter].name }
   end
   local answer = { name = name, dtype = live.dtype, shape = live.shape, writes = {}, writes_in_all = #writes, written_bytes = 0,
                    cleared_bytes = 0, shares_memory_with = state.view.shared(live.number) }
   local item = core.dtypes[live.dtype]
   answer.bytes = boxes.volume(boxes.whole(live.shape)) * item
   for number, write in ipairs(writes) do
      local described = describe_write(state, write, item)
      answer.written_bytes = answer.written_bytes + (described.bytes or 0)
      answer.cleared_bytes = answer.cleared_bytes + (described.cleared_bytes or 0)
      if state.all or number <= FEW_WRITES then
         answer.writes[number] = described
      end
   end
   add_unwritten(state, name, answer, writes)
   return answer
end

return fill
