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
   assert.equal(tonumber(C.slc_plan_count(read.plan)) - (case.aliases or 0) - (case.skipped or 0), tonumber(totals.direct))
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

-- ---- the cases ----

local TRAINER = { mesh = { { "fsdp", 2 }, { "tp", 2 } } }
local MOE_TRAINER = { mesh = { { "pp", 2 }, { "tp", 2 } }, expert_mesh = { { "pp", 2 }, { "ep", 2 } } }

local cases = {}

-- more: aliases, rules, and keys of the model or the host.
local function add(name, model, worker, more)
   more = more or {}
   local trainer = (worker.expert_mesh or more.expert_trainer) and MOE_TRAINER or TRAINER
   cases[name] = { aliases = more.aliases, skipped = more.skipped, rules = more.rules,
                   deployment = { model = model, trainer = more.trainer or trainer, worker = worker, host = more.host } }
end

local function dense_mesh(pp, tp)
   return pp > 1 and { { "pp", pp }, { "tp", tp } } or { { "tp", tp } }
end

-- Public sizes: family, size, layers, the tp that it allows, whether it has experts.
local sizes = {
   { "llama", "Llama-3-8B", 3, { 1, 2, 4, 8 } }, { "mistral", "Mistral-7B-v0.3", 2, { 1, 2, 4, 8 } },
   { "qwen2", "Qwen2.5-0.5B", 3, { 1, 2 } }, { "qwen2", "Qwen2.5-7B", 2, { 1, 2, 4 } },
   { "qwen3", "Qwen3-8B", 3, { 1, 2, 4, 8 } }, { "qwen3_moe", "Qwen3-30B-A3B", 2, { 1, 2, 4, 8 }, true },
   { "mixtral", "Mixtral-8x7B", 2, { 1, 2, 4, 8 }, true }, { "gemma2", "Gemma-2-9B", 2, { 1, 2, 4, 8 } },
   { "gemma3", "Gemma-3-1B", 2, { 1, 2, 4 } }, { "gemma3", "Gemma-3-12B", 2, { 1, 2, 4, 8 } },
   { "phi3", "Phi-3-mini", 2, { 1, 2, 4, 8 } },
}
for _, size in ipairs(sizes) do
   local model = { family = size[1], size = size[2], layers = size[3] }
   for _, tp in ipairs(size[4]) do
      for _, pp in ipairs({ 1, 2 }) do
         add(("%s, tp %d, pp %d"):format(size[2], tp, pp), model, { mesh = dense_mesh(pp, tp) }, { expert_trainer = size[5] })
      end
      if size[5] then
         local dp = tp > 4 and 1 or 2
         add(("%s, tp %d, dp %d, ep %d"):format(size[2], tp, dp, dp * tp), { family = size[1], size = size[2], layers = 1 },
            { mesh = { { "dp", dp }, { "tp", tp } }, expert_mesh = { { "ep", dp * tp } } })
      end
   end
end
for _, tp in ipairs({ 1, 2, 4 }) do
   add(("all-MiniLM-L6-v2, tp %d"):format(tp), { family = "bert" }, { mesh = { { "dp", 2 }, { "tp", tp } } },
      { trainer = { mesh = { { "fsdp", 3 } } } })
end

-- A small configuration, whose vocabulary needs padding and whose KV heads are fewer than most tp.
local function small(family, changes, keys)
   local model = { family = family, config = {
      num_hidden_layers = 3, hidden_size = 64, intermediate_size = 128, num_attention_heads = 8, num_key_value_heads = 2,
      head_dim = 8, vocab_size = 203,
   } }
   for key, value in pairs(changes or {}) do
      model.config[key] = value
   end
   for key, value in pairs(keys or {}) do
      model[key] = value
   end
   return model
end

local vision = {
   hidden_size = 32, intermediate_size = 64, num_hidden_layers = 2, num_attention_heads = 8, image_size = 20, patch_size = 2,
}
local TIED, BIASED = { tie_word_embeddings = true }, { attention_bias = true }

