--- The family files on described models: every parameter lands in place on every worker, and every live byte has a writer.
-- The descriptions (lua/sluice/models) share nothing with the rules.

local cjson = require "cjson"
local deployment = require "sluice.deployment"
local models = require "sluice.models"
local script = require "spec.support.script"

local C = script.C

local function live_list(description, worker)
   local list = {}
   for i, live in ipairs(description.live(worker)) do
      list[i] = { name = live.name, dtype = live.dtype, shape = live.shape,
                  attributes = live.attributes and next(live.attributes) and cjson.encode(live.attributes) or "{}" }
   end
   return list
end

local function check_worker(state, case, sealed, host, trainers, worker, live)
   local read = state:read_init_info(sealed)
   assert.equal("", read.text)
   local set = script.live_set(live)
   local resolved = state:resolve(read.plan, set, host, case.rules or case.deployment.model.family)
   assert.equal("", resolved.text)
   local totals = C.slc_plan_count_totals(read.plan)
   assert.equal(tonumber(C.slc_plan_count(read.plan)) - (case.aliases or 0), tonumber(totals.direct))
   local coverage, problem = script.cover(read.plan, set, trainers + worker, resolved)
   assert.is_nil(problem)
   assert.equal(0, tonumber(coverage.nuncovered))
   assert.equal(tonumber(coverage.live_bytes), tonumber(coverage.written_bytes + coverage.padded_bytes))
end

local function check(case)
   local checked = assert(deployment.check(case.deployment))
   local description = assert(models.describe(checked))
   local trainers, workers = deployment.ranks(checked)
   local state = script.new()
   local sealed = assert(state:seal(cjson.encode(deployment.init_info(description, checked, "localhost", 1))))
   local host = cjson.encode(deployment.host(description, checked))
   for worker = 0, workers - 1 do
      check_worker(state, case, sealed, host, trainers, worker, live_list(description, worker))
   end
end

local TRAINER = { mesh = { { "fsdp", 2 }, { "tp", 2 } } }
local MOE_TRAINER = { mesh = { { "pp", 2 }, { "tp", 2 } }, expert_mesh = { { "pp", 2 }, { "ep", 2 } } }

local function case_of(family, size, layers, trainer, worker)
   return { deployment = { model = { family = family, size = size, layers = layers }, trainer = trainer, worker = worker } }
end

local cases = {}
for _, tp in ipairs({ 1, 2, 4, 8 }) do
   for _, pp in ipairs({ 1, 2 }) do
      local mesh = pp > 1 and { { "pp", pp }, { "tp", tp } } or { { "tp", tp } }
      cases[("Llama-3-8B, tp %d, pp %d"):format(tp, pp)] = case_of("llama", "Llama-3-8B", 3, TRAINER, { mesh = mesh })
      cases[("Qwen3-8B, tp %d, pp %d"):format(tp, pp)] = case_of("qwen3", "Qwen3-8B", 3, TRAINER, { mesh = mesh })
      cases[("Qwen3-30B-A3B, tp %d, pp %d"):format(tp, pp)] = case_of("qwen3_moe", "Qwen3-30B-A3B", 2, MOE_TRAINER, { mesh = mesh })
   end
   cases[("Qwen3-30B-A3B, tp %d, dp 2, ep %d"):format(tp, 2 * tp)] = case_of("qwen3_moe", "Qwen3-30B-A3B", 1, MOE_TRAINER,
      { mesh = { { "dp", 2 }, { "tp", tp } }, expert_mesh = { { "ep", 2 * tp } } })
end
cases["Qwen3-30B-A3B, ep 3, uneven experts"] = case_of("qwen3_moe", "Qwen3-30B-A3B", 1, MOE_TRAINER,
   { mesh = { { "dp", 3 }, { "tp", 1 } }, expert_mesh = { { "ep", 3 } } })
local packed = case_of("qwen3_moe", "Qwen3-30B-A3B", 1, MOE_TRAINER, { mesh = { { "tp", 2 } } })
packed.deployment.model.experts = "packed"
cases["Qwen3-30B-A3B, packed experts"] = packed
local deeper = case_of("qwen3_moe", "Qwen3-30B-A3B", 1, MOE_TRAINER, { mesh = { { "tp", 2 } } })
deeper.deployment.model.live_experts, deeper.deployment.host = "experts.routed_experts", { live_experts = "experts.routed_experts" }
cases["Qwen3-30B-A3B, experts.routed_experts"] = deeper
for _, tp in ipairs({ 1, 2, 4 }) do
   cases[("all-MiniLM-L6-v2, tp %d"):format(tp)] = case_of("bert", nil, nil, { mesh = { { "fsdp", 3 } } },
      { mesh = { { "dp", 2 }, { "tp", tp } } })
