--- What README.md, lua/INIT_INFO.md and lua/EXPLAIN.md show does what they say. (The two commands are run by .ci/run, C examples compiled by
-- scripts/lint; spec/cli/repl_spec.lua and attach_spec.lua have the consoles.)

local cjson = require "cjson"
local files = require "scripts.files"
local program = require "spec.cli.program"
local world = require "spec.support.world"

local function text(path)
   return assert(files.read(path or "README.md"))
end

local function blocks(language, path)
   local found = {}
   for block in text(path):gmatch("\n```" .. language .. "\n(.-\n)```") do
      found[#found + 1] = block
   end
   return found
end

describe("README.md", function()
   local rules = blocks("lua")[1]

   after_each(program.cleanup)

   local function plan(source)
      return program.run({"plan", "examples/deployments/llama3-8b.lua", "--json", "--rules", program.file(source, ".lua")})
   end

   it("shows a rule file that places everything and leaves one parameter to the host", function()
      local result = plan(rules)
      assert.equal("", result.err)
      assert.equal(0, result.code)
      local json = cjson.decode(result.out)
      assert.equal(1, json.full.parameters)
      assert.equal("model.norm.weight", json.coverage.uncovered[1].name)
      assert.is_nil(json.coverage.uncovered[2])
   end)

   it("shows an init info of each form that can be sealed", function()
      local general, seed = unpack(blocks("json", "lua/INIT_INFO.md"))
      general, seed = cjson.decode(world.seal(general)), cjson.decode(world.seal(seed))
      assert.equal(64, #general.source_digest)
      assert.equal("layers.0.q_proj.weight", general.params[1].name)
      assert.equal(64, #seed.source_digest)
      assert.equal("norm.weight", seed.params[1].name)
   end)

   it("shows what explain says, but for which rules of a family come before, and where they stand", function()
      local function without_lines(shown)
         return (shown:gsub("(sluice/rules/)[%w_]+%.lua:?%d*", "%1"):gsub("tried %d+ of %d+", "tried"):gsub("  +", "  ")
            :gsub("[^\n]*  no: [^\n]*\n", ""):gsub("  %(the nearest [^\n]*\n", ""):gsub("  %d+(  [^\n]*  yes)", "%1"))
      end
      for _, path in ipairs({ "README.md", "lua/EXPLAIN.md" }) do
         local line, output = text(path):match("\n```\n%$ build/sluice (explain [^\n]*)\n(.-)```")
         local arguments = {}
         for word in line:gmatch("%S+") do
            arguments[#arguments + 1] = word
         end
         local result = program.run(arguments)
         assert.equal("", result.err)
         assert.equal(without_lines(output), without_lines(result.out))
      end
   end)

   it("shows how what simulate says begins", function()
      local line, output = text():match("\n```\n%$ build/sluice (simulate [^\n]*)\n(.-)```")
      local arguments = {}
      for word in line:gmatch("%S+") do
         arguments[#arguments + 1] = word
      end
      local result = program.run(arguments)
      assert.equal(0, result.code, result.err)
      assert.equal(output, result.out:sub(1, #output))
   end)

   it("shows a picture that its command draws", function()
      local command = text():match("\n<!%-%- picture %-%->\n```\nbuild/sluice (.-)\n```"):gsub("\\\n", "")
      local arguments = {}
      for word in command:gmatch("%S+") do
         arguments[#arguments + 1] = (word:gsub("'", "")) -- a shell's quotes
      end
      local shown, drawn = arguments[#arguments], program.file("", ".svg")
      arguments[#arguments] = drawn
      local result = program.run(arguments)
      assert.equal("", result.err)
      local function content(path)
         return assert(files.read(path))
      end
      assert.equal(content(shown), content(drawn))
      assert.truthy(text():find("](" .. shown .. ")", 1, true))
   end)

   it("shows what a slip in it answers", function()
      local result = plan((rules:gsub("qkv_proj", "qkv")))
      assert.equal(2, result.code)
      assert.truthy(result.err:find(':9: rule "model.layers.{l}.self_attn.q_proj.weight": model.layers.0.self_attn.q_proj.weight goes into '
         .. "model.layers.0.self_attn.qkv.weight, which is no live tensor (did you mean model.layers.0.self_attn.qkv_proj.weight?)",
         1, true), result.err)
   end)
end)
