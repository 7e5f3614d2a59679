--- The deployments of scripts/bench-shards, made small: each is planned, moved by the host transport, and verified.

local cjson = require "cjson"
local deployments = require "posix.dirent"
local program = require "spec.cli.program"
local shards = require "scripts.shards"

local function run(path, settings)
   local said, code = program.shell(("$SLUICE run %s %s --transport host --updates 2 --quiet --json"):format(path, settings))
   assert.equal(0, code, said)
   return cjson.decode(said)
end

describe("the sharded deployments", function()
   for _, row in ipairs(shards.rows) do
      it(("move %s in place, every byte verified"):format(row.title), function()
         local object = run(shards.folder .. row.name .. ".lua", shards.reduced(row))
         assert.same({ true, row.trainers, row.workers, 0 }, { object.verified, object.trainers, object.workers, object.parameters_full })
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
   local models = {
      { "packed", "--set model.experts=packed" },
      { "of Mixtral", "--set model.size=null --set model.family=mixtral --set rules=mixtral --set model.config.num_experts=null "
         .. "--set model.config.moe_intermediate_size=null --set model.config.num_local_experts=6" },
      { "of GPT-OSS, in units that tp does not divide", "--set model.size=null --set model.family=gpt_oss --set rules=gpt_oss "
         .. "--set model.config.num_experts=null --set model.config.moe_intermediate_size=null --set model.config.num_local_experts=6 "
         .. "--set model.config.intermediate_size=45" },
   }
   for _, model in ipairs(models) do
      it("are verified where they are " .. model[1], function()
         local object = run(shards.folder .. "qwen3-30b-a3b-ep4-ep2-tp2.lua", shards.reduced({ experts = true }) .. " " .. model[2])
         assert.same({ true, 0 }, { object.verified, object.parameters_full })
      end)
   end
end)
