local ffi = require "ffi"
local inside = require "spec.support.inside"
local control = require "spec.support.control"
local socket = require "posix.sys.socket"
local unistd = require "posix.unistd"

describe("channel", function()
   local C = control.open()
   local here, there

   -- A channel on one end of a pair; the other end is a plain socket.
   local function open(longest)
      local a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM, 0)
      local made = ffi.new("slc_channel *[1]")
      assert.equal(0, C.slc_channel_open(a, longest or 0, made, nil))
      here, there = made[0], b
      return here, there
   end

   after_each(function()
      C.slc_channel_close(here)
      here = nil
      if there then
         unistd.close(there)
      end
   end)

   local function take()
      local frame, got, err = ffi.new("slc_frame"), ffi.new("bool[1]"), inside.error()
      local status = tonumber(C.slc_channel_take(here, frame, got, err))
      if status ~= 0 then
         return status, inside.text(err)
      end
      if not got[0] then
         return 0, nil
      end
      local payload = frame.header.length > 0 and ffi.string(frame.payload, frame.header.length) or ""
      local type, tag = tonumber(frame.header.type), tonumber(frame.header.tag)
      C.slc_frame_clear(frame)
      return 0, {type = type, tag = tag, payload = payload}
   end

   it("takes a frame that comes byte by byte", function()
      open()
      local bytes = control.frame({type = "abort", tag = 3, payload = "why"})
      for i = 1, #bytes - 1 do
         socket.send(there, bytes:sub(i, i))
         assert.same({0, nil}, {take()})
      end
      socket.send(there, bytes:sub(-1))
      assert.same({0, {type = 6, tag = 3, payload = "why"}}, {take()})
   end)

   it("takes frames that come in one piece, one a call", function()
      open()
      control.send(there, control.frame({type = "leave"}) .. control.frame({type = "envelope", tag = 5, payload = "x"}))
      assert.same({0, {type = 7, tag = 0, payload = ""}}, {take()})
      assert.same({0, {type = 4, tag = 5, payload = "x"}}, {take()})
      assert.same({0, nil}, {take()})
   end)

   it("says which end was met: between frames, in a header, in a payload", function()
      for _, bytes in ipairs({"", "SLCE", control.frame({type = "abort", payload = "abc"}):sub(1, -2)}) do
         open()
         control.send(there, bytes)
         unistd.close(there)
         there = nil
         assert.same({control.status.peer, "control: a local socket ended the connection"}, {take()})
         C.slc_channel_close(here)
      end
      open()
   end)

   it("refuses a payload beyond its own bound until that is raised", function()
      open(10)
      control.send(there, control.frame({type = "join", payload = ("a"):rep(11)}))
      assert.same({control.status.invalid, "frame: length (11) of type join must be at most 10 here"}, {take()})
      C.slc_channel_close(here)
      unistd.close(there)
      open(10)
      C.slc_channel_bound(here, 0)
      control.send(there, control.frame({type = "join", payload = ("a"):rep(11)}))
      assert.same({0, {type = 1, tag = 0, payload = ("a"):rep(11)}}, {take()})
   end)

   it("does not allocate what a header only claims", function()
      open()
      control.send(there, control.frame({type = "verdict", length = 2 ^ 30, payload = "a few bytes"}))
      local function kilobytes()
         return tonumber(assert(io.open("/proc/self/statm")):read("*l"):match("^%d+")) * 4
      end
      local before = kilobytes()
      assert.same({0, nil}, {take()})
      assert.is_true(kilobytes() - before < 1024)
   end)

   it("carries a frame larger than any socket buffer while both ends take turns", function()
      local a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM, 0)
      local made = ffi.new("slc_channel *[2]")
      assert.equal(0, C.slc_channel_open(a, 0, made, nil))
      assert.equal(0, C.slc_channel_open(b, 0, made + 1, nil))
      here, there = made[0], nil
      local sender = made[1]
      local body = ("0123456789abcdef"):rep(2 ^ 18) -- 4 MiB
      local left = ffi.new("size_t[1]")
      assert.equal(0, C.slc_channel_put(sender, control.frame_type.envelope, 1, body, #body, nil))
      assert.equal(#body + 24, tonumber(C.slc_channel_queued(sender)))
      local status, frame
      repeat
         assert.equal(0, C.slc_channel_flush(sender, left, nil))
         status, frame = take()
      until frame or status ~= 0
      assert.is_true(frame.payload == body)
      assert.equal(0, tonumber(C.slc_channel_queued(sender)))
      C.slc_channel_close(sender)
   end)

   it("keeps frames in order when many wait", function()
      open()
      for i = 1, 50 do
         assert.equal(0, C.slc_channel_put(here, control.frame_type.abort, i, ("x"):rep(i), i, nil))
      end
      local left = ffi.new("size_t[1]")
      assert.equal(0, C.slc_channel_flush(here, left, nil))
      assert.equal(0, tonumber(left[0]))
      for i = 1, 50 do
         local frame = control.read_frame(there)
         assert.same({version = 1, type = 6, tag = i, payload = ("x"):rep(i)}, frame)
      end
   end)

   it("refuses to put more than a type allows", function()
      open()
      local err = inside.error()
      assert.equal(control.status.invalid, C.slc_channel_put(here, control.frame_type.leave, 0, ("x"):rep(65), 65, err))
      assert.equal("control: a leave frame of 65 bytes must have at most 64", inside.text(err))
      assert.equal(0, tonumber(C.slc_channel_queued(here)))
   end)

   it("says so when the other end is gone while it writes", function()
      open()
      unistd.close(there)
      there = nil
      local left, err = ffi.new("size_t[1]"), inside.error()
      C.slc_channel_put(here, control.frame_type.leave, 0, nil, 0, nil)
      assert.equal(control.status.peer, C.slc_channel_flush(here, left, err))
      assert.equal("control: a local socket ended the connection", inside.text(err))
      assert.equal(24, tonumber(left[0]))
   end)

   it("waits no longer than the deadline, and not at all once cancelled", function()
      open()
      local frame, err = ffi.new("slc_frame"), inside.error()
      assert.equal(control.status.timeout, C.slc_channel_receive(here, frame, C.slc_deadline_in(0.05), nil, err))
      assert.equal("control: waiting for a local socket took longer than 0.05 s", inside.text(err))
      local cancelled = ffi.new("bool[1]", true)
      assert.equal(control.status.cancelled, C.slc_channel_receive(here, frame, C.slc_deadline_in(10), cancelled, err))
      assert.equal("control: cancelled while waiting for a local socket", inside.text(err))
      local body = ("x"):rep(2 ^ 24)
      assert.equal(control.status.timeout,
                   C.slc_channel_send(here, control.frame_type.envelope, 0, body, #body, C.slc_deadline_in(0.05), nil, err))
      assert.equal("control: sending to a local socket took longer than 0.05 s", inside.text(err))
   end)

   it("names the other end of a TCP connection", function()
      local world = require "spec.support.world"
      local listener, port = world.listen()
      local made = ffi.new("slc_channel *[1]")
      assert.equal(0, C.slc_channel_open(control.connect(port), 0, made, nil))
      here, there = made[0], listener
      assert.equal("127.0.0.1:" .. port, ffi.string(C.slc_channel_peer(here)))
   end)

   it("closes a descriptor that it cannot take over", function()
      open()
      local made, err = ffi.new("slc_channel *[1]"), inside.error()
      assert.equal(control.status.system, C.slc_channel_open(987654, 0, made, err))
      assert.equal("control: cannot take over descriptor 987654: Bad file descriptor", inside.text(err))
      assert.is_true(made[0] == nil)
   end)
end)
