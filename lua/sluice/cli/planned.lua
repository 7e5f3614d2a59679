--- A plan that is kept for many questions: the Lua side of native.open.

local core = require "sluice.core"
local diff = require "sluice.diff"
local fault = require "sluice.cli.fault"
local json = require "sluice.cli.json"
local native = require "sluice.native"

local planned = {}
planned.__index = planned

local UNDECIDED = "not decided: "

local function decoded(text)
   local value, problem = core.json(text)
   if value == nil then
      fault.raise(1, "plan: %s", problem)
   end
   return value
end

--- Plans a source for one worker; a mistake in its rules is part of the plan (`problem`). Ends the command where no plan can be
-- made: a rule file that does not load.
-- @param source of sluice.cli.source
-- @param rank the worker's rank
-- @param[opt] overlay { name =, text = } a rule file that need not be on disk, instead of the source's
function planned.open(source, rank, overlay)
   local job = source:job(rank)
   if overlay then
      job.rules, job.files = overlay.name, { overlay, unpack(job.files or {}) }
   end
   local handle, answer, status = native.open(job)
   if not handle then
      fault.check(nil, answer, status)
   end
   local said = decoded(answer)
   return setmetatable({ handle = handle, source = source, rank = rank, problem = said.problem, failed = said.failed,
                         problems = said.problems, title = source.title, trainers = source.trainers, workers = source.workers }, planned)
end

--- Every parameter in transfer order; those with mistakes have a `problem`.
function planned:params()
   if not self.list then
      self.list = self.handle:params()
      for _, item in ipairs(self.problems) do
         self.list[item.number].problem = item.text
      end
   end
   return self.list
end

--- Live tensors of this worker.
function planned:live()
   self.live_list = self.live_list or self.handle:live()
   return self.live_list
end

--- How many ranks, and their meshes.
function planned:topology()
   return self.handle:topology()
end

--- Parameters and bytes by mode.
function planned:totals()
   return diff.totals(self:params())
end

--- The answer of sluice.explain, and its text.
-- @param name of a parameter, a live tensor, a pattern, or ""
-- @param[opt] options { all =, one_rank = }
function planned:explain(name, options)
   local question = { name = name, all = options and options.all, one_rank = options and options.one_rank }
   local answer = decoded(fault.check(self.handle:explain(question)))
   local param = answer.parameter
   if param and param.problem and param.problem:sub(1, #UNDECIDED) == UNDECIDED then
      question.afresh = true
      answer = decoded(fault.check(self.handle:explain(question)))
   end
   return answer
end

--- What each rule decides: lua/sluice/audit.lua.
function planned:rules()
   self.audit = self.audit or decoded(fault.check(self.handle:rules()))
   return self.audit
end

--- The digests of the source plan and of the destinations, as engines agree on them; nothing where a rule is wrong.
function planned:digests()
   if self.problem then
      return nil
   end
   local source_digest, destinations = fault.check(self.handle:digests())
   return { source = source_digest, destinations = destinations }
end

--- Whether a running engine has this very plan.
-- @param engine of a source: its digests
function planned:is_of(engine)
   local digests = self:digests()
   return digests ~= nil and digests.source == engine.source_digest and digests.destinations == engine.destination_digest
end

--- What a rank sends (a trainer) or receives (a worker).
function planned:flow(rank)
   return (fault.check(self.handle:flow(rank)))
end

--- What moves between all ranks: see native.h.
function planned:traffic(places)
   local traffic = fault.check(self.handle:traffic(places))
   traffic.staging_slots = self.source.staging_slots or 2
   return traffic
end

--- Moves parameters into this worker within this process, with generated values, and verifies every byte. Ends the command
-- where one differs.
-- @param numbers their positions in params()
-- @return the bytes that were verified
function planned:rehearse(numbers)
   return (fault.check(self.handle:rehearse(numbers)))
end

--- How both sides cut a parameter: see parts.c; nil where there is none of that name.
function planned:parts(name)
   return self.handle:parts(name)
end

--- As diff.compare takes it.
function planned:side(title)
   return { title = title or self.title, trainers = self.trainers, workers = self.workers, problem = self.problem, params = self:params() }
end

--- Frees it.
function planned:close()
   self.handle:close()
end

-- Whether a value is a parameter as `sluice plan --json --full` writes it.
local function is_saved(param)
   if type(param) ~= "table" or type(param.name) ~= "string" or type(param.bytes) ~= "number" or type(param.destination) ~= "string"
      or not diff.is_mode(param.mode) then
      return false
   end
   for _, key in ipairs({ "dtype", "source", "reason", "problem" }) do
      if param[key] ~= nil and type(param[key]) ~= "string" then
         return false
      end
   end
   for _, extent in ipairs(type(param.shape) == "table" and param.shape or {}) do
      if type(extent) ~= "number" then
         return false
      end
   end
   return param.shape == nil or type(param.shape) == "table"
end

--- The plan that `sluice plan --json --full` wrote, as diff.compare takes it; nil where a text is none.
-- @param text what a file holds
function planned.saved(text, path)
   if not text:find("^%s*{") or not text:find('"plan"', 1, true) then
      return nil
   end
   local value = core.json(text)
   if type(value) ~= "table" or type(value.plan) ~= "table" or type(value.trainers) ~= "number"
      or type(value.workers) ~= "number" then
      return nil
   end
   for i, param in ipairs(value.plan) do
      if not is_saved(param) then
         fault.wrong("%s: plan[%d] must have a name, bytes, a mode and a destination, as sluice plan --json --full writes them", path, i - 1)
      end
   end
   return { title = path, trainers = value.trainers, workers = value.workers, params = value.plan }
end

--- Marks lists that may be empty, for json.encode.
function planned.mark(comparison)
   json.list(comparison.added)
   json.list(comparison.removed)
   json.list(comparison.changed)
   return comparison
end

return planned
