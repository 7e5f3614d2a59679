--- Plans: meshes, parameters, destinations and what may be said of them, and their wire form.

local ffi = require "ffi"
local build = require "spec.plan.build"

local C = build.C

local function small_plan()
   return build.plan {trainers = 4, workers = 4, sources = {{axes = {{"fsdp", 2}, {"tp", 2}}}},
      destinations = {{axes = {{"dp", 2}, {"tp", 2}}}}}
end

describe("slc_plan_add_mesh", function()
   local function problem(first, axes, name)
      local plan = small_plan()
      local mesh, keep = build.mesh {first = first, axes = axes, name = name}
      local added = ffi.new("const slc_mesh *[1]")
      local text = build.fails(C.slc_plan_add_mesh, plan.plan, mesh, added)
      assert.is_true(text == nil or added[0] == nil)
      assert.is_true(keep ~= nil)
      return text
   end

   it("takes meshes over all trainers and over all workers", function()
      local plan = small_plan()
      assert.is_true(C.slc_plan_mesh(plan.plan, false, "") == C.slc_plan_mesh_at(plan.plan, false, 0))
      assert.equal(4, C.slc_plan_mesh(plan.plan, true, "").first)
      assert.is_true(C.slc_plan_mesh_at(plan.plan, true, 1) == nil)
      assert.is_true(C.slc_plan_mesh(plan.plan, true, "expert") == nil)
      assert.is_nil(problem(4, {4}, "expert"))
      assert.is_nil(problem(0, {4}, "expert"))
   end)

   it("refuses others", function()
      assert.equal("init: source mesh 'x' begins at rank 2; it must begin at 0 (trainers) or 4 (workers)", problem(2, {2}, "x"))
      assert.equal("init: source mesh 'x' has 2 ranks; there are 4 trainers", problem(0, {2}, "x"))
      assert.equal("init: destination mesh 'x' has 8 ranks; there are 4 workers", problem(4, {8}, "x"))
      assert.equal("init: destination mesh '' is there twice", problem(4, {4}))
   end)
end)

describe("slc_plan_layout", function()
   it("stores equal layouts once", function()
      local plan = small_plan()
      local mesh = plan.source[""]
      local function stored(placements)
         return C.slc_plan_layout(plan.plan, build.layout(mesh, placements))
      end
      local one = stored {{axis = "tp", shard = 0}}
      assert.is_true(one == stored {{axis = "tp", shard = 0, parts = 2}})
      assert.is_false(one == stored {{axis = "tp", shard = 1}})
      for i = 1, 200 do
         stored {{axis = "tp", shard = 0, chunk = i}}
      end
      assert.is_true(one == stored {{axis = "tp", shard = 0}})
      assert.is_true(C.slc_plan_layout(plan.plan, ffi.new("slc_layout", {mesh = mesh, nplacements = 9})) == nil)
   end)
end)

