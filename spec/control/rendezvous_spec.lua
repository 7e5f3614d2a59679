local control = require "spec.support.control"
local fcntl = require "posix.fcntl"
local ffi = require "ffi"
local poll = require "posix.poll"
local ports = require "spec.support.ports"
local resource = require "posix.sys.resource"
local socket = require "posix.sys.socket"
local unistd = require "posix.unistd"
local world = require "spec.support.world"

local function sleep(milliseconds)
   poll.rpoll(-1, milliseconds)
end

describe("rendezvous", function()
   control.open()
   local status = control.status
   local listener, port, gate

   before_each(function()
      listener, port = world.listen()
      gate = world.gate()
   end)

   after_each(function()
      unistd.close(listener)
      gate.close()
   end)

   -- Rank 1 of a world of 2 comes when somebody else has come and opened the gate.
   local function pass(child)
      if child == 1 then
         gate.pass()
      end
   end

   -- Joins as options say, on this case's port, and agrees once when that worked.
   local function join(options)
      options.port, options.listen_fd = options.port or port, options.listen_fd or listener
      return control.join_and_agree(options)
   end

   local agreed = {status = 0, answer = ""}

   local function all_agree(results, first, last)
      for rank = first, last do
         assert.same(agreed, results[rank])
      end
   end

   describe("a world of", function()
      for _, size in ipairs({1, 2, 3, 5, 16}) do
         it(size .. " ranks finds itself and agrees", function()
            all_agree(world.run(size, function(rank)
               return join({rank = rank, world = size})
            end), 0, size - 1)
         end)
      end
   end)

   describe("binds and reaches", function()
      local addresses = {{"127.0.0.1"}, {"localhost"}, {"::1", socket.AF_INET6}, {"[::1]", socket.AF_INET6}, {"0.0.0.0"}, {"::", socket.AF_INET6}}
      for _, case in ipairs(addresses) do
         it(case[1], function()
            local free = ports.hold(1, case[2], case[2] and "::1")
            all_agree(world.run(3, function(rank)
               return join({rank = rank, world = 3, address = case[1], port = free, listen_fd = -1, insecure = true})
            end), 0, 2)
         end)
      end

      local function meets(options, late)
         local free = ports.hold()
         all_agree(world.run(3, function(rank)
            sleep(rank == late and 300 or 0)
            return join({rank = rank, world = 3, port = free, listen_fd = -1, address = options[rank], insecure = true})
         end), 0, 2)
      end

      it("both kinds of address under ::", function()
         meets({[0] = "::", "127.0.0.1", "::1"})
      end)

      it("rank 0 that comes last", function()
         meets({}, 0)
      end)

      it("a rank that comes late", function()
         meets({}, 2)
      end)
   end)

   describe("refuses at once", function()
      it("a port that is taken", function()
         assert.same({status = status.system, rank = -1, stage = "rendezvous",
                      text = "rendezvous: rank 0 cannot listen on 127.0.0.1:PORT: Address already in use"},
                     join({rank = 0, world = 2, listen_fd = -1}))
      end)

      it("an address that this machine does not have", function()
         assert.same({status = status.system, rank = -1, stage = "rendezvous",
                      text = "rendezvous: rank 0 cannot listen on 192.0.2.1:" .. port .. ": Cannot assign requested address"},
                     join({rank = 0, world = 2, listen_fd = -1, address = "192.0.2.1", insecure = true}))
      end)

      it("a name that does not resolve, on every rank", function()
         for rank = 0, 1 do
            local result = join({rank = rank, world = 2, address = "no-such-host.invalid", listen_fd = -1})
            assert.equal(status.invalid, result.status)
            assert.matches('^rendezvous: address "no%-such%-host%.invalid" does not resolve: ', result.text)
         end
      end)

      local options = {
         {"a rank outside its own world", {rank = 2, world = 2}, "rendezvous: rank (2) must be in [0, 2)"},
         {"a negative rank", {rank = -1, world = 2}, "rendezvous: rank (-1) must be in [0, 2)"},
         {"an empty world", {rank = 0, world = 0}, "rendezvous: world size (0) must be at least 1"},
         {"port 0", {rank = 1, world = 2, port = 0}, "rendezvous: port (0) must be in [1, 65535]"},
         {"a bracket without its partner", {rank = 1, world = 2, address = "[::1"},
          'rendezvous: address "[::1" has a bracket without its partner'},
      }
      for _, case in ipairs(options) do
         it(case[1], function()
            case[2].listen_fd = -1
            local result = join(case[2])
            assert.equal(status.invalid, result.status)
            assert.equal(case[3], result.text)
         end)
      end

      it("a listen_fd that does not listen", function()
         local fd = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
         assert.same({status = status.invalid, rank = -1, stage = "rendezvous",
                      text = ("rendezvous: listen_fd (%d) must be a listening TCP socket"):format(fd)},
                     join({rank = 0, world = 2, listen_fd = fd}))
         assert.is_nil((socket.getsockname(fd))) -- taken over also on failure
      end)

      it("a world that has more ranks than rank 0 may have descriptors", function()
         local worlds = {[0] = {1000, 1016}, {2147483647, 2147483663}}
         local results = world.run(2, function(child)
            resource.setrlimit(resource.RLIMIT_NOFILE, {rlim_cur = 64, rlim_max = 64})
            return join({rank = 0, world = worlds[child][1]})
         end)
         for i = 0, 1 do
            assert.same({status = status.system, rank = -1, stage = "rendezvous",
                         text = ("rendezvous: a world of %.0f ranks wants %.0f file descriptors on rank 0, the limit is 64 (ulimit -n)")
                            :format(unpack(worlds[i]))}, results[i])
         end
      end)
   end)

   describe("turns away by name", function()
      -- Rank 0 and rank 1 of a world of 2, and one claimant that comes first.
      local function with_claimant(bytes)
         local results = world.run(3, function(child)
            if child == 2 then
               local fd = control.connect(port)
               control.send(fd, bytes)
               local frame = control.read_frame(fd, 5)
               local said = frame and control.read_error(frame.payload)
               gate.open()
               return {frame = frame and {version = frame.version, type = frame.type}, said = said}
            end
            pass(child)
            return join({rank = child, world = 2})
         end)
         all_agree(results, 0, 1)
         return results[2]
      end

      local claimants = {
         {"a rank outside the world #2.10", {rank = 5, world = 2}, status.invalid, "rank (5) must be in [0, 2)"},
         {"another world size", {rank = 1, world = 3}, status.disagree, "rank 1 has world size 3, rank 0 has 2"},
         {"another protocol version, in that version #2.11", {rank = 1, world = 2, version = 9}, status.unsupported,
          "it speaks protocol version 9, rank 0 speaks 1"},
      }
      for _, case in ipairs(claimants) do
         it(case[1], function()
            assert.same({frame = {version = case[2].version or 1, type = control.frame_type.refuse},
                         said = {status = case[3], rank = 2 ^ 32 - 1, stage = "rendezvous", text = "rendezvous: refused: " .. case[4]}},
                        with_claimant(control.join_frame(case[2])))
         end)
      end

      it("a real rank with another world size", function()
         local results = world.run(3, function(child)
            if child == 2 then
               local refused = join({rank = 1, world = 3})
               gate.open()
               return refused
            end
            pass(child)
            return join({rank = child, world = 2})
         end)
         all_agree(results, 0, 1)
         assert.same({status = status.disagree, rank = -1, stage = "rendezvous",
                      text = "rendezvous: refused: rank 1 has world size 3, rank 0 has 2"}, results[2])
      end)
   end)

   describe("is not disturbed (#2.11 #5.2) by", function()
      local strangers = {
         {"a port scanner", function(fd) unistd.close(fd) end, "it ended before it said who it is"},
         {"a browser", function(fd) control.send(fd, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") end,
          "frame: magic (47 45 54 20) must be 53 4c 43 45: the other end is no rank of Sluice"},
         {"a frame cut short", function(fd) control.send(fd, control.join_frame({rank = 1, world = 2}):sub(1, 40)) unistd.close(fd) end,
          "it ended before it said who it is"},
         {"a length that lies", function(fd) control.send(fd, control.frame({type = "join", length = 1000000})) end,
          "frame: length (1000000) of type join must be at most 1024"},
         {"an envelope before the join", function(fd) control.send(fd, control.frame({type = "envelope", payload = "x"})) end,
          "its first frame (envelope) must be join"},
         {"a large envelope before the join", function(fd) control.send(fd, control.frame({type = "envelope", length = 2 ^ 20})) end,
          "frame: length (1048576) of type envelope must be at most 1024 here"},
         {"a join that is no claim", function(fd) control.send(fd, control.frame({type = "join", payload = "abc"})) end,
          "its join frame cannot be read"},
      }
      for _, case in ipairs(strangers) do
         it(case[1], function()
            local results = world.run(3, function(child)
               if child == 2 then
                  local fd = control.connect(port)
                  case[2](fd)
                  control.read(fd, nil, 5)
                  gate.open()
                  return {}
               end
               pass(child)
               local log = {}
               local result = join({rank = child, world = 2, log = log})
               result.log = control.tidy(table.concat(log, "\n"))
               return result
            end)
            assert.same({0, 0}, {results[0].status, results[1].status})
            assert.truthy(results[0].log:find("rendezvous: turned away 127.0.0.1:PORT: " .. case[3] .. " (1 so far)", 1, true), results[0].log)
         end)
      end

      -- Three ranks that come one after the other, while `count` strangers connect and say nothing; prepare(rank) before each.
      local function among(count, prepare)
         local fds = {}
         socket.listen(listener, 1024)
         local results = world.run(3, function(rank)
            prepare(rank)
            sleep(rank * 150)
            return join({rank = rank, world = 3})
         end, {meanwhile = function()
            for i = 1, count do
               fds[i] = control.connect(port)
            end
         end})
         for _, fd in ipairs(fds) do
            unistd.close(fd)
         end
         all_agree(results, 0, 2)
      end

      it("strangers that say nothing, more than rank 0 keeps at once #5.2", function()
         among(400, function() end)
      end)

      it("silent strangers where descriptors are short", function()
         among(100, function(rank)
            if rank == 0 then
               local limit, free = 0, 0
               while free < 54 do -- whatever this process has open
                  free = free + (fcntl.fcntl(limit, fcntl.F_GETFD) and 0 or 1)
                  limit = limit + 1
               end
               resource.setrlimit(resource.RLIMIT_NOFILE, {rlim_cur = limit, rlim_max = limit})
            end
         end)
      end)

      it("a stream of strangers that speak nonsense all the while", function()
         local results = world.run(4, function(child)
            if child == 3 then
               local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time()
               math.randomseed(seed)
               for _ = 1, 300 do
                  local fd = control.connect(port)
                  local bytes = {}
                  for i = 1, math.random(1, 60) do
                     bytes[i] = string.char(math.random(0, 255))
                  end
                  control.send(fd, (math.random() < 0.5 and "SLCE\1\0\0\0\1\0\0\0" or "") .. table.concat(bytes))
                  unistd.close(fd)
               end
               return {seed = seed}
            end
            sleep(child * 60)
            return join({rank = child, world = 3})
         end)
         all_agree(results, 0, 2)
      end)
   end)

   describe("a rank claimed twice", function()
      it("is refused for the second one, and the rest go on waiting #2.9", function()
         local results = world.run(4, function(child)
            sleep(({[0] = 0, 0, 200, 1700})[child])
            return join({rank = ({[0] = 0, 1, 1, 2})[child], world = 4, seconds = 3})
         end)
         assert.same({status = status.disagree, rank = 1, stage = "rendezvous",
                      text = "rendezvous: refused: rank 1 is claimed by (process) and (process)"}, results[2])
         -- Rank 3 never comes, but rank 2 did, as the fourth of four processes: nobody is left to wait for.
         for _, child in ipairs({0, 1, 3}) do
            assert.same({status = status.disagree, rank = 1, stage = "rendezvous",
                         text = "rendezvous: refused: as many processes came as the world of 4 has ranks, but "
                            .. "rank 1 is claimed by (process) and (process); missing: rank 3"}, results[child])
         end
      end)

      -- The case duplicate_rank.
      it("names both claimants of each rank on every rank when two deployments have one offset #2.9", function()
         local trainers, size = 2, 6
         local deployments = {{workers = 2, rank_offset = 2}, {workers = 2, rank_offset = 2}}
         local offsets = {}
         for _, deployment in ipairs(deployments) do
            for worker = 0, deployment.workers - 1 do
               table.insert(offsets, deployment.rank_offset + worker)
            end
         end
         local results = world.run(size, function(child)
            local rank = child < trainers and child or offsets[child - trainers + 1]
            local group, failure = control.join({rank = rank, world = size, port = port, listen_fd = listener, seconds = 600})
            return {joined = group ~= nil, failure = failure, pid = unistd.getpid(), rank = rank}
         end)
         -- Far from the deadline of any: nobody waited.
         for child = 0, size - 1 do
            local failure = results[child].failure
            assert.is_false(results[child].joined)
            assert.same({status.disagree, 2}, {failure.status, failure.rank})
            assert.equal("rendezvous: refused: as many processes came as the world of 6 has ranks, but rank 2 is claimed by "
                            .. "(process) and (process); rank 3 is claimed by (process) and (process); missing: ranks 4, 5",
                         control.tidy(failure.text))
            for _, claimant in ipairs({2, 3, 4, 5}) do
               assert.truthy(failure.text:find(("(process %d on "):format(results[claimant].pid), 1, true))
            end
         end
      end)

      it("is found for rank 0, too", function()
         local results = world.run(2, function(child)
            if child == 0 then
               return join({rank = 0, world = 2})
            end
            local fd = control.connect(port)
            control.send(fd, control.join_frame({rank = 0, world = 2}))
            local frame = control.read_frame(fd)
            return {text = control.tidy(control.read_error(frame.payload).text)}
         end)
         local text = "rendezvous: refused: as many processes came as the world of 2 has ranks, but rank 0 is claimed by (process) and "
            .. "(process); missing: rank 1"
         assert.same({text, text}, {results[0].text, results[1].text})
      end)
   end)

   it("gives the place of a rank that went away to the one that comes again", function()
      local results = world.run(4, function(child)
         if child == 3 then
            local fd = control.connect(port)
            control.send(fd, control.join_frame({rank = 1, world = 3}))
            sleep(200)
            unistd.close(fd)
            gate.open(2)
            return {}
         end
         if child > 0 then
            gate.pass()
         end
         local log = {}
         local result = join({rank = child, world = 3, log = log})
         result.log = control.tidy(table.concat(log, "\n"))
         return result
      end)
      for rank = 0, 2 do
         assert.equal(0, results[rank].status)
      end
      assert.truthy(results[0].log:find("rendezvous: rank 1 (process) ended its connection; its place is free again", 1, true))
   end)

   it("does not count a rank that claimed its place before rank 0 looked, and went", function()
      local fd = control.connect(port)
      control.send(fd, control.join_frame({rank = 1, world = 2}))
      unistd.close(fd)
      all_agree(world.run(2, function(rank)
         sleep(rank == 1 and 300 or 0)
         return join({rank = rank, world = 2})
      end), 0, 1)
   end)

   it("gives the place at once to a claimant that waits while the first one goes", function()
      local rest = world.gate()
      local results = world.run(5, function(child)
         if child == 4 then
            local fd = control.connect(port)
            control.send(fd, control.join_frame({rank = 1, world = 4}))
            gate.open()
            sleep(400)
            unistd.close(fd)
            rest.open(2)
            return {}
         end
         if child > 0 then
            (child == 1 and gate or rest).pass()
         end
         return join({rank = child, world = 4})
      end)
      rest.close()
      all_agree(results, 0, 3)
   end)

   it("keeps a rank that connects again with the nonce that it had", function()
      local results = world.run(3, function(child)
         if child == 2 then
            local first = control.connect(port)
            control.send(first, control.join_frame({rank = 1, world = 3}))
            sleep(100)
            local second = control.connect(port)
            control.send(second, control.join_frame({rank = 1, world = 3}))
            local _, ended = control.read(first, nil, 5)
            gate.open()
            return {first_ended = ended, frame = control.read_frame(second, 5).type}
         end
         pass(child)
         local group = control.join({rank = ({[0] = 0, 2})[child], world = 3, port = port, listen_fd = listener})
         return {joined = group ~= nil}
      end)
      assert.same({{joined = true}, {joined = true}, {first_ended = true, frame = control.frame_type.welcome}},
                  {results[0], results[1], results[2]})
   end)

   describe("at the deadline", function()
      it("says on every rank that came who came and who did not #2.12", function()
         local results = world.run(3, function(rank)
            return join({rank = rank, world = 6, seconds = 0.8})
         end)
         for rank = 0, 2 do
            assert.same({status = status.timeout, rank = 3, stage = "rendezvous",
                         text = "rendezvous: 3 of 6 ranks came within 0.8 s: ranks 0-2; missing: ranks 3-5; "
                            .. "rank 0 listens on 127.0.0.1:PORT"},
                        results[rank])
         end
      end)

      it("says who was turned away meanwhile", function()
         local results = world.run(1, function(rank)
            return join({rank = rank, world = 2, seconds = 0.5})
         end, {meanwhile = function()
            local fd = control.connect(port)
            control.send(fd, control.join_frame({rank = 1, world = 8}))
            control.read_frame(fd)
            unistd.close(fd)
         end})
         assert.equal("rendezvous: 1 of 2 ranks came within 0.5 s: rank 0; missing: rank 1; rank 0 listens on 127.0.0.1:PORT; "
                         .. "1 connection was turned away, the last: 127.0.0.1:PORT: rank 1 has world size 8, rank 0 has 2", results[0].text)
      end)

      it("tells a rank at its own, and the others go on", function()
         local results = world.run(3, function(rank)
            sleep(rank == 2 and 1800 or 0)
            return join({rank = rank, world = 4, seconds = ({[0] = 2.5, 0.6, 20})[rank]})
         end)
         local text = "rendezvous: %s came within %s s: %s; rank 0 listens on 127.0.0.1:PORT"
         assert.equal(text:format("2 of 4 ranks", "0.6", "ranks 0, 1; missing: ranks 2, 3"), results[1].text)
         for _, rank in ipairs({0, 2}) do
            assert.equal(text:format("2 of 4 ranks", "2.5", "ranks 0, 2; missing: ranks 1, 3; before that, rank 1 came and gave up"),
                         results[rank].text)
         end
      end)

      it("that a stranger sets, ends the stranger's claim and nobody else's wait", function()
         local results = world.run(4, function(child)
            if child == 3 then
               local texts = {}
               for i, left_ms in ipairs({0, -1, 1}) do
                  local fd = control.connect(port)
                  control.send(fd, control.join_frame({rank = 1, world = 3, left_ms = left_ms, nonce = tostring(i):rep(16)}))
                  local frame = control.read_frame(fd, left_ms < 0 and 0.3 or 5)
                  texts[i] = frame and control.tidy(control.read_error(frame.payload).text) or "waits"
                  unistd.close(fd)
               end
               return texts
            end
            sleep(({[0] = 0, 1000, 1200})[child])
            return join({rank = child, world = 3})
         end)
         all_agree(results, 0, 2)
         local text = "rendezvous: 2 of 3 ranks came within %s s: ranks 0, 1; missing: rank 2; rank 0 listens on 127.0.0.1:PORT"
         assert.same({text:format("0"), "waits", text:format("0.001")}, results[3])
      end)

      it("says why the last attempt failed where rank 0 never came", function()
         local free = ports.hold()
         assert.same({status = status.timeout, rank = 0, stage = "rendezvous",
                      text = ("rendezvous: rank 1 got no welcome from rank 0 at 127.0.0.1 port %d within 0.3 s; the last attempt: "
                              .. "cannot connect to 127.0.0.1:PORT: Connection refused"):format(free)},
                     join({rank = 1, world = 2, port = free, listen_fd = -1, seconds = 0.3}))
      end)

      it("says so where something else listens", function()
         local results = world.run(1, function()
            return join({rank = 1, world = 2, seconds = 0.5})
         end, {meanwhile = function()
            local fd = socket.accept(listener)
            control.send(fd, "220 mail.example ESMTP service ready\r\n")
            sleep(1000)
            unistd.close(fd)
         end})
         assert.equal(status.timeout, results[0].status)
         assert.equal(("rendezvous: rank 1 got no welcome from rank 0 at 127.0.0.1 port %d within 0.5 s; the last attempt: "
                       .. "frame: magic (32 32 30 20) must be 53 4c 43 45: the other end is no rank of Sluice"):format(port), results[0].text)
      end)
   end)

   describe("cancelled", function()
      it("on rank 0, ends it on every rank", function()
         control.prepare_timer()
         local results = world.run(2, function(rank)
            local flag = ffi.new("bool[1]")
            if rank == 0 then
               control.set_later(flag, 300)
            end
            return join({rank = rank, world = 3, cancelled = flag})
         end)
         for rank = 0, 1 do
            assert.same({status = status.cancelled, rank = 0, stage = "rendezvous", text = "rendezvous: cancelled on rank 0"}, results[rank])
         end
      end)

      it("on another rank, ends it there", function()
         local flag = ffi.new("bool[1]", true)
         assert.same({status = status.cancelled, rank = 1, stage = "rendezvous", text = "rendezvous: cancelled on rank 1"},
                     join({rank = 1, world = 2, cancelled = flag, port = ports.hold()}))
      end)
   end)
end)
