--- Runs lines of shell.
--
--    local shell = require "scripts.shell"
--    local said, code = shell("scripts/matrix --wrld 4", { LD_LIBRARY_PATH = "build/spec/cuda" })

--- What a line wrote to both of its streams, and its exit status. It runs with `environment` (a table) over that of this process.
return function(line, environment)
   local settings = {}
   for name, value in pairs(environment or {}) do
      settings[#settings + 1] = ("export %s='%s'\n"):format(name, value)
   end
   local pipe = assert(io.popen(("%s{ %s\n} 2>&1; printf '\\n%%d' $?"):format(table.concat(settings), line)))
   local text = pipe:read("*a")
   pipe:close()
   local said, code = text:match("^(.*)\n(%d+)$")
   return said, tonumber(code)
end
