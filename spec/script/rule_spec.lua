--- The rule language through whole plans: what each word does. Mistakes: mistakes_spec.lua.

local resolving = require "spec.support.resolving"

-- One parameter w [8,16] into live tensors, on tp workers; `body` is what follows the pattern.
local function with_rule(body, case)
   case = case or {}
   case.params = case.params or { { name = "w", shape = { 8, 16 } } }
   case.live = case.live or { { name = "w", shape = { 8, 16 } } }
   case.text = ('return {\n   rules = {\n      rule "%s" %s,\n   },\n}\n'):format(case.pattern or "w", body)
   return resolving.resolve(case)
end

local function line(got, name)
   return got.ok and got.by[name or "w"].line:gsub(", because: .*$", "") or got.text
end

describe("a rule", function()
   local function writes(what, body, case, expected, name)
      it(what, function()
         assert.equal(expected, line(with_rule(body, case), name))
      end)
   end

   writes("without words copies into the tensor of the same name", "{}", {}, "direct [0:8, 0:16] -> 'w' [:, :] ()")
   writes("replicates", "{ layout = replicate }", { tp = 2 }, "direct [0:8, 0:16] -> 'w' [:, :] ()")
   writes("cuts a column over tp", "{ layout = column }", { tp = 2, live = { { name = "w", shape = { 4, 16 } } } },
      "direct [0:8, 0:16] -> 'w' [:, :] (tp:0)")
   writes("cuts a row over tp", "{ layout = row }", { tp = 2, live = { { name = "w", shape = { 8, 8 } } } },
      "direct [0:8, 0:16] -> 'w' [:, :] (tp:1)")
   writes("goes into another tensor", '{ into = "v" }', { live = { { name = "v", shape = { 8, 16 } } } },
      "direct [0:8, 0:16] -> 'v' [:, :] ()")
   writes("writes a slice of it", '{ into = "v", at = span(0, 8, 8) }', { live = { { name = "v", shape = { 24, 16 } } } },
      "direct [0:8, 0:16] -> 'v' [8:16, :] ()")
   writes("writes a slab of it", '{ into = "v", at = index(0, 3) }', { live = { { name = "v", shape = { 4, 8, 16 } } } },
      "direct [0:8, 0:16] -> 'v' [3, :, :] ()")
   writes("takes a slice", '{ from = span(1, 4, 8), into = "v" }', { live = { { name = "v", shape = { 8, 8 } } } },
      "direct [0:8, 4:12] -> 'v' [:, :] ()")
   writes("takes every second column", '{ from = span(1, 1, 8, 2), into = "v" }', { live = { { name = "v", shape = { 8, 8 } } } },
      "direct [0:8, 1:16:2] -> 'v' [:, :] ()")
   writes("permutes", '{ into = "v", permute = {1, 0} }', { live = { { name = "v", shape = { 16, 8 } } } },
      "direct [0:8, 0:16] -> 'v' [:, :] permuted 1,0 ()")
   writes("has several strips, which inherit what stands beside them",
      '{ into = "v", layout = column, { from = span(0, 0, 4), at = span(0, 0, 2) }, { from = span(0, 4, 4), at = span(0, 2, 2) } }',
      { tp = 2, live = { { name = "v", shape = { 4, 16 } } } },
      "direct [0:4, 0:16] -> 'v' [0:2, :] (tp:0); [4:8, 0:16] -> 'v' [2:4, :] (tp:0)")
   writes("pads with zeros", '{ layout = shard("tp", 0, { chunk = 5 }), pad = "zero" }', { tp = 2, live = { { name = "w", shape = { 5, 16 } } } },
      "direct [0:8, 0:16] -> 'w' [:, :] (tp:0 chunk 5) padded with zeros")
   writes("repeats parts", '{ layout = shard("tp", 0, { parts = 2 }) }', { tp = 4, live = { { name = "w", shape = { 4, 16 } } } },
      "direct [0:8, 0:16] -> 'w' [:, :] (tp:0/2)")
   writes("cuts in a balanced way", '{ layout = shard("tp", 0, { split = "balanced" }) }', { tp = 3, live = { { name = "w", shape = { 3, 16 } } } },
      "direct [0:8, 0:16] -> 'w' [:, :] (tp:0 balanced)")
   writes("nests shards in the order written", '{ layout = { shard("tp", 0), shard("dp", 0) } }',
      { axes = { { "dp", 2 }, { "tp", 2 } }, live = { { name = "w", shape = { 2, 16 } } } },
      "direct [0:8, 0:16] -> 'w' [:, :] (tp:0, dp:0)")
   writes("pins", '{ layout = pin("pp", 1) }', { axes = { { "pp", 2 } } }, "direct [0:8, 0:16] -> 'w' [:, :] (pp=1)")
   writes("knows axes that the workers lack as axes of size 1", '{ layout = { pin("ep", 0), shard("cp", 0), column } }', {},
      "direct [0:8, 0:16] -> 'w' [:, :] ()")
   writes("is found by a capture", '{ into = "layers.{l}.x" }',
      { pattern = "h.{l}.w", params = { { name = "h.7.w" } }, live = { "layers.7.x" } }, "direct [0:8, 0:8] -> 'layers.7.x' [:, :] ()", "h.7.w")
   writes("picks by a captured number", '{ into = "x", at = index(0, pick("e", {2, 0, 1})) }',
      { pattern = "e.{e}", params = { "e.0" }, live = { { name = "x", shape = { 3, 8, 8 } } } }, "direct [0:8, 0:8] -> 'x' [2, :, :] ()", "e.0")
   writes("picks by a listed capture", '{ into = "x", at = span(0, pick("e", {4, 0}), 4) }',
      { pattern = "e.{e=0|1}", params = { { name = "e.1", shape = { 4, 8 } } }, live = { { name = "x", shape = { 8, 8 } } } },
      "direct [0:4, 0:8] -> 'x' [0:4, :] ()", "e.1")
   writes("goes into several live tensors", '{ layout = column, { into = "a" }, { into = "b" } }',
      { tp = 2, live = { { name = "a", shape = { 4, 16 } }, { name = "b", shape = { 4, 16 } } } },
      "direct [0:8, 0:16] -> 'a' [:, :] (tp:0); [0:8, 0:16] -> 'b' [:, :] (tp:0)")
   writes("goes to the first and the last stage", '{ { layout = pin("pp", 0) }, { layout = pin("pp", 2) } }', { axes = { { "pp", 3 } } },
      "direct [0:8, 0:16] -> 'w' [:, :] (pp=0); [0:8, 0:16] -> 'w' [:, :] (pp=2)")
   writes("is held by the first of an axis, zero on the others", '{ layout = first "tp" }', { tp = 2 },
      "direct [0:8, 0:16] -> 'w' [:, :] (tp:0 chunk 8) else zeros")
   writes("is held whole where the axis of first has one rank", '{ layout = first "tp" }', {}, "direct [0:8, 0:16] -> 'w' [:, :] ()")
   writes("clears what the trainer lacks when it comes", '{ layout = { pin("pp", 1), row }, {}, { into = "b", at = span(0, 4, 4), zero = true } }',
      { axes = { { "pp", 2 }, { "tp", 2 } } }, "direct [0:8, 0:16] -> 'w' [:, :] (pp=1, tp:1); zeros -> 'b' [4:8] (pp=1)")
   writes("goes to each copy that a pick lists", '{ into = "x", at = index(0, pick("e", {0, {1, 0}})), layout = pin("ep", pick("e", {0, {0, 1}})) }',
      { pattern = "e.{e}", params = { "e.1" }, axes = { { "ep", 2 } }, live = { { name = "x", shape = { 2, 8, 8 } } } },
      "direct [0:8, 0:8] -> 'x' [1, :, :] (ep=0); [0:8, 0:8] -> 'x' [0, :, :] (ep=1)", "e.1")
   writes("makes a strip once for each of several numbers",
      '{ layout = pin("tp", each({0, 1})), { from = span(0, each(2, 4), 2), at = span(0, each(2, 0), 2) }, '
      .. '{ from = span(0, each(2, 4, 2), 2), at = span(0, each({0, 0}, 1, 2), 2) } }', { tp = 2, live = { { name = "w", shape = { 4, 16 } } } },
      "direct [0:2, 0:16] -> 'w' [0:2, :] (tp=0); [4:6, 0:16] -> 'w' [0:2, :] (tp=1); [2:4, 0:16] -> 'w' [2:4, :] (tp=0); "
      .. "[6:8, 0:16] -> 'w' [2:4, :] (tp=1)")
   writes("goes whole for a reason", '{ full = "the host wants it" }', { live = {} }, "full")
   writes("goes nowhere for a reason", '{ skip = "not served" }', { live = {} }, "skip")
   writes("is another's alias", '{ alias = "v" }', { params = { "w", "v" }, live = { "v" }, pattern = 'v" {}, rule "w' }, "alias of 'v'")

   it("carries its reason and its line", function()
      local got = with_rule('{ full = "the host wants it" }', { live = {} })
      assert.equal("the host wants it", got.by.w.reason)
      assert.equal("FILE:3", got.by.w.where)
      got = with_rule("{}")
      assert.equal('rule "w"', got.by.w.reason)
      assert.equal("FILE:3", got.by.w.where)
   end)

   it("may be written as a plain table", function()
      local got = resolving.resolve({ params = { "w" }, live = { "v" }, text = 'return {\n rules = {\n { "w", into = "v" },\n },\n}' })
      assert.equal("FILE:3", got.by.w.where)
      assert.equal("direct [0:8, 0:8] -> 'v' [:, :] ()", line(got))
   end)

   it("asks for strict coverage, and for whole modules where the host finalises them", function()
      assert.is_true(with_rule("{}").strict)
      assert.is_false(with_rule("{}").whole_modules)
      assert.is_true(with_rule("{}", { host = { finalizes_modules = true } }).whole_modules)
   end)

   it("chooses the mesh that has its axes", function()
      local got = with_rule('{ layout = { pin("ep", 3), row } }', { axes = { { "dp", 2 }, { "tp", 4 } },
         meshes = { { name = "expert", axes = { { "ep", 4 }, { "tp", 2 } } } }, live = {} })
      assert.equal("direct [0:8, 0:16] -> 'w' [:, :] (ep=3, tp:1) of 'expert'", line(got))
   end)

   it("goes by the first rule that matches", function()
      local got = resolving.resolve({ params = { "a.x", "a.y" }, live = { "a.x" },
         text = 'return { rules = { rule "a.x" {}, rule "a.*" { skip = "rest" }, rule "a.y" {} } }' })
      assert.equal("direct", got.by["a.x"].mode)
      assert.equal("skip", got.by["a.y"].mode)
   end)
end)

