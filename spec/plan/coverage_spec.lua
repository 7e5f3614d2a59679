--- The checks that make a rule safe, and what is left unwritten.

local ffi = require "ffi"
local build = require "spec.plan.build"

local C = build.C

-- Two workers (ranks 1 and 2) on one axis tp.
local function new_plan()
   return build.plan {trainers = 1, workers = 2, sources = {{axes = {1}}}, destinations = {{axes = {{"tp", 2}}}}}
end

local tp = {{axis = "tp", shard = 0}}

describe("coverage", function()
   it("of a fused tensor that two parameters fill is whole", function()
      local plan = new_plan():add {name = "gate", shape = {8, 3}}:add {name = "up", shape = {8, 3}}
      plan:direct("gate", {live = "gate_up", view = {{0, 4}}, layout = tp})
         :direct("up", {live = "gate_up", view = {{4, 4}}, layout = tp})
      local set = build.live_set {{name = "gate_up", shape = {8, 3}}, {name = "inv_freq", shape = {5}}}
      assert.same({live = 116, written = 96, padded = 0, uncovered = {{1, 20}}}, plan:coverage(set, 1))
   end)

   it("counts what padding clears apart from what is written", function()
      local plan = new_plan():add {name = "embed", shape = {100, 3}}
      plan:direct("embed", {live = "embed", layout = {{axis = "tp", shard = 0, chunk = 64}}, pad = true})
      local set = build.live_set {{name = "embed", shape = {64, 3}}}
      assert.same({live = 768, written = 768, padded = 0, uncovered = {}}, plan:coverage(set, 1))
      assert.same({live = 768, written = 432, padded = 336, uncovered = {}}, plan:coverage(set, 2))
   end)

   it("asks nothing of a worker that a pin or a short tail leaves without a box", function()
      local plan = new_plan():add {name = "a", shape = {3}}:add {name = "b", shape = {1, 3}}
      plan:direct("a", {live = "a", layout = {{axis = "tp", pin = 0}}}):direct("b", {live = "b", layout = tp})
      assert.same({live = 0, written = 0, padded = 0, uncovered = {}}, plan:coverage(build.live_set {}, 2))
      assert.same({live = 24, written = 24, padded = 0, uncovered = {}},
         plan:coverage(build.live_set {{name = "a", shape = {3}}, {name = "b", shape = {1, 3}}}, 1))
   end)

   it("lists bytes between rows as nobody's", function()
      local plan = new_plan():add {name = "a", shape = {3, 2}}
      plan:direct("a", {live = "a"})
      local set = build.live_set {{name = "a", shape = {3, 2}, strides = {20, 4}}}
      assert.same({live = 24, written = 24, padded = 0, uncovered = {}}, plan:coverage(set, 1))
   end)
end)

describe("a view", function()
   local function problem(live, target, shape)
      local plan = new_plan():add {name = "a.weight", shape = shape or {8, 3}}
      target.live = "x"
      plan:set("a.weight", {mode = "DIRECT", where = "llama.lua:12", targets = {target}})
      local coverage, text, status = plan:coverage(build.live_set {live}, 1)
      assert.is_true(coverage ~= nil or status == 1)
      return text
   end
   local place = "destination: llama.lua:12: parameter 'a.weight' [8, 3]: "

   it("must show the box #5.7", function()
      assert.is_nil(problem({name = "x", shape = {4, 3}}, {layout = tp}))
      assert.equal(place .. "the view [:, :] of live 'x' shows [8, 3], but worker rank 1 gets [4, 3] (the box [0:4, 0:3]);"
         .. " without padding the two must be equal",
         problem({name = "x", shape = {8, 3}}, {layout = tp}))
      assert.equal(place .. "the view [:, :] of live 'x' shows [3, 4], but worker rank 1 gets [4, 3] (the box [0:4, 0:3]);"
         .. " without padding the two must be equal",
         problem({name = "x", shape = {3, 4}}, {layout = tp}))
      assert.is_nil(problem({name = "x", shape = {3, 4}}, {layout = tp, order = {1, 0}}))
   end)

   it("with padding must have room for the box", function()
      assert.is_nil(problem({name = "x", shape = {5, 4}}, {layout = tp, pad = true}))
      assert.equal(place .. "the view [:, :] of live 'x' shows [5, 2], but worker rank 1 gets [4, 3] (the box [0:4, 0:3]); the"
         .. " view must have room for it",
         problem({name = "x", shape = {5, 2}}, {layout = tp, pad = true}))
   end)

   it("must lie inside the live tensor #5.6", function()
      assert.equal(place .. "the view [2:6, :] of live 'x' of shape [5, 3] leaves it in dim 0",
         problem({name = "x", shape = {5, 3}}, {layout = tp, view = {{2, 4}}}))
      assert.equal(place .. "the view [:, :] of live 'x' of shape [4, 3, 1] has 2 dims for 3 (index(dim, i) in `at` adds one, in `from` drops one)",
         problem({name = "x", shape = {4, 3, 1}}, {layout = tp}))
   end)

   it("must be of a live tensor of the same dtype", function()
      assert.equal(place .. "worker rank 1 has no live 'x' for its box [0:4, 0:3]",
         problem({name = "y", shape = {4, 3}}, {layout = tp}))
      assert.equal(place .. "is float32, but live 'x' [4, 3] is bfloat16; a direct destination has the same dtype, unless its rule says convert",
         problem({name = "x", dtype = "bfloat16", shape = {4, 3}}, {layout = tp}))
   end)
end)

