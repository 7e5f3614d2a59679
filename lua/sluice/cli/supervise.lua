--- Starts ranks as processes of this program, reads what they report, and ends all of them when one fails or when the user
-- wants so. Whatever happens, no rank is left: the last one is reaped before `run` returns, and should this process die, the
-- kernel ends them (src/cli/process.c).

local cjson = require "cjson"
local native = require "sluice.native"
local fault = require "sluice.cli.fault"

local supervise = {}

local SIGKILL, SIGTERM, SIGCONT = 9, 15, 18
local TICK_MS = 100
local LONGEST_TICK_S = 0.5 -- of what counts as silence: while this process is stopped itself, it hears nobody
local LEAST_SILENCE_S = 5 -- ranks are heard of every second (src/cli/line.c)
local START_S = 60 -- until a rank is first heard of; and more, the more ranks start together
local START_EACH_S = 0.1
local LONGEST_LINE = 16 * 1024 * 1024
local OK_TO_FOLLOW = { [5] = true, [6] = true, [10] = true } -- timeout, peer, cancelled: mostly the echo of another's failure

local signal_names = { [1] = "SIGHUP", [2] = "SIGINT", [4] = "SIGILL", [6] = "SIGABRT", [7] = "SIGBUS", [8] = "SIGFPE",
   [9] = "SIGKILL", [11] = "SIGSEGV", [13] = "SIGPIPE", [15] = "SIGTERM", [31] = "SIGSYS" }

local group = {}
group.__index = group

local function signal_text(number)
   return ("signal %d%s"):format(number, signal_names[number] and " (" .. signal_names[number] .. ")" or "")
end

function group:send(number)
   for _, child in ipairs(self.children) do
      if not child.ended then
         native.kill(child.pidfd, number)
         child.sent[number] = true
      end
   end
end

-- Asks all ranks to end; those that do not within the grace are killed.
function group:stop()
   if not self.deadline then
      self.deadline = native.monotonic() + self.grace_s
      self:send(SIGTERM)
      self:send(SIGCONT) -- a rank that is stopped acts on nothing before
   end
end

-- names: the rank that the error is of, where it says so. After a rank was killed on purpose the others end by themselves.
function group:fail(child, weight, text, exit, names)
   local seconds = self.struck and native.monotonic() - self.struck
   self.failures[#self.failures + 1] = { rank = child.rank, weight = weight, text = text, exit = exit, number = #self.failures,
                                         names = names, seconds = seconds }
   if not self.struck then
      self:stop()
   end
end

-- Kills the rank that is to be killed, once it is time.
function group:strike()
   if self.strike_at and native.monotonic() >= self.strike_at then
      self.strike_at, self.struck = nil, native.monotonic()
      local child = self.children[self.kill.rank + 1]
      native.kill(child.pidfd, SIGKILL)
      child.sent[SIGKILL] = true
   end
end

function group:take_line(child, line)
   local good, event = pcall(cjson.decode, line)
   if not good or type(event) ~= "table" then
      return self:fail(child, 2, "it reported what is no event: " .. line:sub(1, 200), 1)
   end
   if event.event == "alive" then
      return nil
   elseif event.event == "failed" then
      child.said = true
      local weight = event.code == 10 and 5 or OK_TO_FOLLOW[event.code] and 3 or 2
      return self:fail(child, weight, event.text, event.exit, event.rank)
   end
   if event.event == "waiting" then
      self:meet(event.update)
   end
   self.on_event(child.rank, event)
end

-- When all ranks wait, all may go on.
function group:meet(update)
   self.waiting = self.waiting + 1
   if self.struck then -- too late: the update was over
      self:stop()
   elseif self.waiting == self.count then
      self.waiting = 0
      self.strike_at = self.kill and update == self.kill.update and native.monotonic() + self.kill.after_s() or nil
      for _, child in ipairs(self.children) do
         if child.report then
            native.let_go(child.report)
         end
      end
   end
end

-- Everything that can be read now; false at the end of the pipe.
function group:drain(child)
   while true do
      local bytes = native.read(child.report)
      if not bytes then
         return true
      elseif bytes == "" or #child.rest > LONGEST_LINE then
         return false
      end
      local from = 1
      child.heard, child.began = self.clock, true
      child.rest = child.rest .. bytes
      while true do
         local stop = child.rest:find("\n", from, true)
         if not stop then
            break
         end
         self:take_line(child, child.rest:sub(from, stop - 1))
         from = stop + 1
      end
      child.rest = child.rest:sub(from)
   end
end

function group:close_report(child)
   if child.report then
      self.by_fd[child.report] = nil
      native.close(child.report)
      child.report = nil
   end
end

function group:reap(child)
   local how, number = native.reap(child.pid)
   if not how then
      return
   end
   child.ended = true
   if child.report then
      self:drain(child)
      self:close_report(child)
   end
   self.by_fd[child.pidfd] = nil
   native.close(child.pidfd)
   self.alive = self.alive - 1
   if how == "signal" then
      local ours = child.sent[number]
      self:fail(child, ours and 5 or 1, "killed by " .. signal_text(number), ours and 130 or 1)
   elseif number ~= 0 and not child.said then
      self:fail(child, 4, "it ended with exit code " .. number, number == 2 and 2 or 1)
   end
