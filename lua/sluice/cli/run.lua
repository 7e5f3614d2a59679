--- sluice run: a whole deployment on this machine: one process a rank, updates, verification, and the summary.

local native = require "sluice.native"
local fault = require "sluice.cli.fault"
local json = require "sluice.cli.json"
local kill = require "sluice.cli.kill"
local plan = require "sluice.cli.plan"
local progress = require "sluice.cli.progress"
local source = require "sluice.cli.source"
local supervise = require "sluice.cli.supervise"
local tally = require "sluice.cli.tally"
local units = require "sluice.cli.units"
local world = require "sluice.cli.world"

local run = {
   name = "run", summary = "Runs a deployment on this machine and verifies every live byte after every update.",
   example = "sluice run examples/deployments/llama3-8b.lua --layers 2 --updates 3\n\n"
      .. "Values change with every update. gb_per_s is the bytes that all workers received, divided by the seconds in which\n"
      .. "they did; writing and checking of values do not count. bytes_direct and bytes_full are the plan's, each parameter once.\n"
      .. "Between GPUs ranks fill those that are there in world order, several each where there are fewer.",
}

local MOST_RANKS = 4096 -- processes of one machine
local BEAT_S = 5 -- many ranks on few cores may all be slow; one that ends is noticed at once all the same

function run.configure(parser)
   world.configure(parser)
   parser:flag("--no-verify", "Move only; check nothing."):target("no_verify")
   parser:flag("--quiet", "Show no progress.")
   parser:flag("--any-memory", "Do not ask first whether this machine has the memory, where it is given more only as it uses it.")
      :target("any_memory")
   parser:option("--save", world.save_help):argname("<folder>")
   parser:option("--allow-attach", world.attach_help .. " Without it only the first worker makes one."):argname("<path>"):target("allow_attach")
   parser:option("--memory", "Where trainers keep their shards: shared (peers can map it) or ordinary."):choices({ "shared", "ordinary" })
      :default("shared")
   world.replay_option(parser)
   world.log_option(parser)
   kill.configure(parser)
end

-- MemAvailable, or less where a control group allows less.
local function memory_available()
   local function number_in(path, pattern)
      local file = io.open(path)
      local text = file and file:read("*a")
      if file then
         file:close()
      end
      return text and tonumber(text:match(pattern))
   end
   local free = number_in("/proc/meminfo", "MemAvailable:%s*(%d+)")
   local limit, used = number_in("/sys/fs/cgroup/memory.max", "^(%d+)"), number_in("/sys/fs/cgroup/memory.current", "^(%d+)")
   free = free and free * 1024 or math.huge
   return limit and used and math.min(free, limit - used) or free
end

local function check_memory(here, planned)
   local shards = planned.shard_bytes
   local live = planned.coverage.live_bytes * here.workers
   local staging = planned.largest_full_bytes * math.max(2, here.deployment.staging_slots or 2) * here.workers
   local wanted, there = shards + live + staging, memory_available()
   if wanted > there then
      fault.wrong("memory: %s needs %.0f bytes (%s: shards %s, live tensors %s, staging %s) and %.0f are there (%s): "
         .. "use fewer --layers", here.title, wanted, units.bytes(wanted), units.bytes(shards), units.bytes(live), units.bytes(staging),
         there, units.bytes(there))
   end
end

local function descriptor_path(fd)
   return "/proc/self/fd/" .. fd
end