describe("a rule file", function()
   it("strips wrappers and renames in order", function()
      local got = resolving.resolve({
         params = { "_fsdp.model._fsdp.a.w", "lm_head.w", "model.x.w" }, live = { "lang.model.a.w", "lang.lm_head.w", "lang.model.y.w" },
         text = [[return {
            strip = { "_fsdp" },
            rename = { { "model.**", "lang.model.**" }, { "lm_head.**", "lang.lm_head.**" }, { "**.x.w", "**.y.w" } },
            rules = { rule "**.w" {} },
         }]],
      })
      assert.equal("direct [0:8, 0:8] -> 'lang.model.a.w' [:, :] ()", line(got, "_fsdp.model._fsdp.a.w"))
      assert.equal("direct [0:8, 0:8] -> 'lang.lm_head.w' [:, :] ()", line(got, "lm_head.w"))
      assert.equal("direct [0:8, 0:8] -> 'lang.model.y.w' [:, :] ()", line(got, "model.x.w"))
   end)

   it("renames the live names that rules make, the extended file's first", function()
      local path = resolving.write('return { rename_live = { { "a.**", "b.**" } }, rules = { rule "w.{l}" { into = "a.{l}" } } }')
      local got = resolving.resolve({ params = { "w.1", "v" }, live = { "c.1", { name = "u", attributes = { loader = "replicated" } } },
         text = ('return { extends = "%s", rename_live = { { "b.**", "c.**" }, { "v", "u" } }, otherwise = "default" }'):format(path) })
      os.remove(path)
      assert.equal("direct [0:8, 0:8] -> 'c.1' [:, :] ()", line(got, "w.1"))
      assert.equal("direct [0:8, 0:8] -> 'u' [:, :] ()", line(got, "v"))
   end)

   it("pins by name, outside what a rule says", function()
      local got = resolving.resolve({
         axes = { { "pp", 2 }, { "tp", 2 } }, params = { "l.0.w", "l.3.w", "head.w" }, live = {},
         text = [[
            local owner = spread({ 1, 3 }).owner
            return {
               pins = { where "l.{l}.**" (pin("pp", pick("l", owner))), where "head.**" (pin("pp", 1)) },
               rules = { rule "l.{l}.w" { layout = column }, rule "head.w" {} },
            }]],
      })
      assert.equal("direct [0:8, 0:8] -> 'l.0.w' [:, :] (pp=0, tp:0)", line(got, "l.0.w"))
      assert.equal("direct [0:8, 0:8] -> 'l.3.w' [:, :] (pp=1, tp:0)", line(got, "l.3.w"))
      assert.equal("direct [0:8, 0:8] -> 'head.w' [:, :] (pp=1)", line(got, "head.w"))
   end)

   it("may begin with the mark that some editors put in front of UTF-8", function()
      local text = '\239\187\191return { rules = { rule "w" {} } }'
      assert.equal("FILE:1", resolving.resolve({ params = { "w" }, live = { "w" }, text = text }).by.w.where)
   end)

   it("may leave the rest to the default resolver, whole, or refuse it", function()
      local function rest(otherwise)
         return resolving.resolve({ params = { "a.w", "b.w" }, live = { "a.w", { name = "b.w", attributes = { loader = "replicated" } } },
            text = ('return { rules = { rule "a.w" {} }, otherwise = %s }'):format(otherwise) })
      end
      assert.equal("direct", rest('"default"').by["b.w"].mode)
      assert.equal("default resolver", rest('"default"').by["b.w"].where)
      assert.equal("full", rest('"full"').by["b.w"].mode)
      assert.equal("FILE:1", rest('"full"').by["b.w"].where)
      assert.equal("no rule matches, and otherwise is full", rest('"full"').by["b.w"].reason)
      assert.equal('destination: FILE:1: no rule matches parameter b.w; add one, or say otherwise = "default" or "full"', rest('"error"').text)
      assert.equal(rest('"error"').text, rest("nil").text)
      assert.is_true(rest('"full"').strict)
   end)

   it("says what stands in front of a name that a rule would match", function()
      local got = resolving.resolve({ params = { "net.actor.a.0.w" }, live = {}, text = "return { rules = {\n rule 'a.{l}.w' {} } }" })
      assert.equal('destination: FILE:1: no rule matches parameter net.actor.a.0.w (without "net.actor" in front rule "a.{l}.w" at FILE:2 '
         .. 'matches; strip or rename takes it away); add one, or say otherwise = "default" or "full"', got.text)
   end)

   it("that leaves all to the host's loader does not account for what that writes", function()
      local got = resolving.resolve({ params = { "a" }, live = { "a", "b" }, text = 'return { full = "it repacks", rules = { rule "a" {} } }' })
      assert.same({ "full", false }, { got.by.a.mode, got.strict })
   end)

   it("places nothing in a host that repacks what it loads, whatever it says", function()
      for _, text in ipairs { "return { rules = { rule 'a' {} } }", "return { full = false, rules = { rule 'a' {} } }",
         "return { otherwise = 'default', rules = {} }" } do
         local case = { params = { "a" }, live = { "a" }, host = { repacks = "for its kernels" }, text = text }
         local got = resolving.resolve(case)
         assert.same({ "full", "the host repacks what it loads (for its kernels)", false }, { got.by.a.mode, got.by.a.reason, got.strict })
         case.text = text:gsub("rules", "require_direct = true, rules")
         assert.equal("destination: FILE:1: a ends full, and require_direct holds: the host repacks what it loads (for its kernels)",
            resolving.resolve(case).text)
      end
   end)

   it("may send everything whole for a reason, save aliases and skips", function()
      local got = resolving.resolve({ params = { "a", "b", "c", "d" }, live = { "a" }, host = { quantization = "awq" },
         text = [[return { full = host.quantization and "quantized", otherwise = "error",
            rules = { rule "a" {}, rule "b" { skip = "x" }, rule "c" { alias = "a" } } }]] })
      assert.equal("full", got.by.a.mode)
      assert.equal("quantized", got.by.a.reason)
      assert.equal("skip", got.by.b.mode)
      assert.equal("alias", got.by.c.mode)
      assert.equal("full", got.by.d.mode)
   end)

   it("extends another, whose rules come after its own", function()
      local path = resolving.write('return { otherwise = "full", rules = { rule "a" { skip = "parent" }, rule "b" { skip = "parent" } } }')
      local got = resolving.resolve({ params = { "a", "b", "c" }, live = { "a" },
         text = ('return { extends = "%s", rules = { rule "a" {} } }'):format(path) })
      os.remove(path)
      assert.equal("direct", got.by.a.mode)
      assert.equal("skip", got.by.b.mode)
      assert.equal("full", got.by.c.mode)
   end)

   it("says with full = false that its parameters go in place, though the file that it extends leaves all to the host", function()
      local path = resolving.write('return { full = policy {}, rules = { rule "a" {} } }')
      for said, mode in pairs({
         ["full = false"] = "direct", ['full = policy { quantization = "fp8" }'] = "direct", ["otherwise = false"] = "full",
      }) do
         local got = resolving.resolve({ params = { "a" }, live = { "a" }, host = { quantization = "fp8" },
            text = ('return { extends = "%s", %s }'):format(path, said) })
         assert.equal(mode, got.by.a.mode)
      end
      os.remove(path)
   end)

   it("extends one that lies beside it, by its bare path", function()
      local path = resolving.write('return { rules = { rule "b" { skip = "parent" } } }')
      local got = resolving.resolve({ params = { "b" }, live = {}, text = ('return { extends = "%s" }'):format("./" .. path:match("[^/]*$")) })
      os.remove(path)
      assert.equal("skip", got.by.b.mode)
   end)

   it("leaves strips out by condition, as false or nil", function()
      local function placed(strips)
         local got = resolving.resolve({ params = { "w" }, live = { "w" }, text = ('return { rules = { rule "w" { %s } } }'):format(strips) })
         return got.ok and got.by.w.line:match("^direct (.-), because") or got.text
      end
      assert.equal("[0:8, 0:8] -> 'w' [:, :] ()", placed "false, nil, {}")
      assert.equal("[0:8, 0:8] -> 'w' [:, :] (); zeros -> 'v' [] ()", placed "{}, host.head_dim, { into = 'v', zero = true }")
      assert.equal('destination: FILE:1: rule "w": every strip is left out; leave out the rule', placed "false, false")
   end)

   it("leaves rules out by condition, as false or nil", function()
      local got = resolving.resolve({ params = { "a" }, live = { "a" },
         text = 'return { rules = { nil, host.tie_word_embeddings and rule "a" { skip = "x" }, false, rule "a" {} } }' })
      assert.equal("direct", got.by.a.mode)
   end)

   it("may demand that nothing goes whole", function()
      assert.equal("destination: FILE:1: a ends full, and require_direct holds: reason", resolving.resolve({ params = { "a" }, live = {},
         text = 'return { require_direct = true, rules = { rule "a" { full = "reason" } } }' }).text)
   end)

   it("sees what the host says and how the workers are cut", function()
      local got = resolving.resolve({ axes = { { "dp", 2 }, { "tp", 4 } }, meshes = { { name = "expert", axes = { { "ep", 8 } } } },
         host = '{"quantization":null,"num_experts":16,"custom":{"deep":[1,2]},"tie_word_embeddings":false}',
         params = {}, live = {}, text = [[
            assert(axes.dp == 2 and axes.tp == 4 and axes.ep == 8 and axes.pp == 1 and axes.cp == 1)
            assert(meshes.expert.ep == 8 and meshes.expert.tp == 1)
            assert(host.quantization == nil and host.num_experts == 16 and host.custom.deep[2] == 2 and host.head_dim == nil)
            assert(host.tie_word_embeddings == false and required "num_experts" == 16)
            assert(divide(12, 4) == 3 and ceil_divide(13, 4) == 4 and round_up(65, 64) == 128)
            local n, parts = share(8, 4) assert(n == 2 and parts == 4)
            n, parts = share(2, 8) assert(n == 1 and parts == 2)
            local s = spread(10, 4)
            assert(table.concat(s.owner) == "0001112233" and table.concat(s.position) == "0120120101")
            assert(table.concat(spread({ 2, 0, 1 }).owner) == "002")
            local map = spread({ { 2, 0 }, { 1, 2 } }, 2) -- 2 has a copy on either rank
            assert(map.owner[1] == 0 and map.owner[2] == 1 and map.owner[3][1] == 0 and map.owner[3][2] == 1)
            assert(map.position[1] == 1 and map.position[2] == 0 and map.position[3][1] == 0 and map.position[3][2] == 1)
            return {}
         ]] })
      assert.equal("", got.text)
   end)
end)

