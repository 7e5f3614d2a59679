--- dry_run(): a plan moved for real, with generated values. A deployment is made small and run, one process a rank; of a plan without
-- one this worker's part is tried in this process.
-- @module sluice.console.trial

local diff = require "sluice.diff"
local fault = require "sluice.cli.fault"
local native = require "sluice.native"
local planned = require "sluice.cli.planned"
local show = require "sluice.console.show"
local source = require "sluice.cli.source"
local units = require "sluice.cli.units"
local variation = require "sluice.console.variation"

local trial = {}

local LARGEST_TRIED, MOST_TRIED = 256e6, 512e6 -- bytes of a parameter, and of all, that are made in this process

-- Runs a world; while it does, Ctrl-C ends the ranks.
local function execute(session, small, descriptors)
   local run, watch = require "sluice.cli.run", session.interrupts
   if watch then
      watch:pause(true)
   end
   local good, result, wrong = pcall(fault.catch, run.execute, small, { quiet = true, memory = "shared", descriptors = descriptors })
   if watch then
      watch:pause(false)
   end
   native.release_signals(not watch)
   if not good then
      error(result, 0)
   end
   return result, wrong
end

-- One parameter of each kind that the worker receives, as far as they are small; and the names of kinds that are not.
local function sample(plan)
   local numbers, numbered, left_out, made, moved = {}, {}, {}, 0, 0
   for number, param in ipairs(plan:params()) do
      numbered[param.name] = number
   end
   for _, kind in ipairs(diff.kinds(plan:flow(plan.rank).parameters)) do
      local number = numbered[kind.first.name]
      local size = plan:params()[number].bytes
      if size <= LARGEST_TRIED and made + size <= MOST_TRIED then
         numbers[#numbers + 1], made, moved = number, made + size, moved + kind.first.bytes
      else
         left_out[#left_out + 1] = kind.name
      end
   end
   return numbers, left_out, moved
end

local function rehearsal_text(shown)
   local lines = { ("%s of worker rank %d, one of each kind, in this process: moved %s, verified %s, every byte that is written"):format(
      units.count(shown.parameters, "parameter"), shown.rank, units.bytes(shown.bytes), units.bytes(shown.bytes_verified)) }
   if shown.left_out[1] then
      lines[2] = "left out, being large: " .. table.concat(shown.left_out, ", ")
   end
   return table.concat(lines, "\n")
end

-- What nobody describes cannot be made smaller, and nobody knows what other workers hold: this one's program is tried.
local function rehearse(plan)
   if plan.problem then
      fault.wrong("this plan is refused: %s", plan.problem)
   end
   local numbers, left_out, bytes = sample(plan)
   return show.as({ rank = plan.rank, parameters = #numbers, bytes = bytes, bytes_verified = plan:rehearse(numbers), verified = true,
                    left_out = left_out }, rehearsal_text)
end

--- The answer of dry_run().
-- @param session of sluice.console.session
function trial.run(session)
   local plan = session:need()
   if not session.source.world then
      return rehearse(plan)
   end
   local here, overlay = session:world("dry_run"), session:overlay()
   local wanted_failures = plan.problem ~= nil
   local small, changes = variation.small(here, function(candidate)
      local candidate_source = source.of_world(candidate)
      candidate_source.rules = session.base
      local made, wrong = fault.catch(planned.open, candidate_source, candidate_source.trainers, overlay)
      local good = made and (wanted_failures or not made.problem)
      if made then
         made:close()
      end
      return good and not wrong
   end)
   if not small then
      fault.wrong("this plan does not fit any smaller deployment: sluice run takes it as it is")
   end
   local rules_fd = overlay and fault.check(native.memfd(overlay.text)) or nil
   small.deployment.rules = rules_fd and ("/proc/self/fd/%d"):format(rules_fd) or session.base
   local result, wrong = execute(session, small, { rules_fd })
   if rules_fd then
      native.close(rules_fd)
   end
   if not result then
      fault.raise(wrong.exit, "%s", wrong.text)
   end
   result.reduced = changes
   return show.as(result, function(shown)
      local lines = { ("%s to %s: moved %s, verified %s, every live byte"):format(units.count(shown.trainers, "trainer"),
         units.count(shown.workers, "worker"), units.bytes(shown.bytes_received), units.bytes(shown.bytes_verified)) }
      lines[2] = shown.reduced[1] and "reduced: " .. table.concat(shown.reduced, "; ") or "nothing was reduced"
      return table.concat(lines, "\n")
   end)
end

return trial
