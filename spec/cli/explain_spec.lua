--- sluice explain as a program: arguments, exit codes, which worker it asks. What it says is spec/script/explain_spec.lua's matter.

local cjson = require "cjson"
local program = require "spec.cli.program"

local function explain(arguments, changes)
   local list = { "explain", program.deployment(changes) }
   for _, argument in ipairs(arguments) do
      list[#list + 1] = argument
   end
   local result = program.run(list)
   assert.same({}, result.left)
   return result
end

describe("sluice explain", function()
   after_each(program.cleanup)

   it("prints text, or with --json the answer itself", function()
      local name = "model.layers.0.self_attn.k_proj.weight"
      local result = explain({ name }, { rules = "llama" })
      assert.equal(0, result.code, result.err)
      assert.equal("parameter " .. name, result.out:match("^[^\n]*"))
      local answer = program.json(explain({ name, "--json" }, { rules = "llama" }))
      assert.equal("direct", answer.parameter.mode)
      assert.equal("model.layers.0.self_attn.qkv_proj.weight", answer.parameter.targets[1].live)
      assert.is_nil(answer.problem)
   end)

   it("asks the first worker that has a live tensor", function()
      local stages = { rules = "llama", worker = { mesh = { { "pp", 2 }, { "tp", 2 } } } }
      local name = "model.layers.1.self_attn.qkv_proj.weight"
      local answer = program.json(explain({ name, "--json" }, stages))
      assert.equal(5, answer.rank)
      assert.equal(3, #answer.live.writes)
      answer = program.json(explain({ name, "--json", "--rank", "3" }, stages))
      assert.same({ { 5, 6 } }, answer.live.elsewhere)
   end)

   it("tells strips that differ in elements and ranks only as one table", function()
      local rules = program.file([[
         local head = spread(4, 2)
         return { rules = { rule "qk" { into = "w", layout = pin("tp", each(head.owner)),
            { from = span(0, each(4, 4), 2), at = span(0, each(head.position, 2), 2) },
            { from = span(0, each(4, 4, 2), 2), at = span(0, each(head.position, 2, 4), 2) } } } }]], ".lua")
      local function list(name, rows)
         return program.file(cjson.encode({ { name = name, dtype = "float32", shape = { rows } } }), ".json")
      end
      local result = program.run({ "explain", "--checkpoint", list("qk", 16), "--live", list("w", 8), "--mesh", "tp=2", "--rules", rules, "qk" })
      assert.equal("", result.err)
      assert.equal("into     w, in 8 strips\n"
         .. "   ranks  at    live elements  elements of the parameter  bytes  from trainers\n"
         .. "   1      tp 0  [0:2]          [0:2]                      8 B    0\n"
         .. "   1      tp 0  [2:4]          [4:6]                      8 B    0\n"
         .. "   2      tp 1  [0:2]          [8:10]                     8 B    0\n"
         .. "   2      tp 1  [2:4]          [12:14]                    8 B    0\n"
         .. "   1      tp 0  [4:6]          [2:4]                      8 B    0\n"
         .. "   1      tp 0  [6:8]          [6:8]                      8 B    0\n"
         .. "   2      tp 1  [4:6]          [10:12]                    8 B    0\n"
         .. "   2      tp 1  [6:8]          [14:16]                    8 B    0\n", result.out:match("into .*"))
   end)

   it("says what is full and what is unwritten where no name is given", function()
      local result = explain({}, { rules = "llama" })
      assert.equal("no parameter is full\nevery byte of worker rank 3 is written in place\n", result.out)
      assert.equal(0, result.code)
   end)

   it("does not say what is unwritten of a plan that is refused before that is known", function()
      for _, rules in ipairs({ 'rule "w" { at = span(0, 0, 3) }', 'rule "v" {}' }) do
         local function list(name)
            return program.file(cjson.encode({ { name = name, dtype = "float32", shape = { 4 } } }), ".json")
         end
         local lists = { "--checkpoint", list("w"), "--live", list("w"), "--mesh", "tp=1",
                         "--rules", program.file("return { rules = { " .. rules .. " } }", ".lua") }
         local result = program.run({ "explain", unpack(lists) })
         assert.equal("no parameter is full\nwhat nothing writes in place is not known of a plan that is refused\n\nthis plan is refused: ",
            result.out:match("^.-this plan is refused: "))
         assert.is_nil(program.json(program.run({ "explain", "--json", unpack(lists) })).uncovered)
         result = program.run({ "repl", "-e", "uncovered()", unpack(lists) })
         assert.equal(1, result.code)
         assert.truthy(result.err:find("^uncovered: not known before every rule is right: /tmp/[^\n]*\n$"), result.err)
      end
   end)

   it("ends with 2 and near names for a name that nobody has", function()
      local result = explain({ "model.norm.wight" }, { rules = "llama" })
      assert.equal(2, result.code)
      assert.equal("", result.out)
      assert.equal("sluice: explain: no parameter and no live tensor is called model.norm.wight\n   near: model.norm.weight (parameter)\n"
         .. "   near: model.norm.weight (live tensor)\n", result.err)
      result = explain({ "model.norm.wight", "--json" }, { rules = "llama" })
      assert.equal(2, result.code)
      assert.equal("model.norm.weight", cjson.decode(result.out).near[1].name)
   end)

   it("refuses a rank that is no worker, and a pattern that is none", function()
      local result = explain({ "x", "--rank", "2" })
      assert.equal(2, result.code)
      assert.equal("sluice: explain: --rank 2 must be a worker's: 3 to 6\n", result.err)
      result = explain({ "{a" })
      assert.equal(2, result.code)
      assert.equal("sluice: explain: {a: the pattern has a segment '{a' that is no capture: {name} is a whole segment, {name=a|b} lists "
         .. "its values\n", result.err)
   end)

   it("explains a parameter under a rule file that has a mistake elsewhere, and says the mistake", function()
      local rules = program.file('return { extends = "llama", rules = { rule "model.norm.weight" { into = "model.nrm.weight" } } }', ".lua")
      local answer = program.json(explain({ "model.layers.0.mlp.up_proj.weight", "--json", "--rules", rules }))
      assert.equal("direct", answer.parameter.mode)
      assert.equal(rules .. ':1: rule "model.norm.weight": model.norm.weight goes into model.nrm.weight, which is no live tensor (did you '
         .. "mean model.norm.weight?)", answer.problem)
   end)
end)
