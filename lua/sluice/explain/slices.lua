--- Which worker gets what of a parameter, and from whom: workers that get the same are one group, so that thousands stay short.
-- @module sluice.explain.slices

local ranks = require "sluice.explain.ranks"

local slices = {}

local FEW_GROUPS = 8
local MOST_PIECES = 2 ^ 18 -- looked at for the trainers of groups

-- The workers that get elements, by what they get: lists of ranks in order of their first; and those that get none.
local function group(state, i, t)
   local groups, by_shard, without = {}, {}, {}
   for rank = state.trainers, state.trainers + state.workers - 1 do
      local shard = state.view.shard(i, t, rank)
      if not shard then
         without[#without + 1] = rank
      else
         local members = by_shard[shard]
         if not members then
            members = {}
            by_shard[shard], groups[#groups + 1] = members, members
         end
         members[#members + 1] = rank
      end
   end
   return groups, without
end

-- The mesh coordinates at which all members are, of the axes that they do not fill.
local function coordinates(state, i, t, members)
   local axes, list = {}, {}
   for _, rank in ipairs(members) do
      for number, axis in ipairs(state.view.coordinates(i, t, rank) or {}) do
         axes[number] = axes[number] or { name = axis[1], size = axis[3], set = {}, count = 0 }
         local seen = axes[number]
         seen.count = seen.count + (seen.set[axis[2]] and 0 or 1)
         seen.set[axis[2]] = true
      end
   end
   for _, axis in ipairs(axes) do
      if axis.count < axis.size then
         list[#list + 1] = { axis = axis.name, coordinates = ranks.runs_of_set(axis.set) }
      end
   end
   return list
end

-- The trainers that feed some workers, or nil where that takes too long.
local function feeders(state, i, t, members, budget)
   local set = {}
   for _, rank in ipairs(members) do
      if budget.pieces <= 0 then
         return nil
      end
      local list = state.view.feeders(i, t, rank)
      budget.pieces = budget.pieces - #list - 1
      for _, trainer in ipairs(list) do
         set[trainer] = true
      end
   end
   return ranks.runs_of_set(set)
end

local function describe(state, i, t, members, budget)
   local slice = state.view.slice(i, t, members[1])
   return {
      ranks = ranks.runs(members), count = #members, coordinates = coordinates(state, i, t, members), source = slice.source,
      live = slice.live, bytes = slice.bytes, trainers = feeders(state, i, t, members, budget),
   }
end

local function one_worker(state, i, t, rank)
   if not state.view.shard(i, t, rank) then
      return { workers = {}, groups = 0, without = { { rank, rank } } }
   end
   local slice = describe(state, i, t, { rank }, { pieces = 1 })
   slice.pieces = state.view.pieces(i, t, rank)
   return { workers = { slice }, groups = 1, without = {} }
end

--- The workers of a target.
-- @param i number of the parameter
-- @param t number of its target; 1 for a full parameter
-- @return { workers =, groups = how many there are, without = runs of the ranks that get nothing }
function slices.workers(state, i, t)
   if state.one_rank then
      return one_worker(state, i, t, state.rank)
   end
   local groups, without = group(state, i, t)
   local list, budget = {}, { pieces = MOST_PIECES }
   for number = 1, state.all and #groups or math.min(#groups, FEW_GROUPS) do
      list[number] = describe(state, i, t, groups[number], budget)
   end
   return { workers = list, groups = #groups, without = ranks.runs(without) }
end

--- The ranks that get elements of any of some targets.
-- @param targets list of { parameter =, target = }
function slices.holders(state, targets)
   local set = {}
   for _, item in ipairs(targets) do
      for rank = state.trainers, state.trainers + state.workers - 1 do
         if not set[rank] and state.view.shard(item.parameter, item.target, rank) then
            set[rank] = true
         end
      end
   end
   return ranks.runs_of_set(set)
end

return slices
