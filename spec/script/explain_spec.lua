--- What explain says, against the text files in spec/script/explain: a file a question. SLUICE_WRITE_GOLDEN=1 writes them anew,
-- to be read before they are kept.

local cjson = require "cjson"
local ffi = require "ffi"
local explanation = require "sluice.cli.explanation"
local files = require "scripts.files"
local inside = require "spec.support.inside"
local resolving = require "spec.support.resolving"

local C = inside.declare("plan/program.h", "base/memory.h")
local WRITE = os.getenv("SLUICE_WRITE_GOLDEN") == "1"

-- ---- small worlds ----

local fused = {
   trainers = { { "dp", 2 }, { "fsdp", 2 } }, tp = 4, host = { num_key_value_heads = 2 },
   params = {
      { name = "_fsdp_wrapped_module.trunk.0.q_proj.weight", shape = { 32, 8 }, source = { { axis = "fsdp", shard = 0 } } },
      { name = "trunk.0.k_proj.weight", shape = { 8, 8 }, source = { { axis = "fsdp", shard = 0 } } },
      { name = "trunk.0.v_proj.weight", shape = { 8, 8 }, source = { { axis = "fsdp", shard = 0 } } },
   },
   live = { { name = "language_model.0.qkv_proj.weight", shape = { 16, 8 } } },
   text = [[
local kv = divide(required "num_key_value_heads", 2) * 4
local parts = { parts = 2 }
return {
   strip = { "_fsdp_wrapped_module" }, rename = { { "trunk.**", "model.**" } },
   rename_live = { { "model.**", "language_model.**" } },
   rules = {
      rule "model.{l}.mlp.up_proj.weight" { layout = column },
      rule "model.{l}.mlp.down_proj.weight" { layout = row },
      rule "model.{l}.q_proj.{w=weight|bias}" { into = "model.{l}.qkv_proj.{w}", at = span(0, 0, 8), layout = column },
      rule "model.{l}.k_proj.{w=weight|bias}" { into = "model.{l}.qkv_proj.{w}", at = span(0, 8, kv), layout = shard("tp", 0, parts) },
      rule "model.{l}.v_proj.{w=weight|bias}" { into = "model.{l}.qkv_proj.{w}", at = span(0, 8 + kv, kv), layout = shard("tp", 0, parts) },
   },
}
]],
}

local stages = {
   trainers = { { "pp", 2 } }, axes = { { "pp", 2 }, { "tp", 2 } },
   params = {
      { name = "h.0.up.weight", shape = { 8, 4 }, source = { { axis = "pp", pin = 0 } } },
      { name = "h.1.up.weight", shape = { 8, 4 }, source = { { axis = "pp", pin = 1 } } },
   },
   live = { { name = "h.0.up.weight", shape = { 4, 4 } } },
   text = [[
return {
   rules = { rule "h.{l}.up.weight" { layout = column } },
   pins = { where "h.{l}.**" (pin("pp", pick("l", { 0, 1 }))) },
}
]],
}

local function experts()
   local params = {}
   for e = 0, 5 do
      params[e + 1] = { name = ("h.0.experts.%d.up.weight"):format(e), shape = { 4, 4 }, source = { { axis = "ep", pin = e % 2 } } }
   end
   return {
      trainers = { { "ep", 2 } }, axes = { { "dp", 2 }, { "ep", 4 } }, params = params,
      live = { { name = "h.0.experts.w13", shape = { 2, 8, 4 } } },
      text = [[
local map = spread(6, axes.ep)
return {
   unsourced = { "*.*.experts.w13" },
   rules = { rule "h.{l}.experts.{e}.up.weight" {
      into = "h.{l}.experts.w13", at = { index(0, pick("e", map.position)), span(1, 4, 4) }, layout = pin("ep", pick("e", map.owner)) } },
}
]],
   }
end

local vocabulary = {
   tp = 4, params = { { name = "embed.weight", shape = { 10, 4 } } }, live = { { name = "embed.weight", shape = { 4, 4 } } },
   text = 'return { rules = { rule "embed.weight" { layout = shard("tp", 0, { chunk = 4 }), pad = "zero", shape = { 10, "*" } } } }',
}

local plain = { loader = "column", output_dim = 0, tp_size = 2 }

local quantized = {
   tp = 2, host = { quantization = "fp8", pipeline_parallel_size = 2 }, params = { "m.weight" },
   live = { { name = "m.weight", shape = { 4, 8 }, attributes = plain } },
}

