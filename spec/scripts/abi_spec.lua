--- What scripts/abi says of a library that differs from the record of what hosts were built against.

local files = require "scripts.files"
local inside = require "spec.support.resolving"
local shell = require "scripts.shell"

-- The record with each text of `changes` replaced by the next, as "now"; status and lines.
local function compare(changes)
   local record = assert(files.read("src/sluice.abi"))
   local now = record
   for i = 1, #changes, 2 do
      local from, to = now:find(changes[i], 1, true)
      assert(from, changes[i])
      now = now:sub(1, from - 1) .. changes[i + 1] .. now:sub(to + 1)
   end
   local path = inside.write(now)
   local said, code = shell("luajit scripts/abi.lua compare src/sluice.abi " .. path)
   os.remove(path)
   local lines = {}
   for line in said:gmatch("[^\n]+") do
      lines[#lines + 1] = line:gsub("^abi: ", "")
   end
   return code, lines
end

local REMEDY = "keep what was released, or change the soname; what was never released: scripts/abi --write"

describe("scripts/abi", function()
   local function breaks(what, changes, expected)
      it("fails when " .. what, function()
         local status, lines = compare(changes)
         while lines[1] and lines[1]:find("^new, ") do
            table.remove(lines, 1)
         end
         assert.same({ 1, { "a host breaks: " .. expected, REMEDY } }, { status, lines })
      end)
   end

   local function passes(what, changes, ...)
      local expected = { ... }
      it("passes when " .. what, function()
         local status, lines = compare(changes)
         assert.match("^all %d+ functions and types of src/sluice.abi are as hosts were built against them$", table.remove(lines))
         assert.same({ 0, expected }, { status, lines })
      end)
   end

   local FORGET = "function sluice_forget, SLUICE_0.1\n   type sluice_status (sluice_engine *engine, sluice_error *error)\n"
   breaks("a function is gone", { FORGET, "" }, "function sluice_forget is gone")
   breaks("a function takes something else", { FORGET, (FORGET:gsub("sluice_error %*error", "int error")) },
      "function sluice_forget: type was sluice_status (sluice_engine *engine, sluice_error *error), is sluice_status (sluice_engine *engine, " ..
      "int error)")
   breaks("a symbol has another version", { "sluice_forget, SLUICE_0.1", "sluice_forget, SLUICE_0.2" },
      "function sluice_forget: was SLUICE_0.1, is SLUICE_0.2")
   breaks("a constant has another value", { "SLUICE_TIMEOUT = 5", "SLUICE_TIMEOUT = 50" }, "enum sluice_status: SLUICE_TIMEOUT was = 5, is = 50")
   breaks("a member has another place", { "ndim uint32_t at 24", "ndim uint32_t at 28" },
      "struct sluice_tensor: ndim was uint32_t at 24, 4 bytes, is uint32_t at 28, 4 bytes")
   breaks("a struct without its size grows", { "sluice_progress, 32 bytes", "sluice_progress, 40 bytes" },
      "struct sluice_progress: was 32 bytes, is 40 bytes")
   breaks("a new member lies in what was padding", { "sluice_live, 64 bytes", "sluice_live, 72 bytes",
      "   attributes const char * at 56, 8 bytes", "   attributes const char * at 56, 8 bytes\n   flags int at 60, 4 bytes" },
      "struct sluice_live: was 64 bytes, is 72 bytes")
   breaks("the soname is another one", { "soname libsluice.so.0.1", "soname libsluice.so.0.2" }, "soname libsluice.so.0.1 is gone")

   passes("nothing differs", {})
   passes("a function, a constant and a member at the end are new", {
      FORGET, FORGET .. "function sluice_remember, SLUICE_0.2\n   type void (void)\n",
      "   SLUICE_INTERNAL = 12", "   SLUICE_INTERNAL = 12\n   SLUICE_LATE = 13",
      "sluice_live, 64 bytes", "sluice_live, 72 bytes",
      "   attributes const char * at 56, 8 bytes", "   attributes const char * at 56, 8 bytes\n   device int at 64, 4 bytes",
   }, "new, in no release yet: enum sluice_status: SLUICE_LATE", "new, in no release yet: struct sluice_live: device",
      "new, in no release yet: function sluice_remember")
end)
