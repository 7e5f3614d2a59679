--- The functional matrix (spec/support/m2n_matrix.lua) on the planner, at every world from 4 to 32 ranks: what each rank holds,
-- coverage, and both sides' programs, run by run at the tensors' real sizes.
--
-- What a rank holds is a rectangle of the tensor: stretches of elements that follow each other in the whole tensor, too. So of a run
-- only the first element of each stretch is looked at, on both sides.

local build = require "spec.plan.build"
local matrix = require "spec.support.matrix"
local oracle = require "spec.support.oracle"

require("jit").opt.start("maxtrace=20000", "maxmcode=40960") -- as in property_spec: many kinds of plans make many traces

local function fail(text, ...)
   error(text:format(...), 0)
end

-- ---- rectangles ----

-- The extents of a box, its element count, the strides of the whole tensor, and how long its stretches are.
local function rectangle(box, shape)
   local extent, stride, volume, step, stretch, gapless = {}, {}, 1, 1, 1, true
   for d = #shape, 1, -1 do
      extent[d], stride[d] = box[d][2] - box[d][1], step
      volume, step = volume * extent[d], step * shape[d]
      stretch, gapless = gapless and volume or stretch, gapless and extent[d] == shape[d]
   end
   return { box = box, extent = extent, stride = stride, volume = volume, ndim = #shape, stretch = stretch }
end

-- The number in the whole tensor of the n-th element of a rectangle.
local function number(of, n)
   local result = 0
   for d = of.ndim, 1, -1 do
      local extent = of.extent[d]
      local index = n % extent
      result = result + (of.box[d][1] + index) * of.stride[d]
      n = (n - index) / extent
   end
   return result
end

local function rectangles(case)
   local list = {}
   for _, side in ipairs({ { case.source, case.trainers }, { case.destination, case.workers } }) do
      for rank = side[1].first, side[1].first + side[2] - 1 do
         local box = matrix.box(side[1], case.shape, rank)
         list[rank] = box and rectangle(box, case.shape)
      end
   end
   return list
end

-- ---- programs ----

-- Calls visit(source, destination) in bytes for every run of a copy, in row-major order.
local function runs(copy, visit)
   local ndim, count, by, to, at = copy.ndim, {}, {}, {}, {}
   for d = 1, ndim do
      local dim = copy.dim[d - 1]
      count[d], by[d], to[d], at[d] = tonumber(dim.count), tonumber(dim.source), tonumber(dim.destination), 0
   end
   local source, destination = tonumber(copy.source), tonumber(copy.destination)
   while true do
      visit(source, destination)
      local d = ndim
      while d > 0 do
         at[d] = at[d] + 1
         source, destination = source + by[d], destination + to[d]
         if at[d] < count[d] then
            break
         end
         source, destination = source - count[d] * by[d], destination - count[d] * to[d]
         at[d] = 0
         d = d - 1
      end
      if d == 0 then
         return
      end
   end
end

-- Adds a run to the stream of a pair of ranks, joined to the one before where it goes on there.
local function add_run(stream, source, length)
   local last = #stream
   if last > 0 and stream[last - 1] + stream[last] == source then
      stream[last] = stream[last] + length
   else
      stream[last + 1], stream[last + 2] = source, length
   end
end

local function check_once(case, starts, length_of, volume)
   table.sort(starts)
   local till, sum = 0, 0
   for _, start in ipairs(starts) do
      if start < till then
         fail("%s: element %d is written twice", case.name, start)
      end
      till, sum = start + length_of[start], sum + length_of[start]
   end
   if sum ~= volume then
      fail("%s: %d elements are written of %d", case.name, sum, volume)
   end
end

-- `length` elements of one rectangle are those of another, from these on.
local function check_same(case, theirs, source, mine, destination, length)
   while length > 0 do
      local step = math.min(length, theirs.stretch - source % theirs.stretch, mine.stretch - destination % mine.stretch)
      local got, wanted = number(theirs, source), number(mine, destination)
      if got ~= wanted then
         fail("%s: a run brings element %d where %d belongs", case.name, got, wanted)
      end
      source, destination, length = source + step, destination + step, length - step
   end
end

-- Every run of a worker's segment brings the elements that belong there, and all of them. Gives its streams by trainer.
local function check_worker(case, held, rank, segment)
   local mine, streams, starts, length_of = held[rank], {}, {}, {}
   for i = 0, segment.ncopies - 1 do
      local copy = segment.copy[i]
      local peer, length = copy.peer, tonumber(copy.run) / case.item
      local theirs, stream = held[peer], streams[peer] or {}
      streams[peer] = stream
      if not theirs or peer >= case.trainers then
         fail("%s: worker rank %d gets some from rank %d, which holds none", case.name, rank, peer)
      end
      runs(copy, function(source, destination)
         source, destination = source / case.item, destination / case.item
         if source < 0 or source + length > theirs.volume or destination < 0 or destination + length > mine.volume then
            fail("%s: a run from rank %d to %d leaves what they hold", case.name, peer, rank)
         end
         check_same(case, theirs, source, mine, destination, length)
         starts[#starts + 1] = destination
         length_of[destination] = length
         add_run(stream, source, length)
      end)
   end
   check_once(case, starts, length_of, mine and mine.volume or 0)
   return streams
end

-- A trainer packs what each worker expects of it, in that order.
local function check_trainer(case, streams, rank, segment)
   local sent = {}
   for i = 0, segment.ncopies - 1 do
      local copy = segment.copy[i]
      local stream, packed = sent[copy.peer] or {}, 0
      sent[copy.peer] = stream
      runs(copy, function(source, destination)
         if destination ~= packed then
            fail("%s: rank %d packs at %d what belongs at %d", case.name, rank, destination, packed)
         end
         packed = packed + tonumber(copy.run)
         add_run(stream, source / case.item, tonumber(copy.run) / case.item)
      end)
   end
   for worker = case.trainers, case.trainers + case.workers - 1 do
      local wanted, got = streams[worker][rank] or {}, sent[worker] or {}
      for i = 1, math.max(#wanted, #got) do
         if wanted[i] ~= got[i] then
            fail("%s: rank %d sends rank %d another stream than it wants", case.name, rank, worker)
         end
      end
   end
end

-- ---- a plan of all cases of a share ----

local function meshes_of(cases, side)
   local seen, list = {}, {}
   for _, case in ipairs(cases) do
      local layout = case[side]
      if not seen[layout.mesh] then
         seen[layout.mesh] = true
         list[#list + 1] = { name = layout.mesh, axes = layout.axes }
      end
   end
   return list
end

local function plan_of(cases)
   local plan = build.plan { trainers = cases[1].trainers, workers = cases[1].workers, sources = meshes_of(cases, "source"),
      destinations = meshes_of(cases, "destination") }
   for _, case in ipairs(cases) do
      plan:add { name = case.name, dtype = case.dtype, shape = case.shape, mesh = case.source.mesh, source = case.source.placements }
      plan:direct(case.name, { live = case.name, mesh = case.destination.mesh, layout = case.destination.placements })
   end
   return plan
end

-- By arithmetic the box is the planner's; by the oracle, index by index, where the tensor is short enough for that.
local function check_box(case, mine, layout, side, rank)
   local said = build.box_of(layout, case.shape, rank)
   assert.same(mine and mine.box, said, ("%s: what rank %d holds"):format(case.name, rank))
   if matrix.longest(case.shape) > 300 then
      return
   end
   local holds = oracle.holds(side, case.shape, rank)
   assert.equal(mine ~= nil, holds ~= nil, case.name)
   for d = 1, mine and #case.shape or 0 do
      local from, to = mine.box[d][1], mine.box[d][2]
      for index = 0, case.shape[d] - 1 do
         if holds[d][index] ~= (index >= from and index < to) then
            fail("%s: index %d of dim %d on rank %d", case.name, index, d - 1, rank)
         end
      end
   end
end

local function check_boxes(cases, held, plan)
   for i, case in ipairs(cases) do
      local param = plan:param(case.name)
      for rank = 0, case.trainers + case.workers - 1 do
         local trainer = rank < case.trainers
         check_box(case, held[i][rank], trainer and param.source or param.target[0].layout, trainer and case.source or case.destination, rank)
      end
   end
end

local function live_of(cases, held, rank)
   local list, bytes = {}, 0
   for i, case in ipairs(cases) do
      local mine = held[i][rank]
      if mine and mine.volume > 0 then
         list[#list + 1] = { name = case.name, dtype = case.dtype, shape = mine.extent }
         bytes = bytes + mine.volume * case.item
      end
   end
   return list, bytes
end

local function check_cases(cases)
   local plan, held, streams = plan_of(cases), {}, {}
   local trainers, world = cases[1].trainers, cases[1].trainers + cases[1].workers
   for i, case in ipairs(cases) do
      held[i], streams[i] = rectangles(case), {}
   end
   check_boxes(cases, held, plan)
   for rank = trainers, world - 1 do
      local list, bytes = live_of(cases, held, rank)
      local set = build.live_set(list)
      local coverage, text = plan:coverage(set, rank)
      assert.same({ live = bytes, written = bytes, padded = 0, uncovered = {} }, coverage, text)
      local program = plan:compile(rank, set)
      for i, case in ipairs(cases) do
         streams[i][rank] = check_worker(case, held[i], rank, program.segment[i - 1])
      end
   end
   for rank = 0, trainers - 1 do
      local program = plan:compile(rank)
      for i, case in ipairs(cases) do
         check_trainer(case, streams[i], rank, program.segment[i - 1])
      end
   end
   return #cases
end

-- Bytes of the largest tensors by world: all of them at 8, and elsewhere what takes little time.
local MOST = { [4] = 4e6, [8] = math.huge, [16] = 4e6 }
local MOST_ELSEWHERE = 1e5

describe("the functional matrix on the planner", function()
   for world = 4, 32 do
      it(("holds in a world of %d"):format(world), function()
         local by_shares, order = matrix.cases(world, MOST[world] or MOST_ELSEWHERE)
         local count = 0
         for _, key in ipairs(order) do
            count = count + check_cases(by_shares[key])
         end
         assert.is_true(count > 0 or world % 2 + world % 3 > 1) -- a prime number of ranks has no shares of one to one or two to one
      end)
   end

   it("holds for a tensor of more elements than 32 bits count, on the last of 128 workers", function()
      local case = matrix.cases(256)["128:128"][1]
      local plan, held = plan_of { case }, rectangles(case)
      local set = build.live_set { { name = case.name, dtype = case.dtype, shape = held[255].extent } }
      local streams = check_worker(case, held, 255, plan:compile(255, set).segment[0])
      local bytes = 0
      for _, stream in pairs(streams) do
         for i = 2, #stream, 2 do
            bytes = bytes + stream[i] * case.item
         end
      end
      assert.equal(held[255].volume * case.item, bytes)
      assert.is_true(number(held[255], held[255].volume - 1) > 2 ^ 31)
   end)
end)
