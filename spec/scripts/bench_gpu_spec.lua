--- scripts/bench-gpu: what it moves, what it verifies, and what it says where something is missing. Where there is no GPU,
-- processors stand in for CUDA's driver (spec/support/cuda/).

local built = require "spec.support.built"
local cjson = require "cjson"
local gpu_run = require "spec.support.gpu_run"
local shell = require "scripts.shell"

local on_gpu = built.specs(it, "gpu_bench")
local on_cpu = { LD_LIBRARY_PATH = gpu_run.CUDA }

local function bench(arguments)
   return shell(("scripts/bench-gpu --build %s --model tiny %s"):format(built.folder, arguments), on_cpu)
end

describe("scripts/bench-gpu", function()
   on_gpu("moves the layer list of Llama-3-8B, whole, sliced, fused, and small tensors", function()
      local list = cjson.decode((shell(built.folder .. "gpu_bench list")))
      local norms, whole = 65 * 4096 * 2, 8030261248 * 2
      assert.same({ workers = 1, parameters = 291, live_tensors = 291, pieces = 291, bytes = whole, live_bytes = whole, source_bytes = whole,
         strided_bytes = 0, narrowest_row = 0 }, list.direct)
      assert.same({ workers = 1, parameters = 291, live_tensors = 291 - 32 * 3, pieces = 291, bytes = whole, live_bytes = whole,
         source_bytes = whole, strided_bytes = 0, narrowest_row = 0 }, list.fused)
      for name, parts in pairs({ half = 2, eighth = 8 }) do
         local moved = whole + (parts - 1) * norms
         assert.same({ workers = parts, parameters = 291, live_tensors = 291 * parts, pieces = 291 * parts, bytes = moved, live_bytes = moved,
            source_bytes = whole, strided_bytes = whole - norms, narrowest_row = 8192 / parts }, list[name])
      end
      assert.equal(450 * 131072, list.lora.bytes)
      for _, width in ipairs({ 16, 32, 64, 128, 256, 1024, 4096 }) do
         assert.same({ workers = 2, parameters = 1, live_tensors = 2, pieces = 2, bytes = 2^30, live_bytes = 2^30, source_bytes = 2^30,
            strided_bytes = 2^30, narrowest_row = width }, list["rows_" .. width])
      end
   end)

   on_gpu("verifies what it measures through the engine and beside it, and says what it leaves out", function()
      local path = os.tmpname()
      local said, code = bench("--samples 1 --json " .. path)
      assert.equal(0, code, said)
      local file = assert(io.open(path))
      local json = cjson.decode(file:read("*a"))
      file:close()
      os.remove(path)
      local left_out = {}
      for _, row in ipairs(json.rows) do
         if row.skipped then
            left_out[#left_out + 1] = row.name .. ": " .. row.skipped
         else
            assert.equal(0, row.wrong_words)
            assert.equal(1, row.seconds.runs)
         end
      end
      local why = ": this driver runs no kernels"
      assert.same({ "wire" .. why, "wire_half" .. why, "wire_lora" .. why, "broadcast" .. why, "group" .. why, "groups_of_32" .. why,
         "packed" .. why, "broadcast_lora" .. why, "group_lora" .. why, "held_direct" .. why, "held_replay" .. why, "held_half" .. why,
         "product_limit" .. why, "product" .. why, "product_prefill" .. why, "product_batch" .. why, "product_decode" .. why,
         "product_group" .. why, "packed_torch: it moves Llama-3-8B alone" }, left_out)
   end)

   on_gpu("fails where a byte is not what it must be", function()
      local said, code = shell(built.folder .. "gpu_bench --model tiny --samples 1 --rows limit_batch,half --spoil half", on_cpu)
      assert.equal(1, code, said)
      assert.truthy(said:find("gpu_bench: 2 words are wrong", 1, true), said)
   end)

   it("ends with 3 and the reason where nothing can be measured", function()
      local said, code = shell("scripts/bench-gpu --build spec")
      assert.equal(3, code)
      assert.equal("bench-gpu: nothing can be measured: spec has no gpu_bench and libsluice_cuda.so, which are built where nvcc and nccl.h are found",
         said:gsub("\n$", ""))
   end)

   on_gpu("ends with 3, too, where a GPU is not there", function()
      local said, code = bench("--gpus 0,7")
      assert.equal(3, code)
      assert.truthy(said:find("GPU 7 is wanted and this machine has 2", 1, true), said)
   end)

   it("refuses what it does not know with 2", function()
      local said, code = shell("scripts/bench-gpu --rws direct")
      assert.equal(2, code)
      assert.truthy(said:find("bench-gpu: unknown argument --rws; scripts/bench-gpu --help tells", 1, true), said)
   end)

   on_gpu("refuses rows that it does not know, and names those that there are", function()
      local said, code = bench("--rows direct,dirct")
      assert.equal(2, code)
      assert.truthy(said:find("gpu_bench: no row dirct; there are: limit_one", 1, true), said)
   end)
end)
