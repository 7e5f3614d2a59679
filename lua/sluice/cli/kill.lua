--- sluice run --kill: one rank is killed in the middle of the last update; how long until each of the others has its error, and
-- whether that names the rank that is gone.

local fault = require "sluice.cli.fault"
local json = require "sluice.cli.json"
local units = require "sluice.cli.units"
local world = require "sluice.cli.world"

local kill = {}

function kill.configure(parser)
   world.rank_option(parser, "Kill this rank in the middle of the last update, and say when and by which error each other rank "
      .. "ended. Exit code 1 unless every error names it.", "--kill")
end

--- Ends the command where the rank cannot be killed.
function kill.check(here, args)
   if not args.kill then
      return
   end
   if args.kill >= here.size then
      fault.wrong("run: --kill %d must be below the world size %d", args.kill, here.size)
   elseif here.deployment.updates < 2 then
      fault.wrong("run: --kill wants at least 2 updates: those before the last say how long one takes")
   end
end

--- What sluice.cli.supervise is to do.
function kill.order(here, args, books)
   local last = here.deployment.updates
   return args.kill and { rank = args.kill, update = last, after_s = function()
      return books.update[last - 1].seconds / 3 -- well before its end
   end }
end

--- What became of the others: { killed =, killed_role =, update =, ends = { rank =, role =, seconds =, text =, names = }, slowest_s =,
-- all_named = whether every other rank's error is of the one that was killed }. Ends the command where the kill came too late.
function kill.judged(here, args, failures)
   local ends, seen, slowest, named = {}, { [args.kill] = true }, 0, 0
   table.sort(failures, function(a, b)
      return a.number < b.number
   end)
   for _, failure in ipairs(failures) do
      if not failure.seconds then
         fault.raise(failure.exit == 2 and 2 or 1, "%s (rank %d): %s", here:role(failure.rank), failure.rank, failure.text)
      elseif not seen[failure.rank] then
         seen[failure.rank] = true
         ends[#ends + 1] = { rank = failure.rank, role = here:role(failure.rank), seconds = failure.seconds, text = failure.text,
                             names = failure.names }
         slowest = math.max(slowest, failure.seconds)
         named = named + (failure.names == args.kill and 1 or 0)
      end
   end
   table.sort(ends, function(a, b)
      return a.rank < b.rank
   end)
   return { killed = args.kill, killed_role = here:role(args.kill), update = here.deployment.updates, ends = json.list(ends), slowest_s = slowest,
            all_named = named == here.size - 1, trainers = here.trainers, workers = here.workers, model = here.title }
end

function kill.write(result)
   local lines = { ("%s (rank %d) was killed in the middle of update %d"):format(result.killed_role, result.killed, result.update) }
   for _, one in ipairs(result.ends) do
      lines[#lines + 1] = ("%s (rank %d) after %s: %s"):format(one.role, one.rank, units.seconds(one.seconds), one.text)
   end
   lines[#lines + 1] = result.all_named and ("every other rank named it, the last after %s"):format(units.seconds(result.slowest_s))
      or "not every other rank named it: was the update over already?"
   io.stdout:write(table.concat(lines, "\n"), "\n")
end

return kill
