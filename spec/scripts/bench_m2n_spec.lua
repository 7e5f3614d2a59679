--- scripts/bench-m2n on the driver and the libraries that processors stand in for (spec/support/cuda/): no figure means anything
-- there, every byte does.

local built = require "spec.support.built"
local cjson = require "cjson"
local gpu = require "spec.support.gpu"
local gpu_run = require "spec.support.gpu_run"
local program = require "spec.cli.program"
local shell = require "scripts.shell"

local it = gpu.specs(it, "m2n_bench", "spec/m2n/libnccl_m2n.so")

local function bench(arguments)
   return (shell(("%sm2n_bench --tiny 1 --samples 1 %s 2>/dev/null"):format(built.folder, arguments),
      gpu_run.environment("m2n", { NCCL_ON_CPU_BLOCKING = "1" })))
end

describe("scripts/bench-m2n", function()
   after_each(program.cleanup)

   it("moves the same tensors every way, compares every byte, and goes on behind a way that fails", function()
      local text = bench("--works cross,one --ways limit,nccl,m2n,alone_2,direct_1,split_1,broadcast")
      local left = { cross = { "direct_1", "broadcast" }, one = { "direct_1" } }
      for _, work in ipairs(cjson.decode(text).works) do
         local failed = {}
         for _, way in ipairs(work.ways) do
            failed[#failed + 1] = way.failed and way.name or nil
            assert.equal(0, way.wrong_words or 0)
            assert.equal(way.failed == nil, way.seconds ~= nil)
         end
         table.sort(failed, function(a, b)
            return a > b
         end)
         assert.same(left[work.name], failed)
      end
      local said = shell("luajit scripts/bench-m2n.lua " .. program.file(text))
      assert.truthy(said:find("\ncross: Llama-3-8B, 226 matrices, rows of 2 to columns of 2, ", 1, true), said)
      assert.truthy(said:find("direct_1     nccl_m2n, DIRECT                           left out: ncclReshard: invalid argument: DIRECT wants GIN", 1,
         true), said)
   end)

   it("refuses what it does not know", function()
      assert.same({ "bench-m2n: unknown argument --way; scripts/bench-m2n --help tells\n", 2 }, { shell("scripts/bench-m2n --way nccl") })
   end)
end)
