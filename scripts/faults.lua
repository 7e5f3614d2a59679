--- Runs the cases of scripts/faults, several at once, and prints what came of them.
--
--    luajit scripts/faults.lua BUILD [--phase LIST] [--fault LIST] [--victim LIST] [--sample K] [--jobs N] [--json] ...

local cjson = require "cjson"
local poll = require "posix.poll"
local stdio = require "posix.stdio"
local time = require "posix.time"
local unistd = require "posix.unistd"
package.path = "./?.lua;" .. package.path
local wanted = require "scripts.faults_wanted"

local ROADS = {"map", "pull", "ring"}
-- Deadlines in seconds: of everything, of joining where the fault hits that.
local DEADLINE, CONNECT = 30, 5

local build = arg[1]
local options = {beat = 0.4, delay = 10, jobs = 8, within = 2.5}

local function usage(format, ...)
   io.stderr:write("faults: ", format:format(...), "; scripts/faults --help tells\n")
   os.exit(2)
end

local function list_of(text, known, what)
   local chosen = {}
   for word in text:gmatch("[^,]+") do
      if not known[word] then
         usage("%s '%s' is unknown", what, word)
      end
      chosen[word] = true
   end
   return chosen
end

local function known_words(list)
   local known = {}
   for _, word in ipairs(list) do
      known[word] = true
   end
   return known
end

local function number_of(name, text, rule)
   local number, low, high, kind = tonumber(text), unpack(rule)
   if not number or not (number >= low and number <= high) or kind == "a whole number" and number % 1 ~= 0 then
      usage("--%s (%s) must be %s from %g to %g", name, text, kind, low, high)
   end
   return number
end

local function read_arguments()
   local known = {phase = known_words(wanted.phases), fault = known_words(wanted.faults),
      victim = known_words({"0", "1", "2", "3"})}
   local numbers = {jobs = {1, 1000, "a whole number"}, sample = {1, 4, "a whole number"}, beat = {0.05, 3600, "a number"},
      delay = {0.1, 3600, "a number"}, within = {0.1, 3600, "a number"}}
   local i = 2
   while arg[i] do
      local name, value = arg[i]:match("^%-%-([%l%d]+)$"), arg[i + 1]
      if name == "json" or name == "crowd" or name == "key" or name == "gpu" or name == "wire" or name == "m2n" then
         options[name] = true
         i = i + 1
      elseif known[name] and value then
         options[name] = list_of(value, known[name], name)
         i = i + 2
      elseif numbers[name] and value then
         options[name] = number_of(name, value, numbers[name])
         i = i + 2
      else
         usage("unknown or incomplete argument '%s'", arg[i])
      end
   end
end

-- ---- cases ----

local function seconds_expected(case)
   return case.fault == "delay" and options.delay or case.fault == "late" and 2 * options.within
      or case.phase == "connect" and CONNECT or case.fault == "stop" and 1 or 0
end

--- Every case that was asked for, in the order of the table; those that cannot exist have the reason in `impossible`.
local function make_cases()
   local cases = {}
   for p, phase in ipairs(wanted.phases) do
      for f, fault in ipairs(wanted.faults) do
         for victim = 0, #wanted.victims do
            local asked = (not options.phase or options.phase[phase]) and (not options.fault or options.fault[fault])
               and (not options.victim or options.victim[tostring(victim)])
            if asked and (not options.sample or (p + f + options.sample) % 4 == victim) then
               cases[#cases + 1] = {phase = phase, fault = fault, victim = victim, impossible = wanted.impossible(phase, fault, victim),
                  road = options.m2n and "m2n" or options.wire and "wire" or options.gpu and "gpu" or ROADS[(p + f + victim) % 3 + 1],
                  smaller = (p + 2 * f + victim) % 3 == 0, key = options.key}
            end
         end
      end
   end
   return cases
end

local function command_of(case)
   local longest = DEADLINE + options.delay
   local waits = ("deadline=%g connect=%g phase_deadline=%g delay=%g beat=%g"):format(longest, case.fault == "delay" and longest or CONNECT,
      case.fault == "late" and options.within or 0, options.delay, options.beat)
   return ("%s/spec/faults_driver phase=%s fault=%s victim=%d %s road=%s smaller=%d secure=%d"):format(build, case.phase, case.fault,
      case.victim, waits, case.road, case.smaller and 1 or 0, case.key and 1 or 0)
end

local function finish(case, text)
   local good, said = pcall(cjson.decode, text:match("[^\n]*\n?$")) -- a library may have words of its own before
   if not good then
      case.wrong = {"faults_driver said: " .. text}
   elseif said.unavailable ~= "" then
      case.pending = said.unavailable
   else
      case.said = said
      case.wrong, case.seconds, case.outcome, case.lost = wanted.judge(case, said)
   end
end

-- ---- running ----

local function now()
   local at = time.clock_gettime(time.CLOCK_MONOTONIC)
   return at.tv_sec + at.tv_nsec * 1e-9
