--- sluice doctor: what facts of a machine come to, and that the command says it of this one.

local gpu_run = require "spec.support.gpu_run"
local program = require "spec.cli.program"
local socket = require "posix.sys.socket"
local unistd = require "posix.unistd"

local on_gpu = require("spec.support.gpu").specs(it)

package.path = "lua/?.lua;" .. package.path
local findings = require "sluice.doctor".findings
local with = require "spec.support.with"

-- A machine on which everything works, with changes.
local function machine(changes)
   local gpu = { name = "NVIDIA H200", bytes = 150e9, peers = 1 }
   return with({
      system = "Linux", release = "6.1", architecture = "x86_64", processors = 2, memory = 8 * 2 ^ 30, shm = 2 ^ 33,
      files = { soft = 65536, hard = 65536 }, locked = {}, memfd = "", read = "", loopback = "", ptrace_scope = 0,
      addresses = { { "eth0", "192.0.2.7" } }, port_range = { 32768, 60999 }, cards = { { name = "mlx5_0", rate = "400 Gb/sec" } },
      driver = { file = "/usr/lib/libcuda.so.1", status = 0, version = 13000, gpus = { gpu, gpu } }, driver_release = "580.95.05",
      plugin = { cuda = 13000, nccl = 22809, gpus = 2 }, nccl = { file = "/usr/lib/libnccl.so.2", version = 22809 },
      m2n = { found = "/usr/lib/libnccl_m2n.so, with NCCL 2.30.7, /usr/lib/libnccl.so.2" },
      openssl = "OpenSSL 3.0.17", openssl_number = 0x300000f0, lua = "LuaJIT 2.1.0",
   }, changes)
end

local function of(what, changes)
   local list, works = findings(machine(changes))
   for _, finding in ipairs(list) do
      if finding.what == what then
         return finding, works
      end
   end
end

