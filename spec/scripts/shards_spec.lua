--- The deployments of scripts/bench-shards, made small: each is planned, moved by the host transport, and verified. And the
-- script itself, on GPUs and NCCL for which processors stand in (spec/support/cuda/).

local built = require "spec.support.built"
local cjson = require "cjson"
local deployments = require "posix.dirent"
local gpu_run = require "spec.support.gpu_run"
local program = require "spec.cli.program"
local shards = require "scripts.shards"
local shell = require "scripts.shell"

local function run(path, settings)
   local said, code = program.shell(("$SLUICE run %s %s --transport host --updates 2 --quiet --json"):format(path, settings))
   assert.equal(0, code, said)
   return cjson.decode(said)
end

describe("the sharded deployments", function()
   for _, row in ipairs(shards.rows) do
      it(("move %s in place, every byte verified"):format(row.title), function()
         local object = run(shards.folder .. row.name .. ".lua", shards.reduced(row))
         assert.same({ true, row.trainers, row.workers, 0 },
            { object.verified, object.trainers, object.workers, object.parameters_full })
      end)
   end

   it("are all in the table", function()
      local listed, there = {}, {}
      for _, row in ipairs(shards.rows) do
         listed[#listed + 1] = row.name .. ".lua"
      end
      for name in deployments.files(shards.folder) do
         there[#there + 1] = name:match("%.lua$") and name
      end
      table.sort(listed)
      table.sort(there)
      assert.same(listed, there)
   end)
end)

describe("experts spread over ep and cut over tp", function()
   local one = shards.folder .. "qwen3-30b-a3b-ep4-ep2-tp2.lua"
   local other = "--set model.size=null --set model.config.num_experts=null --set model.config.moe_intermediate_size=null "
      .. "--set model.config.num_local_experts=6 "
   local models = {
      { "packed", "--set model.experts=packed" },
      { "of Mixtral", other .. "--set model.family=mixtral --set rules=mixtral" },
      { "of GPT-OSS, in units that tp does not divide", other .. "--set model.family=gpt_oss --set rules=gpt_oss "
         .. "--set model.config.intermediate_size=45" },
   }
   for _, model in ipairs(models) do
      it("are verified where they are " .. model[1], function()
         local object = run(one, shards.reduced({ experts = true }) .. " " .. model[2])
         assert.same({ true, 0 }, { object.verified, object.parameters_full })
      end)
   end
end)

describe("scripts/bench-shards", function()
   local function bench(arguments, environment)
      return shell("scripts/bench-shards " .. arguments, environment)
   end

   built.specs(it, "shards_bench")("holds every row against the links, against NCCL and against its prediction, and kills a rank", function()
      local path = program.file("")
      local said, code = bench(("--build %s --reduced --samples 1 --rows qwen3-30b-a3b-ep4-ep2-tp2 --nccl %s --json %s"):format(
         built.folder, gpu_run.NCCL, path), gpu_run.environment("nccl", { NCCL_ON_CPU_BLOCKING = "1" }))
      local file = assert(io.open(path))
      local row = cjson.decode(file:read("*a")).rows[1]
      file:close()
      program.cleanup()
      if row.killed then
         assert.equal(0, code, said)
         assert.is_true(row.killed.all_named)
         assert.equal(7, #row.killed.ends)
      else -- this machine was too busy to kill it in time, or what it moves is over too soon
         assert.equal("every update was over before the kill came", row.why_no_kill)
      end
      assert.same({ 4, 4, 2, 4, 8 }, { row.trainers, row.workers, row.used, row.each, #row.measured.ranks })
      assert.equal(537344, row.peers.bytes)
      assert.equal(0, row.peers.wrong_words)
      assert.truthy(row.measured.verified_bytes > 2 * row.peers.bytes)
      assert.truthy(row.predicted.seconds > 0 and row.predicted.limit_seconds > 0 and row.predicted.packed_seconds > 0)
      assert.truthy(said:find("4 to 4 ranks on 2 of 2 GPUs, 4 on each", 1, true), said)
   end)

   it("ends with 3 and the reason where nothing can be measured, and refuses what it does not know with 2", function()
      local said, code = bench("--build spec")
      assert.same({ 3, "bench-shards: nothing can be measured: spec has no shards_bench and libsluice_cuda.so, which are built "
         .. "where nvcc and nccl.h are found\n" }, { code, said })
      said, code = bench("--rws a")
      assert.same({ 2, "bench-shards: unknown argument --rws; scripts/bench-shards --help tells\n" }, { code, said })
   end)
end)
