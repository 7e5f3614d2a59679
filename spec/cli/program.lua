--- Runs the sluice program for specs: each in a process group of its own, so that what it leaves behind can be seen.
-- The program is SLUICE_PROGRAM, or build/sluice.

local assert = require "luassert"
local cjson = require "cjson"
local files = require "scripts.files"
local shell = require "scripts.shell"
local signal = require "posix.signal"
local stdlib = require "posix.stdlib"
local unistd = require "posix.unistd"
local wait = require "posix.sys.wait"
local fcntl = require "posix.fcntl"
local time = require "posix.time"
local dirent = require "posix.dirent"
local with = require "spec.support.with"

local program = { path = os.getenv("SLUICE_PROGRAM") or "build/sluice" }

local process = {}
process.__index = process

local function now()
   local t = time.clock_gettime(time.CLOCK_MONOTONIC)
   return t.tv_sec + t.tv_nsec * 1e-9
end

local made, running = {}, {}

--- Removes the temporary files that were made so far, and ends what a failed spec left running.
function program.cleanup()
   for pid in pairs(running) do
      signal.killpg(pid, signal.SIGKILL)
      wait.wait(pid)
   end
   running = {}
   for _, path in ipairs(made) do
      os.remove(path)
   end
   made = {}
end

--- A temporary file that holds a text; its path. `ending` is put behind the name.
function program.file(text, ending)
   local path = os.tmpname()
   if ending then
      os.remove(path)
      path = path .. ending
   end
   files.write(path, text)
   made[#made + 1] = path
   return path
end

--- Starts the program with arguments (a list) and, over this environment, `environment` (a table; false unsets).
-- @param[opt] standard_error the descriptor of its standard error; else a file, which `finish` reads
function program.start(arguments, environment, standard_error)
   local self = setmetatable({ out = os.tmpname(), err = os.tmpname() }, process)
   local pid = assert(unistd.fork())
   if pid == 0 then
      unistd.setpid("p", 0, 0)
      for name, value in pairs(environment or {}) do
         stdlib.setenv(name, value or nil, true)
      end
      for number, path in pairs({ [1] = self.out, [2] = self.err }) do
         unistd.dup2(fcntl.open(path, fcntl.O_WRONLY + fcntl.O_TRUNC), number)
      end
      if standard_error then
         unistd.dup2(standard_error, unistd.STDERR_FILENO)
      end
      unistd.exec(program.path, arguments)
      unistd._exit(126)
   end
   self.pid = pid
   running[pid] = true
   pcall(unistd.setpid, "p", pid, pid)
   self:wait_for_exec()
   return self
end

-- Processes of the group that still run: pid and command line.
local function members(group)
   local list = {}
   for name in dirent.files("/proc") do
      local stat = name:match("^%d+$") and files.read("/proc/" .. name .. "/stat")
      local state, pgrp = (stat or ""):match("^%d+ %(.*%) (%a) %d+ (%d+)")
      if tonumber(pgrp) == group and state ~= "Z" and state ~= "X" then
         list[#list + 1] = { pid = tonumber(name), command = (files.read("/proc/" .. name .. "/cmdline") or ""):gsub("%z", " ") }
      end
   end
   return list
end

--- Processes that `pid` started and that still run.
function program.children(pid)
   local list = {}
   for name in dirent.files("/proc") do
      local stat = name:match("^%d+$") and files.read("/proc/" .. name .. "/stat")
      local state, parent = (stat or ""):match("^%d+ %(.*%) (%a) (%d+) ")
      if tonumber(parent) == pid and state ~= "Z" and state ~= "X" then
         list[#list + 1] = tonumber(name)
      end
   end
   return list
end

--- Ranks of this program that run now: { pid =, command = }.
function process:ranks()
   local list = {}
   for _, member in ipairs(members(self.pid)) do
      if member.pid ~= self.pid and member.command:find("%-%-report%-fd") then
         list[#list + 1] = member
      end
   end
   table.sort(list, function(a, b)
      return a.pid < b.pid
   end)
   return list
end

-- The process of rank `number`, once it is there, or nil: ranks need not become programs in their order.
function process:rank(number)
   for _, member in ipairs(self:ranks()) do
      local environment = files.read(("/proc/%d/environ"):format(member.pid)) or ""
      if ("\0" .. environment):find(("\0RANK=%d\0"):format(number), 1, true) then
         return member
      end
   end
end

-- Waits until the forked child is the program: before, a signal would meet busted's own handler.
function process:wait_for_exec()
   local name = program.path:match("[^/]+$")
   program.until_true(10, function()
      local command = files.read(("/proc/%d/cmdline"):format(self.pid)) or ""
      return command == "" or command:match("^[^%z]*"):sub(-#name) == name
   end)
end

--- Waits until check() is true; false after `seconds`.
function program.until_true(seconds, check)
   local deadline = now() + seconds
   while not check() do
      if now() > deadline then
         return false
      end
      time.nanosleep({ tv_sec = 0, tv_nsec = 10000000 })
   end
   return true
end

function process:kill(number)
   signal.kill(self.pid, number)
end

--- What it wrote to standard error so far.
function process:errors()
   return files.read(self.err)
end

--- Waits for the end. Returns { code = or signal =, out =, err =, left = commands of processes that it left }.
function process:finish(seconds)
   local result = {}
   local ended = program.until_true(seconds or 60, function()
      local pid, how, code = wait.wait(self.pid, wait.WNOHANG)
      if pid == self.pid and how ~= "running" then
         result[how == "killed" and "signal" or "code"] = code
         return true
      end
      return false
   end)
   if not ended then
      signal.killpg(self.pid, signal.SIGKILL)
      wait.wait(self.pid)
      result.timeout = true
   end
   running[self.pid] = nil
   -- The kernel may need a moment to end those whose parent was killed.
   program.until_true(5, function()
      return #members(self.pid) == 0
   end)
   result.left = {}
   for _, member in ipairs(members(self.pid)) do
      table.insert(result.left, member.command)
      signal.kill(member.pid, signal.SIGKILL)
   end
   result.out, result.err = files.read(self.out), files.read(self.err)
   os.remove(self.out)
   os.remove(self.err)
   return result
end

--- Runs the program to its end.
function program.run(arguments, environment, seconds)
   return program.start(arguments, environment):finish(seconds)
end

--- Runs a line of shell in which $SLUICE is the program, for what its standard streams are. Returns what it wrote and its code.
function program.shell(line)
   return shell(("SLUICE='%s'; %s"):format(program.path, line))
end

--- The one JSON object of standard output; raises where there is more or less.
function program.json(result)
   assert(select(2, result.out:gsub("\n", "")) == 1 and result.out:sub(-1) == "\n", "not one line: " .. result.out)
   return cjson.decode(result.out)
end

--- The object of a run in which all went well, every byte was right and no process is left.
function program.verified(result)
   assert.equal(0, result.code, result.err)
   assert.same({}, result.left)
   local object = program.json(result)
   assert.is_true(object.verified)
   return object
end

--- A small deployment with `changes` over it, as JSON in a file; its path.
function program.deployment(changes)
   local deployment = with({
      model = { family = "llama", config = { num_hidden_layers = 2, hidden_size = 64, intermediate_size = 128, num_attention_heads = 8,
         num_key_value_heads = 4, vocab_size = 1000 } },
      trainer = { mesh = { { "fsdp", 3 } } }, worker = { mesh = { { "dp", 2 }, { "tp", 2 } } }, updates = 2, timeout_s = 20,
   }, changes)
   return program.file(cjson.encode(deployment))
end

return program
