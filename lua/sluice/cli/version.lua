--- sluice version

local native = require "sluice.native"
local json = require "sluice.cli.json"

local version = { name = "version", summary = "Prints the version.", example = "sluice version --json" }

function version.configure(parser)
   parser:flag("--json", "Print one JSON object.")
end

function version.run(args)
   local number = native.version()
   io.stdout:write(args.json and json.encode({ version = number }) or "sluice " .. number, "\n")
   return 0
end

return version
