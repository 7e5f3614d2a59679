--- scripts/matrix: the functional matrix by the host transport between real processes, and by nccl where processors stand in for
-- the GPUs (spec/support/cuda/).

local built = require "spec.support.built"
local cjson = require "cjson"
local gpu_run = require "spec.support.gpu_run"
local shell = require "scripts.shell"

local on_gpu = require("spec.support.gpu").specs(it)

-- Runs the command; what it printed, with both streams in one where nothing else is asked for, and its exit status.
local function matrix(arguments, environment, stream)
   return shell(("luajit scripts/matrix.lua %s %s %s"):format(built.folder, arguments, stream or ""), environment)
end

-- Moves and gives the answer. Every move was exact, and each took only this road.
local function moved(road, arguments, environment)
   local text, code = matrix("--json " .. arguments, environment, "2>/dev/null")
   local answer = cjson.decode(text)
   for _, move in ipairs(answer.moves) do
      assert.is_nil(move.failure)
      assert.same({ [road] = move.roads[road] }, move.roads)
   end
   assert.equal(0, code)
   return answer
end

-- How many cases each move had, by ranks and form.
local function counts(answer)
   local list = {}
   for i, move in ipairs(answer.moves) do
      list[i] = ("%d+%d %s %d"):format(move.trainers, move.workers, move.form, move.cases)
   end
   return list
end

describe("scripts/matrix", function()
   it("moves every case of a world of 4 through shared memory, in both forms of init info", function()
      local answer = moved("map", "--world 4")
      assert.same({ "2+2 sluice/1 307", "2+2 2 73", "2+2 2 136" }, counts(answer))
      assert.equal(516, answer.cases)
   end)

   for _, road in ipairs { "pull", "ring" } do
      it("moves those of a world of 8 by " .. road, function()
         moved(road, "--world 8 --largest 120000 --road " .. road)
      end)
   end

   it("moves worlds of 9, 12, 16 and 32", function()
      local answer = moved("map", "--world 9,12,16,32 --largest 120000 --form sluice/1 --updates 1")
      assert.same({ "6+3 sluice/1 12", "3+6 sluice/1 12", "6+6 sluice/1 212", "8+4 sluice/1 12", "4+8 sluice/1 12", "8+8 sluice/1 262",
         "12+4 sluice/1 20", "4+12 sluice/1 20", "16+16 sluice/1 262", "24+8 sluice/1 20", "8+24 sluice/1 20" }, counts(answer))
   end)

   on_gpu("moves worlds of 4 and 8 between GPUs", function()
      moved("link", "--world 4,8 --transport nccl --largest 120000", gpu_run.environment("nccl"))
   end)

   on_gpu("moves worlds of 2 and 4 by NCCL's sends and receives", function()
      moved("wire", "--world 2,4 --transport nccl --road wire --largest 120000", gpu_run.environment("nccl"))
   end)

   on_gpu("moves worlds of 4 and 8 by nccl_m2n, and by nccl what that cannot express", function()
      local text, code = matrix("--json --world 4,8 --transport m2n --largest 120000", gpu_run.environment("m2n"), "2>/dev/null")
      assert.equal(0, code)
      for _, move in ipairs(cjson.decode(text).moves) do
         assert.is_nil(move.failure)
         assert.truthy(move.roads["m2n"] or move.roads["m2n+link"])
      end
   end)

   it("prints a table, and what failed with its reason", function()
      local text, code = matrix("--world 4 --filter dtypes --form sluice/1")
      assert.equal(0, code)
      assert.truthy(text:find("2 %+ 2 +sluice/1 +map +14 +%d+%.%d+ KB +%d+%.%d+ s +exact\n"), text)
      assert.truthy(text:find("1 moves of 14 cases by transport host: every byte of every update is exact", 1, true), text)
      text, code = matrix("--world 4 --filter dtypes --form sluice/1 --transport nccl", { SLUICE_CUDA_PLUGIN = "/nowhere.so" })
      assert.equal(1, code)
      assert.truthy(text:find("runtime: transport nccl wants libsluice_cuda.so", 1, true), text)
      assert.truthy(text:find("1 moves of 14 cases by transport nccl: 1 failed", 1, true), text)
   end)

   it("lists the cases with what nccl_m2n cannot do of them", function()
      local text = matrix("--world 4 --list --json --filter five")
      local seen = {}
      for _, case in ipairs(cjson.decode(text)) do
         assert.equal(case.m2n, case.reason == nil)
         seen[case.reason or "m2n can"] = true
      end
      assert.same({ ["m2n can"] = true, ["its destination is none of m2n's two axes"] = true,
         ["too many dims for a tensor that is cut"] = true }, seen)
   end)

   it("refuses what it does not know", function()
      for argument, text in pairs({ ["--worlds 4"] = "unknown or incomplete argument '--worlds'", ["--form 3"] = "--form (3) is unknown",
         ["--world 4-"] = "--world (4-) must be numbers of 2 or more and ranges, as 4,8 or 4-12",
         ["--largest 0"] = "--largest (0) must be a whole number above 0" }) do
         local said, code = matrix(argument)
         assert.equal(2, code)
         assert.equal("matrix: " .. text .. "; scripts/matrix --help tells\n", said)
      end
   end)
end)