describe("slc_plan_add", function()
   it("keeps parameters in order", function()
      local plan = small_plan():add {name = "b", shape = {4, 6}, dtype = "bfloat16"}
         :add {name = "a", shape = {}, allow_full = false}
      assert.equal(2, tonumber(C.slc_plan_count(plan.plan)))
      assert.equal(0, plan:find "b")
      assert.equal(1, plan:find "a")
      assert.equal(2 ^ 64, plan:find "c") -- SIZE_MAX, as near as a double comes
      assert.is_true(C.slc_plan_at(plan.plan, 2) == nil)
      local b = plan:param "b"
      assert.equal(48, tonumber(b.bytes))
      assert.equal("unresolved", ffi.string(C.slc_mode_text(b.mode)))
      assert.equal(4, tonumber(plan:param("a").bytes))
      assert.is_false(plan:param("a").allow_full)
   end)

   it("refuses what cannot be a parameter", function()
      local plan = small_plan():add {name = "a", shape = {4}}
      local function problem(given)
         return plan:try_add(given)
      end
      assert.equal("init: params[1].name ('') must not be empty", problem {name = "", shape = {4}})
      assert.equal("init: params[1].name ('a') is the name of params[0], too", problem {name = "a", shape = {4}})
      assert.equal("init: params[1].name has 5000 bytes; 4096 are allowed", problem {name = ("x"):rep(5000), shape = {4}})
      assert.equal("init: params[1] ('b') has no dtype", problem {name = "b", shape = {4}, dtype = "int3"})
      assert.equal("init: params[1].shape ('b') has 9 dims; 0 to 8 are allowed",
         problem {name = "b", shape = {1, 1, 1, 1, 1, 1, 1, 1, 1}})
      assert.equal("init: params[1].shape[1] (0) must be at least 1", problem {name = "b", shape = {4, 0}})
      assert.equal("init: params[1] ('b') has 2^62 bytes or more", problem {name = "b", shape = {2147483648, 536870912}})
      assert.is_nil(problem {name = "b", shape = {2147483648, 536870911}})
      assert.equal("init: params[2] ('c') and those before it have 2^62 bytes or more", problem {name = "c", shape = {2147483648}})
      assert.equal("init: params[2] ('c'): axis 'tp' shards dim 1 of a tensor of 1 dims",
         problem {name = "c", shape = {4}, source = {{axis = "tp", shard = 1}}})
      local stranger = ffi.new("slc_param", {name = "c", dtype = C.slc_dtype_find("int8")})
      assert.equal("init: params[2] ('c'): its source layout needs a mesh of the plan's trainers",
         build.fails(C.slc_plan_add, plan.plan, stranger))
      local layout = build.layout(plan.destination[""], {})
      stranger.source = layout
      assert.equal("init: params[2] ('c'): its source layout needs a mesh of the plan's trainers",
         build.fails(C.slc_plan_add, plan.plan, stranger))
   end)
end)

