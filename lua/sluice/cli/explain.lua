--- sluice explain: why one parameter or live tensor of a deployment is where it is; what a pattern finds; what is full.

local core = require "sluice.core"
local explanation = require "sluice.cli.explanation"
local fault = require "sluice.cli.fault"
local native = require "sluice.native"
local source = require "sluice.cli.source"
local units = require "sluice.cli.units"

local explain = {
   name = "explain", summary = "Explains a parameter or a live tensor of a deployment: its rule, its slices, who fills it.",
   example = "sluice explain examples/deployments/llama3-8b.lua model.layers.0.self_attn.k_proj.weight\n"
      .. "   sluice explain examples/deployments/llama3-8b.lua model.layers.0.self_attn.qkv_proj.weight --rank 5\n"
      .. "   sluice explain examples/deployments/llama3-8b.lua '*.k_proj.*'\n"
      .. "   sluice explain --checkpoint model.safetensors --live live.json --host host.json --rules mine.lua h.0.attn.qkv.weight\n"
      .. "   sluice explain --attach /run/user/1000/worker.sock model.norm.weight\n\n"
      .. "lua/EXPLAIN.md says what the answer with --json holds.",
}

function explain.configure(parser)
   source.arguments(parser, "World rank of the worker whose slices and live tensors are shown. When not given, all workers' "
      .. "slices, and the live tensors of the first worker that has the name.")
   parser:argument("name", "A parameter, a live tensor, or a pattern: * is any text, with {braces} it is read as in a rule file. "
      .. "Left out: what is full, and what nothing writes."):args("?")
   parser:flag("--json", "Print one JSON object on standard output.")
   parser:flag("--all", "Show every rule tried, every group of workers and every match.")
end

local function ask(from, rank, args)
   local text = fault.check(native.explain(from:job(rank), { name = args.name or "", one_rank = args.rank ~= nil, all = args.all == true }))
   local answer, problem = core.json(text)
   if not answer then
      fault.raise(1, "explain: %s", problem)
   end
   return answer, text
end

-- The first worker that has a live tensor which this one has not.
local function other_rank(answer, args)
   local elsewhere = args.rank == nil and answer.live and answer.live.elsewhere
   return elsewhere and elsewhere[1] and elsewhere[1][1] ~= answer.rank and elsewhere[1][1] or nil
end

function explain.run(args)
   if (args.attach or args.checkpoint) and not args.name then -- the one word beside it is the name
      args.name, args.deployment = args.deployment, nil
   end
   local from = source.load(args)
   local answer, text = ask(from, from:worker("explain", args.rank), args)
   local other = from.world and other_rank(answer, args)
   if other then
      answer, text = ask(from, other, args)
   end
   if answer.bad_pattern then
      fault.wrong("explain: %s: %s", args.name, answer.bad_pattern)
   end
   if answer.near and not args.json then
      fault.wrong("explain: %s", explanation.unknown(answer))
   end
   io.stdout:write(args.json and text .. "\n" or units.plain(explanation.text(answer)))
   return answer.near and 2 or 0
end

return explain
