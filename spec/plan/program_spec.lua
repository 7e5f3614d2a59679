--- Programs worked out by hand, and cases drawn from real faults: uneven shards, tensors of many dims, many sources, experts
-- one by one and packed.

local ffi = require "ffi"
local build = require "spec.plan.build"

local C = build.C
local STAGING = 4294967295

local function plan_of(source_axes, worker_axes)
   local function size(axes)
      local all = 1
      for _, axis in ipairs(axes) do
         all = all * (type(axis) == "table" and axis[2] or axis)
      end
      return all
   end
   return build.plan {trainers = size(source_axes), workers = size(worker_axes), sources = {{axes = source_axes}},
      destinations = {{axes = worker_axes}}}
end

describe("a worker's copies", function()
   it("are one span where both sides are contiguous", function()
      local plan = plan_of({{"tp", 2}}, {{"tp", 2}}):add {name = "w", shape = {8, 3}, source = {{axis = "tp", shard = 0}}}
      plan:direct("w", {live = "w", layout = {{axis = "tp", shard = 0}}})
      local program = plan:compile(3, build.live_set {{name = "v", shape = {1}}, {name = "w", shape = {4, 3}}})
      assert.same({bytes = 48, copies = {{peer = 1, buffer = 1, source = 0, destination = 0, run = 48, bytes = 48, dims = {}}},
         fills = {}}, build.segment(program, 0))
      assert.same({3, 1, 48, 1, 1}, {program.rank, tonumber(program.count), tonumber(program.bytes), tonumber(program.copies),
         tonumber(program.npeers)})
      assert.equal(1, program.peer[0])
   end)

   it("keep only the dims that strides do not join", function()
      -- Row-parallel: columns [3, 6) of [2, 4, 6], from a shard of all, into a contiguous [2, 4, 3].
      local plan = plan_of({1}, {{"tp", 2}}):add {name = "w", shape = {2, 4, 6}}
      plan:direct("w", {live = "w", layout = {{axis = "tp", shard = 2}}})
      local program = plan:compile(2, build.live_set {{name = "w", shape = {2, 4, 3}}})
      assert.same({{peer = 0, buffer = 0, source = 12, destination = 0, run = 12, bytes = 96, dims = {{8, 24, 12}}}},
         build.segment(program, 0).copies)
   end)

   it("of a permuted view run in the strip's order", function()
      local plan = plan_of({1}, {1}):add {name = "w", shape = {2, 3}, dtype = "bfloat16"}
      plan:direct("w", {live = "w", order = {1, 0}})
      local program = plan:compile(1, build.live_set {{name = "w", shape = {3, 2}, dtype = "bfloat16"}})
      assert.same({{peer = 0, buffer = 0, source = 0, destination = 0, run = 2, bytes = 12, dims = {{2, 6, 2}, {3, 2, 4}}}},
         build.segment(program, 0).copies)
   end)

   it("of a single number go into a single number, whatever dims either has", function()
      for _, shapes in ipairs({{{1}, {}}, {{}, {1}}, {{1, 1}, {1}}, {{1}, {1, 1, 1}}}) do
         local plan = plan_of({1}, {1}):add {name = "s", shape = shapes[1], dtype = "float32"}
         plan:direct("s", {live = "s"})
         local program = plan:compile(1, build.live_set {{name = "s", shape = shapes[2], dtype = "float32"}})
         assert.same({{peer = 0, buffer = 0, source = 0, destination = 0, run = 4, bytes = 4, dims = {}}}, build.segment(program, 0).copies)
      end
   end)

   it("de-interleave stepped strips", function()
      -- Gate and up interleaved along the last dim.
      local plan = plan_of({1}, {1}):add {name = "w", shape = {2, 6}, dtype = "int8"}
      plan:direct("w", {source = {false, {0, 3, 2}}, live = "w", view = {false, {0, 3}}},
         {source = {false, {1, 3, 2}}, live = "w", view = {false, {3, 3}}})
      local program = plan:compile(1, build.live_set {{name = "w", shape = {2, 6}, dtype = "int8"}})
      assert.same({{peer = 0, buffer = 0, source = 0, destination = 0, run = 1, bytes = 6, dims = {{2, 6, 6}, {3, 2, 1}}},
         {peer = 0, buffer = 0, source = 1, destination = 3, run = 1, bytes = 6, dims = {{2, 6, 6}, {3, 2, 1}}}},
            build.segment(program, 0).copies)
   end)

   it("of a full parameter go to staging, row-major", function()
      local plan = plan_of({{"tp", 2}}, {2}):add {name = "w", shape = {4, 6}, source = {{axis = "tp", shard = 1}}}
         :set("w", {mode = "FULL"})
      local program = plan:compile(3, build.live_set {})
      assert.same({{peer = 0, buffer = STAGING, source = 0, destination = 0, run = 12, bytes = 48, dims = {{4, 12, 24}}},
         {peer = 1, buffer = STAGING, source = 0, destination = 12, run = 12, bytes = 48, dims = {{4, 12, 24}}}},
            build.segment(program, 0).copies)
   end)

   it("of an alias and a skipped parameter are none", function()
      local plan = plan_of({1}, {1}):add {name = "a", shape = {4}}:add {name = "b", shape = {4}}:add {name = "c", shape = {4}}
      plan:direct("a", {live = "a"}):set("b", {mode = "ALIAS", alias_of = "a"}):set("c", {mode = "SKIP", reason = "unused"})
      local program = plan:compile(1, build.live_set {{name = "a", shape = {4}}})
      assert.equal(3, tonumber(program.count))
      for i = 1, 2 do
         assert.same({bytes = 0, copies = {}, fills = {}}, build.segment(program, i))
         assert.equal(i, program.segment[i].param)
      end
   end)

   it("move a tensor of no dims", function()
      local plan = plan_of({2}, {1}):add {name = "w", shape = {}, dtype = "int64"}
      plan:direct("w", {live = "w", view = {{2, select = true}}})
      local program = plan:compile(2, build.live_set {{name = "w", shape = {3}, dtype = "int64"}})
      assert.same({{peer = 0, buffer = 0, source = 0, destination = 16, run = 8, bytes = 8, dims = {}}},
         build.segment(program, 0).copies)
   end)
end)

