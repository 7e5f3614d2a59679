--- Boxes, ranges, meshes and layouts, by cases worked out by hand.

local ffi = require "ffi"
local build = require "spec.plan.build"

local C = build.C

local function range(start, count, step)
   return ffi.new("slc_range", {start = start, count = count, step = step or 1})
end

describe("slc_box", function()
   it("of no dims holds one element", function()
      local box = C.slc_box_whole(0, nil)
      assert.is_false(C.slc_box_empty(box))
      assert.equal(1, tonumber(C.slc_box_volume(box)))
   end)

   it("is empty where one dim is", function()
      local box = C.slc_box_whole(2, build.shape {3, 4})
      box.low[1] = 4
      assert.is_true(C.slc_box_empty(box))
      assert.equal(0, tonumber(C.slc_box_volume(box)))
   end)

   it("intersects to an empty box, never to a negative one", function()
      local a, b = C.slc_box_whole(1, build.shape {3}), C.slc_box_whole(1, build.shape {9})
      b.low[0] = 5
      assert.same({{5, 5}}, build.box(C.slc_box_intersect(a, b)))
      b.low[0] = 2
      assert.same({{2, 3}}, build.box(C.slc_box_intersect(a, b)))
   end)
end)

describe("slc_range_resolve", function()
   local function resolve(extent, given)
      local out = ffi.new("slc_range")
      if C.slc_range_resolve(build.range(given), extent, out) then
         return {tonumber(out.start), tonumber(out.count), tonumber(out.step), out.select}
      end
   end

   it("counts to the end", function()
      assert.same({0, 10, 1, false}, resolve(10))
      assert.same({7, 3, 1, false}, resolve(10, {7}))
      assert.same({1, 3, 3, false}, resolve(10, {1, nil, 3}))
      assert.same({0, 0, 1, false}, resolve(0))
      assert.same({10, 0, 1, false}, resolve(10, {10}))
   end)

   it("takes what lies inside", function()
      assert.same({2, 3, 4, false}, resolve(11, {2, 3, 4}))
      assert.same({4, 1, 1, true}, resolve(5, {4, select = true}))
   end)

   it("refuses what does not", function()
      assert.is_nil(resolve(10, {2, 3, 4}))
      assert.is_nil(resolve(10, {11}))
      assert.is_nil(resolve(10, {-1, 2}))
      assert.is_nil(resolve(10, {0, 2, 0}))
      assert.is_nil(resolve(10, {0, -2}))
      assert.is_nil(resolve(5, {5, select = true}))
      assert.is_nil(resolve(10, {9007199254740992LL, 9007199254740992LL, 9007199254740992LL}))
   end)
end)

describe("slc_range_clip", function()
   it("gives the positions whose indices lie inside", function()
      local low, high = ffi.new("int64_t[1]"), ffi.new("int64_t[1]")
      local cases = {
         {{3, 4, 1}, 0, 100, 0, 4}, {{3, 4, 1}, 4, 6, 1, 3}, {{3, 4, 2}, 4, 8, 1, 3}, {{3, 4, 2}, 4, 5, 1, 1},
            {{3, 4, 5}, 13, 14, 2, 3},
         {{3, 4, 1}, 9, 20, 4, 4}, {{3, 4, 1}, 0, 3, 0, 0}, {{3, 0, 1}, 0, 9, 0, 0},
      }
      for _, case in ipairs(cases) do
         C.slc_range_clip(range(unpack(case[1])), case[2], case[3], low, high)
         assert.same({case[4], case[5]}, {tonumber(low[0]), tonumber(high[0])})
      end
   end)
end)

describe("slc_range_meets", function()
   it("agrees with looking at every index", function()
      for start_a = 0, 4 do
         for step_a = 1, 4 do
            for start_b = 0, 6 do
               for step_b = 1, 6 do
                  for count = 0, 4 do
                     local found = false
                     for i = 0, count - 1 do
                        for k = 0, 2 do
                           found = found or start_a + i * step_a == start_b + k * step_b
                        end
                     end
                     local a, b = range(start_a, count, step_a), range(start_b, 3, step_b)
                     assert.equal(found, C.slc_range_meets(a, b))
                     assert.equal(found, C.slc_range_meets(b, a))
                  end
               end
            end
         end
      end
   end)

   it("holds for numbers whose products do not fit", function()
      local big = 2305843009213693951LL -- 2^61 - 1
      assert.is_true(C.slc_range_meets(range(0, 2, big), range(big, 1)))
      assert.is_false(C.slc_range_meets(range(0, 2, big), range(1, 2, big)))
      assert.is_true(C.slc_range_meets(range(1, 2, big - 1), range(0, 2, big)))
   end)
end)

