--- Scales that come beside quantized weights: they go as their weight's rule says, counted in blocks.

local resolving = require "spec.support.resolving"
local script = require "spec.support.script"

local FP8 = "float8_e4m3fn"

local function weight(name, ...)
   return { name = name, shape = { ... }, dtype = FP8 }
end

local function scale(name, ...)
   return { name = name .. "_scale_inv", shape = { ... }, dtype = "float32" }
end

-- w [16,8] in blocks of 4 x 2 and its scale; `body` is what follows the pattern.
local function with_rule(body, case)
   case = case or {}
   case.params = case.params or { weight("w", 16, 8), scale("w", 4, 4) }
   case.live = case.live or { weight("w", 16, 8), scale("w", 4, 4) }
   case.text = ('return {\n   scales = { ending = "_scale_inv", block = { 4, 2 } },\n   rules = {\n      %srule "%s" %s,\n   },\n}\n'):format(
      case.before or "", case.pattern or "w", body)
   local got = resolving.resolve(case)
   return got.ok and got.by[case.name or "w_scale_inv"].line:gsub(", because: .*$", "") or got.text, got
end

describe("a scale", function()
   local function writes(what, body, case, expected)
      it(what, function()
         assert.equal(expected, (with_rule(body, case)))
      end)
   end

   writes("goes beside its weight", "{}", nil, "direct [0:4, 0:4] -> 'w_scale_inv' [:, :] ()")
   writes("is cut as its weight", "{ layout = row }", { tp = 2 }, "direct [0:4, 0:4] -> 'w_scale_inv' [:, :] (tp:1)")
   writes("goes into the same slice", '{ into = "v", at = { span(0, 8, 16), span(1, 2) }, layout = pin("pp", 0) }',
      { live = { weight("v", 32, 10), scale("v", 8, 5) } }, "direct [0:4, 0:4] -> 'v_scale_inv' [2:6, 1:] ()")
   writes("goes into the same slab", '{ into = "v", at = { index(0, 1), span(1, 4) } }',
      { live = { weight("v", 2, 20, 8), scale("v", 2, 5, 4) } }, "direct [0:4, 0:4] -> 'v_scale_inv' [1, 1:, :] ()")
   writes("is taken by the same strips",
      "{ layout = column, { from = span(0, 0, 8), at = span(0, 0, 4) }, { from = span(0, 8, 8), at = span(0, 4, 4) } }", { tp = 2 },
      "direct [0:2, 0:4] -> 'w_scale_inv' [0:1, :] (tp:0); [2:4, 0:4] -> 'w_scale_inv' [1:2, :] (tp:0)")
   writes("is transposed with it", '{ into = "v", permute = { 1, 0 }, at = span(1, 4, 16) }',
      { live = { weight("v", 8, 20), scale("v", 4, 5) } }, "direct [0:4, 0:4] -> 'v_scale_inv' [:, 1:5] permuted 1,0 ()")
   writes("is padded with it", '{ layout = shard("tp", 0, { chunk = 12 }), pad = "zero" }', { tp = 2 },
      "direct [0:4, 0:4] -> 'w_scale_inv' [:, :] (tp:0 chunk 3) padded with zeros")
   writes("of a stack counts its last dims in blocks", '{ layout = { shard("ep", 0, { split = "balanced" }), shard("tp", 1) } }',
      { axes = { { "ep", 2 }, { "tp", 2 } }, params = { weight("w", 3, 16, 8), scale("w", 3, 4, 4) },
        live = { weight("w", 2, 16, 4), scale("w", 2, 4, 2) } },
      "direct [0:3, 0:4, 0:4] -> 'w_scale_inv' [:, :, :] (ep:0 balanced, tp:1)")
   writes("goes with its weight's captures and name", '{ into = "h.{l}.v.w" }', { pattern = "l.{l}.w", name = "l.7.w_scale_inv",
      params = { scale("l.7.w", 4, 4), weight("l.7.w", 16, 8) }, live = { weight("h.7.v.w", 16, 8), scale("h.7.v.w", 4, 4) } },
      "direct [0:4, 0:4] -> 'h.7.v.w_scale_inv' [:, :] ()")
   writes("goes by a rule of its own where there is one", "{}", { before = 'rule "w_scale_inv" { skip = "the host has its own" },\n' }, "skip")
   writes("is left out with its weight", '{ skip = "not served" }', nil, "skip")

   local function refused(what, body, case, expected)
      it(what, function()
         assert.equal("destination: FILE:4: " .. expected, (with_rule(body, case)))
      end)
   end
   local W = 'rule "w": w_scale_inv goes as its weight, counted in blocks: '

   refused("is not cut inside a block", "{ layout = column }", { tp = 8 }, W .. "a worker's part of dim 0 (2) must be a whole number of blocks of 4")
   refused("is not cut inside a block by the inner of two cuts", '{ layout = { column, shard("cp", 0) } }', { axes = { { "cp", 4 }, { "tp", 2 } } },
      W .. "a worker's part of dim 0 (2) must be a whole number of blocks of 4")
   refused("is not cut unevenly inside a block", '{ layout = shard("tp", 0, { split = "balanced" }) }', { tp = 3 },
      W .. "a worker's part of dim 0 (5) must be a whole number of blocks of 4")
   refused("does not begin inside a block", "{ at = span(0, 2, 16) }", nil, W .. "at: the start in dim 0 (2) must be a whole number of blocks of 4")
   refused("is not taken from inside a block", "{ from = span(1, 1, 4) }", nil,
      W .. "from: the start in dim 1 (1) must be a whole number of blocks of 2")
   refused("is not interleaved", "{ from = span(0, 0, 8, 2) }", nil, W .. "from takes every 2-th element of dim 0, of which 4 share a scale")
   refused("is not one row's", "{ from = index(0, 0) }", nil, W .. "from takes one index of dim 0, of which 4 share a scale")
   refused("has a number for each block, whatever the live tensor has", "{}", { params = { weight("w", 16, 8), scale("w", 5, 4) },
      live = { weight("w", 16, 8), scale("w", 5, 4) } },
      'rule "w": w_scale_inv has shape [5,4]; with a number for each block of [4,2] of w [16,8] it has [4,4]')
   refused("does not come without its weight", "{}", { params = { scale("w", 4, 4) } },
      'rule "w": w_scale_inv must come with its companion w, which the trainer does not announce')
   refused("is not left behind", "{}", { params = { weight("w", 16, 8) } },
      'rule "w": w must come with its companion w_scale_inv, which the trainer does not announce')

   it("and its weight are companions", function()
      local _, got = with_rule("{}")
      assert.equal(1, tonumber(got.by.w.param.ncompanions))
      assert.equal(1, got.by.w.param.companion[0])
      assert.equal(0, got.by.w_scale_inv.param.companion[0])
   end)

   it("is not asked of a weight that is not quantized", function()
      assert.equal("direct [0:16, 0:8] -> 'w' [:, :] ()", (with_rule("{}", { name = "w", params = { { name = "w", shape = { 16, 8 } } } })))
   end)
end)