describe("a large piece with several replicas", function()
   local function copies(shape, quantum)
      local plan = build.plan {trainers = 3, workers = 1, quantum = quantum, sources = {{axes = {3}}}, destinations = {{axes = {1}}}}
      plan:add {name = "w", shape = shape, dtype = "int8"}:direct("w", {live = "w"})
      local list = {}
      for i, copy in ipairs(build.segment(plan:compile(3, build.live_set {{name = "w", shape = shape, dtype = "int8"}}), 0).copies) do
         list[i] = {copy.peer, copy.source, copy.run, copy.bytes}
      end
      return list
   end

   it("is cut along its outermost long dim, so that rows stay whole", function()
      assert.same({{0, 0, 1700, 1700}, {1, 1700, 1700, 1700}, {2, 3400, 1600, 1600}}, copies({50, 100}, 1000))
   end)

   it("is cut along its longest dim where no dim is long", function()
      assert.same({{0, 0, 4, 40}, {1, 4, 3, 30}, {2, 7, 3, 30}}, copies({5, 2, 10}, 30))
   end)

   it("is not cut below a quantum", function()
      assert.same({{0, 0, 2500, 5000}, {1, 2500, 2500, 5000}}, copies({2, 5000}, 4000))
      assert.same({{0, 0, 5000, 5000}}, copies({50, 100}, 5000))
   end)
end)

describe("a worker's fills", function()
   it("are the window less the box, at the high end of each dim", function()
      local plan = plan_of({1}, {{"tp", 2}}):add {name = "w", shape = {5, 3}, dtype = "int8"}
      plan:direct("w", {live = "w", layout = {{axis = "tp", shard = 0, chunk = 4}}, pad = true})
      local set = build.live_set {{name = "w", shape = {4, 5}, dtype = "int8"}}
      assert.same({{buffer = 0, destination = 3, run = 2, bytes = 8, dims = {{4, 5}}}},
         build.segment(plan:compile(1, set), 0).fills)
      assert.same({{buffer = 0, destination = 5, run = 15, bytes = 15, dims = {}},
         {buffer = 0, destination = 3, run = 2, bytes = 2, dims = {}}},
         build.segment(plan:compile(2, set), 0).fills)
   end)

   it("clear the whole window of a worker without a box", function()
      local plan = plan_of({1}, {{"tp", 2}}):add {name = "w", shape = {4, 3}, dtype = "int8"}
      plan:direct("w", {live = "w", layout = {{axis = "tp", shard = 0, chunk = 4}}, pad = true})
      assert.same({bytes = 0, copies = {}, fills = {{buffer = 0, destination = 0, run = 12, bytes = 12, dims = {}}}},
         build.segment(plan:compile(2, build.live_set {{name = "w", shape = {4, 3}, dtype = "int8"}}), 0))
   end)
end)

