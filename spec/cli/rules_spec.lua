-- Runs under rule files: right ones verify, with load_weights where something is full; wrong ones that are safe move the
-- wrong bytes and are caught; wrong ones that are not safe never start.

local cjson = require "cjson"
local ffi = require "ffi"
local ports = require "spec.support.ports"
local program = require "spec.cli.program"

local function run(rules, ...)
   local path = rules:find("\n") and program.file(rules, ".lua") or rules
   return program.run({ "run", program.deployment({ rules = path }), "--json", ... }), path
end

local verified = program.verified

describe("a run under rules", function()
   after_each(program.cleanup)

   it("of the model's family places everything directly", function()
      local object = verified((run("llama")))
      assert.same({ 21, 0, 404096 }, { object.parameters_direct, object.parameters_full, object.bytes_direct })
      assert.equal(object.coverage.live_bytes, object.coverage.written_bytes + object.coverage.padded_bytes)
      assert.same({}, object.coverage.uncovered)
      -- Four workers, each live byte once; the padded rows of the vocabulary come from nobody.
      assert.equal(object.bytes_verified - 2 * 2 * 2 * 24 * 64 * 2, object.bytes_received)
   end)

   local family_config = { num_hidden_layers = 3, hidden_size = 64, intermediate_size = 128, num_attention_heads = 4, vocab_size = 100 }
   local function with(more)
      local copy = {}
      for _, from in ipairs({ family_config, more }) do
         for key, value in pairs(from) do
            copy[key] = value
         end
      end
      return copy
   end
   local models = {
      { "llama with biases", "llama", { family = "llama", config = with({ num_key_value_heads = 2, attention_bias = true }) },
         { { "tp", 2 } } },
      { "a served pipeline of bert", "bert", { family = "bert", config = with({ max_position_embeddings = 8, type_vocab_size = 2 }) },
         { { "pp", 2 }, { "tp", 2 } } },
      { "experts one level deeper", "qwen3_moe", { family = "qwen3_moe", live_experts = "experts.routed_experts",
         config = with({ num_key_value_heads = 2, head_dim = 16, num_experts = 4, moe_intermediate_size = 32 }) }, { { "tp", 2 } } },
      { "weights in fp8 with their scales, a drafting layer", "deepseek_v3", { family = "deepseek_v3", mtp = "served", config = with({
         n_routed_experts = 5, n_shared_experts = 1, moe_intermediate_size = 32, first_k_dense_replace = 1, q_lora_rank = 24,
         kv_lora_rank = 20, qk_nope_head_dim = 16, qk_rope_head_dim = 8, v_head_dim = 16, num_nextn_predict_layers = 1,
         quantization_config = { quant_method = "fp8", weight_block_size = { 8, 8 } } }) }, { { "pp", 2 }, { "tp", 2 } } },
      { "experts of units that do not divide", "gpt_oss", { family = "gpt_oss", config = with({ num_key_value_heads = 2,
         intermediate_size = 9, num_local_experts = 4 }) }, { { "tp", 4 } } },
      { "a vision tower that is fused in the checkpoint, too", "qwen2_5_vl", { family = "qwen2_5_vl", config = with({
         num_key_value_heads = 2, vision_config = { depth = 1, hidden_size = 32, intermediate_size = 40, num_heads = 4,
            out_hidden_size = 64, patch_size = 2, temporal_patch_size = 2, spatial_merge_size = 2 } }) }, { { "pp", 2 }, { "tp", 2 } } },
   }
   for _, case in ipairs(models) do
      it("of the family places everything directly: " .. case[1], function()
         local path = program.deployment({ model = case[3], rules = case[2], worker = { mesh = case[4] } })
         local object = verified(program.run({ "run", path, "--json" }))
         assert.equal(0, object.parameters_full)
      end)
   end

   it("that leave parameters full verifies what load_weights wrote", function()
      local object = verified((run([[
return {
   name = "partly-full", extends = "llama",
   rules = {
      rule "model.layers.{l}.self_attn.{m=q_proj|k_proj|v_proj}.weight" {
         full = "the host fuses them itself", into = "model.layers.{l}.self_attn.qkv_proj.weight" },
      rule "model.embed_tokens.weight" { full = "the host pads it itself" },
      rule "**.{n=input_layernorm|post_attention_layernorm}.weight" { full = "the host loads its norms" },
   },
}
]], "--batches", "3", "--updates", "3")))
      assert.equal(11, object.parameters_full)
      assert.equal(10, object.parameters_direct)
   end)

   it("that put k where v belongs is caught, with both places", function()
      local result = run([[
return {
   name = "swapped", extends = "llama",
   rules = {
      rule "model.layers.{l}.self_attn.k_proj.weight" { into = "model.layers.{l}.self_attn.qkv_proj.weight", at = span(0, 48, 16), layout = column },
      rule "model.layers.{l}.self_attn.v_proj.weight" { into = "model.layers.{l}.self_attn.qkv_proj.weight", at = span(0, 32, 16), layout = column },
   },
}
]])
      assert.equal(1, result.code, result.err)
      local object = cjson.decode(result.out)
      assert.is_false(object.verified)
      assert.truthy(object.error:match('^worker %d %(rank %d%): verify: update 1: "model.layers.0.self_attn.qkv_proj.weight" %[32, 0%] holds '
         .. '[%x ]+ where "model.layers.0.self_attn.k_proj.weight" %[%d+, 0%] has [%x ]+ %(2 of 15 live tensors differ%)'), object.error)
      assert.same({}, result.left)
   end)

   it("with a misspelt key says the file and the line, before any rank starts", function()
      local result, path = run([[
return {
   name = "misspelt", extends = "llama",
   rules = {
      rule "model.norm.weight" { layuot = replicate },
   },
}
]])
      assert.equal(2, result.code)
      assert.truthy(result.err:find(path:match("[^/]+$") .. ":4", 1, true), result.err)
      assert.truthy(result.err:find("layuot", 1, true), result.err)
      assert.is_nil(result.err:find("rank", 1, true))
   end)

   it("that leave live bytes unwritten names the tensor", function()
      local result = run([[
return { name = "forgetful", extends = "llama",
   rules = { rule "model.norm.weight" { skip = "not today" } } }
]])
      assert.equal(2, result.code)
      assert.truthy(result.err:find("sluice: destination: live tensor 'model.norm.weight' [64]: nothing writes 128 of its", 1, true), result.err)
      result = run([[
return { name = "more forgetful", extends = "llama",
   rules = { rule "model.{n=norm|layers.0.input_layernorm|layers.0.post_attention_layernorm}.weight" { skip = "not today" } } }
]])
      assert.truthy(result.err:find("list it under unsourced (the first of 3 such tensors)\n", 1, true), result.err)
   end)

   it("that do not exist is an error with their name", function()
      local result = run("/nowhere/rules.lua")
      assert.equal(2, result.code)
      assert.truthy(result.err:find("/nowhere/rules.lua", 1, true), result.err)
   end)

   it("are looked for beside the deployment first", function()
      local path = program.file("return { name = 'beside', extends = 'llama', rules = {} }\n", ".lua")
      local result = run("./" .. path:match("[^/]+$"))
      verified(result)
   end)

   it("that fail only in a rank end that rank's run with exit code 2, too", function()
      local path = program.deployment({ rules = "/nowhere/rules.lua", trainer = { mesh = { { "tp", 1 } } }, worker = { mesh = { { "tp", 1 } } } })
      local environment = { WORLD_SIZE = "2", MASTER_ADDR = "127.0.0.1", MASTER_PORT = tostring(ports.hold()) }
      local processes = {}
      for rank = 0, 1 do
         environment.RANK = tostring(rank)
         processes[rank] = program.start({ "rank", path }, environment)
      end
      local worker, trainer = processes[1]:finish(30), processes[0]:finish(30)
      assert.equal(2, worker.code, worker.err)
      assert.truthy(worker.err:find("/nowhere/rules.lua", 1, true), worker.err)
      assert.truthy(trainer.code == 1 or trainer.code == 2, trainer.err)
      assert.truthy(trainer.err:find("/nowhere/rules.lua", 1, true), trainer.err)
   end)
end)

