--- sluice simulate: its predictions beside measured runs, its answers beside the plans of single ranks, its arguments.

local files = require "scripts.files"
local program = require "spec.cli.program"

package.path = "lua/?.lua;" .. package.path
local cost = require "sluice.simulate.cost"
local predict = require "sluice.simulate".predict

local LLAMA = "examples/deployments/llama3-8b.lua"

local function simulate(...)
   local result = program.run({ "simulate", ... })
   assert.same({}, result.left)
   return result
end

local function rows_of(answer)
   local rows = {}
   for _, row in ipairs(answer.strategies) do
      rows[row.name] = row
   end
   return rows
end

local function llama(trainers, workers, ...)
   return rows_of(program.json(simulate(LLAMA, "--set", "model.layers=null", "--set", "trainer.mesh=" .. trainers,
      "--set", "worker.mesh=" .. workers, "--json", ...)))
end

-- What native.traffic says of `count` tensors of `bytes`, from one rank to another.
local function tensors(count, bytes)
   local all = count * bytes
   return {
      trainers = 1, workers = 1, parameters = count, whole = all, largest = bytes, largest_full = 0, gathered = { 0 },
      rank = { all, all }, copies = { count, count }, peers = { 1, 1 }, card = { 0, 0 }, card_peers = { 0, 0 },
      link_out = { all, 0 }, link_in = { 0, all }, card_out = { 0 }, card_in = { 0 },
      kinds = { { count = count, bytes = bytes, rank = bytes, link = bytes, card = 0 } },
   }
end

-- Every row of the table in lua/SIMULATE.md: the run, the way, the time predicted in ms.
local function predictions()
   local one = llama('[["dp",1]]', '[["tp",1]]')
   local one_buffer = llama('[["dp",1]]', '[["tp",1]]', "--chunk-buffers", "1")
   local shared = llama('[["fsdp",2]]', '[["tp",2]]', "--ranks-per-gpu", "2")
   local small = rows_of(predict(tensors(450, 131072), cost.model()))
   local list = {
      { "Llama-3-8B, 1 to 1", "this plan", one.sluice },
      { "Llama-3-8B, 1 to 1", "per-parameter reshard (nccl_m2n)", one.reshard },
      { "Llama-3-8B, 1 to 1", "broadcast a parameter", one.broadcast },
      { "Llama-3-8B, 1 to 1", "packed broadcast, two buffers", one.packed },
      { "Llama-3-8B, 1 to 1", "packed broadcast, one buffer", one_buffer.packed },
      { "450 tensors of 128 KiB, 1 to 1", "this plan", small.sluice },
      { "450 tensors of 128 KiB, 1 to 1", "broadcast a parameter", small.broadcast },
      { "450 tensors of 128 KiB, 1 to 1", "per-parameter reshard (nccl_m2n)", small.reshard },
      { "Llama-3-8B, 2 to 2, two ranks a GPU", "this plan", shared.sluice },
      { "Llama-3-8B, 2 to 2, two ranks a GPU", "per-parameter reshard (nccl_m2n)", shared.reshard },
   }
   for _, row in ipairs(list) do
      row[3] = row[3].seconds * 1e3
   end
   return list
end

