--- What of a plan nccl_m2n can say: held against a search through everything its two axes can be (spec/support/matrix.lua), and,
-- element by element, against the oracle.

local ffi = require "ffi"
local build = require "spec.plan.build"
local inside = require "spec.support.inside"
local matrix = require "spec.support.matrix"
local oracle = require "spec.support.oracle"
local random = require "spec.plan.random"

local C = inside.declare("transport/m2n/express.h", "transport/m2n/calls.h")

local NONE = 18446744073709551615ULL -- SIZE_MAX

-- The call of a parameter's target, or nil and the refusal.
local function express(plan, name, target, staging)
   local call = ffi.new("slc_m2n_call")
   local text, status = build.fails(C.slc_m2n_express, plan.plan, plan:find(name), target or 0, staging or 2 ^ 31, call)
   if text then
      assert.equal(9, status)
      return nil, text
   end
   return call
end

-- What a side says a rank holds, in the call's dims; nil where the rank takes no part.
local function box_of(side, ndim, rank)
   local at = rank - side.start
   if at < 0 or at >= side.dims[0] * side.dims[1] then
      return nil
   end
   local coordinate = { [0] = math.floor(at / side.dims[1]), at % side.dims[1] }
   local box = {}
   for d = 0, ndim - 1 do
      local number = 0
      for axis = 0, 1 do
         number = side.placement[axis] == d and coordinate[axis] or number
      end
      local extent = tonumber(side.held[d])
      box[d + 1] = { number * extent, (number + 1) * extent }
   end
   return box
end

local function check_side(case, side, layout, ranks, ndim)
   assert.equal(1, (side.placement[0] == -1 and 1 or 0) + (side.placement[1] == -1 and 1 or 0), case.name)
   for rank = layout.first, layout.first + ranks - 1 do
      local box = matrix.box(layout, case.shape, rank)
      if ndim ~= #case.shape then -- the same bytes in one dim
         box = box and { { 0, matrix.bytes(case) / case.item } }
      end
      assert.same(box, box_of(side, ndim, rank), ("%s: rank %d"):format(case.name, rank))
   end
end

local REASONS = { source = "its source", destination = "its destination", dims = "it has %d+ dims", sources = "source shards meet",
   targets = "destination shards meet" }

local function plan_of(case)
   local plan = build.plan { trainers = case.trainers, workers = case.workers, sources = { { axes = case.source.axes } },
      destinations = { { axes = case.destination.axes } } }
   plan:add { name = "w", dtype = case.dtype, shape = case.shape, source = case.source.placements }
   return plan:direct("w", { live = "w", layout = case.destination.placements })
end

local function check_case(case)
   local can, reason = matrix.m2n_can(case)
   local call, text = express(plan_of(case), "w")
   assert.equal(can, call ~= nil, case.name .. ": " .. tostring(text or "m2n can, it says"))
   if not call then
      assert.truthy(text:find(REASONS[reason]), case.name .. ": " .. text)
      return 0
   end
   check_side(case, call.source, case.source, case.trainers, call.ndim)
   check_side(case, call.destination, case.destination, case.workers, call.ndim)
   assert.equal(case.item, tonumber(call.item))
   assert.equal(0, tonumber(call.offset))
   return 1
end

-- A plan of one parameter; more: keys of the target, `mode`.
local function one(trainers, workers, shape, source, destination, more)
   local plan = build.plan { trainers = trainers, workers = workers, sources = { { axes = source.axes } },
      destinations = { { axes = destination.axes } } }
   plan:add { name = "w", shape = shape, source = source.placements }
   if more and more.mode then
      return plan:set("w", { mode = more.mode, reason = "chosen", where = "rules.lua:1" })
   end
   local target = { live = "w", layout = destination.placements }
   for key, value in pairs(more or {}) do
      target[key] = value
   end
   return plan:direct("w", target)
end

local function sides(call)
   local function side(of)
      local list = {}
      for d = 0, call.ndim - 1 do
         list[d + 1] = tonumber(of.held[d])
      end
      return { of.start, of.dims[0], of.dims[1], of.placement[0], of.placement[1], list }
   end
   return side(call.source), side(call.destination)
end

local all = { axes = { 2 }, placements = {} }
local rows = { axes = { 2 }, placements = { { axis = 0, shard = 0 } } }