end

function group:take_signals()
   while native.next_signal(self.signals) do
      if self.cancelled then
         self:send(SIGKILL)
      end
      self.cancelled = true
      self:stop()
   end
end

-- Whether the process stands still by a signal or a debugger.
local function stopped(child)
   local file = io.open(("/proc/%d/stat"):format(child.pid))
   local text = file and file:read("*l")
   if file then
      file:close()
   end
   return text ~= nil and text:match("^.*%) ([Tt]) ") ~= nil
end

function group:check_silence()
   for _, child in ipairs(self.children) do
      local silent = self.clock - child.heard
      if not child.ended and silent > self.silence_s and (child.began or silent > self.start_s or stopped(child)) then
         self:fail(child, 1, ("nothing was heard of it for %d s%s"):format(math.floor(silent), stopped(child) and ": it is stopped" or ""), 1)
         native.kill(child.pidfd, SIGKILL)
         child.sent[SIGKILL] = true
      end
   end
end

-- Time as silence counts it. Ranks are looked at only after everything that they sent was read.
function group:tick()
   local now = native.monotonic()
   self.clock = self.clock + math.min(now - self.now, LONGEST_TICK_S)
   self.now = now
   if not self.deadline and self.clock > self.look_at then
      self.look_at = self.clock + LONGEST_TICK_S
      self:check_silence()
   end
end

function group:step()
   local list = { self.signals }
   for fd in pairs(self.by_fd) do
      list[#list + 1] = fd
   end
   local wait_ms = self.strike_at and math.max(0, math.floor((self.strike_at - native.monotonic()) * 1e3)) or TICK_MS
   local ready = native.poll(list, math.min(wait_ms, TICK_MS))
   self:strike()
   for _, fd in ipairs(ready) do
      local child = self.by_fd[fd]
      if fd == self.signals then
         self:take_signals()
      elseif child and fd == child.report then
         if not self:drain(child) then
            self:close_report(child)
         end
      elseif child then
         self:reap(child)
      end
   end
   self:tick()
   if self.deadline and self.now > self.deadline then
      self:send(SIGKILL)
   end
   self.on_tick()
end

function group:start(rank, spec)
   local pid, pidfd, report = native.spawn(spec.arguments, spec.environment, spec.descriptors)
   if not pid then
      self:fail({ rank = rank }, 1, pidfd, 1)
      return
   end
   local child = { rank = rank, pid = pid, pidfd = pidfd, report = report, rest = "", sent = {}, heard = 0, began = false }
   self.children[#self.children + 1] = child
   self.by_fd[pidfd], self.by_fd[report] = child, child
   self.alive = self.alive + 1
end

-- The failure that the others follow from: the heaviest kind, and of these the first.
local function cause(failures)
   table.sort(failures, function(a, b)
      if a.weight ~= b.weight then
         return a.weight < b.weight
      end
      return a.number < b.number
   end)
   return failures[1]
end

--- Starts one process a rank and waits for all.
-- @param ranks a list of { arguments =, environment =, descriptors = }; the first is rank 0
-- @param options on_event(rank, event), on_tick(), started(), grace_s, and silence_s: how long a rank may say nothing; kill: { rank =,
--    update =, after_s = function }: that rank is killed so many seconds after all went on into that update
-- @return nil when every rank ended well; else { rank =, text =, exit =, others = how many more failed }; whether the user
--    ended it; and all failures: { rank =, text =, names = the rank that the error is of, seconds = since the kill }
function supervise.run(ranks, options)
   local self = setmetatable({
      children = {}, by_fd = {}, alive = 0, count = #ranks, waiting = 0, failures = {}, cancelled = false, grace_s = options.grace_s or 5,
      kill = options.kill, on_event = options.on_event, on_tick = options.on_tick or function() end,
      silence_s = math.max(options.silence_s, LEAST_SILENCE_S), clock = 0, look_at = 0, now = native.monotonic(),
      signals = fault.check(native.signals()),
   }, group)
   self.start_s = math.max(self.silence_s, START_S) + START_EACH_S * self.count
   for i, spec in ipairs(ranks) do
      if self.deadline then
         break
      end
      self:start(i - 1, spec)
      self:take_signals()
   end
   if options.started then
      options.started()
   end
   self.now = native.monotonic()
   while self.alive > 0 do
      self:step()
   end
   self:take_signals()
   native.close(self.signals)
   local first = cause(self.failures)
   if first then
      local counted = { [first.rank] = true }
      first.others = 0
      for _, failure in ipairs(self.failures) do -- a rank may fail twice: by its word, and by how it ends
         first.others = first.others + (counted[failure.rank] and 0 or 1)
         counted[failure.rank] = true
      end
   end
   return first, self.cancelled, self.failures
end

return supervise