-- The rows of the table: { run, way, measured, predicted, off }.
local function written()
   local list = {}
   for line in io.lines("lua/SIMULATE.md") do
      local run, way, measured, predicted, off = line:match("^| ([^|]+) | ([^|]+) | ([%d.]+) | ([%d.]+) | ([-+]?%d+)%%[^|]*|$")
      if run then
         list[#list + 1] = { run, way, tonumber(measured), tonumber(predicted), tonumber(off) }
      end
   end
   return list
end

describe("sluice simulate", function()
   after_each(program.cleanup)

   it("predicts measured runs within 10%, the reshard of two ranks a GPU within 20%, as lua/SIMULATE.md tells", function()
      local computed, told = predictions(), written()
      assert.equal(#computed, #told)
      for i, row in ipairs(computed) do
         local run, way, measured, predicted, off = unpack(told[i])
         assert.same({ row[1], row[2] }, { run, way })
         local far = row[3] / measured - 1
         assert(math.abs(far) < (i == #computed and 0.2 or 0.1), ("%s, %s: %.2f ms for %.2f"):format(run, way, row[3], measured))
         assert(math.abs(row[3] / predicted - 1) < 0.002, ("%s, %s: %.3f ms, told as %.3f"):format(run, way, row[3], predicted))
         assert(math.abs(far * 100 - off) <= 0.6, ("%s, %s: off by %.1f%%, told as %d%%"):format(run, way, far * 100, off))
      end
   end)

   it("has the options and defaults that lua/SIMULATE.md tells", function()
      local text = assert(files.read("lua/SIMULATE.md"))
      for _, parameter in ipairs(cost.parameters) do
         local option = "`--" .. parameter[1]:gsub("_", "-") .. "`"
         local line = text:match("\n| [^\n]-" .. option:gsub("%-", "%%-") .. "[^\n]*")
         assert(line and line:find(("%g"):format(parameter[2]), 1, true), option)
      end
   end)

   it("says of every rank what sluice plan says of it", function()
      local file = program.deployment({ rules = "llama" })
      local answer = program.json(simulate(file, "--json"))
      local bytes = answer.strategies[1].bytes
      for rank = 0, answer.trainers + answer.workers - 1 do
         local plan = program.json(program.run({ "plan", file, "--rank", tostring(rank), "--json" }))
         assert.equal(plan.program.bytes, (rank < answer.trainers and bytes.sent or bytes.received)[rank + 1])
      end
   end)

   it("counts links within a domain, networks beyond it, and neither within a GPU", function()
      local function sums(...)
         local row = llama('[["fsdp",2]]', '[["tp",2]]', ...).sluice
         return { row.link_out.total, row.link_in.total, row.network_out.total, row.network_in.total }
      end
      local moved = llama('[["fsdp",2]]', '[["tp",2]]').sluice.sent.total
      assert.same({ moved, moved, 0, 0 }, sums())
      assert.same({ 0, 0, moved, moved }, sums("--link-domain", "2"))
      assert.same({ 0, 0, 0, 0 }, sums("--ranks-per-gpu", "4"))
   end)

   it("says what forwarding among replicas would take, where trainers would send less", function()
      local few = llama('[["fsdp",2]]', '[["dp",3],["tp",2]]')
      assert.near(few.sluice.sent.total, 3 * few.forwarded.sent.total, 1e7) -- but for the norms, which all six get
      assert.equal(few.sluice.received.total, few.forwarded.received.total)
      assert(few.forwarded.seconds < few.sluice.seconds * 0.34)
      local even = llama('[["fsdp",4]]', '[["dp",2],["tp",2]]')
      assert.near(even.sluice.seconds, even.forwarded.seconds, 1e-4)
      assert.is_nil(llama('[["fsdp",4]]', '[["tp",4]]').forwarded)
   end)

   it("names what each way waits for", function()
      local rows = llama('[["fsdp",8]]', '[["tp",8]]')
      assert.equal("card_out", rows.sluice.bottleneck.kind)
      assert.equal("network out of node 0 (ranks 0-7)", rows.sluice.bottleneck.name)
      assert.equal("link_out", rows.broadcast.bottleneck.kind)
      rows = llama('[["fsdp",8]]', '[["tp",8]]', "--link-domain", "16", "--nic-gb-s", "50")
      assert.equal("link_out", rows.sluice.bottleneck.kind)
      rows = llama('[["dp",1]]', '[["tp",1]]', "--reshard-us", "1000")
      assert.equal("calls", rows.reshard.bottleneck.kind)
   end)

   it("takes longer over a slower link, and never less than the bytes of the busiest link take", function()
      local before
      for _, rate in ipairs({ "400", "200", "50" }) do
         local row = llama('[["fsdp",4]]', '[["tp",4]]', "--link-gb-s", rate).sluice
         assert(row.seconds >= row.link_out.most / (tonumber(rate) * 1e9))
         assert(not before or row.seconds > before)
         before = row.seconds
      end
   end)

   it("prints its tables, and refuses what is no parameter of the model and too large a world", function()
      local file = program.deployment({ rules = "llama" })
      local result = simulate(file)
      assert.equal(0, result.code, result.err)
      assert.truthy(result.out:find("\nthis plan  ", 1, true))
      assert.truthy(result.out:find("\npacked broadcast  ", 1, true))
      result = simulate(file, "--link-gb-s", "-1")
      assert.equal(2, result.code)
      assert.truthy(result.err:find("'-1' is no number above 0", 1, true))
      result = simulate(file, "--chunk-buffers", "3")
      assert.truthy(result.err:find("'3' is no whole number above 0 and at most 2", 1, true))
      result = simulate(file, "--set", 'worker.mesh=[["dp",4095],["tp",4]]')
      assert.equal(2, result.code)
      assert.equal("sluice: traffic: a world of 16383 ranks is more than the 8192 that are counted\n", result.err)
   end)
end)
