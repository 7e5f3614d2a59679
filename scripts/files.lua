--- Whole files, for scripts and specs.

local files = {}

--- The bytes of a file; or nil and why not.
function files.read(path)
   local file, problem = io.open(path, "rb")
   if not file then
      return nil, problem
   end
   local bytes = file:read("*a")
   file:close()
   return bytes
end

--- Writes a file that holds these texts, one behind the other.
function files.write(path, ...)
   local file = assert(io.open(path, "wb"))
   assert(file:write(...))
   file:close()
end

return files
