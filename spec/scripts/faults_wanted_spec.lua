--- What scripts/faults makes of what its driver printed, where no case of the suite on processors can show it.

local wanted = require "scripts.faults_wanted"

local GPU = "1 /dev/null, 2 /dev/nvidiactl"
local LOST = "register: gpu: creating a stream: unspecified launch failure (CUDA_ERROR_LAUNCH_FAILED); "
   .. "this process has lost that GPU: start it anew"

local function rank_of(number, changes)
   local rank = { rank = number, fresh = false, settled = true, finished = true, hung = false, call = "update 1", status = "peer",
      state = "failed", text = "control: rank 3 was lost", again = "ok", named = 3, after_s = 0.5, lists = true, descriptors = { 10, 10, 10 },
      threads = { 3, 3, 3 }, exit = 0, signal = 0, open_before = "1 /dev/null", open_after = "1 /dev/null", open_at_the_end = "1 /dev/null" }
   for key, value in pairs(changes or {}) do
      rank[key] = value
   end
   return rank
end

local function judge(road, changes)
   local said = { ranks = { rank_of(0, changes), rank_of(1), rank_of(2), rank_of(3, { settled = false, again = "", signal = 9 }) },
      shared_memory = 0, link = false, injured = true, reports = "" }
   local wrong, _, _, lost = wanted.judge({ phase = "first", fault = "kill", victim = 3, smaller = true, road = road }, said)
   return table.concat(wrong, "\n"), lost
end

describe("the judge of scripts/faults", function()
   it("counts a process that lost its GPU by nccl_m2n, and holds its end against nobody", function()
      local wrong, lost = judge("m2n", { again = LOST, signal = 11, open_before = GPU })
      assert.equal("", wrong)
      assert.equal(1, lost)
   end)

   it("calls the same wrong by any other road, and where a processor stands in for the GPU", function()
      for road, open in pairs({ wire = GPU, m2n = "1 /dev/null" }) do
         local wrong, lost = judge(road, { again = LOST, open_before = open })
         assert.equal("rank 0 cannot begin again: " .. LOST, wrong)
         assert.equal(0, lost)
      end
   end)

   it("lets nccl_m2n keep descriptors where there is a real GPU, up to a bound", function()
      assert.equal("", (judge("m2n", { descriptors = { 44, 62, 62 }, open_before = GPU })))
      assert.matches("has 78 descriptors after shutdown", (judge("m2n", { descriptors = { 44, 80, 62 }, open_before = GPU })), 1, true)
      assert.matches("has 12 descriptors after shutdown %(1 /dev/null%), it had 8", (judge("m2n", { descriptors = { 10, 14, 10 } })))
      assert.matches("has 60 descriptors after shutdown", (judge("wire", { descriptors = { 44, 62, 62 }, open_before = GPU })), 1, true)
   end)

   it("takes a thread that stays for what it is", function()
      assert.equal("rank 0 has 2 threads after shutdown, it had 1", (judge("m2n", { threads = { 3, 4, 3 } })))
   end)
end)
