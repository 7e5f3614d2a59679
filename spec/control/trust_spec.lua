--- Who gets in and who does not: worlds with a key, and everything that tries without one.
-- contract.md: 2 (a stranger is refused by name, the others go on waiting), 5 (a wrong secret, a peer that says nothing).

local control = require "spec.support.control"
local ffi = require "ffi"
local inside = require "spec.support.inside"
local poll = require "posix.poll"
local ports = require "spec.support.ports"
local signal = require "posix.signal"
local socket = require "posix.sys.socket"
local unistd = require "posix.unistd"
local world = require "spec.support.world"

local KEY, OTHER = ("deployment key "):rep(4), ("another secret "):rep(4)
local OFF_LOOPBACK = " is not on the loopback interface: a key must be given (key_file or key_fd), or insecure_control set to true"

describe("trust", function()
   local C = control.open()
   local status = control.status
   local agreed = {status = 0, answer = ""}
   local listener, port

   before_each(function()
      listener, port = world.listen()
   end)

   after_each(function()
      unistd.close(listener)
   end)

   local function join(options)
      options.port, options.listen_fd = options.port or port, options.listen_fd or listener
      return control.join_and_agree(options)
   end

   -- Rank 0 in a process of its own, which gives its result and its log; others(results) runs meanwhile.
   local function with_leader(options, others)
      return world.run(1, function()
         options.rank, options.log = 0, {}
         local result = join(options)
         result.log = table.concat(options.log, "\n")
         return result
      end, {meanwhile = function()
         others()
      end})[0]
   end

   local function join_apart(ranks)
      local results = world.run(#ranks, function(i)
         return join(ranks[i + 1])
      end)
      for i = 0, #ranks - 1 do
         results[i].status = results[i].status or ("raised " .. tostring(results[i].raised))
      end
      return results
   end

   describe("with the same key", function()
      for _, size in ipairs({1, 2, 3, 16}) do
         it(size .. " ranks find each other and agree", function()
            local results = world.run(size, function(rank)
               return join({rank = rank, world = size, key = KEY})
            end)
            for rank = 0, size - 1 do
               assert.same(agreed, results[rank])
            end
         end)
      end

      it("64 ranks find each other and agree", function()
         local results = world.run(64, function(rank)
            return join({rank = rank, world = 64, key = KEY, seconds = 30})
         end, {timeout = 60})
         for rank = 0, 63 do
            assert.same(agreed, results[rank])
         end
      end)

      it("ranks meet over IPv6, and off the loopback interface", function()
         for _, address in ipairs({"::1", "::", "0.0.0.0"}) do
            local six = address:find(":") and socket.AF_INET6 or nil
            local free = ports.hold(1, six, six and "::1")
            local results = world.run(3, function(rank)
               return join({rank = rank, world = 3, address = address, port = free, listen_fd = -1, key = KEY})
            end)
            for rank = 0, 2 do
               assert.same(agreed, results[rank])
            end
         end
      end)

      it("words larger than any buffer come through whole, in both directions", function()
         local body = ("0123456789abcdef"):rep(2 ^ 17) -- 2 MiB
         local results = world.run(3, function(rank)
            local group = assert(control.join({rank = rank, world = 3, port = port, listen_fd = listener, key = KEY}))
            local cards = control.exchange(group, body .. rank, {0, 1, 2})
            local after = control.round(group, {body = "same", judge = "equal"})
            C.slc_group_leave(group)
            return {whole = cards.cards[1] == body .. 0 and cards.cards[2] == body .. 1 and cards.cards[3] == body .. 2, after = after}
         end)
         for rank = 0, 2 do
            assert.same({whole = true, after = agreed}, results[rank])
         end
      end)

      it("many short rounds come through, whatever shares a record", function()
         local results = world.run(4, function(rank)
            local group = assert(control.join({rank = rank, world = 4, port = port, listen_fd = listener, key = KEY, beat_s = 0.25}))
            local good = 0
            for i = 1, 300 do
               good = good + (control.round(group, {body = tostring(i), judge = "equal"}).status == 0 and 1 or 0)
            end
            C.slc_group_leave(group)
            return {good = good}
         end)
         for rank = 0, 3 do
            assert.same({good = 300}, results[rank])
         end
      end)
   end)

   describe("without the same key", function()
      it("a rank hears so at once, and the others go on waiting for the right one #5.2", function()
         local first, second
         local leader = with_leader({world = 2, key = KEY}, function()
            first = join_apart({{rank = 1, world = 2, key = OTHER}})[0]
            second = join_apart({{rank = 1, world = 2, key = KEY}})[0]
         end)
         assert.same({status = status.disagree, rank = -1, stage = "rendezvous",
                      text = "rendezvous: rank 0 at 127.0.0.1:PORT: the TLS handshake with 127.0.0.1:PORT failed: it has another key"}, first)
         assert.same(agreed, second)
         assert.equal(0, leader.status)
         assert.matches("turned away 127%.0%.0%.1:%d+: control: the TLS handshake with [%d.:]+ failed: it has another key %(1 so far%)",
                        leader.log)
      end)

      it("a rank that has none hears that rank 0 has one", function()
         local first, second
         local leader = with_leader({world = 2, key = KEY}, function()
            first = join_apart({{rank = 1, world = 2}})[0]
            second = join_apart({{rank = 1, world = 2, key = KEY}})[0]
         end)
         assert.same({status = status.disagree, rank = -1, stage = "rendezvous",
                      text = "rendezvous: refused: it has no key, and rank 0 has one"}, first)
         assert.same(agreed, second)
         assert.equal(0, leader.status)
         assert.matches("turned away 127%.0%.0%.1:%d+: it has no key, and rank 0 has one %(1 so far%)", leader.log)
      end)

      it("a rank that has one hears that rank 0 has none", function()
         local first, second
         local leader = with_leader({world = 2}, function()
            first = join_apart({{rank = 1, world = 2, key = KEY}})[0]
            second = join_apart({{rank = 1, world = 2}})[0]
         end)
         assert.same({status = status.disagree, rank = -1, stage = "rendezvous",
                      text = "rendezvous: rank 0 at 127.0.0.1:PORT: rank 0 has no key, and this rank has one"}, first)
         assert.same(agreed, second)
         assert.equal(0, leader.status)
         assert.matches("turned away 127%.0%.0%.1:%d+: it has a key, and rank 0 has none %(1 so far%)", leader.log)
      end)
   end)

   -- A client that has the key and proves to be one rank, but may say anything in its join frame.
   local function join_as(proved, proved_world, claim)
      local err, secure, channel = inside.error(), ffi.new("slc_secure *[1]"), ffi.new("slc_channel *[1]")
      local frame, deadline = ffi.new("slc_frame"), C.slc_deadline_in(10)
      assert.equal(0, tonumber(C.slc_secure_create(control.key(KEY), proved, proved_world, secure, err)))
      assert.equal(0, tonumber(C.slc_channel_open(control.connect(port), 0, channel, err)))
      assert.equal(0, tonumber(C.slc_channel_secure(channel[0], secure[0], err)))
      C.slc_secure_release(secure[0])
      assert.equal(0, tonumber(C.slc_channel_handshake(channel[0], deadline, nil, err)), inside.text(err))
      local payload = control.claim(claim)
      assert.equal(0, tonumber(C.slc_channel_send(channel[0], control.frame_type.join, 0, payload, #payload, deadline, nil, err)))
      assert.equal(0, tonumber(C.slc_channel_receive(channel[0], frame, deadline, nil, err)), inside.text(err))
      local said = frame.header.type == control.frame_type.refuse
                      and control.read_error(ffi.string(frame.payload, frame.header.length)).text or "welcome"
      C.slc_frame_clear(frame)
      C.slc_channel_close(channel[0])
      return said
   end

   it("a rank that proved to be another one is refused with both", function()
      local texts, results = {}, nil
      local leader = with_leader({world = 4, key = KEY}, function()
         texts[1] = join_as(2, 4, {rank = 3, world = 4})
         texts[2] = join_as(3, 8, {rank = 3, world = 4})
         texts[3] = join_as(3, 8, {rank = 3, world = 8})
         texts[4] = join_as(7, 4, {rank = 7, world = 4})
         results = join_apart({{rank = 1, world = 4, key = KEY}, {rank = 2, world = 4, key = KEY}, {rank = 3, world = 4, key = KEY}})
      end)
      assert.same({
         "rendezvous: refused: it joins as rank 3 of 4, its handshake was that of rank 2 of 4",
         "rendezvous: refused: it joins as rank 3 of 4, its handshake was that of rank 3 of 8",
         "rendezvous: refused: rank 3 has world size 8, rank 0 has 4",
         "rendezvous: refused: rank (7) must be in [0, 4)",
      }, texts)
      assert.equal(0, leader.status)
      for i = 0, 2 do
         assert.same(agreed, results[i])
      end
   end)

   -- Carries bytes between one client, which connects to `inner`, and rank 0; gives what the client sent until `done` says so.
   local function record(inner, forward_port, pid)
      local client = assert(socket.accept(inner))
      local server, sent = control.connect(forward_port), {}
      local ends = {[client] = server, [server] = client}
      local fds = {[client] = {events = {IN = true}}, [server] = {events = {IN = true}}}
      local deadline = world.now() + 10
      while world.now() < deadline do
         local ready = poll.poll(fds, 50)
         for fd, state in pairs(fds) do
            if ready > 0 and state.revents and (state.revents.IN or state.revents.HUP) then
               local bytes = unistd.read(fd, 65536)
               if not bytes or bytes == "" then
                  unistd.close(client)
                  unistd.close(server)
                  return table.concat(sent)
               end
               sent[#sent + 1] = fd == client and bytes or nil
               control.send(ends[fd], bytes)
            end
         end
         if pid.joined and pid.joined() then
            break
         end
      end
      signal.kill(pid[0].pid, signal.SIGKILL)
      unistd.close(client)
      unistd.close(server)
      return table.concat(sent)
   end

   it("bytes of a handshake and join that worked are worth nothing a second time #5.2", function()
      local inner, inner_port = world.listen()
      local replies, late = {}, nil
      local leader = with_leader({world = 3, key = KEY}, function()
         local sent
         world.run(1, function()
            return join({rank = 1, world = 3, key = KEY, port = inner_port})
         end, {meanwhile = function(children)
            local until_then = world.now() + 0.7 -- by then it has joined and waits for the welcome
            children.joined = function()
               return world.now() > until_then
            end
            sent = record(inner, port, children)
         end})
         assert(#sent > 200)
         for i = 1, 3 do
            local fd = control.connect(port)
            control.send(fd, sent)
            local _, ended = control.read(fd, nil, 5)
            replies[i] = ended
            unistd.close(fd)
         end
         late = join_apart({{rank = 1, world = 3, key = KEY}, {rank = 2, world = 3, key = KEY}})
      end)
      unistd.close(inner)
      assert.same({true, true, true}, replies) -- dropped, not kept
      assert.equal(0, leader.status)
      assert.same(agreed, late[0])
      assert.same(agreed, late[1])
      local _, failures = leader.log:gsub("turned away [%d.:]+: control: the TLS handshake with [%d.:]+ failed: ", "")
      assert.equal(3, failures)
   end)

   it("older versions, other ciphers, certificates and garbage are turned away, and the others go on #5.2", function()
      local hex = KEY:gsub(".", function(c) return ("%02x"):format(c:byte()) end)
      local late
      local tries = {
         "-tls1_2 -psk_identity 'sluice/1 rank 1 of 2' -psk " .. hex, "-tls1_2", "-tls1_3",
         "-tls1_3 -ciphersuites TLS_AES_128_GCM_SHA256 -psk_identity 'sluice/1 rank 1 of 2' -psk " .. hex,
         "-tls1_3 -psk_identity 'sluice/1 rank 1 of 2' -psk " .. hex, "-tls1_3 -psk_identity 'admin' -psk " .. hex,
      }
      local outputs = {}
      local leader = with_leader({world = 2, key = KEY}, function()
         for i, options in ipairs(tries) do
            local pipe = assert(io.popen(("openssl s_client -connect 127.0.0.1:%d %s </dev/null 2>&1"):format(port, options)))
            outputs[i] = pipe:read("*a")
            pipe:close()
         end
         for _, bytes in ipairs({"GET / HTTP/1.1\r\n\r\n", ("\0"):rep(500), "\22\3\1\2\0" .. ("x"):rep(512), ("\255"):rep(70000)}) do
            local fd = control.connect(port)
            control.send(fd, bytes)
            control.read(fd, nil, 1)
            unistd.close(fd)
         end
         late = join_apart({{rank = 1, world = 2, key = KEY}})[0]
      end)
      for i, output in ipairs(outputs) do
         assert.is_nil(output:find("Reused, TLS", 1, true), tries[i] .. "\n" .. output)
         assert.matches("alert", output, 1, true)
      end
      assert.equal(0, leader.status)
      assert.same(agreed, late)
      local _, away = leader.log:gsub("turned away", "")
      assert.is_true(away >= #tries + 4, leader.log)
   end)

   it("200 strangers that stay silent, some of them in the middle of a handshake, do not keep 8 ranks from meeting", function()
      local late
      local hello = "\22\3\1\2\0\1\0\1\252\3\3" .. ("r"):rep(32)
      local leader = with_leader({world = 8, key = KEY}, function()
         local fds = {}
         for i = 1, 200 do
            fds[i] = control.connect(port)
            control.send(fds[i], i % 3 == 0 and "" or hello:sub(1, i % 40))
         end
         local ranks = {}
         for rank = 1, 7 do
            ranks[rank] = {rank = rank, world = 8, key = KEY, seconds = 8} -- strangers would be dropped after 10 s
         end
         late = join_apart(ranks)
         for _, fd in ipairs(fds) do
            unistd.close(fd)
         end
      end)
      assert.equal(0, leader.status)
      for i = 0, 6 do
         assert.same(agreed, late[i])
      end
   end)

   it("no key, whole or in part, is in any line or error", function()
      local texts = {}
      local leader = with_leader({world = 2, key = KEY}, function()
         for _, key in ipairs({OTHER, false, KEY}) do
            local result = join_apart({{rank = 1, world = 2, key = key or nil}})[0]
            texts[#texts + 1] = result.text
         end
      end)
      texts[#texts + 1] = leader.log
      for _, text in ipairs(texts) do
         for _, secret in ipairs({"deployment key", "another secret"}) do
            assert.is_nil(text:find(secret, 1, true))
         end
      end
      assert.equal(3, #texts)
   end)

   describe("off the loopback interface", function()
      for _, address in ipairs({"0.0.0.0", "192.0.2.7", "::"}) do
         local shown = address:find(":") and "[" .. address .. "]" or address
         it("rank 0 and the others are refused at once without a key: " .. address, function()
            for rank = 0, 1 do
               assert.same({status = status.invalid, rank = -1, stage = "rendezvous", text = "rendezvous: " .. shown .. ":" .. port .. OFF_LOOPBACK},
                           join({rank = rank, world = 2, address = address, listen_fd = -1}))
            end
         end)
      end

      it("a listening socket that was handed over counts by its own address", function()
         local open = assert(socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0))
         assert(socket.bind(open, {family = socket.AF_INET, addr = "0.0.0.0", port = 0}))
         assert(socket.listen(open, 8))
         local text = "rendezvous: 0.0.0.0:" .. socket.getsockname(open).port .. OFF_LOOPBACK
         assert.equal(text, join({rank = 0, world = 2, listen_fd = open}).text)
      end)

      it("control that is insecure by name is let through", function()
         local free = ports.hold()
         local results = world.run(2, function(rank)
            return join({rank = rank, world = 2, address = "0.0.0.0", port = free, listen_fd = -1, insecure = true})
         end)
         assert.same(agreed, results[0])
         assert.same(agreed, results[1])
      end)

      it("tells loopback addresses from others", function()
         local count, list = ffi.new("size_t[1]"), ffi.new("slc_endpoint *[1]")
         for address, is in pairs({["127.0.0.1"] = true, ["127.255.1.2"] = true, ["::1"] = true, ["::ffff:127.0.0.1"] = true,
                                   ["128.0.0.1"] = false, ["0.0.0.0"] = false, ["::"] = false, ["::ffff:10.0.0.1"] = false,
                                   ["fe80::1"] = false}) do
            assert.equal(0, tonumber(C.slc_address_resolve(address, 1, C.slc_deadline_in(5), nil, list, count, nil)))
            assert.equal(is, C.slc_address_is_loopback(list[0]), address)
            C.slc_release(list[0])
         end
      end)
   end)
end)