describe("a family", function()
   local A, M = "model.layers.0.self_attn.", "model.layers.0.mlp."
   local HOST = {
      num_attention_heads = 4, num_key_value_heads = 2, head_dim = 4, hidden_size = 16, intermediate_size = 32, moe_intermediate_size = 8,
      num_experts = 2, vocab_size = 64, num_hidden_layers = 1, quantization = "fp8", weight_block_size = { 4, 4 },
   }

   local function both(list, name, rows, columns, stack)
      for _, item in ipairs({ { name, FP8, rows, columns }, { name .. "_scale_inv", "float32", rows / 4, columns / 4 } }) do
         list[#list + 1] = { name = item[1], dtype = item[2], shape = { item[3], item[4] } }
         if stack then
            table.insert(list[#list].shape, 1, stack)
         end
      end
   end

   local function check(rules, params, live, host)
      local got = resolving.resolve({ tp = 2, params = params, live = live, host = host or HOST, rules = rules })
      assert.equal("", got.text)
      for worker = 1, 2 do
         local coverage, problem = script.cover(got.plan, got.live, worker, got.resolved)
         assert.is_nil(problem)
         assert.equal(0, tonumber(coverage.nuncovered))
      end
      return got
   end

   it("in fp8 with block scales goes in place, weight for weight and scale for scale", function()
      local params, live = {}, {}
      both(params, A .. "q_proj.weight", 16, 16)
      both(params, A .. "k_proj.weight", 8, 16)
      both(params, A .. "v_proj.weight", 8, 16)
      both(params, A .. "o_proj.weight", 16, 16)
      both(params, M .. "gate_proj.weight", 32, 16)
      both(params, M .. "up_proj.weight", 32, 16)
      both(params, M .. "down_proj.weight", 16, 32)
      both(live, A .. "qkv_proj.weight", 16, 16)
      both(live, A .. "o_proj.weight", 16, 8)
      both(live, M .. "gate_up_proj.weight", 32, 16)
      both(live, M .. "down_proj.weight", 16, 16)
      local got = check("qwen3", params, live)
      assert.truthy(got.by[A .. "v_proj.weight_scale_inv"].line:find(
         "direct [0:2, 0:4] -> '" .. A .. "qkv_proj.weight_scale_inv' [3:4, :] (tp:0)", 1, true))
   end)

   it("in fp8 has scales of experts, one by one or packed, in the same stacks", function()
      local single, packed, live = {}, {}, {}
      for e = 0, 1 do
         both(single, M .. "experts." .. e .. ".gate_proj.weight", 8, 16)
         both(single, M .. "experts." .. e .. ".up_proj.weight", 8, 16)
         both(single, M .. "experts." .. e .. ".down_proj.weight", 16, 8)
      end
      both(packed, M .. "experts.gate_up_proj", 16, 16, 2)
      both(packed, M .. "experts.down_proj", 16, 8, 2)
      both(live, M .. "experts.w13_weight", 8, 16, 2)
      both(live, M .. "experts.w2_weight", 16, 4, 2)
      check("qwen3_moe", single, live)
      check("qwen3_moe", packed, live)
   end)

   it("without a block size leaves a quantized host to its loader", function()
      local host = {}
      for key, value in pairs(HOST) do
         host[key] = value
      end
      host.weight_block_size = nil
      local params = {}
      both(params, A .. "o_proj.weight", 16, 16)
      local got = resolving.resolve({ params = { params[1] }, live = {}, host = host, rules = "qwen3" })
      assert.equal("full", got.by[A .. "o_proj.weight"].mode)
      assert.equal("the host is quantized (fp8)", got.by[A .. "o_proj.weight"].reason)
   end)
end)