describe("what m2n can express", function()
   for _, world in ipairs { 4, 6, 8, 9, 12, 16, 24, 27, 32, 256 } do
      it(("of the functional matrix in a world of %d is what a search finds"):format(world), function()
         local by_shares, order = matrix.cases(world)
         local can, count = 0, 0
         for _, key in ipairs(order) do
            for _, case in ipairs(by_shares[key]) do
               can, count = can + check_case(case), count + 1
            end
         end
         assert.is_true(can > 0 and can <= count)
      end)
   end

   it("counts source shards as many_sources wants", function()
      local _, text = express(one(17, 2, { 34, 8 }, { axes = { 17 }, placements = { { axis = 0, shard = 0 } } }, all), "w")
      assert.equal("runtime: rules.lua:1: parameter 'w' [34, 8]: transport m2n cannot move it: 17 source shards meet in one destination shard, "
         .. "where 16 are the most", text)
      assert.truthy(express(one(16, 2, { 32, 8 }, { axes = { 16 }, placements = { { axis = 0, shard = 0 } } }, all), "w"))
   end)

   it("counts destination shards", function()
      local function to(workers)
         return express(one(2, workers, { workers, 8 }, all, { axes = { workers }, placements = { { axis = 0, shard = 0 } } }), "w")
      end
      assert.truthy(to(64))
      local _, text = to(65)
      assert.truthy(text:find("65 destination shards meet one source shard, where 64 are the most", 1, true), text)
   end)

   it("counts what shards of one dim meet, where neither number divides the other", function()
      for sources = 1, 70, 3 do
         for targets = 1, 70 do
            local into, out = 0, {}
            for t = 0, targets - 1 do
               local met = 0
               for s = 0, sources - 1 do
                  if math.max(t * sources, s * targets) < math.min((t + 1) * sources, (s + 1) * targets) then
                     met, out[s] = met + 1, (out[s] or 0) + 1
                  end
               end
               into = math.max(into, met)
            end
            local function cut(n)
               return { axes = { n }, placements = { { axis = 0, shard = 0 } } }
            end
            local can = into <= 16 and math.max(out[0], unpack(out)) <= 64
            local plan = one(sources, targets, { sources * targets }, cut(sources), cut(targets))
            assert.equal(can, express(plan, "w") ~= nil, sources .. " to " .. targets)
         end
      end
   end)

   it("sends five dims as the same bytes in one where both sides hold them whole, as five_dims wants", function()
      local shape = { 1280, 3, 2, 14, 14 }
      local call = express(one(2, 2, shape, all, all), "w")
      assert.same({ { 0, 2, 1, -1, 0, { 1505280 } }, { 2, 2, 1, -1, 0, { 1505280 } } }, { sides(call) })
      local _, text = express(one(2, 2, shape, rows, all), "w")
      assert.truthy(text:find("it has 5 dims, where 3 are the most of what a side cuts", 1, true), text)
   end)

   it("says a full parameter as replicated over all workers", function()
      local call = express(one(2, 4, { 8, 4 }, rows, { axes = { 2, 2 }, placements = {} }, { mode = "FULL" }), "w")
      assert.same({ { 0, 2, 1, 0, -1, { 4, 4 } }, { 2, 4, 1, -1, 0, { 8, 4 } } }, { sides(call) })
   end)

   it("brings axes that replicate beside each other together, and leads pins away", function()
      local source = { axes = { 2, 2, 3, 2 }, placements = { { axis = 0, pin = 1 }, { axis = 3, shard = 1 } } }
      local call = express(one(24, 2, { 6, 4 }, source, all), "w")
      assert.same({ 12, 6, 2, -1, 1, { 6, 2 } }, (sides(call)))
   end)

   it("takes experts and rows that lie in one piece, from where they lie", function()
      local plan = one(2, 2, { 6, 8, 4 }, { axes = { 2 }, placements = { { axis = 0, shard = 2 } } }, rows,
         { source = { { 3, select = true }, { 4, 4 } }, view = { { 1, select = true }, { 2, 2 } }, view_ndim = 3 })
      local call = express(plan, "w")
      assert.same({ { 0, 2, 1, 1, -1, { 4, 2 } }, { 2, 2, 1, 0, -1, { 2, 4 } } }, { sides(call) })
      assert.equal(4 * (3 * 8 * 2 + 4 * 2), tonumber(call.offset))
      local set = build.live_set { { name = "w", shape = { 3, 5, 4 } } }
      local live, offset, err = ffi.new("size_t[1]"), ffi.new("int64_t[1]"), build.error()
      build.check(C.slc_m2n_land(plan.plan, call, set, 3, live, offset, err), err)
      assert.equal(0, tonumber(live[0]))
      assert.equal(4 * (1 * 20 + 2 * 4), tonumber(offset[0]))
   end)

   local cut = { axes = { 4 }, placements = { { axis = 0, shard = 0 } } }
   local refused = {
      { "an uneven shard", { { 5, 4 }, rows, all }, "its source cuts dim 0 unevenly (5 in 2)" },
      { "a cut over two axes", { { 8, 4 }, all, { axes = { 2, 2 }, placements = { { axis = 0, shard = 0 }, { axis = 1, shard = 1 } } } },
         "its destination is cut over 2 mesh axes, where one may cut" },
      { "ranks with others between them", { { 8, 4 }, all, { axes = { 2, 2 }, placements = { { axis = 1, pin = 1 } } } },
         "its destination lies on ranks that do not follow each other (pinned along axis 1 of its mesh)" },
      { "three axes", { { 8, 4 }, all, { axes = { 2, 2, 2 }, placements = { { axis = 1, shard = 0 } } } },
         "its destination wants 3 mesh axes, where two are the most" },
      { "a part of a dim that is cut", { { 8, 4 }, rows, all, { source = { { 0, 4 } } } }, "it takes a part of dim 0, which its source cuts" },
      { "columns of a shard", { { 8, 4 }, all, all, { source = { [2] = { 0, 2 } } } },
         "what it takes does not lie in one piece in the trainers' shards" },
      { "columns of a live tensor", { { 8, 4 }, all, all, { view = { nil, { 4, 4 } }, view_ndim = 2 } },
         "what it writes of live 'w' does not lie in one piece" },
      { "every other row", { { 8, 4 }, all, all, { view = { { 0, 8, 2 } }, view_ndim = 2 } },
         "what it writes of live 'w' does not lie in one piece" },
      { "a transposed tensor", { { 8, 4 }, all, all, { order = { 1, 0 } } }, "live 'w' shows its dims in another order" },
      { "padding within what is written", { { 8, 4 }, all, { axes = { 4 }, placements = { { axis = 0, shard = 1 } } }, { pad = "ZERO" } },
         "live 'w' is padded" },
      { "a conversion", { { 8, 4 }, all, cut, { dtype = "bfloat16" } }, "it is converted on the way" },
   }
   for _, case in ipairs(refused) do
      it("refuses " .. case[1], function()
         local shape, source, destination, more = unpack(case[2])
         local function ranks(layout)
            local product = 1
            for _, size in ipairs(layout.axes) do
               product = product * size
            end
            return product
         end
         local _, text = express(one(ranks(source), ranks(destination), shape, source, destination, more), "w")
         assert.equal(("runtime: rules.lua:1: parameter 'w' [%s]: transport m2n cannot move it: %s"):format(table.concat(shape, ", "), case[3]), text)
      end)
   end

   it("refuses a live tensor with gaps on the worker that has it", function()
      local plan = one(2, 2, { 8, 4 }, rows, rows)
      local call = express(plan, "w")
      local set = build.live_set { { name = "w", shape = { 4, 4 }, strides = { 32, 4 } } }
      local text = build.fails(C.slc_m2n_land, plan.plan, call, set, 3, ffi.new("size_t[1]"), ffi.new("int64_t[1]"))
      assert.equal("runtime: rules.lua:1: parameter 'w' [8, 4]: transport m2n cannot move it: live 'w' of worker rank 3 has gaps in memory "
         .. "where it is written", text)
   end)
end)

