--- The default resolver: what it wants of a direct parameter, one condition at a time, and the module rule.

local resolving = require "spec.support.resolving"

local function one(changes, live_changes, extra)
   local param = { name = "m.weight", shape = { 8, 16 } }
   local live = { name = "m.weight", shape = { 4, 16 }, attributes = { loader = "column", output_dim = 0, tp_size = 2 } }
   for key, value in pairs(changes or {}) do
      param[key] = value
   end
   for key, value in pairs(live_changes or {}) do
      live[key] = value
   end
   local case = { params = { param }, live = { live }, tp = 2 }
   for key, value in pairs(extra or {}) do
      case[key] = value
   end
   return resolving.resolve(case)
end

local function attributes(changes)
   local base = { loader = "column", output_dim = 0, tp_size = 2 }
   for key, value in pairs(changes) do
      base[key] = value
   end
   return { attributes = base }
end

describe("the default resolver writes in place", function()
   local function direct(what, result, layout)
      it(what, function()
         local got = result()
         assert.equal("", got.text)
         local found = got.by["m.weight"]
         assert.equal("direct", found.mode)
         assert.equal("default resolver", found.where)
         assert.equal(layout, resolving.box(got, "m.weight", 0, 1) .. " " .. resolving.box(got, "m.weight", 0, 2))
      end)
   end

   direct("a column loader's dim over tp", function() return one() end, "[0,4)x[0,16) [4,8)x[0,16)")
   direct("a column loader without a tp_size", function()
      return one({}, { attributes = { loader = "column", output_dim = 0 } })
   end, "[0,4)x[0,16) [4,8)x[0,16)")
   direct("a row loader's dim over tp", function()
      return one({}, { shape = { 8, 8 }, attributes = { loader = "row", input_dim = 1, tp_size = 2 } })
   end, "[0,8)x[0,8) [0,8)x[8,16)")
   direct("a replicated loader whole", function()
      return one({}, { shape = { 8, 16 }, attributes = { loader = "replicated" } })
   end, "[0,8)x[0,16) [0,8)x[0,16)")
   direct("a flag that is false or null", function()
      return one({}, { attributes = '{"loader":"column","output_dim":0,"packed_dim":null,"is_transposed":false}' })
   end, "[0,4)x[0,16) [4,8)x[0,16)")
   direct("under a host without quantization on one stage", function()
      return one({}, {}, { host = '{"quantization":null,"pipeline_parallel_size":1}' })
   end, "[0,4)x[0,16) [4,8)x[0,16)")

   it("says why", function()
      assert.equal("its loader (column) is a plain copy", one().by["m.weight"].reason)
   end)

   it("asks for no strict coverage and for whole modules", function()
      local got = one()
      assert.is_false(got.strict)
      assert.is_true(got.whole_modules)
   end)
end)