describe("the case", function()
   it("text_only_trainer: unsourced live tensors are those that the rules allow", function()
      local got = resolving.resolve({
         tp = 2, params = { { name = "model.layers.0.mlp.down_proj.weight", shape = { 64, 256 } } },
         live = {
            { name = "language_model.model.layers.0.mlp.down_proj.weight", shape = { 64, 128 }, attributes = { loader = "row", input_dim = 1 } },
            { name = "visual.blocks.0.attn.proj.weight", shape = { 32, 16 } },
         },
         text = [[return {
            rename = { { "model.**", "language_model.model.**" } },
            unsourced = { "visual.**" },
            otherwise = "default",
         }]],
      })
      local name = "model.layers.0.mlp.down_proj.weight"
      assert.equal("direct [0:64, 0:256] -> 'language_model.model.layers.0.mlp.down_proj.weight' [:, :] (tp:1)", line(got, name))
      assert.equal("[0,64)x[0,128) [0,64)x[128,256)", resolving.box(got, name, 0, 1) .. " " .. resolving.box(got, name, 0, 2))
      assert.same({ "visual.blocks.0.attn.proj.weight" }, got.unsourced)
      assert.is_true(got.strict)
   end)

   it("tied_head: the head is an alias, and is placed once", function()
      local host = { tie_word_embeddings = true, num_attention_heads = 4, num_key_value_heads = 4, hidden_size = 64,
                     intermediate_size = 128, vocab_size = 1024 }
      local function resolve(params)
         return resolving.resolve({ tp = 2, params = params, host = host, rules = "llama",
            live = { { name = "model.embed_tokens.weight", shape = { 512, 64 } } } })
      end
      local got = resolve({ { name = "model.embed_tokens.weight", shape = { 1024, 64 } }, { name = "lm_head.weight", shape = { 1024, 64 } } })
      assert.equal("[0,512)x[0,64) [512,1024)x[0,64)", resolving.box(got, "model.embed_tokens.weight", 0, 1) .. " "
         .. resolving.box(got, "model.embed_tokens.weight", 0, 2))
      assert.equal("alias", got.by["lm_head.weight"].mode)
      assert.equal("model.embed_tokens.weight", got.by["lm_head.weight"].alias)
      assert.is_true(resolve({ { name = "model.embed_tokens.weight", shape = { 1024, 64 } } }).ok)
      assert.truthy(resolve({ { name = "lm_head.weight", shape = { 1024, 64 } } }).text:find("lm_head.weight is an alias of "
         .. "model.embed_tokens.weight, which the trainer does not announce", 1, true))
      assert.equal('destination: sluice/rules/decoder.lua:62: rule "lm_head.weight": lm_head.weight of shape [1000,64] is an alias of '
         .. "model.embed_tokens.weight of shape [1024,64], which cannot hold the same values",
         resolve({ { name = "model.embed_tokens.weight", shape = { 1024, 64 } }, { name = "lm_head.weight", shape = { 1000, 64 } } }).text)
   end)

   it("missing_scale: a weight without its companion is refused by the companion's name", function()
      local function resolve(params)
         return resolving.resolve({
            params = params, host = { quantization = "fp8" },
            live = { { name = "model.layers.0.mlp.gate_up_proj.weight", dtype = "float8_e4m3fn", shape = { 512, 128 } },
                     { name = "model.layers.0.mlp.gate_up_proj.weight_scale_inv", dtype = "float32", shape = { 4, 1 } } },
            text = [[return { rules = {
               rule "model.layers.{l}.mlp.gate_proj.weight" {
                  into = "model.layers.{l}.mlp.gate_up_proj.weight", at = span(0, 0, 256),
                  companion = "model.layers.{l}.mlp.gate_proj.weight_scale_inv" },
               rule "model.layers.{l}.mlp.gate_proj.weight_scale_inv" {
                  into = "model.layers.{l}.mlp.gate_up_proj.weight_scale_inv", at = span(0, 0, ceil_divide(256, 128)) },
            } }]],
         })
      end
      local weight = { name = "model.layers.0.mlp.gate_proj.weight", dtype = "float8_e4m3fn", shape = { 256, 128 } }
      assert.equal('destination: FILE:2: rule "model.layers.{l}.mlp.gate_proj.weight": model.layers.0.mlp.gate_proj.weight must come '
         .. "with its companion model.layers.0.mlp.gate_proj.weight_scale_inv, which the trainer does not announce", resolve({ weight }).text)
      assert.is_true(resolve({ weight, { name = "model.layers.0.mlp.gate_proj.weight_scale_inv", dtype = "float32", shape = { 2, 1 } } }).ok)
   end)
end)

