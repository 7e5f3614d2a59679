--- scripts/check-gpu: what it checks, what it says of a check that fails or cannot run. Where there is no GPU, processors stand in for
-- CUDA's driver and for NCCL (spec/support/cuda/).

local built = require "spec.support.built"
local cjson = require "cjson"
local gpu = require "spec.support.gpu"
local gpu_run = require "spec.support.gpu_run"
local shell = require "scripts.shell"

local always, it = it, gpu.specs(it)
local folder = built.folder

local function run(line, environment)
   local said, code = shell(line, gpu_run.environment("nccl", environment))
   return said:gsub("\n$", ""), code
end

local function check(arguments, environment)
   return run(("scripts/check-gpu --build %s --nccl %s %s"):format(folder, gpu_run.NCCL, arguments), environment)
end

describe("a script that wants GPUs", function()
   local scripts = { ["check-gpu"] = "checked", ["bench-gpu"] = "measured", ["bench-m2n"] = "measured", ["bench-shards"] = "measured",
      ["matrix --transport nccl"] = "moved", ["matrix --world 2 --transport m2n"] = "moved" }
   for script, what in pairs(scripts) do
      always(("says that there is none before it builds anything: %s"):format(script), function()
         local text, code = shell("scripts/" .. script, { CUDA_VISIBLE_DEVICES = "" })
         assert.equal(3, code, text)
         assert.matches(("^%s: nothing can be %s: there is no GPU: [^\n]+\n$"):format(script:match("^%S+"):gsub("%p", "%%%0"), what), text)
      end)
   end

   always("wants the plugin where faults are tried on GPUs", function()
      assert.same({ "faults: --wire wants a --build folder with libsluice_cuda.so in it\n", 1 }, { shell("scripts/faults --wire --build spec") })
   end)
end)

describe("scripts/check-gpu", function()
   it("verifies both roads, with a rank that is killed and replaced, and says what is left out and why", function()
      local text, code = check("--only link.replay,link.kill_trainer,link.vmm,link.pieces,link.nccl,wire.moves,wire.full_alone --json -")
      assert.equal(0, code, text)
      local said = cjson.decode(text)
      local notes = {}
      for _, one in ipairs(said.checks) do
         notes[#notes + 1] = ("%s: %s, %s"):format(one.name, one.outcome, one.note)
      end
      assert.same({ "link.vmm: verified, 40 MB compared", "link.pieces: verified, 111 MB compared, 4 updates in front of late work",
         "link.nccl_memory: left out, no ncclMemAlloc was found (--nccl names NCCL)",
         "link.replay: verified, 111 MB compared, 4 updates in front of late work",
         "link.kill_trainer: verified, 131 MB compared, 6 updates in front of late work",
         "wire.moves: verified, 40 MB compared", "wire.full_alone: verified, 40 MB compared" }, notes)
      assert.same({ 6, 0, 1 }, { said.verified, said.failed, said.left_out })
   end)

   it("fails where a word is not what it must be, or another road is taken", function()
      local text, code = run(folder .. "gpu_check --spoil")
      assert.equal(1, code)
      assert.matches('"rank":1,"why":"a live tensor of update 1: w4%[0%] is 0x00000001, not 0x%x+"', text)
      text, code = run(folder .. "gpu_check --road link --gpus 0,9")
      assert.equal(3, code)
      assert.matches('"why":"GPU 9 is wanted and this machine has 2"', text)
      text, code = check("--only link.names", { SLUICE_CUDA_ON_CPU_APART = "1000000" })
      assert.equal(1, code)
      assert.matches("link%.names +by names +FAILED", text)
   end)

   it("lists its checks, and refuses what it does not know", function()
      local text, code = check("--list --only wire.kill")
      assert.equal(0, code)
      assert.equal("wire.kill_trainer      the trainer killed in the middle, replaced\n"
         .. "wire.kill_worker       the worker killed in the middle, replaced", text)
      text, code = check("--lst")
      assert.same({ "check-gpu: unknown argument --lst; scripts/check-gpu --help tells", 2 }, { text, code })
      text, code = check("--list --only nothing")
      assert.same({ "check-gpu: --only (nothing) names no check; scripts/check-gpu --help tells", 2 }, { text, code })
      text, code = run("scripts/check-gpu --build spec")
      assert.equal(3, code)
      assert.equal("check-gpu: nothing can be checked: spec has no gpu_check and libsluice_cuda.so, which are built where nvcc and nccl.h "
         .. "are found", text)
   end)
end)
