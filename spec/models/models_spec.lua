--- Descriptions of models, held against what tensor-parallel inference means: a worker's q rows, the KV heads that serve them
-- and the o columns behind them must belong together, and all ranks together must hold the model once.

local deployment = require "sluice.deployment"
local materialise = require "spec.models.materialise"
local models = require "sluice.models"
local tiny = require "spec.models.tiny"

local config, describe_model, live_of, get = tiny.config, tiny.describe, tiny.live, materialise.get

local function live_names(description, rank)
   local names = {}
   for i, live in ipairs(description.live(rank)) do
      names[i] = live.name
   end
   return names
end

-- The attention of one worker: local q head j is served by the local KV head that its place in the group says.
local function check_attention(tensors, prefix, c, tp, r, bias)
   local d, q_heads = c.head_dim, c.num_attention_heads / tp
   local kv_heads = math.max(1, c.num_key_value_heads / tp)
   local group = c.num_attention_heads / c.num_key_value_heads
   local qkv, o = tensors[prefix .. "qkv_proj.weight"], tensors[prefix .. "o_proj.weight"]
   assert.same({ (q_heads + 2 * kv_heads) * d, c.hidden_size }, qkv.shape)
   assert.same({ c.hidden_size, q_heads * d }, o.shape)
   for j = 0, q_heads - 1 do
      local head = r * q_heads + j
      local served_by = math.floor(j / (q_heads / kv_heads))
      for i = 0, d - 1 do
         for h = 0, c.hidden_size - 1 do
            local place = { q_proj = j * d + i, k_proj = (q_heads + served_by) * d + i,
               v_proj = (q_heads + kv_heads + served_by) * d + i }
            local row = { q_proj = head * d + i, k_proj = math.floor(head / group) * d + i }
            row.v_proj = row.k_proj
            for _, part in ipairs({ "q_proj", "k_proj", "v_proj" }) do
               assert.equal(("%s%s.weight[%d,%d]"):format(prefix, part, row[part], h), get(qkv, place[part], h))
               if bias then
                  assert.equal(("%s%s.bias[%d]"):format(prefix, part, row[part]), get(tensors[prefix .. "qkv_proj.bias"], place[part]))
               end
            end
            assert.equal(("%so_proj.weight[%d,%d]"):format(prefix, h, head * d + i), get(o, h, j * d + i))
         end
      end
   end
end

-- One MLP of a worker: row i of gate, row i of up and column i of down are one hidden unit.
local function check_mlp(tensors, prefix, c, tp, r)
   local width = c.intermediate_size / tp
   local gate_up, down = tensors[prefix .. "gate_up_proj.weight"], tensors[prefix .. "down_proj.weight"]
   assert.same({ 2 * width, c.hidden_size }, gate_up.shape)
   assert.same({ c.hidden_size, width }, down.shape)
   for i = 0, width - 1 do
      for h = 0, c.hidden_size - 1 do
         local unit = r * width + i
         assert.equal(("%sgate_proj.weight[%d,%d]"):format(prefix, unit, h), get(gate_up, i, h))
         assert.equal(("%sup_proj.weight[%d,%d]"):format(prefix, unit, h), get(gate_up, width + i, h))
         assert.equal(("%sdown_proj.weight[%d,%d]"):format(prefix, h, unit), get(down, h, i))
      end
   end
end

local function check_experts(tensors, prefix, c, first, count, moe_tp, moe_r, live_prefix)
   local width = c.moe_intermediate_size / moe_tp
   local w13, w2 = tensors[(live_prefix or prefix) .. "w13_weight"], tensors[(live_prefix or prefix) .. "w2_weight"]
   assert.same({ count, 2 * width, c.hidden_size }, w13.shape)
   assert.same({ count, c.hidden_size, width }, w2.shape)
   for e = 0, count - 1 do
      local name = prefix .. (first + e)
      for i = 0, width - 1 do
         for h = 0, c.hidden_size - 1 do
            local unit = moe_r * width + i
            assert.equal(("%s.gate_proj.weight[%d,%d]"):format(name, unit, h), get(w13, e, i, h))
            assert.equal(("%s.up_proj.weight[%d,%d]"):format(name, unit, h), get(w13, e, width + i, h))
            assert.equal(("%s.down_proj.weight[%d,%d]"):format(name, h, unit), get(w2, e, h, i))
         end
      end
   end
end

