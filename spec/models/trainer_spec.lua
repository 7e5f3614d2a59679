--- How trainers lay parameters out, by the names of their axes.

local deployment = require "sluice.deployment"
local models = require "sluice.models"
local tiny = require "spec.models.tiny"

local config, describe_model = tiny.config, tiny.describe

describe("a trainer's layout", function()
   local function placements(model, trainer)
      local description = describe_model(model, { mesh = { { "tp", 1 } } }, trainer)
      local by_name = {}
      for _, param in ipairs(description.params) do
         by_name[param.name] = { param.src_mesh, param.src_placements }
      end
      return by_name, description
   end

   local function shard(axis, dim, split)
      return { axis = axis, shard = dim, split = split }
   end

   local function pin(axis, coordinate)
      return { axis = axis, pin = coordinate }
   end

   it("cuts columns and rows by tp, and dim 0 of each piece by fsdp", function()
      local by_name = placements({ family = "qwen3", config = config() }, { mesh = { { "dp", 2 }, { "fsdp", 3 }, { "cp", 2 }, { "tp", 2 } } })
      local layer = "model.layers.1."
      local column, row, whole = { shard("tp", 0), shard("fsdp", 0) }, { shard("tp", 1), shard("fsdp", 0) }, { shard("fsdp", 0) }
      for _, case in ipairs({
         { "model.embed_tokens.weight", column }, { "lm_head.weight", column }, { "model.norm.weight", whole },
         { layer .. "self_attn.q_proj.weight", column }, { layer .. "self_attn.k_proj.weight", column },
         { layer .. "self_attn.o_proj.weight", row }, { layer .. "self_attn.q_norm.weight", whole },
         { layer .. "mlp.gate_proj.weight", column }, { layer .. "mlp.up_proj.weight", column },
         { layer .. "mlp.down_proj.weight", row }, { layer .. "input_layernorm.weight", whole },
      }) do
         assert.same({ "dense", case[2] }, by_name[case[1]])
      end
   end)

   it("leaves out axes of size 1", function()
      local by_name = placements({ family = "llama", config = config() }, { mesh = { { "pp", 1 }, { "fsdp", 1 }, { "tp", 1 } } })
      assert.same({ "dense", {} }, by_name["model.layers.0.self_attn.q_proj.weight"])
   end)

   it("pins layers to pipeline stages in blocks of ceil(layers / pp), the ends to the first and the last", function()
      local by_name = placements({ size = "Qwen3-32B", layers = 10 }, { mesh = { { "pp", 4 } } })
      local stages = {}
      for layer = 0, 9 do
         stages[layer + 1] = by_name[("model.layers.%d.mlp.up_proj.weight"):format(layer)][2][1].pin
      end
      assert.same({ 0, 0, 0, 1, 1, 1, 2, 2, 2, 3 }, stages)
      assert.same({ pin("pp", 0) }, by_name["model.embed_tokens.weight"][2])
      assert.same({ pin("pp", 3) }, by_name["model.norm.weight"][2])
      assert.same({ pin("pp", 3) }, by_name["lm_head.weight"][2])
   end)

   local experts = config({ num_experts = 10, moe_intermediate_size = 8 })

   it("pins each expert to its ep coordinate on the expert mesh, the first ones hold one more", function()
      local by_name, description = placements({ family = "qwen3_moe", config = experts },
         { mesh = { { "pp", 2 }, { "dp", 2 }, { "tp", 2 } }, expert_mesh = { { "pp", 2 }, { "ep", 4 } } })
      local owners = {}
      for e = 0, 9 do
         local found = by_name[("model.layers.1.mlp.experts.%d.up_proj.weight"):format(e)]
         assert.equal("expert", found[1])
         assert.same({ pin("pp", 1), found[2][2] }, found[2])
         owners[e + 1] = found[2][2].pin
      end
      assert.same({ 0, 0, 0, 1, 1, 1, 2, 2, 3, 3 }, owners)
      assert.same({ "dense", { shard("tp", 0), pin("pp", 1) } }, by_name["model.layers.1.self_attn.q_proj.weight"])
      assert.same({ "dense", { pin("pp", 1) } }, by_name["model.layers.1.mlp.gate.weight"])
      assert.same({ { name = "dense", axes = { { "pp", 2 }, { "dp", 2 }, { "tp", 2 } } },
         { name = "expert", axes = { { "pp", 2 }, { "ep", 4 } } } }, description.src_meshes)
   end)

   it("cuts packed experts over ep in balanced pieces, and over tp and fsdp inside them", function()
      local by_name = placements({ family = "qwen3_moe", config = experts, experts = "packed" },
         { mesh = { { "fsdp", 16 } }, expert_mesh = { { "ep", 4 }, { "fsdp", 2 }, { "tp", 2 } } })
      assert.same({ "expert", { shard("ep", 0, "balanced"), shard("tp", 1), shard("fsdp", 0) } },
         by_name["model.layers.0.mlp.experts.gate_up_proj"])
      assert.same({ "expert", { shard("ep", 0, "balanced"), shard("tp", 2), shard("fsdp", 0) } },
         by_name["model.layers.0.mlp.experts.down_proj"])
   end)

   it("lays experts out as all else where there is no expert mesh", function()
      local by_name = placements({ family = "qwen3_moe", config = experts }, { mesh = { { "ep", 2 }, { "fsdp", 2 }, { "tp", 2 } } })
      assert.same({ "dense", { shard("tp", 1), shard("fsdp", 0), pin("ep", 1) } },
         by_name["model.layers.0.mlp.experts.5.down_proj.weight"])
      assert.same({ "dense", { shard("tp", 1), shard("fsdp", 0) } }, by_name["model.layers.0.self_attn.o_proj.weight"])
   end)

   it("refuses two meshes with different numbers of pipeline stages", function()
      local _, text = models.describe(assert(deployment.check({
         model = { family = "qwen3_moe", config = experts }, worker = { mesh = { { "tp", 1 } } },
         trainer = { mesh = { { "pp", 4 }, { "tp", 2 } }, expert_mesh = { { "pp", 2 }, { "ep", 4 } } },
      })))
      assert.equal("deployment: trainer.expert_mesh has 2 pp stages and trainer.mesh 4: both pin the same layers", text)
   end)
end)
