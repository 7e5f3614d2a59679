--- The destinations as bytes: the same on every rank, and read as if the worst had written them.
--
--    SLUICE_FUZZ=100000 busted spec/plan/plan_wire_spec.lua    more mutations

local ffi = require "ffi"
local build = require "spec.plan.build"
local random = require "spec.plan.random"

local C = build.C

local function empty_plan()
   return build.plan {trainers = 2, workers = 4, sources = {{axes = {{"tp", 2}}}},
      destinations = {{axes = {{"dp", 2}, {"tp", 2}}}, {name = "expert", axes = {{"ep", 4}}}}}
      :add {name = "embed.weight", shape = {100, 6}, source = {{axis = "tp", shard = 0}}}
      :add {name = "qkv.weight", shape = {8, 6}}
      :add {name = "norm.weight", shape = {6}}
      :add {name = "head.weight", shape = {100, 6}}
      :add {name = "rope", shape = {}}
      :add {name = "packed", shape = {4, 6, 2}}
end

local function resolved_plan()
   return empty_plan()
      :direct("embed.weight", {live = "embed.weight", layout = {{axis = "tp", shard = 0, chunk = 64}}, pad = true})
      :direct("qkv.weight", {source = {{0, 4}}, live = "qkv", view = {{2, 2}}, layout = {{axis = "tp", shard = 0}}},
         {source = {{4, 4}}, live = "qkv", view = {{0, 2}}, layout = {{axis = "tp", shard = 0}}})
      :set("norm.weight", {mode = "FULL", reason = "no loader", where = "default resolver"})
      :set("head.weight", {mode = "ALIAS", alias_of = "embed.weight", reason = "tied", where = "rules.lua:1"})
      :set("rope", {mode = "SKIP", reason = "recomputed"})
      :direct("packed", {source = {false, {0, 3, 2}, {1, select = true}}, live = "w13", mesh = "expert",
         view = {false, {1, nil, 2}}, order = {1, 0},
         layout = {{axis = "ep", shard = 0, split = "balanced"}}})
      :companions("norm.weight", {"qkv.weight"}):companions("packed", {"embed.weight", "qkv.weight"})
end

local function encode(plan)
   local buffer = ffi.gc(ffi.new("slc_buffer"), C.slc_buffer_clear)
   local text, status = build.fails(C.slc_plan_encode_destinations, plan.plan, buffer)
   if text then
      return nil, text, status
   end
   return ffi.string(buffer.data, buffer.length)
end