local function ranks_of(here, args, init_info, port, listener)
   local effective = fault.check(native.memfd(here:encode()))
   local info = fault.check(native.memfd(init_info))
   local key = fault.check(native.key())
   local ranks = {}
   for rank = 0, here.size - 1 do
      local arguments = {
         rank < here.trainers and "trainer" or "worker", descriptor_path(effective), "--init-info", descriptor_path(info),
         "--memory", args.memory, "--log=" .. (args.log or "warning"), "--key-fd=" .. key,
      }
      local descriptors = { effective, info, key, unpack(args.descriptors or {}) }
      if args.replay then
         arguments[#arguments + 1] = "--replay"
      end
      if args.no_verify then
         arguments[#arguments + 1] = "--no-verify"
      end
      if args.save then
         arguments[#arguments + 1] = "--save=" .. args.save
      end
      if args.allow_attach and (rank == here.trainers or args.allow_attach:find("{rank}", 1, true)) then
         arguments[#arguments + 1] = "--allow-attach=" .. args.allow_attach
      end
      if rank == 0 then
         arguments[#arguments + 1] = "--listen-fd=" .. listener
         descriptors[#descriptors + 1] = listener
      end
      ranks[rank + 1] = {
         arguments = arguments, descriptors = descriptors,
         environment = { "RANK=" .. rank, "WORLD_SIZE=" .. here.size, "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" .. port },
      }
   end
   return ranks, { effective, info, key, listener }
end

-- Aliases for which the checkpoint has other values than for what is moved in their place: whoever tied them did not, or tied another.
local function differing_aliases(here, planned, show)
   local list = json.list()
   for _, alias in ipairs(here.deployment.model.checkpoint and planned.aliases or {}) do
      local at = native.difference(here.deployment.model.checkpoint, alias.name, alias.alias_of)
      if at then
         list[#list + 1] = { name = alias.name, alias_of = alias.alias_of, byte = at }
         show:warn(("warning: %s is not moved, being an alias of %s, but its values are others, from byte %d on"):format(alias.name,
            alias.alias_of, at))
      end
   end
   return list
end

local function summary(here, planned, books, verify, total_s)
   local seconds, updates = books:seconds()
   seconds.describe, seconds.plan, seconds.total = here.seconds, planned.seconds.planning, total_s
   local coverage = planned.coverage
   return {
      verified = verify, updates = here.deployment.updates, trainers = here.trainers, workers = here.workers, model = here.title,
      transport = here.deployment.transport, roads = books.roads, sent_by = books.sent_by,
      parameters_direct = planned.direct.parameters, parameters_full = planned.full.parameters,
      parameters_alias = planned.alias.parameters, parameters_skip = planned.skip.parameters,
      bytes_direct = planned.direct.bytes, bytes_full = planned.full.bytes,
      bytes_alias = planned.alias.bytes, bytes_skip = planned.skip.bytes,
      bytes_received = books.received, bytes_verified = books.checked, bytes_saved = books.saved,
      coverage = { worker = 0, live_bytes = coverage.live_bytes, written_bytes = coverage.written_bytes, padded_bytes = coverage.padded_bytes,
         uncovered = coverage.uncovered },
      ranks = books:ranks(), seconds = seconds, update_seconds = json.list(updates), gb_per_s = units.rate(books.received, seconds.update),
   }
end

-- What GPUs sent in an update, by who carried it; nothing where there is no choice.
local function carriers(sent_by)
   return sent_by and (", %s by copy engines, %s by kernels"):format(units.bytes(sent_by.copy_engines), units.bytes(sent_by.kernel)) or ""
end

local function write(result)
   local seconds, coverage = result.seconds, result.coverage
   local function mode(name)
      return ("%d parameters, %s"):format(result["parameters_" .. name], units.bytes(result["bytes_" .. name]))
   end
   local lines = {
      ("%s: %s to %s, transport %s, roads of a worker: %s"):format(result.model, units.count(result.trainers, "trainer"),
         units.count(result.workers, "worker"), result.transport, units.roads(result.roads)),
      "direct    " .. mode("direct"),
      "full      " .. mode("full"),
      "alias     " .. mode("alias"),
      "skip      " .. mode("skip"),
      ("live      %s on worker %d, %.1f%% written in place, %s cleared, %s not written in place"):format(units.bytes(coverage.live_bytes),
         coverage.worker, 100 * coverage.written_bytes / math.max(1, coverage.live_bytes), units.bytes(coverage.padded_bytes),
         units.count(#coverage.uncovered, "tensor")),
      ("seconds   %.3f describe, %.3f plan, %.3f prepare, %.3f init, %.3f fill, %.3f update, %.3f verify, %.3f in all"):format(seconds.describe,
         seconds.plan, seconds.prepare, seconds.init, seconds.fill, seconds.update, seconds.verify, seconds.total),
      ("moved     %s in %s, %.2f GB/s%s"):format(units.bytes(result.bytes_received), units.count(result.updates, "update"), result.gb_per_s,
         carriers(result.sent_by)),
      result.verified and ("verified  %s, every live byte of %s after every update"):format(units.bytes(result.bytes_verified),
         units.count(result.workers, "worker")) or "verified  nothing, as asked",
   }
   io.stdout:write(table.concat(lines, "\n"), "\n")
end

local function failure(here, first, cancelled)
   if cancelled then
      fault.raise(130, "cancelled")
   end
   local more = first.others > 0 and (" (%s ended early)"):format(units.count(first.others, "other rank")) or ""
   fault.raise(first.exit == 2 and 2 or 1, "%s (rank %d): %s%s", here:role(first.rank), first.rank, first.text, more)
end

--- Runs a world on this machine and sums up.
-- @param here the world
-- @param args no_verify, quiet, save, memory, replay, log, kill as the command line has them; descriptors: more of them for every rank
-- @return the summary, as --json prints it; with kill, what kill.judged gives. Ends the command where a rank fails.
function run.execute(here, args)
   local start = native.monotonic()
   local show = progress.new(args.quiet)
   here.deployment.beat_s = here.deployment.beat_s or BEAT_S
   kill.check(here, args)
   if here.size > MOST_RANKS then
      fault.wrong("run: %d ranks on one machine: it starts at most %d", here.size, MOST_RANKS)
   end
   local listener, port = fault.check(native.listen(here.size))
   local init_info = here:init_info("127.0.0.1", port)
   local from = source.of_world(here)
   from.info = init_info
   local planned = plan.make(from, here.trainers)
   planned.worker_bytes = planned.program.bytes
   if not args.any_memory then
      check_memory(here, planned)
   end
   show:line("%s: %s to %s, %d parameters direct (%s), %d full (%s)", here.title, units.count(here.trainers, "trainer"),
      units.count(here.workers, "worker"), planned.direct.parameters, units.bytes(planned.direct.bytes), planned.full.parameters,
      units.bytes(planned.full.bytes))
   local differing = args.no_verify and json.list() or differing_aliases(here, planned, show)
   local books = tally.new(here, planned, show, not args.no_verify, args.save ~= nil)
   books.now = native.monotonic
   local ranks, descriptors = ranks_of(here, args, init_info, port, listener)
   local first, cancelled, failures = supervise.run(ranks, {
      silence_s = here.deployment.timeout_s,
      kill = kill.order(here, args, books),
      on_event = function(rank, event)
         if not (args.kill and event.event == "log" and event.level == "error") then -- kill.judged says who ended how
            books:event(rank, event)
         end
      end,
      started = function()
         for _, fd in ipairs(descriptors) do
            native.close(fd)
         end
      end,
   })
   show:done()
   if args.kill and not cancelled then
      return kill.judged(here, args, failures)
   elseif first or cancelled then
      failure(here, first, cancelled)
   elseif not books:complete() then
      fault.raise(1, "run: every rank ended well, but not all that they were to do was reported by all of them")
   end
   local result = summary(here, planned, books, not args.no_verify, native.monotonic() - start + here.seconds)
   result.aliases, result.aliases_that_differ = planned.aliases, differing
   return result
end

function run.run(args)
   local result = run.execute(world.load(args), args)
   json.answer(args, result, args.kill and kill.write or write)
   return args.kill and not result.all_named and 1 or 0
end

return run