describe("sluice plan", function()
   after_each(program.cleanup)

   it("plans a worker without moving anything", function()
      local mine = ffi.new("char[?]", 3e8) -- no memory of the program's
      ffi.fill(mine, 3e8, 1)
      local result = program.run({ "plan", program.deployment({ rules = "llama" }), "--rank", "4", "--json" })
      local object = program.json(result)
      assert.equal(0, result.code)
      assert.same({ 4, "worker 1", 21, 404096 }, { object.rank, object.role, object.direct.parameters, object.direct.bytes })
      assert.equal(object.coverage.live_bytes, object.program.bytes + object.coverage.padded_bytes)
      for _, step in ipairs({ "init_info", "live", "resolve", "check", "compile", "planning", "describe" }) do
         assert.equal("number", type(object.seconds[step]), step)
      end
      assert.is_true(object.peak_bytes > 1e6 and object.peak_bytes < ffi.sizeof(mine), object.peak_bytes)
   end)

   it("plans trainers so that together they send what the workers receive", function()
      local path, sent, received = program.deployment({ rules = "llama" }), 0, 0
      for rank = 0, 6 do
         local bytes = program.json(program.run({ "plan", path, "--rank", tostring(rank), "--json" })).program.bytes
         if rank < 3 then
            sent = sent + bytes
         else
            received = received + bytes
         end
      end
      assert.equal(received, sent)
   end)

   it("refuses a rank outside the world", function()
      local result = program.run({ "plan", program.deployment(), "--rank", "7" })
      assert.equal(2, result.code)
      assert.equal("sluice: plan: --rank 7 must be below the world size 7\n", result.err)
   end)

   it("prints one screen for people", function()
      local result = program.run({ "plan", program.deployment({ rules = "llama" }) })
      assert.truthy(result.out:find("^llama: 3 trainers to 4 workers, plan of rank 3 %(worker 0%)\n"), result.out)
      for _, name in ipairs({ "direct", "full", "alias", "skip", "live", "program", "seconds", "memory" }) do
         assert.truthy(result.out:find("\n" .. name .. " "), name)
      end
   end)
end)

describe("the real checkpoint", function()
   local folder = os.getenv("SLUICE_MINILM") or "build/minilm"
   local file = io.open(folder .. "/model.safetensors")

   local function case(name, body)
      it(name, file and body or function()
         pending("there is no checkpoint in " .. folder .. "; scripts/fetch-minilm gets it")
      end)
   end

   local function run_minilm(name)
      return program.json(program.run({ "run", "examples/deployments/" .. name .. ".lua", "--json", "--set", "model.checkpoint=" .. folder }))
   end

   case("goes directly from 3 FSDP trainers to 8 workers, 3 times", function()
      local object = run_minilm("minilm")
      assert.same({ true, 3, 3, 8, 0 }, { object.verified, object.updates, object.trainers, object.workers, object.parameters_full })
   end)

   case("goes through load_weights where its rules say so", function()
      local object = run_minilm("minilm-full")
      assert.is_true(object.verified)
      assert.is_true(object.parameters_full > 0 and object.parameters_direct > 0)
   end)

   if file then
      file:close()
   end
end)