describe("slc_plan_set", function()
   local plan
   before_each(function()
      plan = small_plan():add {name = "a.weight", shape = {8, 6}}:add {name = "b.weight", shape = {8}, allow_full = false}
         :add {name = "c", shape = {4}}
   end)

   local function direct(...)
      return plan:try_set("a.weight", {mode = "DIRECT", where = "llama.lua:12", targets = {...}})
   end

   it("is told in whole characters, however long a live tensor's name", function()
      for _, name in ipairs { ("\195\169"):rep(2000), "a" .. ("\195\169"):rep(2000) } do
         plan:direct("a.weight", {live = name})
         local text = ffi.new("char[4096]")
         C.slc_plan_destination_text(plan.plan, 0, text, 4096)
         assert.is_true(C.slc_text_is_utf8(text))
         assert.is_true(C.slc_text_is_utf8(plan:describe("a.weight")))
      end
   end)

   it("takes strips, views and layouts", function()
      assert.is_nil(direct({source = {{0, 4}, false}, live = "x", layout = {{axis = "tp", shard = 1}}, order = {1, 0},
         pad = true},
         {source = {{4, 4}, {2, select = true}}, live = "y", view = {{1, select = true}, {8}},
            layout = {{axis = "dp", pin = 1}}}))
      assert.equal("direct [0:4, 0:6] -> 'x' [:, :] permuted 1,0 (tp:1) padded with zeros; [4:8, 2] -> 'y' [1, 8:] (dp=1)"
         .. " (llama.lua:12)",
         plan:describe "a.weight")
      local param = plan:param "a.weight"
      local shape, dims = ffi.new("int64_t[8]"), ffi.new("int[8]")
      assert.equal(2, C.slc_target_strip(param, param.target, shape, dims))
      assert.same({4, 6}, build.numbers(shape, 2))
      assert.equal(1, C.slc_target_strip(param, param.target + 1, shape, dims))
      assert.equal(1, C.slc_target_strip(param, param.target + 1, shape, nil))
      assert.equal(0, dims[0])
   end)

   it("refuses strips that leave the parameter or overlap", function()
      local place = "destination: llama.lua:12: parameter 'a.weight' [8, 6]: "
      assert.equal(place .. "the strip [4:9, :] leaves the parameter in dim 0", direct {source = {{4, 5}, false}, live = "x"})
      assert.equal(place .. "the strip [:, 6] leaves the parameter in dim 1",
         direct {source = {false, {6, select = true}}, live = "x"})
      assert.equal(place .. "the strip [3 (0 of them), :] is empty in dim 0", direct {source = {{3, 0}, false}, live = "x"})
      local function into_x(...)
         local targets = {...}
         for _, target in ipairs(targets) do
            target.live = "x"
         end
         return direct(unpack(targets))
      end
      assert.equal(place .. "targets 0 and 1 bring [0:5, 0:6] and [4:8, 0:6] of it into one live tensor, 'x'; there, strips must not"
         .. " overlap", into_x({source = {{0, 5}, false}}, {source = {{4, 4}, false}}))
      assert.equal(place .. "targets 0 and 2 bring [0:7:2, 0:6] and [6, 0:6] of it into one live tensor, 'x'; there, strips must not"
         .. " overlap", into_x({source = {{0, 4, 2}, false}}, {source = {{1, 4, 2}, {0, 3}}}, {source = {{6, select = true}}}))
      assert.is_nil(into_x({source = {{0, 4, 2}, false}}, {source = {{1, 4, 2}, {0, 3}}}, {source = {{7, select = true}, {3}}}))
   end)

   it("takes the same elements into different live tensors, and into one on workers that pins keep apart", function()
      assert.is_nil(direct({source = {{0, 5}, false}, live = "x"}, {source = {{4, 4}, false}, live = "y"}, {live = "z"}))
      assert.is_nil(direct({live = "x", layout = {{axis = "tp", shard = 0}, {axis = "dp", pin = 0}}},
         {live = "x", layout = {{axis = "dp", pin = 1}}}))
      assert.equal("destination: llama.lua:12: parameter 'a.weight' [8, 6]: targets 0 and 1 bring [0:8, 0:6] and [0:8, 0:6] of it"
         .. " into one live tensor, 'x'; there, strips must not overlap",
         direct({live = "x", layout = {{axis = "tp", pin = 0}}}, {live = "x", layout = {{axis = "dp", pin = 1}}}))
   end)

   it("takes targets that only clear, with pins", function()
      assert.is_nil(direct({live = "x"}, {live = "y", pad = "CLEAR", view = {{1, 2}}, layout = {{axis = "dp", pin = 0}}},
         {live = "z", pad = "EMPTY", layout = {{axis = "tp", shard = 0, chunk = 8}}}))
      assert.equal("direct [0:8, 0:6] -> 'x' [:, :] (); zeros -> 'y' [1:3] (dp=0); [0:8, 0:6] -> 'z' [:, :] (tp:0 chunk 8) else zeros"
         .. " (llama.lua:12)", plan:describe "a.weight")
      assert.equal("destination: llama.lua:12: parameter 'a.weight' [8, 6]: the target that clears live 'y' may have pins only",
         direct({live = "x"}, {live = "y", pad = "CLEAR", layout = {{axis = "dp", shard = 0}}}))
   end)

   it("takes companions, other parameters of the plan, until the destination is set anew", function()
      assert.is_nil(direct {live = "x"})
      assert.is_nil(plan:try_companions("a.weight", {"b.weight", "c"}))
      assert.equal(2, tonumber(plan:param("a.weight").ncompanions))
      local place = "destination: llama.lua:12: parameter 'a.weight' [8, 6]: "
      assert.equal(place .. "its companion (0) must be another parameter of the plan's 3", (plan:try_companions("a.weight", {"a.weight"})))
      assert.equal(place .. "its companion (3) must be another parameter of the plan's 3", (plan:try_companions("a.weight", {3})))
      local many = {}
      for i = 1, 17 do
         many[i] = 1
      end
      assert.equal(place .. "17 companions; 16 are allowed", (plan:try_companions("a.weight", many)))
      assert.is_nil(direct {live = "x"})
      assert.equal(0, tonumber(plan:param("a.weight").ncompanions))
   end)

   it("refuses views and layouts that do not fit the strip #5.7", function()
      local place = "destination: llama.lua:12: parameter 'a.weight' [8, 6]: "
      assert.equal(place .. "a target names no live tensor", direct {live = ""})
      assert.equal(place .. "a target's live name has 4097 bytes; 4096 are allowed", direct {live = ("x"):rep(4097)})
      assert.equal(place .. "the view of live 'x' shows 1 dims of the strip's 2", direct {live = "x", view_ndim = 1})
      assert.equal(place .. "the view of live 'x' must show each of the strip's 2 dims once", direct {live = "x", order = {0, 0}})
      assert.equal(place .. "the view of live 'x' has in dim 0 start 0, step 0, count 3, which is no range",
         direct {live = "x", view = {{0, 3, 0}}})
      assert.equal(place .. "axis 'tp' shards dim 2 of a tensor of 2 dims",
         direct {live = "x", layout = {{axis = "tp", shard = 2}}})
      assert.equal(place .. "a direct destination needs a target", direct())
   end)

   it("refuses a view of more dims than a tensor can have", function()
      local destination, targets, keep = ffi.new("slc_param"), ffi.new("slc_target[1]"), {}
      plan:fill_target(targets[0], plan:param "c", {live = "x"}, keep)
      targets[0].view.ndim = 9
      destination.mode, destination.ntargets, destination.target = "SLC_MODE_DIRECT", 1, targets
      assert.equal("destination: parameter 'c' [4]: the view of live 'x' has 9 dims; 0 to 8 are allowed",
         build.fails(C.slc_plan_set, plan.plan, 2, destination))
      assert.equal(1, #keep)
   end)

   it("refuses full where it is not allowed, and says why it would be", function()
      assert.is_nil(plan:try_set("a.weight", {mode = "FULL", reason = "packed"}))
      assert.equal("destination: parameter 'a.weight' [8, 6]: its reason (f?r) must be UTF-8",
         plan:try_set("a.weight", {mode = "FULL", reason = "f\252r"}))
      assert.equal("destination: ?.lua:1: parameter 'a.weight' [8, 6]: its place (?.lua:1) must be UTF-8",
         plan:try_set("a.weight", {mode = "FULL", where = "\255.lua:1"}))
      assert.equal("destination: llama.lua:9: parameter 'b.weight' [8]: is full (no plain loader), which its"
         .. " allow_full_fallback (false) forbids",
         plan:try_set("b.weight", {mode = "FULL", reason = "no plain loader", where = "llama.lua:9"}))
      assert.equal("unresolved", plan:describe "b.weight")
   end)

   it("refuses aliases that lead nowhere", function()
      assert.equal("destination: parameter 'c' [4]: is an alias of itself", plan:try_set("c", {mode = "ALIAS", alias_of = "c"}))
      assert.equal("destination: parameter 'c' [4]: is an alias of 'd', which is no parameter of the plan",
         plan:try_set("c", {mode = "ALIAS", alias_of = "d"}))
      assert.equal("destination: parameter 'c' [4]: an alias names no other parameter", plan:try_set("c", {mode = "ALIAS"}))
      plan:set("a.weight", {mode = "SKIP", reason = "not served"})
      assert.equal("destination: parameter 'c' [4]: is an alias of 'a.weight', which does not move itself (skip)",
         plan:try_set("c", {mode = "ALIAS", alias_of = "a.weight"}))
      assert.equal("destination: parameter 'c' [4]: mode 0 is no destination", plan:try_set("c", {mode = "UNRESOLVED"}))
   end)

   it("leaves a destination alone when another one is refused", function()
      plan:direct("a.weight", {live = "x"})
      local before = plan:describe "a.weight"
      assert.is_string(direct {live = "x", order = {0, 0}})
      assert.equal(before, plan:describe "a.weight")
   end)

   it("refuses more targets than are allowed", function()
      local targets = {}
      for i = 1, 1025 do
         targets[i] = {live = "x"}
      end
      assert.equal("destination: llama.lua:12: parameter 'a.weight' [8, 6]: 1025 targets; 1024 are allowed",
         direct(unpack(targets)))
   end)
end)

describe("slc_plan_complete", function()
   local function problem(plan)
      return build.fails(C.slc_plan_complete, plan.plan)
   end

   it("wants a destination for every parameter and aliases that lead to one that moves", function()
      local plan = small_plan():add {name = "a", shape = {4}}:add {name = "b", shape = {4}}
      assert.equal("destination: parameter 'a' [4]: has no destination", problem(plan))
      plan:set("a", {mode = "ALIAS", alias_of = "b", where = "tied.lua:2"})
      assert.equal("destination: tied.lua:2: parameter 'a' [4]: is an alias of 'b', which does not move itself (unresolved)",
         problem(plan))
      plan:set("b", {mode = "SKIP", reason = "not served"})
      assert.equal("destination: tied.lua:2: parameter 'a' [4]: is an alias of 'b', which does not move itself (skip)",
         problem(plan))
      plan:set("b", {mode = "FULL"})
      assert.is_nil(problem(plan))
   end)
end)

describe("slc_plan_count_totals", function()
   it("counts each parameter once, by mode", function()
      local plan = small_plan()
      for i, name in ipairs {"a", "b", "c", "d", "e"} do
         plan:add {name = name, shape = {i * 10}, dtype = "int8"}
      end
      plan:direct("a", {live = "x", source = {{0, 5}}}, {live = "y", source = {{5, 5}}})
      plan:set("b", {mode = "FULL"}):set("c", {mode = "FULL"}):set("d", {mode = "ALIAS", alias_of = "b"})
         :set("e", {mode = "SKIP", reason = "x"})
      local totals = C.slc_plan_count_totals(plan.plan)
      local list = {}
      for _, field in ipairs {"direct", "full", "alias", "skip", "direct_bytes", "full_bytes", "alias_bytes", "skip_bytes",
         "largest_full_bytes"} do
         list[#list + 1] = tonumber(totals[field])
      end
      assert.same({1, 2, 1, 1, 10, 50, 40, 50, 30}, list)
   end)
end)

describe("a plan without memory", function()
   it("says so at every step and can go on afterwards", function()
      local plan, failures = small_plan(), 0
      local function go(step)
         for nth = 1, 100 do
            C.slc_fail_allocation(nth, false)
            local text, status = step()
            C.slc_fail_allocation(0, false)
            if not text then
               return
            end
            assert.equal(3, status)
            assert.truthy(text:find("out of memory for", 1, true), text)
            failures = failures + 1
         end
         error("never ran out of allocations")
      end
      for i = 1, 70 do
         go(function()
            return plan:try_add {name = ("p"):rep(100) .. i, shape = {i}}
         end)
      end
      for i = 1, 70 do
         go(function()
            return plan:try_set(("p"):rep(100) .. i, {mode = "DIRECT", reason = ("r"):rep(100) .. i,
               targets = {{live = ("l"):rep(100) .. i,
               layout = {{axis = "tp", shard = 0, chunk = 1000 + i}}}}})
         end)
      end
      local buffer = ffi.gc(ffi.new("slc_buffer"), C.slc_buffer_clear)
      go(function()
         C.slc_buffer_clear(buffer)
         return build.fails(C.slc_plan_encode_destinations, plan.plan, buffer)
      end)
      go(function()
         return build.fails(C.slc_plan_decode_destinations, plan.plan, buffer.data, buffer.length)
      end)
      go(function()
         local program = ffi.new("slc_program")
         local text, status = build.fails(C.slc_program_compile, plan.plan, nil, 1, program)
         assert.is_true(text == nil or program.arena.blocks == nil)
         C.slc_program_clear(program)
         return text, status
      end)
      assert.is_true(failures > 20)
   end)
end)