local refused = {
   tp = 2, params = { { name = "m.weight", dtype = "float32", shape = { 8, 8 } } },
   live = { { name = "m.weight", shape = { 5, 8 },
              attributes = { loader = "column", output_dim = 0, tp_size = 4, packed_dim = 1, is_transposed = true } } },
}

local modules = {
   tp = 2, params = { "m.weight", "m.scale", "n.weight" },
   live = { { name = "m.weight", shape = { 4, 8 }, attributes = plain }, { name = "m.scale", attributes = { loader = "own" } },
            { name = "n.weight", shape = { 4, 8 }, attributes = plain } },
}

local odds = {
   tp = 2,
   params = { { name = "embed.weight", shape = { 8, 4 } }, { name = "head.weight", shape = { 8, 4 } }, { name = "a.lora.weight" },
              { name = "norm.weight", shape = { 4 } } },
   live = { { name = "embed.weight", shape = { 6, 4 } }, { name = "visual.w", shape = { 2, 2 } }, { name = "scaled_norm.weight", shape = { 4 } } },
   text = [[
return {
   unsourced = { "visual.**" },
   rules = {
      rule "embed.weight" { layout = column, at = span(0, 1, 4) },
      rule "head.weight" { alias = "embed.weight" },
      rule "**.lora.*" { skip = "merged before it is sent" },
      rule "norm.weight" { full = "the host scales its norm", into = "scaled_norm.weight" },
   },
}
]],
}

local mistaken = {
   tp = 2, params = { { name = "a.weight", shape = { 8, 8 } }, { name = "b.weight", shape = { 8, 8 } } },
   live = { { name = "a.weight", shape = { 4, 8 } }, { name = "b.weight", shape = { 4, 8 } } },
   text = 'return { rules = { rule "a.weight" { into = "a.wait", layout = column }, rule "b.weight" { layout = column } } }',
}

local packed = {
   tp = 1, params = { { name = "gate_up", shape = { 2, 4, 8 } } },
   live = { { name = "w13", shape = { 2, 8, 4 } }, { name = "w13.bias", shape = { 4 } } },
   text = [[
return { rules = { rule "gate_up" { into = "w13", permute = { 0, 2, 1 },
   { from = span(2, 0, 4, 2), at = span(1, 0, 4, 2) },
   { from = span(2, 1, 4, 2), at = span(1, 1, 4, 2) },
   { into = "w13.bias", zero = true },
} } }
]],
}

local wide = {
   axes = { { "dp", 128 }, { "tp", 16 } }, trainers = { { "fsdp", 64 } },
   params = { { name = "h.up.weight", shape = { 1024, 4 }, source = { { axis = "fsdp", shard = 0 } } } },
   live = { { name = "h.up.weight", shape = { 64, 4 } } }, text = 'return { rules = { rule "**.up.weight" { layout = column } } }',
}

local function many_rules()
   local lines = {}
   for i = 1, 999 do
      lines[i] = ('rule "h.{l}.part%d.weight" {},'):format(i)
   end
   return {
      params = { { name = "h.3.up.weight" } }, live = { { name = "h.3.up.weight" } },
      text = "return { rules = {\n" .. table.concat(lines, "\n") .. '\nrule "h.{l}.up.weight" {} } }',
   }
end

-- ---- questions ----

