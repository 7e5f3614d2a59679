-- The command line: help, wrong usage, wrong input, and exit codes. No rank is started in any of these.

local cjson = require "cjson"
local program = require "spec.cli.program"
local safetensors = require "spec.support.safetensors"
local stat = require "posix.sys.stat"

local commands = { "run", "plan", "explain", "trainer", "worker", "rank", "version" }

local function refused(result, pattern, code)
   assert.equal(code or 2, result.code, result.err)
   assert.equal("", result.out)
   assert.truthy(result.err:find(pattern, 1, true), result.err)
   assert.same({}, result.left)
end

describe("sluice", function()
   after_each(program.cleanup)

   it("shows its help, with an example and the exit codes", function()
      local result = program.run({ "--help" })
      assert.equal(0, result.code)
      for _, command in ipairs(commands) do
         assert.truthy(result.out:find("\n   " .. command .. " ", 1, true), command)
      end
      assert.truthy(result.out:find("Example:\n   sluice run ", 1, true))
      assert.truthy(result.out:find("Exit codes: 0 good; 1 a run failed or a byte differs; 2 wrong usage or wrong input; 130 cancelled.",
         1, true))
   end)

   for _, command in ipairs(commands) do
      it("shows an example in the help of " .. command, function()
         local result = program.run({ command, "--help" })
         assert.equal(0, result.code)
         assert.truthy(result.out:find("Example:\n   [^\n]*sluice " .. command), result.out)
         assert.truthy(result.out:find("--json", 1, true))
      end)
   end

   it("answers wrong usage as JSON, too, where that is asked for", function()
      for _, case in ipairs({ { "unknown option '--nonsense'", "plan", "--nonsense", "--json" },
                              { "--node: '0' is no whole number above 0", "simulate", "--json", "x", "--node", "0" } }) do
         local text = case[1] .. "\nTry: sluice " .. case[2] .. " --help"
         local result = program.run({ unpack(case, 2) })
         assert.same({ error = text, exit = 2, verified = false }, program.json(result))
         assert.equal("sluice: " .. text .. "\n", result.err)
         assert.equal(2, result.code)
      end
   end)

   it("tells what staging full parameters need on a worker, and on a trainer none", function()
      local path = program.deployment({ rules = cjson.null })
      local function plan(...)
         return program.json(program.run({ "plan", path, "--json", ... }))
      end
      local largest = plan().largest_full_bytes
      assert.truthy(largest > 0)
      assert.equal(2 * largest, plan().staging_bytes)
      assert.equal(5 * largest, plan("--set", "staging_slots=5").staging_bytes)
      assert.equal(0, plan("--rank", "0").staging_bytes)
      assert.truthy(program.run({ "plan", path }).out:find("\nstaging [%d.]+ %a+ at most: full parameters pass"))
   end)

   it("tells its version", function()
      local result = program.run({ "version" })
      assert.equal(0, result.code)
      assert.truthy(result.out:match("^sluice %d+%.%d+%.%d+\n$"))
      assert.equal(result.out:match("%S+\n"):sub(1, -2), program.json(program.run({ "version", "--json" })).version)
   end)

   it("says when its output could not be written, whatever the command", function()
      for _, command in ipairs({ "--help", "version", "version --json", "run --help", "plan " .. program.deployment() .. " --json",
         "run " .. program.deployment() .. " --quiet", "run " .. program.deployment() .. " --quiet --json" }) do
         local text, code = program.shell("$SLUICE " .. command .. " >/dev/full")
         assert.same({ "sluice: cannot write to standard output: No space left on device\n", 1 }, { text, code }, command)
      end
   end)

   it("needs a command", function()
      refused(program.run({}), "a command is required")
   end)

   it("refuses a command that it does not have", function()
      refused(program.run({ "runn" }), "unknown command 'runn'")
   end)

   local wrong = {
      { { "run" }, "missing argument 'deployment'" },
      { { "run", "a.lua", "b.lua" }, "too many arguments" },
      { { "run", "a.lua", "--layer", "2" }, "unknown option '--layer'" },
      { { "run", "a.lua", "--updates", "0" }, "sluice: --updates: '0' is no whole number above 0" },
      { { "run", "a.lua", "--updates", "two" }, "'two' is no whole number above 0" },
      { { "run", "a.lua", "--timeout=-1" }, "'-1' is no number above 0" },
      { { "run", "a.lua", "--timeout", "-1" }, "'-1' is no number above 0" },
      { { "run", "a.lua", "--updates", "-.5" }, "'-.5' is no whole number above 0" },
      { { "run", "a.lua", "--memory", "cloud" }, "argument for option '--memory' must be one of 'shared', 'ordinary'" },
      { { "plan", "a.lua", "--rank=-1" }, "'-1' is no rank" },
      { { "worker", "a.lua", "--port", "65536" }, "sluice: --port: '65536' is no port from 1 to 65535" },
      { { "version", "now" }, "too many arguments" },
   }
   for _, case in ipairs(wrong) do
      it("refuses: sluice " .. table.concat(case[1], " "), function()
         refused(program.run(case[1]), case[2])
      end)
   end
end)

