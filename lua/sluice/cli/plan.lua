--- sluice plan: makes one rank's plan in this process, without any other rank, and says what it holds and what it cost.

local native = require "sluice.native"
local fault = require "sluice.cli.fault"
local json = require "sluice.cli.json"
local source = require "sluice.cli.source"
local units = require "sluice.cli.units"

local plan = {
   name = "plan", summary = "Plans a deployment for one rank, without moving anything.",
   example = "sluice plan examples/deployments/llama3-8b.lua --rank 4\n"
      .. "   sluice plan --attach /run/user/1000/worker.sock\n"
      .. "   sluice plan examples/deployments/llama3-8b.lua --full --json > plan.json    (which sluice diff reads)\n\n"
      .. "lua/PLAN.md says what --json holds.",
}

local steps = { "init_info", "live", "resolve", "check", "compile" }

function plan.configure(parser)
   source.arguments(parser, "World rank to plan for; trainers come first. The first worker when not given.")
   parser:flag("--full", "List every parameter with its destination.")
   parser:flag("--init-info", "Print the sealed init info that the trainers send, in the place of a plan."):target("init_info")
   parser:flag("--json", "Print one JSON object on standard output.")
end

local function mode_line(mode, totals)
   return ("%-7s %6d parameters %12s"):format(mode, totals.parameters, units.bytes(totals.bytes))
end

local function write(result)
   local lines = {
      ("%s: %s to %s, plan of rank %d (%s)"):format(result.model, units.count(result.trainers, "trainer"),
         units.count(result.workers, "worker"), result.rank, result.role),
      "",
   }
   for _, mode in ipairs({ "direct", "full", "alias", "skip" }) do
      lines[#lines + 1] = mode_line(mode, result[mode])
   end
   local coverage = result.coverage
   lines[#lines + 1] = ""
   lines[#lines + 1] = ("live    %s, %s written in place, %s cleared, %s not written in place"):format(units.bytes(coverage.live_bytes),
      units.bytes(coverage.written_bytes), units.bytes(coverage.padded_bytes), units.count(#coverage.uncovered, "tensor"))
   if result.staging_bytes > 0 then
      lines[#lines + 1] = ("staging %s at most: full parameters pass through slots as large as the largest"):format(units.bytes(result.staging_bytes))
   end
   lines[#lines + 1] = ("program %s, %s, %s"):format(("%d strided copies"):format(result.program.copies),
      units.bytes(result.program.bytes), units.count(result.program.peers, "peer"))
   local m2n = result.m2n
   if m2n then
      lines[#lines + 1] = ("m2n     %s, %s"):format(units.count(m2n.reshards, "reshard"), m2n.elsewhere == 0 and "nothing left to nccl"
         or units.count(m2n.elsewhere, "parameter") .. (m2n.mix and " left to nccl" or " that it cannot move: init refuses them without mix"))
      for i = 1, math.min(#m2n.reasons, 8) do
         lines[#lines + 1] = "        " .. m2n.reasons[i]
      end
   end
   local parts = {}
   for i, step in ipairs(steps) do
      parts[i] = ("%s %.3f"):format(step:gsub("_", " "), result.seconds[step])
   end
   lines[#lines + 1] = ("seconds %.3f of planning (%s), %.3f to describe the model"):format(result.seconds.planning,
      table.concat(parts, ", "), result.seconds.describe)
   lines[#lines + 1] = ("memory  %s at most"):format(units.bytes(result.peak_bytes))
   for i, param in ipairs(result.plan or {}) do
      lines[#lines + 1] = (i == 1 and "\n" or "") .. ("%s %s %s: %s (%s)"):format(param.name, param.dtype, units.shape(param.shape),
         param.destination, param.where or "")
   end
   io.stdout:write(table.concat(lines, "\n"), "\n")
end

local function mark_lists(result)
   json.list(result.coverage.uncovered)
   json.list(result.coverage.unsourced)
   json.list(result.aliases)
   if result.m2n then
      json.list(result.m2n.reasons)
   end
   for _, param in ipairs(result.plan or {}) do
      json.list(param.shape)
      json.list(param.into)
   end
end

--- The plan of one rank, as `sluice plan --json` prints it.
-- @param from of sluice.cli.source
-- @param rank the world rank
-- @param[opt] full whether every parameter is listed, as `plan`
function plan.make(from, rank, full)
   local worker = rank < from.trainers and (from.rank or from.trainers) or from:worker("plan", rank)
   local result = fault.check(native.plan(from:job(worker), rank, full))
   mark_lists(result)
   result.rank, result.role, result.model = rank, from:role(rank), from.title
   result.trainers, result.workers = from.trainers, from.workers
   result.transport = from.transport or "host"
   result.staging_bytes = rank >= from.trainers and result.largest_full_bytes * math.max(2, from.staging_slots or 2) or 0
   result.seconds.describe = from.seconds or 0
   result.peak_bytes = native.peak()
   return result
end

function plan.run(args)
   local from = source.load(args)
   local rank = args.rank or from.rank or from.trainers
   if rank >= from.size then
      fault.wrong("plan: --rank %d must be below the world size %d", rank, from.size)
   elseif args.init_info then
      io.stdout:write(from:init_info(), "\n")
      return 0
   end
   local result = plan.make(from, rank, args.full)
   json.answer(args, result, write)
   return 0
end

return plan
