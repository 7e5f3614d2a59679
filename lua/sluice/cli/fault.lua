--- How a command ends early: with an exit code and a sentence. Any other Lua error goes on as it came, with its traceback.

local core = require "sluice.core"

local fault = {}

local mark = {}

--- Ends the command under way with `exit` and a text.
function fault.raise(exit, text, ...)
   error(setmetatable({ exit = exit, text = select("#", ...) > 0 and text:format(...) or text }, mark), 0)
end

--- Wrong usage or wrong input.
function fault.wrong(text, ...)
   fault.raise(2, text, ...)
end

--- Passes the results of a call on; ends the command where they are nil, a text and a status of the library. Wrong input,
-- a rule that fails and what is not supported are exit code 2, anything else is 1.
function fault.check(result, text, status)
   if result == nil then
      local input = status == nil or status == 1 or status == 8 or status == 9
      fault.raise(input and 2 or 1, "%s", text)
   end
   return result, text
end

--- The text of the regular file at `path`, at most `longest` bytes; wrong input, said under `stage`, where it has none.
function fault.read_file(stage, path, longest)
   local text, problem = core.read_file(path, longest)
   if not text then
      fault.wrong("%s: %s", stage, problem)
   end
   return text
end

--- Runs f(...). Returns its first result, or nil and {exit=, text=}.
function fault.catch(f, ...)
   local arguments, count = { ... }, select("#", ...)
   local good, result = xpcall(function()
      return f(unpack(arguments, 1, count))
   end, function(problem)
      if getmetatable(problem) == mark then
         return problem
      end
      return debug.traceback(tostring(problem), 2)
   end)
   if good then
      return result
   elseif getmetatable(result) == mark then
      return nil, result
   end
   error(result, 0)
end

return fault