describe("sluice doctor", function()
   after_each(program.cleanup)

   it("has nothing to say against a machine on which everything works", function()
      local list, works = findings(machine())
      assert.is_true(works)
      local names = {}
      for i, finding in ipairs(list) do
         assert.same({ "good" }, { finding.state, finding.advice }, finding.what)
         names[i] = finding.what
      end
      assert.same({ "system", "memory", "open files", "locked memory", "shared memory", "reading processes", "loopback", "addresses",
         "ports", "network cards", "GPU driver", "GPUs", "links", "libsluice_cuda", "NCCL", "nccl_m2n", "OpenSSL", "LuaJIT" }, names)
      assert.equal("driver 580.95.05, CUDA 13.0 (/usr/lib/libcuda.so.1)", of("GPU driver").found)
      assert.equal("2 of NVIDIA H200, 150.00 GB", of("GPUs").found)
      assert.equal("1 of 1 pairs of GPUs reach each other's memory", of("links").found)
      assert.equal("2.28.9, /usr/lib/libnccl.so.2", of("NCCL").found)
   end)

   it("says that the host transport cannot work where something that it needs is missing", function()
      local cases = {
         { "system", { system = "Darwin" } }, { "shared memory", { memfd = "Operation not permitted" } },
         { "loopback", { loopback = "Cannot assign requested address" } }, { "OpenSSL", { openssl_number = 0x1010100f } },
         { "LuaJIT", { lua = "LuaJIT 2.0.5" } },
      }
      for _, case in ipairs(cases) do
         local finding, works = of(case[1], case[2])
         assert.same({ "bad", false }, { finding.state, works }, case[1])
         assert.truthy(finding.advice)
      end
   end)

   it("notes what not everybody needs, with what to do about it", function()
      local cases = {
         { "memory", { memory = 2 ^ 29 } }, { "open files", { files = { soft = 1024, hard = 4096 } } },
         { "locked memory", { locked = { soft = 65536 } } },
         { "shared memory", { shm = 2 ^ 26 } }, { "reading processes", { read = "Operation not permitted", ptrace_scope = 1 } },
         { "addresses", { addresses = {} } }, { "port 80", { port = 80, listen = "Permission denied" } },
         { "network cards", { cards = {} } },
         { "GPU driver", { driver = { missing = "libcuda.so.1: not found" } } },
         { "GPU driver", { driver = { status = 803, version = 13000 } } },
         { "GPU driver", { driver = { status = 0, version = 11080, gpus = {} } } },
         { "links", { driver = { status = 0, version = 13000, gpus = { { peers = 0 }, { peers = 0 } } } } },
         { "libsluice_cuda", { plugin = { missing = "not found" } } },
         { "libsluice_cuda", { plugin = { cuda = 13000, nccl = 22809, gpus = 0 } } },
         { "NCCL", { nccl = { named = "/x.so", missing = "no file" } } }, { "nccl_m2n", { m2n = { missing = "no file" } } },
      }
      for _, case in ipairs(cases) do
         local finding, works = of(case[1], case[2])
         assert.same({ "note", true }, { finding.state, works }, case[1])
         assert.truthy(finding.advice)
      end
      assert.equal("rank 0 holds a connection a rank: enough for about 960 ranks; for more, ulimit -n 4096",
         of("open files", { files = { soft = 1024, hard = 4096 } }).advice)
      assert.equal("process_vm_readv: Operation not permitted (kernel.yama.ptrace_scope is 1)",
         of("reading processes", { read = "Operation not permitted", ptrace_scope = 1 }).found)
   end)

   it("finds that the host transport can work here, in text and as JSON", function()
      local result = program.run({ "doctor" })
      assert.equal(0, result.code, result.err .. result.out)
      assert.truthy(result.out:find("\nThe host transport can work here.\n$"))
      assert.same({}, result.left)
      local answer = program.json(program.run({ "doctor", "--json" }))
      assert.is_true(answer.good)
      assert(#answer.findings >= 14)
      for _, finding in ipairs(answer.findings) do
         assert.equal(finding.state ~= "good", finding.advice ~= nil, finding.what)
         assert.truthy(result.out:find("  " .. finding.what .. " ", 1, true), finding.what)
      end
   end)

   on_gpu("asks the driver for GPUs, and the plugin whether it sees them", function()
      local result = program.run({ "doctor" }, { LD_LIBRARY_PATH = gpu_run.CUDA })
      assert.truthy(result.out:find("\nok    GPU driver +CUDA 1%d%.%d"))
      assert.truthy(result.out:find("\nok    GPUs +%d of "))
      assert.truthy(result.out:find("\nok    libsluice_cuda +made with CUDA [%d.]+ and NCCL [%d.]+, sees %d GPU"))
   end)

   it("takes the NCCL file that SLUICE_NCCL_LIBRARY names, and says why it cannot", function()
      local answer = program.json(program.run({ "doctor", "--json" }, { SLUICE_NCCL_LIBRARY = "/nowhere/libnccl.so" }))
      for _, finding in ipairs(answer.findings) do
         if finding.what == "NCCL" then
            assert.equal("note", finding.state)
            assert.equal("runtime: peers that are not on one NVLink domain want NCCL: this process has none, and SLUICE_NCCL_LIBRARY: "
               .. "/nowhere/libnccl.so: cannot open shared object file: No such file or directory", finding.found)
         end
      end
   end)

   it("tries a port, and refuses what is none", function()
      local taken = assert(socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0))
      assert(socket.bind(taken, { family = socket.AF_INET, addr = "0.0.0.0", port = 0 }))
      assert(socket.listen(taken, 1))
      local port = assert(socket.getsockname(taken)).port
      local answer = program.json(program.run({ "doctor", "--json", "--port", tostring(port) }))
      unistd.close(taken)
      local seen
      for _, finding in ipairs(answer.findings) do
         seen = finding.what == ("port %d"):format(port) and finding or seen
      end
      assert.same({ "note", "Address already in use" }, { seen.state, seen.found })
      local result = program.run({ "doctor", "--port", "65536" })
      assert.equal(2, result.code)
      assert.truthy(result.err:find("'65536' is no port: 1 to 65535", 1, true))
   end)
end)
