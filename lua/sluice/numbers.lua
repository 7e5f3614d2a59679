--- The words of rule files that reckon: exact division, heads and experts over ranks, and numbers picked by a capture.
-- @module sluice.numbers

jit.off(true, true)

local sealed = require "sluice.sealed"

local numbers = {}

local MOST_SPREAD = 2 ^ 20
local MOST_EACH = 1024 -- as many targets as a parameter may have

local kind, made, raise, shown, integer = sealed.kind, sealed.make, sealed.raise, sealed.shown, sealed.integer

-- The entry of a list that the captured number names, counted from 0; an entry may itself be a list, one for each copy.
function numbers.pick(capture, list)
   if type(capture) ~= "string" or not capture:find("^[%a_][%w_]*$") then
      raise("pick (%s) must begin with the name of a capture", shown(capture))
   elseif type(list) ~= "table" or kind(list) or #list == 0 then
      raise('pick("%s") (%s) needs a list of numbers', capture, shown(list))
   end
   local copy, several = {}, false
   for i = 1, #list do
      copy[i] = list[i]
      if type(list[i]) == "table" and not kind(list[i]) and #list[i] > 0 then
         if #list[i] > MOST_EACH then
            raise('pick("%s")[%d] must list at most %d copies; it has %d', capture, i - 1, MOST_EACH, #list[i])
         end
         copy[i], several = {}, true
         for k = 1, #list[i] do
            copy[i][k] = integer(list[i][k], ('pick("%s")[%d][%d]'):format(capture, i - 1, k - 1), 0)
         end
      else
         integer(list[i], ('pick("%s")[%d]'):format(capture, i - 1), 0)
      end
   end
   return made("pick", { capture = capture, list = copy, several = several })
end

-- A number that is several: each entry of a list, or each of 0 to count - 1, times `step`, from `start` on, which may itself be
-- an each of as many. The strip that it stands in is made once for each.
function numbers.each(list, step, start)
   local count = type(list) == "number" and integer(list, "each", 1, MOST_EACH)
   if not count and (type(list) ~= "table" or kind(list) or #list == 0 or #list > MOST_EACH) then
      raise("each (%s) needs how many, or a list of 1 to %d numbers", shown(list), MOST_EACH)
   end
   step = step == nil and 1 or integer(step, "each: step", 0)
   local starts = kind(start) == "each" and sealed.open(start).each
   if starts and #starts ~= (count or #list) then
      raise("each of %d has a start that is an each of %d", count or #list, #starts)
   end
   start = starts and 0 or start == nil and 0 or integer(start, "each: start", 0)
   local values = {}
   for i = 1, count or #list do
      local entry = count and i - 1 or integer(list[i], ("each[%d]"):format(i - 1), 0)
      values[i] = integer(entry * step + (starts and starts[i] or start), ("each[%d]"):format(i - 1), 0)
   end
   return made("each", { each = values })
end

function numbers.divide(a, b)
   integer(a, "divide", 0)
   integer(b, "divide: by", 1)
   if a % b ~= 0 then
      raise("%.0f does not divide by %.0f", a, b)
   end
   return a / b
end

function numbers.round_up(a, b)
   integer(a, "round_up", 0)
   integer(b, "round_up: to a multiple of", 1)
   return math.ceil(a / b) * b
end

function numbers.ceil_divide(a, b)
   integer(a, "ceil_divide", 0)
   integer(b, "ceil_divide: by", 1)
   return math.ceil(a / b)
end

-- How many of `total` things each of `ranks` gets, and how many different parts there are: fewer things than ranks are
-- repeated, never split.
function numbers.share(total, ranks)
   integer(total, "share", 1)
   integer(ranks, "share: among", 1)
   if total >= ranks then
      if total % ranks ~= 0 then
         raise("%.0f cannot be shared among %.0f ranks: it must divide", total, ranks)
      end
      return total / ranks, ranks
   elseif ranks % total ~= 0 then
      raise("%.0f cannot be repeated over %.0f ranks: the ranks must divide by it", total, ranks)
   end
   return 1, total
end

local function even_counts(total, ranks)
   integer(total, "spread", 1, MOST_SPREAD)
   integer(ranks, "spread: over", 1, MOST_SPREAD)
   local counts = {}
   for rank = 1, ranks do
      counts[rank] = math.floor(total / ranks) + (rank <= total % ranks and 1 or 0)
   end
   return counts
end

-- Adds what one more rank holds: the first time a thing comes its number stands alone, then a list of them.
local function add_held(held, thing, number)
   local before = held[thing + 1]
   if before == nil then
      held[thing + 1] = number
   elseif type(before) == "table" then
      before[#before + 1] = number
   else
      held[thing + 1] = { before, number }
   end
end

-- The same from lists of what each rank holds, by number, in its order; a thing may have several copies.
local function spread_lists(lists)
   local owner, position, most, sum = {}, {}, -1, 0
   for rank = 1, #lists do
      local list = lists[rank]
      if type(list) ~= "table" or kind(list) then
         raise("spread[%d] (%s) must be a list of what rank %d holds", rank - 1, shown(list), rank - 1)
      end
      sum = sum + #list
      if sum > MOST_SPREAD then
         raise("spread (%.0f) must be at most %.0f things", sum, MOST_SPREAD)
      end
      for i = 1, #list do
         local thing = integer(list[i], ("spread[%d][%d]"):format(rank - 1, i - 1), 0, MOST_SPREAD)
         most = math.max(most, thing)
         add_held(owner, thing, rank - 1)
         add_held(position, thing, i - 1)
      end
   end
   for thing = 0, most do
      if owner[thing + 1] == nil then
         raise("spread: no rank holds %.0f, but one holds %.0f", thing, most)
      end
   end
   return { owner = owner, position = position }
end

-- Which rank owns each of `total` things in order, and as which of its own: the first ranks hold one more where it does not
-- divide. A list instead of a number says how many each rank holds, a list of lists which ones.
function numbers.spread(total, ranks)
   local is_list = type(total) == "table" and not kind(total)
   if is_list and ranks ~= nil and #total ~= integer(ranks, "spread: over", 1, MOST_SPREAD) then
      raise("spread has a list of %.0f ranks for %.0f", #total, ranks)
   elseif is_list and type(total[1]) == "table" then
      return spread_lists(total)
   end
   local counts = is_list and total or even_counts(total, ranks)
   local owner, position, sum = {}, {}, 0
   for rank = 1, #counts do
      sum = sum + integer(counts[rank], ("spread[%d]"):format(rank - 1), 0, MOST_SPREAD)
      if sum > MOST_SPREAD then
         raise("spread (%.0f) must be at most %.0f things", sum, MOST_SPREAD)
      end
      for i = 1, counts[rank] do
         owner[#owner + 1], position[#position + 1] = rank - 1, i - 1
      end
   end
   return { owner = owner, position = position }
end

return numbers