-- All ranks' rows of a vocabulary table, one behind the other: the table, then zeros.
local function check_vocabulary(ranks, name, vocab_size, hidden)
   local row = 0
   for _, tensors in ipairs(ranks) do
      for i = 0, tensors[name].shape[1] - 1 do
         for h = 0, hidden - 1 do
            assert.equal(row < vocab_size and ("%s[%d,%d]"):format(name, row, h) or "0", get(tensors[name], i, h))
         end
         row = row + 1
      end
   end
   assert.equal(math.ceil(vocab_size / 64) * 64, row)
end

local function check_whole(tensors, name, extent)
   assert.same({ extent }, tensors[name].shape)
   for i = 0, extent - 1 do
      assert.equal(("%s[%d]"):format(name, i), get(tensors[name], i))
   end
end

describe("models.describe()", function()
   describe("for a dense decoder", function()
      for _, family in ipairs({ "llama", "qwen3" }) do
         for _, tp in ipairs({ 1, 2, 4, 8 }) do
            it(("gives every rank of %s under tp %d what its heads and units need"):format(family, tp), function()
               local c = config({ attention_bias = family == "llama" })
               local description = describe_model({ family = family, config = c }, { mesh = { { "dp", 2 }, { "tp", tp } } })
               for replica = 0, 1 do
                  local ranks = {}
                  for r = 0, tp - 1 do
                     local tensors = materialise.worker(description, replica * tp + r)
                     ranks[r + 1] = tensors
                     for layer = 0, 1 do
                        local prefix = ("model.layers.%d."):format(layer)
                        check_attention(tensors, prefix .. "self_attn.", c, tp, r, c.attention_bias)
                        check_mlp(tensors, prefix .. "mlp.", c, tp, r)
                        check_whole(tensors, prefix .. "input_layernorm.weight", 6)
                        check_whole(tensors, prefix .. "post_attention_layernorm.weight", 6)
                        if family == "qwen3" then
                           check_whole(tensors, prefix .. "self_attn.q_norm.weight", 2)
                           check_whole(tensors, prefix .. "self_attn.k_norm.weight", 2)
                        else
                           check_whole(tensors, prefix .. "self_attn.o_proj.bias", 6)
                        end
                     end
                     check_whole(tensors, "model.norm.weight", 6)
                  end
                  check_vocabulary(ranks, "model.embed_tokens.weight", 70, 6)
                  check_vocabulary(ranks, "lm_head.weight", 70, 6)
               end
            end)
         end
      end

      it("lists a checkpoint's parameters under their published names and shapes", function()
         local description = describe_model({ size = "Llama-3-8B", layers = 1 }, { mesh = { { "tp", 4 } } })
         local list = {}
         for i, param in ipairs(description.params) do
            list[i] = ("%s %s [%s]"):format(param.name, param.dtype, table.concat(param.shape, ","))
         end
         assert.same({
            "model.embed_tokens.weight bfloat16 [128256,4096]",
            "model.layers.0.self_attn.q_proj.weight bfloat16 [4096,4096]",
            "model.layers.0.self_attn.k_proj.weight bfloat16 [1024,4096]",
            "model.layers.0.self_attn.v_proj.weight bfloat16 [1024,4096]",
            "model.layers.0.self_attn.o_proj.weight bfloat16 [4096,4096]",
            "model.layers.0.mlp.gate_proj.weight bfloat16 [14336,4096]",
            "model.layers.0.mlp.up_proj.weight bfloat16 [14336,4096]",
            "model.layers.0.mlp.down_proj.weight bfloat16 [4096,14336]",
            "model.layers.0.input_layernorm.weight bfloat16 [4096]",
            "model.layers.0.post_attention_layernorm.weight bfloat16 [4096]",
            "model.norm.weight bfloat16 [4096]",
            "lm_head.weight bfloat16 [128256,4096]",
         }, list)
         assert.equal("Llama-3-8B (1 of 32 layers)", description.title)
      end)

      it("says what a serving host declares of each loader", function()
         local description = describe_model({ family = "llama", config = config({ attention_bias = true }) }, { mesh = { { "tp", 2 } } })
         local layer = "model.layers.0."
         local cases = {
            { "model.embed_tokens.weight", { loader = "vocab", tp_size = 2, output_dim = 0, input_dim = 1 } },
            { layer .. "self_attn.qkv_proj.weight", { loader = "qkv", tp_size = 2, output_dim = 0, input_dim = 1 } },
            { layer .. "self_attn.qkv_proj.bias", { loader = "qkv", tp_size = 2, output_dim = 0 } },
            { layer .. "self_attn.o_proj.weight", { loader = "row", tp_size = 2, output_dim = 0, input_dim = 1 } },
            { layer .. "self_attn.o_proj.bias", { loader = "replicated", tp_size = 1 } },
            { layer .. "mlp.gate_up_proj.weight", { loader = "merged_column", tp_size = 2, output_dim = 0, input_dim = 1 } },
            { layer .. "mlp.down_proj.weight", { loader = "row", tp_size = 2, output_dim = 0, input_dim = 1 } },
            { layer .. "input_layernorm.weight", nil },
            { "model.norm.weight", nil },
         }
         for _, case in ipairs(cases) do
            assert.same(case[2], live_of(description, 0, case[1]).attributes)
         end
      end)

      it("has no live head when tied, and announces one only when asked", function()
         local model = { family = "llama", config = config({ tie_word_embeddings = true }) }
         local description = describe_model(model, { mesh = { { "tp", 2 } } })
         assert.is_nil(live_of(description, 0, "lm_head.weight"))
         assert.equal("model.norm.weight", description.params[#description.params].name)
         assert.is_true(description.host.tie_word_embeddings)
         model.config.announce_tied = true
         description = describe_model(model, { mesh = { { "tp", 2 } } })
         assert.is_nil(live_of(description, 0, "lm_head.weight"))
         assert.equal("lm_head.weight", description.params[#description.params].name)
      end)

      it("keeps each pipeline stage's layers on its own ranks, the surplus before the last stage", function()
         local description = describe_model({ family = "llama", config = config({ num_hidden_layers = 7 }) },
            { mesh = { { "pp", 3 }, { "tp", 2 } } })
         assert.same({ 2, 3, 2 }, description.host.pipeline_layers)
         local held = {}
         for rank = 0, 5 do
            materialise.worker(description, rank)
            held[rank] = {}
            for _, name in ipairs(live_names(description, rank)) do
               held[rank][#held[rank] + 1] = name:match("^(model%.layers%.%d+)%.input_layernorm") or name:match("^([^0-9]+)$")
            end
         end
         assert.same({ "model.embed_tokens.weight", "model.layers.0", "model.layers.1" }, held[0])
         assert.same({ "model.layers.2", "model.layers.3", "model.layers.4" }, held[2])
         assert.same({ "model.layers.5", "model.layers.6", "model.norm.weight", "lm_head.weight" }, held[4])
         for rank = 0, 4, 2 do
            assert.same(held[rank], held[rank + 1])
         end
      end)

      it("keeps the tied embedding on the last stage, too", function()
         local description = describe_model({ family = "llama", config = config({ tie_word_embeddings = true }) },
            { mesh = { { "pp", 2 }, { "tp", 1 } } })
         assert.truthy(live_of(description, 0, "model.embed_tokens.weight"))
         assert.truthy(live_of(description, 1, "model.embed_tokens.weight"))
      end)
   end)

   describe("for a decoder with experts", function()
      local function moe(changes)
         local c = config({ num_experts = 10, moe_intermediate_size = 8 })
         for key, value in pairs(changes or {}) do
            c[key] = value
         end
         return c
      end

      for _, form in ipairs({ "single", "packed" }) do
         for _, tp in ipairs({ 1, 2, 4, 8 }) do
            it(("cuts every expert by tp %d without expert parallelism (%s)"):format(tp, form), function()
               local c = moe()
               local description = describe_model({ family = "qwen3_moe", config = c, experts = form }, { mesh = { { "tp", tp } } })
               for r = 0, tp - 1 do
                  local tensors = materialise.worker(description, r)
                  check_experts(tensors, "model.layers.1.mlp.experts.", c, 0, 10, tp, r)
                  check_attention(tensors, "model.layers.1.self_attn.", c, tp, r)
               end
            end)
         end

         it(("gives 10 experts to 4 ranks as 3, 3, 2 and 2 (%s)"):format(form), function()
            local c = moe()
            local description = describe_model({ family = "qwen3_moe", config = c, experts = form },
               { mesh = { { "dp", 2 }, { "tp", 2 } }, expert_mesh = { { "ep", 4 } } })
            for rank = 0, 3 do
               local tensors = materialise.worker(description, rank)
               check_experts(tensors, "model.layers.0.mlp.experts.", c, ({ 0, 3, 6, 8 })[rank + 1], ({ 3, 3, 2, 2 })[rank + 1], 1, 0)
               check_attention(tensors, "model.layers.0.self_attn.", c, 2, rank % 2)
               check_whole(tensors, "model.layers.0.input_layernorm.weight", 6)
               assert.same({ 10, 6 }, tensors["model.layers.0.mlp.gate.weight"].shape)
            end
         end)
      end

      it("holds the same elements for packed experts as for single ones", function()
         local worker = { mesh = { { "tp", 4 } }, expert_mesh = { { "ep", 4 } } }
         local single = describe_model({ family = "qwen3_moe", config = moe(), experts = "single" }, worker)
         local packed = describe_model({ family = "qwen3_moe", config = moe(), experts = "packed" }, worker)
         assert.same({ 10, 16, 6 }, packed.params[9].shape)
         assert.equal("model.layers.0.mlp.experts.gate_up_proj", packed.params[9].name)
         assert.same({ 10, 6, 8 }, packed.params[10].shape)
         assert.equal("model.layers.0.mlp.experts.down_proj", packed.params[10].name)
         for rank = 0, 3 do
            assert.same(materialise.worker(single, rank), materialise.worker(packed, rank))
         end
      end)

      it("keeps pipeline stages and expert ranks apart", function()
         local c = moe()
         local description = describe_model({ family = "qwen3_moe", config = c },
            { mesh = { { "pp", 2 }, { "tp", 2 } }, expert_mesh = { { "pp", 2 }, { "ep", 2 } } })
         for rank = 0, 3 do
            local layer = math.floor(rank / 2)
            local tensors = materialise.worker(description, rank)
            check_experts(tensors, ("model.layers.%d.mlp.experts."):format(layer), c, (rank % 2) * 5, 5, 1, 0)
            assert.is_nil(tensors[("model.layers.%d.mlp.experts.w13_weight"):format(1 - layer)])
         end
      end)

      it("has dense layers where the configuration says so", function()
         local c = moe({ num_hidden_layers = 4, mlp_only_layers = { 1 }, decoder_sparse_step = 2 })
         local description = describe_model({ family = "qwen3_moe", config = c }, { mesh = { { "tp", 2 } } })
         local tensors = materialise.worker(description, 1)
         for layer = 0, 2 do
            check_mlp(tensors, ("model.layers.%d.mlp."):format(layer), c, 2, 1)
            assert.is_nil(tensors[("model.layers.%d.mlp.gate.weight"):format(layer)])
         end
         check_experts(tensors, "model.layers.3.mlp.experts.", c, 0, 10, 2, 1)
      end)

      it("puts the live experts where newer hosts have them when asked", function()
         local c = moe()
         local description = describe_model({ family = "qwen3_moe", config = c, live_experts = "experts.routed_experts" },
            { mesh = { { "tp", 2 } } })
         check_experts(materialise.worker(description, 0), "model.layers.0.mlp.experts.", c, 0, 10, 2, 0,
            "model.layers.0.mlp.experts.routed_experts.")
      end)

      it("declares stacked experts as such", function()
         local description = describe_model({ family = "qwen3_moe", config = moe() }, { mesh = { { "tp", 2 } } })
         assert.same({ loader = "fused_moe", tp_size = 2 }, live_of(description, 0, "model.layers.0.mlp.experts.w13_weight").attributes)
         description = describe_model({ family = "qwen3_moe", config = moe() }, { mesh = { { "tp", 2 } }, expert_mesh = { { "ep", 2 } } })
         assert.same({ loader = "fused_moe", tp_size = 1, ep_size = 2 },
            live_of(description, 0, "model.layers.0.mlp.experts.w2_weight").attributes)
      end)
   end)

   describe("for all-MiniLM-L6-v2", function()
      local function bert(tp, changes)
         local c = { num_hidden_layers = 1, hidden_size = 12, intermediate_size = 8, num_attention_heads = 4, vocab_size = 70,
            max_position_embeddings = 5, type_vocab_size = 2 }
         for key, value in pairs(changes or {}) do
            c[key] = value
         end
         return describe_model({ family = "bert", config = c }, { mesh = { { "dp", 2 }, { "tp", tp } } }), c
      end

      for _, tp in ipairs({ 1, 2, 4 }) do
         it(("fuses q, k and v and cuts each by tp %d"):format(tp), function()
            local description = bert(tp)
            local ranks = {}
            for r = 0, tp - 1 do
               local tensors = materialise.worker(description, r)
               ranks[r + 1] = tensors
               local rows = 12 / tp
               local qkv, bias = tensors["encoder.layer.0.attention.self.qkv_proj.weight"], tensors["encoder.layer.0.attention.self.qkv_proj.bias"]
               for part, name in ipairs({ "query", "key", "value" }) do
                  for i = 0, rows - 1 do
                     local base = "encoder.layer.0.attention.self." .. name
                     assert.equal(("%s.bias[%d]"):format(base, r * rows + i), get(bias, (part - 1) * rows + i))
                     assert.equal(("%s.weight[%d,7]"):format(base, r * rows + i), get(qkv, (part - 1) * rows + i, 7))
                     assert.equal(("encoder.layer.0.attention.output.dense.weight[7,%d]"):format(r * rows + i),
                        get(tensors["encoder.layer.0.attention.output.dense.weight"], 7, i))
                  end
               end
               for i = 0, 8 / tp - 1 do
                  local unit = r * 8 / tp + i
                  assert.equal(("encoder.layer.0.intermediate.dense.weight[%d,3]"):format(unit),
                     get(tensors["encoder.layer.0.intermediate.dense.weight"], i, 3))
                  assert.equal(("encoder.layer.0.intermediate.dense.bias[%d]"):format(unit),
                     get(tensors["encoder.layer.0.intermediate.dense.bias"], i))
                  assert.equal(("encoder.layer.0.output.dense.weight[3,%d]"):format(unit),
                     get(tensors["encoder.layer.0.output.dense.weight"], 3, i))
               end
               for _, name in ipairs({ "encoder.layer.0.output.dense.bias", "encoder.layer.0.attention.output.dense.bias",
                  "encoder.layer.0.output.LayerNorm.weight", "encoder.layer.0.attention.output.LayerNorm.bias",
                  "embeddings.LayerNorm.weight", "pooler.dense.bias" }) do
                  check_whole(tensors, name, 12)
               end
               assert.same({ 12, 12 }, tensors["pooler.dense.weight"].shape)
               assert.equal("int64", tensors["embeddings.position_ids"].dtype)
            end
            check_vocabulary(ranks, "embeddings.word_embeddings.weight", 70, 12)
            check_vocabulary(ranks, "embeddings.position_embeddings.weight", 5, 12)
            check_vocabulary(ranks, "embeddings.token_type_embeddings.weight", 2, 12)
         end)
      end

      it("has the published shapes without a configuration", function()
         local description = describe_model({ family = "bert" }, { mesh = { { "dp", 2 }, { "tp", 4 } } }, { mesh = { { "fsdp", 3 } } })
         assert.equal(104, #description.params)
         assert.same({ 7632, 384 }, live_of(description, 3, "embeddings.word_embeddings.weight").shape)
         assert.same({ { source = "embeddings.word_embeddings.weight", at = { 7626, 0 }, extent = { 6, 384 } } },
            live_of(description, 3, "embeddings.word_embeddings.weight").zero)
         assert.same({ { axis = "fsdp", shard = 0 } }, description.params[1].src_placements)
         assert.equal("all-MiniLM-L6-v2", description.title)
      end)

      it("leaves a buffer that FSDP does not shard whole on every trainer", function()
         local description = describe_model({ family = "bert" }, { mesh = { { "tp", 4 } } }, { mesh = { { "fsdp", 3 } } })
         for _, param in ipairs(description.params) do
            if param.name == "embeddings.position_ids" then
               assert.same({}, param.src_placements)
            end
         end
      end)
   end)

   describe("for workers that the model does not fit", function()
      local cases = {
         { { { "tp", 3 } }, nil, {}, "model.config.num_attention_heads (8) must divide by the workers' tp (3)" },
         { { { "tp", 4 } }, nil, { num_attention_heads = 12, num_key_value_heads = 6 },
            "model.config.num_key_value_heads (6) must divide by the workers' tp (4), or tp by it" },
         { { { "tp", 4 } }, nil, { intermediate_size = 18 }, "model.config.intermediate_size (18) must divide by the workers' tp (4)" },
         { { { "tp", 3 } }, nil, { num_attention_heads = 6, intermediate_size = 18, num_key_value_heads = 1 },
            "model.config.vocab_size (70, padded to 128) must divide by the workers' tp (3) after padding" },
         { { { "pp", 3 } }, nil, {}, "2 layers must be at least the workers' pp (3)" },
         { { { "tp", 4 } }, nil, { num_experts = 4, moe_intermediate_size = 6 },
            "model.config.moe_intermediate_size (6) must divide by the workers' expert tp (4)" },
         { { { "tp", 4 } }, { { "ep", 4 } }, { num_experts = 3, moe_intermediate_size = 6 },
            "model.config.num_experts (3) must be at least the workers' ep (4)" },
         { { { "pp", 2 }, { "tp", 2 } }, { { "ep", 4 } }, { num_experts = 4, moe_intermediate_size = 6 },
            "worker.expert_mesh has 1 pp stages and worker.mesh 2: a worker holds both parts of its layers" },
         { { { "pp", 2 }, { "tp", 2 } }, { { "ep", 2 }, { "pp", 2 } }, { num_experts = 4, moe_intermediate_size = 6 },
            "worker.expert_mesh and worker.mesh put a rank into different pp stages: pp must be at the same place in both" },
         { { { "tp", 4 } }, { { "ep", 2 }, { "tp", 2 } }, { num_experts = 4, moe_intermediate_size = 7 },
            "model.config.moe_intermediate_size (7) must divide by the workers' expert tp (2)" },
      }
      for _, case in ipairs(cases) do
         it("says: " .. case[4], function()
            local c = config(case[3])
            local description, text = models.describe(assert(deployment.check({
               model = { family = c.num_experts and "qwen3_moe" or "llama", config = c }, trainer = { mesh = { { "dp", 1 } } },
               worker = { mesh = case[1], expert_mesh = case[2] },
            })))
            assert.is_nil(description)
            assert.equal("deployment: " .. case[4], text)
         end)
      end

      local vision = { hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 4, image_size = 8,
                       patch_size = 2 }
      local function tower(changes)
         for key, value in pairs(vision) do
            changes[key] = changes[key] or value
         end
         return { vision_config = changes }
      end
      local families = {
         { "mixtral", { num_local_experts = 3 }, { { "ep", 4 } }, "model.config.num_local_experts (3) must be at least the workers' ep (4)" },
         { "mixtral", { num_local_experts = 4, intermediate_size = 6, num_attention_heads = 2 }, nil,
            "model.config.num_attention_heads (2) must divide by the workers' tp (4)" },
         { "gemma2", { tie_word_embeddings = false }, nil,
            "model.config.tie_word_embeddings (false) must be true: Gemma2ForCausalLM has no head of its own" },
         { "gemma3", { checkpoint_vocab_size = 69 }, nil, "model.config.checkpoint_vocab_size (69) must be at least vocab_size (70)" },
         { "gemma3", tower { num_attention_heads = 2 }, nil,
            "model.config.vision_config.num_attention_heads (2) must divide by the workers' tp (4)" },
         { "gemma3", tower { image_size = 1 }, nil, "model.config.vision_config.image_size (1) must be at least its patch_size (2)" },
         { "gemma3", { vision_config = { hidden_size = 8 } }, nil,
            "model.config.vision_config.intermediate_size is missing: the family gemma3 needs it" },
         { "gemma3", tower { num_hidden_layers = 5000 }, nil,
            "model.config.vision_config.num_hidden_layers (5000) must be at most 4096" },
      }
      for _, case in ipairs(families) do
         it("says: " .. case[4], function()
            local checked, text = deployment.check({
               model = { family = case[1], config = config(case[2]) }, trainer = { mesh = { { "dp", 1 } } },
               worker = { mesh = { { "tp", 4 } }, expert_mesh = case[3] },
            })
            if checked then
               checked, text = models.describe(checked)
            end
            assert.is_nil(checked)
            assert.equal("deployment: " .. case[4], text)
         end)
      end

      it("has names of the language model alone only where there is more", function()
         local _, text = deployment.check({ model = { family = "gemma3", config = config(), naming = "text" },
            trainer = { mesh = { { "dp", 1 } } }, worker = { mesh = { { "tp", 1 } } } })
         assert.equal('deployment: model.naming ("text") is for the multimodal model, which has a vision_config', text)
      end)

      it("raises for a worker outside the mesh, at the caller", function()
         local description = describe_model({ family = "llama", config = config() }, { mesh = { { "tp", 2 } } })
         assert.has_error(function() description.live(2) end, "live: worker (2) must be an integer from 0 to 1")
      end)
   end)
end)
