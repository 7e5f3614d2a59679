--- The words of the console: functions and values that prompt code sees beside plain Lua. Each answers with plain tables, and
-- knows how they print.
-- @module sluice.console.words

local difference = require "sluice.cli.difference"
local diff = require "sluice.diff"
local explanation = require "sluice.cli.explanation"
local fault = require "sluice.cli.fault"
local help = require "sluice.console.help"
local native = require "sluice.native"
local planned = require "sluice.cli.planned"
local show = require "sluice.console.show"
local source = require "sluice.cli.source"
local trial = require "sluice.console.trial"
local units = require "sluice.cli.units"
local variation = require "sluice.console.variation"

local words = {}

local MODES = { "direct", "full", "alias", "skip", "unresolved" }
local FEW = 20

local PARAMETERS = { "name", "mode", "dtype", "shape", "bytes", "into", "where" }
local RULES = { { "number", "" }, "pattern", "mode", "into", "parameters", "bytes", "where" }

local function list_text(columns, what, problem)
   return function(list)
      if not list[1] then
         return "no " .. what
      end
      return show.table(list, columns) .. (problem and "\n" .. problem or "")
   end
end

local function without_newline(text)
   return (text:gsub("\n$", ""))
end

-- An answer of explain, for where options are keys.
local function answer_text(answer)
   return (without_newline(explanation.text(answer)):gsub("%-%-all shows", "{ all = true } shows"))
end

-- ---- values ----