describe("a trainer's copies", function()
   it("list what each worker reads, packed", function()
      local plan = plan_of({{"tp", 2}}, {{"tp", 2}}):add {name = "w", shape = {4, 6}, dtype = "int8",
         source = {{axis = "tp", shard = 0}}}
      plan:direct("w", {live = "w", layout = {{axis = "tp", shard = 1}}})
      local program = plan:compile(1)
      assert.same({bytes = 12, fills = {}, copies = {{peer = 2, buffer = 0, source = 0, destination = 0, run = 3, bytes = 6,
         dims = {{2, 6, 3}}},
         {peer = 3, buffer = 0, source = 3, destination = 0, run = 3, bytes = 6, dims = {{2, 6, 3}}}}}, build.segment(program, 0))
      assert.same({2, 3}, {program.peer[0], program.peer[1]})
   end)

   it("come from the replica that the schedule says, each piece once", function()
      local plan = plan_of({{"dp", 2}}, {4}):add {name = "w", shape = {4}, dtype = "int8"}
      plan:direct("w", {live = "w"})
      local peers = {}
      for rank = 0, 1 do
         for _, copy in ipairs(build.segment(plan:compile(rank), 0).copies) do
            peers[#peers + 1] = {rank, copy.peer}
         end
      end
      assert.same({{0, 2}, {0, 4}, {1, 3}, {1, 5}}, peers)
   end)
end)

describe("slc_program_compile", function()
   it("refuses ranks outside the world, workers without tensors and incomplete plans", function()
      local plan = plan_of({1}, {1}):add {name = "w", shape = {4}}
      local program = ffi.new("slc_program")
      local function problem(rank, set)
         return build.fails(C.slc_program_compile, plan.plan, set, rank, program)
      end
      assert.equal("init: rank 2 is outside the world of 2", problem(2))
      assert.equal("init: rank -1 is outside the world of 2", problem(-1))
      assert.equal("init: rank 1 is a worker and needs its live tensors", problem(1))
      assert.equal("destination: parameter 'w' [4]: has no destination", problem(0))
      plan:direct("w", {live = "w"})
      assert.equal("destination: rules.lua:1: parameter 'w' [4]: worker rank 1 has no live 'w' for its box [0:4]",
         problem(1, build.live_set {}))
      assert.is_true(program.arena.blocks == nil)
   end)

   it("refuses what it cannot count", function()
      local plan = plan_of({1}, {8}):add {name = "w", shape = {2147483648, 1073741824}, dtype = "int8"}:set("w", {mode = "FULL"})
      assert.equal("init: rank 0 moves more bytes than can be counted (up to parameter 'w')",
         build.fails(C.slc_program_compile, plan.plan, nil, 0, ffi.new("slc_program")))
      assert.equal(2 ^ 61, tonumber(plan:compile(1, build.live_set {}).bytes))
   end)

   it("says so when there is no memory, at every step", function()
      local plan = plan_of({{"dp", 3}}, {2}):add {name = "w", shape = {40, 30}}:add {name = "v", shape = {4}}
      plan:direct("w", {live = "w", source = {{0, 30}, {0, 20}}, pad = true}):set("v", {mode = "FULL"})
      local set = build.live_set {{name = "w", shape = {31, 22}}}
      for _, rank in ipairs {1, 3} do
         local nth, program = 0, ffi.new("slc_program")
         repeat
            nth = nth + 1
            C.slc_fail_allocation(nth, true)
            local text, status = build.fails(C.slc_program_compile, plan.plan, set, rank, program)
            C.slc_fail_allocation(0, false)
            assert.is_true(text == nil or (status == 3 and program.arena.blocks == nil), text)
         until not text
         C.slc_program_clear(program)
         assert.is_true(nth > 4)
      end
   end)
end)

-- ---- cases from real faults ----

-- Runs a plan on bytes: fill(name, number) gives element `number` of a parameter; shard(rank, name) lists the numbers that a
-- trainer holds. Returns the worker's live tensors by name, as lists of bytes. Every element is one byte.
local function run(plan, worker, lives, fill, shard)
   local set, memory = {}, {}
   for i, live in ipairs(lives) do
      local bytes = 1
      for _, extent in ipairs(live.shape) do
         bytes = bytes * extent
      end
      memory[i] = {}
      for b = 1, bytes do
         memory[i][b] = -1
      end
      set[i] = {name = live.name, shape = live.shape, dtype = "uint8"}
   end
   set = build.live_set(set)
   assert.is_table(plan:coverage(set, worker))
   local program = plan:compile(worker, set)
   for p = 0, tonumber(program.count) - 1 do
      local name = ffi.string(C.slc_plan_at(plan.plan, p).name)
      local segment = build.segment(program, p)
      for _, copy in ipairs(segment.copies) do
         local numbers = shard(copy.peer, name)
         local function go(d, source, destination)
            if copy.dims[d] then
               for i = 0, copy.dims[d][1] - 1 do
                  go(d + 1, source + i * copy.dims[d][2], destination + i * copy.dims[d][3])
               end
               return
            end
            for b = 0, copy.run - 1 do
               memory[copy.buffer + 1][destination + b + 1] = fill(name, numbers[source + b + 1])
            end
         end
         go(1, copy.source, copy.destination)
      end
   end
   local result = {}
   for i, live in ipairs(lives) do
      result[live.name] = memory[i]
   end
   return result, program
end

local function iota(from, to)
   local list = {}
   for i = from, to do
      list[#list + 1] = i
   end
   return list
end

local function same_number(_, number)
   return number
end

describe("uneven shards", function() -- the case uneven_shards
   local function moves(shape, source_parts, shards, dim, parts, expected)
      local plan = plan_of({{"tp", source_parts}}, {{"tp", parts}}):add {name = "w", shape = shape, dtype = "uint8",
         source = {{axis = "tp", shard = 0}}}
      plan:direct("w", {live = "w", layout = {{axis = "tp", shard = dim}}})
      for worker = 0, parts - 1 do
         local local_shape = {shape[1], shape[2]}
         local_shape[dim + 1] = expected[worker + 1].extent
         local result, program = run(plan, source_parts + worker, {{name = "w", shape = local_shape}}, same_number, function(rank)
            return shards[rank + 1]
         end)
         assert.same(expected[worker + 1].elements, result.w)
         assert.equal(#expected[worker + 1].elements, tonumber(program.bytes))
      end
   end
   local two = {iota(0, 8), iota(9, 14)} -- rows 3 and 2 of [5, 3]

   it("of five rows go from two to two, one, four and by columns", function()
      moves({5, 3}, 2, two, 0, 2, {{extent = 3, elements = iota(0, 8)}, {extent = 2, elements = iota(9, 14)}})
      moves({5, 3}, 2, two, 0, 1, {{extent = 5, elements = iota(0, 14)}})
      moves({5, 3}, 2, two, 0, 4, {{extent = 2, elements = iota(0, 5)}, {extent = 2, elements = iota(6, 11)},
         {extent = 1, elements = iota(12, 14)},
         {extent = 0, elements = {}}})
      moves({5, 3}, 2, two, 1, 2, {{extent = 2, elements = {0, 1, 3, 4, 6, 7, 9, 10, 12, 13}},
         {extent = 1, elements = {2, 5, 8, 11, 14}}})
   end)

   it("of two rows over three ranks leave one without any", function()
      moves({2, 4}, 3, {iota(0, 3), iota(4, 7), {}}, 0, 1, {{extent = 2, elements = iota(0, 7)}})
      moves({2, 4}, 3, {iota(0, 3), iota(4, 7), {}}, 0, 3, {{extent = 1, elements = iota(0, 3)},
         {extent = 1, elements = iota(4, 7)}, {extent = 0, elements = {}}})
   end)
end)

describe("a tensor of five dims", function() -- the case five_dims
   it("moves as one span between ranks that hold it whole", function()
      local shape = {1280, 3, 2, 14, 14}
      local plan = plan_of({2}, {2}):add {name = "visual.patch_embed.proj.weight", shape = shape, dtype = "bfloat16"}
      plan:direct("visual.patch_embed.proj.weight", {live = "visual.patch_embed.proj.weight"})
      local set = build.live_set {{name = "visual.patch_embed.proj.weight", shape = shape, dtype = "bfloat16"}}
      assert.same({{peer = 0, buffer = 0, source = 0, destination = 0, run = 3010560, bytes = 3010560, dims = {}}},
         build.segment(plan:compile(2, set), 0).copies)
   end)
end)

describe("many sources", function() -- the case many_sources
   it("make one piece each", function()
      local plan = plan_of({{"fsdp", 17}}, {1}):add {name = "w", shape = {34, 8}, dtype = "uint8",
         source = {{axis = "fsdp", shard = 0}}}
      plan:direct("w", {live = "w"})
      local result, program = run(plan, 17, {{name = "w", shape = {34, 8}}}, same_number, function(rank)
         return iota(rank * 16, rank * 16 + 15)
      end)
      assert.same(iota(0, 271), result.w)
      assert.same({17, 17}, {tonumber(program.copies), tonumber(program.npeers)})
   end)
end)

describe("experts one by one and packed", function()
   local experts, im, h = 10, 8, 6
   local balanced = {{axis = "ep", shard = 0, split = "balanced"}}
   local first, count = {0, 3, 6, 8}, {3, 3, 2, 2}

   -- The value of an element of an expert's gate (0), up (1) or down (2).
   local function value(kind, expert, number)
      return (kind * 97 + expert * 31 + number * 7) % 251
   end

   local function owner(expert)
      local rank = 1
      while expert >= first[rank] + count[rank] do
         rank = rank + 1
      end
      return rank - 1
   end

   local function one_by_one()
      local plan = plan_of({{"dp", 2}}, {{"ep", 4}})
      for e = 0, experts - 1 do
         local slot, pin = {e - first[owner(e) + 1], select = true}, {{axis = "ep", pin = owner(e)}}
         for kind, name in ipairs {"gate", "up", "down"} do
            local full = ("experts.%d.%s"):format(e, name)
            plan:add {name = full, dtype = "uint8", shape = kind == 3 and {h, im} or {im, h}}
            plan:direct(full, kind == 3 and {live = "w2", view = {slot, false, false}, layout = pin}
               or {live = "w13", view = {slot, {(kind - 1) * im, im}, false}, layout = pin})
         end
      end
      return plan, function(name, number)
         local e, kind = name:match("experts%.(%d+)%.(%a+)")
         return value(({gate = 0, up = 1, down = 2})[kind], tonumber(e), number)
      end
   end

   local function packed()
      local plan = plan_of({{"dp", 2}}, {{"ep", 4}}):add {name = "gate_up", dtype = "uint8", shape = {experts, 2 * im, h}}
         :add {name = "down", dtype = "uint8", shape = {experts, h, im}}
      plan:direct("gate_up", {source = {false, {0, im}}, live = "w13", view = {false, {0, im}}, layout = balanced},
         {source = {false, {im, im}}, live = "w13", view = {false, {im, im}}, layout = balanced})
      plan:direct("down", {live = "w2", layout = balanced})
      return plan, function(name, number)
         local e, rest = math.floor(number / (name == "down" and h * im or 2 * im * h)),
            number % (name == "down" and h * im or 2 * im * h)
         if name == "down" then
            return value(2, e, rest)
         end
         return value(math.floor(rest / (im * h)), e, rest % (im * h))
      end
   end

   it("give the same bytes, and move only to ranks that own the expert", function()
      for rank = 0, 3 do
         local lives = {{name = "w13", shape = {count[rank + 1], 2 * im, h}}, {name = "w2", shape = {count[rank + 1], h, im}}}
         local function whole()
            return iota(0, experts * 2 * im * h)
         end
         local plan, fill = one_by_one()
         local a, program = run(plan, 2 + rank, lives, fill, whole)
         assert.equal(count[rank + 1] * 3, tonumber(program.copies))
         plan, fill = packed()
         local b = run(plan, 2 + rank, lives, fill, whole)
         assert.same(a, b)
         for slot = 0, count[rank + 1] - 1 do
            assert.equal(value(0, first[rank + 1] + slot, 5), a.w13[slot * 2 * im * h + 6])
            assert.equal(value(1, first[rank + 1] + slot, 5), a.w13[slot * 2 * im * h + im * h + 6])
            assert.equal(value(2, first[rank + 1] + slot, 5), a.w2[slot * h * im + 6])
         end
      end
   end)
end)