describe("the host", function()
   local function value(expression, case)
      case = case or {}
      case.params, case.text = { "w" }, ('local v = %s\nreturn { rules = { rule "w" { skip = tostring(v) } } }'):format(expression)
      local got = resolving.resolve(case)
      return got.ok and got.by.w.reason or got.text
   end

   it("may say more than Sluice knows", function()
      assert.equal("7", value("host.my_key", { host = { my_key = 7 } }))
      assert.equal("9", value("host.extra.deep[2]", { host = { extra = { deep = { 8, 9 } } } }))
      assert.equal("7", value('optional "my_key"', { host = { my_key = 7 } }))
      assert.equal("nil", value('optional "my_key"'))
   end)

   it("is told of a known key whose value is of another kind, before it chooses other rules", function()
      local cases = {
         { { num_attention_heads = "8" }, 'num_attention_heads ("8") must be an integer of at least 0' },
         { { head_dim = 1.5 }, "head_dim (1.5) must be an integer of at least 0" },
         { { num_experts = false }, "num_experts (false) must be an integer of at least 0" },
         { { tie_word_embeddings = 0 }, "tie_word_embeddings (0) must be true or false" },
         { { tie_word_embeddings = "false" }, 'tie_word_embeddings ("false") must be true or false' },
         { { weight_block_size = 128 }, "weight_block_size (128) must be a list of two integers of at least 1" },
         { { weight_block_size = { 128 } }, "weight_block_size ([128]) must be a list of two integers of at least 1" },
         { { weight_block_size = { 0, 128 } }, "weight_block_size ([0, 128]) must be a list of two integers of at least 1" },
         { { pipeline_layers = { 1, "2" } }, 'pipeline_layers ([1, "2"]) must be a list of integers of at least 0' },
         { { lora_modules = { "qkv_proj", 1 } }, 'lora_modules (["qkv_proj", 1]) must be a list of texts' },
         { { expert_map = { a = 1 } }, "expert_map (an object) must be a list" },
         { { quantization = { method = "fp8" } }, "quantization (an object) must be a text, or false" },
         { { repacks = 1 }, "repacks (1) must be true, false or a reason" },
         { { vocab_size = "x", head_dim = "y" }, 'head_dim ("y") must be an integer of at least 0' },
      }
      for _, case in ipairs(cases) do
         assert.equal("destination: the host's description: " .. case[2], value("1", { host = case[1] }))
      end
      assert.equal("nil", value("host.head_dim", { host = '{"head_dim":null,"tie_word_embeddings":null,"quantization":false}' }))
      assert.equal("7", value("host.num_key_value_heads[2]", { host = { num_key_value_heads = { 8, 7 } } }))
   end)

   it("can be gone through, and so can axes", function()
      assert.equal("a=1 b=2 ", value([[(function() local t = "" for k, x in pairs(host) do t = t .. k .. "=" .. x .. " " end return t end)()]],
         { host = { b = 2, a = 1 } }))
      assert.equal("tp4", value([[(function() for k, x in pairs(axes) do return k .. x end end)()]], { tp = 4 }))
   end)

   it("shows its live tensors: the first that a pattern names", function()
      local case = { live = { { name = "a.0.w", shape = { 2, 3 }, dtype = "float32" },
                              { name = "a.1.w", shape = { 4, 5 }, attributes = { loader = "row", input_dim = 1 } } } }
      assert.equal("a.0.w float32 2x3", value([[(function() local t = live "a.*.w"
         return t.name .. " " .. t.dtype .. " " .. table.concat(t.shape, "x") end)()]], case))
      assert.equal("row", value('live "**.1.w".attributes.loader', case))
      assert.equal("nil", value('live "b.**"', case))
      assert.equal("a.1.w", value('live "a.1.*".name', case))
      assert.equal("a.1.w", value('live "a.1.w".name', case))
      assert.equal("a.0.w", value('live "a.{l=1|0}.w".name', case))
      assert.equal("nil", value('live "a.2.w"', case))
      assert.equal("a.0.w", value('live "a.{l}.w".name', case))
      assert.equal("destination: FILE:1: live (nil) must be a pattern in quotes", value("live(nil)"))
      assert.equal('destination: FILE:1: live ("a.{") has a segment \'{\' that is no capture: {name} is a whole segment, {name=a|b} lists '
         .. "its values", value('live "a.{"'))
   end)

   it("has a policy, of which a file may know better", function()
      local awq, staged = { quantization = "awq" }, { pipeline_parallel_size = 2 }
      assert.equal("false", value("policy {}"))
      assert.equal("the host is quantized (awq)", value("policy {}", { host = awq }))
      assert.equal("the host is quantized (awq)", value('policy { quantization = "fp8" }', { host = awq }))
      assert.equal("false", value('policy { quantization = { "fp8", "awq" } }', { host = awq }))
      assert.equal("the host has 2 pipeline stages", value("policy {}", { host = staged }))
      assert.equal("false", value("policy { pipeline = true }", { host = staged }))
      assert.equal("the host repacks what it loads", value('policy { pipeline = true, quantization = "awq" }',
         { host = { quantization = "awq", repacks = true } }))
      assert.equal("destination: FILE:1: policy: unknown key 'pipelines' (did you mean pipeline?)", value("policy { pipelines = true }"))
   end)
end)