describe("slc_mesh", function()
   it("numbers ranks row-major from its first", function()
      local mesh = build.mesh {first = 10, axes = {{"pp", 2}, {"tp", 3}}}
      local at = ffi.new("int32_t[8]")
      C.slc_mesh_coordinates(mesh, 14, at)
      assert.same({1, 1}, build.numbers(at, 2))
      assert.equal(14, C.slc_mesh_rank(mesh, at))
      assert.equal(6, mesh.size)
      assert.is_false(C.slc_mesh_holds(mesh, 9))
      assert.is_true(C.slc_mesh_holds(mesh, 10))
      assert.is_true(C.slc_mesh_holds(mesh, 15))
      assert.is_false(C.slc_mesh_holds(mesh, 16))
      assert.equal(1, C.slc_mesh_axis(mesh, "tp"))
      assert.equal(-1, C.slc_mesh_axis(mesh, "ep"))
      assert.equal(-1, C.slc_mesh_axis(mesh, ""))
   end)

   local function problem(axes, first)
      local good, text = pcall(build.mesh, {first = first, axes = axes})
      assert.is_false(good)
      return text
   end

   it("refuses axes that make no mesh", function()
      assert.equal("init: mesh has 0 axes; a mesh has 1 to 8", problem {})
      assert.equal("init: mesh has 9 axes; a mesh has 1 to 8", build.fails(C.slc_mesh_check, ffi.new("slc_mesh", {naxes = 9}),
         "mesh"))
      assert.equal("init: mesh.axes[1] (0) must be at least 1", problem {2, 0})
      assert.equal("init: mesh.axes[2] ('tp') has the name of axes[0]; names of a mesh differ", problem {{"tp", 2}, 3, {"tp", 2}})
      assert.equal("init: mesh has more ranks than the 2147483647 that a world can have", problem {65536, 65536})
      assert.equal("init: mesh has more ranks than the 2147483647 that a world can have", problem({2147483647}, 1))
      assert.equal("init: mesh begins at rank -1; ranks begin at 0", problem({2}, -1))
   end)
end)

-- The [low, high) that each rank of a mesh holds of a dim.
local function cuts(axes, placements, extent)
   local mesh = build.mesh {axes = axes}
   local layout = build.layout(mesh, placements)
   local list = {}
   for rank = 0, mesh.size - 1 do
      local box = build.box_of(layout, {extent}, rank)
      list[rank + 1] = box and box[1] or false
   end
   return list
end

describe("slc_layout_box", function()
   it("cuts as torch.chunk does", function()
      assert.same({{0, 3}, {3, 5}}, cuts({2}, {{axis = 0, shard = 0}}, 5))
      assert.same({{0, 2}, {2, 4}, {4, 5}, {5, 5}}, cuts({4}, {{axis = 0, shard = 0}}, 5))
      assert.same({{0, 1}, {1, 2}, {2, 2}}, cuts({3}, {{axis = 0, shard = 0}}, 2))
      assert.same({{0, 2}, {2, 4}, {4, 6}}, cuts({3}, {{axis = 0, shard = 0}}, 6))
   end)

   it("cuts in balanced pieces", function()
      assert.same({{0, 3}, {3, 6}, {6, 8}, {8, 10}}, cuts({4}, {{axis = 0, shard = 0, split = "balanced"}}, 10))
      assert.same({{0, 1}, {1, 2}, {2, 2}}, cuts({3}, {{axis = 0, shard = 0, split = "balanced"}}, 2))
   end)

   it("cuts in chunks of a stated size", function()
      assert.same({{0, 4}, {4, 8}, {8, 10}, {10, 10}}, cuts({4}, {{axis = 0, shard = 0, chunk = 4}}, 10))
      assert.same({{0, 10}, {10, 10}}, cuts({2}, {{axis = 0, shard = 0, chunk = 64}}, 10))
      assert.same({{0, 10}, {10, 10}}, cuts({2}, {{axis = 0, shard = 0, chunk = 4611686018427387903LL}}, 10))
   end)

   it("nests in the order of the placements", function()
      -- Rank = fsdp * 2 + tp. FSDP inside TP: tp cuts [0, 8) first. TP inside FSDP: fsdp does.
      local axes = {{"fsdp", 2}, {"tp", 2}}
      assert.same({{0, 2}, {4, 6}, {2, 4}, {6, 8}}, cuts(axes, {{axis = "tp", shard = 0}, {axis = "fsdp", shard = 0}}, 8))
      assert.same({{0, 2}, {2, 4}, {4, 6}, {6, 8}}, cuts(axes, {{axis = "fsdp", shard = 0}, {axis = "tp", shard = 0}}, 8))
   end)

   it("nests uneven pieces, each by its own size", function()
      local axes = {{"fsdp", 3}, {"tp", 2}}
      -- tp: [0, 4), [4, 7); fsdp of four: 2, 2, 0; of three: 1, 1, 1.
      assert.same({{0, 2}, {4, 5}, {2, 4}, {5, 6}, {4, 4}, {6, 7}}, cuts(axes,
         {{axis = "tp", shard = 0}, {axis = "fsdp", shard = 0}}, 7))
   end)

   it("keeps a pinned tensor from all other coordinates", function()
      assert.same({false, {0, 9}, false}, cuts({3}, {{axis = 0, pin = 1}}, 9))
      assert.same({false, false, {0, 5}, {5, 9}}, cuts({2, 2}, {{axis = 0, pin = 1}, {axis = 1, shard = 0}}, 9))
   end)

   it("cuts with the first part of a split axis and replicates over the second", function()
      assert.same({{0, 4}, {0, 4}, {4, 8}, {4, 8}}, cuts({4}, {{axis = 0, shard = 0, parts = 2}}, 8))
   end)

   it("holds a tensor of no dims whole", function()
      local layout = build.layout(build.mesh {axes = {2}}, {})
      assert.same({}, build.box_of(layout, {}, 1))
      assert.is_nil(build.box_of(layout, {}, 2))
   end)

   it("cuts eight dims over eight axes", function()
      local mesh = build.mesh {axes = {2, 2, 2, 2, 2, 2, 2, 2}}
      local placements, shape = {}, {}
      for i = 0, 7 do
         placements[i + 1] = {axis = i, shard = 7 - i}
         shape[i + 1] = 2
      end
      -- Rank 1 is coordinate 1 on the last axis only, which cuts dim 0.
      assert.same({{1, 2}, {0, 1}, {0, 1}, {0, 1}, {0, 1}, {0, 1}, {0, 1}, {0, 1}},
         build.box_of(build.layout(mesh, placements), shape, 1))
   end)
end)

