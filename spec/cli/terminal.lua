--- Runs the sluice program at a pseudo terminal, for specs that press keys: what it shows is what a person would see.

local fcntl = require "posix.fcntl"
local poll = require "posix.poll"
local program = require "spec.cli.program"
local signal = require "posix.signal"
local stdlib = require "posix.stdlib"
local time = require "posix.time"
local unistd = require "posix.unistd"
local wait = require "posix.sys.wait"

local terminal = {}
terminal.__index = terminal

local running = {}

local function now()
   local t = time.clock_gettime(time.CLOCK_MONOTONIC)
   return t.tv_sec + t.tv_nsec * 1e-9
end

local function become(slave, arguments, environment)
   unistd.setpid("s")
   local fd = fcntl.open(slave, fcntl.O_RDWR) -- becomes the session's terminal
   for number = 0, 2 do
      unistd.dup2(fd, number)
   end
   for name, value in pairs(environment) do
      stdlib.setenv(name, value or nil, true)
   end
   unistd.exec(program.path, arguments)
   unistd._exit(126)
end

--- Starts the program with arguments and, over this environment, `environment` (false unsets).
function terminal.start(arguments, environment)
   local master = assert(stdlib.openpt(fcntl.O_RDWR + fcntl.O_NOCTTY))
   assert(stdlib.grantpt(master))
   assert(stdlib.unlockpt(master))
   local slave = assert(stdlib.ptsname(master))
   local pid = assert(unistd.fork())
   if pid == 0 then
      unistd.close(master)
      become(slave, arguments, environment)
   end
   local self = setmetatable({ pid = pid, fd = master, all = "", from = 1 }, terminal)
   running[self] = true
   return self
end

-- Takes what there is, waiting for it up to `seconds`; false at the end.
function terminal:take(seconds)
   if poll.rpoll(self.fd, math.floor(seconds * 1000)) == 0 then
      return true
   end
   local text = unistd.read(self.fd, 65536)
   if not text or text == "" then
      return false
   end
   self.all = (self.all .. text):gsub("\r+\n", "\n")
   return true
end

--- Presses keys.
function terminal:send(keys)
   unistd.write(self.fd, keys)
   return self
end

--- Waits until `text` is shown behind what was waited for before; raises where it is not.
-- @return what was shown up to its end
function terminal:expect(text, seconds)
   local deadline = now() + (seconds or 60)
   while true do
      local _, last = self.all:find(text, self.from, true)
      if last then
         local shown = self.all:sub(self.from, last)
         self.from = last + 1
         return shown
      end
      if now() > deadline or not self:take(0.2) then
         error(("%q was not shown; shown was %q"):format(text, self.all:sub(self.from)), 2)
      end
   end
end

--- Waits for the end; how it came ("exited" or "killed") and the exit code or signal.
function terminal:ended(seconds)
   local deadline = now() + (seconds or 60)
   while self:take(0.1) and now() < deadline do
   end
   local how, code
   program.until_true(5, function()
      local pid
      pid, how, code = wait.wait(self.pid, wait.WNOHANG)
      return pid == self.pid and how ~= "running"
   end)
   self:close()
   return how, code
end

--- The exit code at the end; nil where it did not end by itself.
function terminal:finish(seconds)
   local how, code = self:ended(seconds)
   return how == "exited" and code or nil
end

function terminal:close()
   if running[self] then
      running[self] = nil
      pcall(signal.kill, self.pid, signal.SIGKILL)
      wait.wait(self.pid, wait.WNOHANG)
      unistd.close(self.fd)
   end
end

--- Ends what a failed spec left running.
function terminal.cleanup()
   for self in pairs(running) do
      self:close()
   end
end

return terminal
