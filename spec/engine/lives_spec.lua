--- Many lives of a pair of engines in one process: with an allocator that fails, and in a row.

local function driver(arguments)
   local inside = os.getenv("SLUICE_INSIDE") or "build/libsluice_inside.so"
   local folder = inside:match("^(.*)/[^/]*$")
   local pipe = assert(io.popen(("%s/spec/engine_driver %s 2>&1"):format(folder, arguments), "r"))
   local text = pipe:read("*a")
   pipe:close()
   return text
end

describe("a life of two engines", function()
   it("ends in success or in an error with a text, whichever request for memory fails", function()
      local text = driver("sweep 997")
      local requests, failed = text:match("^(%d+) requests in a life, every 997. failed in turn: (%d+) lives ended in an error")
      assert.truthy(requests, text)
      assert.is_true(tonumber(failed) > 0, text)
      -- The last requests are those of the update: each of them.
      text = driver(("sweep 5 %d"):format(requests - 100))
      assert.truthy(text:match("requests in a life, every 5. failed in turn"), text)
   end)

   it("leaves no descriptor behind", function()
      local text = driver("cycles 50")
      local early, late = text:match("5 lives: (%d+) descriptors.-50 lives: (%d+) descriptors")
      assert.truthy(early, text)
      assert.equal(early, late)
   end)
end)