-- file, what it shows, world, name, rank, options
local questions = {
   { "fused-k", "a part of a fused qkv with fewer KV heads than workers, after renames", fused, "trunk.0.k_proj.weight", 4 },
   { "fused-q-rank", "one worker's slice of it, piece by piece", fused, "_fsdp_wrapped_module.trunk.0.q_proj.weight", 5, { one_rank = true } },
   { "fused-live", "who fills a fused qkv", fused, "language_model.0.qkv_proj.weight", 6 },
   { "pinned", "a layer that a where pins to a stage", stages, "h.1.up.weight", 2 },
   { "elsewhere", "a live tensor that other workers have", stages, "h.1.up.weight", 2, { live = true } },
   { "expert", "an expert in a slab", experts(), "h.0.experts.3.up.weight", 2 },
   { "expert-slab", "a slab half of which nobody writes, as allowed", experts(), "h.0.experts.w13", 2 },
   { "vocabulary", "a padded vocabulary", vocabulary, "embed.weight", 3 },
   { "vocabulary-padding", "a vocabulary of which one worker has only padding", vocabulary, "embed.weight", 4, { one_rank = true } },
   { "quantized", "a parameter that is full by quantization and stages", quantized, "m.weight", 1 },
   { "refused", "one that is full by every other condition of the default resolver", refused, "m.weight", 1 },
   { "module", "one that is full since its module has a full one", modules, "m.weight", 1 },
   { "module-cause", "the one that keeps its module from direct", modules, "m.scale", 1 },
   { "alias", "an alias", odds, "head.weight", 1 },
   { "skip", "a skip", odds, "a.lora.weight", 1 },
   { "full-rule", "one that a rule leaves to load_weights", odds, "norm.weight", 1 },
   { "loaded", "a live tensor that load_weights writes", odds, "scaled_norm.weight", 1 },
   { "unsourced", "a live tensor that may stay unwritten", odds, "visual.w", 1 },
   { "unwritten", "bytes that nobody writes, in a plan that is refused for them", odds, "embed.weight", 1 },
   { "mistake", "a rule with a mistake", mistaken, "a.weight", 1 },
   { "beside-mistake", "a parameter beside one whose rule has a mistake", mistaken, "b.weight", 1 },
   { "interleaved", "strips that interleave, transposed, and one that clears", packed, "gate_up", 1 },
   { "interleaved-live", "a live tensor that two strips fill by turns", packed, "w13", 1 },
   { "cleared", "a live tensor that a rule clears", packed, "w13.bias", 1 },
   { "wide", "2,048 workers as a few groups", wide, "h.up.weight", 64 },
   { "rules", "the nearest of a thousand rules", many_rules(), "h.3.up.weight", 1 },
   { "pattern", "what a pattern finds", odds, "*.weight", 1 },
   { "braces", "what a pattern of rule files finds", odds, "{x=embed|norm}.weight", 1 },
   { "summary", "what is full and what is unwritten", modules, "", 1 },
   { "summary-unwritten", "the same under rules that leave bytes", odds, "", 1 },
}

local function golden(name, text)
   local path = ("spec/script/explain/%s.txt"):format(name)
   if WRITE then
      files.write(path, text)
   end
   return assert(files.read(path))
end

local function ask(case, name, options)
   local json, problem, prepared = resolving.explain(case, name, options)
   assert(json, problem)
   return cjson.decode(json), prepared
end

