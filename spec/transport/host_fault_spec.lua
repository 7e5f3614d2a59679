local driver = require "spec.support.host_driver"

--- The host transport under sanitizers, with what goes wrong on purpose.
describe("the host transport under sanitizers", function()
   local path

   setup(function()
      path = driver.sanitized()
   end)

   teardown(function()
      if path then
         os.remove(path)
      end
   end)

   local function check(scene, road, options)
      local answer = driver.check(path, scene, road, options)
      assert.equal("", answer.complaint)
      return answer
   end

   for _, road in ipairs {"any", "pull", "ring", "map"} do
      it(("is clean on every scene by %s"):format(road), function()
         for _, scene in ipairs {"contiguous", "permuted", "tiny_rows", "empty", "padding", "staging"} do
            assert.is_true(check(scene, road).ok, scene)
         end
      end)
   end

   it("is clean on random tensors", function()
      local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time() % 1000000
      for _, road in ipairs {"any", "pull", "ring"} do
         assert.is_true(check("random", road, "seed=" .. seed).ok, ("SLUICE_SEED=%d, road %s"):format(seed, road))
      end
   end)

   for _, rank in ipairs {0, 2} do
      it(("comes out clean when any allocation of rank %d fails"):format(rank), function()
         local allocation, answer = 0
         repeat
            allocation = allocation + 1
            answer = check("mixed", "any", ("fail=%d of=%d batches=1"):format(allocation, rank))
            local mine = answer.ranks[rank + 1]
            assert.is_true(answer.ok or mine.status == "out of memory", mine.text)
         until answer.ok
         assert.is_true(allocation > 6, allocation - 1 .. " allocations")
      end)
   end

   it("comes out clean when a peer is killed", function()
      for _, road in ipairs {"any", "ring"} do
         for rank = 0, 3 do
            assert.is_false(check("mixed", road, ("kill=%d at=0"):format(rank)).ok)
         end
      end
   end)
end)
