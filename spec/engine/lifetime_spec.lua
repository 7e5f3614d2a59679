--- The library in a host that loads it at run time, plugins come and go: spec/support/lifetime.c.

local build = (os.getenv("SLUICE_INSIDE") or "build/libsluice_inside.so"):match("^(.*)/[^/]*$")

describe("a host that opens the library, makes two engines, destroys them and closes it", function()
   it("holds no more heap, descriptors, threads or mappings after 1,000 times than after 100", function()
      if os.getenv("SLUICE_SANITIZER") then
         pending("the sanitizer has its own look at this program, see scripts/test")
         return
      end
      -- Blocks that the C library keeps for a thread's next request count as held there.
      local pipe = assert(io.popen(("GLIBC_TUNABLES=glibc.malloc.tcache_count=0 %s/spec/lifetime %s/libsluice.so 1000 2>&1; echo status $?")
         :format(build, build)))
      local said = pipe:read("*a")
      pipe:close()
      assert.match("^early: (heap [^\n]*)\nlate: heap [^\n]*\nstatus 0\n$", said)
   end)
end)
