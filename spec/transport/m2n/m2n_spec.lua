--- Transport m2n end to end, where there is no GPU: real ranks on the driver, the NCCL and the nccl_m2n that processors stand in
-- for (spec/support/cuda/), every byte checked. What the library only forbids ends a process there.

local files = require "scripts.files"
local gpu = require "spec.support.gpu"
local gpu_run = require "spec.support.gpu_run"
local host = require "spec.support.host"
local pair = require "spec.support.pair"
local program = require "spec.cli.program"
local signal = require "posix.signal"
local stdlib = require "posix.stdlib"
local with = require "spec.support.with"
local world = require "spec.support.world"

local it = gpu.specs(it, "spec/m2n/libnccl_m2n.so")
local verified, refused, M2N, NCCL = gpu_run.verified, gpu_run.refused, gpu_run.M2N, gpu_run.NCCL

-- Everything even: all of it is nccl_m2n's.
local function even(more)
   return with({ transport = "m2n", rules = "llama", trainer = { mesh = { { "tp", 2 } } }, worker = { mesh = { { "dp", 2 }, { "tp", 2 } } },
      model = { family = "llama", config = { num_hidden_layers = 2, hidden_size = 64, intermediate_size = 128, num_attention_heads = 8,
         num_key_value_heads = 2, head_dim = 8, vocab_size = 1024 } } }, more)
end

