--- Who asks an engine at its Unix socket (src/control/door.h), well or badly behaved.

local cjson = require "cjson"
local errno = require "posix.errno"
local poll = require "posix.poll"
local signal = require "posix.signal"
local socket = require "posix.sys.socket"
local unistd = require "posix.unistd"

local door = {}

--- A connection, or nil and why there is none.
function door.connect(path)
   local fd = assert(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0))
   local good, problem = socket.connect(fd, { family = socket.AF_UNIX, path = path })
   if not good then
      unistd.close(fd)
      return nil, problem
   end
   return fd
end

--- Sends bytes; a door that has hung up takes none.
function door.send(fd, text)
   local before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
   local sent = socket.send(fd, text)
   signal.signal(signal.SIGPIPE, before)
   return sent
end

--- All that comes until the other side ends, at most `seconds` without a byte.
function door.hear(fd, seconds)
   local parts = {}
   while poll.rpoll(fd, (seconds or 20) * 1000) == 1 do
      local text, _, code = socket.recv(fd, 65536)
      if not text or text == "" then
         return table.concat(parts), text == "" or code == errno.ECONNRESET
      end
      parts[#parts + 1] = text
   end
   return table.concat(parts), false
end

--- One question; its answer without the first line, or nil and the reason that it was refused for.
function door.ask(path, word)
   local fd, problem = door.connect(path)
   if not fd then
      return nil, problem
   end
   door.send(fd, ("sluice attach 1 %s\n"):format(word))
   local text = door.hear(fd)
   unistd.close(fd)
   local bytes, body = text:match("^ok (%d+)\n(.*)$")
   if not bytes then
      return nil, text:match("^no (.*)\n$") or "no answer: " .. text
   end
   assert(#body == tonumber(bytes), "the answer has another length than it says")
   return body
end

--- Where the engine says that it stands.
function door.status(path)
   local body, problem = door.ask(path, "status")
   return body and cjson.decode(body), problem
end

return door
