--- The library in a host that loads it at run time, plugins come and go: spec/support/lifetime.c.

local built = require "spec.support.built"
local shell = require "scripts.shell"

describe("a host that opens the library, makes two engines, destroys them and closes it", function()
   it("holds no more heap, descriptors, threads or mappings after 1,000 times than after 100", function()
      if os.getenv("SLUICE_SANITIZER") then
         pending("the sanitizer has its own look at this program, see scripts/test")
         return
      end
      -- Blocks that the C library keeps for a thread's next request count as held there.
      local said, code = shell(("%sspec/lifetime %slibsluice.so 1000"):format(built.folder, built.folder),
         { GLIBC_TUNABLES = "glibc.malloc.tcache_count=0" })
      assert.equal(0, code, said)
      assert.match("^early: (heap [^\n]*)\nlate: heap [^\n]*\n$", said)
   end)
end)
