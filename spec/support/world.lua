--- Runs ranks as real processes and gathers what each came to. A rank is a Lua function in a forked child that uses the
-- public C API through ffi; what it returns travels back as JSON.
--
--    local results = world.run(3, function(rank) ... return {status = 0} end, {timeout = 20})
--    results[0].status
--
-- A rank that raises gives {raised = "text"}; one that is killed gives {signal = 9}; one that is still there at the deadline
-- is killed and gives {timeout = true}.

local cjson = require "cjson"
local ffi = require "ffi"
local inside = require "spec.support.inside"
local signal = require "posix.signal"
local unistd = require "posix.unistd"
local poll = require "posix.poll"
local ports = require "spec.support.ports"
local wait = require "posix.sys.wait"
local time = require "posix.time"

local world = {}

local function now()
   local t = time.clock_gettime(time.CLOCK_MONOTONIC)
   return t.tv_sec + t.tv_nsec * 1e-9
end

local function write_all(fd, text)
   while #text > 0 do
      local written = unistd.write(fd, text)
      if not written then
         return
      end
      text = text:sub(written + 1)
   end
end

local function start(rank, body)
   local reader, writer = unistd.pipe()
   local pid = assert(unistd.fork())
   if pid == 0 then
      unistd.close(reader)
      local good, result = xpcall(body, debug.traceback, rank)
      if not good then
         result = {raised = type(result) == "table" and result.text or tostring(result)}
      end
      write_all(writer, cjson.encode(result or {}))
      unistd._exit(0)
   end
   unistd.close(writer)
   return {rank = rank, pid = pid, fd = reader, text = {}}
end

local function collect(child, deadline)
   while true do
      local left = math.max(0, math.ceil((deadline - now()) * 1000))
      if poll.rpoll(child.fd, left) == 0 then
         signal.kill(child.pid, signal.SIGKILL)
         child.late = true
      end
      local text = unistd.read(child.fd, 65536)
      if not text or text == "" then
         break
      end
      table.insert(child.text, text)
   end
   unistd.close(child.fd)
   local _, how, code = wait.wait(child.pid)
   if child.late then
      return {timeout = true}
   elseif how == "killed" then
      return {signal = code}
   end
   return cjson.decode(table.concat(child.text))
end

--- Starts `count` ranks of `body` and returns their results by rank. options.timeout is in seconds (30);
-- options.meanwhile(children) runs in the parent while they live, with the pid of each.
function world.run(count, body, options)
   options = options or {}
   inside.declare("sluice.h")
   local deadline = now() + (options.timeout or 30)
   local children, results = {}, {}
   for rank = 0, count - 1 do
      children[rank] = start(rank, body)
   end
   local good, problem = true, nil
   if options.meanwhile then
      good, problem = pcall(options.meanwhile, children)
   end
   for rank = 0, count - 1 do
      results[rank] = collect(children[rank], deadline)
      local raised = not good and type(results[rank]) == "table" and results[rank].raised
      problem = raised and ("%s; rank %d raised: %s"):format(tostring(problem), rank, raised) or problem
   end
   if not good then
      error(problem, 0)
   end
   return results
end

world.now = now

--- Sleeps for some seconds.
function world.sleep(seconds)
   local till = now() + seconds
   while now() < till do
      poll.rpoll(-1, math.max(1, math.floor((till - now()) * 1000)))
   end
end

--- A gate between processes that are forked later: pass() waits until another one has called open(), for `passes` of them at most.
-- So that what comes second comes second on a busy machine, too.
-- @param seconds how long it waits (20)
function world.gate(seconds)
   seconds = seconds or 20
   local reader, writer = unistd.pipe()
   local gate = {}
   function gate.open(passes)
      unistd.write(writer, ("."):rep(passes or 1))
   end
   function gate.pass()
      assert(poll.rpoll(reader, seconds * 1000) == 1, ("nobody opened the gate within %d s"):format(seconds))
      unistd.read(reader, 1)
   end
   function gate.close()
      unistd.close(reader)
      unistd.close(writer)
   end
   return gate
end

--- Goes through the memory of a process that a core dump would show: from and to, as numbers.
function world.dumped(pid)
   local regions, from, to, readable = {}, nil, nil, nil
   for line in io.lines(("/proc/%d/smaps"):format(pid)) do
      local low, high, mode = line:match("^(%x+)%-(%x+) (%S+)")
      if low then
         from, to, readable = tonumber(low, 16), tonumber(high, 16), mode:sub(1, 1) == "r"
      else
         local flags = line:match("^VmFlags:(.*)")
         if flags and readable and not (flags .. " "):find(" dd ", 1, true) and not (flags .. " "):find(" io ", 1, true) then
            regions[#regions + 1] = {from, to}
         end
      end
   end
   local i = 0
   return function()
      i = i + 1
      return regions[i] and regions[i][1], regions[i] and regions[i][2]
   end
end

--- Whether another process has a text in its memory from one address to another; and how many bytes could be read there.
function world.holds(pid, from, to, text)
   local file = assert(io.open(("/proc/%d/mem"):format(pid), "rb"))
   local found, seen, before = false, 0, ""
   local piece = file:seek("set", from) and file:read(math.min(to - from, 2 ^ 22))
   while piece do
      seen = seen + #piece
      found = found or (before .. piece):find(text, 1, true) ~= nil
      before = piece:sub(1 - #text)
      piece = from + seen < to and file:read(math.min(to - from - seen, 2 ^ 22)) or nil
   end
   file:close()
   return found, seen
end

--- A port of the loopback interface, held as ports.hold does, and a socket that listens there, for rank 0's listen_fd.
function world.listen()
   local socket, port = require "posix.sys.socket", ports.hold()
   local fd = assert(socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0))
   assert(socket.setsockopt(fd, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1))
   assert(socket.bind(fd, {family = socket.AF_INET, addr = "127.0.0.1", port = port}))
   assert(socket.listen(fd, 64))
   return fd, port
end

--- Seals an init info given as a Lua table; raises with the library's text where it is refused.
function world.seal(info)
   local C, err = inside.declare("sluice.h"), inside.error()
   local text, sealed = type(info) == "string" and info or cjson.encode(info), ffi.new("char *[1]")
   if C.sluice_seal_init_info(text, #text, sealed, err) ~= 0 then
      error(inside.text(err), 2)
   end
   local json = ffi.string(sealed[0])
   C.sluice_free(sealed[0])
   return json
end

return world
