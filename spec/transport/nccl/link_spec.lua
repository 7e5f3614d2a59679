--- The nccl transport end to end, where there is no GPU: its plugin with a driver that processors stand in for
-- (spec/support/cuda/), real ranks, every byte checked.

local gpu = require "spec.support.gpu"
local gpu_run = require "spec.support.gpu_run"
local program = require "spec.cli.program"

local on_gpu = gpu.specs(it)

local function verified(deployment, environment, ...)
   deployment.transport = "nccl"
   local object = gpu_run.verified(deployment, environment, ...)
   assert.same({ link = object.roads.link }, object.roads)
   return object
end

local experts = {
   family = "qwen3_moe",
   config = { num_hidden_layers = 2, hidden_size = 64, intermediate_size = 128, num_attention_heads = 8, num_key_value_heads = 2,
      head_dim = 16, vocab_size = 1000, num_experts = 6, moe_intermediate_size = 32 },
}

describe("the nccl transport over the link", function()
   after_each(program.cleanup)

   on_gpu("moves shards of rows and of columns into fused tensors of two replicas", function()
      local object = verified({ rules = "llama", trainer = { mesh = { { "fsdp", 2 }, { "tp", 2 } } }, updates = 3 }, {},
         "--batches", "3")
      assert.equal(0, object.parameters_full)
   end)

   on_gpu("moves uneven shards, uneven experts and padded vocabularies between pipelines", function()
      verified({ rules = "qwen3_moe", model = experts,
         trainer = { mesh = { { "pp", 2 }, { "dp", 2 } }, expert_mesh = { { "pp", 2 }, { "ep", 2 } } },
         worker = { mesh = { { "dp", 1 }, { "tp", 4 } }, expert_mesh = { { "ep", 4 } } } }, {})
   end)

   on_gpu("stages full parameters in memory of the GPU, and load_weights finds them there", function()
      local object = verified({ rules = gpu_run.full_mlp() }, {}, "--batches", "2")
      assert.truthy(object.parameters_full > 0)
   end)

   local sliced = { rules = "llama", trainer = { mesh = { { "fsdp", 2 }, { "tp", 2 } } }, updates = 2 }

   on_gpu("carries many small pieces and short rows by the kernel, and all by copy engines when SMs are not to be used", function()
      local free, engines = verified(sliced, {}, "--batches", "2"), verified(sliced, {}, "--batches", "2", "--no-sm")
      assert.truthy(free.sent_by.kernel > 0)
      assert.same({ kernel = 0, copy_engines = free.sent_by.kernel + free.sent_by.copy_engines }, engines.sent_by)
      assert.equal(free.bytes_received, 2 * engines.sent_by.copy_engines)
   end)

   on_gpu("leaves all to copy engines on a GPU that the kernels are not compiled for", function()
      local object = verified(sliced, { SLUICE_CUDA_ON_CPU_OLD = "1" })
      assert.equal(0, object.sent_by.kernel)
   end)

   on_gpu("does the same one copy at a time with a driver that knows no batches", function()
      verified({ rules = "llama", trainer = { mesh = { { "tp", 2 } } } }, { SLUICE_CUDA_ON_CPU_VERSION = "12000" })
   end)

   on_gpu("replays what was recorded: in batches, with full parameters beside, and as a graph where the driver knows no batches", function()
      local deployment = { rules = "llama", trainer = { mesh = { { "fsdp", 2 }, { "tp", 2 } } }, updates = 3 }
      verified(deployment, {}, "--replay", "--batches", "3")
      verified(deployment, { SLUICE_CUDA_ON_CPU_VERSION = "12000" }, "--replay")
      verified({ rules = gpu_run.full_mlp(), updates = 2 }, {}, "--replay", "--batches", "2")
   end)

   on_gpu("says that it wants a driver where there is none", function()
      local result = gpu_run.run({ transport = "nccl" }, { LD_LIBRARY_PATH = false })
      assert.equal(2, result.code)
      if result.err:find("libcuda.so.1", 1, true) then
         local said = "transport nccl wants an NVIDIA driver: libcuda.so.1: cannot open shared object file"
         assert.truthy(result.err:find(said, 1, true), result.err)
      else
         pending("this machine has a driver")
      end
   end)

   it("says where the plugin is missed", function()
      local result = program.run({ "run", program.deployment({ transport = "nccl" }), "--json" },
         { SLUICE_CUDA_PLUGIN = "/nowhere.so" })
      assert.equal(2, result.code)
      assert.truthy(result.err:find("transport nccl wants libsluice_cuda.so, which is built where nvcc and nccl.h are found: "
         .. "/nowhere.so: cannot open shared object file", 1, true), result.err)
   end)

   on_gpu("refuses a road of the host transport", function()
      local result = gpu_run.refused({ transport = "nccl", road = "pull" }, {}, 'road ("pull") must be one of link and wire')
      assert.equal(2, result.code)
   end)
end)
