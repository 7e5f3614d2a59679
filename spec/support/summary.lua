--- Busted's output handler for this project: the usual output, and three things more. A spec that is pending without a
-- stated reason is an error, so is a run that ran nothing, and the last line counts what ran as "N passed, N failed".

return function(options)
   local busted = require "busted"
   local terminal = require("term").isatty(io.stdout)
   local handler = require("busted.outputHandlers." .. (terminal and "utfTerminal" or "plainTerminal"))(options)

   local function fail(name, message, trace)
      busted.publish({"error", "summary"}, {descriptor = "summary", name = name, trace = trace}, nil, message, trace)
   end

   -- Before the usual output closes, so that these errors are part of it and of the exit status.
   busted.subscribe({"suite", "end"}, function()
      for _, spec in ipairs(handler.pendings) do
         if type(spec.message) ~= "string" or not spec.message:find("%S") then
            fail(spec.name, "pending without a stated reason", spec.trace)
         end
      end
      if handler.successesCount + handler.failuresCount + handler.errorsCount + handler.pendingsCount == 0 then
         fail("this run", "it holds no spec")
      end
      return nil, true
   end, {priority = 1})

   -- Behind it. Where it ended with details, the counts have scrolled away and are said again.
   busted.subscribe({"suite", "end"}, function()
      local passed, pending = handler.successesCount, handler.pendingsCount
      local failures, errors = handler.failuresCount, handler.errorsCount
      if pending + failures + errors > 0 then
         io.write(("\n%d successes / %d failures / %d errors / %d pending : %.1f seconds\n"):format(passed, failures, errors,
            pending, handler.getDuration()))
      end
      io.write(("%d passed, %d failed, %d skipped\n"):format(passed, failures + errors, pending))
      io.flush()
      return nil, true
   end)

   return handler
end