describe("a deployment", function()
   after_each(program.cleanup)

   local function run(changes, ...)
      return program.run({ "run", program.deployment(changes), ... })
   end

   it("that is not there is an error with its name", function()
      refused(program.run({ "run", "/nowhere/deployment.lua" }), "sluice: deployment: /nowhere/deployment.lua: No such file or directory\n")
   end)

   it("that is a folder is an error", function()
      refused(program.run({ "run", "/tmp" }), "sluice: deployment: /tmp: it must be a regular file, not a folder\n")
   end)

   it("that is a pipe or a device is an error, as are rules and a checkpoint, and nothing waits for them", function()
      local pipe = program.file("")
      os.remove(pipe)
      assert(stat.mkfifo(pipe, 384))
      for path, kind in pairs({ [pipe] = "pipe", ["/dev/zero"] = "device" }) do
         refused(program.run({ "run", path }, nil, 20), ("sluice: deployment: %s: it must be a regular file, not a %s\n"):format(path, kind))
         refused(run({}, "--rules", path), ("sluice: rules: %s: it must be a regular file, not a %s\n"):format(path, kind))
         refused(run({ model = { family = "bert", checkpoint = path } }), ("sluice: checkpoint: %s must be a regular file\n"):format(path))
      end
   end)

   it("that is longer than any deployment is not read", function()
      local path = program.file((" "):rep(1024 * 1024 + 1))
      refused(program.run({ "run", path }), ("sluice: deployment: %s: it must have at most 1048576 bytes\n"):format(path))
   end)

   it("with a key that is misspelt names the key and the nearest one", function()
      refused(run({ trainr = { mesh = { { "tp", 1 } } } }), 'trainr')
   end)

   it("with a mesh that is none names the path", function()
      refused(run({ worker = { mesh = { { "tp", 0 } } } }), "deployment: worker.mesh[1][2] (0)")
   end)

   it("whose worker mesh the model does not fit is refused before any rank starts", function()
      refused(run({ worker = { mesh = { { "tp", 3 } } } }), "deployment: ")
   end)

   it("that is no JSON says so", function()
      refused(program.run({ "run", program.file('{"model": ') }), "is not JSON")
   end)

   it("that is Lua with a fault names its line", function()
      refused(program.run({ "run", program.file("return {\n   model = ,\n}\n", ".lua") }), ".lua:2:")
   end)

   it("that reaches for the system is refused", function()
      refused(program.run({ "run", program.file('return { model = os.getenv("HOME") }', ".lua") }), ".lua:1:")
   end)

   it("that never ends is refused", function()
      refused(program.run({ "run", program.file("while true do end", ".lua") }), "deployment: ")
   end)

   it("takes settings from the command line and checks them, too", function()
      refused(run({}, "--set", "worker.mesh.1.2=0"), "deployment: worker.mesh[1][2] (0)")
      for _, nonsense in ipairs({ "nonsense", ".=1", "a..b=1", ".a=1", "a.=1" }) do
         refused(run({}, "--set", nonsense), ('the setting "%s" must read key.key=value'):format(nonsense))
      end
      refused(run({}, "--set", "nan=1"), 'the table has the unknown key "nan"')
      for text, shown in pairs({ NaN = "nan", ["1e999"] = "inf", ["-1e999"] = "-inf" }) do
         refused(run({}, "--set", "host.x=" .. text), ("sluice: deployment: host.x (%s) must be a finite number\n"):format(shown))
      end
      refused(run({}, "--transport", "pigeon"), "pigeon")
      refused(run({}, "--road", "dirt"), "dirt")
   end)

   it("that wants more memory than there is says how much is wanted and there", function()
      local path = program.file(cjson.encode({ model = { size = "Llama-3-70B" }, trainer = { mesh = { { "dp", 64 } } },
         worker = { mesh = { { "dp", 8 }, { "tp", 8 } } } }))
      local result = program.run({ "run", path })
      assert.equal(2, result.code)
      assert.truthy(result.err:match("^sluice: memory: .* needs %d+ bytes %(.*: shards .*, live tensors .*, staging .*%) "
         .. "and %d+ are there %(.*%): use fewer %-%-layers\n$"), result.err)
   end)

   it("gives one JSON object that says the error when JSON is asked for", function()
      local result = run({ worker = { mesh = { { "tp", 0 } } } }, "--json")
      local object = program.json(result)
      assert.equal(2, result.code)
      assert.is_false(object.verified)
      assert.equal(2, object.exit)
      assert.truthy(object.error:find("worker.mesh[1][2] (0)", 1, true))
   end)
end)

describe("a checkpoint", function()
   after_each(program.cleanup)

   local function checkpoint(header, data, length)
      return program.file(safetensors.length(length or #header) .. header .. data, ".safetensors")
   end

   local function run(path)
      return program.run({ "run", program.file(cjson.encode({ model = { family = "bert", checkpoint = path },
         trainer = { mesh = { { "fsdp", 3 } } }, worker = { mesh = { { "tp", 2 } } } })) })
   end

   it("that is not there is an error with its path", function()
      refused(run("/nowhere/model.safetensors"), "sluice: checkpoint: /nowhere/model.safetensors: nothing is there\n")
      refused(run("nowhere.safetensors"), "nowhere.safetensors: nothing is there, neither beside the deployment (/tmp/) nor in the current "
         .. "directory\n")
      refused(run("../build/minilm-nowhere"), "; scripts/fetch-minilm brings it\n")
   end)

   it("that is cut off is refused", function()
      refused(run(checkpoint('{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', "12345678")), "checkpoint: ")
   end)

   it("whose header claims 2^60 bytes is refused", function()
      refused(run(checkpoint("{}", "", 2 ^ 60)), "checkpoint: ")
   end)

   it("that lacks a tensor names it", function()
      refused(run(checkpoint('{"embeddings.word_embeddings.weight":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}}', "1234")),
         "checkpoint: ")
   end)
end)
