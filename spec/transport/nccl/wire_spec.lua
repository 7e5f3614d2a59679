--- The road by NCCL end to end, where there is no GPU: real ranks on the driver and the NCCL that processors stand in for
-- (spec/support/cuda/), every byte checked.

local gpu = require "spec.support.gpu"
local gpu_run = require "spec.support.gpu_run"
local host = require "spec.support.host"
local pair = require "spec.support.pair"
local program = require "spec.cli.program"
local stdlib = require "posix.stdlib"
local unistd = require "posix.unistd"

local it = gpu.specs(it)
local NCCL = gpu_run.NCCL

local function verified(deployment, environment, ...)
   deployment.transport = "nccl"
   return gpu_run.verified(deployment, environment, ...)
end

local function by_wire(deployment, environment, ...)
   deployment.road = "wire"
   local object = verified(deployment, environment, ...)
   assert.same({ wire = object.roads.wire }, object.roads)
   return object
end

local function refused(deployment, environment, text)
   deployment.transport, deployment.road = "nccl", "wire"
   assert.equal(2, gpu_run.refused(deployment, environment, text).code)
end

describe("the nccl transport by wire", function()
   after_each(program.cleanup)

   it("moves shards of rows and of columns into fused tensors, in turns of any size", function()
      for _, bytes in ipairs({ "4096", "10000", "1000000" }) do
         local object = by_wire({ rules = "llama", trainer = { mesh = { { "fsdp", 2 }, { "tp", 2 } } }, updates = 2 },
            { SLUICE_WIRE_BYTES = bytes }, "--batches", "3")
         assert.equal(0, object.parameters_full)
      end
   end)

   it("moves uneven experts and padded vocabularies between pipelines", function()
      by_wire({ rules = "qwen3_moe", trainer = { mesh = { { "pp", 2 }, { "dp", 2 } }, expert_mesh = { { "pp", 2 }, { "ep", 2 } } },
         worker = { mesh = { { "dp", 1 }, { "tp", 4 } }, expert_mesh = { { "ep", 4 } } },
         model = { family = "qwen3_moe", config = { num_hidden_layers = 2, hidden_size = 64, intermediate_size = 128,
            num_attention_heads = 8, num_key_value_heads = 2, head_dim = 16, vocab_size = 1000, num_experts = 6,
            moe_intermediate_size = 32 } } }, { SLUICE_WIRE_BYTES = "20000" })
   end)

   it("fills staging slots, and load_weights finds the tensors there", function()
      local object = by_wire({ rules = gpu_run.full_mlp() }, { SLUICE_WIRE_BYTES = "4096" }, "--batches", "2")
      assert.truthy(object.parameters_full > 0)
   end)

   it("moves what was recorded once and is replayed, beside the link too", function()
      local deployment = { rules = "llama", trainer = { mesh = { { "fsdp", 2 }, { "tp", 2 } } }, updates = 3 }
      by_wire(deployment, { SLUICE_WIRE_BYTES = "10000" }, "--replay", "--batches", "2")
   end)

   it("packs and unpacks by copy engines where the GPU has no kernel, and by single copies with an old driver", function()
      for _, environment in ipairs({ { SLUICE_CUDA_ON_CPU_OLD = "1" }, { SLUICE_CUDA_ON_CPU_OLD = "1", SLUICE_CUDA_ON_CPU_VERSION = "12000" } }) do
         environment.SLUICE_WIRE_BYTES = "20000"
         by_wire({ rules = "llama", trainer = { mesh = { { "tp", 2 } } } }, environment)
      end
   end)

   it("takes over for the pairs whose link cannot be made, whichever end finds that", function()
      for _, bytes in ipairs({ "0", "5000" }) do -- a trainer's words cannot be mapped, or only a worker's tensors
         local object = verified({ rules = gpu_run.full_mlp(), trainer = { mesh = { { "fsdp", 4 } } }, worker = { mesh = { { "tp", 2 } } } },
            { SLUICE_CUDA_ON_CPU_APART = bytes })
         assert.same({ link = 1, wire = 3 }, object.roads) -- the last trainer is on the workers' GPU
      end
   end)

   it("wants no NCCL where every pair is linked", function()
      local object = verified({ rules = "llama" }, { SLUICE_NCCL_LIBRARY = "/nowhere/libnccl.so.2" })
      assert.same({ link = object.roads.link }, object.roads)
   end)

   it("says which NCCL is missing, too old, or not made for the ranks, and what is no number of bytes", function()
      refused({}, { SLUICE_NCCL_LIBRARY = "/nowhere/libnccl.so.2" },
         "peers that are not on one NVLink domain want NCCL: this process has none, and SLUICE_NCCL_LIBRARY: /nowhere/libnccl.so.2: "
         .. "cannot open shared object file: No such file or directory")
      refused({}, { NCCL_ON_CPU_VERSION = "21701" }, "NCCL 2.17.1 (" .. NCCL .. ") must be of version 2, and at least 2.18")
      refused({ trainer = { mesh = { { "fsdp", 2 } } } }, { NCCL_ON_CPU_VERSION = "22809" },
         "ranks 0 and 1 are on one GPU, and NCCL 2.28.9 wants one for each rank of a communicator: from 2.30 on it takes several, "
         .. "with NCCL_MULTI_RANK_GPU_ENABLE=1")
      refused({}, { SLUICE_WIRE_BYTES = "12k" }, "SLUICE_WIRE_BYTES (12k) must be a number of bytes, 4096 to 1099511627776")
   end)

   it("says the call, the rank and NCCL's own words where NCCL fails", function()
      for _, case in ipairs({ { "CommInitRankConfig:1", "ncclCommInitRankConfig on rank %d: unhandled system error (made to fail)" },
         { "GroupEnd:2", "ncclGroupEnd on rank %d: unhandled cuda error (made to fail, or the stream does not take it)" },
         { "Recv:5", "ncclRecv on rank %d: unhandled system error (made to fail)" } }) do
         local result = gpu_run.run({ rules = "llama", transport = "nccl", road = "wire" }, { NCCL_ON_CPU_FAIL = case[1] })
         assert.not_equal(0, result.code)
         assert.same({}, result.left)
         assert.truthy(result.err:find((case[2]:gsub("%%d", "%%d+"):gsub("[()]", "%%%0"))), result.err)
      end
   end)
end)

