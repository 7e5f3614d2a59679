--- examples/rules/template.lua: every word stands in it, and it does what its comments say.

local files = require "scripts.files"
local resolving = require "spec.support.resolving"
local script = require "spec.support.script"

local HOST = {
   num_attention_heads = 4, num_key_value_heads = 1, head_dim = 2, hidden_size = 8, intermediate_size = 16, num_experts = 4, vocab_size = 10,
   num_hidden_layers = 1, quantization = "fp8",
}
local FP8 = "float8_e4m3fn"

local PARAMS = {
   { "h.0.attn.q.weight", 8, 8 }, { "h.0.attn.k.weight", 2, 8 }, { "h.0.attn.v.weight", 2, 8 }, { "h.0.attn.o.weight", 8, 8 },
   { "h.0.attn.rope.weight", 8, 8 }, { "h.0.attn.qk.weight", 16, 8 }, { "h.0.mlp.gate_up.weight", 32, 8 },
   { "h.0.mlp.down.weight", 8, 16, dtype = FP8 },
   { "h.0.mlp.down.weight_scale_inv", 1, 2, dtype = "float32" }, { "h.0.mlp.router.weight", 4, 8 },
   { "h.0.mlp.experts.0.up.weight", 4, 8 }, { "h.0.mlp.experts.1.up.weight", 4, 8 }, { "h.0.mlp.experts.2.up.weight", 4, 8 },
   { "h.0.mlp.experts.3.up.weight", 4, 8 }, { "h.0.mlp.experts.down", 4, 4, 8 }, { "h.0.mlp.experts.down_bias", 4, 8 },
   { "h.0.input_layernorm.weight", 8 }, { "norm.weight", 8 }, { "embed_tokens.weight", 10, 8 }, { "score.weight", 10, 8 },
   { "readout.weight", 10, 8 }, { "h.0.attn.lora_A.weight", 2, 8 }, { "tower.conv.weight", 3, 3 },
}

local LIVE = {
   { "layers.0.self_attn.qkv_proj.weight", 8, 8 }, { "layers.0.self_attn.o.weight", 8, 4 }, { "layers.0.self_attn.o.bias", 8 },
   { "layers.0.self_attn.rope.weight", 8, 8 }, { "layers.0.self_attn.qk.weight", 8, 8 },
   { "layers.0.mlp.gate_up.weight", 16, 8 }, { "layers.0.mlp.down.weight", 8, 8, dtype = FP8 },
   { "layers.0.mlp.down.weight_scale_inv", 1, 1, dtype = "float32" }, { "layers.0.mlp.router.weight", 4, 8 },
   { "layers.0.mlp.experts.w13", 2, 2, 8 }, { "layers.0.mlp.experts.w2", 2, 8, 2 }, { "layers.0.mlp.experts.w2_bias", 2, 8 },
   { "layers.0.input_layernorm.weight", 8 }, { "norm.weight", 8 }, { "embed_tokens.weight", 32, 8 }, { "score.weight", 32, 8 },
   { "rotary.cos_cached", 4 }, { "tower.folded.weight", 9 },
}

local function tensors(list, prefix)
   local made = {}
   for i, item in ipairs(list) do
      made[i] = { name = prefix .. item[1], dtype = item.dtype, shape = { unpack(item, 2) } }
   end
   return made
end

local function resolve()
   return resolving.resolve({
      axes = { { "dp", 2 }, { "tp", 2 } }, meshes = { { name = "expert", axes = { { "ep", 2 }, { "tp", 2 } } } }, host = HOST,
      params = tensors(PARAMS, "_fsdp_wrapped_module.transformer."), live = tensors(LIVE, "model."), rules = "examples/rules/template.lua",
   })
end

describe("examples/rules/template.lua", function()
   it("places every parameter and fills every live byte on every worker", function()
      local got = resolve()
      assert.equal("", got.text)
      local modes = {}
      for name, param in pairs(got.by) do
         modes[param.mode] = (modes[param.mode] or 0) + 1
         assert.is_truthy(param.where:find("%.lua:%d+$"), name)
      end
      assert.same({ direct = #PARAMS - 3, alias = 1, skip = 1, full = 1 }, modes)
      for worker = 1, 4 do
         local coverage, problem = script.cover(got.plan, got.live, worker, got.resolved)
         assert.is_nil(problem)
         assert.equal(2, tonumber(coverage.nuncovered)) -- what is unsourced, and what the loader writes
      end
      assert.same({ "model.rotary.cos_cached" }, got.unsourced)
   end)

   it("gives zeros where its comments say so", function()
      local got = resolve()
      local function line(name)
         return got.by["_fsdp_wrapped_module.transformer.h.0." .. name].line:gsub(", because.*", "")
      end
      assert.equal("direct [0:8, 0:8] -> 'model.layers.0.self_attn.o.weight' [:, :] (tp:1); zeros -> 'model.layers.0.self_attn.o.bias' [] ()",
         line "attn.o.weight")
      assert.equal("direct [0:4, 0:8] -> 'model.layers.0.mlp.experts.w2_bias' [:, :] (ep:0 balanced, tp:0 chunk 4) of 'expert' else zeros",
         line "mlp.experts.down_bias")
   end)

   it("has every word and every key, and so has lua/README.md", function()
      local state = script.new()
      local listed = assert(state:evaluate([[
         local names = {}
         for name in pairs(require("sluice.words").environment({}, {}, { names = {}, kinds = {} })) do names[#names + 1] = name end
         for _, module in ipairs({ "sluice.rule_file", "sluice.rule_body" }) do
            for key in pairs(require(module).keys) do names[#names + 1] = key end
         end
         return table.concat(names, " ")
      ]]))
      local template, readme = assert(files.read("examples/rules/template.lua")), assert(files.read("lua/README.md"))
      local count = 0
      for name in listed:gmatch("%S+") do
         count = count + 1
         assert.truthy(template:find("%f[%w_]" .. name .. "%f[^%w_]"), "the template lacks " .. name)
         assert.truthy(readme:find("`[^`\n]*%f[%w_]" .. name .. "%f[^%w_][^`\n]*`"), "lua/README.md lacks " .. name)
      end
      assert.is_true(count > 40, tostring(count))
   end)
end)
