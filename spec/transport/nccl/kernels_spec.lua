--- The kernels of the nccl transport, done by the processors of this machine (spec/support/cuda), byte by byte against a loop.

local built = require "spec.support.built"
local gpu_run = require "spec.support.gpu_run"
local shell = require "scripts.shell"

local it = built.specs(it, "spec/kernels_driver")

describe("the kernels of libsluice_cuda", function()
   local function driver(arguments, environment)
      return (shell(built.folder .. "spec/kernels_driver " .. arguments, gpu_run.environment("nccl", environment)))
   end

   it("copy, turn and convert random strided boxes of up to nine dims, at any alignment, as loops over single bytes and elements do", function()
      local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time()
      local text = driver(seed .. " 60")
      assert.truthy(text:find("^seed %d+: 60 cases, %d+ bytes: equal\n$"), text)
   end)

   it("convert both sides of every halfway case, and all bfloat16 numbers in blocks, as an oracle does that knows no bits", function()
      local text = driver("casts")
      assert.equal("14647806 numbers: equal\n", text)
   end)

   it("are refused by name for a GPU that they are not compiled for", function()
      local text = driver("1 1", { SLUICE_CUDA_ON_CPU_OLD = "1" })
      assert.equal("seed 1: runtime: GPU 0 is older than those that the plugin has kernels for\n", text)
   end)
end)
