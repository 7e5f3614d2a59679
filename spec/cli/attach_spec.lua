--- sluice repl --attach and the other commands that ask a running engine: at ranks of `sluice run`, while updates go on.

local cjson = require "cjson"
local fcntl = require "posix.fcntl"
local files = require "scripts.files"
local program = require "spec.cli.program"
local signal = require "posix.signal"
local socket = require "posix.sys.socket"
local stat = require "posix.sys.stat"
local terminal = require "spec.cli.terminal"
local unistd = require "posix.unistd"

local F_SETPIPE_SZ = 1031

local folder

local function read(path)
   return files.read(path) or ""
end

-- Statements, as -e gives them.
local function ask(at, statements, more)
   local arguments = { "repl", "--attach", at, unpack(more or {}) }
   for _, statement in ipairs(statements) do
      arguments[#arguments + 1] = "-e"
      arguments[#arguments + 1] = statement
   end
   return program.run(arguments)
end

local function has_plan(at)
   return program.until_true(30, function()
      local result = ask(at, { "engine.plan ~= nil" })
      return result.out == "true\n"
   end)
end

describe("attaching to ranks that run", function()
   before_each(function()
      folder = os.tmpname()
      os.remove(folder)
      assert(stat.mkdir(folder, tonumber("700", 8)))
   end)

   after_each(function()
      terminal.cleanup()
      program.cleanup()
      os.execute(("rm -rf '%s'"):format(folder))
   end)

   it("shows the engine's own plan while updates go on, every byte of them right, and outlives it", function()
      local parent, rules = folder .. "/parent.lua", folder .. "/mine.lua"
      files.write(parent, 'return { extends = "llama", rules = { rule "model.norm.weight" { full = "the host scales it" } } }')
      files.write(rules, 'return { extends = "parent.lua" }')
      local at = folder .. "/socket"
      -- The run goes on only as fast as its progress is read, and cannot end before.
      local progress, writer = unistd.pipe()
      fcntl.fcntl(progress, F_SETPIPE_SZ, 4096)
      fcntl.fcntl(progress, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
      local run = program.start({ "run", program.deployment({ rules = rules, updates = 400 }), "--allow-attach", at, "--json" }, nil, writer)
      unistd.close(writer)
      assert.is_true(has_plan(at))
      -- What the engine read counts, not what lies there by now.
      files.write(parent, "return {")
      local repl = assert(io.popen(("%s repl --attach %s > %s/out 2> %s/err"):format(program.path, at, folder, folder), "w"))
      repl:write('plan.is_engines, plan.digest\nwhy_full()[1].reason\nrule_text()\nrule "model.norm.weight" { layout = replicate }\nplan.is_engines\n'
         .. 'forget()\nplan.is_engines\nengine.state == "ready" or engine.state == "updating"\nedit()\ndry_run().verified\n')
      repl:flush()
      local said_so_far = {}
      local function go_on()
         said_so_far[#said_so_far + 1] = unistd.read(progress, 256) -- two updates' lines
         return said_so_far[#said_so_far] ~= ""
      end
      local asked, batch = 0, tonumber(ask(at, { "engine.batch" }).out)
      assert.is_true(program.until_true(240, function()
         local answer = ask(at, { "engine.batch" })
         assert.equal(0, answer.code, answer.err)
         asked = asked + 1
         assert.is_true(asked > 50 or go_on())
         return tonumber(answer.out) > batch and read(folder .. "/out"):find("\ntrue\ntrue\ntrue\n$")
      end), read(folder .. "/out") .. read(folder .. "/err"))
      while go_on() do end
      unistd.close(progress)
      local result = run:finish()
      assert.equal(0, result.code, table.concat(said_so_far))
      local said = program.json(result)
      assert.same({ true, 400 }, { said.verified, said.updates })
      assert.is_nil(stat.lstat(at))
      repl:write("engine.version, engine.silent ~= nil\n#params\nreload()\n")
      repl:close()
      local out = read(folder .. "/out")
      assert.truthy(out:find('^true\n%x+\nthe host scales it\nreturn { extends = "parent.lua" }\na  before'), out)
      assert.truthy(out:find("\nfalse\na  before.*\ntrue\ntrue\ntrue\nupdate%-%d+\ntrue\n21\n$"), out)
      local err = read(folder .. "/err")
      assert.truthy(err:find("^the rules are those of the engine, which nothing here changes; sluice repl %-%-attach "), err)
      assert.truthy(err:find("attach: no engine listens at " .. at:gsub("%p", "%%%0") .. " %(nothing is there%)\n$"), err)
   end)

   -- What differs from run to run: numbers, bytes, digests, where the update is.
   local function shape(text)
      return (text:gsub("/[%w/_.]+", "PATH"):gsub("%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x", "DIGEST"):gsub("[%d.]+ [KMG]?B", "BYTES")
         :gsub("state    %w+", "state"):gsub("version  [^\n]+", "version"):gsub("%d+", "N"))
   end

   it("looks as lua/CONSOLE.md shows it", function()
      local page = read("lua/CONSOLE.md"):match("\n```\n%$ build/sluice repl %-%-attach [^\n]*\n(.-)```")
      local at = folder .. "/socket"
      local run = program.start({ "run", program.deployment({ rules = "llama", updates = 100000 }), "--quiet", "--allow-attach", at })
      assert.is_true(has_plan(at))
      assert.is_true(program.until_true(30, function()
         return ask(at, { "engine.batch > 0" }).out == "true\n"
      end))
      local tty = terminal.start({ "repl", "--attach", at, "--no-history" }, { TERM = "vt100", PAGER = "", EDITRC = false })
      tty:expect("sluice> ")
      tty:send("engine\r"):expect("\nplan     ")
      tty:expect("sluice> ")
      local shown = tty.all:gsub("\nsluice> $", "\n"):gsub("\27%[[%d;]*%a", ""):gsub("[^\n]*\r", "")
      assert.equal(0, tty:send("\4"):finish())
      run:kill(15)
      run:finish()
      assert.equal(shape(page), shape(shown))
   end)

   it("answers every command that plans", function()
      local at = folder .. "/{rank}"
      local rules = folder .. "/mine.lua"
      files.write(rules, 'return { extends = "llama", rules = { rule "model.norm.weight" { full = "x" } } }')
      files.write(folder .. "/llama.lua", 'return { extends = "llama", rules = { rule "lm_head.weight" { full = "in a folder of the run\'s" } } }')
      local run = program.start({ "run", program.deployment({ rules = "llama", updates = 100000 }), "--quiet", "--allow-attach", at },
         { SLUICE_RULES_PATH = folder })
      local worker, trainer = folder .. "/5", folder .. "/0"
      assert.is_true(has_plan(worker))
      local plan = program.json(program.run({ "plan", "--attach", worker, "--json" }))
      assert.same({ "worker 2", 20, "host" }, { plan.role, plan.direct.parameters, plan.transport })
      assert.truthy(program.run({ "explain", "--attach", worker, "model.norm.weight" }).out:find("^parameter model.norm.weight\n"))
      assert.equal(3, program.json(program.run({ "simulate", "--attach", worker, "--json" })).trainers)
      assert.equal(3, program.json(program.run({ "picture", "--attach", worker, "--json" })).trainers)
      assert.truthy(program.run({ "check", rules, "--attach", worker }).out:find("good: " .. rules .. " of engine of rank 5", 1, true))
      assert.equal(1, program.run({ "diff", "llama", rules, "--attach", worker }).code)
      local tried = ask(worker, { "plan.is_engines", 'diff("engine").same', "why_full()[1].reason" }, { "--rules", rules })
      assert.equal("false\nfalse\nx\n", tried.out, tried.err)
      assert.equal("true\nin a folder of the run's\n", ask(worker, { "plan.is_engines", "why_full()[1].reason" }).out)
      -- A trainer tells where it stands, and has no plan to show.
      local other = ask(trainer, { "engine.role", "plan" })
      assert.equal("trainer\n", other.out)
      assert.equal("there is no plan: attach: rank 0 is a trainer, which has read no rules and has no live tensors; attach to a worker; "
         .. "reload() asks again\n", other.err)
      assert.equal("sluice: explain: --rank 4: this engine is that of rank 5 and knows no other worker's live tensors\n",
         program.run({ "explain", "--attach", worker, "model.norm.weight", "--rank", "4" }).err)
      assert.equal("sluice: --attach: the engine says what x.lua would\n", program.run({ "plan", "x.lua", "--attach", worker }).err)
      run:kill(15)
      assert.equal(130, run:finish().code)
      for _, name in ipairs({ "0", "1", "2", "3", "4", "5", "6" }) do
         assert.is_nil(stat.lstat(folder .. "/" .. name), name)
      end
   end)

   it("leaves no socket behind when a signal reaches the program and all its ranks", function()
      local at = folder .. "/group"
      for _, number in ipairs({ signal.SIGTERM, signal.SIGINT }) do
         local run = program.start({ "run", program.deployment({ rules = "llama", updates = 100000 }), "--quiet", "--allow-attach", at })
         assert.is_true(has_plan(at))
         signal.killpg(run.pid, number)
         assert.equal(130, run:finish().code)
         assert.is_nil(stat.stat(at))
      end
   end)

   local NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups $SLUICE"
   if program.shell(NOBODY .. " version") ~= program.shell("$SLUICE version") then
      pending("turns another user away, and lets root ask: this user cannot become another", function() end)
   else
      it("turns another user away, and lets root ask", function()
         local name, at = "@sluice-spec-" .. unistd.getpid(), folder .. "/socket"
         stat.chmod(folder, tonumber("755", 8))
         for place, why in pairs({ [name] = "only the user of this engine and root may ask", [at] = "Permission denied" }) do
            local run = program.start({ "run", program.deployment({ rules = "llama", updates = 100000 }), "--quiet", "--allow-attach", place })
            assert.is_true(has_plan(place))
            local out, code = program.shell(("%s repl --attach %s -e plan"):format(NOBODY, place))
            assert.same({ ("sluice: attach: %s: %s\n"):format(place, why), 1 }, { out, code })
            run:kill(15)
            run:finish()
         end
         local deployment = program.deployment({ rules = "llama", updates = 100000 })
         stat.chmod(deployment, tonumber("644", 8))
         local out = program.shell(([[%s run %s --quiet --allow-attach %s >/dev/null 2>&1 & pid=$!
            for i in $(seq 300); do $SLUICE repl --attach %s -e 'engine.plan ~= nil' 2>/dev/null | grep -q true && break; sleep 0.1; done
            $SLUICE repl --attach %s -e plan.is_engines; kill $pid; wait $pid]]):format(NOBODY, deployment, name, name, name))
         assert.equal("true\n", out)
      end)
   end

   it("believes nothing else that listens at a path", function()
      local at = folder .. "/impostor"
      local fd = assert(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0))
      assert(socket.bind(fd, { family = socket.AF_UNIX, path = at }))
      assert(socket.listen(fd, 8))
      local function answer(text)
         local asking = program.start({ "plan", "--attach", at })
         local one = assert(socket.accept(fd))
         socket.recv(one, 100)
         socket.send(one, text)
         unistd.close(one)
         local result = asking:finish()
         assert.equal("", result.out)
         return result.err
      end
      local head = cjson.encode({ rank = 3, library = "0", role = "worker", trainers = 3, workers = 4, transport = "host", roads = { map = 1 },
         source_digest = "a", destination_digest = "b", plan = "c", init_info = 1e9, host = 2, live = 2, files = {} }) .. "\n{}[]"
      assert.equal(("sluice: attach: %s is no engine's: it says 'HTTP/1.1 200 OK'\n"):format(at), (answer("HTTP/1.1 200 OK\n"):gsub("\r", "")))
      assert.equal(("sluice: attach: %s gives no answer\n"):format(at), answer(""))
      assert.equal(("sluice: attach: %s gives no answer\n"):format(at), answer(("x"):rep(5000)))
      assert.equal(("sluice: attach: %s announces 99999999999 bytes; an answer has at most 536870912\n"):format(at), answer("ok 99999999999\n"))
      assert.equal(("sluice: attach: %s ended after 3 of 10 bytes\n"):format(at), answer("ok 10\nabc"))
      assert.equal(("sluice: attach: %s: its answer is not what an engine says\n"):format(at), answer("ok 3\n{}\n"))
      assert.equal(("sluice: attach: %s: its answer is not whole\n"):format(at), answer(("ok %d\n"):format(#head) .. head))
      unistd.close(fd)
      assert.equal(("sluice: attach: no engine listens at %s (whoever made the socket has ended)\n"):format(at),
         program.run({ "plan", "--attach", at }).err)
   end)
end)

