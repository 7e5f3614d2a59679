-- The generator: any stretch of any tensor, the same however it is cut, other for every tensor and update.

local ffi = require "ffi"
local inside = require "spec.support.inside"

local C = inside.declare("cli/values.h")

local function write(values, update, offset, count)
   local out = ffi.new("unsigned char[?]", count + 1)
   out[count] = 0x5A
   C.slc_values_write(values, update, offset, out, count)
   assert.equal(0x5A, out[count], "it wrote past the end")
   return ffi.string(out, count)
end

local function generated(name)
   return C.slc_values_of(name, nil)
end

describe("the values of a tensor", function()
   local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time()

   it("are the same bytes however a range is cut", function()
      math.randomseed(seed)
      for _, base in ipairs { false, true } do
         local anchor = ffi.new("unsigned char[5000]")
         for i = 0, 4999 do
            anchor[i] = i * 7 % 251
         end
         local values = C.slc_values_of("model.layers.0.mlp.up_proj.weight", base and anchor or nil)
         for _ = 1, 200 do
            local update, start = math.random(1, 4), math.random(0, 300)
            local whole = write(values, update, start, 4600)
            local at, parts = 0, {}
            while at < 4600 do
               local count = math.min(math.random(0, 3) == 0 and math.random(1, 3) or math.random(1, 1500), 4600 - at)
               parts[#parts + 1] = write(values, update, start + at, count)
               at = at + count
            end
            assert.is_true(whole == table.concat(parts), ("cut differs, SLUICE_SEED=%d"):format(seed))
         end
      end
   end)

   it("are those of another tensor nowhere", function()
      local a, b = write(generated("a.weight"), 1, 0, 8000), write(generated("b.weight"), 1, 0, 8000)
      for at = 1, 8000 - 7, 8 do
         assert.not_equal(a:sub(at, at + 7), b:sub(at, at + 7))
      end
   end)

   it("differ from update to update in every word", function()
      local first, second = write(generated("a.weight"), 1, 0, 8000), write(generated("a.weight"), 2, 0, 8000)
      for at = 1, 8000 - 7, 8 do
         assert.not_equal(first:sub(at, at + 7), second:sub(at, at + 7))
      end
   end)

   it("do not repeat within a tensor", function()
      local bytes, seen = write(generated("a.weight"), 1, 0, 80000), {}
      for at = 1, 80000 - 7, 8 do
         local word = bytes:sub(at, at + 7)
         assert.is_nil(seen[word])
         seen[word] = true
      end
   end)

   it("are reached far into a tensor of terabytes", function()
      local offset = 3e12 + 5
      local long = write(generated("a.weight"), 3, offset, 64)
      assert.equal(long:sub(4, 20), write(generated("a.weight"), 3, offset + 3, 17))
   end)

   it("are a checkpoint's own bytes in update 1 and others in every later one", function()
      local anchor = ffi.new("unsigned char[4096]", { 1, 2, 3, 4, 5 })
      local values, text = C.slc_values_of("a.weight", anchor), ffi.string(anchor, 4096)
      assert.equal(text, write(values, 1, 0, 4096))
      assert.equal(text:sub(4), write(values, 1, 3, 4093))
      local second, third = write(values, 2, 0, 4096), write(values, 3, 0, 4096)
      for at = 1, 4096, 8 do
         assert.not_equal(text:sub(at, at + 7), second:sub(at, at + 7))
         assert.not_equal(second:sub(at, at + 7), third:sub(at, at + 7))
      end
   end)

   it("use all byte values about equally often", function()
      local bytes, count = write(generated("a.weight"), 1, 0, 256000), {}
      for i = 1, #bytes do
         local byte = bytes:byte(i)
         count[byte] = (count[byte] or 0) + 1
      end
      for byte = 0, 255 do
         assert.is_true(count[byte] > 800 and count[byte] < 1200, ("byte %d came %d times"):format(byte, count[byte]))
      end
   end)
end)