describe("slc_layout_rank and slc_layout_place", function()
   it("number shards and replicas row-major in mesh axis order, pinned axes aside", function()
      local mesh = build.mesh {first = 100, axes = {{"pp", 2}, {"dp", 2}, {"tp", 4}}}
      local layout = build.layout(mesh, {{axis = "tp", shard = 0, parts = 2}, {axis = "pp", pin = 1}})
      assert.equal(2, C.slc_layout_shards(layout))
      assert.equal(4, C.slc_layout_replicas(layout))
      local ranks = {}
      for shard = 0, 1 do
         for replica = 0, 3 do
            ranks[#ranks + 1] = C.slc_layout_rank(layout, shard, replica)
         end
      end
      -- Replica = dp * 2 + tp % 2.
      assert.same({108, 109, 112, 113, 110, 111, 114, 115}, ranks)
      local shard, replica = ffi.new("int32_t[1]"), ffi.new("int32_t[1]")
      C.slc_layout_place(layout, 114, shard, replica)
      assert.same({1, 2}, {shard[0], replica[0]})
   end)
end)

-- The shards that a walk yields for [low, high) of one dim.
local function walk(layout, shape, query)
   local box, shard, out = ffi.new("slc_box"), ffi.new("int32_t[1]"), ffi.new("slc_box")
   box.ndim = #shape
   for d, interval in ipairs(query) do
      box.low[d - 1], box.high[d - 1] = interval[1], interval[2]
   end
   local extents = build.shape(shape)
   local state, list = ffi.new("slc_shard_walk"), {}
   C.slc_shard_walk_begin(state, layout, #shape, extents, box)
   while C.slc_shard_walk_next(state, shard, out) do
      list[#list + 1] = {shard[0], build.box(out)}
   end
   assert.is_false(C.slc_shard_walk_next(state, shard, out))
   return list
end

describe("slc_shard_walk", function()
   it("yields the shards that a query meets with their whole boxes", function()
      local layout = build.layout(build.mesh {axes = {4}}, {{axis = 0, shard = 0}})
      assert.same({{1, {{3, 6}}}, {2, {{6, 9}}}}, walk(layout, {10}, {{5, 7}}))
      assert.same({{3, {{9, 10}}}}, walk(layout, {10}, {{9, 99}}))
      assert.same({}, walk(layout, {10}, {{4, 4}}))
      assert.same({}, walk(layout, {10}, {{10, 12}}))
   end)

   it("walks by pieces where the nesting turns the mesh's axes round", function()
      local layout = build.layout(build.mesh {axes = {{"fsdp", 2}, {"tp", 2}}},
         {{axis = "tp", shard = 0}, {axis = "fsdp", shard = 0}})
      assert.same({{2, {{2, 4}}}, {1, {{4, 6}}}}, walk(layout, {8}, {{3, 5}}))
   end)

   it("passes over empty pieces, however many", function()
      local layout = build.layout(build.mesh {axes = {2, 1048576}}, {{axis = 0, shard = 0}, {axis = 1, shard = 0}})
      assert.same({{0, {{0, 1}}}, {1, {{1, 2}}}, {1048576, {{2, 3}}}}, walk(layout, {3}, {{0, 3}}))
   end)

   it("yields the only shard of a tensor of no dims", function()
      assert.same({{0, {}}}, walk(build.layout(build.mesh {axes = {4}}, {}), {}, {}))
   end)
end)

describe("slc_layout_check", function()
   local function problem(shape, placements, change)
      local mesh = build.mesh {axes = {{"dp", 2}, {"tp", 4}}}
      local layout = build.layout(mesh, placements)
      if change then
         change(layout)
      end
      return build.fails(C.slc_layout_check, layout, #shape, build.shape(shape), "params[3]")
   end

   it("takes every layout that fits", function()
      assert.is_nil(problem({8, 4}, {{axis = "tp", shard = 0}, {axis = "dp", shard = 0}}))
      assert.is_nil(problem({}, {{axis = "dp", pin = 1}}))
      assert.is_nil(problem({10}, {{axis = "tp", shard = 0, chunk = 3}}))
   end)

   it("names the axis of one that does not", function()
      assert.equal("init: params[3]: axis 'tp' shards dim 2 of a tensor of 2 dims", problem({8, 4}, {{axis = "tp", shard = 2}}))
      assert.equal("init: params[3]: axis 'tp' is cut in 3 parts, which must divide its size 4",
         problem({8}, {{axis = "tp", shard = 0, parts = 3}}))
      assert.equal("init: params[3]: axis 'tp' is cut in 0 parts, which must divide its size 4",
         problem({8}, {{axis = "tp", shard = 0, parts = 0}}))
      assert.equal("init: params[3]: axis 'tp' has a chunk of 0, which must be at least 1",
         problem({8}, {{axis = "tp", shard = 0, chunk = 0}}))
      assert.equal("init: params[3]: axis 'tp' has 4 chunks of 2, which must reach the 9 elements of dim 0",
         problem({9}, {{axis = "tp", shard = 0, chunk = 2}}))
      assert.equal("init: params[3]: axis 'dp' is pinned to 2, which must lie in [0, 2)", problem({9}, {{axis = "dp", pin = 2}}))
      assert.equal("init: params[3]: axis 'tp' is placed twice", problem({9}, {{axis = "tp", shard = 0}, {axis = "tp", pin = 0}}))
      assert.equal("init: params[3]: placement 0 names axis -1 of a mesh of 2 axes", problem({9}, {{axis = "ep", pin = 0}}))
      assert.equal("init: params[3]: 3 placements for a mesh of 2 axes", problem({9}, {}, function(layout)
         layout.nplacements = 3
      end))
      assert.equal("init: params[3]: a layout needs a mesh", problem({9}, {}, function(layout)
         layout.mesh = nil
      end))
   end)

   it("asks the chunks of an inner placement to reach only the largest outer piece", function()
      assert.is_nil(problem({16}, {{axis = "dp", shard = 0}, {axis = "tp", shard = 0, chunk = 2}}))
      assert.equal("init: params[3]: axis 'tp' has 4 chunks of 2, which must reach the 9 elements of dim 0",
         problem({17}, {{axis = "dp", shard = 0}, {axis = "tp", shard = 0, chunk = 2}}))
   end)
end)

describe("slc_layout_equal", function()
   it("looks at what a placement means, in order", function()
      local mesh = build.mesh {axes = {{"dp", 2}, {"tp", 4}}}
      local function equal(a, b)
         return C.slc_layout_equal(build.layout(mesh, a), build.layout(mesh, b))
      end
      assert.is_true(equal({}, {}))
      assert.is_true(equal({{axis = "tp", shard = 0}}, {{axis = "tp", shard = 0, parts = 4}}))
      assert.is_false(equal({{axis = "tp", shard = 0}}, {{axis = "tp", shard = 0, parts = 2}}))
      assert.is_false(equal({{axis = "tp", shard = 0}}, {{axis = "tp", shard = 0, split = "balanced"}}))
      assert.is_false(equal({{axis = "tp", shard = 0, chunk = 2}}, {{axis = "tp", shard = 0, chunk = 3}}))
      assert.is_false(equal({{axis = "tp", pin = 0}}, {{axis = "tp", pin = 1}}))
      assert.is_false(equal({{axis = "tp", shard = 0}, {axis = "dp", shard = 0}},
         {{axis = "dp", shard = 0}, {axis = "tp", shard = 0}}))
   end)
end)