describe("explain shows", function()
   for _, question in ipairs(questions) do
      local file, what, case, name, rank, options = unpack(question)
      it(what, function()
         local answer = ask(case, name, { rank = rank, one_rank = options and options.one_rank })
         if options and options.live then
            answer.parameter = nil
         end
         local text = explanation.text(answer)
         assert.equal(golden(file, text), text)
      end)
   end

   it("every rule tried, every worker and every match where all is asked for", function()
      assert.equal(999, #ask(many_rules(), "h.3.up.weight", { rank = 1, all = true }).parameter.rules.passed)
      assert.equal(16, #ask(wide, "h.up.weight", { rank = 64, all = true }).parameter.targets[1].workers)
      assert.equal(8, #ask(wide, "h.up.weight", { rank = 64 }).parameter.targets[1].workers)
   end)

   it("near names of both kinds where nobody has the name", function()
      local answer = ask(fused, "language_model.0.qkv_proj.wight", { rank = 4 })
      assert.same({ { name = "language_model.0.qkv_proj.weight", kind = "live" } }, answer.near)
      answer = ask(fused, ".v_proj", { rank = 4 })
      assert.same({ { name = "trunk.0.v_proj.weight", kind = "parameter" } }, answer.near)
      assert.equal("no parameter and no live tensor is called .v_proj\n   near: trunk.0.v_proj.weight (parameter)", explanation.unknown(answer))
   end)

   it("nothing under a key that lua/EXPLAIN.md does not tell of", function()
      local page = assert(files.read("lua/EXPLAIN.md"))
      local function look(value)
         for key, item in pairs(value) do
            if type(key) == "string" then
               assert.truthy(page:find("`" .. key .. "`", 1, true), key)
            end
            if type(item) == "table" then
               look(item)
            end
         end
      end
      for _, question in ipairs(questions) do
         local _, _, case, name, rank, options = unpack(question)
         look(ask(case, name, { rank = rank, one_rank = options and options.one_rank }))
      end
   end)

   it("the mistake of the parameter that is asked for, however many others have one", function()
      local case = { params = {}, live = {}, text = 'return { rules = { rule "a.{n}" { into = "b.{n}" } } }' }
      for i = 1, 40 do
         case.params[i] = ("a.%d"):format(i)
      end
      local function mistake(number)
         return ask(case, ("a.%d"):format(number), { rank = 1 }).parameter.problem
      end
      assert.equal('FILE:1: rule "a.{n}": a.40 goes into b.40, which is no live tensor', mistake(40))
      local listed = ask(case, "a.*", { rank = 1 }).matches.parameters
      assert.equal('FILE:1: rule "a.{n}": a.16 goes into b.16, which is no live tensor', listed[16].problem)
      assert.equal("not decided: too many parameters before it have mistakes", listed[17].problem)
   end)

   it("that a parameter ends full where it must not", function()
      local case = { params = { { name = "a", allow_full = false } }, live = {}, host = { quantization = "fp8" } }
      local answer = ask(case, "a", { rank = 1 })
      assert.equal("default resolver: a ends full, and its allow_full_fallback is false: the host is quantized (fp8)",
         answer.parameter.problem)
      assert.same({ "the host is quantized (fp8)", "no live parameter has its name" }, answer.parameter.why_not_direct)
      assert.equal(answer.parameter.problem, answer.problem)
   end)

   it("what is wrong with a pattern", function()
      assert.equal("the pattern has an empty value in {p=a|}", ask(fused, "x.{p=a|}", { rank = 4 }).bad_pattern)
   end)

   it("what is wrong with a rule file as an error", function()
      local json, problem = resolving.explain({ params = { "a" }, live = {}, text = "return {\n rles = {} }" }, "a", { rank = 1 })
      assert.is_nil(json)
      assert.equal("explain: FILE:2: unknown key 'rles' (did you mean rules?)", problem)
   end)
end)

-- ---- against the program ----

-- Bytes by trainer that a worker's program copies for one parameter.
local function copied(prepared, rank, number)
   local program, err, bytes = ffi.gc(ffi.new("slc_program"), C.slc_program_clear), inside.error(), {}
   assert(C.slc_program_compile(prepared.plan, prepared.live, rank, program, err) == 0, inside.text(err))
   local segment = program.segment[number]
   for i = 0, segment.ncopies - 1 do
      local copy = segment.copy[i]
      bytes[copy.peer] = (bytes[copy.peer] or 0) + tonumber(copy.bytes)
   end
   return bytes
end

local function explained(parameter)
   local bytes = {}
   for _, target in ipairs(parameter.targets) do
      for _, group in ipairs(target.workers or {}) do
         for _, piece in ipairs(group.pieces) do
            bytes[piece.trainer] = (bytes[piece.trainer] or 0) + piece.bytes
         end
      end
   end
   return bytes
end

-- Calls f with the indices of each element of a box, ranges { from, to, step } each, the last dim fastest.
local function each_element(box, f)
   local at = {}
   local function walk(d)
      if d > #box then
         return f(at)
      end
      for index = box[d][1], box[d][2] - 1, box[d][3] or 1 do
         at[d] = index
         walk(d + 1)
      end
   end
   walk(1)
end

local function linear(at, shape)
   local number = 0
   for d, extent in ipairs(shape) do
      number = number * extent + at[d]
   end
   return number
end

local function list(array, count)
   local items = {}
   for i = 1, count do
      items[i] = tonumber(array[i - 1])
   end
   return items
end

-- The ranges of a box that a view or a strip shows: those that select one index are gone.
local function shown(box, ranges)
   local dims = {}
   for d = 1, #box do
      if not ranges[d - 1].select then
         dims[#dims + 1] = d
      end
   end
   return dims
end

-- By live name and element, the element of the parameter that explain says is there.
local function said(prepared, number, parameter)
   local param, found = C.slc_plan_at(prepared.plan, number), {}
   for t, target in ipairs(parameter.targets) do
      for _, group in ipairs(target.workers or {}) do
         local live = C.slc_live_set_find(prepared.live, target.live)
         local item = param.target[t - 1]
         local live_dims, dims = shown(group.live, item.view.range), shown(group.source, item.source)
         local live_shape, shape = list(live.shape, live.ndim), list(param.shape, param.ndim)
         each_element(group.live, function(at)
            local from = {}
            for d, range in ipairs(group.source) do
               from[d] = range[1]
            end
            for i, d in ipairs(live_dims) do
               local range, to = group.live[d], dims[(target.permute and target.permute[i] or i - 1) + 1]
               from[to] = group.source[to][1] + (at[d] - range[1]) / (range[3] or 1) * (group.source[to][3] or 1)
            end
            found[target.live .. " " .. linear(at, live_shape)] = linear(from, shape)
         end)
      end
   end
   return found
end

-- The same as the program copies it.
local function moved(prepared, rank, number)
   local program, err, found = ffi.gc(ffi.new("slc_program"), C.slc_program_clear), inside.error(), {}
   assert(C.slc_program_compile(prepared.plan, prepared.live, rank, program, err) == 0, inside.text(err))
   local param, segment, box = C.slc_plan_at(prepared.plan, number), program.segment[number], ffi.new("slc_box")
   local item, shape = tonumber(param.dtype.bytes), list(param.shape, param.ndim)
   for c = 0, segment.ncopies - 1 do
      local copy = segment.copy[c]
      assert(C.slc_layout_box(param.source, param.ndim, param.shape, copy.peer, box))
      local name = ffi.string(prepared.live.item[copy.buffer].name)
      local function place(source, destination)
         local rest, at = tonumber(source) / item, {}
         for d = param.ndim, 1, -1 do
            local extent = tonumber(box.high[d - 1] - box.low[d - 1])
            at[d] = tonumber(box.low[d - 1]) + rest % extent
            rest = math.floor(rest / extent)
         end
         found[name .. " " .. tonumber(destination) / item] = linear(at, shape)
      end
      local function walk(d, source, destination)
         if d == copy.ndim then
            for byte = 0, tonumber(copy.run) - 1, item do
               place(source + byte, destination + byte)
            end
            return
         end
         for i = 0, tonumber(copy.dim[d].count) - 1 do
            walk(d + 1, source + i * copy.dim[d].source, destination + i * copy.dim[d].destination)
         end
      end
      walk(0, copy.source, copy.destination)
   end
   return found
end

describe("explain and the program agree on which element lies where:", function()
   local worlds = { ["a fused qkv"] = { fused, 4, 7 }, stages = { stages, 2, 3 }, experts = { experts(), 2, 5 },
                    ["a padded vocabulary"] = { vocabulary, 1, 3 }, ["interleaved strips"] = { packed, 1, 1 } }
   for what, world in pairs(worlds) do
      it(what, function()
         local case, first, last = unpack(world)
         local looked_at = 0
         for number, param in ipairs(case.params) do
            for rank = first, last do
               local answer, prepared = ask(case, param.name, { rank = rank, one_rank = true })
               local elements = moved(prepared, rank, number - 1)
               assert.same(elements, said(prepared, number - 1, answer.parameter))
               for _ in pairs(elements) do
                  looked_at = looked_at + 1
               end
            end
         end
         assert.is_true(looked_at >= 32)
      end)
   end
end)

describe("explain and the program agree on who feeds whom:", function()
   local worlds = { ["a fused qkv"] = { fused, 4, 7 }, stages = { stages, 2, 3 }, experts = { experts(), 2, 9 },
                    ["full parameters"] = { quantized, 1, 2 }, ["a padded vocabulary"] = { vocabulary, 1, 3 },
                    ["interleaved strips"] = { packed, 1, 1 } }
   for what, world in pairs(worlds) do
      it(what, function()
         local case, first, last = unpack(world)
         for number, param in ipairs(case.params) do
            local name = type(param) == "table" and param.name or param
            for rank = first, last do
               local answer, prepared = ask(case, name, { rank = rank, one_rank = true })
               assert.is_nil(answer.problem)
               assert.same(copied(prepared, rank, number - 1), explained(answer.parameter))
            end
         end
      end)
   end
end)

-- ---- memory ----

describe("explain where memory ends", function()
   it("fails whole at any request", function()
      local function try(nth)
         C.slc_fail_allocation(nth, true)
         local good, json, problem = pcall(resolving.explain, fused, "trunk.0.k_proj.weight", { rank = 4 })
         return C.slc_fail_allocation(0, false), good and json, good and problem or json
      end
      local requests = try(0)
      for nth = 1, tonumber(requests), math.max(1, math.floor(tonumber(requests) / 60)) do
         local _, json, problem = try(nth)
         assert.is_true(not json and tostring(problem):find("memory") ~= nil, tostring(problem))
      end
   end)
end)