-- ---- random plans, as the library would carry them out ----

-- The element that a side's rank has at a place of its box, or nil; for trainers, by what the oracle says that the shard holds.
local function source_of(case, param, call, index)
   for rank = 0, case.trainers - 1 do
      local box = box_of(call.source, call.ndim, rank)
      local at = 0
      for d = 1, box and call.ndim or 0 do
         local low, high = box[d][1], box[d][2]
         if index[d] < low or index[d] >= high then
            box = nil
            break
         end
         at = at * (high - low) + index[d] - low
      end
      if box then
         return oracle.shard(param.source, param.shape, rank)[tonumber(call.offset) / param.item + at + 1]
      end
   end
end

local function check_worker(case, plan, param, number, call, worker)
   local target, rank = param.targets[number], case.trainers + worker
   local set = build.live_set(case.live[worker])
   local live, offset = ffi.new("size_t[1]"), ffi.new("int64_t[1]")
   local text = build.fails(C.slc_m2n_land, plan.plan, call, set, rank, live, offset)
   if text then
      assert.truthy(text:find("has gaps in memory", 1, true), text)
      return 0
   end
   local wanted, box = {}, box_of(call.destination, call.ndim, rank)
   for _, tensor in ipairs(case.live[worker]) do
      if tensor.name == target.live then
         oracle.land(param.shape, target, rank, tensor, function(at, element)
            wanted[at] = element
         end)
      end
   end
   assert.equal(box ~= nil, live[0] ~= NONE)
   if not box then
      assert.is_nil(next(wanted))
      return 0
   end
   local extent, at = {}, tonumber(offset[0])
   for d = 1, call.ndim do
      extent[d] = box[d][2] - box[d][1]
   end
   oracle.each(extent, function(place)
      local index = {}
      for d = 1, call.ndim do
         index[d] = box[d][1] + place[d]
      end
      assert.equal(wanted[at], source_of(case, param, call, index))
      wanted[at] = nil
      at = at + param.item
   end)
   assert.is_nil(next(wanted))
   return 1