local function plan_text(plan)
   local rows = {}
   for _, mode in ipairs(MODES) do
      local total = plan.totals[mode]
      if total.parameters > 0 or mode ~= "unresolved" then
         rows[#rows + 1] = { mode, ("%6d parameters"):format(total.parameters), ("%10s"):format(units.bytes(total.bytes)) }
      end
   end
   local lines = units.columns(rows, "")
   table.insert(lines, 1, ("%s: %s to %s, rules %s"):format(plan.title, units.count(plan.trainers, "trainer"),
      units.count(plan.workers, "worker"), plan.rules))
   lines[#lines + 1] = ("live    %s on worker rank %d in %s"):format(units.bytes(plan.live_bytes), plan.rank,
      units.count(plan.live_tensors, "tensor"))
   if plan.digest then
      lines[#lines + 1] = ("digest  %s%s"):format(plan.digest:sub(1, 16), plan.is_engines == nil and ""
         or plan.is_engines and ", the engine's" or ", not the engine's")
   end
   if plan.problem then
      lines[#lines + 1] = "refused " .. plan.problem
   end
   return table.concat(lines, "\n")
end

local function sum_of(list)
   local sum = 0
   for _, item in ipairs(list) do
      sum = sum + item.bytes
   end
   return sum
end

local value = {}

function value.plan(session)
   local plan = session:need()
   local digests, engine = plan:digests(), session.source.engine
   local is_engines
   if engine then
      is_engines = plan:is_of(engine)
   end
   return show.as({
      title = plan.title, trainers = plan.trainers, workers = plan.workers, rank = plan.rank, totals = plan:totals(),
      parameters = #plan:params(), live_tensors = #plan:live(), live_bytes = sum_of(plan:live()), problem = plan.problem,
      digest = digests and digests.destinations, is_engines = is_engines,
      rules = session.made[1] and ("made here (%d) in front of %s"):format(#session.made, session.base or "the default resolver")
         or session.base or "none: the default resolver decides",
   }, plan_text)
end

function value.params(session)
   return show.as(session:need():params(), list_text(PARAMETERS, "parameter"))
end

function value.live(session)
   return show.as(session:need():live(), list_text({ "name", "dtype", "shape", "bytes" }, "live tensor is known (--live LIST names them)"))
end

function value.topology(session)
   return show.as(session:need():topology(), function(topology)
      local lines = {}
      for _, side in ipairs({ "trainer", "worker" }) do
         for _, mesh in ipairs(topology[side .. "_meshes"]) do
            lines[#lines + 1] = ("%s, mesh '%s': %s"):format(units.count(topology[side .. "s"], side), mesh.name,
               variation.mesh_text(mesh.axes))
         end
      end
      lines[#lines + 1] = ("live tensors are those of rank %d"):format(topology.rank)
      return table.concat(lines, "\n")
   end)
end

function value.rules(session)
   local audit = session:need():rules()
   return show.as(audit.rules, function(list)
      local idle = 0
      for _, item in ipairs(list) do
         idle = idle + (item.parameters == 0 and 1 or 0)
      end
      return list[1] and ("%s\n%s, of which %d decide nothing"):format(show.table(list, RULES), units.count(#list, "rule"), idle)
         or "no rule: the default resolver decides"
   end)
end

local function engine_text(status)
   local progress = status.progress
   local lines = { ("rank %d%s, process %d, sluice %s"):format(status.rank, status.role and (" (%s of %s to %s)"):format(status.role,
      units.count(status.trainers, "trainer"), units.count(status.workers, "worker")) or "", status.process, status.library) }
   local function line(name, text, ...)
      lines[#lines + 1] = ("%-8s "):format(name) .. text:format(...)
   end
   line("state", "%s%s", status.state, status.stage and ": " .. status.stage or "")
   local label = status.version == "" and "none" or status.version
   line("version", "%s", status.dirty and ("dirty (the last whole one: %s)"):format(label) or label)
   if status.roads then
      line("roads", "%s: %s", status.transport, units.roads(status.roads))
   end
   if progress.params_total > 0 then
      line("batch", "%d: %d of %d parameters, %s of %s on this rank", status.batch, progress.params_done, progress.params_total,
         units.bytes(progress.bytes_done), units.bytes(progress.bytes_total))
   end
   if status.plan then
      line("plan", "%s%s", status.plan:sub(1, 16), status.told and "" or ", another than this session has: reload() takes it over")
   end
   if status.silent then
      table.insert(lines, 1, status.silent)
   end
   return table.concat(lines, "\n")
end

--- What the engine says, asked anew each time.
function value.engine(session)
   local status, silent = session:standing()
   local engine = session.source and session.source.engine
   local said = { silent = silent, told = engine == nil or engine.plan == status.plan }
   for key, item in pairs(status) do
      said[key] = item
   end
   return show.as(said, engine_text)
end

words.values = value

-- ---- questions ----

local word = {}

local function is_text(name, what)
   if type(name) ~= "string" or name == "" then
      fault.wrong("%s must be followed by a name in quotes", what)
   end
end

function word.explain(session, name, options)
   is_text(name, "explain")
   local plan, rank = session:need(), type(options) == "table" and options.rank or nil
   local asked = { all = type(options) == "table" and options.all == true, one_rank = rank ~= nil }
   if rank ~= nil and rank ~= plan.rank then
      if type(rank) ~= "number" or rank % 1 ~= 0 or rank < plan.trainers or rank >= plan.trainers + plan.workers then
         fault.wrong("explain: rank (%s) must be a worker's: %d to %d", tostring(rank), plan.trainers, plan.trainers + plan.workers - 1)
      end
      plan = planned.open(session.source, rank, session:overlay())
   end
   local answer = plan:explain(name, asked)
   if plan ~= session.plan then
      plan:close()
   end
   if answer.near then
      fault.wrong("%s", explanation.unknown(answer))
   elseif answer.bad_pattern then
      fault.wrong("%s: %s", name, answer.bad_pattern)
   end
   return show.as(answer, answer_text)
end

function word.find(session, pattern)
   is_text(pattern, "find")
   if not pattern:find("[*{]") then
      pattern = "*" .. pattern .. "*"
   end
   local answer = session:need():explain(pattern, { all = true })
   if answer.bad_pattern then
      fault.wrong("%s: %s", pattern, answer.bad_pattern)
   elseif not answer.matches then
      return word.explain(session, pattern)
   end
   return show.as(answer.matches, function(matches)
      return answer_text({ matches = matches })
   end)
end

function word.why_full(session)
   return show.as(session:need():explain("").full, list_text({ "parameters", "bytes", "reason", "where", "first" }, "parameter is full"))
end

function word.uncovered(session)
   local plan = session:need()
   local uncovered = plan:explain("").uncovered
   if not uncovered then
      fault.wrong("uncovered: not known before every rule is right: %s", plan.problem)
   end
   return show.as(uncovered, function(list)
      return list[1] and show.table(list, { "name", "bytes" })
         or ("every byte of worker rank %d is written in place"):format(plan.rank)
   end)
end

local function flow_text(role, verb, preposition)
   return function(flow)
      local lines = { ("%s (rank %d) %s %s in %s %s %s"):format(role, flow.rank, verb, units.bytes(flow.bytes),
         units.count(flow.pieces, "piece"), preposition, units.count(#flow.peers, verb == "sends" and "worker" or "trainer")) }
      if flow.peers[1] then
         lines[2] = show.table(flow.peers, { "rank", "bytes", "pieces" }, FEW)
         lines[3] = show.table(diff.kinds(flow.parameters), { "name", "parameters", "bytes" }, FEW)
      end
      return table.concat(lines, "\n")
   end
end

local function rank_word(session, what, verb, number, count, first)
   if type(number) ~= "number" or number % 1 ~= 0 or number < 0 or number >= count then
      fault.wrong("%s (%s) must be a whole number from 0 to %d", what, tostring(number), count - 1)
   end
   local rank, role = first + number, what .. " " .. ("%d"):format(number)
   local function ask()
      local flow = session:need():flow(rank)
      flow.rank = rank
      return show.as(flow, flow_text(role, verb, verb == "sends" and "to" or "from"))
   end
   local method = verb == "sends" and "sends" or "received"
   return show.as({ rank = rank, [method] = session.word(ask) }, function()
      return ("%s, world rank %d; %s(%d):%s() tells more"):format(role, rank, what, number, method)
   end)
end

function word.worker(session, number)
   local plan = session:need()
   return rank_word(session, "worker", "receives", number, plan.workers, plan.trainers)
end

function word.trainer(session, number)
   return rank_word(session, "trainer", "sends", number, session:need().trainers, 0)
end

function word.bytes(session)
   local groups = diff.kinds(session:need():params(), function(param)
      return param.mode
   end)
   for _, group in ipairs(groups) do
      group.mode, group.first = group.first.mode, group.first.name
   end
   table.sort(groups, function(a, b)
      if a.bytes ~= b.bytes then
         return a.bytes > b.bytes
      end
      return a.name < b.name
   end)
   return show.as(groups, function(list)
      return ("%s\n%s in all"):format(show.table(list, { "name", "mode", "parameters", "bytes" }), units.bytes(sum_of(list)))
   end)
end

-- ---- changes ----

local function change_of(comparison)
   return show.as(comparison, function(shown)
      return shown.same and "nothing changed" or without_newline(difference.text(shown))
   end)
end

function word.diff(session, what)
   if what ~= nil and what ~= "reload" and what ~= "engine" then
      fault.wrong('diff() tells what changed since the session began, diff "reload" what the last change did, diff "engine" how this plan '
         .. "differs from the engine's")
   elseif what == "engine" then
      return change_of(session:against_engine())
   end
   return change_of(what and session:last_change() or session:all_changes())
end

function word.forget(session)
   return change_of(session:forget())
end

function word.reload(session)
   return change_of(session:reload())
end

function word.edit(session)
   local path, editor = session:rule_path(), os.getenv("VISUAL") or os.getenv("EDITOR")
   if not editor or editor == "" then
      fault.wrong("EDITOR is not set")
   end
   local code = fault.check(native.shell(("%s '%s'"):format(editor, (path:gsub("'", "'\\''")))))
   if code ~= 0 then
      fault.wrong("%s ended with %d", editor, code)
   end
   return change_of(session:reload())
end

function word.rule_text(session)
   session:need()
   return session:rule_text() or "no rule file is in use" .. (session.base and ": " .. session.base .. " ships with Sluice" or "")
end

function word.save(session, path)
   return "wrote " .. session:save(path)
end

function word.help(_, name)
   local text, problem = help.text(name)
   if not text then
      fault.wrong("%s", problem)
   end
   return text
end

-- ---- other worlds ----

local function facts(plan, here)
   local totals, live = plan:totals(), plan:live()
   local flow = plan.failed == 0 and plan:flow(plan.rank) or { bytes = 0, pieces = 0, peers = {} }
   return {
      trainers = variation.mesh_text(here.deployment.trainer.mesh), workers = variation.mesh_text(here.deployment.worker.mesh),
      trainer_experts = here.deployment.trainer.expert_mesh and variation.mesh_text(here.deployment.trainer.expert_mesh),
      worker_experts = here.deployment.worker.expert_mesh and variation.mesh_text(here.deployment.worker.expert_mesh),
      direct = totals.direct.parameters, full = totals.full.parameters, unresolved = totals.unresolved.parameters,
      live_bytes = sum_of(live), received_bytes = flow.bytes, pieces = flow.pieces, peers = #flow.peers, problem = plan.problem,
   }
end

local FACTS = {
   { "trainers", "trainers" }, { "trainer_experts", "  their experts" }, { "workers", "workers" }, { "worker_experts", "  their experts" },
   { "direct", "direct parameters" }, { "full", "full parameters" }, { "unresolved", "with mistakes" },
   { "live_bytes", "live on worker 0" }, { "received_bytes", "it receives" }, { "pieces", "in pieces" }, { "peers", "from trainers" },
}

local function what_if_text(answer)
   local rows = { { "", "now", "what if" } }
   for _, fact in ipairs(FACTS) do
      local key = fact[1]
      local now, other = answer.now[key], answer.what_if[key]
      if key:find("bytes", 1, true) then
         now, other = units.bytes(now), units.bytes(other)
      end
      if (now or other) and not (key == "unresolved" and now == 0 and other == 0) then
         rows[#rows + 1] = { fact[2], tostring(now or "none"), tostring(other or "none") }
      end
   end
   local lines = units.columns(rows, "")
   if answer.what_if.problem then
      lines[#lines + 1] = "refused: " .. answer.what_if.problem
   end
   for _, group in ipairs(diff.kinds(answer.modes)) do
      lines[#lines + 1] = ("%s: %s instead of %s"):format(group.name, group.first.to, group.first.from)
   end
   return table.concat(lines, "\n")
end

function word.what_if(session, options)
   if type(options) ~= "table" or next(options) == nil then
      fault.wrong("what_if must be followed by sizes of axes in braces: what_if{ tp = 8 }")
   end
   local plan, here = session:need(), session:world("what_if")
   local other = source.of_world(variation.what_if(here, options))
   other.rules = session.base
   local made = planned.open(other, other.trainers, session:overlay())
   local first = plan.rank == plan.trainers and plan or planned.open(session.source, plan.trainers, session:overlay())
   local answer = { now = facts(first, here), what_if = facts(made, other.world), modes = {} }
   for i, param in ipairs(made:params()) do
      local before = first:params()[i]
      if before.mode ~= param.mode then
         answer.modes[#answer.modes + 1] = { name = param.name, bytes = param.bytes, from = before.mode, to = param.mode }
      end
   end
   made:close()
   if first ~= plan then
      first:close()
   end
   return show.as(answer, what_if_text)
end

function word.dry_run(session)
   return trial.run(session)
end

words.functions = word

return words