describe("two parameters on the same live bytes", function()
   local function problem(targets, lives, rank)
      local plan = new_plan()
      for i, target in ipairs(targets) do
         plan:add {name = "p" .. i, shape = target.shape}
         plan:set("p" .. i, {mode = "DIRECT", where = "moe.lua:" .. i, targets = {target}})
      end
      local _, text = plan:coverage(build.live_set(lives), rank or 1)
      return text
   end

   it("are refused by name #5.5", function()
      assert.equal("destination: moe.lua:2: parameter 'p2' [4, 3] writes [3:7, 0:3] of live 'w' [8, 3], where on worker rank 1"
         .. " bytes are written already: "
            .. "moe.lua:1: parameter 'p1' [4, 3] writes [0:4, 0:3] of live 'w' [8, 3]",
         problem({{shape = {4, 3}, live = "w", view = {{0, 4}}}, {shape = {4, 3}, live = "w", view = {{3, 4}}}},
            {{name = "w", shape = {8, 3}}}))
   end)

   it("are told by stepped views, exactly", function()
      local lives = {{name = "w", shape = {9, 3}}}
      assert.is_nil(problem({{shape = {4, 3}, live = "w", view = {{0, 4, 2}}}, {shape = {4, 3}, live = "w", view = {{1, 4, 2}}}},
         lives))
      assert.is_string(problem({{shape = {4, 3}, live = "w", view = {{0, 4, 2}}},
         {shape = {2, 3}, live = "w", view = {{3, 2, 3}}}}, lives))
      assert.is_nil(problem({{shape = {4, 3}, live = "w", view = {{0, 4, 2}}}, {shape = {2, 3}, live = "w", view = {{1, 2, 4}}}},
         lives))
   end)

   it("are told apart in any dim, with many experts", function()
      local targets = {}
      for e = 0, 63 do
         targets[#targets + 1] = {shape = {2, 3}, live = "w13", view = {{e, select = true}, {0, 2}, false}}
         targets[#targets + 1] = {shape = {2, 3}, live = "w13", view = {{e, select = true}, {2, 2}, false}}
      end
      local lives = {{name = "w13", shape = {64, 4, 3}}}
      assert.is_nil(problem(targets, lives))
      targets[100].view[2] = {1, 2}
      assert.equal("destination: moe.lua:100: parameter 'p100' [2, 3] writes [49, 1:3, 0:3] of live 'w13' [64, 4, 3], where on"
         .. " worker rank 1 bytes are written already: "
            .. "moe.lua:99: parameter 'p99' [2, 3] writes [49, 0:2, 0:3] of live 'w13' [64, 4, 3]", problem(targets, lives))
   end)

   it("are told where padding is what clashes", function()
      local text = problem({{shape = {3}, live = "w", view = {{0, 4}}, pad = true}, {shape = {1}, live = "w", view = {{3, 1}}}},
         {{name = "w", shape = {4}}})
      assert.truthy(text and text:find("parameter 'p2' [1] writes [3:4]", 1, true))
   end)

   it("may lie on different workers", function()
      local lives = {{name = "w", shape = {3}}}
      local targets = {{shape = {3}, live = "w", layout = {{axis = "tp", pin = 0}}},
         {shape = {3}, live = "w", layout = {{axis = "tp", pin = 1}}}}
      assert.is_nil(problem(targets, lives, 1))
      assert.is_nil(problem(targets, lives, 2))
   end)

   it("are told through live tensors that share memory, byte by byte", function()
      local data = ffi.new("uint8_t[400]")
      -- Columns [0, 3) and [3, 6) of a [4, 6] storage, registered as two views, and the storage itself.
      local left = {name = "left", shape = {4, 3}, strides = {24, 4}, data = data}
      local right = {name = "right", shape = {4, 3}, strides = {24, 4}, data = data + 12}
      local whole = {name = "whole", shape = {4, 6}, data = data}
      local a, b = {shape = {4, 3}, live = "left"}, {shape = {4, 3}, live = "right"}
      assert.is_nil(problem({a, b}, {left, right, whole}))
      right.data = data + 11
      assert.truthy(problem({a, b}, {left, right, whole}):find("parameter 'p2' [4, 3] writes [0:4, 0:3] of live 'right'", 1,
         true))
      right.data = data + 12
      assert.truthy(problem({a, b, {shape = {1, 1}, live = "whole", view = {{2, 1}, {5, 1}}}}, {left, right, whole}):find(
         "parameter 'p3' [1, 1] writes [2:3, 5:6] of live 'whole' [4, 6], where on worker rank 1 bytes are written already:"
            .. " moe.lua:2: parameter 'p2'", 1, true))
   end)
end)

describe("live tensors that share memory", function()
   it("are covered by what is written through another one", function()
      local data = ffi.new("uint8_t[96]")
      local plan = new_plan():add {name = "embed", shape = {8, 3}}
      plan:direct("embed", {live = "embed"})
      local set = build.live_set {{name = "embed", shape = {8, 3}, data = data}, {name = "lm_head", shape = {8, 3}, data = data},
         {name = "tail", shape = {3}, data = data + 84}, {name = "flat", dtype = "int8", shape = {96}, data = data}}
      assert.same({live = 96, written = 96, padded = 0, uncovered = {}}, plan:coverage(set, 1))
   end)

   it("are uncovered by the bytes that none writes", function()
      local data = ffi.new("uint8_t[192]")
      local plan = new_plan():add {name = "k", shape = {4, 4}}
      plan:direct("k", {live = "k"})
      local set = build.live_set {{name = "q", shape = {4, 8}, strides = {48, 4}, data = data},
         {name = "k", shape = {4, 4}, strides = {48, 4}, data = data + 32},
         {name = "qk", shape = {4, 12}, data = data}}
      assert.same({live = 192, written = 64, padded = 0, uncovered = {{0, 128}, {2, 128}}}, plan:coverage(set, 1))
   end)

   it("without an address are memory of their own", function()
      local plan = new_plan():add {name = "a", shape = {3}}:add {name = "b", shape = {3}}
      plan:direct("a", {live = "a"}):direct("b", {live = "b"})
      assert.same({live = 24, written = 24, padded = 0, uncovered = {}},
         plan:coverage(build.live_set {{name = "a", shape = {3}}, {name = "b", shape = {3}}}, 1))
   end)

   it("are refused when they fall into too many runs to compare", function()
      local data = ffi.cast("uint8_t *", 4096)
      local plan = new_plan():add {name = "a", shape = {3000, 3000}}
      plan:direct("a", {live = "a"})
      local set = build.live_set {{name = "a", shape = {3000, 3000}, strides = {24000, 8}, data = data},
         {name = "b", shape = {3000, 3000}, strides = {24000, 8}, data = data + 4}}
      local _, text = plan:coverage(set, 1)
      assert.equal("destination: live tensors that share memory fall into more than 8388608 runs of bytes, too many to compare;"
         .. " register them as one tensor", text)
   end)
end)

describe("a module", function()
   local function plan_of(live)
      local plan = new_plan():add {name = "m.weight", shape = {3}}:add {name = "m.bias", shape = {3}}
      plan:set("m.weight", {mode = "DIRECT", where = "a.lua:1", targets = {{live = live}}})
      return plan:set("m.bias", {mode = "FULL", reason = "no loader", where = "a.lua:2"}),
         build.live_set {{name = live, shape = {3}}}
   end

   it("is either full or direct where it is finalised as one", function()
      local plan, set = plan_of "m.weight"
      local _, text = plan:coverage(set, 1, true)
      assert.equal("destination: a.lua:1: parameter 'm.weight' [3]: is direct into live 'm.weight', but of its module 'm'"
         .. " a.lua:2: parameter 'm.bias' [3] is full "
         .. "(no loader); a module is finalised as one", text)
      assert.is_table(plan:coverage(set, 1, false))
   end)

   it("is that of the live tensor", function()
      local plan, set = plan_of "n.weight"
      assert.is_table(plan:coverage(set, 1, true))
   end)
end)

describe("coverage without memory", function()
   it("says so at every step", function()
      local data = ffi.new("uint8_t[192]")
      local plan = new_plan():add {name = "a", shape = {4, 3}}:add {name = "b", shape = {4, 3}}:add {name = "c.x", shape = {2}}
      plan:direct("a", {live = "left"}):direct("b", {live = "right"}):set("c.x", {mode = "FULL"})
      local set = build.live_set {{name = "left", shape = {4, 3}, strides = {24, 4}, data = data},
         {name = "right", shape = {4, 3}, strides = {24, 4}, data = data + 12},
         {name = "open", shape = {3}}}
      local nth = 0
      repeat
         nth = nth + 1
         C.slc_fail_allocation(nth, true)
         local coverage, text, status = plan:coverage(set, 1, true)
         C.slc_fail_allocation(0, false)
         assert.is_true(coverage ~= nil or status == 3, text)
      until coverage
      assert.is_true(nth > 8)
      assert.same({{2, 12}}, plan:coverage(set, 1, true).uncovered)
   end)
end)