end

local function check_random(seed)
   local case = random.case(seed)
   local plan, done = build.case_plan(case):resolve_case(case), 0
   for _, param in ipairs(case.params) do
      for number, target in ipairs(param.targets or {}) do
         local call, text = nil, "it brings nothing"
         if target.pad ~= "CLEAR" then
            call, text = express(plan, param.name, number - 1)
         end
         if not call and text:find("its source", 1, true) and not text:find("which its source cuts", 1, true) then
            assert.is_nil(matrix.two_axes(param.source, param.shape, case.trainers), text)
         elseif not call and text:find("its destination", 1, true) then
            assert.is_nil(matrix.two_axes(target.layout, (oracle.strip(target.source)), case.workers), text)
         end
         for worker = 0, call and case.workers - 1 or -1 do
            done = done + check_worker(case, plan, param, number, call, worker)
         end
      end
   end
   return done
end

describe("a reshard of a random plan", function()
   it("brings every element that the oracle wants to its place, and nothing else; layouts are refused only where no two axes say them", function()
      local only, count = tonumber(os.getenv("SLUICE_SEED")), tonumber(os.getenv("SLUICE_CASES")) or 2000
      local done = 0
      for seed = only or 1, only or count do
         local good, text = pcall(check_random, seed)
         if not good then
            error(("SLUICE_SEED=%d: %s"):format(seed, type(text) == "table" and text.message or tostring(text)), 0)
         end
         done = done + text
      end
      assert.is_true(only ~= nil or done > count / 10)
   end)
end)

describe("the reshards of a plan", function()
   local function make(plan, mix)
      local calls = ffi.gc(ffi.new("slc_m2n_calls"), C.slc_m2n_calls_clear)
      local text, status = build.fails(C.slc_m2n_calls_make, plan.plan, mix, 2 ^ 31, calls)
      return not text and calls or nil, text, status
   end

   local function mixed()
      local plan = build.plan { trainers = 2, workers = 2, sources = { { axes = { 2 } } }, destinations = { { axes = { 2 } } } }
      local cut = { { axis = 0, shard = 0 } }
      for _, name in ipairs { "a", "odd", "b", "gone", "c", "d", "cleared" } do
         plan:add { name = name, shape = { name == "odd" and 5 or 8, 4 }, source = cut }
      end
      plan:direct("a", { live = "a", layout = cut })
      plan:direct("odd", { live = "odd", layout = cut })
      plan:direct("b", { live = "b1", layout = cut }, { live = "z", pad = "CLEAR", view = { { 0, 2 } } }, { live = "b2", layout = cut })
      plan:set("gone", { mode = "SKIP", reason = "chosen" })
      plan:set("c", { mode = "FULL", reason = "chosen" })
      plan:direct("d", { live = "d1", layout = cut }, { live = "d2", order = { 1, 0 } })
      return plan:direct("cleared", { live = "y", pad = "CLEAR", view = { { 0, 2 } } })
   end

   it("come in plan order, one a target that brings something, and leave whole parameters to nccl where that may be", function()
      local plan = mixed()
      local calls = assert(make(plan, true))
      local list = {}
      for i = 0, tonumber(calls.count) - 1 do
         list[i + 1] = { calls.call[i].param, calls.call[i].target }
      end
      assert.same({ { 0, 0 }, { 2, 0 }, { 2, 2 }, { 4, 0 } }, list)
      assert.same({ 0, 1, 1, 3, 3, 4, 4, 4 }, build.numbers(calls.first, 8))
      assert.equal(2, tonumber(calls.elsewhere))
      local elsewhere = {}
      for i = 0, 6 do
         elsewhere[i + 1] = C.slc_m2n_elsewhere(plan.plan, calls, i)
      end
      assert.same({ false, true, false, false, false, true, false }, elsewhere)
   end)

   it("are refused without that, by the first that cannot go and how many more there are", function()
      local calls, text, status = make(mixed(), false)
      assert.is_nil(calls)
      assert.equal(9, status)
      assert.equal("runtime: rules.lua:1: parameter 'odd' [5, 4]: transport m2n cannot move it: its source cuts dim 0 unevenly (5 in 2), "
         .. "nor 1 more parameter; transport nccl can, alone or mixed with m2n", text)
   end)
end)
