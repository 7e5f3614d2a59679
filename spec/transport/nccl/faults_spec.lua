--- Part of what scripts/faults --gpu, --wire and --m2n run: transports nccl and m2n, one victim for each phase and fault, on the driver that
-- processors stand in for. The same must come of each case as with the host transport.

local built = require "spec.support.built"
local cjson = require "cjson"
local gpu_run = require "spec.support.gpu_run"
local shell = require "scripts.shell"

local it = require("spec.support.gpu").specs(it, "spec/nccl/libnccl.so.2", "spec/m2n/libnccl_m2n.so")

local function judge(arguments, least, transport)
   local command = "luajit scripts/faults.lua %s %s --sample 2 --delay 3 --json 2>/dev/null"
   local said = cjson.decode((shell(command:format(built.folder, arguments), gpu_run.environment(transport or "nccl"))))
   local wrong, ran = {}, 0
   for _, case in ipairs(said.cases) do
      ran = ran + (case.wrong and 1 or 0)
      for _, text in ipairs(case.wrong or {}) do
         wrong[#wrong + 1] = ("%s of rank %d at %s: %s"):format(case.fault, case.victim, case.phase, text)
      end
   end
   assert.is_true(ran >= least, "only " .. ran .. " cases ran")
   assert.equal("", table.concat(wrong, "\n"))
end

describe("four ranks on GPUs, one of which comes to grief", function()
   it("end as they must and begin again, whatever happens at any step", function()
      judge("--gpu", 130)
   end)

   it("do so by NCCL, too, where that is what they join, wait in and move by", function()
      judge("--wire --phase round3,round4,transport,meet,first,middle,load,finish --fault kill,stop,exit,cut,late,alloc,callback,disagree", 50)
   end)

   it("do so where calls of a library may never come back", function()
      judge("--m2n --phase round3,meet,first,load,finish --fault kill,exit,late,alloc,callback", 18, "m2n")
   end)
end)