-- name, model, worker mesh, experts' mesh, more
local uneven, one_by_one = { num_experts = 6, moe_intermediate_size = 16 }, { num_local_experts = 6 }
for _, case in ipairs({
   { "Qwen3-MoE, 6 experts over ep 4", small("qwen3_moe", uneven), { { "dp", 2 }, { "tp", 2 } }, { { "ep", 4 } } },
   { "Qwen3-MoE, 6 packed experts over ep 4", small("qwen3_moe", uneven, { experts = "packed" }), { { "tp", 4 } }, { { "ep", 4 } } },
   { "Qwen3-MoE, packed experts", small("qwen3_moe", uneven, { experts = "packed" }), { { "tp", 8 } } },
   { "Qwen3-MoE, experts.routed_experts", small("qwen3_moe", uneven, { live_experts = "experts.routed_experts" }), { { "tp", 2 } } },
   { "Qwen3-MoE, some layers dense, two stages", small("qwen3_moe", { num_experts = 6, moe_intermediate_size = 16,
      mlp_only_layers = { 1 } }), { { "pp", 2 }, { "tp", 2 } }, { { "pp", 2 }, { "ep", 2 } } },
   { "Mixtral, 6 experts over ep 4", small("mixtral", one_by_one), { { "dp", 2 }, { "tp", 2 } }, { { "ep", 4 } } },
   { "Mixtral, packed as transformers 5 has it", small("mixtral", one_by_one, { experts = "packed" }), { { "tp", 4 } } },
   { "Mixtral, experts.routed_experts", small("mixtral", one_by_one, { live_experts = "experts.routed_experts" }), { { "tp", 2 } } },
   { "Llama, every bias", small("llama", { attention_bias = true, mlp_bias = true }), { { "tp", 4 } } },
   { "Qwen2.5, untied, tp 8", small("qwen2"), { { "tp", 8 } } },
   { "Qwen3, biased", small("qwen3", BIASED), { { "tp", 4 } } },
   { "Gemma 2, biased", small("gemma2", BIASED), { { "tp", 4 } } },
   { "Gemma 3, three stages", small("gemma3"), { { "pp", 3 }, { "tp", 4 } } },
   { "Gemma 3, multimodal, names of the module", small("gemma3", { vision_config = vision }), { { "tp", 8 } } },
   { "Gemma 3, multimodal, two stages", small("gemma3", { vision_config = vision }), { { "pp", 2 }, { "tp", 2 } } },
   { "Gemma 3, multimodal, names of the files", small("gemma3", { vision_config = vision }, { naming = "hub" }), { { "tp", 2 } } },
   { "Gemma 3, multimodal, a checkpoint with more rows than the vocabulary", small("gemma3", { vision_config = vision,
      vocab_size = 200, checkpoint_vocab_size = 264 }), { { "tp", 4 } } },
   { "Phi-3, fewer KV heads than tp, tied", small("phi3", TIED), { { "tp", 8 } } },
}) do
   add(case[1], case[2], { mesh = case[3], expert_mesh = case[4] })
end

-- A tied head is announced or not, on one stage and on several.
for _, family in ipairs({ "llama", "qwen2", "qwen3_moe", "mixtral", "gemma2", "gemma3", "phi3" }) do
   for _, stages in ipairs({ 1, 2, 3 }) do
      for _, announced in ipairs({ true, false }) do
         local changes = { tie_word_embeddings = true, announce_tied = announced, num_local_experts = family == "mixtral" and 4 or nil }
         if family == "qwen3_moe" then
            changes.num_experts, changes.moe_intermediate_size = 4, 16
         end
         add(("%s, a tied head on %d stages, %s"):format(family, stages, announced and "announced" or "not announced"),
            small(family, changes), { mesh = dense_mesh(stages, 4) }, { aliases = announced and 1 or 0 })
      end
   end
end

-- Small models of the families with more than one form, over every way to serve them: the workers' mesh, their expert mesh.
local WAYS = {
   { { { "tp", 1 } } }, { { { "tp", 2 } } }, { { { "tp", 4 } } }, { { { "tp", 8 } } },
   { { { "pp", 2 }, { "tp", 1 } } }, { { { "pp", 2 }, { "tp", 4 } } },
   { { { "dp", 2 }, { "tp", 2 } }, { { "ep", 4 } } }, { { { "tp", 8 } }, { { "ep", 8 } } },
   { { { "pp", 2 }, { "dp", 3 } }, { { "pp", 2 }, { "ep", 3 } } },
}

