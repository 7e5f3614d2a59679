--- Every family that ships, at every size, against the slow loader (spec/support/loader.lua); and that this would see a mistake.

local cjson = require "cjson"
local files = require "scripts.files"
local stdlib = require "posix.stdlib"
local families = require "spec.support.families"
local program = require "spec.cli.program"

describe("scripts/families", function()
   it("proves each family at each size: all direct, all covered, every byte that of the slow loader", function()
      local pipes, cells, good = {}, {}, true
      for i, sizes in ipairs({ "1,8", "2,4" }) do -- side by side: half of each is work of one thread
         pipes[i] = assert(io.popen(("luajit scripts/families.lua '%s' --json --tp %s"):format(program.path, sizes)))
      end
      for _, pipe in ipairs(pipes) do
         local result = cjson.decode(pipe:read("*a"))
         pipe:close()
         good = good and result.good
         for _, cell in ipairs(result.cells) do
            cells[#cells + 1] = cell
         end
      end
      local unfit, wrong, known = {}, {}, {}
      for _, cell in ipairs(cells) do
         local place = ("%s tp %d ep %d pp %d dp %d"):format(cell.case, cell.tp, cell.ep, cell.pp, cell.dp)
         known[cell.case] = true
         if cell.unfit then
            unfit[#unfit + 1] = place .. ": " .. cell.unfit
         elseif not (cell.direct == 1 and cell.covered and cell.exact) or cell.wrong then
            wrong[#wrong + 1] = place .. ": " .. tostring(cell.wrong)
         end
      end
      assert.same({}, wrong)
      assert.same({
         "BERT tp 8 ep 1 pp 1 dp 1: 12 query heads do not divide by 8", "BERT tp 8 ep 1 pp 2 dp 1: 12 query heads do not divide by 8",
      }, unfit)
      for _, case in ipairs(families.cases) do
         assert.is_true(known[case.name], case.name)
      end
      assert.is_true(good)
   end)

   for _, case in ipairs({
      { "--famly llama", "unknown or incomplete argument --famly" }, { "--family", "unknown or incomplete argument --family" },
      { "--tp 2,x", "--tp (2,x) must be a list of numbers" }, { "--family llama --tp 3", "no family and size is left" },
   }) do
      it("refuses " .. case[1], function()
         local text, code = program.shell(('luajit scripts/families.lua "$SLUICE" %s'):format(case[1]))
         assert.same({ ("families: %s; scripts/families --help tells\n"):format(case[2]), 2 }, { text, code })
      end)
   end
end)

-- Whoever adds a family adds it everywhere that a reader looks.
describe("the families that are described", function()
   local function sorted(set)
      local names = {}
      for name in pairs(set) do
         names[#names + 1] = name
      end
      table.sort(names)
      return table.concat(names, " ")
   end

   -- The words between two texts of a file, those in backticks where `quoted`.
   local function listed(path, from, to, quoted)
      local text = assert(files.read(path))
      local first, last = select(2, text:find(from, 1, true)), text:find(to, 1, true)
      local names = {}
      for name in text:sub(first + 1, last - 1):gmatch(quoted and "`([%w_]+)`" or "[%w_]+") do
         names[name] = name ~= "or" or nil
      end
      return names
   end

   local described = sorted(require("sluice.models").families)

   it("are those of README.md, lua/README.md and examples/deployments/README.md", function()
      assert.equal(described, sorted(listed("README.md", "Families that ship with Sluice are ", "; a file of your own can", true)))
      assert.equal(described, sorted(listed("lua/README.md", '(`rules = "llama"`): ', ". What families share", true)))
      assert.equal(described, sorted(listed("examples/deployments/README.md", "| `model.family` | ", "; needed where neither")))
   end)

   it("have a rule file each, beside those that several share", function()
      local named = listed("lua/README.md", "What families share stands in ", ". Without rules, the", true)
      for name in pairs(require("sluice.models").families) do
         named[name] = true
      end
      local there = {}
      for _, path in ipairs(require("posix.glob").glob("lua/sluice/rules/*.lua")) do
         there[path:match("([%w_]+)%.lua$")] = true
      end
      assert.equal(sorted(there), sorted(named))
   end)

   it("are all run by scripts/families", function()
      local run = {}
      for _, case in ipairs(families.cases) do
         run[case.family] = true
      end
      assert.equal(described, sorted(run))
   end)
end)

describe("the slow loader", function()
   local folder

   before_each(function()
      folder = assert(stdlib.mkdtemp("/tmp/sluice-families-XXXXXX"))
   end)

   after_each(function()
      program.cleanup()
      os.execute("rm -rf " .. folder)
   end)

   local function case_of(name)
      for _, case in ipairs(families.cases) do
         if case.name == name then
            return case
         end
      end
   end

   local function run_with(name, size, rules)
      local case = case_of(name)
      local options = { program = program.path, rules = program.file(rules, ".lua"), no_verify = true }
      return families.run(case, families.prepare(case, folder, 1), size, 1, options)
   end

   local dense = { tp = 2, ep = 1, pp = 1, dp = 1 }
   local mistakes = {
      { "gate and up exchanged", "Llama-3", dense, "worker 0: model.layers.0.mlp.gate_up_proj.weight differs at byte 0 of 21888", [[
         local gate = divide(required "intermediate_size", axes.tp)
         return { extends = "llama", rules = {
            rule "**.gate_proj.weight" { into = "**.gate_up_proj.weight", at = span(0, gate, gate), layout = column },
            rule "**.up_proj.weight" { into = "**.gate_up_proj.weight", at = span(0, 0, gate), layout = column },
         } }]] },
      { "a KV head on the wrong worker", "Qwen3-MoE", { tp = 4, ep = 1, pp = 1, dp = 1 },
         "worker 2: model.layers.0.self_attn.qkv_proj.weight differs at byte 3456 of 6912", [[
         local d = required "head_dim"
         return { extends = "qwen3_moe", rules = {
            rule "**.self_attn.k_proj.weight" { into = "**.self_attn.qkv_proj.weight", at = span(0, 2 * d, d),
               from = span(0, 0, d), layout = replicate },
         } }]] },
      { "the rows of a vocabulary cut evenly in place of in padded pieces", "Llama-3", dense,
         "worker 0 has 206640 live bytes, 202896 written, 3744 cleared, 0 neither; the loader writes 206640 and leaves 0", [[
         return { extends = "llama", rules = { rule "lm_head.weight" { layout = column, pad = "zero" } } }]] },
      { "experts spread round robin", "Qwen3-MoE", { tp = 2, ep = 2, pp = 1, dp = 1 },
         "worker 0: model.layers.0.mlp.experts.w2_weight differs at byte 5760 of 28800", [[
         local owner, position = {}, {}
         for e = 0, 9 do
            owner[e + 1], position[e + 1] = e % 2, math.floor(e / 2)
         end
         return { extends = "qwen3_moe", rules = {
            rule "**.experts.{e}.down_proj.weight" { into = "**.experts.w2_weight", at = index(0, pick("e", position)),
               layout = pin("ep", pick("e", owner)) },
         } }]] },
   }
   for _, mistake in ipairs(mistakes) do
      it("sees " .. mistake[1], function()
         local cell = run_with(mistake[2], mistake[3], mistake[5])
         assert.same({ mistake[4], 1, false }, { cell.wrong, cell.direct, cell.exact })
      end)
   end

   it("sees a parameter that is left to load_weights", function()
      local cell = run_with("Llama-3", dense, [[
         return { extends = "llama", rules = { rule "model.norm.weight" { full = "the host scales its last norm" } } }]])
      assert.equal("396864 bytes direct, 144 bytes full; the loader takes 397008 bytes", cell.wrong)
      assert.is_true(cell.exact and cell.direct < 1)
   end)

   -- The case many_sources: more trainers hold parts of a tensor than any library's fixed fan-in.
   it("finds every byte where 17 trainers hold the parts of one", function()
      local case = case_of("Llama-3")
      for _, size in ipairs({ { tp = 1, ep = 1, pp = 1, dp = 1 }, { tp = 4, ep = 1, pp = 1, dp = 1 } }) do
         local cell = families.run(case, families.prepare(case, folder, 1), size, 1,
            { program = program.path, trainer = { mesh = { { "fsdp", 17 } } } })
         assert.same({ nil, 1, true, true }, { cell.wrong, cell.direct, cell.covered, cell.exact })
      end
   end)

   it("tells a size that cannot be served", function()
      local case = case_of("BERT")
      local cell = families.run(case, families.prepare(case, folder, 1), { tp = 8, ep = 1, pp = 1, dp = 1 }, 1, { program = program.path })
      assert.same({ "12 query heads do not divide by 8", nil }, { cell.unfit, cell.wrong })
   end)
end)
