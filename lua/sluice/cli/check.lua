--- sluice check: the gate for rule files: everything that a plan checks, on a worker of every kind, and rules that do nothing.

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
   parser:option("--checkpoint", "The trainer's tensors: a JSON list of name, dtype and shape, or a safetensors file, index or "
      .. "folder."):argname("<list>")
   source.configure(parser)
   parser:option("--mesh", "The workers' mesh beside --checkpoint, outermost axis first. tp of the host's tensor_parallel_size when "
      .. "not given."):argname("<axis=size,...>")
   parser:option("--expert-mesh", "A second view of the same workers, for experts."):argname("<axis=size,...>")
   parser:option("--set", "Set a key of the deployment: KEY.PATH=VALUE; may be given again."):count("*"):argname("<key=value>")
   world.rank_option(parser, "World rank of the only worker to check: the one that --live lists, say. One of every kind when not given, or "
      .. "the first where no deployment says what the others hold.")
   parser:flag("--idle", "Rules of the file that decide nothing are no fault.")
   parser:flag("--json", "Print one JSON object on standard output.")
end

local function load(args)
   local ways = (args.deployment and 1 or 0) + (args.checkpoint and 1 or 0) + (args.attach and 1 or 0)
   if ways > 1 then
      fault.wrong("check: --deployment, --checkpoint and --attach say the same thing; one of them is enough")
   elseif args.deployment or args.attach then
      if args.mesh or args.expert_mesh then
         fault.wrong("check: %s says the workers' mesh; %s goes with --checkpoint", args.deployment and "--deployment" or "--attach",
            args.mesh and "--mesh" or "--expert-mesh")
      end
      return source.load({ deployment = args.deployment, attach = args.attach, rules = args.rules, host = args.host, live_list = args.live_list,
                           set = args.set })
   elseif not args.checkpoint or not args.live_list then
      fault.wrong("check: --deployment, --attach, or --checkpoint and --live, must say what the rules are for")
   elseif args.set and args.set[1] then
      fault.wrong("check: --set sets a key of a deployment, and --checkpoint is none")
   end
   return source.of_lists(args)
end

-- A fault that several workers have is told once, with the first of them.
local function problems_of(from, ranks)
   local list, seen, first = json.list(), {}, nil
   for _, rank in ipairs(ranks) do
      local plan = planned.open(from, rank)
      local texts = {}
      for i, item in ipairs(plan.problems) do
         texts[i] = not item.text:find("^not decided: ") and item.text or nil
      end
      texts[1] = texts[1] or plan.problem
      for _, text in ipairs(texts) do
         list[#list + 1] = not seen[text] and { rank = rank, text = text } or nil
         seen[text] = true
      end
      if first then
         plan:close()
      end
      first = first or plan
   end
   return list, first
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
      lines[#lines + 1] = ("refused  %s (worker rank %d)"):format(problem.text, problem.rank)
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
   local problems, plan = problems_of(from, ranks)
   local audit = plan:rules()
   local idle, extended = idle_of(audit)
   local result = {
      good = not problems[1] and (args.idle or not idle[1]) or false, file = audit.file or args.rules, title = from.title,
      trainers = from.trainers, workers = from.workers, checked = ranks, problems = problems, idle = idle, idle_extended = extended,
      totals = plan:totals(),
   }
   json.answer(args, result, function()
      write(result, args.rank or from.kind ~= "deployment", from.whole)
   end)
   return result.good and 0 or 1
end

return command