describe("the default resolver sends whole, and says why:", function()
   local cases = {
      { "no live parameter has its name", function() return one({}, { name = "m.wait" }) end },
      { "its dtype is float32, the live one's bfloat16", function() return one({ dtype = "float32" }) end },
      { "its loader is not declared", function() return one({}, { attributes = {} }) end },
      { "its loader is not declared", function() return one({}, { attributes = '{"loader":null}' }) end },
      { 'its loader ("qkv") is no plain copy', function() return one({}, attributes({ loader = "qkv" })) end },
      { "its loader (7) is no plain copy", function() return one({}, attributes({ loader = 7 })) end },
      { "its loader (an object) is no plain copy", function() return one({}, attributes({ loader = { a = 1 } })) end },
      { "its output_dim (missing) is no dim of it", function() return one({}, { attributes = { loader = "column" } }) end },
      { "its output_dim (2) is no dim of it", function() return one({}, attributes({ output_dim = 2 })) end },
      { "its output_dim (-1) is no dim of it", function() return one({}, attributes({ output_dim = -1 })) end },
      { "its output_dim (0.5) is no dim of it", function() return one({}, attributes({ output_dim = 0.5 })) end },
      { 'its output_dim ("0") is no dim of it', function() return one({}, attributes({ output_dim = "0" })) end },
      { "its input_dim (missing) is no dim of it", function() return one({}, attributes({ loader = "row" })) end },
      { "its tp_size (4) is not the workers' shard axis (2)", function() return one({}, attributes({ tp_size = 4 })) end },
      { "its tp_size (1) is not the workers' shard axis (2)", function() return one({}, attributes({ tp_size = 1 })) end },
      { "its shape [8,16] and the live one's [8,16] do not agree with dim 0 cut in 2", function()
         return one({}, { shape = { 8, 16 } })
      end },
      { "its shape [8,16] and the live one's [4,8] do not agree with dim 0 cut in 2", function() return one({}, { shape = { 4, 8 } }) end },
      { "its shape [9,16] and the live one's [4,16] do not agree with dim 0 cut in 2", function() return one({ shape = { 9, 16 } }) end },
      { "its shape [8,16] and the live one's [4,16] do not agree", function()
         return one({}, { attributes = { loader = "replicated" } })
      end },
      { "its shape [8,16] and the live one's [8] do not agree", function()
         return one({}, { shape = { 8 }, attributes = { loader = "replicated" } })
      end },
      { "the host is quantized (fp8)", function() return one({}, {}, { host = { quantization = "fp8" } }) end },
      { "the host has 2 pipeline stages", function() return one({}, {}, { host = { pipeline_parallel_size = 2 } }) end },
      { "the workers' mesh has 2 pipeline stages", function() return one({}, {}, { axes = { { "pp", 2 }, { "tp", 2 } } }) end },
   }
   for _, name in ipairs({ "packed_dim", "packed_factor", "marlin_tile_size", "needs_scalar_to_array", "is_sharded_weight", "is_transposed" }) do
      cases[#cases + 1] = { "the live parameter has " .. name, function() return one({}, attributes({ [name] = 0 })) end }
      cases[#cases + 1] = { "the live parameter has " .. name, function() return one({}, attributes({ [name] = true })) end }
   end
   for _, case in ipairs(cases) do
      it(case[1], function()
         local got = case[2]()
         assert.equal("", got.text)
         assert.equal("full", got.by["m.weight"].mode)
         assert.equal(case[1], got.by["m.weight"].reason)
         assert.equal("default resolver", got.by["m.weight"].where)
      end)
   end

   it("nothing may go whole that does not allow it", function()
      local got = one({ allow_full = false }, { attributes = {} })
      assert.equal("destination: default resolver: m.weight ends full, and its allow_full_fallback is false: its loader is not declared",
         got.text)
      assert.equal(1, got.status)
      assert.is_true(one({ allow_full = false }).ok)
   end)
end)

describe("the module rule", function()
   it("holds of the live tensors that a rule names, too", function()
      local text = resolving.resolve({ host = { finalizes_modules = true }, params = { { name = "q.weight" }, { name = "k.bias", shape = { 8 } } },
         live = { { name = "qkv.weight" }, { name = "qkv.bias", shape = { 8 } } },
         text = [[return { rules = { rule "q.weight" { into = "qkv.weight" }, rule "k.bias" { into = "qkv.bias", full = "scaled" } } }]] }).text
      assert.equal("destination: FILE:1: q.weight is direct into live qkv.weight, but for its module qkv the loader has k.bias, which is full "
         .. "(FILE:1: scaled); a module is finalised as one", text)
      local got = resolving.resolve({ host = { finalizes_modules = true }, params = { { name = "a.weight" }, { name = "m.bias", shape = { 8 } } },
         live = { { name = "m.weight", attributes = { loader = "replicated" } }, { name = "m.bias", shape = { 8 } } },
         text = [[return { otherwise = "default", rename_live = { { "a.**", "m.**" } }, rules = {} }]] })
      assert.equal("m.bias of the same module is full: its loader is not declared", got.by["a.weight"].reason)
   end)

   it("sends a module whole when one of it goes whole, and names the cause", function() -- case module_unit
      local got = resolving.resolve({
         params = { "m.weight", "m.bias" },
         live = { { name = "m.weight", attributes = { loader = "row", input_dim = 1 } }, { name = "m.bias" } },
      })
      assert.equal("full", got.by["m.weight"].mode)
      assert.equal("full", got.by["m.bias"].mode)
      assert.equal("m.bias of the same module is full: its loader is not declared", got.by["m.weight"].reason)
      assert.equal("its loader is not declared", got.by["m.bias"].reason)
   end)

   it("leaves other modules alone, also those inside", function()
      local plain = { loader = "replicated" }
      local got = resolving.resolve({
         params = { "m.bias", "m.in.weight", "n.weight", "m" },
         live = { { name = "m.bias" }, { name = "m.in.weight", attributes = plain }, { name = "n.weight", attributes = plain },
                  { name = "m", attributes = plain } },
      })
      assert.equal("full", got.by["m.bias"].mode)
      assert.equal("direct", got.by["m.in.weight"].mode)
      assert.equal("direct", got.by["n.weight"].mode)
      assert.equal("direct", got.by["m"].mode)
   end)

   it("ends init when it sends whole what may not go so", function()
      local got = resolving.resolve({
         params = { { name = "m.weight", allow_full = false }, "m.bias" },
         live = { { name = "m.weight", attributes = { loader = "replicated" } }, { name = "m.bias" } },
      })
      assert.equal("destination: default resolver: m.weight ends full, and its allow_full_fallback is false: m.bias of the same "
         .. "module is full: its loader is not declared", got.text)
   end)
end)

describe("what the host says is checked:", function()
   local cases = {
      { "{", "destination: the host's description: JSON byte 1 (the end) must be a key in quotes" },
      { "[]", "destination: the host's description ([]) must be a JSON object" },
      { "7", "destination: the host's description (7) must be a JSON object" },
      { "null", "destination: the host's description (null) must be a JSON object" },
      { '{"rope_theta":1e999}', "destination: the host's description: rope_theta (inf) must be a number that a double can hold" },
      { '{"a":[1,{"b":-1e999}]}', "destination: the host's description: a[1].b (-inf) must be a number that a double can hold" },
   }
   for _, case in ipairs(cases) do
      it(case[1], function()
         assert.equal(case[2], one({}, {}, { host = case[1] }).text)
      end)
   end

   it("attributes that are no object name their tensor", function()
      assert.equal("destination: live tensor 'm.weight': its attributes ([1]) must be a JSON object", one({}, { attributes = "[1]" }).text)
      assert.equal("destination: live tensor 'm.weight': its attributes (JSON byte 1 (the end) must be a key in quotes) must be a "
         .. "JSON object", one({}, { attributes = "{" }).text)
   end)
end)
