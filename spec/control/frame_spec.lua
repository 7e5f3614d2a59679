local ffi = require "ffi"
local inside = require "spec.support.inside"
local control = require "spec.support.control"

describe("frame", function()
   local C = control.open()

   local function decode(bytes)
      local header, err = ffi.new("slc_frame_header"), inside.error()
      local status = C.slc_frame_decode(ffi.cast("const unsigned char *", bytes), header, err)
      return tonumber(status), inside.text(err), header
   end

   it("writes a header of 24 bytes, little endian", function()
      local bytes = ffi.new("unsigned char[24]")
      C.slc_frame_encode(ffi.new("slc_frame_header", {1, 4, 0x01020304, 7}), bytes)
      assert.equal("SLCE\1\0\0\0\4\0\0\0\4\3\2\1\7\0\0\0\0\0\0\0", ffi.string(bytes, 24))
   end)

   it("reads back what it wrote, for every type", function()
      for name, number in pairs(control.frame_type) do
         local length = (name == "beat" or name == "recall") and 0 or 33
         local status, _, header = decode(control.frame({type = number, tag = 9, length = length}))
         assert.equal(0, status)
         assert.same({1, number, 9, length}, {header.version, header.type, header.tag, header.length})
         assert.equal(name, ffi.string(C.slc_frame_text(number)))
      end
      assert.equal("unknown", ffi.string(C.slc_frame_text(0)))
      assert.equal("unknown", ffi.string(C.slc_frame_text(10)))
   end)

   local lies = {
      {"another magic", {type = "join", magic = "GET "}, "frame: magic (47 45 54 20) must be 53 4c 43 45: the other end is no rank of Sluice"},
      {"another version", {type = "join", version = 2}, "frame: protocol version (2) must be 1"},
      {"a type that does not exist", {type = 99}, "frame: type (99) is unknown"},
      {"type 0", {type = 0}, "frame: type (0) is unknown"},
      {"a reserved word that is set", {type = "join", reserved = 5}, "frame: reserved word (5) must be 0"},
      {"a join of more than 1 KiB", {type = "join", length = 1025}, "frame: length (1025) of type join must be at most 1024"},
      {"a leave of more than 64 bytes", {type = "leave", length = 65}, "frame: length (65) of type leave must be at most 64"},
      {"a beat that says something", {type = "beat", length = 1}, "frame: length (1) of type beat must be at most 0"},
      {"an envelope of more than 1 GiB", {type = "envelope", length = 2 ^ 30 + 1},
       "frame: length (1073741825) of type envelope must be at most 1073741824"},
      {"a length of all ones", {type = "verdict", length = 2 ^ 32 - 1},
       "frame: length (4294967295) of type verdict must be at most 1073741824"},
   }
   for _, case in ipairs(lies) do
      it("refuses " .. case[1], function()
         local status, text = decode(control.frame(case[2]))
         assert.equal(control.status.invalid, status)
         assert.equal(case[3], text)
      end)
   end

   it("tells what the header of another version says", function()
      local _, _, header = decode(control.frame({type = "join", version = 7, tag = 3}))
      assert.same({7, 1, 3}, {header.version, header.type, header.tag})
   end)
end)
