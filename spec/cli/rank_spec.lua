-- Ranks that a launcher starts, one process each, placed by environment variables.

local ports = require "spec.support.ports"
local program = require "spec.cli.program"
local unistd = require "posix.unistd"
local socket = require "posix.sys.socket"
local stat = require "posix.sys.stat"

local SOCK_SEQPACKET = 5

-- No launcher of the machine that runs the specs has a say.
local function environment(more)
   local clean = { RANK = false, WORLD_SIZE = false, MASTER_ADDR = false, MASTER_PORT = false, OMPI_COMM_WORLD_RANK = false,
      OMPI_COMM_WORLD_SIZE = false, PMI_RANK = false, PMI_SIZE = false, SLURM_PROCID = false, SLURM_NTASKS = false,
      TORCHELASTIC_USE_AGENT_STORE = false }
   for name, value in pairs(more) do
      clean[name] = tostring(value)
   end
   return clean
end

local function run_all(names, more)
   local path, port, processes, results = program.deployment({ updates = 2 }), ports.hold(), {}, {}
   for rank = 0, 6 do
      local variables = environment({ MASTER_ADDR = "127.0.0.1", MASTER_PORT = port, [names[1]] = rank, [names[2]] = 7 })
      for name, value in pairs(more or {}) do
         variables[name] = value
      end
      local arguments = { names.command or (rank < 3 and "trainer" or "worker"), path, "--json" }
      if names.key then
         arguments[4], arguments[5] = "--key-file", names.key
      end
      processes[rank] = program.start(arguments, variables)
   end
   for rank = 0, 6 do
      results[rank] = processes[rank]:finish(60)
   end
   return results
end

local function check_all(results)
   for rank = 0, 6 do
      local result = results[rank]
      assert.equal(0, result.code, result.err)
      local object = program.json(result)
      assert.same({ rank, rank < 3 and "trainer" or "worker", 2, rank >= 3 }, { object.rank, object.role, object.updates, object.verified })
      assert.same({}, result.left)
   end
end

