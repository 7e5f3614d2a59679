--- Opens libsluice_inside (the core with every symbol visible) for specs and declares C headers to LuaJIT's ffi as they
-- stand in src/, so that no declaration is written twice.
--
--    local inside = require "spec.support.inside"
--    local C = inside.declare("plan/layout.h", "plan/program.h")
--    local err = inside.error()
--    assert.equal(0, C.slc_layout_check(..., err)); print(inside.text(err))

local built = require "spec.support.built"
local ffi = require "ffi"
local files = require "scripts.files"

local inside = {}

local library
local declared = {}

local function run(command)
   local pipe = assert(io.popen(command, "r"))
   local text = pipe:read("*a")
   pipe:close()
   return text
end

--- The library.
function inside.open()
   library = library or ffi.load(built.inside)
   return library
end

--- Declares headers (paths below src/) once each, with what they include, and returns the library.
function inside.declare(...)
   local lines = {}
   for _, header in ipairs({...}) do
      lines[#lines + 1] = ('#include "%s"'):format(header)
   end
   local source = os.tmpname()
   files.write(source, table.concat(lines, "\n"), "\n")
   local text = run(("cc -E -nostdinc -D_GNU_SOURCE '-D__attribute__(x)=' -Ispec/support/cdef -Isrc -x c %s"):format(source))
   os.remove(source)
   -- Line markers tell which header a line comes from. One cdef in the preprocessor's own order keeps every use behind its
   -- declaration; a header that was declared by an earlier call is left out.
   local body, fresh, current = {}, {}, nil
   for line in text:gmatch("[^\n]*") do
      local path = line:match('^# %d+ "([^"]+)"')
      if path then
         current = path:match("^src/") and not declared[path] and path or nil
      elseif current then
         body[#body + 1] = line
         fresh[current] = true
      end
   end
   for path in pairs(fresh) do
      declared[path] = true
   end
   ffi.cdef((table.concat(body, "\n"):gsub("static inline[^{]-%b{}", "")))
   return inside.open()
end

--- A fresh sluice_error.
function inside.error()
   if not declared["src/sluice.h"] then
      inside.declare("sluice.h")
   end
   local err = ffi.new("sluice_error")
   err.size = ffi.sizeof("sluice_error")
   err.rank = -1
   return err
end

function inside.text(err)
   return ffi.string(err.text)
end

return inside
