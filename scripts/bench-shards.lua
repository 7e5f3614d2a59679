--- The rows of scripts/bench-shards, one after the other, and their table. For each: what `sluice simulate` says, what `sluice
-- run` measures, what NCCL takes for the same parameters (shards_bench), and what becomes of a rank that is killed.
--
--    luajit scripts/bench-shards.lua --build DIR --nccl FILE [options of scripts/bench-shards]

local cjson = require "cjson"
package.path = "./?.lua;" .. package.path
local figures = require "scripts.figures"
local files = require "scripts.files"
local measure = require "scripts.measure"
local shards = require "scripts.shards"

local options = { samples = "10", transport = "nccl" }
local KILL_TRIES = 3 -- an update may be over before the kill comes

local function say(text, ...)
   io.stderr:write("bench-shards: ", text:format(...), "\n")
   io.stderr:flush()
end

local function wrong(text, ...)
   say(text, ...)
   os.exit(2)
end

-- ---- other programs ----

-- Runs a command line. Gives its JSON, or nil, its last words and its exit status.
local function run(line, ...)
   local path = os.tmpname()
   local pipe = assert(io.popen(("%s 2>%s; printf '\n%%d' $?"):format(line:format(...), path)))
   local said, code = pipe:read("*a"):match("^(.*)\n(%d+)$")
   pipe:close()
   local last = (files.read(path) or ""):match("([^\n]*)\n?$")
   os.remove(path)
   local good, object = pcall(cjson.decode, said)
   if good then
      return object, last, tonumber(code)
   end
   return nil, last, tonumber(code)
end

local function bench(line, ...)
   return run("%s/shards_bench " .. line .. " --kernels %s/gpu_bench_kernels.fatbin", options.build, ...)
end

-- A `sluice` command on a row's deployment.
local function sluice(command, row, more, ...)
   local settings = (options.reduced and shards.reduced(row) or "") .. (options.layers and " --layers " .. options.layers or "")
   return run("%s/sluice %s %s %s " .. more, options.build, command, row.path, settings, ...)
end

-- ---- the machine ----

local function median_rate(bytes, seconds)
   local spread = measure.spread(seconds)
   local giga = bytes * 1e-9
   return { median = giga / spread.median, smallest = giga / spread.largest, largest = giga / spread.smallest }
end

-- The rates of every GPU's link, outwards and inwards, alone and while all others send.
local function links_of(gpus)
   if #gpus == 1 then
      return nil, "there is one GPU: nothing crosses a link"
   end
   local found, text, code = bench("links --samples %s --bytes %d", options.samples, options.reduced and 2 ^ 20 or 2 ^ 31,
      options.build)
   if not found or code ~= 0 then
      return nil, text
   end
   local out, into = {}, {}
   for _, link in ipairs(found.links) do
      local alone, together = median_rate(found.bytes, link.alone), median_rate(found.bytes, link.together)
      out[link.gpu + 1] = { gpu = link.gpu, to = link.to, alone = alone, together = together }
      into[link.to + 1] = { gpu = link.to, from = link.gpu, alone = alone, together = together }
   end
   return { out = out, into = into }
end

local function look()
   local found, text = bench("count", options.build)
   if not found then
      say("nothing can be measured here: %s", text)
      os.exit(3)
   end
   local machine = figures.machine(found.cuda_driver)
   machine.gpus = found.gpus
   return machine
end

-- ---- one row ----

-- Why a row does not fit the GPUs, or nil.
local function unfit(row, plan, gpus)
   local wanted = {}
   for rank = 0, row.trainers + row.workers - 1 do
      local gpu = math.floor(rank / row.each) + 1
      wanted[gpu] = (wanted[gpu] or 0) + (rank < row.trainers and plan.shard_bytes / row.trainers or plan.coverage.live_bytes)
   end
   for gpu, bytes in pairs(wanted) do
      if bytes > 0.97 * gpus[gpu].free_bytes then
         return ("GPU %d would hold %.1f GB and has %.1f"):format(gpu - 1, bytes * 1e-9, gpus[gpu].free_bytes * 1e-9)
      end
   end
