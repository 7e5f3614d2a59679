--- The choice among source replicas: the rule itself, and what it does to the bytes that trainers send in real models.

local ffi = require "ffi"
local build = require "spec.plan.build"

local C = build.C
local MIB = 1048576

-- ---- the rule ----

local function scheduler(quantum)
   local made = ffi.gc(ffi.new("slc_scheduler"), C.slc_scheduler_end)
   C.slc_scheduler_begin(made, quantum or MIB)
   return made
end

local function next_schedule(made, layout, destinations, bytes, even)
   local schedule, err = ffi.new("slc_schedule"), build.error()
   local fanout = ffi.new("slc_fanout", {destinations = destinations, bytes = bytes, even = even ~= false})
   build.check(C.slc_scheduler_next(made, layout, fanout, schedule, err), err)
   return {schedule.replicas, schedule.parts, schedule.first}
end

describe("slc_scheduler_next", function()
   local meshes = {}

   -- A layout of so many replicas.
   local function replicas(count)
      meshes[#meshes + 1] = build.mesh {axes = {count}}
      local layout = build.layout(meshes[#meshes], {})
      meshes[#meshes + 1] = layout
      return layout
   end

   it("leaves a source without replicas alone", function()
      assert.same({1, 1, 0}, next_schedule(scheduler(), replicas(1), 7, 100 * MIB))
   end)

   it("does not cut what the destinations share out evenly", function()
      assert.same({4, 1, 0}, next_schedule(scheduler(), replicas(4), 8, 800 * MIB))
   end)

   it("cuts a large piece for as many replicas as there are to each destination", function()
      assert.same({8, 4, 0}, next_schedule(scheduler(), replicas(8), 2, 20 * MIB))
      assert.same({8, 8, 0}, next_schedule(scheduler(), replicas(8), 1, 20 * MIB))
   end)

   it("cuts further where destinations and replicas do not divide", function()
      assert.same({3, 3, 0}, next_schedule(scheduler(), replicas(3), 4, 400 * MIB))
      assert.same({4, 2, 0}, next_schedule(scheduler(), replicas(4), 6, 600 * MIB))
   end)

   it("does not cut for the last sixteenth", function()
      assert.same({3, 1, 0}, next_schedule(scheduler(), replicas(3), 64, 6400 * MIB))
   end)

   it("cuts no piece below a quantum", function()
      assert.same({8, 3, 0}, next_schedule(scheduler(), replicas(8), 1, 3.5 * MIB))
      assert.same({8, 1, 0}, next_schedule(scheduler(), replicas(8), 1, 1000))
   end)

   it("cuts pieces of unequal size for all replicas", function()
      assert.same({4, 4, 0}, next_schedule(scheduler(), replicas(4), 8, 800 * MIB, false))
   end)

   it("keeps about a quantum of small tensors with one replica before the next one takes over", function()
      local made, layout, firsts = scheduler(1000), replicas(4), {}
      for i = 1, 10 do
         firsts[i] = next_schedule(made, layout, 1, 400)[3]
      end
      assert.same({0, 0, 1, 1, 2, 2, 3, 3, 0, 0}, firsts)
   end)

   it("goes on behind the replicas of the target before", function()
      local made, layout, firsts = scheduler(1000), replicas(8), {}
      for i = 1, 4 do
         firsts[i] = next_schedule(made, layout, 3, 3 * 1500)[3]
      end
      assert.same({0, 3, 6, 1}, firsts)
   end)

   it("keeps each layout's replicas apart", function()
      local made, a, b = scheduler(1000), replicas(2), replicas(2)
      assert.same({2, 1, 0}, next_schedule(made, a, 1, 1500))
      assert.same({2, 1, 0}, next_schedule(made, b, 1, 1500))
      assert.same({2, 1, 1}, next_schedule(made, a, 1, 1500))
   end)

   -- Sends a sequence of {destinations, bytes} and returns, for all stretches of it, how far a replica strays from the mean
   -- beyond the sixteenth of it that is not worth cutting for.
   local function worst_stretch(count, sequence, quantum)
      local made, layout, load, worst, seen = scheduler(quantum), replicas(count), {}, 0, {}
      for r = 0, count - 1 do
         load[r] = 0
      end
      seen[0] = {}
      for r = 0, count - 1 do
         seen[0][r] = 0
      end
      for step, target in ipairs(sequence) do
         local schedule = next_schedule(made, layout, target[1], target[2])
         local struct = ffi.new("slc_schedule", {replicas = schedule[1], parts = schedule[2], first = schedule[3]})
         for destination = 0, target[1] - 1 do
            for part = 0, schedule[2] - 1 do
               local replica = C.slc_schedule_replica(struct, destination, part)
               load[replica] = load[replica] + target[2] / target[1] / schedule[2]
            end
         end
         seen[step] = {}
         for r = 0, count - 1 do
            seen[step][r] = load[r]
         end
      end
      for from = 0, #sequence - 1 do
         for to = from + 1, #sequence do
            local sum = 0
            for r = 0, count - 1 do
               sum = sum + seen[to][r] - seen[from][r]
            end
            for r = 0, count - 1 do
               worst = math.max(worst, math.abs(seen[to][r] - seen[from][r] - sum / count) - sum / count / 16)
            end
         end
      end
      return worst
   end

   it("never gives all large tensors of an alternation to one replica", function()
      for _, count in ipairs {2, 3, 4, 6} do
         local sequence = {}
         for i = 1, 60 do
            sequence[i] = {1, i % 2 == 0 and 1900 or 100}
         end
         -- Parts are below two quanta; a stretch is at most two of them off.
         assert.is_true(worst_stretch(count, sequence, 1000) <= 4000)
      end
   end)

   it("stays within a few quanta over any stretch of any mix", function()
      local random = require("spec.plan.random").stream(99)
      for _ = 1, 40 do
         local count, sequence = random.next(2, 9), {}
         local kinds = {}
         for i = 1, random.next(1, 5) do
            kinds[i] = {random.next(1, 20), random.next(1, 6000)}
         end
         for i = 1, 80 do
            local kind = random.pick(kinds)
            sequence[i] = {kind[1], kind[1] * kind[2]}
         end
         local worst = worst_stretch(count, sequence, 1000)
         assert.is_true(worst <= 6000, ("%d bytes"):format(worst))
      end
   end)
end)

-- ---- real models ----

local function add_layer_list(list, model, layer)
   local prefix = ("model.layers.%d."):format(layer)
   local h, d = model.hidden, model.head
   local function add(name, shape, kind)
      list[#list + 1] = {name = prefix .. name, shape = shape, kind = kind, layer = layer}
   end
   add("self_attn.q_proj.weight", {model.q * d, h}, "column")
   add("self_attn.k_proj.weight", {model.kv * d, h}, "column")
   add("self_attn.v_proj.weight", {model.kv * d, h}, "column")
   add("self_attn.o_proj.weight", {h, model.q * d}, "row")
   add("input_layernorm.weight", {h}, "replicated")
   add("post_attention_layernorm.weight", {h}, "replicated")
   if not model.experts then
      add("mlp.gate_proj.weight", {model.ffn, h}, "column")
      add("mlp.up_proj.weight", {model.ffn, h}, "column")
      add("mlp.down_proj.weight", {h, model.ffn}, "row")
      return
   end
   add("mlp.gate.weight", {model.experts, h}, "replicated")
   for e = 0, model.experts - 1 do
      for _, part in ipairs {{"gate_proj", {model.ffn, h}, "column"}, {"up_proj", {model.ffn, h}, "column"},
         {"down_proj", {h, model.ffn}, "row"}} do
         add(("mlp.experts.%d.%s.weight"):format(e, part[1]), part[2], part[3])
         list[#list].expert = e
      end
   end
end

local function model_list(model)
   local list = {{name = "model.embed_tokens.weight", shape = {model.vocabulary, model.hidden}, kind = "column", layer = 0}}
   for layer = 0, model.layers - 1 do
      add_layer_list(list, model, layer)
   end
   list[#list + 1] = {name = "model.norm.weight", shape = {model.hidden}, kind = "replicated", layer = model.layers - 1}
   list[#list + 1] = {name = "lm_head.weight", shape = {model.vocabulary, model.hidden}, kind = "column",
      layer = model.layers - 1}
   return list
end

local llama_8b = {layers = 32, hidden = 4096, ffn = 14336, q = 32, kv = 8, head = 128, vocabulary = 128256}
local qwen_32b = {layers = 64, hidden = 5120, ffn = 25600, q = 64, kv = 8, head = 128, vocabulary = 151936}
local qwen_30b_a3b = {layers = 24, hidden = 2048, ffn = 768, q = 32, kv = 4, head = 128, vocabulary = 151936, experts = 128}
local qwen_half = {layers = 24, hidden = 896, ffn = 4864, q = 14, kv = 2, head = 64, vocabulary = 151936}

local dim_of = {column = 0, row = 1}

local function has(axes, name)
   for _, axis in ipairs(axes) do
      if axis[1] == name then
         return axis[2]
      end
   end
end

-- Megatron's placements: tp by the kind, fsdp dim 0 inside, pp pins layers, ep pins experts, all else replicates.
local function placements(axes, model, param)
   local list = {}
   if has(axes, "pp") then
      list[#list + 1] = {axis = "pp", pin = math.floor(param.layer * has(axes, "pp") / model.layers)}
   end
   if param.expert and has(axes, "ep") then
      list[#list + 1] = {axis = "ep", pin = math.floor(param.expert * has(axes, "ep") / model.experts)}
   end
   if dim_of[param.kind] and has(axes, "tp") then
      list[#list + 1] = {axis = "tp", shard = dim_of[param.kind]}
   end
   if has(axes, "fsdp") then
      list[#list + 1] = {axis = "fsdp", shard = 0}
   end
   return list
end

local function size_of(axes)
   local size = 1
   for _, axis in ipairs(axes) do
      size = size * axis[2]
   end
   return size
end

-- The bytes that each trainer sends for each parameter: sent[rank][parameter].
local function compile_all(model, deployment)
   local list = model_list(model)
   local plan = build.plan {trainers = size_of(deployment.dense), workers = size_of(deployment.worker),
      sources = {{name = "dense", axes = deployment.dense}, deployment.expert and {name = "expert", axes = deployment.expert}},
      destinations = {{axes = deployment.worker}}}
   for i, param in ipairs(list) do
      local mesh = param.expert and deployment.expert and "expert" or "dense"
      plan:add {name = param.name, dtype = "bfloat16", shape = param.shape, mesh = mesh,
         source = placements(deployment[mesh], model, param)}
      if deployment.full then
         plan:set(param.name, {mode = "FULL", reason = "chance"})
      else
         plan:direct(param.name, {live = "live" .. i, layout = placements(deployment.worker, model, param)})
      end
   end
   local sent = {}
   for rank = 0, plan.trainers - 1 do
      local program = plan:compile(rank)
      sent[rank] = {}
      for i = 1, #list do
         sent[rank][i] = tonumber(program.segment[i - 1].bytes)
      end
   end
   return list, sent
end

-- Over the ranks of each pipeline stage (which hold the same layers): the worst max / mean of the whole, and how far above
-- 1.1 times the mean the busiest rank of any stretch of `step` parameters, and of any number of such stretches, lies.
local function imbalance(model, deployment, step)
   local list, sent = compile_all(model, deployment)
   local stages = has(deployment.dense, "pp") or 1
   local per_stage = size_of(deployment.dense) / stages
   local worst, excess = 0, 0
   for stage = 0, stages - 1 do
      local sums, ranks = {[0] = {}}, {}
      for i = 0, per_stage - 1 do
         ranks[i + 1] = stage * per_stage + i
         sums[0][i + 1] = 0
      end
      local marks = 0
      for i = 1, #list do
         if i % step == 0 or i == #list then
            marks = marks + 1
            sums[marks] = {}
            for k, rank in ipairs(ranks) do
               sums[marks][k] = sums[marks - 1][k]
               for p = (marks - 1) * step + 1, math.min(i, #list) do
                  sums[marks][k] = sums[marks][k] + sent[rank][p]
               end
            end
         end
      end
      for from = 0, marks - 1 do
         for to = from + 1, marks do
            local most, mean = 0, 0
            for k = 1, #ranks do
               local bytes = sums[to][k] - sums[from][k]
               most = math.max(most, bytes)
               mean = mean + bytes / #ranks
            end
            excess = math.max(excess, most - 1.1 * mean)
            if from == 0 and to == marks then
               worst = math.max(worst, most / mean)
            end
         end
      end
   end
   return worst, excess
end

describe("trainers of one stage", function()
   local cases = {
      {"Llama-3-8B, FSDP 8 to TP 4 DP 2", llama_8b, {dense = {{"fsdp", 8}}, worker = {{"dp", 2}, {"tp", 4}}}},
      {"Llama-3-8B, DP 3 FSDP 4 to TP 8", llama_8b, {dense = {{"dp", 3}, {"fsdp", 4}}, worker = {{"tp", 8}}}},
      {"Llama-3-8B, DP 2 FSDP 3 to DP 2 TP 4", llama_8b, {dense = {{"dp", 2}, {"fsdp", 3}}, worker = {{"dp", 2}, {"tp", 4}}}},
      {"Llama-3-8B, DP 6 TP 2 to TP 4", llama_8b, {dense = {{"dp", 6}, {"tp", 2}}, worker = {{"tp", 4}}}},
      {"Llama-3-8B, DP 5 to TP 2 DP 3", llama_8b, {dense = {{"dp", 5}}, worker = {{"dp", 3}, {"tp", 2}}}},
      {"Llama-3-8B, DP 7 to one worker", llama_8b, {dense = {{"dp", 7}}, worker = {{"tp", 1}}}},
      {"Llama-3-8B, DP 2 TP 3 to TP 4, nothing divides", llama_8b, {dense = {{"dp", 2}, {"tp", 3}}, worker = {{"tp", 4}}}},
      {"Llama-3-8B, DP 4 FSDP 2 to 3 workers, all full", llama_8b, {dense = {{"dp", 4}, {"fsdp", 2}}, worker = {{"dp", 3}},
         full = true}},
      {"Qwen2.5-0.5B, DP 6 to TP 2 DP 2", qwen_half, {dense = {{"dp", 6}}, worker = {{"dp", 2}, {"tp", 2}}}},
      {"Qwen3-32B, PP 4 DP 2 TP 4 to DP 8 TP 4", qwen_32b, {dense = {{"pp", 4}, {"dp", 2}, {"tp", 4}},
         worker = {{"dp", 8}, {"tp", 4}}}},
      {"Qwen3-30B-A3B, PP 2 EP 8 to DP 2 TP 8", qwen_30b_a3b,
         {dense = {{"pp", 2}, {"dp", 8}}, expert = {{"pp", 2}, {"ep", 8}}, worker = {{"dp", 2}, {"tp", 8}}}},
      {"Qwen3-30B-A3B, EP 4 in 12 ranks to DP 1 TP 8", qwen_30b_a3b,
         {dense = {{"dp", 6}, {"tp", 2}}, expert = {{"edp", 3}, {"ep", 4}}, worker = {{"tp", 8}}}},
   }
   for _, case in ipairs(cases) do
      it("send about the same number of bytes: " .. case[1], function()
         -- Experts come in order, so that only stretches of whole layers reach all ep ranks: no choice of replicas changes that.
         local step = case[2].experts and case[2].experts * 3 + 7 or 9
         local worst, excess = imbalance(case[2], case[3], step)
         if os.getenv("SLUICE_SHOW") then
            print(("%-60s max/mean %.4f, beyond 1.1 in a stretch %.2f MiB"):format(case[1], worst, excess / MIB))
         end
         assert.is_true(worst <= 1.1, ("max / mean is %.3f"):format(worst))
         assert.is_true(excess <= 16 * MIB, ("a stretch is %.1f MiB beyond 1.1 times the mean"):format(excess / MIB))
      end)
   end
end)
