--- sluice repl: its words and rules through standard input and -e, and its keys at a pseudo terminal.

local cjson = require "cjson"
local files = require "scripts.files"
local program = require "spec.cli.program"
local signal = require "posix.signal"
local terminal = require "spec.cli.terminal"
local world = require "spec.support.world"

local function file(text, ending)
   return program.file(text, ending or ".lua")
end

-- Runs statements; the result of program.run, with `deployment` under rules "llama" unless it is given.
local function ask(statements, more)
   local arguments = { "repl", more and more.deployment or program.deployment({ rules = "llama" }) }
   for _, statement in ipairs(statements) do
      arguments[#arguments + 1] = "-e"
      arguments[#arguments + 1] = statement
   end
   for _, argument in ipairs(more or {}) do
      arguments[#arguments + 1] = argument
   end
   local result = program.run(arguments, more and more.environment)
   assert.same({}, result.left)
   return result
end

local function answer(...)
   local result = ask({ ... })
   assert.equal("", result.err)
   assert.equal(0, result.code)
   return result.out
end

describe("sluice repl, without a terminal", function()
   after_each(program.cleanup)

   it("gives a plan as plain values", function()
      assert.equal("21\n21\n[0:64] -> 'model.norm.weight' [:] () of 'dense'\n3 4 dense\n20\n", answer("plan.totals.direct.parameters", "#params",
         'for _, param in ipairs(params) do if param.name == "model.norm.weight" then print((param.destination:gsub("direct ", ""))) end end',
         'topology.trainers .. " " .. topology.workers .. " " .. topology.worker_meshes[1].name',
         "x = #live + 5; print(x)"))
   end)

   it("prints records as a table, a map by its keys in order, and every result of an expression", function()
      assert.equal('name  a    bytes\nx     1    1.50 KB\ny     2.5\n', answer('{ { name = "x", a = 1, bytes = 1500 }, { name = "y", a = 2.5 } }'))
      assert.equal('a  1\nb  { 1, 2, "three" }\nc  true\n', answer('{ c = true, b = { 1, 2, "three" }, a = 1 }'))
      assert.equal("1\nnil\n2\n", answer("1, nil, 2"))
      assert.equal("", answer("local unseen = 1"))
   end)

   it("answers explain, find, why_full and uncovered", function()
      local out = answer('explain "model.norm.weight"', 'find "*.k_proj.*"', 'find("o_proj").parameters_in_all', "why_full()", "uncovered()")
      assert.truthy(out:find('^parameter model.norm.weight\n'))
      assert.truthy(out:find('\n2 parameters\n   model.layers.0.self_attn.k_proj.weight  direct  model.layers.0.self_attn.qkv_proj.weight', 1, true))
      assert.truthy(out:find("\n2\nno parameter is full\nevery byte of worker rank 3 is written in place\n$"), out)
      assert.equal("4\n", answer('explain("model.norm.weight", { rank = 4 }).parameter.targets[1].workers[1].ranks[1][1]'))
   end)

   it("says who sends what to whom, and both sides agree", function()
      assert.equal("true\n", answer([[(function()
         local sent, received = 0, 0
         for i = 0, topology.trainers - 1 do sent = sent + trainer(i):sends().bytes end
         for i = 0, topology.workers - 1 do received = received + worker(i):received().bytes end
         local peer
         for _, item in ipairs(trainer(0):sends().peers) do if item.rank == 4 then peer = item.bytes end end
         for _, item in ipairs(worker(1):received().peers) do if item.rank == 0 then peer = peer - item.bytes end end
         return sent == received and sent > 0 and peer == 0
      end)()]]))
      local out = answer("worker(1)", "worker(1):received()", "bytes()")
      assert.truthy(out:find("^worker 1, world rank 4; worker%(1%):received%(%) tells more\nworker 1 %(rank 4%) receives "), out)
      assert.truthy(out:find("404.10 KB in all\n$"))
   end)

   it("takes a rule in front, says what it did, and takes it away again", function()
      local out = answer('rule "model.layers.{l}.mlp.down_proj.weight" {\n full = "repacked" }', "why_full()", "rules[1].parameters", "forget()",
         "diff()")
      assert.truthy(out:find("\n2 changed, 0 only in a, 0 only in b\nchanged  model.layers.*.mlp.down_proj.weight, 2 parameters", 1, true), out)
      assert.truthy(out:find("\n2           32.77 KB  repacked  (prompt):5  model.layers.0.mlp.down_proj.weight\n2\n", 1, true), out)
      assert.truthy(out:find("\nnothing changed\n$"))
   end)

   it("saves the rules that were made as a file that works", function()
      local path = os.tmpname()
      os.remove(path)
      local out = answer('rule "model.norm.weight" { full = "a" }', 'rule "model.norm.weight" { full = "b" }', ("save %q"):format(path))
      assert.equal("wrote " .. path, out:match("([^\n]*)\n$"))
      local saved = ask({ "why_full()[1].reason" }, { "--rules", path })
      assert.equal("b\n", saved.out, saved.err)
      local result = ask({ 'rule "model.norm.weight" { full = "a" }', ("save %q"):format(path), "forget()", 'save "x"' })
      os.remove(path)
      assert.equal(path .. " is there already\nno rule was made here\n", result.err)
   end)

   it("goes on after a mistake, and ends with 1", function()
      local result = ask({ "plna", 'rule "model.norm.weight" { ful = "x" }', "error('mine')", "1 +", "worker(9)", 'explain "model.norm.wight"',
         'find "{a"', "what_if(3)", "forget()", "edit()", "#params" })
      assert.equal(1, result.code)
      assert.equal("21\n", result.out)
      assert.equal("unknown name 'plna' (did you mean plan?)\n"
         .. 'destination: (prompt):5: rule "model.norm.weight": unknown key \'ful\' (did you mean full?)\n'
         .. "prompt:1: mine\n"
         .. "prompt:1: unexpected symbol near '1'\n"
         .. "worker (9) must be a whole number from 0 to 3\n"
         .. "no parameter and no live tensor is called model.norm.wight\n   near: model.norm.weight (parameter)\n"
         .. "   near: model.norm.weight (live tensor)\n"
         .. "{a: the pattern has a segment '{a' that is no capture: {name} is a whole segment, {name=a|b} lists its values\n"
         .. "what_if must be followed by sizes of axes in braces: what_if{ tp = 8 }\n"
         .. "no rule was made here\n"
         .. 'llama ships with Sluice; save "mine.lua" writes a file that extends it\n', result.err)
   end)

   it("says where quotes are missing", function()
      local result = ask({ "explain model.norm.weight", "find *.norm.*", 'rule model.norm.weight { full = "x" }', "math 3", "help explain",
         "#params" })
      assert.equal("21\n", result.out)
      local hint = "; what a word is given stands in quotes: "
      assert.equal("prompt:1: '=' expected near 'model'" .. hint .. 'explain "model.norm.weight"\n'
         .. "prompt:1: '=' expected near '*'" .. hint .. 'find "*.norm.*"\n'
         .. "prompt:1: '=' expected near 'model'" .. hint .. 'rule "model.norm.weight"\n'
         .. "prompt:1: '=' expected near '3'\n"
         .. "prompt:1: '=' expected near 'explain'" .. hint .. 'help "explain"\n', result.err)
   end)

   it("ends what runs or grows without end", function()
      local result = ask({ "while true do end", "local s = {} while true do s[#s + 1] = {} end",
         "pcall(function() while true do end end) while true do end", "#params" })
      assert.equal("prompt:1: it ran too many instructions\nprompt:1: it used too much memory\nprompt:1: it ran too many instructions\n", result.err)
      assert.equal("21\n", result.out)
   end)

   it("has no way to the system, and what it shows cannot be reached through metatables", function()
      for _, name in ipairs({ "os", "io", "debug", "ffi", "require", "load", "loadstring", "dofile", "setmetatable", "getmetatable", "rawget", "_G",
         "package", "jit", "collectgarbage", "coroutine" }) do
         local result = ask({ name })
         assert.equal(1, result.code, name)
         assert.truthy(result.err:find("unknown name '" .. name .. "'", 1, true), result.err)
      end
      assert.equal("prompt:1: attempt to call field 'dump' (a nil value)\n", ask({ "string.dump(print)" }).err)
   end)

   it("reads the rule file again, and keeps the plan where it does not load", function()
      local rules = file('return { extends = "llama" }')
      local editor = file("#!/bin/sh\ncp \"$1\" \"$1.old\"; printf '%s' \"$NEXT\" > \"$1\"\n", ".sh")
      local next_text = 'return { extends = "llama", rules = { rule "model.norm.weight" { full = "new" } } }'
      local result = ask({ "reload()", "edit()", "why_full()[1].reason", 'diff "reload"' }, { "--rules", rules,
         environment = { VISUAL = false, EDITOR = "sh " .. editor, NEXT = next_text } })
      os.remove(rules .. ".old")
      assert.equal("", result.err)
      assert.truthy(result.out:find("^nothing changed\na  before: "), result.out)
      assert.truthy(result.out:find("\nnew\na  before: "), result.out)
      result = ask({ "edit()", "why_full()[1].reason" }, { "--rules", rules,
         environment = { VISUAL = false, EDITOR = "sh " .. editor, NEXT = "return 3" } })
      os.remove(rules .. ".old")
      assert.equal("destination: " .. rules .. ":1: the file (3) must return a table: return { rules = { ... } }\n", result.err)
      assert.equal("new\n", result.out)
   end)

   it("opens without a plan on a rule file that does not load", function()
      local rules = file("return {")
      local result = ask({ "1", "plan" }, { "--rules", rules })
      assert.equal("1\n", result.out)
      assert.equal("there is no plan: destination: " .. rules .. ":1: unexpected symbol near '<eof>'; mend the rule file and reload()\n", result.err)
   end)

   it("opens on a plan that is refused, and tells why", function()
      local rules = file('return { extends = "llama", rules = { rule "model.norm.weight" { into = "model.nrm.weight" } } }')
      local result = ask({ "plan", 'explain("model.norm.weight").parameter.mode', "params[21].problem ~= nil or params[20].problem ~= nil" },
         { "--rules", rules })
      assert.truthy(result.out:find("\nrefused " .. rules .. ":1: rule ", 1, true), result.out)
      assert.truthy(result.out:find("\nunresolved\ntrue\n$"), result.out)
   end)

   it("plans for other mesh sizes", function()
      local out = answer("what_if{ tp = 4 }", "what_if{ tp = 4 }.what_if.live_bytes < what_if{ dp = 1 }.what_if.live_bytes",
         "what_if{ trainer = { fsdp = 2, tp = 2 } }.what_if.trainers")
      assert.truthy(out:find("\nworkers            dp=2, tp=2  dp=2, tp=4\n", 1, true), out)
      assert.truthy(out:find("\ntrue\nfsdp=2, tp=2\n$"), out)
      local result = ask({ "what_if{ tp = 3 }", "what_if{ xp = 2 }", "what_if{ tp = 2.5 }" })
      assert.equal("deployment: model.config.num_attention_heads (8) must divide by the workers' tp (3)\n", result.err:match("^[^\n]*\n"))
      assert.truthy(result.err:find("\nwhat_if: xp is no axis\nwhat_if: tp = 2.5: sizes of axes are whole numbers, as tp = 8\n$"), result.err)
   end)

   it("plans for other sizes of the experts' mesh: what ep leaves is replicas, and without ep tp cuts experts", function()
      local result = ask({ "what_if{ tp = 8, ep = 8 }.what_if.worker_experts", "what_if{ tp = 8, ep = 4 }.what_if.worker_experts",
         "what_if{ ep = 1 }.what_if.worker_experts == nil", "what_if{ trainer = { ep = 2 } }.what_if.trainer_experts" },
         { deployment = "examples/deployments/mixtral-8x7b.lua", "--layers", "1" })
      assert.equal("ep=8\ndp=2, ep=4\ntrue\ndp=2, ep=2\n", result.out, result.err)
   end)

   it("runs the plan with generated data, with the rules made here, and verifies every byte", function()
      local result = ask({ 'rule "model.norm.weight" { full = "x" }', "dry_run()", "dry_run().parameters_full", "dry_run().verified" })
      assert.equal("", result.err)
      assert.truthy(result.out:find("\n3 trainers to 4 workers: moved [%d.]+ KB, verified [%d.]+ KB, every live byte\nnothing was reduced\n1\n"
         .. "true\n$"), result.out)
   end)

   it("opens on an init info with a host's description and its live tensors", function()
      local info = world.seal(cjson.encode({ schema = "sluice/1", master_address = "127.0.0.1", master_port = 29500, rank_offset = 1, world_size = 3,
         src_meshes = { { name = "t", axes = { { "dp", 1 } } } }, dst_meshes = { { name = "w", axes = { { "tp", 2 } } } },
         params = { { name = "a.w", dtype_name = "bfloat16", shape = { 8, 4 }, src_placements = cjson.null } } }))
      local live = file('[{ "name": "b.w", "dtype": "bfloat16", "shape": [4, 4] }]', ".json")
      local host = file('{ "rows": 8 }', ".json")
      local rules = file('return { rules = { rule "a.w" { into = "b.w", at = span(0, 0, divide(required "rows", axes.tp)), layout = column } } }')
      local more = { deployment = file(info, ".json"), "--live", live, "--host", host, "--rules", rules }
      local result = ask({ "plan.problem", "params[1].mode", "worker(0):received().bytes", "dry_run()", "what_if{ tp = 1 }" }, more)
      assert.equal("direct\n32\n1 parameter of worker rank 1, one of each kind, in this process: moved 32 B, verified 32 B, every byte that is "
         .. "written\n", result.out, result.err)
      assert.equal("what_if wants a deployment, which describes the model: nothing else says what workers of another size hold\n",
         result.err)
      assert.equal(("sluice: deployment: %s is an init info, and this wants a deployment file, which says what the model and both sides "
         .. "are\n"):format(more.deployment), program.run({ "run", more.deployment }).err)
      assert.equal(("sluice: %s is an init info, of which nothing is set: --layers is for a deployment file\n"):format(more.deployment),
         program.run({ "repl", more.deployment, "--layers", "1" }).err)
      -- Without rules it goes to load_weights, whole.
      more[#more], more[#more - 1] = nil, nil
      assert.equal("1 parameter of worker rank 1, one of each kind, in this process: moved 64 B, verified 64 B, every byte that is written\n",
         ask({ "dry_run()" }, more).out)
   end)

   it("tries conversions in this process, turned and in blocks with their scales", function()
      local function param(name, dtype)
         return { name = name, dtype_name = dtype, shape = { 3, 200, 256 }, src_placements = cjson.null }
      end
      local info = world.seal(cjson.encode({ schema = "sluice/1", master_address = "127.0.0.1", master_port = 29500, rank_offset = 1, world_size = 3,
         src_meshes = { { name = "t", axes = { { "dp", 1 } } } }, dst_meshes = { { name = "w", axes = { { "tp", 2 } } } },
         params = { param("half", "float32"), param("blocks", "bfloat16"), param("turned", "float32") } }))
      local live = file(cjson.encode({ { name = "half", dtype = "float16", shape = { 3, 100, 256 } },
         { name = "blocks", dtype = "float8_e4m3fn", shape = { 3, 200, 128 } }, { name = "blocks_s", dtype = "float32", shape = { 3, 2, 1 } },
         { name = "turned", dtype = "float8_e4m3fn", shape = { 3, 256, 200 } },
         { name = "turned_s", dtype = "float32", shape = { 3, 2, 2 } } }), ".json")
      local rules = file([[return { scales = { ending = "_s", block = { 128, 128 } }, convert = { { "half", "float16" }, { "*", "float8_e4m3fn" } },
         rules = { rule "half" { layout = shard("tp", 1) }, rule "blocks" { layout = shard("tp", 2) },
            rule "turned" { permute = { 0, 2, 1 }, layout = replicate } } }]])
      local result = ask({ "plan.problem", "dry_run()" }, { deployment = file(info, ".json"), "--live", live, "--rules", rules })
      assert.equal("3 parameters of worker rank 1, one of each kind, in this process: moved 384.07 KB, verified 384.07 KB, every byte that is "
         .. "written\n", result.out, result.err)
   end)

   it("reads statements of several lines from standard input, up to quit", function()
      local out, code = program.shell(("printf '%%s\\n' 'for i = 1, 2 do' 'print(i)' 'end' '' 'x' '#params' quit 'y' | $SLUICE repl %s"):format(
         program.deployment({ rules = "llama" })))
      assert.equal("1\n2\nunknown name 'x'\n21\n", out)
      assert.equal(1, code)
   end)

   it("helps with an example for every word", function()
      local out = answer("help", 'help "explain"')
      for _, word in ipairs({ "plan", "params", "live", "topology", "rules", "explain", "find", "why_full", "uncovered", "worker", "trainer", "bytes",
         "rule", "forget", "reload", "edit", "diff", "save", "what_if", "dry_run", "print", "help", "quit" }) do
         assert.truthy(out:find("\n" .. word .. " ") or out:find("^" .. word .. " "), word)
      end
      assert.truthy(out:find('\nExample: explain "model.norm.weight"\n$'))
   end)
end)

describe("sluice repl, at a terminal", function()
   local _, without = program.shell("ldd $SLUICE | grep -q libedit")
   if without ~= 0 then
      pending("edits lines: libedit was not there when the program was built", function() end)
      return
   end

   local state

   before_each(function()
      state = os.tmpname()
      os.remove(state)
   end)

   after_each(function()
      terminal.cleanup()
      program.cleanup()
      os.execute(("rm -rf '%s'"):format(state))
   end)

   -- The prompt comes first: before it, keys are the kernel's.
   local function quit(tty)
      tty:expect("sluice> ")
      return tty:send("\4"):finish()
   end

   local function open(...)
      local tty = terminal.start({ "repl", program.deployment({ rules = "llama" }), ... },
         { TERM = "vt100", XDG_STATE_HOME = state, HOME = state, PAGER = "", EDITRC = false })
      return tty
   end

   it("completes words, keys and names, one segment at a time", function()
      local tty = open()
      tty:expect("sluice> ")
      tty:send("unc\t"):send("()\r"):expect("every byte of worker rank 3 is written in place\n")
      tty:send("topology.worker_m\t\r"):expect("name   axes\n")
      tty:send('explain "model.layers.0.self_attn.q\t'):expect("q_proj.  qkv_proj.")
      tty:send("_\tw\t\r"):expect("parameter model.layers.0.self_attn.q_proj.weight\n")
      assert.equal(0, quit(tty))
   end)

   it("gives up a line and stops what runs on Ctrl-C, and goes on", function()
      local tty = open()
      tty:expect("sluice> ")
      tty:send("params params"):expect("params params")
      tty:send("\3"):expect("^C\n")
      tty:send("for i = 1, 2 do\r"):expect("   ...> ")
      tty:send("\3"):expect("sluice> ")
      -- What it prints says that the terminal is no longer the editor's, which would keep the key for the next line.
      tty:send("print(40 + 1) pcall(function() while true do end end) while true do end\r"):expect("\n41\n")
      tty:send("\3"):expect("interrupted\n")
      tty:expect("sluice> ")
      tty:send("x = 40 + 2\r"):expect("sluice> ")
      tty:send("x\r"):expect("\n42\n")
      assert.equal(0, quit(tty))
   end)

   it("keeps a history that only its owner reads, unless told not to", function()
      local tty = open("--no-history")
      tty:expect("sluice> ")
      tty:send("1 + 2\r"):expect("\n3\n")
      assert.equal(0, quit(tty))
      assert.is_nil(io.open(state .. "/sluice/history"))
      tty = open()
      tty:expect("sluice> ")
      tty:send("1000 + 2\r"):expect("\n1002\n")
      assert.equal(0, quit(tty))
      tty = open()
      tty:expect("sluice> ")
      tty:send("\27[A\r"):expect("\n1002\n")
      assert.equal(0, quit(tty))
      local pipe = io.popen(("stat -c '%%a' '%s/sluice/history' '%s/sluice'"):format(state, state))
      assert.equal("600\n700\n", pipe:read("*a"))
      pipe:close()
   end)

   it("ends the ranks of a dry run on Ctrl-C, and can be ended itself afterwards", function()
      local tty = open()
      tty:expect("sluice> ")
      tty:send("dry_run()\r"):expect("\n")
      assert.is_true(program.until_true(30, function()
         return #program.children(tty.pid) > 0
      end))
      tty:send("\3"):expect("cancelled\n")
      tty:expect("sluice> ")
      assert.same({}, program.children(tty.pid))
      tty:send("1 + 1\r"):expect("\n2\n")
      tty:expect("sluice> ")
      signal.kill(tty.pid, signal.SIGTERM)
      assert.equal("killed", tty:ended())
   end)

   it("shows a screen at a time", function()
      local tty = open()
      tty:expect("sluice> ")
      tty:send("params\r"):expect("-- more: Enter, or q and Enter to stop --")
      assert.equal(0, quit(tty:send("q\r")))
      tty = open("--no-pager")
      tty:expect("sluice> ")
      local shown = tty:send("params\r"):expect("sluice> ")
      assert.truthy(shown:find("\nlm_head.weight ", 1, true), shown)
      assert.is_nil(shown:find("-- more", 1, true))
   end)

   for _, path in ipairs({ "README.md", "lua/CONSOLE.md" }) do
      it("is what " .. path .. " shows", function()
         local text = assert(files.read(path))
         local command, shown = text:match("\n```\n%$ build/sluice (repl [^\n]*)\n(.-)```")
         assert.truthy(shown)
         local arguments = {}
         for word in command:gmatch("%S+") do
            arguments[#arguments + 1] = word
         end
         local tty = terminal.start(arguments, { TERM = "vt100", XDG_STATE_HOME = state, HOME = state, PAGER = "" })
         for line in shown:gmatch("sluice> ([^\n]*)\n") do
            tty:expect("sluice> ")
            tty:send(line .. "\r")
         end
         tty:expect("sluice> ")
         local seen = tty.all:gsub("sluice> $", "")
         tty:send("\r")
         local function without_lines(block)
            return (block:gsub("%.lua:%d+", ".lua"))
         end
         assert.equal(without_lines(shown), without_lines(seen))
         assert.equal(0, quit(tty))
      end)
   end
end)
