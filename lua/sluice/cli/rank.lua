--- sluice rank, trainer and worker: one rank of a deployment in this process, started by a launcher or by `sluice run`.

local cjson = require "cjson"
local native = require "sluice.native"
local fault = require "sluice.cli.fault"
local json = require "sluice.cli.json"
local place = require "sluice.cli.place"
local units = require "sluice.cli.units"
local world = require "sluice.cli.world"

local rank = {}

local LONGEST_INFO = 2 ^ 30

local function number(text)
   local value = tonumber(text)
   if not value or value < 0 or value % 1 ~= 0 then
      return nil, ("'%s' is no number"):format(text)
   end
   return value
end

local function port(text)
   local value = number(text)
   if not value or value < 1 or value > 65535 then
      return nil, ("'%s' is no port from 1 to 65535"):format(text)
   end
   return value
end

local function configure(parser)
   world.configure(parser)
   parser:option("--address", "Where rank 0 listens; over MASTER_ADDR.")
   parser:option("--port", "The port of rank 0; over MASTER_PORT."):convert(port)
   parser:option("--key-file", "The deployment's secret, the same on every rank: a file of mode 600, 32 to 4096 bytes.")
      :target("key_file")
   parser:option("--key-fd", "The same from a descriptor that this process inherits."):target("key_fd"):convert(number)
   parser:flag("--insecure-control", "Speak without a key off the loopback interface, too."):target("insecure_control")
   parser:flag("--no-verify", "Workers check nothing."):target("no_verify")
   parser:option("--memory", "Where trainers keep their shards: shared (peers can map it) or ordinary."):choices({ "shared", "ordinary" })
      :default("shared")
   world.replay_option(parser)
   world.log_option(parser)
   parser:option("--save", world.save_help):argname("<folder>")
   parser:option("--allow-attach", world.attach_help):argname("<path>"):target("allow_attach")
   -- Between `sluice run` and its ranks.
   parser:option("--init-info"):target("init_info"):hidden(true)
   parser:option("--report-fd"):target("report_fd"):convert(number):hidden(true)
   parser:option("--listen-fd"):target("listen_fd"):convert(number):hidden(true)
end

-- What a rank on its own shows and sums up.
local function listener(here, stand)
   local sums = { verified = 0, updates = 0, bytes = 0, checked = 0, seconds = 0 }
   local function say(text, ...)
      -- One piece, since ranks that a launcher starts share its standard error.
      io.stderr:write(("%s (rank %d): %s\n"):format(here:role(stand.rank), stand.rank, text:format(...)))
   end
   return sums, function(line)
      local event = cjson.decode(line)
      if event.event == "ready" then
         say("ready in %s", units.seconds(event.seconds))
      elseif event.event == "updated" then
         sums.updates = sums.updates + 1
         sums.bytes = sums.bytes + event.bytes
         sums.seconds = sums.seconds + event.to - event.from
         say("update %d: %s in %s", event.update, units.bytes(event.bytes), units.seconds(event.to - event.from))
      elseif event.event == "verified" then
         sums.verified = sums.verified + 1
         sums.checked = sums.checked + event.bytes
         say("update %d: verified %s", event.update, units.bytes(event.bytes))
      elseif event.event == "saved" then
         sums.saved = event.bytes
         say("saved %s", units.bytes(event.bytes))
      elseif event.event == "log" then
         say("%s: %s", event.level, event.text)
      elseif event.event == "failed" then
         sums.failure = event
      end
   end
end

local function run_alone(here, stand, job)
   local sums, sink = listener(here, stand)
   local worker = stand.rank >= here.trainers
   local code = native.run_rank(job, sink)
   if code ~= 0 then
      fault.raise(code, "%s (rank %d): %s", here:role(stand.rank), stand.rank, sums.failure and sums.failure.text or "failed")
   end
   return {
      rank = stand.rank, role = worker and "worker" or "trainer", updates = sums.updates, bytes = sums.bytes,
      verified = worker and job.verify and sums.verified == sums.updates, bytes_verified = sums.checked, seconds = sums.seconds,
      bytes_saved = sums.saved,
   }
end

local function check_role(here, stand, role)
   local is = stand.rank < here.trainers and "trainer" or "worker"
   if role and role ~= is then
      fault.wrong("%s: rank %d is a %s: ranks 0 to %d are trainers, %d to %d workers", role, stand.rank, is, here.trainers - 1,
         here.trainers, here.size - 1)
   end
end

local function write(result)
   local verified = result.role == "worker" and (", verified " .. (result.verified and units.bytes(result.bytes_verified) or "nothing")) or ""
   io.stdout:write(("rank %d (%s): %s, %s %s in %s%s\n"):format(result.rank, result.role, units.count(result.updates, "update"),
      units.bytes(result.bytes), result.role == "worker" and "received" or "sent", units.seconds(result.seconds), verified))
end

local function run(args, role)
   -- From here on `sluice run` hears of this rank, however long the rest takes.
   local report = args.report_fd and fault.check(native.report(args.report_fd))
   local here = world.load(args)
   local stand = place.find(args, here.size)
   check_role(here, stand, role)
   local info = args.init_info and fault.read_file("init", args.init_info, LONGEST_INFO) or here:init_info(stand.address, stand.port)
   local job = here:job(stand.rank, info, {
      listen_fd = args.listen_fd or -1, key_fd = args.key_fd or -1, key_file = args.key_file,
      insecure_control = args.insecure_control or false, verify = not args.no_verify, ordinary = args.memory == "ordinary",
      save = args.save, allow_attach = world.attach_path(args.allow_attach, stand.rank), replay = args.replay or false, log = args.log,
   })
   if report then
      here = nil -- luacheck: ignore
      return native.run_rank(job, report)
   end
   local result = run_alone(here, stand, job)
   json.answer(args, result, write)
   return 0
end

local example = "RANK=%s WORLD_SIZE=8 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 sluice %s examples/deployments/llama3-8b.lua\n\n%s"

--- A command that runs one rank; role is "trainer", "worker", or nil for whichever the rank is.
function rank.command(name, role, summary)
   return {
      name = name, summary = summary, example = example:format(role == "worker" and "4" or "0", name, place.help),
      configure = configure,
      run = function(args)
         return run(args, role)
      end,
   }
end

local command = rank.command("rank", nil, "Runs the rank that the environment names, trainer or worker.")
command.command = rank.command

return command