local function couple(body, options)
   options.transport, options.road = "nccl", "wire"
   return pair.run(body, options)
end

describe("a communicator", function()
   it("is named in the plan, and made anew for other rules", function()
      local results = couple(function(self, rank, port)
         local wrong, said = {}, {}
         self:init(pair.init_info(port))
         for turn = 1, 3 do
            said[turn] = self:plan().library
            pair.turn(self, turn, wrong)
            self:reload()
         end
         self:shutdown()
         return { wrong = wrong, said = said, rank = rank }
      end, {})
      local text = ("NCCL 2.30.7 (%s)"):format(NCCL)
      for rank = 0, 1 do
         assert.same({ wrong = {}, said = { text, text, text }, rank = rank }, results[rank])
      end
   end)

   it("takes the id of init info, once", function()
      math.randomseed(unistd.getpid() * 1000 + os.time() % 1000)
      local id = {} -- a fresh one, as NCCL makes them: members find each other by it
      for i = 1, 170 do
         id[i] = string.char(math.random(97, 122))
      end
      local results = couple(function(self, _, port)
         local wrong = {}
         self:init(pair.init_info(port, table.concat(id) .. "A="))
         for turn = 1, 2 do
            pair.turn(self, turn, wrong)
            self:reload()
         end
         self:shutdown()
         return { wrong = wrong }
      end, {})
      assert.same({ { wrong = {} }, { wrong = {} } }, { results[0], results[1] })
   end)

   it("is not made where environments differ, which are named with both values", function()
      local results = couple(function(self, rank, port)
         stdlib.setenv("NCCL_PROTO", rank == 0 and "Simple" or "LL128")
         return host.refused(self.init, self, pair.init_info(port))
      end, {})
      for rank = 0, 1 do
         assert.equal("data plane: settings must be the same on every rank: rank 0 has NCCL_PROTO=Simple, rank 1 has NCCL_PROTO=LL128",
            results[rank].text)
      end
   end)

   it("is not made of ranks with two versions of NCCL", function()
      local results = couple(function(self, rank, port)
         stdlib.setenv("NCCL_ON_CPU_VERSION", rank == 0 and "23007" or "23100")
         return host.refused(self.init, self, pair.init_info(port))
      end, {})
      for rank = 0, 1 do
         assert.equal("runtime: NCCL must be the same on every rank: rank 0 has 2.30.7, rank 1 has 2.31.0", results[rank].text)
      end
   end)
end)