describe("the m2n transport", function()
   after_each(program.cleanup)

   it("moves shards into slices of fused tensors, call by call or in groups", function()
      for _, grouped in ipairs({ false, true }) do
         local object = verified(even({ updates = 2, grouped = grouped }), {}, "--batches", "3")
         assert.same({ m2n = object.roads.m2n }, object.roads)
      end
   end)

   it("fills staging slots, and load_weights finds the tensors there", function()
      local object = verified(even({ rules = gpu_run.full_mlp(), updates = 2 }), {}, "--batches", "2")
      assert.truthy(object.parameters_full > 0)
      assert.same({ m2n = object.roads.m2n }, object.roads)
   end)

   it("moves what was recorded once and is replayed", function()
      verified(even({ updates = 2 }), {}, "--replay", "--batches", "2")
   end)

   it("leaves what the library cannot express to nccl where that is allowed, by link or by wire, and names it where not", function()
      local deployment = { transport = "m2n", rules = "llama", trainer = { mesh = { { "fsdp", 2 }, { "tp", 2 } } }, updates = 2 }
      for _, road in ipairs({ "link", "wire" }) do
         deployment.mix, deployment.road = true, road
         local object = verified(deployment, {}, "--batches", "2")
         assert.truthy(object.roads["m2n+" .. road])
      end
      deployment.mix, deployment.road = nil, nil
      refused(deployment, {}, "transport m2n cannot move it: its source is cut over 2 mesh axes, where one may cut, nor ",
         " more parameters; transport nccl can, alone or mixed with m2n")
   end)

   it("is told beforehand by sluice plan, what it cannot express with its reason", function()
      local function planned(...)
         local result = program.run({ "plan", program.deployment(even()), "--json", ... })
         assert.equal(0, result.code, result.err)
         return program.json(result).m2n
      end
      local all = planned()
      assert.same({ 0, {} }, { all.elsewhere, all.reasons })
      assert.truthy(all.reshards >= 21)
      local some = planned("--set", "model.config.vocab_size=1001", "--set", "mix=true")
      assert.same({ 2, true }, { some.elsewhere, some.mix })
      assert.matches("parameter 'model.embed_tokens.weight' %[1001, 64%]: transport m2n cannot move it: ", some.reasons[1])
   end)

   it("refuses what no staging buffer takes, as the environment has them", function()
      refused(even(), { NCCL_RESHARD_PACK_BUFFSIZES = "4096:2,16k" }, "transport m2n cannot move it: a rank's part of its source has 65536 bytes, "
         .. "where 16384 are the most (NCCL_RESHARD_PACK_BUFFSIZES), nor ")
      refused(even({ no_sm = true }), {}, "no_sm (true) and transport m2n do not go together: nccl_m2n's kernels take SMs")
   end)

   it("says which library is missing, too old, or one of two", function()
      refused(even(), { SLUICE_M2N_LIBRARY = "/nowhere.so" }, "transport m2n wants NVIDIA's nccl_m2n: SLUICE_M2N_LIBRARY: /nowhere.so: "
         .. "cannot open shared object file: No such file or directory")
      refused(even(), { NCCL_ON_CPU_VERSION = "23004" }, "NCCL 2.30.4 (" .. NCCL .. ") must be at least 2.30.5 for nccl_m2n (" .. M2N .. ")")
      local apart = NCCL:gsub("libnccl.so.2$", "libnccl_apart.so")
      refused(even(), { SLUICE_NCCL_LIBRARY = apart }, "nccl_m2n (" .. M2N .. ") uses the NCCL of " .. NCCL .. ", and this process that of "
         .. apart .. ": they must be one file; let SLUICE_NCCL_LIBRARY name the first, or load it before the other")
   end)

   it("finds the library in a Python environment, and NCCL in its package", function()
      local environment = os.tmpname()
      os.remove(environment)
      local packages = environment .. "/lib/python3.11/site-packages"
      local m2n, nccl = packages .. "/nccl/m2n/lib/cu13/", packages .. "/nvidia/nccl/lib/"
      assert(os.execute(("mkdir -p %s %s && cp %s %s && cp %s %s"):format(m2n, nccl, M2N, m2n, NCCL, nccl)) == 0)
      local result = gpu_run.run(even(), { SLUICE_M2N_LIBRARY = false, VIRTUAL_ENV = environment })
      os.execute("rm " .. nccl .. "libnccl.so.2")
      local without = gpu_run.run(even(), { SLUICE_M2N_LIBRARY = false, VIRTUAL_ENV = environment, LD_LIBRARY_PATH = gpu_run.CUDA .. ":/nowhere",
         NCCL_ON_CPU_VERSION = "23004" })
      os.execute("rm -r " .. environment)
      assert.equal(0, result.code, result.err)
      assert.truthy(without.err:find("must be at least 2.30.5 for nccl_m2n (" .. m2n .. "libnccl_m2n.so)", 1, true), without.err)
   end)

   it("says the call, the parameter, the rank and the library's own words where a call fails; what cannot work fails at init", function()
      refused(even(), { NCCL_RESHARD_COPY_ALGORITHM = "DIRECT" }, "connect: refused", "ncclReshard on rank 0: invalid argument (DIRECT wants GIN, "
         .. "and there is no network card)")
      refused(even(), { NCCL_ON_CPU_FAIL = "CommSplit:1" }, "connect: refused", "ncclCommSplit on rank 0: unhandled system error (made to fail)")
      for _, case in ipairs({ { "Init:1", "ncclM2nInit on rank %d: unhandled system error (made to fail)" },
         { "Reshard:3", "ncclReshard of %S+ on rank %d: internal error (made to fail)" },
         { "GroupEnd:2", "ncclM2nGroupEnd on rank %d: internal error (made to fail)" } }) do
         local result = gpu_run.run(even({ grouped = true }), { M2N_ON_CPU_FAIL = case[1] })
         assert.not_equal(0, result.code)
         assert.same({}, result.left)
         assert.truthy(result.err:find((case[2]:gsub("[()]", "%%%0"):gsub("%%d", "%%d+"))), result.err)
      end
   end)
end)

local function couple(body, options)
   options.transport = "m2n"
   return pair.run(body, options)
end