end

-- Seconds that the busiest link needs, at its own measured rate.
local function limit_of(bytes, links)
   local most = 0
   for _, side in ipairs({ { "link_out", "out" }, { "link_in", "into" } }) do
      for gpu, carried in ipairs(bytes[side[1]]) do
         local link = links[side[2]][gpu]
         most = math.max(most, link and carried / (link.alone.median * 1e9) or 0)
      end
   end
   return most > 0 and most or nil
end

local function slowest_rate(links)
   local rate = math.huge
   for _, link in ipairs(links.out) do
      rate = math.min(rate, link.alone.median)
   end
   return rate
end

local function predict(row, machine)
   local links = machine.links
   local found, text = sluice("simulate", row, "--json --ranks-per-gpu %d --link-domain %d --node %d %s", row.each, #machine.gpus,
      #machine.gpus, links and ("--link-gb-s %.3f"):format(slowest_rate(links)) or "")
   if not found then
      return nil, text
   end
   local ours = found.strategies[1]
   local result = { seconds = ours.seconds, waits_for = ours.bottleneck.name, sent = ours.sent, link_out = ours.link_out,
                    link_in = ours.link_in, bytes = ours.bytes, limit_seconds = links and limit_of(ours.bytes, links) }
   for _, other in ipairs(found.strategies) do
      result[other.name .. "_seconds"] = other.seconds
   end
   return result
end

-- The first update is left out: it brings what comes with a first one.
local function counted(list)
   local rest = { unpack(list, 2) }
   return rest, measure.spread(rest)
end

local function ours(row, transport)
   local found, text, code = sluice("run", row, "--transport %s --updates %d --quiet --json%s", transport, options.samples + 1,
      options["any-memory"] and " --any-memory" or "")
   if not found or code ~= 0 then
      return nil, text, code
   end
   local seconds, ranks = {}, {}
   for i, rank in ipairs(found.ranks) do
      local moving, spread = counted(rank.moving_seconds)
      for number, one in ipairs(moving) do
         seconds[number] = math.max(seconds[number] or 0, one)
      end
      ranks[i] = { rank = rank.rank, role = rank.role, bytes = rank.bytes, seconds = moving,
                   gb_per_s = rank.bytes / spread.median * 1e-9 }
   end
   local _, whole = counted(found.update_seconds)
   local bytes = found.bytes_received / found.updates
   return { seconds = measure.spread(seconds), samples = seconds, whole_seconds = whole, bytes = bytes, ranks = ranks,
            gb_per_s = bytes / measure.spread(seconds).median * 1e-9, verified_bytes = found.bytes_verified, roads = found.roads,
            sent_by = found.sent_by }
end

local function may_share()
   return os.getenv("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
end

local function peers(row)
   if row.each > 1 and not may_share() then
      return nil, ("%d ranks share a GPU, which NCCL wants 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1 for"):format(row.each)
   end
   local path = os.tmpname()
   local _, text, code = sluice("plan", row, "--init-info >%s", path)
   if code ~= 0 then
      os.remove(path)
      return nil, text
   end
   local found, said, status = bench("peers --init-info %s --samples %s --bytes %d --nccl %s", path, options.samples,
      options.reduced and 100000 or 2 ^ 30, options.nccl, options.build)
   os.remove(path)
   if not found or status ~= 0 then
      return nil, said, status
   end
   for _, way in ipairs(found.ways) do
      way.samples, way.seconds = way.seconds, measure.spread(way.seconds)
   end
   return found
end

local function killed(row)
   local victim = tonumber(options.kill or row.trainers + row.workers - 1)
   if not victim then
      return nil, "not asked for"
   elseif victim >= row.trainers + row.workers then
      return nil, ("there is no rank %d"):format(victim)
   end
   local last
   for _ = 1, KILL_TRIES do
      local found, text, code = sluice("run", row, "--transport %s --updates 3 --no-verify --any-memory --quiet --json --kill %d",
         options.transport, victim)
      if not found then
         return nil, text, code
      elseif found.all_named then
         return found
      end
      last = found
   end
   if #last.ends == 0 then
      return nil, "every update was over before the kill came"
   end
   return nil, "not every other rank named the one that was killed", 1
end

-- ---- the table ----

local function ms(spread)
   return ("%.3f ms (%.3f to %.3f)"):format(spread.median * 1e3, spread.smallest * 1e3, spread.largest * 1e3)
end

local function line(what, text, ...)
   print(("   %-22s " .. text):format(what, ...))
end

local function print_links(links)
   for _, link in ipairs(links.out) do
      local back = links.into[link.gpu + 1]
      local out, into = link.alone, back.alone
      print(("GPU %d: out %.1f GB/s (%.1f to %.1f) to GPU %d, in %.1f (%.1f to %.1f) from GPU %d; while all send, out %.1f, in %.1f")
         :format(link.gpu, out.median, out.smallest, out.largest, link.to, into.median, into.smallest, into.largest, back.from,
            link.together.median, back.together.median))
   end
end

-- The ranks of one side: GB/s of each, and how far their bytes are from even.
local function print_side(what, list)
   local rates, most, sum = {}, 0, 0
   for i, rank in ipairs(list) do
      rates[i] = ("%.1f"):format(rank.gb_per_s)
      most, sum = math.max(most, rank.bytes), sum + rank.bytes
   end
   line(what, "%s GB/s; most bytes over mean %.3f", table.concat(rates, ", "), sum > 0 and most * #list / sum or 1)
end

local function print_ours(row)
   local own, said, T = row.measured, row.predicted, row.trainers
   local limit = said.limit_seconds
   line("sluice", "%s, %.1f GB/s in all%s", ms(own.seconds), own.gb_per_s,
      limit and (", %.3f of the limit of %.3f ms"):format(limit / own.seconds.median, limit * 1e3) or "")
   line("", "%.3f ms from the last rank's start to the last one's finish", own.whole_seconds.median * 1e3)
   print_side("trainers send", { unpack(own.ranks, 1, T) })
   print_side("workers receive", { unpack(own.ranks, T + 1) })
   if row.used == 1 then
      return line("predicted", "left out: all ranks are on one GPU, and copies within one are not in the model")
   end
   line("predicted", "%.3f ms (%.3f of the measured time): waits for %s", said.seconds * 1e3, said.seconds / own.seconds.median,
      said.waits_for)
   line("links", "out: most %.2f GB, over mean %.3f; in: most %.2f GB, over mean %.3f", said.link_out.most * 1e-9,
      said.link_out.imbalance, said.link_in.most * 1e-9, said.link_in.imbalance)
end

local function print_m2n(row)
   if row.m2n then
      line("transport m2n", "%s, %.2f times as long", ms(row.m2n.seconds), row.m2n.seconds.median / row.measured.seconds.median)
   elseif row.why_no_m2n then
      line("transport m2n", "left out: %s", row.why_no_m2n)
   end
end

local function print_peers(row)
   if not row.peers then
      return line("through trainer 0", "left out: %s", row.why_no_peers)
   end
   for _, way in ipairs(row.peers.ways) do
      line(way.name == "packed" and "packed broadcast" or "gather and broadcast", "%s, %.2f times as long", ms(way.seconds),
         way.seconds.median / row.measured.seconds.median)
   end
end

local function print_killed(row)
   if not row.killed then
      return line("killed in the middle", "left out: %s", row.why_no_kill)
   end
   local first = math.huge
   for _, one in ipairs(row.killed.ends) do
      first = math.min(first, one.seconds)
   end
   line("killed in the middle", "%s: every other rank named it, %.3f to %.3f s after", row.killed.killed_role, first,
      row.killed.slowest_s)
end

local function print_row(row)
   if not row.measured then
      print(("\n%s\n   left out: %s"):format(row.title or row.name, row.why))
      return
   end
   print(("\n%s: %d to %d ranks on %d of %d GPUs, %d on each"):format(row.title, row.trainers, row.workers, row.used, row.gpus,
      row.each))
   print_ours(row)
   print_m2n(row)
   print_peers(row)
   print_killed(row)
end

local function print_all(rows, machine)
   print(("%d GPUs (%s), driver %s, CUDA %s, %s"):format(#machine.gpus, machine.gpus[1].name, machine.driver or "unknown", machine.cuda,
      machine.date))
   print(("medians of %s with the smallest and the largest, after one that does not count; every byte of every sample compared")
      :format(options.samples))
   if machine.links then
      print_links(machine.links)
   else
      print("links left out: " .. machine.why_no_links)
   end
   for _, row in ipairs(rows) do
      print_row(row)
   end
end

-- ---- all ----

-- Fills a row in. Returns whether something went wrong that is a fault.
local function measure_row(row, machine)
   local plan, text = sluice("plan", row, "--json")
   if not plan then
      row.why = text
      return true
   end
   row.title = row.title or ("%s, %s"):format(plan.model, row.name)
   row.trainers, row.workers, row.gpus = plan.trainers, plan.workers, #machine.gpus
   row.each = math.floor((row.trainers + row.workers - 1) / row.gpus) + 1
   row.used = math.ceil((row.trainers + row.workers) / row.each)
   row.why = unfit(row, plan, machine.gpus)
   if row.why then
      return false
   end
   local code, faults, fault
   say("%s: %d updates", row.title, options.samples + 1)
   row.predicted, row.why = predict(row, machine)
   if row.predicted then
      row.measured, row.why, code = ours(row, options.transport)
   end
   if not row.measured then
      return code ~= 2 -- the machine's memory, or what the transport cannot do: it says so
   end
   if options.transport ~= "m2n" then
      say("%s: by nccl_m2n", row.title)
      row.m2n, row.why_no_m2n, code = ours(row, "m2n --mix")
      faults = code == 1
   end
   say("%s: through trainer 0", row.title)
   row.peers, row.why_no_peers, fault = peers(row)
   say("%s: a rank is killed", row.title)
   row.killed, row.why_no_kill, code = killed(row)
   return faults or fault == 1 or code == 1
end

local function chosen()
   local rows, known = {}, {}
   for _, row in ipairs(shards.rows) do
      row.path = shards.folder .. row.name .. ".lua"
      known[row.name] = row
      rows[#rows + 1] = row
   end
   if options.deployment then
      return { { name = options.deployment:match("([^/]*)%.%w+$") or options.deployment, path = options.deployment } }
   elseif options.rows then
      rows = {}
      for name in options.rows:gmatch("[^,]+") do
         rows[#rows + 1] = known[name] or wrong("no row %s; --list names all", name)
      end
   end
   return rows
end

local function take_arguments()
   local i = 1
   while i <= #arg do
      local key = arg[i]:match("^%-%-([%a-]+)$")
      local flag = key == "reduced" or key == "list" or key == "any-memory"
      options[key or ""] = flag or arg[i + 1]
      i = i + (flag and 1 or 2)
   end
   for _, key in ipairs({ "samples", "layers" }) do
      local value = options[key]
      if value and not (value:find("^%d+$") and tonumber(value) >= 1 and tonumber(value) <= 100) then
         wrong("--%s (%s) must be a whole number from 1 to 100", key, value)
      end
   end
   if options.kill and options.kill ~= "none" and not options.kill:find("^%d+$") then
      wrong("--kill (%s) must be a rank, or none", options.kill)
   end
end

take_arguments()
if options.list then
   for _, row in ipairs(shards.rows) do
      print(("%-28s %s"):format(row.name, row.title))
   end
   os.exit(0)
end
local rows = chosen()
local machine = look()
say("%d GPUs (%s): links", #machine.gpus, machine.gpus[1].name)
machine.links, machine.why_no_links = links_of(machine.gpus)
local faults = 0
for _, row in ipairs(rows) do
   faults = faults + (measure_row(row, machine) and 1 or 0)
end
print_all(rows, machine)
if options.json then
   figures.write(options.json, { machine = machine, samples = tonumber(options.samples), layers = tonumber(options.layers),
                                 reduced = options.reduced or false, transport = options.transport, rows = rows })
   say("wrote %s", options.json)
end
os.exit(faults > 0 and 1 or 0)
