-- sluice run end to end: real ranks, real memory, every byte checked; and what is left when it ends in any way.

local dirent = require "posix.dirent"
local signal = require "posix.signal"

local program = require "spec.cli.program"

local function good(result)
   assert.equal(0, result.code, result.err)
   assert.same({}, result.left)
   return result
end

local function run(changes, ...)
   return program.run({ "run", program.deployment(changes), "--json", ... })
end

local function shared_memory()
   local names = {}
   for name in dirent.files("/dev/shm") do
      names[#names + 1] = not name:find("^sem%.") and name or nil -- semaphores are other programs'
   end
   table.sort(names)
   return names
end

describe("sluice run", function()
   after_each(program.cleanup)

   it("verifies a deployment and says so in one JSON object", function()
      local object = program.verified(run({ updates = 3 }))
      assert.same({ 3, 3, 4, "host", "llama" }, { object.updates, object.trainers, object.workers, object.transport, object.model })
      assert.equal(21, object.parameters_direct + object.parameters_full + object.parameters_alias + object.parameters_skip)
      assert.equal(404096, object.bytes_direct + object.bytes_full + object.bytes_alias + object.bytes_skip)
      assert.equal(3 * 4 * object.coverage.live_bytes, object.bytes_verified)
      assert.equal(3, #object.update_seconds)
      for _, phase in ipairs({ "describe", "plan", "prepare", "init", "fill", "update", "verify", "total" }) do
         assert.equal("number", type(object.seconds[phase]), phase)
      end
      local sum = 0
      for _, seconds in ipairs(object.update_seconds) do
         sum = sum + seconds
      end
      assert.near(sum, object.seconds.update, 1e-6)
      assert.near(object.bytes_received / object.seconds.update / 1e9, object.gb_per_s, object.gb_per_s * 1e-4)
      assert.is_true(next(object.roads) ~= nil)
   end)

   it("prints plain lines of progress and a summary", function()
      local result = good(program.run({ "run", program.deployment() }))
      assert.truthy(result.err:find("7 ranks ready in ", 1, true), result.err)
      assert.truthy(result.err:find("\nupdate 2 of 2: [^\n]* GB/s\nupdate 2 of 2: verified, every live byte of 4 workers"), result.err)
      assert.is_nil(result.err:find("[\r\27]"))
      for _, name in ipairs({ "direct", "full", "alias", "skip", "live", "seconds", "moved", "verified" }) do
         assert.truthy(result.out:find("\n" .. name .. " "), name)
      end
   end)

   it("shows no progress when it is to be quiet", function()
      assert.equal("", good(program.run({ "run", program.deployment(), "--quiet" })).err)
   end)

   it("prints as much of its ranks' log as was asked for", function()
      local info = good(run({}, "--quiet", "--log", "info")).err
      assert.matches("\ninfo: worker 0: init: ready in ", info)
      assert.not_matches("debug", info)
      assert.matches("\ndebug: trainer 0: init: round 1, source\n", good(run({}, "--quiet", "--log", "debug")).err)
   end)

   for _, road in ipairs({ "map", "pull", "ring" }) do
      it("verifies over the road " .. road, function()
         local object = program.verified(run({}, "--road", road))
         assert.same({ [road] = object.roads[road] }, object.roads)
      end)
   end

   it("verifies what was recorded once and is replayed", function()
      program.verified(run({ updates = 3 }, "--replay", "--batches", "2"))
   end)

   it("verifies with shards in ordinary memory", function()
      local object = program.verified(run({}, "--memory", "ordinary"))
      assert.is_nil(object.roads.map)
   end)

   it("verifies however many batches an update has", function()
      for _, batches in ipairs({ 2, 7, 1000 }) do
         program.verified(run({}, "--batches", tostring(batches)))
      end
   end)

   it("does not claim to have verified what it was told not to", function()
      local object = program.json(good(run({}, "--no-verify")))
      assert.is_false(object.verified)
      assert.equal(0, object.bytes_verified)
   end)

   it("verifies a worker whose part of the vocabulary is all padding, where load_weights brings it", function()
      local model = { family = "llama", config = { num_hidden_layers = 1, hidden_size = 4, intermediate_size = 2,
         num_attention_heads = 2, num_key_value_heads = 1, head_dim = 2, vocab_size = 17 } }
      local object = program.verified(run({ model = model, trainer = { mesh = { { "fsdp", 1 } } },
         worker = { mesh = { { "tp", 2 } } } }))
      assert.equal(10, object.parameters_full)
   end)

   it("says when each rank ended, and by which error, where one is killed in the middle", function()
      local model = { family = "llama", config = { num_hidden_layers = 2, hidden_size = 1024, intermediate_size = 4096,
         num_attention_heads = 8, num_key_value_heads = 8, vocab_size = 32000 } }
      local result = run({ updates = 3, model = model }, "--no-verify", "--quiet", "--kill", "1")
      local object = program.json(result)
      assert.same({}, result.left)
      assert.same({ 1, "trainer 1", 3 }, { object.killed, object.killed_role, object.update })
      if object.all_named then -- else this machine was too busy to kill it in time
         assert.equal(0, result.code)
         assert.equal(6, #object.ends)
         assert.truthy(object.ends[1].text:find("^update: rank 1 .* was lost: its connection ended$"), object.ends[1].text)
      else
         assert.equal(1, result.code)
      end
      assert.equal("sluice: run: --kill 7 must be below the world size 7\n", run({}, "--kill", "7").err)
      assert.equal("sluice: run: --kill wants at least 2 updates: those before the last say how long one takes\n",
         run({ updates = 1 }, "--kill", "1").err)
   end)

   it("hears that its ranks ended where its own parent ignores such news", function()
      local text, code = program.shell(("trap '' CHLD; timeout 60 $SLUICE run %s --quiet"):format(program.deployment()))
      assert.equal(0, code, text)
      assert.truthy(text:find("every live byte of 4 workers after every update\n", 1, true), text)
   end)

   it("runs whichever standard stream is closed", function()
      for _, closed in ipairs({ "<&-", ">&-", "2>&-", "<&- >&- 2>&-" }) do
         local text, code = program.shell(("$SLUICE run %s --quiet %s"):format(program.deployment(), closed))
         assert.equal(0, code, closed .. ": " .. text)
      end
   end)

   it("ends with one exit code when ranks are refused, whichever says so first", function()
      for _ = 1, 10 do
         local result = run({ rules = "llama" }, "--road", "map", "--memory", "ordinary")
         assert.equal(2, result.code, result.err)
         assert.same({}, result.left)
      end
   end)

   it("refuses more ranks than one machine can be asked for", function()
      local result = run({ trainer = { mesh = { { "dp", 4096 } } } })
      assert.equal(2, result.code)
      assert.truthy(result.err:find("sluice: run: 4100 ranks on one machine: it starts at most 4096\n$"), result.err)
   end)

   local layouts = {
      { trainer = { mesh = { { "fsdp", 1 } } }, worker = { mesh = { { "tp", 1 } } } },
      { trainer = { mesh = { { "dp", 2 }, { "fsdp", 2 } } }, worker = { mesh = { { "tp", 4 } } } },
      { trainer = { mesh = { { "pp", 2 }, { "tp", 2 } } }, worker = { mesh = { { "tp", 8 } } } },
      { trainer = { mesh = { { "pp", 2 }, { "fsdp", 3 }, { "tp", 2 } } }, worker = { mesh = { { "dp", 3 }, { "tp", 1 } } } },
   }
   for _, layout in ipairs(layouts) do
      local function text(mesh)
         local parts = {}
         for i, axis in ipairs(mesh) do
            parts[i] = axis[1] .. axis[2]
         end
         return table.concat(parts, " ")
      end
      it(("verifies %s to %s"):format(text(layout.trainer.mesh), text(layout.worker.mesh)), function()
         program.verified(run(layout))
      end)
   end
end)

describe("nothing is left", function()
   local before

   before_each(function()
      before = shared_memory()
   end)
   after_each(function()
      program.cleanup()
      assert.same(before, shared_memory())
   end)

   -- A run that goes on for long, under way: its second update was reported.
   local function under_way()
      local process = program.start({ "run", program.deployment({ updates = 1000000 }) })
      assert.is_true(program.until_true(30, function()
         return process:errors():find("update 2 of", 1, true) ~= nil
      end), process:errors())
      assert.equal(7, #process:ranks())
      return process
   end

   local function failed(result)
      assert.equal(1, result.code, result.err)
      assert.same({}, result.left)
   end

   for _, number in ipairs({ 1, 4 }) do
      it(("when rank %d is stopped before the others meet it, and the error names it"):format(number - 1), function()
         local process = program.start({ "run", program.deployment({ updates = 1000000, timeout_s = 1 }) })
         assert.is_true(program.until_true(10, function()
            return process:rank(number - 1) ~= nil
         end))
         local _ = signal.kill(process:rank(number - 1).pid, signal.SIGSTOP)
         local result = process:finish(60)
         failed(result)
         assert.truthy(result.err:find(("rank %d%%): nothing was heard of it for %%d+ s: it is stopped"):format(number - 1))
            or result.err:find("sluice: [^\n]*within 1 s"), result.err:sub(-400))
      end)
   end

   it("when a rank is stopped at any moment", function()
      for moment = 1, 4 do
         local process = program.start({ "run", program.deployment({ updates = 1000000, timeout_s = 1 }) })
         assert.is_true(program.until_true(30, function()
            return process:errors():find(("update %d of"):format(moment * 7), 1, true) ~= nil
         end), process:errors())
         signal.kill(process:ranks()[moment].pid, signal.SIGSTOP)
         failed(process:finish(60))
      end
   end)

   local function cancelled(result)
      assert.equal(130, result.code, result.err)
      assert.truthy(result.err:find("sluice: cancelled\n$"), result.err:sub(-400))
      assert.same({}, result.left)
   end

   it("when the user presses Ctrl-C, which reaches all ranks", function()
      local process = under_way()
      signal.killpg(process.pid, signal.SIGINT)
      cancelled(process:finish(15))
   end)

   it("when only the program gets SIGINT", function()
      local process = under_way()
      process:kill(signal.SIGINT)
      cancelled(process:finish(15))
   end)

   it("when it gets SIGTERM", function()
      local process = under_way()
      process:kill(signal.SIGTERM)
      cancelled(process:finish(15))
   end)

   it("when it is cancelled while ranks start", function()
      for delay = 0, 8 do
         local process = program.start({ "run", program.deployment({ updates = 1000000 }) })
         program.until_true(10, function()
            return #process:ranks() >= math.min(delay, 7)
         end)
         process:kill(signal.SIGINT)
         local result = process:finish(15)
         assert.is_true(result.code == 130 or result.signal == signal.SIGINT, result.err)
         assert.same({}, result.left)
      end
   end)

   it("when it is killed", function()
      local process = under_way()
      process:kill(signal.SIGKILL)
      local result = process:finish(15)
      assert.equal(signal.SIGKILL, result.signal)
      assert.same({}, result.left)
   end)

   for _, which in ipairs({ "first", "last" }) do
      it(("when the %s rank is killed, and the error names it"):format(which), function()
         local process = under_way()
         local ranks = process:ranks()
         signal.kill(ranks[which == "first" and 1 or #ranks].pid, signal.SIGKILL)
         local result = process:finish(30)
         assert.equal(1, result.code, result.err)
         local name = which == "first" and "trainer 0 (rank 0)" or "worker 3 (rank 6)"
         assert.truthy(result.err:find("sluice: " .. name .. ": killed by signal 9 (SIGKILL)", 1, true), result.err:sub(-400))
         assert.same({}, result.left)
      end)
   end

   it("when a rank is stopped and does not answer: it is killed after the grace", function()
      local process = under_way()
      local ranks = process:ranks()
      signal.kill(ranks[5].pid, signal.SIGSTOP)
      process:kill(signal.SIGINT)
      cancelled(process:finish(20))
   end)
end)