local function name_of(way)
   local words = {}
   for _, mesh in ipairs(way) do
      for _, axis in ipairs(mesh) do
         words[#words + 1] = axis[1] .. " " .. axis[2]
      end
   end
   return table.concat(words, ", ")
end

local function add_ways(name, model, skipped)
   for _, way in ipairs(WAYS) do
      add(name .. ", " .. name_of(way), model, { mesh = way[1], expert_mesh = way[2] }, { expert_trainer = true, skipped = skipped })
   end
end

local function deepseek(changes)
   local config = {
      num_hidden_layers = 3, hidden_size = 132, intermediate_size = 192, moe_intermediate_size = 64, num_attention_heads = 8,
      n_routed_experts = 10, n_shared_experts = 1, first_k_dense_replace = 1, q_lora_rank = 24, kv_lora_rank = 20,
      qk_nope_head_dim = 16, qk_rope_head_dim = 8, v_head_dim = 16, vocab_size = 1003, num_nextn_predict_layers = 1,
      quantization_config = { quant_method = "fp8", weight_block_size = { 8, 8 } },
   }
   for key, value in pairs(changes) do
      config[key] = value or nil
   end
   return config
end
-- A drafting layer: 10 experts, the shared one and 5 linear layers of attention, each with its scales; 4 norms, the router and
-- its bias; and the six that only drafting needs.
local DRAFTING = 2 * (3 * 10 + 3 + 5) + 4 + 2 + 6
add_ways("DeepSeek-V3, fp8", { family = "deepseek_v3", config = deepseek({}) }, DRAFTING)
add_ways("DeepSeek-V3, fp8, drafting", { family = "deepseek_v3", config = deepseek({}), mtp = "served" })
add_ways("DeepSeek-V3, bf16", { family = "deepseek_v3", live_experts = "experts.routed_experts",
   config = deepseek({ quantization_config = false, q_lora_rank = false, num_nextn_predict_layers = 0, n_shared_experts = 2 }) })

local function gpt_oss(units)
   return { num_hidden_layers = 2, hidden_size = 12, intermediate_size = units, num_attention_heads = 16, num_key_value_heads = 4,
            head_dim = 4, num_local_experts = 10, vocab_size = 1003 }
end
add_ways("GPT-OSS", { family = "gpt_oss", config = gpt_oss(16) })
add_ways("GPT-OSS, units that do not divide", { family = "gpt_oss", config = gpt_oss(11), live_qkv = "qkv",
   live_experts = "experts.routed_experts" })

local tower = { depth = 2, hidden_size = 32, intermediate_size = 40, num_heads = 8, out_hidden_size = 64, patch_size = 2,
                temporal_patch_size = 2, spatial_merge_size = 2 }
for _, tp in ipairs({ 1, 2, 4, 8 }) do
   for _, pp in ipairs({ 1, 2 }) do
      add(("Qwen2.5-VL, tp %d, pp %d"):format(tp, pp), small("qwen2_5_vl", { vision_config = tower }), { mesh = dense_mesh(pp, tp) })
   end
   add(("Qwen2.5-VL, names of the files, tied, the tower whole, tp %d"):format(tp), small("qwen2_5_vl", { vision_config = tower,
      tie_word_embeddings = true }, { naming = "hub", mm_encoder_tp_mode = "data" }), { mesh = dense_mesh(1, tp) })
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

describe("a family file places", function()
   local resolving = require "spec.support.resolving"
   local host = { num_attention_heads = 4, num_key_value_heads = 4, head_dim = 2, hidden_size = 8, intermediate_size = 8,
                  vocab_size = 64, num_experts = 2, moe_intermediate_size = 8 }
   local L = "model.layers.0."

   -- what, family, the trainer's name, its shape, the live name, its shape, what is said of it (up to its reason)
   local placed = {
      { "under the wrappers of FSDP and torch.compile", "llama",
        "_fsdp_wrapped_module._orig_mod.model.layers.0._fsdp_wrapped_module.mlp.down_proj.weight", { 8, 8 }, L .. "mlp.down_proj.weight", { 8, 8 },
        "direct [0:8, 0:8] -> 'model.layers.0.mlp.down_proj.weight' [:, :] ()" },
      { "what PEFT wraps into a plain model", "llama", "base_model.model.model.layers.0.mlp.down_proj.base_layer.weight", { 8, 8 },
        L .. "mlp.down_proj.weight", { 8, 8 }, "direct [0:8, 0:8] -> 'model.layers.0.mlp.down_proj.weight' [:, :] ()" },
      { "what is plain into a model that serves adapters", "llama", L .. "self_attn.q_proj.weight", { 8, 8 },
        L .. "self_attn.qkv_proj.base_layer.weight", { 24, 8 },
        "direct [0:8, 0:8] -> 'model.layers.0.self_attn.qkv_proj.base_layer.weight' [0:8, :] ()" },
      { "what PEFT wraps into a model that serves adapters", "llama", "base_model.model.model.layers.0.mlp.down_proj.base_layer.weight",
        { 8, 8 }, L .. "mlp.down_proj.base_layer.weight", { 8, 8 },
        "direct [0:8, 0:8] -> 'model.layers.0.mlp.down_proj.base_layer.weight' [:, :] ()" },
      { "the scale of a KV cache", "qwen2", L .. "self_attn.v_proj.v_scale", {}, L .. "self_attn.attn.v_scale", {},
        "direct [] -> 'model.layers.0.self_attn.attn.v_scale' [] ()" },
      { "the scale of a KV cache as a list of one", "qwen2", L .. "self_attn.qkv_proj.k_scale", { 1 }, L .. "self_attn.attn.k_scale", {},
        "direct [0:1] -> 'model.layers.0.self_attn.attn.k_scale' [:] ()" },
      { "the scale of a KV cache where it is live", "qwen2", L .. "self_attn.attn.k_scale", {}, L .. "self_attn.attn.k_scale", {},
        "direct [] -> 'model.layers.0.self_attn.attn.k_scale' [] ()" },
      { "experts where the live tensors are deeper", "qwen3_moe", L .. "mlp.experts.1.down_proj.weight", { 8, 8 },
        L .. "mlp.experts.routed_experts.w2_weight", { 2, 8, 8 },
        "direct [0:8, 0:8] -> 'model.layers.0.mlp.experts.routed_experts.w2_weight' [1, :, :] ()",
        L .. "mlp.experts.routed_experts.w13_weight" },
      { "no rotary table", "phi3", L .. "self_attn.rotary_emb.inv_freq", { 4 }, L .. "x", { 1 }, "skip" },
      { "no normalizer of Gemma", "gemma3", "model.normalizer", { 1 }, L .. "x", { 1 }, "skip" },
   }
   for _, case in ipairs(placed) do
      it(case[1], function()
         local list = { { name = case[5], shape = case[6] }, case[8] and { name = case[8], shape = { 1 } } }
         local got = resolving.resolve({ params = { { name = case[3], shape = case[4] } }, host = host, rules = case[2], live = list })
         assert.equal("", got.text)
         assert.equal(case[7], (got.by[case[3]].line:gsub(",? because: .*$", ""):gsub(" *%(computed.*$", "")))
      end)
   end

   -- Live tensors of a stage without the module would tell otherwise.
   it("an embedding inside base_layer alike on every stage, where the host says which modules it wraps", function()
      local said = { lora_modules = { "embed_tokens", "qkv_proj" }, pipeline_parallel_size = 2, num_hidden_layers = 2 }
      for key, value in pairs(host) do
         said[key] = said[key] or value
      end
      for _, live in ipairs({ { { name = "model.embed_tokens.base_layer.weight", shape = { 64, 8 } } }, {} }) do
         local got = resolving.resolve({ params = { { name = "model.embed_tokens.weight", shape = { 64, 8 } } }, host = said, rules = "llama",
            live = live, axes = { { "pp", 2 } } })
         assert.equal("", got.text)
         assert.truthy(got.by["model.embed_tokens.weight"].line:find("-> 'model.embed_tokens.base_layer.weight' [:, :] (pp=0)", 1, true))
      end
   end)
end)

describe("packed experts", function()
   -- The case packed_experts: ten experts over four workers, one by one and packed, go to the same live bytes.
   local resolving = require "spec.support.resolving"
   local E, IM, H, EP = 10, 8, 6, 4
   local host = { num_experts = E, moe_intermediate_size = IM, num_attention_heads = 4, num_key_value_heads = 4, head_dim = 2,
                  hidden_size = H, intermediate_size = 8, vocab_size = 64 }
   local LOCAL, FIRST = { 3, 3, 2, 2 }, { 0, 3, 6, 8 }
   local P = "model.layers.0.mlp.experts."

   local function resolve(params, told, family)
      return resolving.resolve({ axes = { { "dp", EP } }, meshes = { { name = "expert", axes = { { "ep", EP } } } }, params = params,
         host = told or host, rules = family or "qwen3_moe",
         live = { { name = P .. "w13_weight", shape = { LOCAL[1], 2 * IM, H } }, { name = P .. "w2_weight", shape = { LOCAL[1], H, IM } } } })
   end

   it("follow the host's map one by one, also into several copies, and go whole to its loader packed", function()
      local map = { { 9, 0, 1 }, { 2, 3, 9 }, { 4, 5, 6 }, { 7, 8, 0 } }
      local params = {}
      for e = 0, E - 1 do
         params[e + 1] = { name = ("%s%d.up_proj.weight"):format(P, e), shape = { IM, H } }
      end
      local moved = { expert_map = map }
      for key, value in pairs(host) do
         moved[key] = value
      end
      local got = resolve(params, moved)
      assert.equal("", got.text)
      local function line(e)
         return got.by[("%s%d.up_proj.weight"):format(P, e)].line:gsub(", because.*", ""):gsub("'.-'", "'x'")
      end
      assert.equal("direct [0:8, 0:6] -> 'x' [2, 8:16, :] (ep=0) of 'x'", line(1))
      assert.equal("direct [0:8, 0:6] -> 'x' [0, 8:16, :] (ep=0) of 'x'; [0:8, 0:6] -> 'x' [2, 8:16, :] (ep=1) of 'x'", line(9))
      for _, family in ipairs({ "qwen3_moe", "gpt_oss" }) do
         got = resolve({ { name = P .. "gate_up_proj", shape = { E, 2 * IM, H } } }, moved, family)
         assert.equal("the host places experts by a map, which a packed tensor cannot follow", got.by[P .. "gate_up_proj"].reason)
      end
   end)

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

describe("the rules of DeepSeek-V3", function()
   local resolving = require "spec.support.resolving"
   local O, Q = "model.layers.0.self_attn.o_proj.weight", "model.layers.0.self_attn.q_b_proj.weight"
   local weight = { name = O, shape = { 32, 32 }, dtype = "float8_e4m3fn" }
   local scales = { name = O .. "_scale_inv", shape = { 8, 8 }, dtype = "float32" }

   local function resolve(params, tp, changes)
      local host = {
         num_attention_heads = 8, hidden_size = 32, intermediate_size = 32, moe_intermediate_size = 32, num_experts = 4, vocab_size = 512,
         q_lora_rank = 8, qk_nope_head_dim = 4, qk_rope_head_dim = 2, v_head_dim = 4, num_hidden_layers = 1, quantization = "fp8",
         weight_block_size = { 4, 4 },
      }
      for key, value in pairs(changes or {}) do
         host[key] = value
      end
      return resolving.resolve({ tp = tp, params = params, host = host, rules = "deepseek_v3",
         live = { { name = O, shape = { 32, 32 / tp }, dtype = "float8_e4m3fn" },
                  { name = O .. "_scale_inv", shape = { 8, 8 / tp }, dtype = "float32" },
                  { name = Q, shape = { 48 / tp, 8 }, dtype = "float8_e4m3fn" } } })
   end

   it("take no weight without its scales and no scales without their weight", function()
      assert.equal("", resolve({ weight, scales }, 2).text)
      assert.truthy(resolve({ weight }, 2).text:find(O .. " must come with its companion " .. O .. "_scale_inv", 1, true))
      assert.truthy(resolve({ scales }, 2).text:find(O .. "_scale_inv must come with its companion " .. O .. ",", 1, true))
   end)

   -- The case missing_scale, for every kind of linear layer that the model has.
   it("take none of the model's layers by halves", function()
      local checked = assert(deployment.check({ model = { family = "deepseek_v3", config = deepseek({}), mtp = "served" },
         trainer = TRAINER, worker = { mesh = { { "tp", 2 } } } }))
      local description = assert(models.describe(checked))
      local whole, host = description.params, cjson.encode(deployment.host(description, checked))
      local live, state, is_there, seen, kinds = live_list(description, 0), script.new(), {}, {}, 0
      for _, param in ipairs(whole) do
         is_there[param.name] = true
      end
      for i, param in ipairs(whole) do
         local other = param.name:match("^(.*)_scale_inv$") or param.name .. "_scale_inv"
         local kind = param.name:gsub("%d+", "N")
         if is_there[other] and not seen[kind] then
            seen[kind], kinds = true, kinds + 1
            description.params = { unpack(whole) }
            table.remove(description.params, i)
            local read = state:read_init_info(assert(state:seal(cjson.encode(deployment.init_info(description, checked, "localhost", 1)))))
            local text = state:resolve(read.plan, script.live_set(live), host, "deepseek_v3").text
            assert.truthy(text:find(("%s must come with its companion %s, which the trainer does not announce"):format(other, param.name), 1,
               true), param.name .. ": " .. text)
         end
      end
      assert.equal(2 * (5 + 3 + 3 + 3), kinds) -- attention, a dense MLP, the shared one, an expert
   end)

   it("cut no block in two", function()
      local text = resolve({ { name = Q, shape = { 48, 8 }, dtype = "float8_e4m3fn" },
                             { name = Q .. "_scale_inv", shape = { 12, 2 }, dtype = "float32" } }, 8).text
      assert.truthy(text:find(Q .. "_scale_inv goes as its weight, counted in blocks: a worker's part of dim 0 (6) must be a whole "
         .. "number of blocks of 4", 1, true), text)
   end)

   it("leave a host that is quantized otherwise to its loader", function()
      local got = resolve({ weight, scales }, 1, { quantization = "awq" })
      assert.equal("full", got.by[O].line:match("^%a+"))
      assert.truthy(got.by[O].line:find("the host is quantized (awq)", 1, true))
   end)
end)

describe("the rules of Qwen2.5-VL", function()
   -- The case text_only_trainer: the trainer has the language model alone.
   local resolving = require "spec.support.resolving"

   local function resolve(changes)
      local host = {
         num_attention_heads = 8, num_key_value_heads = 2, head_dim = 8, hidden_size = 64, intermediate_size = 256, vocab_size = 128,
         vision_config = tower,
      }
      for key, value in pairs(changes or {}) do
         host[key] = value
      end
      return resolving.resolve({ tp = 2, host = host, rules = "qwen2_5_vl",
         params = { { name = "model.layers.0.mlp.down_proj.weight", shape = { 64, 256 } } },
         live = { { name = "language_model.model.layers.0.mlp.down_proj.weight", shape = { 64, 128 } },
                  { name = "visual.blocks.0.attn.proj.weight", shape = { 32, 16 } } } })
   end

   it("let a text-only trainer leave the tower alone where the host says that it is one", function()
      local got = resolve({ trainer_is_text_only = true })
      assert.equal("", got.text)
      assert.same({ "visual.blocks.0.attn.proj.weight" }, got.unsourced)
      assert.equal("[0,64)x[128,256)", resolving.box(got, "model.layers.0.mlp.down_proj.weight", 0, 2))
   end)

   it("let nothing stay unwritten otherwise", function()
      local got = resolve()
      assert.same({}, got.unsourced)
      assert.is_true(got.strict)
   end)
end)