describe("a pair of ranks by m2n", function()
   it("goes on with its communicator when rules are reloaded, and makes another after a shutdown", function()
      local results = couple(function(self, rank, port)
         local wrong, said = {}, nil
         self:init(pair.init_info(port))
         for turn = 1, 3 do
            said = self:plan().library
            pair.turn(self, turn, wrong)
            self:reload()
         end
         self:shutdown()
         return { wrong = wrong, said = said, rank = rank }
      end, {})
      for rank = 0, 1 do
         assert.same({ wrong = {}, said = ("nccl_m2n (%s) with NCCL 2.30.7 (%s)"):format(M2N, NCCL), rank = rank }, results[rank])
      end
   end)

   it("is not made where the library's environment differs, which is named with both values", function()
      local results = couple(function(self, rank, port)
         stdlib.setenv("NCCL_RESHARD_NUM_CTAS", rank == 0 and "8" or "16")
         return host.refused(self.init, self, pair.init_info(port))
      end, {})
      for rank = 0, 1 do
         assert.equal("data plane: settings must be the same on every rank: rank 0 has NCCL_RESHARD_NUM_CTAS=8, rank 1 has NCCL_RESHARD_NUM_CTAS=16",
            results[rank].text)
      end
   end)

   it("comes behind what the host has queued on its stream, and makes no place in a capture", function()
      local results = couple(function(self, rank, port)
         local wrong = {}
         self:init(pair.init_info(port))
         if rank == 0 then
            local fresh = pair.floats(self)
            pair.fill(fresh, 1, 1)
            pair.fill_all(self, 1)
            pair.fill(self.w[1], 9, 1)
            self.queue:busy()
            self.queue:copy(self.w[1], fresh, pair.LENGTH * 4)
         end
         pair.update(self, 1)
         pair.check_all(wrong, self, 1)
         local said
         if rank == 0 then
            self.queue:capture()
            said = host.refused(self.record, self).text
            self.queue:captured()
         end
         return { wrong = wrong, text = said }
      end, { trainer = true, launch = function()
         return 0
      end })
      assert.same({}, results[1].wrong)
      assert.equal("record: options.stream is being captured, and nccl_m2n does not go with a capture: record before or after it, or use "
         .. "transport nccl", results[0].text)
   end)

   it("ends on both ranks where a call or its device work hangs, or a rank is killed, and can begin again where the library came back", function()
      for _, way in ipairs({ "device", "call", "stuck", "kill" }) do
         local gone
         local begun = os.tmpname() -- holds something once rank 0 updates
         local results = couple(function(self, rank, port)
            if way == "stuck" or rank == 0 and way == "call" then -- the second: after the one that init tries
               stdlib.setenv("M2N_ON_CPU_" .. (way == "call" and "HANG" or "STUCK"), "Reshard:2")
            end
            self:init(pair.init_info(port))
            self:start()
            if rank == 0 and (way == "device" or way == "kill") then
               self.queue:stick()
            end
            local again = {}
            if rank == 0 then
               files.write(begun, "update")
            end
            host.refused(self.update, self, pair.NAMES)
            local state = self:state()
            self:shutdown()
            if way == "stuck" then
               again = host.refused(self.init, self, pair.init_info(port)).text
            elseif way == "call" then
               self:init(pair.init_info(port))
               pair.turn(self, 2, again)
            end
            return { state = state, again = again }
         end, { trainer = true, timeout_s = way == "kill" and 10 or way == "stuck" and 2 or 1, started = function(children)
            if way == "kill" then
               for _ = 1, 300 do
                  world.sleep(0.1)
                  if files.read(begun) ~= "" then
                     break
                  end
               end
               world.sleep(0.3)
               gone = signal.kill(children[0].pid, 9)
            end
         end })
         os.remove(begun)
         for rank = gone and 1 or 0, 1 do
            assert.equal("failed", results[rank].state, way)
            if way == "stuck" then
               assert.truthy(results[rank].again:find("a reshard that failed earlier in this process could not be ended, and nccl_m2n works in it "
                  .. "no more: start the process anew, or use transport nccl", 1, true), results[rank].again)
            else
               assert.same({}, results[rank].again)
            end
         end
      end
   end)
end)
