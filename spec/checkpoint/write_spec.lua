--- The safetensors writer: what it writes reads back the same, by the program's reader and by another, and what it says when
-- it cannot. (A full disk is a case of spec/cli/save_spec.lua.)

local ffi = require "ffi"
local files = require "scripts.files"
local inside = require "spec.support.inside"
local safetensors = require "spec.support.safetensors"

local C = inside.declare("checkpoint/write.h", "base/memory.h")

local INVALID, NO_MEMORY, SYSTEM, CANCELLED = 1, 3, 4, 10

local directory, keep

-- The C array of a list of { name, dtype, shape, bytes }.
local function tensors_of(list)
   local array = ffi.new("slc_checkpoint_tensor[?]", #list + 1)
   keep = { array, list }
   for i, entry in ipairs(list) do
      local item = array[i - 1]
      item.name, item.dtype, item.ndim = entry[1], C.slc_dtype_find(entry[2]), #entry[3]
      item.data, item.bytes = ffi.cast("const void *", entry[4]), #entry[4]
      for d, extent in ipairs(entry[3]) do
         item.shape[d - 1] = extent
      end
   end
   return array
end

local function write(list, where, cancelled)
   local err, written = inside.error(), ffi.new("uint64_t[1]")
   local status = C.slc_checkpoint_write(where, tensors_of(list), #list, cancelled, written, err)
   if status ~= 0 then
      assert.equal(0, tonumber(written[0]))
      return nil, inside.text(err), tonumber(status)
   end
   return tonumber(written[0])
end

-- What the program's reader finds there.
local function read_back(where)
   local handle, err = ffi.new("slc_checkpoint *[1]"), inside.error()
   assert(C.slc_checkpoint_open(where, handle, err) == 0, inside.text(err))
   local found = {}
   for i = 0, tonumber(C.slc_checkpoint_count(handle[0])) - 1 do
      local tensor, shape = C.slc_checkpoint_at(handle[0], i), {}
      for d = 1, tensor.ndim do
         shape[d] = tonumber(tensor.shape[d - 1])
      end
      found[#found + 1] = { ffi.string(tensor.name), ffi.string(tensor.dtype.name), shape,
         tensor.bytes > 0 and ffi.string(tensor.data, tensor.bytes) or "" }
   end
   C.slc_checkpoint_close(handle[0])
   return found
end

describe("the safetensors writer", function()
   local path

   before_each(function()
      directory = os.tmpname()
      os.remove(directory)
      assert(os.execute("mkdir " .. directory) == 0)
      path = directory .. "/a.safetensors"
   end)

   after_each(function()
      os.execute("rm -rf " .. directory)
   end)

   -- Every dtype, no dims and eight, no elements, names that JSON must escape; sorted by name.
   local all = {
      { 'a"\\\n\1\195\169', "uint8", { 3 }, "xyz" }, { "bool", "bool", { 1, 1 }, "\1" },
      { "eight", "int8", { 1, 2, 1, 1, 3, 1, 1, 1 }, "abcdef" }, { "empty", "float32", { 4, 0 }, "" },
      { "f4", "float4_e2m1fn_x2", { 2, 3 }, "fourxx" }, { "f64", "float64", { 1 }, ("d"):rep(8) },
      { "fp8", "float8_e4m3fn", { 5 }, "fpate" }, { "long", "bfloat16", { 3, 1001 }, ("ab"):rep(3003) },
      { "scalar", "float32", {}, "1234" }, { "u16", "uint16", { 1, 3 }, "UUUUUU" }, { "z64", "int64", { 2 }, ("z"):rep(16) },
   }

   it("writes what the reader then reads", function()
      local written = write(all, path)
      assert.equal(#files.read(path), written)
      assert.same(all, read_back(path))
      assert.is_nil(files.read(path .. ".part"))
   end)

   it("writes a header as the format has it: a multiple of 8 bytes, no gaps, every tensor aligned to its elements", function()
      write(all, path)
      local header = safetensors.header(path)
      local widths = { F64 = 8, I64 = 8, F32 = 4, U16 = 2, BF16 = 2 }
      local ends, begins = { [0] = true }, {}
      for name, record in pairs(header) do
         assert.equal(0, record.data_offsets[1] % (widths[record.dtype] or 1), name)
         if record.data_offsets[2] > record.data_offsets[1] then
            ends[record.data_offsets[2]] = true
            begins[#begins + 1] = record.data_offsets[1]
         end
      end
      for _, begin in ipairs(begins) do
         assert.is_true(ends[begin], "a gap before " .. begin)
      end
      assert.same({ 2, 6 }, header.f4.shape) -- the format counts values of 4 bits
      local bytes = files.read(path)
      assert.equal(0, (bytes:byte(1) + 256 * bytes:byte(2)) % 8)
   end)

   it("writes no tensors at all", function()
      assert.equal(16, write({}, path))
      assert.same({}, read_back(path))
   end)

   it("puts a whole file in the place of an old one", function()
      for _, text in ipairs({ ("old"):rep(100000), ("part"):rep(100000) }) do
         local file = io.open(path .. (text:sub(1, 4) == "part" and ".part" or ""), "w")
         file:write(text)
         file:close()
      end
      write(all, path)
      assert.same(all, read_back(path))
   end)

   local refusals = {
      { "a name twice", { { "a", "uint8", { 1 }, "x" }, { "b", "uint8", { 1 }, "x" }, { "a", "float32", {}, "1234" } },
         ': tensor "a" is there twice' },
      { "bytes that the shape does not give", { { "a", "bfloat16", { 2, 2 }, "1234567" } },
         ': tensor "a" has 7 bytes, which its shape and dtype do not give' },
      { "a shape that overflows", { { "a", "bfloat16", { 2 ^ 40, 2 ^ 40 }, "" } },
         ': tensor "a" has 0 bytes, which its shape and dtype do not give' },
      { "a name that is no UTF-8", { { "a\255", "uint8", { 1 }, "x" } }, ': tensor "a?": its name is no UTF-8' },
   }
   for _, case in ipairs(refusals) do
      it("refuses " .. case[1], function()
         local written, text, status = write(case[2], path)
         assert.is_nil(written)
         assert.same({ "checkpoint: " .. path .. case[3], INVALID }, { text, status })
         assert.is_nil(files.read(path))
         assert.is_nil(files.read(path .. ".part"))
      end)
   end

   it("names the folder that is not there", function()
      local where = directory .. "/none/a.safetensors"
      local _, text, status = write(all, where)
      assert.same({ "checkpoint: " .. where .. ".part cannot be written: No such file or directory", SYSTEM }, { text, status })
   end)

   it("waits for no pipe and follows no link that lies in its way", function()
      os.execute(("mkfifo %s.part"):format(path))
      local _, text = write(all, path)
      assert.equal(("checkpoint: %s.part cannot be written: No such device or address"):format(path), text)
      os.execute(("rm %s.part; ln -s %s/victim %s.part"):format(path, directory, path))
      _, text = write(all, path)
      assert.equal(("checkpoint: %s.part cannot be written: Too many levels of symbolic links"):format(path), text)
      assert.is_nil(files.read(directory .. "/victim"))
   end)

   it("stops when it is cancelled, and leaves nothing", function()
      local _, text, status = write(all, path, ffi.new("bool[1]", true))
      assert.same({ ("checkpoint: cancelled while it wrote %s.part"):format(path), CANCELLED }, { text, status })
      assert.is_nil(files.read(path .. ".part"))
   end)

   it("gives every failing allocation back as an error, and leaves the old file", function()
      write({}, path)
      C.slc_fail_allocation(0, false)
      write(all, path .. "2")
      local requests = tonumber(C.slc_fail_allocation(0, false))
      assert.is_true(requests > 0)
      for nth = 1, requests do
         C.slc_fail_allocation(nth, false)
         local written, text, status = write(all, path)
         C.slc_fail_allocation(0, false)
         assert.is_nil(written)
         assert.equal(NO_MEMORY, status)
         assert.truthy(text:find("^checkpoint: out of memory for "), text)
         assert.same({}, read_back(path))
         assert.is_nil(files.read(path .. ".part"))
      end
      assert.is_true(#keep > 0)
   end)
end)