local function decode(plan, bytes)
   return build.fails(C.slc_plan_decode_destinations, plan.plan, bytes, #bytes)
end

local names = {"embed.weight", "qkv.weight", "norm.weight", "head.weight", "rope", "packed"}

describe("encoded destinations", function()
   it("come out as they went in", function()
      local plan, other = resolved_plan(), empty_plan()
      local bytes = assert(encode(plan))
      assert.is_nil(decode(other, bytes))
      for _, name in ipairs(names) do
         assert.equal(plan:describe(name), other:describe(name))
      end
      assert.equal(bytes, encode(other))
      assert.equal(2, tonumber(other:param("packed").ncompanions))
      assert.equal(1, other:param("packed").companion[1])
   end)

   it("are the same bytes whatever was set before and in whatever order", function()
      local plan = empty_plan()
      for i = 1, 5 do
         plan:direct("packed", {live = "other" .. i, layout = {{axis = "dp", pin = i % 2}}})
      end
      local again = resolved_plan()
      plan:direct("packed", {source = {false, {0, 3, 2}, {1, select = true}}, live = "w13", mesh = "expert",
         view = {false, {1, nil, 2}}, order = {1, 0},
         layout = {{axis = "ep", shard = 0, split = "balanced"}}})
      plan:set("rope", {mode = "SKIP", reason = "recomputed"})
      plan:set("norm.weight", {mode = "FULL", reason = "no loader", where = "default resolver"})
      plan:set("head.weight", {mode = "ALIAS", alias_of = "embed.weight", reason = "tied", where = "rules.lua:1"})
      plan:direct("qkv.weight", {source = {{0, 4}}, live = "qkv", view = {{2, 2}}, layout = {{axis = "tp", shard = 0}}},
         {source = {{4, 4}}, live = "qkv", view = {{0, 2}}, layout = {{axis = "tp", shard = 0}}})
      plan:direct("embed.weight", {live = "embed.weight", layout = {{axis = "tp", shard = 0, chunk = 64}}, pad = true})
      plan:companions("packed", {"embed.weight", "qkv.weight"}):companions("norm.weight", {"qkv.weight"})
      assert.equal(encode(again), encode(plan))
   end)

   it("are not made of an incomplete plan", function()
      local bytes, text = encode(empty_plan())
      assert.is_nil(bytes)
      assert.equal("destination: parameter 'embed.weight' [100, 6]: has no destination", text)
   end)

   it("take about twenty bytes a parameter", function()
      local plan = build.plan {trainers = 1, workers = 2, sources = {{axes = {1}}}, destinations = {{axes = {{"tp", 2}}}}}
      for i = 1, 1000 do
         plan:add {name = "experts." .. i, shape = {1536, 4096}}
         plan:direct("experts." .. i, {live = "w13", view = {{i, select = true}, {1536, 768}, false},
            layout = {{axis = "tp", shard = 0}}})
      end
      assert.is_true(#encode(plan) < 22000)
   end)
end)

describe("slc_plan_decode_destinations", function()
   it("refuses every message that is cut short or goes on, and leaves nothing resolved", function()
      local plan, bytes = resolved_plan(), encode(resolved_plan())
      for length = 0, #bytes - 1 do
         local text = decode(plan, bytes:sub(1, length))
         assert.truthy(text and text:find("^destination: the destinations received are malformed: "), text)
      end
      for _, name in ipairs(names) do
         assert.equal("unresolved", plan:describe(name))
      end
      assert.equal(("destination: the destinations received are malformed: there is more behind the last one, before byte %d of"
         .. " %d"):format(#bytes, #bytes + 1),
         decode(plan, bytes .. "\0"))
   end)

   it("refuses what was made for another plan", function()
      local other = build.plan {trainers = 1, workers = 1, sources = {{axes = {1}}}, destinations = {{axes = {1}}}}
         :add {name = "x", shape = {}}
      assert.equal("destination: the destinations received are malformed: they are for another number of parameters, before"
         .. " byte 5 of 226",
         (decode(other, encode(resolved_plan())):gsub("of %d+$", "of 226")))
      assert.equal("destination: the destinations received are malformed: they do not begin as destinations do, before byte 4"
         .. " of 9", decode(other, "not these"))
   end)

   it("applies every check of slc_plan_set", function()
      local strict = build.plan {trainers = 1, workers = 1, sources = {{axes = {1}}}, destinations = {{axes = {1}}}}
         :add {name = "x", shape = {4}, allow_full = false}
      local lax = build.plan {trainers = 1, workers = 1, sources = {{axes = {1}}}, destinations = {{axes = {1}}}}
         :add {name = "x", shape = {4}}
      lax:set("x", {mode = "FULL", reason = "odd", where = "r.lua:1"})
      assert.equal("destination: r.lua:1: parameter 'x' [4]: is full (odd), which its allow_full_fallback (false) forbids",
         decode(strict, encode(lax)))
      local larger = build.plan {trainers = 1, workers = 1, sources = {{axes = {1}}}, destinations = {{axes = {1}}}}
         :add {name = "x", shape = {9}}
      larger:direct("x", {live = "x", source = {{1, 8}}})
      assert.equal("destination: rules.lua:1: parameter 'x' [4]: the strip [1:9] leaves the parameter in dim 0",
         decode(strict, encode(larger)))
   end)

   it("asks for no more memory than a message has bytes for", function()
      -- A table of 2^62 texts, in ten bytes.
      local plan = empty_plan()
      local text = decode(plan, "sld1\6\0" .. ("\255"):rep(8) .. "\63" .. ("x"):rep(20))
      assert.equal("destination: the destinations received are malformed: a table, before byte 15 of 35", text)
   end)

   it("survives any mutation", function()
      local count = tonumber(os.getenv("SLUICE_FUZZ")) or 4000
      local bytes, plan = encode(resolved_plan()), resolved_plan()
      local accepted = 0
      for seed = 1, count do
         local r, changed = random.stream(seed), bytes
         for _ = 1, r.next(1, 4) do
            local at, kind = r.next(1, #changed), r.next(1, 5)
            local byte = string.char(r.pick {0, 1, 2, 3, 4, 127, 128, 255, r.next(0, 255)})
            if kind == 1 then
               changed = changed:sub(1, at - 1) .. changed:sub(at + 1)
            elseif kind == 2 then
               changed = changed:sub(1, at) .. byte:rep(r.next(1, 9)) .. changed:sub(at + 1)
            elseif kind == 3 then
               local from = r.next(1, #changed)
               changed = changed:sub(1, at) .. changed:sub(from, from + r.next(0, 30)) .. changed:sub(at + 1)
            else
               changed = changed:sub(1, at - 1) .. byte .. changed:sub(at + 1)
            end
            if #changed == 0 then
               changed = "\0"
            end
         end
         local text = decode(plan, changed)
         if text then
            assert.truthy(text:find("^destination: "), ("SLUICE_SEED=%d: %s"):format(seed, text))
            assert.equal("unresolved", plan:describe "packed")
         else
            -- What is taken is a plan like any other: it encodes, and compiles for a trainer.
            accepted = accepted + 1
            assert.is_string(encode(plan))
            local compiled, problem = pcall(plan.compile, plan, seed % 2)
            assert.is_true(compiled, problem)
         end
         -- The plan keeps what it has interned; a fresh one now and then keeps the test small.
         if seed % 200 == 0 then
            plan = resolved_plan()
            collectgarbage()
         end
      end
      assert.is_true(accepted > 0 and accepted < count)
   end)
end)