end

local function start(case)
   local file = assert(io.popen(command_of(case) .. " 2>&1", "r"))
   return {case = case, file = file, fd = stdio.fileno(file), text = {}}
end

--- Reads what came from each; those that ended are judged, leave the list and are returned.
local function read_some(running)
   local fds, ended = {}, {}
   for _, job in ipairs(running) do
      fds[job.fd] = {events = {IN = true}}
   end
   poll.poll(fds, 500)
   for i = #running, 1, -1 do
      local job = running[i]
      local state = fds[job.fd].revents or {} -- none where the wait ran out
      if state.IN or state.HUP or state.ERR then
         local text = unistd.read(job.fd, 65536)
         if text and text ~= "" then
            table.insert(job.text, text)
         else
            job.file:close()
            finish(job.case, table.concat(job.text))
            ended[#ended + 1] = table.remove(running, i)
         end
      end
   end
   return ended
end

--- The cases that run, in two queues, longest first: those that sleep cost nothing, so that more of them run at once.
local function make_queues(cases)
   local queues = {{most = 2 * options.jobs, at = 1, running = 0}, {most = options.jobs, at = 1, running = 0}}
   for _, case in ipairs(cases) do
      if not case.impossible then
         table.insert(queues[(case.fault == "delay" or case.fault == "late") and 1 or 2], case)
      end
   end
   for _, queue in ipairs(queues) do
      table.sort(queue, function(a, b)
         local x, y = seconds_expected(a), seconds_expected(b)
         return x > y or x == y and (a.phase .. a.fault .. a.victim) < (b.phase .. b.fault .. b.victim)
      end)
   end
   return queues, #queues[1] + #queues[2]
end

local function run(cases)
   local queues, total = make_queues(cases)
   local running, began, said_at = {}, now(), now()
   local done, wrong = 0, 0
   while done < total do
      for _, queue in ipairs(queues) do
         while queue.running < queue.most and queue[queue.at] do
            local job = start(queue[queue.at])
            job.queue = queue
            table.insert(running, job)
            queue.at, queue.running = queue.at + 1, queue.running + 1
         end
      end
      for _, job in ipairs(read_some(running)) do
         job.queue.running = job.queue.running - 1
         done = done + 1
         wrong = wrong + (job.case.wrong and #job.case.wrong > 0 and 1 or 0)
      end
      if now() - said_at > 5 then
         said_at = now()
         io.stderr:write(("faults: %d of %d cases, %d wrong, %.0f s\n"):format(done, total, wrong, said_at - began))
      end
   end
   return now() - began
end

--- How long init takes many ranks, and how long beside strangers; each of {ranks, strangers, key}.
local function run_crowds()
   local crowds = {}
   for _, crowd in ipairs({{64, 0, 0}, {64, 0, 1}, {8, 0, 0}, {8, 10000, 0}, {8, 0, 1}, {8, 10000, 1}}) do
      io.stderr:write(("faults: a crowd of %d ranks%s\n"):format(crowd[1], crowd[2] > 0 and " beside " .. crowd[2] .. " strangers" or ""))
      local pipe = assert(io.popen(("%s/spec/faults_driver crowd %d %d %d 2>&1"):format(build, unpack(crowd))))
      local text = pipe:read("*a")
      pipe:close()
      local good, said = pcall(cjson.decode, text)
      crowds[#crowds + 1] = good and said or {ranks = crowd[1], strangers = crowd[2], secure = crowd[3] == 1, bad = crowd[1], text = text}
   end
   return crowds
end

-- ---- printing ----

local function cell_text(case)
   if case.impossible then
      return "-"
   elseif case.pending then
      return "pending"
   elseif #case.wrong > 0 then
      return "WRONG"
   end
   return ("%s %.2f s%s"):format(case.outcome, case.seconds, case.lost > 0 and "*" or "")
end

local function print_cells(cases)
   local row
   for i, case in ipairs(cases) do
      local previous = cases[i - 1]
      if not previous or previous.phase ~= case.phase then
         io.write(("%s%-12s"):format(i > 1 and "\n\n" or "", case.phase))
         for victim = 0, #wanted.victims do
            io.write(("%-14s"):format(wanted.victims[victim]))
         end
         row = nil
      end
      if row ~= case.fault then
         io.write(("\n  %-10s"):format(case.fault))
         row = case.fault
         io.write((" "):rep(14 * (case.victim)))
      end
      io.write(("%-14s"):format(cell_text(case)))
   end
   io.write("\n")
end

--- The worst of the victims of each phase and fault: "1.31", "ok" (the others succeeded), "-" or "pending".
local function print_worst(cases)
   local worst, has = {}, {}
   for _, case in ipairs(cases) do
      local key = case.phase .. " " .. case.fault
      has[case.phase], has[case.fault] = true, true
      local text = cell_text(case)
      local before = worst[key] or {text = "-", rank = 0}
      local rank = case.impossible and 0 or case.pending and 1 or case.outcome == "ok" and 2 or 3 + (case.seconds or 0)
      rank = case.wrong and #case.wrong > 0 and 1e9 or rank
      text = text:match("^named ([%d.]+)") or text:match("^ok") or text
      worst[key] = rank > before.rank and {text = text, rank = rank} or before
   end
   io.write("\nworst of the victims, seconds from the fault to the last rank's error; ok: every rank went on\n\n", ("%-12s"):format(""))
   for _, phase in ipairs(wanted.phases) do
      io.write(has[phase] and ("%-10s"):format(phase) or "")
   end
   for _, fault in ipairs(wanted.faults) do
      local line = {}
      for _, phase in ipairs(wanted.phases) do
         local cell = worst[phase .. " " .. fault]
         line[#line + 1] = has[phase] and ("%-10s"):format(cell and cell.text or "") or nil
      end
      io.write(has[fault] and "\n" .. ("%-12s%s"):format(fault, table.concat(line)):gsub("%s+$", "") or "")
   end
   io.write("\n")
end

local function print_reasons(cases, field, title)
   local order, seen = {}, {}
   for _, case in ipairs(cases) do
      local reason = case[field]
      if reason and not seen[reason] then
         seen[reason] = {}
         order[#order + 1] = reason
      end
      if reason then
         local where = field == "impossible" and case.fault or case.fault .. " at " .. case.phase
         if seen[reason][#seen[reason]] ~= where then
            table.insert(seen[reason], where)
         end
      end
   end
   for i, reason in ipairs(order) do
      local places, once = {}, {}
      for _, where in ipairs(seen[reason]) do
         places[#places + 1] = not once[where] and where or nil
         once[where] = true
      end
      io.write(i == 1 and "\n" .. title .. "\n" or "", ("  %s: %s\n"):format(table.concat(places, ", "), reason))
   end
end

local function print_wrong(cases)
   for _, case in ipairs(cases) do
      for i, text in ipairs(case.wrong or {}) do
         if i == 1 then
            io.write(("\nWRONG: %s\n"):format(command_of(case)))
         end
         io.write("  ", text, "\n")
      end
   end
end

local function print_crowds(crowds)
   for i, crowd in ipairs(crowds) do
      local with = ("%s%s"):format(crowd.secure and ", with a key" or "", crowd.strangers > 0 and (", %d strangers meanwhile"):format(
         crowd.strangers) or "")
      local took = crowd.bad > 0 and "WRONG: " .. crowd.text or ("ready %.2f s after the first began, %.2f s after the last"):format(
         crowd.seconds, crowd.seconds_from_the_last)
      io.write(i == 1 and "\n" or "", ("%d ranks%s: %s\n"):format(crowd.ranks, with, took))
   end
end

-- ---- all of it ----

read_arguments()
if build == "--arguments" then -- they are good; what runs is not built yet
   os.exit(0)
end
local filtered = options.phase or options.fault or options.victim or options.sample
local cases = options.crowd and not filtered and {} or make_cases()
local seconds = run(cases)
local crowds = (options.crowd or not filtered) and run_crowds() or {}
local counts = {crowds = #crowds, cases = 0, wrong = 0, pending = 0, impossible = 0, blind = 0, lost = 0}
for _, case in ipairs(cases) do
   local kind = case.impossible and "impossible" or case.pending and "pending" or "cases"
   counts[kind] = counts[kind] + 1
   counts.wrong = counts.wrong + (case.wrong and #case.wrong > 0 and 1 or 0)
   counts.lost = counts.lost + ((case.lost or 0) > 0 and 1 or 0)
   counts.blind = counts.blind + (case.said and case.said.shared_memory < 0 and 1 or 0)
end
for _, crowd in ipairs(crowds) do
   counts.wrong = counts.wrong + (crowd.bad > 0 and 1 or 0)
end
if options.json then
   io.write(cjson.encode({cases = cases, crowds = crowds, counts = counts, seconds = seconds, beat_s = options.beat}), "\n")
else
   if #cases > 0 then
      print_cells(cases)
      print_worst(cases)
   end
   print_reasons(cases, "impossible", "- : cannot exist")
   print_reasons(cases, "pending", "pending: not on this machine")
   print_wrong(cases)
   print_crowds(crowds)
   io.write(counts.blind > 0 and ("\n/dev/shm was not looked at in %d cases: that wants root\n"):format(counts.blind) or "")
   io.write(counts.lost > 0 and ("\n*: a process lost its GPU within a reshard and said so: it must be started anew (%d cases)\n"):format(
      counts.lost) or "")
   io.write(("\n%d cases, %d wrong, %d pending, %d that cannot exist, in %.0f s with beats of %g s\n"):format(counts.cases, counts.wrong,
      counts.pending, counts.impossible, seconds, options.beat))
end
os.exit(counts.wrong == 0 and counts.cases + counts.pending + counts.crowds > 0 and 0 or 1)
