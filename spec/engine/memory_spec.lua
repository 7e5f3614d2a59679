--- Memory that peers can map: many blocks, few descriptors.

local dirent = require "posix.dirent"
local ffi = require "ffi"
local host = require "spec.support.host"
local inside = require "spec.support.inside"

local C = inside.declare("sluice.h")

local function descriptors()
   return #dirent.dir("/proc/self/fd")
end

local function alloc(self, bytes)
   local data, err = ffi.new("void *[1]"), inside.error()
   if C.sluice_memory_alloc(self.engine, bytes, data, err) ~= 0 then
      return nil, inside.text(err)
   end
   return ffi.cast("unsigned char *", data[0])
end

describe("memory", function()
   it("gives thousands of zeroed, page-aligned, separate blocks for a handful of descriptors", function()
      local self = host.create {rank = 0}
      collectgarbage() -- files that specs before this one left open
      collectgarbage()
      local before, blocks = descriptors(), {}
      for i = 1, 5000 do
         local block = assert(alloc(self, i % 3 == 0 and 1 or 5000))
         assert.equal(0, tonumber(ffi.cast("uintptr_t", block) % 4096))
         assert.equal(0, block[0])
         block[0] = i % 251 + 1
         blocks[i] = block
      end
      for i = 1, 5000 do
         assert.equal(i % 251 + 1, blocks[i][0])
      end
      assert.is_true(descriptors() - before < 10)
      for i = 1, 5000 do
         C.sluice_memory_free(self.engine, blocks[i])
      end
      assert.equal(before, descriptors())
      assert.equal(0, assert(alloc(self, 10))[0])
      self:destroy()
      assert.equal(before, descriptors())
   end)

   it("refuses no bytes and more than memory holds", function()
      local self = host.create {rank = 0}
      assert.equal("memory: bytes (0) must be at least 1 and fit memory", select(2, alloc(self, 0)))
      assert.equal("memory: bytes (18446744073709551615) must be at least 1 and fit memory", select(2, alloc(self, 18446744073709551615ULL)))
      C.sluice_memory_free(self.engine, nil)
      self:destroy()
   end)

   it("ignores, but for the log, what is freed twice, in the middle or elsewhere: the blocks beside it stay", function()
      local log = {}
      local self = host.create {rank = 0, log = log}
      collectgarbage()
      collectgarbage()
      local before = descriptors()
      local first, second, large = assert(alloc(self, 5000)), assert(alloc(self, 5000)), assert(alloc(self, 100 * 2 ^ 20))
      second[0], large[0] = 7, 8
      C.sluice_memory_free(self.engine, first)
      assert.same({}, log)
      for _, wrong in ipairs {first, first, second + 4096, second + 1, large + 4096, large + 64 * 2 ^ 20, ffi.new("char[8]")} do
         C.sluice_memory_free(self.engine, ffi.cast("void *", wrong))
         assert.equal("1 memory: memory_free of what is no block of this engine, or no longer, is ignored", table.remove(log))
      end
      assert.same({7, 8}, {second[0], large[0]})
      C.sluice_memory_free(self.engine, second)
      C.sluice_memory_free(self.engine, large)
      assert.equal(before, descriptors())
      C.sluice_memory_free(self.engine, second)
      assert.equal(1, #log)
      self:destroy()
   end)

   it("gives blocks larger than a slab", function()
      local self = host.create {rank = 0}
      local block = assert(alloc(self, 100 * 2 ^ 20))
      block[100 * 2 ^ 20 - 1] = 7
      assert.equal(7, block[100 * 2 ^ 20 - 1])
      self:destroy()
   end)
end)
