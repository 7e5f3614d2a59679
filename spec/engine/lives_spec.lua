--- Many lives of a pair of engines in one process: with an allocator that fails, and in a row.

local built = require "spec.support.built"
local shell = require "scripts.shell"

local function driver(arguments)
   return (shell(built.folder .. "spec/engine_driver " .. arguments))
end

describe("a life of two engines", function()
   it("ends in success or in an error with a text, whichever request for memory fails", function()
      local text = driver("sweep 997")
      local requests, failed = text:match("^(%d+) requests in a life, every 997. failed in turn: (%d+) lives ended in an error")
      assert.truthy(requests, text)
      assert.is_true(tonumber(failed) > 0, text)
      -- The first requests are those of what ranks register; where one fails the rank calls init all the same.
      for first = 2, 9 do
         text = driver(("sweep 50000 %d"):format(first))
         assert.truthy(text:match("requests in a life, every 50000. failed in turn"), text)
      end
      -- The last requests are those of the update: each of them.
      text = driver(("sweep 5 %d"):format(requests - 100))
      assert.truthy(text:match("requests in a life, every 5. failed in turn"), text)
   end)

   for kind, what in pairs({secure = "with a key", refused = "that a round refuses", callback = "whose callback fails",
                              attached = "that people may look at"}) do
      it(("ends so, too, where it is one %s"):format(what), function()
         local text = driver("sweep 2999 1 " .. kind)
         assert.truthy(text:match("^%d+ requests in a life, every 2999. failed in turn"), text)
      end)
   end

   it("ends in success or in an error with a text, whenever another thread cancels one of them", function()
      local text = driver("cancels 60")
      assert.truthy(text:match("^60 lives, %d+ ended in an error, %d+ did without\n$"), text)
   end)

   it("shows its version to another thread whole, whenever that one looks", function()
      assert.equal("3000 labels, of which another thread saw many\n", driver("labels 3000"))
   end)

   it("leaves neither descriptors nor memory behind, a thousand times in a row", function()
      -- What is freed stays with a sanitizer for a while; its leak checker says the same in another way.
      local sanitized = os.getenv("SLUICE_SANITIZER") ~= nil
      local lives = sanitized and 100 or 1000
      local text = driver("cycles " .. lives)
      local early, pages, late, pages_late = text:match(("%d lives: (%%d+) descriptors, (%%d+) pages.-%d lives: (%%d+) descriptors, (%%d+) pages")
         :format(lives / 10, lives))
      assert.truthy(early, text)
      assert.equal(early, late)
      assert.is_true(sanitized or pages_late - pages < 256, text) -- 1 MiB over 900 lives
   end)
end)
