--- The command line of the `sluice` program: which commands there are, how their arguments are read, and what becomes of an
-- error. Each command is a module of lua/sluice/cli/ with `name`, `summary`, `example`, `configure(parser)` and `run(args)`.

local cli = {}

local command_names = {
   "run", "plan", "explain", "diff", "check", "repl", "simulate", "picture", "doctor", "trainer", "worker", "rank",
   "version", "manual",
}

-- Modules of the system are found where Debian puts them, never in the current directory.
local function load_argparse()
   local folders = {}
   for entry in package.path:gmatch("[^;]+") do
      if entry:sub(1, 1) == "/" then
         folders[#folders + 1] = entry
      end
   end
   local file = package.searchpath("argparse", table.concat(folders, ";"))
   if not file then
      return nil
   end
   return assert(loadfile(file))("argparse")
end

local function commands()
   local list = {}
   for _, name in ipairs(command_names) do
      list[#list + 1] = require("sluice.cli." .. name)
   end
   return list
end

-- A value that is no good is told with its option.
local function name_options(parser)
   for _, option in ipairs(parser._options) do
      local convert = option._convert
      if convert then
         option:convert(function(text)
            local value, problem = convert(text)
            return value, problem and option._name .. ": " .. problem
         end)
      end
   end
end

local function build(argparse, list)
   local parser = argparse("sluice", "Moves model weights from the ranks that train a model to the ranks that serve it.")
      :command_target("command"):require_command(true)
      :epilog("Example:\n   sluice run examples/deployments/llama3-8b.lua --layers 2\n\n"
         .. "Exit codes: 0 good; 1 a run failed or a byte differs; 2 wrong usage or wrong input; 130 cancelled.")
   for _, command in ipairs(list) do
      local sub = parser:command(command.name, command.summary):epilog("Example:\n   " .. command.example)
      command.configure(sub)
      name_options(sub)
   end
   return parser
end

local function find(list, name)
   for _, command in ipairs(list) do
      if command.name == name then
         return command
      end
   end
end

-- `--timeout -1` is a value that is no good, not an option "-1", which no command has.
local function join_negative(argv)
   local list = {}
   for _, word in ipairs(argv) do
      local before = list[#list]
      if before and before:find("^%-%-[%w-]+$") and word:find("^%-[%d.]") then
         list[#list] = before .. "=" .. word
      else
         list[#list + 1] = word
      end
   end
   return list
end

local function contains(list, word)
   for _, other in ipairs(list) do
      if other == word then
         return true
      end
   end
   return false
end

local function report(fault, args)
   if args and args.json then
      local json = require "sluice.cli.json"
      io.stdout:write(json.encode({ verified = false, error = fault.text, exit = fault.exit }), "\n")
   end
   io.stderr:write("sluice: " .. fault.text .. "\n") -- one piece: ranks may share it
   return fault.exit
end

--- What the program says of itself.
-- @return its parser (argparse) and the list of commands, or nothing where argparse is missing
function cli.describe()
   local argparse = load_argparse()
   if argparse then
      local list = commands()
      return build(argparse, list), list
   end
end

--- Runs one command line.
-- @param native the C functions (src/cli/native.h)
-- @param argv the arguments, without the program's name
-- @return the exit code
function cli.main(native, argv)
   package.loaded["sluice.native"] = native
   local fault = require "sluice.cli.fault"
   local parser, list = cli.describe()
   if not parser then
      return report({ exit = 1, text = "the Lua module argparse is missing (Debian: apt-get install lua-argparse)" })
   end
   local good, args = parser:pparse(join_negative(argv))
   if not good then
      local command = find(list, argv[1])
      return report({ exit = 2, text = ("%s\nTry: sluice %s--help"):format(args, command and command.name .. " " or "") },
         { json = contains(argv, "--json") })
   end
   local code, problem = fault.catch(find(list, args.command).run, args)
   if problem then
      return report(problem, args)
   end
   return code
end

return cli
