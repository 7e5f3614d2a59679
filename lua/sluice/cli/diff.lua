--- sluice diff: what differs between two rule files on one deployment, two deployments, or two plans that were saved.

local diff = require "sluice.diff"
local difference = require "sluice.cli.difference"
local fault = require "sluice.cli.fault"
local json = require "sluice.cli.json"
local planned = require "sluice.cli.planned"
local source = require "sluice.cli.source"
local units = require "sluice.cli.units"
local world = require "sluice.cli.world"

local command = {
   name = "diff", summary = "Says which parameters two rule files, deployments or saved plans place otherwise.",
   example = "sluice diff llama my-llama.lua --deployment examples/deployments/llama3-8b.lua    (two rule files)\n"
      .. "   sluice diff llama my-llama.lua --attach /run/user/1000/worker.sock                (on what a running engine serves)\n"
      .. "   sluice diff before.lua after.lua                                                  (two deployments)\n"
      .. "   sluice diff before.json after.json                             (what sluice plan --full --json wrote)\n\n"
      .. "Exit codes: 0 they are the same; 1 they differ; 2 wrong usage or wrong input. lua/PLAN.md says what --json holds.",
}

local LONGEST = 512 * 1024 * 1024

function command.configure(parser)
   parser:argument("a", "A rule file or family (with --deployment, --checkpoint or --attach), a deployment file, an init info, or a saved plan.")
   parser:argument("b", "The same; either may also be a saved plan.")
   parser:option("--deployment", "The deployment or init info on which a and b are two rule files."):argname("<file>")
   source.configure(parser)
   parser:option("--set", "Set a key of the deployments: KEY.PATH=VALUE; may be given again."):count("*"):argname("<key=value>")
   world.rank_option(parser, "World rank of the worker whose live tensors are meant. The first worker when not given.")
   parser:flag("--all", "List every kind of parameter that differs.")
   parser:flag("--json", "Print one JSON object on standard output.")
end

local function open(args, deployment, rules)
   local from = source.load({ deployment = deployment, checkpoint = args.checkpoint, mesh = args.mesh, expert_mesh = args.expert_mesh,
                              attach = args.attach, rules = rules, host = args.host, live_list = args.live_list, set = args.set })
   return planned.open(from, from:worker("diff", args.rank))
end

local function side(args, what)
   if args.deployment or args.attach or args.checkpoint then
      return open(args, args.deployment, what):side(what)
   end
   local result, problem = fault.catch(function()
      return planned.saved(fault.read_file("diff", what, LONGEST), what) or open(args, what):side(what)
   end)
   if not result then
      fault.raise(problem.exit, "%s (without --deployment, --checkpoint or --attach, it must be a deployment or a saved plan)", problem.text)
   end
   return result
end

function command.run(args)
   local comparison = diff.compare(side(args, args.a), side(args, args.b))
   json.answer(args, planned.mark(comparison), function()
      io.stdout:write(units.plain(difference.text(comparison, args.all)))
   end)
   return comparison.same and 0 or 1
end

return command
