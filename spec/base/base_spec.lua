--- The base layer: errors, dtypes, memory, names, deadlines, digests.

local ffi = require "ffi"
local inside = require "spec.support.inside"

local C = inside.declare("base/available.h", "base/error.h", "base/dtype.h", "base/memory.h", "base/names.h", "base/clock.h", "base/digest.h")

describe("error", function()
   it("puts the stage in front of the text and keeps it apart, too", function()
      local err = inside.error()
      local status = C.slc_fail(err, "SLUICE_INVALID", "init", "params[%d] (%s) must be a mapping", ffi.new("int", 3), "nil")
      assert.equal(1, tonumber(status))
      assert.equal("init: params[3] (nil) must be a mapping", inside.text(err))
      assert.equal("init", ffi.string(err.stage))
      assert.equal(-1, err.rank)
   end)

   it("cuts a text that does not fit and terminates it", function()
      local err = inside.error()
      C.slc_fail(err, "SLUICE_INVALID", ("s"):rep(100), "%s", ("x"):rep(10000))
      assert.equal(31, #ffi.string(err.stage))
      assert.equal(4095, #inside.text(err))
   end)

   it("appends the errno text and chooses the status by it", function()
      local err = inside.error()
      assert.equal(3, tonumber(C.slc_fail_errno(err, 12, "runtime", "mmap")))
      assert.equal("runtime: mmap: Cannot allocate memory", inside.text(err))
      assert.equal(5, tonumber(C.slc_fail_errno(err, 110, "connect", "to %s", "host")))
      assert.equal(4, tonumber(C.slc_fail_errno(nil, 2, "connect", "no error wanted")))
   end)

   it("has a text for every status and one for the unknown", function()
      assert.equal("ranks disagree", ffi.string(C.sluice_status_text("SLUICE_DISAGREE")))
      assert.equal("unknown status", ffi.string(C.sluice_status_text(ffi.cast("sluice_status", 99))))
   end)
end)

describe("dtype", function()
   it("knows every dtype of the contract with its size #1.17", function()
      local bytes = {int8 = 1, uint8 = 1, bool = 1, float8_e4m3fn = 1, float8_e5m2 = 1, float8_e8m0fnu = 1, float4_e2m1fn_x2 = 1,
         float16 = 2, bfloat16 = 2, int16 = 2, uint16 = 2, int32 = 4, uint32 = 4, float32 = 4, int64 = 8, uint64 = 8, float64 = 8}
      for name, size in pairs(bytes) do
         local dtype = C.slc_dtype_find(name)
         assert.is_true(dtype ~= nil, name)
         assert.equal(size, tonumber(dtype.bytes), name)
         assert.is_true(C.slc_dtype_by_code(dtype.code) == dtype)
      end
   end)

   it("knows no other", function()
      assert.is_true(C.slc_dtype_find("torch.float32") == nil)
      assert.is_true(C.slc_dtype_find("") == nil)
      assert.is_true(C.slc_dtype_by_code(17) == nil)
   end)

   it("finds the safetensors names", function()
      assert.equal("bfloat16", ffi.string(C.slc_dtype_find_safetensors("BF16").name))
      assert.is_true(C.slc_dtype_find_safetensors("bf16") == nil)
   end)
end)

describe("memory", function()
   it("fails the n-th request and no other, unless told to go on", function()
      C.slc_fail_allocation(2, false)
      local first, second, third = C.slc_allocate(8), C.slc_allocate(8), C.slc_allocate(8)
      assert.equal(3, tonumber(C.slc_fail_allocation(1, true)))
      local fourth, fifth = C.slc_allocate(8), C.slc_allocate_zeroed(1, 8)
      C.slc_fail_allocation(0, false)
      assert.is_true(first ~= nil)
      assert.is_true(second == nil)
      assert.is_true(third ~= nil)
      assert.is_true(fourth == nil and fifth == nil)
      C.slc_release(first)
      C.slc_release(third)
   end)

   it("gives zeroed, aligned, separate blocks from an arena", function()
      local arena = ffi.new("slc_arena")
      local seen = {}
      for i = 1, 2000 do
         local block = ffi.cast("unsigned char *", C.slc_arena_take(arena, i % 97, 3))
         assert.equal(0, tonumber(ffi.cast("uintptr_t", block) % 16))
         for j = 0, (i % 97) * 3 - 1 do
            assert.equal(0, block[j])
            block[j] = i % 251 + 1
         end
         seen[i] = block
      end
      for i = 1, 2000 do
         for j = 0, (i % 97) * 3 - 1 do
            assert.equal(i % 251 + 1, seen[i][j])
         end
      end
      C.slc_arena_clear(arena)
      assert.is_true(arena.blocks == nil)
   end)

   it("is there, and how much is known", function()
      local there = tonumber(C.slc_memory_available())
      assert.is_true(there > 2 ^ 20 and there < 2 ^ 62)
   end)

   it("refuses a size that does not fit", function()
      local arena = ffi.new("slc_arena")
      assert.is_true(C.slc_arena_take(arena, 2 ^ 40, 2 ^ 40) == nil)
      C.slc_arena_clear(arena)
   end)

   it("reads back what it wrote and fails once past the end, for good", function()
      local buffer = ffi.new("slc_buffer")
      C.slc_buffer_u8(buffer, 7)
      C.slc_buffer_u32(buffer, 0xdeadbeef)
      C.slc_buffer_u64(buffer, 2 ^ 53)
      C.slc_buffer_string(buffer, "name")
      C.slc_buffer_text(buffer, "%s=%d", "a", ffi.new("int", 5))
      local reader, arena = ffi.new("slc_reader", {data = buffer.data, length = buffer.length}), ffi.new("slc_arena")
      assert.equal(7, C.slc_read_u8(reader))
      assert.equal(0xdeadbeef, C.slc_read_u32(reader))
      assert.equal(2 ^ 53, tonumber(C.slc_read_u64(reader)))
      assert.equal("name", ffi.string(C.slc_read_string(reader, arena, 100)))
      assert.equal("a=5", ffi.string(C.slc_read_bytes(reader, 3), 3))
      assert.is_false(reader.failed)
      assert.equal(0, C.slc_read_u32(reader))
      assert.is_true(reader.failed)
      assert.equal("", ffi.string(C.slc_read_string(reader, arena, 100)))
      C.slc_buffer_clear(buffer)
      C.slc_arena_clear(arena)
   end)

   it("refuses a string that is longer than allowed, lies about its length or holds a zero byte", function()
      for _, bytes in ipairs {"\5\0\0\0abcde", "\255\255\255\127ab", "\3\0\0\0a\0b"} do
         local arena = ffi.new("slc_arena")
         local reader = ffi.new("slc_reader", {data = ffi.cast("const unsigned char *", bytes), length = #bytes})
         C.slc_read_string(reader, arena, 4)
         assert.is_true(reader.failed)
         C.slc_arena_clear(arena)
      end
   end)
end)

describe("names", function()
   it("numbers names in order and finds each of many", function()
      local names, added = ffi.new("slc_names"), ffi.new("bool[1]")
      for i = 0, 9999 do
         assert.equal(i, tonumber(C.slc_names_add(names, "model.layers." .. i, added)))
         assert.is_true(added[0])
      end
      assert.equal(77, tonumber(C.slc_names_add(names, "model.layers.77", added)))
      assert.is_false(added[0])
      for i = 0, 9999, 7 do
         assert.equal(i, tonumber(C.slc_names_find(names, "model.layers." .. i)))
      end
      assert.is_true(C.slc_names_find(names, "model.layers.10000") == 18446744073709551615ULL)
      C.slc_names_clear(names)
      assert.is_true(C.slc_names_find(names, "model.layers.1") == 18446744073709551615ULL)
   end)
end)

describe("deadline", function()
   it("counts nonsense as passed and bounds what is left", function()
      assert.is_true(C.slc_deadline_passed(C.slc_deadline_in(-1)))
      assert.is_true(C.slc_deadline_passed(C.slc_deadline_in(0 / 0)))
      local far = C.slc_deadline_in(math.huge)
      assert.is_false(C.slc_deadline_passed(far))
      assert.equal(50, C.slc_deadline_poll_ms(far, 50))
      assert.equal(0, C.slc_deadline_poll_ms(C.slc_deadline_in(0), 50))
   end)
end)

describe("digest", function()
   it("is SHA-256 in lower-case hex", function()
      local text, err = ffi.new("char[65]"), inside.error()
      assert.equal(0, tonumber(C.slc_digest("abc", 3, text, err)))
      assert.equal("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", ffi.string(text))
   end)
end)
