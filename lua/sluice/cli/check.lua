--- sluice check: the gate for rule files: everything that a plan checks, on a worker of every kind, and rules that do nothing.

local diff = require "sluice.diff"
local fault = require "sluice.cli.fault"
local json = require "sluice.cli.json"
local planned = require "sluice.cli.planned"
local source = require "sluice.cli.source"
local units = require "sluice.cli.units"
local world = require "sluice.cli.world"

local command = {
   name = "check", summary = "Checks a rule file against a deployment, or against lists of tensors: a gate for CI.",
   example = "sluice check my-llama.lua --deployment examples/deployments/llama3-8b.lua\n"
      .. "   sluice check my-llama.lua --checkpoint model.safetensors.index.json --live live.json --host host.json --mesh tp=4\n"
      .. "   sluice check my-llama.lua --attach /run/user/1000/worker.sock\n\n"
      .. "Rules of a file that this one extends may lie idle; its own must each decide a parameter, unless --idle allows otherwise.\n"
      .. "Exit codes: 0 good; 1 the plan is refused or a rule does nothing; 2 wrong usage or wrong input. lua/PLAN.md says what\n"
      .. "--json holds.",
}

function command.configure(parser)
   parser:argument("rules", "Rule file, or the name of a family.")
   parser:option("--deployment", "A deployment file or init info that says all but the rules."):argname("<file>")
   source.configure(parser)
   parser:option("--set", "Set a key of the deployment: KEY.PATH=VALUE; may be given again."):count("*"):argname("<key=value>")
   world.rank_option(parser, "World rank of the only worker to check: the one that --live lists, say. One of every kind when not given, or "
      .. "the first where no deployment says what the others hold.")
   parser:flag("--idle", "Rules of the file that decide nothing are no fault.")
   parser:flag("--json", "Print one JSON object on standard output.")
end

local function load(args)
   if not args.deployment and not args.attach and not args.checkpoint then
      fault.wrong("check: --deployment, --attach, or --checkpoint and --live, must say what the rules are for")
   end
   return source.load(args)
end

-- Mistakes of one worker's plan, those that differ in numbers only told once; one that another worker has is not told again.
local function add_problems(list, found, plan, rank)
   local params, of_kind, undecided = plan:params(), {}, 0
   for _, item in ipairs(plan.problems) do
      local kind = diff.kind(params[item.number].name)
      local problem
      if item.text:find("^not decided: ") then
         problem = of_kind[kind]
         undecided = undecided + (problem and 0 or 1)
      else
         local key = item.text:gsub("%d+", "*")
         problem = found[key]
         if not problem then
            problem = { rank = rank, text = item.text, parameters = 0 }
            list[#list + 1], found[key] = problem, problem
         end
         of_kind[kind] = problem
      end
      if problem and problem.rank == rank then
         problem.parameters = problem.parameters + 1
      end
   end
   if not plan.problems[1] and plan.problem and not found[plan.problem] then
      list[#list + 1], found[plan.problem] = { rank = rank, text = plan.problem }, true
   end
   return undecided
end

local function problems_of(from, ranks)
   local list, found, first, undecided = json.list(), {}, nil, 0
   for _, rank in ipairs(ranks) do
      local plan = planned.open(from, rank)
      undecided = math.max(undecided, add_problems(list, found, plan, rank))
      if first then
         plan:close()
      end
      first = first or plan
   end
   return list, first, undecided
end

local function idle_of(audit)
   local own, extended = json.list(), 0
   for _, item in ipairs(audit.rules) do
      if item.parameters == 0 and item.own then
         own[#own + 1] = { word = "rule", pattern = item.pattern, where = item.where, shadow = item.shadow }
      end
      extended = extended + (item.parameters == 0 and not item.own and 1 or 0)
   end
   for _, item in ipairs(audit.idle) do
      own[#own + 1] = item.own and { word = item.word, pattern = item.pattern, where = item.where } or nil
   end
   return own, extended
end

local function idle_text(item)
   local shadow = item.shadow
   return ('%s: %s "%s" %s'):format(item.where, item.word, item.pattern, shadow
      and ('decides nothing: rule "%s" (%s) takes %s before it'):format(shadow.pattern, shadow.where, shadow.name)
      or "matches nothing")
end

local function write(result, alone, whole)
   local lines = {}
   for _, problem in ipairs(result.problems) do
      local others = (problem.parameters or 1) - 1
      lines[#lines + 1] = ("refused  %s (worker rank %d%s)"):format(problem.text, problem.rank,
         others > 0 and ("; and %d more like it"):format(others) or "")
   end
   if result.undecided > 0 then
      lines[#lines + 1] = ("note     %s more were not looked at: too many before them have mistakes"):format(
         units.count(result.undecided, "parameter"))
   end
   for _, item in ipairs(result.idle) do
      lines[#lines + 1] = "idle     " .. idle_text(item)
   end
   if result.idle_extended > 0 then
      lines[#lines + 1] = ("note     not needed here: %s of the files that it extends"):format(units.count(result.idle_extended, "rule"))
   end
   if alone and result.workers > 1 then
      lines[#lines + 1] = ("note     worker rank %d alone was checked, of %d workers"):format(result.checked[1], result.workers)
   end
   if whole and not result.good then
      lines[#lines + 1] = "note     one worker was taken to have all: neither --mesh nor the host's tensor_parallel_size says otherwise"
   end
   local totals = result.totals
   lines[#lines + 1] = ("%s: %s of %s: %d direct (%s), %d full (%s), %d alias, %d skip"):format(result.good and "good" or "not good",
      result.file, result.title, totals.direct.parameters, units.bytes(totals.direct.bytes), totals.full.parameters,
      units.bytes(totals.full.bytes), totals.alias.parameters, totals.skip.parameters)
   io.stdout:write(units.plain(table.concat(lines, "\n")), "\n")
end

function command.run(args)
   local from = load(args)
   local ranks = args.rank and { from:worker("check", args.rank) } or from:kinds_of_workers()
   local problems, plan, undecided = problems_of(from, ranks)
   local audit = plan:rules()
   local idle, extended = idle_of(audit)
   local result = {
      good = not problems[1] and (args.idle or not idle[1]) or false, file = audit.file or args.rules, title = from.title,
      trainers = from.trainers, workers = from.workers, checked = ranks, problems = problems, undecided = undecided,
      idle = idle, idle_extended = extended, totals = plan:totals(),
   }
   json.answer(args, result, function()
      write(result, args.rank or from.kind ~= "deployment", from.whole)
   end)
   return result.good and 0 or 1
end

return command
