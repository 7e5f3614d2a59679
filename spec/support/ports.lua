--- Ports of the loopback interface for those who must be told one before anybody listens on it, or who listen there again.

local fcntl = require "posix.fcntl"
local socket = require "posix.sys.socket"
local unistd = require "posix.unistd"

local ports = {}

local KEPT, kept = 8, {} -- as many at most: more than any spec needs at once, and few of what a process may have open

-- Bound, not listening: nobody is given the port by the system or takes it without SO_REUSEADDR, and rank 0, which sets that, can listen.
local function bind(family, address, number)
   local fd = assert(socket.socket(family, socket.SOCK_STREAM, 0))
   if not socket.bind(fd, { family = family, addr = address, port = number }) then
      unistd.close(fd)
      return nil
   end
   assert(socket.setsockopt(fd, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)) -- not before: two who do would both be given it
   assert(fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC))
   return fd
end

local function keep(held)
   for _, fd in ipairs(held) do
      table.insert(kept, fd)
   end
   while #kept > KEPT do
      unistd.close(table.remove(kept, 1))
   end
end

--- The first of `count` ports in a row (default 1), which nobody else is given until others were asked for, or this process ends.
-- @param[opt] count
-- @param[opt] family AF_INET, or AF_INET6 with
-- @param[opt] address an address of it
function ports.hold(count, family, address)
   family, address = family or socket.AF_INET, address or "127.0.0.1"
   for _ = 1, 1000 do
      local held = { (assert(bind(family, address, 0), "no port is free")) }
      local first = socket.getsockname(held[1]).port
      for i = 2, count or 1 do
         held[i] = held[i - 1] and bind(family, address, first + i - 1)
      end
      if #held == (count or 1) then
         keep(held)
         return first
      end
      for _, fd in ipairs(held) do
         unistd.close(fd)
      end
   end
   error("no " .. count .. " ports in a row are free")
end

return ports
