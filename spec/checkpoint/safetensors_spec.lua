--- The safetensors reader: what it gives out of good files, and what it says of every kind of bad one.

local cjson = require "cjson"
local ffi = require "ffi"
local files = require "scripts.files"
local inside = require "spec.support.inside"
local safetensors = require "spec.support.safetensors"

local C = inside.declare("checkpoint/safetensors.h", "base/memory.h")
local random = math.random

local INVALID, NO_MEMORY, SYSTEM = 1, 3, 4

local directory

local function path(name)
   return directory .. "/" .. name
end

local function write(name, bytes)
   files.write(path(name), bytes)
   return path(name)
end

-- A file of this header text and these bytes of data.
local function file_of(header, data)
   return safetensors.length(#header) .. header .. (data or "")
end

local function record(dtype, shape, first, last)
   return ('{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}'):format(dtype, table.concat(shape, ","), first, last)
end

local function open(where)
   local handle = ffi.new("slc_checkpoint *[1]")
   local err = ffi.new("sluice_error", { size = ffi.sizeof("sluice_error"), rank = -1 })
   local status = C.slc_checkpoint_open(where, handle, err)
   if status ~= 0 then
      assert(handle[0] == nil)
      return nil, inside.text(err), tonumber(status)
   end
   return ffi.gc(handle[0], C.slc_checkpoint_close)
end

local function close(checkpoint)
   C.slc_checkpoint_close(ffi.gc(checkpoint, nil))
end

local function refuses(where, text, status)
   local checkpoint, message, code = open(where)
   assert.is_nil(checkpoint)
   assert.equal("checkpoint: " .. text, message)
   assert.equal(status or INVALID, code)
end

-- A one-file case: the message without the path in front.
local function refuses_file(bytes, text)
   local where = write("bad.safetensors", bytes)
   refuses(where, where .. text)
end

local function tensor_of(checkpoint, name)
   local tensor = C.slc_checkpoint_find(checkpoint, name)
   assert(tensor ~= nil, name)
   local shape = {}
   for i = 1, tensor.ndim do
      shape[i] = tonumber(tensor.shape[i - 1])
   end
   return ffi.string(tensor.dtype.name), shape, ffi.string(tensor.data, tensor.bytes)
end

describe("slc_checkpoint_open()", function()
   setup(function()
      local pipe = assert(io.popen("mktemp -d"))
      directory = pipe:read("*l")
      pipe:close()
   end)

   teardown(function()
      os.execute("rm -r '" .. directory .. "'")
   end)

   before_each(function()
      os.execute("rm -rf '" .. directory .. "'/*")
   end)

   describe("with one file", function()
      it("gives every tensor in the order of names, whatever the order of keys and of data", function()
         local checkpoint = assert(open(write("a.safetensors", file_of(
            ('{"b":%s,"__metadata__":{"format":"pt"}, "a" : %s,"c":%s}  '):format(record("U8", { 2, 1 }, 4, 6),
               record("I16", { 2 }, 0, 4), record("F32", {}, 6, 10)), "ABCDEFGHIJ"))))
         assert.equal(3, tonumber(C.slc_checkpoint_count(checkpoint)))
         local names = {}
         for i = 0, 2 do
            names[i + 1] = ffi.string(C.slc_checkpoint_at(checkpoint, i).name)
         end
         assert.same({ "a", "b", "c" }, names)
         assert.is_true(C.slc_checkpoint_at(checkpoint, 3) == nil)
         assert.same({ "int16", { 2 }, "ABCD" }, { tensor_of(checkpoint, "a") })
         assert.same({ "uint8", { 2, 1 }, "EF" }, { tensor_of(checkpoint, "b") })
         assert.same({ "float32", {}, "GHIJ" }, { tensor_of(checkpoint, "c") })
         assert.is_true(C.slc_checkpoint_find(checkpoint, "d") == nil)
      end)

      it("gives a tensor with an extent of 0 as 0 bytes", function()
         local checkpoint = assert(open(write("a.safetensors", file_of('{"a":' .. record("F32", { 3, 0 }, 0, 0) .. "}"))))
         assert.same({ "float32", { 3, 0 }, "" }, { tensor_of(checkpoint, "a") })
      end)

      it("counts F4 tensors in bytes, as torch does", function()
         local checkpoint = assert(open(write("a.safetensors", file_of('{"a":' .. record("F4", { 2, 4 }, 0, 4) .. "}", "wxyz"))))
         assert.same({ "float4_e2m1fn_x2", { 2, 2 }, "wxyz" }, { tensor_of(checkpoint, "a") })
      end)

      it("reads escaped and non-ASCII names", function()
         local checkpoint = assert(open(write("a.safetensors", file_of([[{"w\u00e9\"\\":]] .. record("U8", { 1 }, 0, 1) .. "}", "x"))))
         assert.same({ "uint8", { 1 }, "x" }, { tensor_of(checkpoint, 'w\195\169"\\') })
      end)

      it("reads a file without tensors", function()
         local checkpoint = assert(open(write("a.safetensors", file_of("{}"))))
         assert.equal(0, tonumber(C.slc_checkpoint_count(checkpoint)))
         assert.is_true(C.slc_checkpoint_find(checkpoint, "a") == nil)
      end)

      it("names a file that is not there, a directory's lack and a file that is none", function()
         refuses(path("no"), path("no") .. " cannot be opened: No such file or directory", SYSTEM)
         refuses(directory, directory .. " holds neither model.safetensors nor a *.safetensors.index.json")
         os.execute("mkfifo '" .. path("fifo") .. "'")
         refuses(path("fifo"), path("fifo") .. " must be a regular file")
         refuses(write("empty.safetensors", ""), path("empty.safetensors") .. " is empty")
      end)

      it("refuses a file too short for the header's length", function()
         refuses_file("1234567", ": 7 bytes are no safetensors file: the header's length alone has 8")
      end)

      it("refuses a header that claims 2^60 bytes", function()
         refuses_file(safetensors.length(2 ^ 60) .. "{}",
            ": no safetensors file: its header would have 1152921504606846976 bytes, and at most 100000000 are allowed")
      end)

      it("refuses a header that goes on behind the file", function()
         refuses_file(safetensors.length(90) .. "{}", ": the file is truncated: the header claims 90 bytes and 2 follow its length")
      end)

      it("refuses a file whose data is cut off", function()
         refuses_file(file_of('{"a":' .. record("F32", { 2 }, 0, 8) .. "}", "1234567"),
            ': tensor "a": data_offsets [0, 8) must lie within the file\'s 7 bytes of data')
      end)

      local one = record("U8", { 1 }, 0, 1)
      local bad_texts = {
         { "an empty header", "", ": the header must be a JSON object" },
         { "a list", "[]", ": the header must be a JSON object" },
         { "an object that does not end", '{"a":' .. one, ": the header is not JSON (byte 52: a comma or a closing brace must follow a member)" },
         { "text behind the object", "{}x", ": the header is not JSON (byte 2: text follows the object)" },
         { "a comma without a member", '{"a":' .. one .. ",}", ": the header is not JSON (byte 53: a key must be a string)" },
         { "a key without a colon", '{"a" 1}', ": the header is not JSON (byte 5: a colon must follow a key)" },
         { "a key that does not end", '{"a', ": the header is not JSON (byte 1: a key must be a string)" },
         { "a value that does not end", '{"a":{"b":[', ": the header is not JSON (byte 5: the text ends inside a value)" },
         { "a key of one number", "{1:2}", ": the header is not JSON (byte 1: a key must be a string)" },
      }
      for _, case in ipairs(bad_texts) do
         it("refuses " .. case[1], function()
            refuses_file(file_of(case[2], "x"), case[3])
         end)
      end

      local bad_records = {
         { "a record that is a number", "3", "it must be an object with exactly dtype, shape and data_offsets" },
         { "a record without dtype", '{"shape":[1],"data_offsets":[0,1]}', "it must be an object with exactly dtype, shape and data_offsets" },
         { "a record with one key more", '{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}',
            "it must be an object with exactly dtype, shape and data_offsets" },
         { "a dtype that is no string", '{"dtype":8,"shape":[1],"data_offsets":[0,1]}', "dtype must be a string" },
         { "an unknown dtype", record("Q8", { 1 }, 0, 1), 'dtype "Q8" is not known' },
         { "a shape that is no list", '{"dtype":"U8","shape":1,"data_offsets":[0,1]}', "shape must be a list of integers" },
         { "a negative extent", record("U8", { 1, -1 }, 0, 1), "shape[1] must be an integer of at least 0" },
         { "a broken extent", record("U8", { "1.0" }, 0, 1), "shape[0] must be an integer of at least 0" },
         { "an extent of true", record("U8", { "true" }, 0, 1), "shape[0] must be an integer of at least 0" },
         { "nine dims", record("U8", { 1, 1, 1, 1, 1, 1, 1, 1, 1 }, 0, 1), "shape has 9 dims; at most 8 are supported" },
         { "a shape past 2^63 bytes", record("F64", { "4611686018427387904", 2 }, 0, 1),
            "its shape has more bytes than an address can say" },
         { "an odd F4 tensor", record("F4", { 2, 1 }, 0, 1), "the last extent of an F4 tensor must be even" },
         { "three offsets", '{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}', "data_offsets must be two integers" },
         { "offsets in the wrong order", record("U8", { 1 }, 1, 0), "data_offsets [1, 0) must lie within the file's 1 bytes of data" },
         { "a negative offset", record("U8", { 1 }, -1, 0), "data_offsets [-1, 0) must lie within the file's 1 bytes of data" },
         { "an offset behind the data", '{"dtype":"U8","shape":[1],"data_offsets":[0,9223372036854775807]}',
            "data_offsets [0, 9223372036854775807) must lie within the file's 1 bytes of data" },
         { "bytes that are not the shape's", record("U8", { 2 }, 0, 1),
            "data_offsets [0, 1) hold 1 bytes; its shape and dtype U8 need 2" },
      }
      for _, case in ipairs(bad_records) do
         it("refuses " .. case[1], function()
            refuses_file(file_of('{"a":' .. case[2] .. "}", "x"), ': tensor "a": ' .. case[3])
         end)
      end

      it("refuses a key that stands twice in a record", function()
         local where = write("bad.safetensors", file_of('{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', "x"))
         local _, message = open(where)
         assert.truthy(message:find("the header is not JSON (byte 26: duplicate object key near '\"dtype\"')", 1, true), message)
      end)

      it("refuses an integer past 2^63", function()
         local where = write("bad.safetensors", file_of('{"a":' .. record("U8", { "9223372036854775808" }, 0, 1) .. "}", "x"))
         local _, message = open(where)
         assert.truthy(message:find("the header is not JSON (byte 47: too big integer", 1, true), message)
      end)

      it("refuses a tensor that stands there twice", function()
         refuses_file(file_of(('{"a":%s,"a":%s}'):format(one, record("U8", { 1 }, 1, 2)), "xy"), ': tensor "a" stands there twice')
      end)

      it("refuses an empty name", function()
         refuses_file(file_of('{"":' .. one .. "}", "x"), ": a tensor's name must not be empty")
      end)

      it("refuses a name longer than 4096 bytes", function()
         refuses_file(file_of(('{"%s":%s}'):format(("n"):rep(4097), one), "x"),
            ": the header has a key of 4097 bytes; at most 4096 are allowed")
      end)

      it("cuts long names and replaces control characters in messages", function()
         refuses_file(file_of(('{"\\n%s":3}'):format(("n"):rep(200)), "x"),
            (': tensor "?%s...": it must be an object with exactly dtype, shape and data_offsets'):format(("n"):rep(155)))
      end)

      it("refuses data that two tensors share", function()
         refuses_file(file_of(('{"a":%s,"b":%s}'):format(record("U8", { 2 }, 0, 2), record("U8", { 2 }, 1, 3)), "xyz"),
            ': tensor "b": its data begins at 1, inside tensor "a" which ends at 2')
      end)

      it("refuses a gap between tensors", function()
         refuses_file(file_of(('{"a":%s,"b":%s}'):format(record("U8", { 1 }, 0, 1), record("U8", { 1 }, 2, 3)), "xyz"),
            ': tensor "b": its data begins at 2 and the tensor before it ends at 1: no gap is allowed')
      end)

      it("refuses bytes behind the last tensor", function()
         refuses_file(file_of('{"a":' .. one .. "}", "xyz"), ": 2 bytes of data follow the last tensor; there must be none")
      end)

      it("refuses metadata that is not an object of strings", function()
         refuses_file(file_of('{"__metadata__":{"a":1}}'), ': __metadata__ "a" must be a string')
         refuses_file(file_of('{"__metadata__":[]}'), ": __metadata__ must be a JSON object")
         refuses_file(file_of('{"__metadata__":{},"__metadata__":{}}'), ": __metadata__ stands there twice")
      end)

      it("refuses a record too large to be one before it reads it", function()
         refuses_file(file_of('{"a":[' .. ("{},"):rep(400000) .. "0]}"),
            ": the header has a value of 1200003 bytes at byte 5; at most 1048576 are allowed")
      end)
   end)

   describe("with a sharded index", function()
      local function shard(name, tensors)
         local parts, data = {}, {}
         for i, tensor in ipairs(tensors) do
            parts[i] = ('"%s":%s'):format(tensor, record("U8", { 1 }, i - 1, i))
            data[i] = tensor:sub(-1)
         end
         write(name, file_of("{" .. table.concat(parts, ",") .. "}", table.concat(data)))
      end

      local function index(map, name)
         return write(name or "model.safetensors.index.json", type(map) == "string" and map or
            cjson.encode({ metadata = { total_size = 3 }, weight_map = map }))
      end

      local good = { a = "one.safetensors", b = "two.safetensors", c = "one.safetensors" }

      before_each(function()
         shard("one.safetensors", { "c", "a" })
         shard("two.safetensors", { "b" })
      end)

      it("joins the files, by the index or by its directory", function()
         for _, where in ipairs({ index(good), directory, directory .. "/" }) do
            local checkpoint = assert(open(where))
            assert.equal(3, tonumber(C.slc_checkpoint_count(checkpoint)))
            for _, name in ipairs({ "a", "b", "c" }) do
               assert.same({ "uint8", { 1 }, name }, { tensor_of(checkpoint, name) })
            end
            close(checkpoint)
         end
      end)

      it("prefers model.safetensors to an index in a directory", function()
         index(good)
         shard("model.safetensors", { "x" })
         local checkpoint = assert(open(directory))
         assert.equal(1, tonumber(C.slc_checkpoint_count(checkpoint)))
      end)

      it("refuses a directory with two indexes", function()
         index(good)
         index(good, "b.safetensors.index.json")
         refuses(directory, directory .. " holds two indexes, b.safetensors.index.json and model.safetensors.index.json: name one of them")
      end)

      local bad_names = { "../one.safetensors", "/etc/one.safetensors", "a/b.safetensors", ".one.safetensors", "one.bin", "", ".safetensors" }
      for _, name in ipairs(bad_names) do
         it(("refuses the file name %q"):format(name), function()
            local where = index({ a = name })
            refuses(where, ('%s: weight_map["a"] (%s) must be the plain name of a .safetensors file beside the index'):format(where, name))
         end)
      end

      it("refuses a file name that is no string", function()
         local where = index({ a = 3 })
         refuses(where, where .. ': weight_map["a"] (no string) must be the plain name of a .safetensors file beside the index')
      end)

      it("refuses an index with a file that is not there", function()
         refuses(index({ a = "three.safetensors" }), path("three.safetensors") .. " cannot be opened: No such file or directory", SYSTEM)
      end)

      it("names a tensor that its file lacks", function()
         local where = index({ a = "one.safetensors", b = "two.safetensors", bb = "two.safetensors", c = "one.safetensors" })
         refuses(where, where .. ': tensor "bb" is missing: two.safetensors does not hold it')
      end)

      it("names a last tensor that its file lacks", function()
         local where = index({ a = "one.safetensors", b = "two.safetensors", c = "one.safetensors", z = "two.safetensors" })
         refuses(where, where .. ': tensor "z" is missing: two.safetensors does not hold it')
      end)

      it("names a tensor that the index does not list", function()
         local where = index({ b = "two.safetensors", c = "one.safetensors" })
         refuses(where, ('%s: tensor "a" lies in %s, but weight_map does not list it'):format(where, path("one.safetensors")))
      end)

      it("names a tensor that lies in another file than the index says", function()
         local where = index({ a = "one.safetensors", b = "one.safetensors", c = "two.safetensors" })
         refuses(where, ('%s: tensor "b" lies in %s; weight_map says one.safetensors'):format(where, path("two.safetensors")))
      end)

      it("names a tensor that lies in two files", function()
         shard("two.safetensors", { "b", "c" })
         refuses(index(good), ('tensor "c" lies in two files: %s and %s'):format(path("one.safetensors"), path("two.safetensors")))
      end)

      local bad_indexes = {
         { "without a weight_map", '{"metadata":{}}', ": weight_map is missing" },
         { "with an empty weight_map", '{"weight_map":{}}', ": weight_map must name at least one tensor" },
         { "with a list for weight_map", '{"weight_map":[]}', ": weight_map must be a JSON object" },
         { "with two weight_maps", '{"weight_map":{},"weight_map":{}}', ": the index has weight_map twice" },
         { "with an unknown key", '{"weights":{}}', ': the index has the unknown key "weights"; known are metadata and weight_map' },
         { "with a tensor twice", '{"weight_map":{"a":"one.safetensors","a":"one.safetensors"}}', ': weight_map lists tensor "a" twice' },
         { "with an empty tensor name", '{"weight_map":{"":"one.safetensors"}}', ": a tensor's name in weight_map must not be empty" },
         { "that is a list", "[]", ": the index must be a JSON object" },
      }
      for _, case in ipairs(bad_indexes) do
         it("refuses an index " .. case[1], function()
            local where = index(case[2])
            refuses(where, where .. case[3])
         end)
      end

      it("gives every failing allocation back as an error, and nothing half open", function()
         local where = index(good)
         C.slc_fail_allocation(0, false)
         close(assert(open(where)))
         local requests = tonumber(C.slc_fail_allocation(0, false))
         assert.is_true(requests > 0)
         for nth = 1, requests do
            C.slc_fail_allocation(nth, false)
            local checkpoint, message, code = open(where)
            C.slc_fail_allocation(0, false)
            assert.is_nil(checkpoint)
            assert.equal(NO_MEMORY, code)
            assert.truthy(message:find("^checkpoint: out of memory for "), message)
         end
         close(assert(open(where)))
      end)
   end)

   describe("with a damaged file", function()
      local header = ('{"__metadata__":{"format":"pt"},"a":%s,"b.c":%s}'):format(record("F32", { 2, 3 }, 0, 24), record("I64", { 1 }, 24, 32))
      local good = file_of(header, ("d"):rep(32))

      it("refuses every prefix of it", function()
         for length = 0, #good - 1 do
            local checkpoint, message = open(write("a.safetensors", good:sub(1, length)))
            assert.is_nil(checkpoint, "a prefix of " .. length .. " bytes was accepted")
            assert.truthy(message:find("^checkpoint: "), message)
         end
         close(assert(open(write("a.safetensors", good))))
      end)

      it("answers any random damage with an error or with tensors inside the file", function()
         local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time()
         math.randomseed(seed)
         for round = 1, 2000 do
            local bytes = good
            for _ = 1, random(1, 4) do
               local at = random(1, 8 + #header)
               bytes = bytes:sub(1, at - 1) .. string.char(random(0, 255)) .. bytes:sub(at + 1)
            end
            local checkpoint, message = open(write("a.safetensors", bytes))
            if checkpoint then
               local total = 0
               for i = 0, tonumber(C.slc_checkpoint_count(checkpoint)) - 1 do
                  local tensor = C.slc_checkpoint_at(checkpoint, i)
                  total = total + #ffi.string(tensor.data, tensor.bytes)
               end
               assert.is_true(total <= #good, ("seed %d, round %d: %d bytes of data"):format(seed, round, total))
               close(checkpoint)
            else
               assert.truthy(message:find("^checkpoint: "), ("seed %d, round %d: %s"):format(seed, round, message))
            end
         end
      end)
   end)
end)

describe("the all-MiniLM-L6-v2 checkpoint", function()
   it("holds 104 tensors, the word embeddings and int64 position ids among them", function()
      local where = os.getenv("SLUICE_MINILM") or "build/minilm"
      if not io.open(where .. "/model.safetensors") then
         return pending("there is no model in " .. where .. ": run scripts/fetch-minilm")
      end
      local checkpoint = assert(open(where))
      assert.equal(104, tonumber(C.slc_checkpoint_count(checkpoint)))
      local dtype, shape = tensor_of(checkpoint, "embeddings.word_embeddings.weight")
      assert.same({ "float32", { 30522, 384 } }, { dtype, shape })
      local id_dtype, id_shape, bytes = tensor_of(checkpoint, "embeddings.position_ids")
      assert.same({ "int64", { 1, 512 } }, { id_dtype, id_shape })
      local ids = ffi.cast("const int64_t *", ffi.cast("const char *", bytes))
      for i = 0, 511 do
         assert.equal(i, tonumber(ids[i]))
      end
   end)
end)