describe("ranks that a launcher starts", function()
   after_each(program.cleanup)

   it("find each other by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT", function()
      check_all(run_all({ "RANK", "WORLD_SIZE" }))
   end)

   it("write each line in one piece, so that those of several do not mix", function()
      -- A socket that keeps apart what is written at once.
      local reader, writer = socket.socketpair(socket.AF_UNIX, SOCK_SEQPACKET, 0)
      local path, port, processes = program.deployment({ updates = 1 }), ports.hold(), {}
      for rank = 0, 6 do
         processes[rank] = program.start({ "rank", path }, environment({ MASTER_ADDR = "127.0.0.1", MASTER_PORT = port, RANK = rank,
            WORLD_SIZE = 7 }), writer)
      end
      processes[7] = program.start({ "rank", path }, environment({ RANK = 0 }), writer)
      unistd.close(writer)
      local counts = {}
      for piece in function() return socket.recv(reader, 8192) end do
         if piece == "" then
            break
         end
         local kind = piece:match("^%a+ %d+ %(rank %d+%): (%a+)[^\n]*\n$") or piece:match("^(sluice: environment): [^\n]*\n$") or piece
         counts[kind] = (counts[kind] or 0) + 1
      end
      unistd.close(reader)
      for number = 0, 7 do
         assert.equal(number == 7 and 2 or 0, processes[number]:finish(60).code)
      end
      assert.same({ ready = 7, update = 7 + 4, ["sluice: environment"] = 1 }, counts)
   end)

   it("take Open MPI's variables", function()
      check_all(run_all({ "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" }))
   end)

   it("take Slurm's variables, and one command for both roles", function()
      check_all(run_all({ "SLURM_PROCID", "SLURM_NTASKS", command = "rank" }))
   end)

   it("meet with a key, and say nothing of it", function()
      local key = program.file(("a secret of seven ranks "):rep(3), ".key")
      assert(stat.chmod(key, tonumber("600", 8)))
      local results = run_all({ "RANK", "WORLD_SIZE", key = key })
      check_all(results)
      for rank = 0, 6 do
         assert.is_nil((results[rank].out .. results[rank].err):find("a secret", 1, true))
      end
   end)

   it("are refused with a key file that others can read", function()
      local key = program.file(("a secret of seven ranks "):rep(3), ".key")
      assert(stat.chmod(key, tonumber("644", 8)))
      local result = program.run({ "worker", program.deployment(), "--key-file", key },
         environment({ RANK = 3, WORLD_SIZE = 7, MASTER_ADDR = "127.0.0.1", MASTER_PORT = ports.hold() }))
      assert.not_equal(0, result.code)
      assert.truthy(result.err:find("create: key_file (" .. key .. ") has mode 0644; only its owner may read or write it (chmod 600)", 1, true),
         result.err)
   end)

   it("are refused off the loopback interface without a key", function()
      local result = program.run({ "worker", program.deployment() },
         environment({ RANK = 3, WORLD_SIZE = 7, MASTER_ADDR = "192.0.2.1", MASTER_PORT = "1234" }))
      assert.not_equal(0, result.code)
      assert.truthy(result.err:find("192.0.2.1:1234 is not on the loopback interface: a key must be given", 1, true), result.err)
   end)

   it("leave MASTER_PORT to torchrun's agent", function()
      local port = ports.hold(2)
      local taken = assert(socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0))
      assert(socket.setsockopt(taken, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1))
      assert(socket.bind(taken, { family = socket.AF_INET, addr = "127.0.0.1", port = port }))
      assert(socket.listen(taken, 1))
      check_all(run_all({ "RANK", "WORLD_SIZE" }, { MASTER_PORT = tostring(port), TORCHELASTIC_USE_AGENT_STORE = "True" }))
      unistd.close(taken)
   end)

   local wrong = {
      { "without any variable", {}, "environment: RANK and WORLD_SIZE are not set (nor those of Open MPI, MPICH or Slurm)" },
      { "with a rank alone", { RANK = 3 }, "environment: RANK is set and WORLD_SIZE is not: a rank needs both" },
      { "with a world alone", { SLURM_NTASKS = 7 }, "environment: SLURM_NTASKS is set and SLURM_PROCID is not: a rank needs both" },
      { "with a world of another size", { RANK = 3, WORLD_SIZE = 8 }, "environment: WORLD_SIZE (8) must be the deployment's 7 ranks" },
      { "with a rank outside the world", { RANK = 7, WORLD_SIZE = 7 }, "environment: RANK (7) must be below WORLD_SIZE (7)" },
      { "with a rank that is no number", { RANK = "x", WORLD_SIZE = 7 }, "environment: RANK (x) must be a whole number from 0 to" },
      { "without an address", { RANK = 3, WORLD_SIZE = 7 }, "environment: MASTER_ADDR is not set and --address not given" },
      { "without a port", { RANK = 3, WORLD_SIZE = 7, MASTER_ADDR = "127.0.0.1" },
         "environment: MASTER_PORT is not set and --port not given" },
      { "with a port that is none", { RANK = 3, WORLD_SIZE = 7, MASTER_ADDR = "127.0.0.1", MASTER_PORT = "0" },
         "environment: MASTER_PORT (0) must be a whole number from 1 to 65535" },
      { "with a trainer's rank for a worker", { RANK = 2, WORLD_SIZE = 7, MASTER_ADDR = "127.0.0.1", MASTER_PORT = "1" },
         "worker: rank 2 is a trainer: ranks 0 to 2 are trainers, 3 to 6 workers" },
   }
   for _, case in ipairs(wrong) do
      it("are refused " .. case[1], function()
         local result = program.run({ "worker", program.deployment() }, environment(case[2]))
         assert.equal(2, result.code)
         assert.equal("", result.out)
         assert.truthy(result.err:find("sluice: " .. case[3], 1, true), result.err)
      end)
   end

   it("say who did not come when the deadline passes", function()
      local result = program.run({ "trainer", program.deployment(), "--connect-timeout", "0.5" },
         environment({ RANK = 0, WORLD_SIZE = 7, MASTER_ADDR = "127.0.0.1", MASTER_PORT = ports.hold() }))
      assert.equal(1, result.code)
      assert.truthy(result.err:find("sluice: trainer 0 (rank 0): rendezvous: 1 of 7 ranks came within 0.5 s: rank 0; missing: ranks 1-6; ", 1,
         true), result.err)
   end)

   it("are refused where their beats differ, by the option and by the deployment's key", function()
      local port, processes = ports.hold(), {}
      for rank = 0, 1 do
         local path = program.deployment({ trainer = { mesh = { { "fsdp", 1 } } }, worker = { mesh = { { "tp", 1 } } }, beat_s = 2 })
         processes[rank] = program.start({ "rank", path, rank == 0 and "--beat=0.5" or nil },
            environment({ RANK = rank, WORLD_SIZE = 2, MASTER_ADDR = "127.0.0.1", MASTER_PORT = port }))
      end
      for rank = 0, 1 do
         local result = processes[rank]:finish(30)
         assert.equal(2, result.code)
         assert.truthy(result.err:find("data plane: settings must be the same on every rank: rank 0 has beat_s=0.5, rank 1 has beat_s=2\n", 1,
            true), result.err)
      end
   end)
end)
