--- control_driver.c under sanitizers: what a run of Lua could not see.

local shell = require "scripts.shell"
local unistd = require "posix.unistd"

describe("control under sanitizers", function()
   local driver

   setup(function()
      local path = os.tmpname()
      os.remove(path)
      local output, code = shell("cc -g -O1 -std=c11 -D_GNU_SOURCE -fsanitize=address,undefined -fno-sanitize-recover=all -Isrc "
                                  .. "spec/support/control_driver.c src/base/*.c src/control/*.c -o " .. path .. " -lssl -lcrypto -lpthread")
      assert(code == 0, output)
      driver = path
   end)

   teardown(function()
      if driver then
         unistd.unlink(driver)
      end
   end)

   for rank = 0, 1 do
      it(("comes out clean when any allocation of rank %d fails"):format(rank), function()
         local output, code = shell(driver .. " allocations " .. rank)
         assert.equal(0, code, output)
         assert.is_true(tonumber(output:match("%d+%s*$")) > 40, output)
      end)
   end

   it("stands damaged frames from strangers and from a member", function()
      local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time()
      local output, code = shell(("%s damage %d 150"):format(driver, seed))
      assert.equal(0, code, ("SLUICE_SEED=%d: %s"):format(seed, output))
   end)
end)