end

for _, case in ipairs({ { 2, true }, { 2, false }, { 3, true } }) do
   local stages, announced = case[1], case[2]
   local tied = case_of("llama", nil, nil, TRAINER, { mesh = { { "pp", stages }, { "tp", 4 } } })
   tied.deployment.model.config = { num_hidden_layers = 3, hidden_size = 256, intermediate_size = 512, num_attention_heads = 8,
                                    num_key_value_heads = 2, head_dim = 32, vocab_size = 1003, tie_word_embeddings = true,
                                    announce_tied = announced or nil }
   tied.aliases = announced and 1 or 0
   cases[("a tied head on %d stages, %s"):format(stages, announced and "announced" or "not announced")] = tied
end

describe("the family file lands everything in place:", function()
   local names = {}
   for name in pairs(cases) do
      names[#names + 1] = name
   end
   table.sort(names)
   for _, name in ipairs(names) do
      it(name, function()
         check(cases[name])
      end)
   end
end)

describe("packed experts", function()
   -- The case packed_experts: ten experts over four workers, one by one and packed, go to the same live bytes.
   local resolving = require "spec.support.resolving"
   local E, IM, H, EP = 10, 8, 6, 4
   local host = { num_experts = E, moe_intermediate_size = IM, num_attention_heads = 4, num_key_value_heads = 4, head_dim = 2,
                  hidden_size = H, intermediate_size = 8, vocab_size = 64 }
   local LOCAL, FIRST = { 3, 3, 2, 2 }, { 0, 3, 6, 8 }
   local P = "model.layers.0.mlp.experts."

   local function resolve(params)
      return resolving.resolve({ axes = { { "dp", EP } }, meshes = { { name = "expert", axes = { { "ep", EP } } } }, params = params,
         host = host, rules = "qwen3_moe",
         live = { { name = P .. "w13_weight", shape = { LOCAL[1], 2 * IM, H } }, { name = P .. "w2_weight", shape = { LOCAL[1], H, IM } } } })
   end

   it("are cut between the workers as experts that come one by one", function()
      local got = resolve({ { name = P .. "gate_up_proj", shape = { E, 2 * IM, H } }, { name = P .. "down_proj", shape = { E, H, IM } } })
      assert.equal("", got.text)
      for r = 0, EP - 1 do
         local range = ("[%d,%d)"):format(FIRST[r + 1], FIRST[r + 1] + LOCAL[r + 1])
         for strip = 0, 1 do
            assert.equal(range .. "x[0,8)x[0,6)", resolving.box(got, P .. "gate_up_proj", strip, 1 + r))
         end
         assert.equal(range .. "x[0,6)x[0,8)", resolving.box(got, P .. "down_proj", 0, 1 + r))
      end
      assert.truthy(got.by[P .. "gate_up_proj"].line:find("[0:10, 0:8, 0:6] -> '" .. P .. "w13_weight' [:, 0:8, :]", 1, true))
      assert.truthy(got.by[P .. "gate_up_proj"].line:find("[0:10, 8:16, 0:6] -> '" .. P .. "w13_weight' [:, 8:16, :]", 1, true))
   end)

   it("that come one by one move only to their owner, each to its slab", function()
      local params = {}
      for e = 0, E - 1 do
         params[#params + 1] = { name = ("%s%d.gate_proj.weight"):format(P, e), shape = { IM, H } }
         params[#params + 1] = { name = ("%s%d.up_proj.weight"):format(P, e), shape = { IM, H } }
         params[#params + 1] = { name = ("%s%d.down_proj.weight"):format(P, e), shape = { H, IM } }
      end
      local got = resolve(params)
      assert.equal("", got.text)
      for e = 0, E - 1 do
         for r = 0, EP - 1 do
            local owns = e >= FIRST[r + 1] and e < FIRST[r + 1] + LOCAL[r + 1]
            assert.equal(owns and "[0,8)x[0,6)" or "nothing", resolving.box(got, ("%s%d.up_proj.weight"):format(P, e), 0, 1 + r))
            if owns then
               local slab = e - FIRST[r + 1]
               assert.truthy(got.by[("%s%d.gate_proj.weight"):format(P, e)].line:find(("w13_weight' [%d, 0:8, :]"):format(slab), 1, true))
               assert.truthy(got.by[("%s%d.up_proj.weight"):format(P, e)].line:find(("w13_weight' [%d, 8:16, :]"):format(slab), 1, true))
               assert.truthy(got.by[("%s%d.down_proj.weight"):format(P, e)].line:find(("w2_weight' [%d, :, :]"):format(slab), 1, true))
            end
         end
      end
   end)
end)
