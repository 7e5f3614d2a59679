--- Sets of ranks and ranges of elements, short.
-- @module sluice.explain.ranks

local ranks = {}

--- A sorted list of numbers as runs: { first, last } or { first, last, step }, both ends in it.
function ranks.runs(list)
   local runs, i = {}, 1
   while i <= #list do
      local step, last = (list[i + 1] or list[i]) - list[i], i
      while list[last + 1] and list[last + 1] - list[last] == step do
         last = last + 1
      end
      if step > 1 and last - i < 2 then
         last = i
      end
      runs[#runs + 1] = { list[i], list[last], last > i and step > 1 and step or nil }
      i = last + 1
   end
   return runs
end

--- The keys of a set, sorted, as runs.
function ranks.runs_of_set(set)
   local list = {}
   for rank in pairs(set) do
      list[#list + 1] = rank
   end
   table.sort(list)
   return ranks.runs(list)
end

return ranks
