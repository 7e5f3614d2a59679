--- Part of what scripts/faults --gpu runs: the nccl transport, one victim for each phase and fault, on the driver that
-- processors stand in for. The same must come of each case as with the host transport.

local cjson = require "cjson"

local build = (os.getenv("SLUICE_INSIDE") or "build/libsluice_inside.so"):match("^(.*)/[^/]*$")

describe("four ranks on GPUs, one of which comes to grief", function()
   it("end as they must and begin again, whatever happens at any step", function()
      local driver = io.open(build .. "/spec/cuda/libcuda.so.1")
      if not driver then
         pending("libsluice_cuda was not built: nvcc or nccl.h was not found")
         return
      end
      driver:close()
      local command = "env LD_LIBRARY_PATH=%s/spec/cuda luajit scripts/faults.lua %s --gpu --sample 2 --delay 3 --json 2>/dev/null"
      local pipe = assert(io.popen(command:format(build, build)))
      local said = cjson.decode(pipe:read("*a"))
      pipe:close()
      local wrong, ran = {}, 0
      for _, case in ipairs(said.cases) do
         ran = ran + (case.wrong and 1 or 0)
         for _, text in ipairs(case.wrong or {}) do
            wrong[#wrong + 1] = ("%s of rank %d at %s: %s"):format(case.fault, case.victim, case.phase, text)
         end
      end
      assert.is_true(ran >= 130, "only " .. ran .. " cases ran")
      assert.equal("", table.concat(wrong, "\n"))
   end)
end)
