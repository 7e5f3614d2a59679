--- Deployment files: what is read, and what every mistake in one is told.

local check = require "sluice.models.check"
local cjson = require "cjson"
local deployment = require "sluice.deployment"
local models = require "sluice.models"
local sizes = require "sluice.models.sizes"

-- "a, b and c", sorted: the keys of a table.
local function listed(set)
   local keys = {}
   for key in pairs(set) do
      keys[#keys + 1] = key
   end
   table.sort(keys)
   return check.listed(keys)
end

local SIZES, FAMILIES = listed(sizes), listed(models.families)

-- A good deployment, with `changes` put over its top keys.
local function plain(changes)
   local raw = {
      model = { size = "Qwen3-30B-A3B", layers = 2 },
      trainer = { mesh = { { "pp", 2 }, { "dp", 2 } }, expert_mesh = { { "pp", 2 }, { "ep", 2 } } },
      worker = { mesh = { { "dp", 2 }, { "tp", 4 } } },
   }
   for key, value in pairs(changes or {}) do
      raw[key] = value
   end
   return raw
end

local json = [==[{"model": {"size": "Llama-3-8B", "layers": 2}, "trainer": {"mesh": [["fsdp", 2], ["tp", 2]]},
   "worker": {"mesh": [["dp", 1], ["tp", 4]]}, "rules": null, "updates": 3}]==]

describe("deployment.check()", function()
   it("fills in every default", function()
      assert.same({
         model = { size = "Qwen3-30B-A3B", layers = 2, family = "qwen3_moe" },
         trainer = { mesh = { { "pp", 2 }, { "dp", 2 } }, expert_mesh = { { "pp", 2 }, { "ep", 2 } } },
         worker = { mesh = { { "dp", 2 }, { "tp", 4 } } },
         transport = "host", updates = 1, batches = 1, timeout_s = 60, timeouts = {}, host = {},
      }, deployment.check(plain()))
   end)

   it("keeps what is given", function()
      local changes = { rules = "qwen3_moe", transport = "nccl", road = "wire", no_sm = true, mix = true, grouped = true,
         staging_slots = 3, updates = 5, batches = 7, timeout_s = 0.5, timeouts = { connect = 3, update = 0.5 }, beat_s = 0.05,
         host = { finalizes_modules = true, quantization = "fp8", depth = 3 } }
      local checked = deployment.check(plain(changes))
      for key, value in pairs(changes) do
         assert.same(value, checked[key])
      end
   end)

   it("makes what it accepts again, also by way of JSON", function()
      local checked = deployment.check(plain({ rules = "qwen3_moe" }))
      assert.same(checked, deployment.check(checked))
      assert.same(checked, deployment.read(cjson.encode(checked), "again.json"))
   end)

   it("counts trainers and workers", function()
      assert.same({ 4, 8 }, { deployment.ranks(deployment.check(plain())) })
   end)

   local mesh = { mesh = { { "tp", 4 } } }
   local cases = {
      { "a value that is no table", 3, "the file gives 3; it must give a table with model, trainer and worker" },
      { "an unknown key", plain({ modle = {} }), 'the table has the unknown key "modle": did you mean model?' },
      { "an unknown key like no other", plain({ frobnication = 1 }), 'the table has the unknown key "frobnication"; known are model, '
         .. "trainer, worker, rules, transport, road, no_sm, mix, grouped, staging_slots, updates, batches, timeout_s, timeouts, beat_s and host" },
      { "a list item among the keys", plain({ [1] = "llama" }), "the table has the unknown key 1; known are model, "
         .. "trainer, worker, rules, transport, road, no_sm, mix, grouped, staging_slots, updates, batches, timeout_s, timeouts, beat_s and host" },
      { "no model", { trainer = mesh, worker = mesh }, "model is missing" },
      { "no trainer", { model = {}, worker = mesh }, "trainer is missing" },
      { "no worker", { model = {}, trainer = mesh }, "worker is missing" },
      { "a trainer that is a number", plain({ trainer = 4 }), "trainer (4) must be a table with some of the keys mesh and expert_mesh" },
      { "a trainer without mesh", plain({ trainer = {} }), "trainer.mesh is missing" },
      { "an unknown key of a worker", plain({ worker = { mesch = {} } }), 'worker has the unknown key "mesch": did you mean mesh?' },
      { "a mesh that is a text", plain({ worker = { mesh = "tp4" } }), 'worker.mesh ("tp4") must be a list of axes' },
      { "a mesh with names as keys", plain({ worker = { mesh = { tp = 4 } } }),
         "worker.mesh must be a plain list of axes, without holes or named keys" },
      { "an empty mesh", plain({ worker = { mesh = {} } }), "worker.mesh has 0 entries; it must have 1 to 8" },
      { "an axis that is a name alone", plain({ worker = { mesh = { "tp" } } }),
         'worker.mesh[1] ("tp") must be a pair of an axis name and a size, as {"tp", 2}' },
      { "an axis of three", plain({ worker = { mesh = { { "tp", 2, 3 } } } }),
         'worker.mesh[1] (a table) must be a pair of an axis name and a size, as {"tp", 2}' },
      { "an unknown axis", plain({ worker = { mesh = { { "fsdp", 2 } } } }),
         'worker.mesh[1][1] ("fsdp") must be one of dp, pp, tp and ep: did you mean dp?' },
      { "an axis twice", plain({ worker = { mesh = { { "tp", 2 }, { "tp", 2 } } } }),
         'worker.mesh[2][1] ("tp") names an axis that the mesh already has' },
      { "a size of 0", plain({ worker = { mesh = { { "dp", 2 }, { "tp", 0 } } } }), "worker.mesh[2][2] (0) must be at least 1" },
      { "a size of 1.5", plain({ worker = { mesh = { { "tp", 1.5 } } } }), "worker.mesh[1][2] (1.5) must be an integer" },
      { "a size that is a text", plain({ worker = { mesh = { { "tp", "4" } } } }), 'worker.mesh[1][2] ("4") must be an integer' },
      { "a size that is no number", plain({ worker = { mesh = { { "tp", 0 / 0 } } } }), "worker.mesh[1][2] (nan) must be an integer" },
      { "an infinite size", plain({ worker = { mesh = { { "tp", math.huge } } } }), "worker.mesh[1][2] (inf) must be an integer" },
      { "a mesh of too many ranks", plain({ worker = { mesh = { { "dp", 65536 }, { "tp", 65536 } } } }),
         "worker.mesh has more than 2147483647 ranks" },
      { "too many ranks together", plain({ trainer = { mesh = { { "dp", 2 ^ 30 } } }, worker = { mesh = { { "dp", 2 ^ 30 } } } }),
         "trainer.mesh and worker.mesh have more than 2147483647 ranks together" },
      { "meshes of different sizes", plain({ trainer = { mesh = { { "dp", 4 } }, expert_mesh = { { "ep", 3 } } } }),
         "trainer.expert_mesh has 3 ranks and trainer.mesh 4: both must cover the same ranks" },
      { "an expert mesh without experts", plain({ model = { size = "Llama-3-8B" } }),
         "trainer.expert_mesh is for models with experts; Llama-3-8B has none" },
      { "a transport that is a number", plain({ transport = 3 }), "transport (3) must be a non-empty string" },
      { "rules with a control character", plain({ rules = "a\nb" }), 'rules ("a\\10b") must hold no control characters' },
      { "rules that are empty", plain({ rules = "" }), 'rules ("") must be a non-empty string' },
      { "an unknown road", plain({ road = "maps" }), 'road ("maps") must be one of map, pull and ring: did you mean map?' },
      { "a no_sm that is a text", plain({ no_sm = "yes" }), 'no_sm ("yes") must be a boolean' },
      { "one staging slot", plain({ staging_slots = 1 }), "staging_slots (1) must be at least 2" },
      { "no updates", plain({ updates = 0 }), "updates (0) must be at least 1" },
      { "too many batches", plain({ batches = 2000000 }), "batches (2000000) must be at most 1000000" },
      { "a deadline that no engine takes", plain({ timeout_s = 86401 }), "timeout_s (86401) must be a number above 0 and at most 86400" },
      { "a no_sm that is a text", plain({ no_sm = "yes" }), 'no_sm ("yes") must be a boolean' },
      { "one staging slot", plain({ staging_slots = 1 }), "staging_slots (1) must be at least 2" },
      { "more staging slots than an engine takes", plain({ staging_slots = 1025 }), "staging_slots (1025) must be at most 1024" },
      { "a host's value that is no number", plain({ host = { x = 0 / 0 } }), "host.x (nan) must be a finite number" },
      { "a host's value without end", plain({ host = { x = -1 / 0 } }), "host.x (-inf) must be a finite number" },
      { "a deadline of 0", plain({ timeout_s = 0 }), "timeout_s (0) must be a number above 0 and at most 86400" },
      { "a deadline of one phase of 0", plain({ timeouts = { finish = 0 } }), "timeouts.finish (0) must be a number above 0 and at most 86400" },
      { "a deadline of no phase", plain({ timeouts = { conect = 1 } }), 'timeouts has the unknown key "conect": did you mean connect?' },
      { "deadlines that are a number", plain({ timeouts = 4 }), "timeouts (4) must be a table with some of the keys connect, agree, update, "
         .. "finish and shutdown" },
      { "a beat that no engine takes", plain({ beat_s = 0.01 }), "beat_s (0.01) must be a number from 0.05 to 3600" },
      { "a beat that is a text", plain({ beat_s = "1" }), 'beat_s ("1") must be a number from 0.05 to 3600' },
      { "a deadline that is no number", plain({ timeout_s = 0 / 0 }), "timeout_s (nan) must be a number above 0 and at most 86400" },
      { "a host that is a text", plain({ host = "x" }), 'host ("x") must be a table' },
      { "a host with a list", plain({ host = { axes = {} } }), "host.axes (a table) must be a string, a number or a boolean" },
      { "a host with a number as key", plain({ host = { "x" } }), "host has the key 1; keys must be names" },
      { "a model that is a name", plain({ model = "llama" }),
         'model ("llama") must be a table with some of the keys family, size, layers, config, checkpoint, experts, dtype, live_experts, naming, mtp, '
         .. 'live_qkv and mm_encoder_tp_mode' },
      { "a model without size or family", plain({ model = {} }), "model must name a size (one of " .. SIZES
         .. ") or a family with a config" },
      { "an unknown size", plain({ model = { size = "Llama-3-9B" } }), 'model.size ("Llama-3-9B") must be one of ' .. SIZES
         .. ": did you mean Llama-3-8B?" },
      { "an unknown family", plain({ model = { family = "lama" } }),
         'model.family ("lama") must be one of ' .. FAMILIES .. ": did you mean llama?" },
      { "a size of another family", plain({ model = { size = "Qwen3-8B", family = "llama" } }),
         'model.size ("Qwen3-8B") is of the family qwen3, not llama' },
      { "a family without numbers", plain({ model = { family = "llama" } }), "model.config.num_hidden_layers is missing: the family llama needs it" },
      { "an unknown key of config", plain({ model = { size = "Qwen3-8B", config = { hiden_size = 3 } } }),
         'model.config has the unknown key "hiden_size": did you mean hidden_size?' },
      { "a key of another family", plain({ model = { size = "Qwen3-8B", config = { num_experts = 3 } } }),
         'model.config has the unknown key "num_experts"; known are num_hidden_layers, hidden_size, intermediate_size, num_attention_heads, '
         .. "num_key_value_heads, head_dim, vocab_size, tie_word_embeddings, announce_tied and attention_bias" },
      { "a config number of 0", plain({ model = { size = "Qwen3-8B", config = { hidden_size = 0 } } }),
         "model.config.hidden_size (0) must be at least 1" },
      { "too many layers in config", plain({ model = { size = "Qwen3-8B", config = { num_hidden_layers = 5000 } } }),
         "model.config.num_hidden_layers (5000) must be at most 4096" },
      { "a flag that is a number", plain({ model = { size = "Qwen3-8B", config = { tie_word_embeddings = 1 } } }),
         "model.config.tie_word_embeddings (1) must be true or false" },
      { "a dense layer that is none", plain({ model = { size = "Qwen3-30B-A3B", config = { mlp_only_layers = { 3, 48 } } } }),
         "model.config.mlp_only_layers[2] (48) must be at most 47" },
      { "more layers than there are", plain({ model = { size = "Qwen3-8B", layers = 37 } }), "model.layers (37) must be at most 36" },
      { "heads that no group divides", plain({ model = { size = "Qwen3-8B", config = { num_key_value_heads = 5 } } }),
         "model.config.num_attention_heads (32) must divide by num_key_value_heads (5)" },
      { "an announced head that is not tied", plain({ model = { size = "Qwen3-8B", config = { announce_tied = true } } }),
         "model.config.announce_tied (true) is for tie_word_embeddings = true" },
      { "an unknown dtype", plain({ model = { size = "Qwen3-8B", dtype = "bf16" } }),
         'model.dtype ("bf16") must be one of bfloat16, float16 and float32' },
      { "packed experts of a model without", plain({ model = { size = "Qwen3-8B", experts = "packed" } }),
         'model.experts ("packed") is no choice of the family qwen3' },
      { "an unknown form of experts", plain({ model = { size = "Qwen3-30B-A3B", experts = "pakced" } }),
         'model.experts ("pakced") must be one of single and packed: did you mean packed?' },
      { "a checkpoint that is no path", plain({ model = { family = "bert", checkpoint = "" } }),
         'model.checkpoint ("") must be a non-empty string' },
   }
   for _, case in ipairs(cases) do
      it("refuses " .. case[1], function()
         local checked, text = deployment.check(case[2])
         assert.is_nil(checked)
         assert.equal("deployment: " .. case[3], (text:gsub("%-nan", "nan")))
      end)
   end
end)

describe("deployment.read()", function()
   it("reads JSON, null as a key that is not given", function()
      local checked = assert(deployment.read(json, "a.json"))
      assert.is_nil(checked.rules)
      assert.equal(3, checked.updates)
      assert.same({ { "fsdp", 2 }, { "tp", 2 } }, checked.trainer.mesh)
   end)

   it("puts settings over what the file says", function()
      local checked = assert(deployment.read(json, "a.json", {
         "updates=5", "model.layers=null", "model.checkpoint=build/minilm", "model.config.vocab_size=1000", "worker.mesh.2.2=8", "rules=llama",
         'worker.mesh.1=["dp",3]',
      }))
      assert.equal(5, checked.updates)
      assert.is_nil(checked.model.layers)
      assert.equal("build/minilm", checked.model.checkpoint)
      assert.equal(1000, checked.model.config.vocab_size)
      assert.same({ { "dp", 3 }, { "tp", 8 } }, checked.worker.mesh)
      assert.equal("llama", checked.rules)
   end)

   local bad_settings = {
      { "updates", 'the setting "updates" must read key.key=value' },
      { "=3", 'the setting "=3" must read key.key=value' },
      { "updates.x=3", 'the setting "updates.x=3" goes through updates, which is no table' },
      { "update=3", 'the table has the unknown key "update": did you mean updates?' },
      { "worker.mesh.2.2=0", "worker.mesh[2][2] (0) must be at least 1" },
      { "worker.mesh.4.1=tp", "worker.mesh must be a plain list of axes, without holes or named keys" },
   }
   for _, case in ipairs(bad_settings) do
      it(("refuses the setting %s"):format(case[1]), function()
         local checked, text = deployment.read(json, "a.json", { case[1] })
         assert.is_nil(checked)
         assert.equal("deployment: " .. case[2], text)
      end)
   end

   it("says where JSON is broken", function()
      local _, text = deployment.read('{"model": }', "a.json")
      assert.equal("deployment: a.json is not JSON: Expected value but found T_OBJ_END at character 11", text)
      _, text = deployment.read('{"updates": 1}\0{"updates": 2}', "a.json")
      assert.equal("deployment: a.json is not JSON: a zero byte at character 15", text)
   end)

   it("refuses a key that an object of JSON has twice, however it is written", function()
      for _, text in ipairs({ '{"updates": 1, "updates": 2}', [[{"updates": 1, "upd\u0061tes": 2}]],
         '{"model": {"config": {"updates": [{"a": ","}], "updates": 1}}}', [==[{"a": "\\\"", "updates": {}, "updates"  : [] }]==] }) do
         local _, problem = deployment.read(text, "a.json")
         assert.equal('deployment: a.json has the key "updates" twice in one object', problem, text)
      end
      assert(deployment.read([==[{"model": {"size": "all-MiniLM-L6-v2"}, "trainer": {"mesh": [["tp", 1]]}, "worker": {"mesh": [["tp", 1]]},
         "host": {"mesh": "mesh", "tp": "a\":", "a": "{\"a\": 1, \"a\": 2}"}}]==], "a.json"))
   end)

   it("refuses JSON that nests without end, and numbers that are none", function()
      local _, text = deployment.read('{"model":' .. ("["):rep(100000), "a.json")
      assert.equal("deployment: a.json is not JSON: Found too many nested data structures (17) at character 25", text)
      _, text = deployment.read('{"updates": nan}', "a.json")
      assert.equal("deployment: a.json is not JSON: Expected value but found invalid token at character 13", text)
   end)

   it("refuses a text of more than a megabyte", function()
      local _, text = deployment.read(("x"):rep(1048577), "a.lua")
      assert.equal("deployment: a.lua (1048577 bytes) must be a text of at most 1048576 bytes", text)
   end)

   -- Lua files run in the library's own state: the sandbox lives there.
   describe("with a Lua file", function()
      local state

      setup(function()
         state = require("spec.support.script").new()
      end)

      -- Reads `text` there; the result as JSON, or nil and the error.
      local function read(text, chunkname)
         local outcome = assert(state:evaluate(([[
            local deployment, models, cjson = require "sluice.deployment", require "sluice.models", require "cjson"
            local checked, text = deployment.read(%q, %q)
            local description
            if checked then
               description, text = models.describe(checked)
            end
            local info = description and cjson.encode(deployment.init_info(description, checked, "127.0.0.1", 29500))
            return cjson.encode({ checked = checked, text = text, title = description and description.title, info = info })
         ]]):format(text, chunkname)))
         return cjson.decode(outcome)
      end

      it("runs it and checks what it returns", function()
         local outcome = read([[
            local tp = 2
            return { model = { size = "Llama-3-8B" }, trainer = { mesh = { { "tp", tp } } }, worker = { mesh = { { "tp", 2 * tp } } } }
         ]], "a.lua")
         assert.is_nil(outcome.text)
         assert.same({ { "tp", 4 } }, outcome.checked.worker.mesh)
      end)

      local cases = {
         { "that does not parse", "return {", "deployment: a.lua:1: unexpected symbol near '<eof>'" },
         { "that raises", "\nerror('no')", "deployment: a.lua:2: no" },
         { "that returns nothing", "local x = 1", "deployment: a.lua returns nothing; it must return a table" },
         { "that is a rule file", "local tp = axes.tp\nreturn { rules = { } }",
           "deployment: a.lua:1: unknown name 'axes'; it reads like a rule file" },
         { "that returns a function", "return function() end", "deployment: the file gives a function; it must give a table with model, "
            .. "trainer and worker" },
         { "that reaches for os", "return os.getenv('HOME')", "deployment: a.lua:1: unknown name 'os'" },
      }
      for _, case in ipairs(cases) do
         it("refuses one " .. case[1], function()
            assert.equal(case[3], read(case[2], "a.lua").text)
         end)
      end

      it("ends one that loops", function()
         assert.truthy(read("while true do end", "a.lua").text:find("^deployment: a%.lua"))
      end)

      for name, title in pairs({
         ["minilm"] = "all-MiniLM-L6-v2", ["minilm-full"] = "all-MiniLM-L6-v2", ["llama3-8b"] = "Llama-3-8B (2 of 32 layers)",
         ["qwen3-8b"] = "Qwen3-8B (2 of 36 layers)", ["qwen3-30b-a3b"] = "Qwen3-30B-A3B (2 of 48 layers)",
         ["qwen3-235b"] = "Qwen3-235B-A22B", ["deepseek-v3"] = "DeepSeek-V3", ["deepseek-v3-bf16"] = "DeepSeek-V3-bf16",
         ["mixtral-8x7b"] = "Mixtral-8x7B (1 of 32 layers)",
      }) do
         it(("accepts examples/deployments/%s.lua, and its init info"):format(name), function()
            local path = ("examples/deployments/%s.lua"):format(name)
            local file = assert(io.open(path))
            local outcome = read(file:read("*a"), path)
            file:close()
            assert.is_nil(outcome.text)
            assert.equal(title, outcome.title)
            local read_back = state:read_init_info(assert(state:seal(outcome.info)))
            assert.is_true(read_back.ok, read_back.text)
         end)
      end
   end)
end)

describe("deployment.init_info()", function()
   it("says the world in the general form", function()
      local checked = assert(deployment.read(json, "a.json"))
      local info = deployment.init_info(assert(models.describe(checked)), checked, "127.0.0.1", 29500)
      assert.equal("sluice/1", info.schema)
      assert.same({ "127.0.0.1", 29500, 4, 8 }, { info.master_address, info.master_port, info.rank_offset, info.world_size })
      assert.same({ { name = "dense", axes = { { "fsdp", 2 }, { "tp", 2 } } } }, info.src_meshes)
      assert.same({ { name = "dense", axes = { { "dp", 1 }, { "tp", 4 } } } }, info.dst_meshes)
      assert.same({
         name = "model.layers.0.self_attn.o_proj.weight", dtype_name = "bfloat16", shape = { 4096, 4096 }, src_mesh = "dense",
         src_placements = { { axis = "tp", shard = 1 }, { axis = "fsdp", shard = 0 } },
      }, info.params[5])
      assert.equal(21, #info.params)
   end)

   it("writes a parameter that every trainer holds whole as null", function()
      local checked = assert(deployment.read(json, "a.json", { 'trainer.mesh=[["dp",2]]' }))
      local info = deployment.init_info(assert(models.describe(checked)), checked, "::1", 1)
      assert.equal(cjson.null, info.params[1].src_placements)
   end)
end)

describe("deployment.host()", function()
   it("puts the deployment's own keys over the model's", function()
      local checked = assert(deployment.check(plain({ host = { finalizes_modules = true, extra = "x" } })))
      local description = assert(models.describe(checked))
      assert.same({
         architecture = "Qwen3MoeForCausalLM", pipeline_parallel_size = 1, tensor_parallel_size = 4, moe_tensor_parallel_size = 4,
         pipeline_layers = { 2 }, num_hidden_layers = 2, num_attention_heads = 32, num_key_value_heads = 4, head_dim = 128,
         hidden_size = 2048, intermediate_size = 6144, moe_intermediate_size = 768, num_experts = 128, vocab_size = 151936,
         padded_vocab_size = 151936, tie_word_embeddings = false, finalizes_modules = true, extra = "x",
      }, deployment.host(description, checked))
      assert.is_false(description.host.finalizes_modules)
   end)
end)
