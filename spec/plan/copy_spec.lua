--- A plan beside another: a copy without destinations, and which destinations are the same in both.

local ffi = require "ffi"
local build = require "spec.plan.build"

local C = build.C

local function empty_plan()
   return build.plan {trainers = 2, workers = 4, quantum = 4096,
      sources = {{axes = {{"tp", 2}}}, {name = "pp", axes = {{"pp", 2}}}},
      destinations = {{axes = {{"dp", 2}, {"tp", 2}}}, {name = "expert", axes = {{"ep", 4}}}, {name = "flat", axes = {{"tp", 4}}}}}
      :add {name = "embed", shape = {100, 6}, source = {{axis = "tp", shard = 0}}}
      :add {name = "norm", shape = {6}, mesh = "pp", source = {{axis = "pp", pin = 1}}}
      :add {name = "head", shape = {100, 6}}
      :add {name = "packed", shape = {4, 6, 2}, allow_full = false}
end

local function packed(change)
   local target = {source = {false, {0, 3, 2}, {1, select = true}}, live = "w13", mesh = "expert", view = {false, {1, nil, 2}}, order = {1, 0},
      layout = {{axis = "ep", shard = 0, split = "balanced"}}}
   for key, value in pairs(change or {}) do
      target[key] = value
   end
   return target
end

local function fill(plan)
   return plan:direct("embed", {live = "embed", layout = {{axis = "tp", shard = 0, chunk = 64}}, pad = true})
      :set("norm", {mode = "FULL", reason = "no loader", where = "rules.lua:2"})
      :set("head", {mode = "ALIAS", alias_of = "embed", reason = "tied", where = "rules.lua:1"})
      :direct("packed", packed()):companions("packed", {"embed", "norm"})
end

local function encode(plan)
   local buffer = ffi.gc(ffi.new("slc_buffer"), C.slc_buffer_clear)
   return build.fails(C.slc_plan_encode_destinations, plan, buffer) or ffi.string(buffer.data, buffer.length)
end

local function copy(plan)
   local made = ffi.new("slc_plan *[1]")
   assert.is_nil(build.fails(C.slc_plan_copy, plan.plan, made))
   return ffi.gc(made[0], C.slc_plan_destroy)
end

describe("a copy of a plan", function()
   it("has the parameters, sources, meshes and quantum, and no destination", function()
      local plan = fill(empty_plan())
      local made = copy(plan)
      assert.equal("destination: parameter 'embed' [100, 6]: has no destination", encode(made))
      assert.equal(4096, tonumber(C.slc_plan_quantum(made)))
      for i = 0, 3 do
         local a, b = C.slc_plan_at(plan.plan, i), C.slc_plan_at(made, i)
         assert.same({ffi.string(a.name), a.dtype, a.ndim, a.allow_full, tonumber(a.bytes)},
            {ffi.string(b.name), b.dtype, b.ndim, b.allow_full, tonumber(b.bytes)})
         for rank = 0, 1 do
            local shape = build.numbers(a.shape, a.ndim)
            assert.same({build.box_of(a.source, shape, rank)}, {build.box_of(b.source, shape, rank)})
         end
         assert.is_true(a.source.mesh ~= b.source.mesh)
         assert.equal(ffi.string(a.source.mesh.name), ffi.string(b.source.mesh.name))
      end
   end)

   it("takes the destinations of the plan, and is the same then", function()
      local plan = fill(empty_plan())
      local made, bytes = copy(plan), encode(plan.plan)
      assert.is_nil(build.fails(C.slc_plan_decode_destinations, made, bytes, #bytes))
      assert.equal(bytes, encode(made))
      for i = 0, 3 do
         assert.is_true(C.slc_plan_same_destination(plan.plan, made, i))
      end
   end)
end)

describe("a destination", function()
   local CHANGES = {
      {"another live tensor", "packed", packed {live = "w2"}},
      {"other elements of the parameter", "packed", packed {source = {false, {1, 3, 2}, {1, select = true}}}},
      {"another index of a dim that is left out", "packed", packed {source = {false, {0, 3, 2}, {0, select = true}}}},
      {"another slice of the live tensor", "packed", packed {view = {false, {0, nil, 2}}}},
      {"other steps in the live tensor", "packed", packed {view = {false, {1, nil, 3}}}},
      {"the dims in another order", "packed", packed {order = {0, 1}}},
      {"another way to split", "packed", packed {layout = {{axis = "ep", shard = 0}}}},
      {"an axis of the same number in another mesh", "packed", packed {mesh = "flat", layout = {{axis = "tp", shard = 0, split = "balanced"}}}},
      {"no padding", "embed", {live = "embed", layout = {{axis = "tp", shard = 0, chunk = 64}}}},
      {"another chunk", "embed", {live = "embed", layout = {{axis = "tp", shard = 0, chunk = 60}}, pad = true}},
      {"a pin", "embed", {live = "embed", layout = {{axis = "tp", shard = 0, chunk = 64}, {axis = "dp", pin = 1}}, pad = true}},
   }
   local SETS = {
      {"another mode", "norm", {mode = "SKIP", reason = "no loader", where = "rules.lua:2"}},
      {"another alias", "head", {mode = "ALIAS", alias_of = "packed", reason = "tied", where = "rules.lua:1"}},
   }

   local function differing(other)
      local plan, list = fill(empty_plan()), {}
      for i = 0, 3 do
         if not C.slc_plan_same_destination(plan.plan, other.plan, i) then
            list[#list + 1] = ffi.string(C.slc_plan_at(plan.plan, i).name)
         end
      end
      return list
   end

   for _, change in ipairs(CHANGES) do
      it("differs with " .. change[1], function()
         local other = fill(empty_plan()):direct(change[2], change[3])
         if change[2] == "packed" then
            other:companions("packed", {"embed", "norm"})
         end
         assert.same({change[2]}, differing(other))
      end)
   end

   for _, change in ipairs(SETS) do
      it("differs with " .. change[1], function()
         assert.same({change[2]}, differing(fill(empty_plan()):set(change[2], change[3])))
      end)
   end

   it("differs with other companions or one target more", function()
      assert.same({"packed"}, differing(fill(empty_plan()):companions("packed", {"embed", "head"})))
      assert.same({"packed"}, differing(fill(empty_plan()):companions("packed", {"embed"})))
      assert.same({"embed"}, differing(fill(empty_plan()):direct("embed",
         {live = "embed", layout = {{axis = "tp", shard = 0, chunk = 64}}, pad = true}, {live = "head", layout = {{axis = "tp", shard = 0}}})))
   end)

   it("is the same for another reason, from another place", function()
      assert.same({}, differing(fill(empty_plan()):set("norm", {mode = "FULL", reason = "as asked", where = "other.lua:9"})))
   end)
end)
