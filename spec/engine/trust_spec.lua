--- Keys, beats and deadlines as an embedding host meets them: through sluice.h alone.
-- contract.md: 2 (the soonest deadline, who came), 5 (a rank stopped at any step is named by every other rank).

local built = require "spec.support.built"
local files = require "scripts.files"
local host = require "spec.support.host"
local inside = require "spec.support.inside"
local ports = require "spec.support.ports"
local shell = require "scripts.shell"
local signal = require "posix.signal"
local stat = require "posix.sys.stat"
local unistd = require "posix.unistd"
local with = require "spec.support.with"
local world = require "spec.support.world"

local C = inside.declare("sluice.h")
local BEAT = os.getenv("SLUICE_SANITIZER") and 0.4 or 0.2 -- a sanitized rank is slow, and is to live for three beats without a word
local KEY = ("a key of this deployment "):rep(3)
local UNIQUE_ID = ("U"):rep(127) .. "A" -- 128 bytes; in base64 VVVV...
local UNIQUE_ID_BASE64 = ("VVVV"):rep(42) .. "VUE="

-- w [4, 4], sharded on rows by two trainers, on columns by two workers; f [4] goes to load_weights.
local function init_info(port, change)
   local info = {
      schema_version = 2, master_address = "127.0.0.1", master_port = port, rank_offset = 2, world_size = 4, dst_mesh_dims = {1, 2},
      nccl_unique_id_b64 = UNIQUE_ID_BASE64,
      params = {
         {name = "w", dtype_name = "float32", shape = {4, 4}, src_mesh_dims = {1, 2}, src_placements = {-1, 0}},
         {name = "f", dtype_name = "float32", shape = {4}, src_mesh_dims = {1, 2}, src_placements = {-1, 0}},
      },
   }
   if change then
      change(info)
   end
   return world.seal(info)
end

local sleep = world.sleep

local function key_file()
   local path = os.tmpname()
   files.write(path, KEY)
   assert(stat.chmod(path, tonumber("600", 8)))
   return path
end

local function pull_all(_, next_tensor)
   local tensor, status = next_tensor()
   while tensor do
      tensor, status = next_tensor()
   end
   return status
end

-- One engine of rank `rank`; options are those of host.create.
local function make(rank, fd, options)
   local given = with({rank = rank, listen_fd = rank == 0 and fd or nil, beat_s = BEAT}, options)
   given.load_weights = rank >= 2 and (options.load_weights or pull_all) or nil
   local self = host.create(given)
   if rank < 2 then
      self:source("w", {1, 2, 3, 4, 5, 6, 7, 8})
      self:source("f", {1, 2})
   else
      self:live("w", {4, 2}, {attributes = '{"loader":"row","input_dim":1,"tp_size":2}'})
      self:live("f", {4})
   end
   return self
end

local function tidy(text)
   return text and (text:gsub("%(process %d+ on [^,]+, [^)]+%)", "(process)"):gsub("for [%d.]+ s %(3", "for SOME s (3")
      :gsub("127%.0%.0%.1:%d+", "127.0.0.1:PORT"))
end

-- body(engine, rank, port) on four ranks, whose engine options are options.each(rank) or options.engine.
local function run(options, body)
   local fd, port = world.listen()
   return world.run(4, function(rank)
      if rank > 0 then
         unistd.close(fd)
      end
      local self = make(rank, fd, options.each and options.each(rank) or options.engine or {})
      local result = body(self, rank, port) or {}
      self:destroy()
      return result
   end, {timeout = options.timeout or 30, meanwhile = function(children)
      unistd.close(fd)
      if options.meanwhile then
         options.meanwhile(children)
      end
   end})
end

-- Stops `rank` once `count` of the ranks said that they are ready, for long enough that all miss it; then all may go on.
local function stopping(rank, count)
   local ready, go = world.gate(), world.gate()
   local stop = {ready = ready.open, wait = go.pass}

   function stop.meanwhile(children)
      for _ = 1, count do
         ready.pass()
      end
      signal.kill(children[rank].pid, signal.SIGSTOP)
      sleep(15 * BEAT)
      go.open(4)
      signal.kill(children[rank].pid, signal.SIGCONT)
      ready.close()
      go.close()
   end

   return stop
end

-- Everyone's error names the stopped rank, for its silence and no deadline; every engine has failed.
local function all_name(results, stopped)
   for rank = 0, 3 do
      local result = results[rank]
      assert.is_nil(result.raised)
      assert.equal("another rank failed or was lost", result.status, rank .. ": " .. tostring(result.text))
      -- The stage is that of the call, or of the control connection where nobody called; rank 0 itself hears it from another.
      assert.equal(("rank %d (process) has not been heard for SOME s (3 beats of %.3g s)"):format(stopped, BEAT),
         (result.text:gsub("^%l+: ", ""):gsub(rank == 0 and "^rank %d %(process%) gave up: " or "^$", "")))
      assert.equal("failed", result.state)
   end
end

local function outcome(self, call, ...)
   local err = host.refused(call, self, ...) or {text = "succeeded"}
   return {status = err.status, text = tidy(err.text), state = self:state(), rank = err.rank}
end

describe("a rank that is stopped (#5.10)", function()
   for stopped = 0, 3 do
      it(("while the others wait in a round is named by everyone: rank %d"):format(stopped), function()
         local stop = stopping(stopped, 4)
         local results = run({meanwhile = stop.meanwhile}, function(self, rank, port)
            self:init(init_info(port))
            self:start()
            stop.ready()
            if rank == stopped then
               stop.wait()
            end
            return outcome(self, self.update, {"w", "f"})
         end)
         all_name(results, stopped)
      end)
   end

   it("between calls is named by everyone's next call", function()
      local stop = stopping(3, 4)
      local results = run({meanwhile = stop.meanwhile}, function(self, _, port)
         self:init(init_info(port))
         self:start()
         stop.ready()
         stop.wait()
         return outcome(self, self.update, {"w"})
      end)
      all_name(results, 3)
   end)

   it("while it consumes a batch is named by those that wait for it, with what was torn", function()
      local stop = stopping(2, 1)
      local results = run({meanwhile = stop.meanwhile, each = function(rank)
         return {load_weights = rank == 2 and function(self, next_tensor)
            stop.ready()
            stop.wait()
            return pull_all(self, next_tensor)
         end or nil}
      end}, function(self, _, port)
         self:init(init_info(port))
         self:start()
         local result = outcome(self, self.update, {"w", "f"})
         local failure = self:failure()
         result.lists = #failure.complete + #failure.torn + #failure.untouched
         return result
      end)
      for rank = 0, 3 do
         if rank ~= 2 then
            assert.equal(("rank 2 (process) has not been heard for SOME s (3 beats of %.3g s)"):format(BEAT), (results[rank].text:gsub("^%l+: ", "")))
         end
         assert.equal("failed", results[rank].state)
         assert.equal(2, results[rank].lists)
      end
   end)

   it("leaves the others able to shut down and to begin again without it, in the same processes", function()
      local again_port = ports.hold()
      local stop = stopping(3, 4)
      local results = run({meanwhile = stop.meanwhile}, function(self, rank, port)
         self:init(init_info(port))
         self:start()
         stop.ready()
         if rank == 3 then
            stop.wait()
         end
         local first = outcome(self, self.update, {"w"})
         self:shutdown()
         if rank == 3 then
            return {first = first.text}
         end
         if rank == 2 then -- alone now: it serves all of w
            local err = inside.error()
            assert.equal(0, tonumber(C.sluice_forget(self.engine, err)))
            self:live("w", {4, 4}, {attributes = '{"loader":"row","input_dim":1,"tp_size":1}'})
            self:live("f", {4})
         end
         self:init(init_info(again_port, function(info)
            info.world_size, info.dst_mesh_dims = 3, {1, 1}
         end))
         self:start()
         self:update({"w", "f"})
         self:finish("again")
         return {first = first.text, version = self:version()}
      end)
      for rank = 0, 3 do
         assert.is_nil(results[rank].raised)
         assert.matches("rank 3 (process) has not been heard", results[rank].first, 1, true)
         assert.equal(rank < 3 and "again" or nil, results[rank].version)
      end
   end)
end)

describe("beats", function()
   it("go on while hosts compute between calls, and do not disturb updates", function()
      local results = run({}, function(self, rank, port)
         self:init(init_info(port))
         for update = 1, 3 do
            self:start()
            sleep(rank == update and 8 * BEAT or 0)
            self:update({"w"})
            sleep(6 * BEAT)
            self:update({"f"})
            self:finish("v" .. update)
         end
         return {version = self:version()}
      end)
      for rank = 0, 3 do
         assert.same({version = "v3"}, results[rank])
      end
   end)

   it("of another interval on one rank are refused with both #2.6", function()
      local results = run({each = function(rank)
         return {beat_s = rank == 3 and 5 or 1}
      end}, function(self, _, port)
         return outcome(self, self.init, init_info(port))
      end)
      for rank = 0, 3 do
         assert.equal("data plane: settings must be the same on every rank: rank 0 has beat_s=1, rank 3 has beat_s=5", results[rank].text)
      end
   end)
end)

describe("a key", function()
   it("from a file or a descriptor carries init, updates and shutdown, twice over", function()
      local path = key_file()
      local results = run({each = function(rank)
         if rank % 2 == 0 then
            return {key_file = path}
         end
         local from, to = unistd.pipe()
         unistd.write(to, KEY)
         unistd.close(to)
         return {key_fd = from}
      end}, function(self, _, port)
         for round = 1, 2 do
            self:init(init_info(port))
            self:start()
            self:update({"w", "f"})
            self:finish("round " .. round)
            self:shutdown()
         end
         return {version = self:version()}
      end)
      os.remove(path)
      for rank = 0, 3 do
         assert.same({version = "round 2"}, results[rank])
      end
   end)

   it("on rank 0 alone is missed by name on the others", function()
      local path = key_file()
      local results = run({each = function(rank)
         return {key_file = rank == 0 and path or nil, timeouts = {connect = rank == 0 and 2 or nil}}
      end}, function(self, _, port)
         return outcome(self, self.init, init_info(port))
      end)
      os.remove(path)
      for rank = 1, 3 do
         assert.equal("rendezvous: refused: it has no key, and rank 0 has one", results[rank].text)
      end
      assert.equal("rendezvous: 1 of 4 ranks came within 2 s: rank 0; missing: ranks 1-3; rank 0 listens on 127.0.0.1:PORT; 3 connections "
         .. "were turned away, the last: 127.0.0.1:PORT: it has no key, and rank 0 has one", results[0].text)
   end)

   it("is refused at create by the rule that it breaks", function()
      local path = key_file()
      stat.chmod(path, tonumber("644", 8))
      assert.equal(("create: key_file (%s) has mode 0644; only its owner may read or write it (chmod 600)"):format(path),
                   host.refused(host.create, {rank = 0, key_file = path}).text)
      assert.equal("create: key_fd (987654) cannot be read: Bad file descriptor", host.refused(host.create, {rank = 0, key_fd = 987654}).text)
      local from, to = unistd.pipe()
      assert.equal("create: options.key_file and options.key_fd must not both be given",
                   host.refused(host.create, {rank = 0, key_file = path, key_fd = from}).text)
      assert.is_nil(unistd.read(from, 1)) -- closed all the same
      unistd.close(to)
      os.remove(path)
   end)

   it("is wanted off the loopback interface before anything connects, unless control is insecure by name", function()
      local function text_of(rank, options)
         options.rank = rank
         local self = host.create(options)
         if rank < 2 then
            self:source("w", {1, 2, 3, 4, 5, 6, 7, 8})
            self:source("f", {1, 2})
         end
         local text = host.refused(self.init, self, init_info(1234, function(info)
            info.master_address = "192.0.2.9"
         end)).text
         self:destroy()
         return text
      end
      local rule = "rendezvous: 192.0.2.9:1234 is not on the loopback interface: a key must be given (key_file or key_fd), or "
         .. "insecure_control set to true"
      for _, rank in ipairs({0, 1, 2}) do
         assert.equal(rule, text_of(rank, {}))
      end
      assert.equal("rendezvous: rank 0 cannot listen on 192.0.2.9:1234: Cannot assign requested address",
                   text_of(0, {insecure_control = true}))
   end)

   it("and the unique id are in no error, plan, report or log, at any level #1.11", function()
      local path, log = key_file(), {}
      local OTHER, OTHER_BASE64 = ("Z"):rep(127) .. "Q", ("Wlpa"):rep(42) .. "WlE="
      local results = run({engine = {key_file = path, log = log, beat_s = 1}}, function(self, rank, port)
         self:init(init_info(port))
         local texts = {(require("cjson").encode(self:plan(true)))}
         self:start()
         self:update {"w"}
         texts[2] = rank == 0 and self:abort() or rank > 0 and outcome(self, self.update, {"f"}).text or "gave up"
         texts[3] = require("cjson").encode(self:failure())
         self:shutdown()
         texts[4] = outcome(self, self.init, init_info(port, function(info)
            info.nccl_unique_id_b64 = rank == 1 and OTHER_BASE64 or UNIQUE_ID_BASE64
         end)).text
         texts[5] = table.concat(log, "\n")
         return texts
      end)
      os.remove(path)
      local function hex(text)
         return (text:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
      end
      for rank = 0, 3 do
         assert.is_nil(results[rank].raised)
         assert.matches("rank 0 has unique_id=%x+, rank 1 has unique_id=%x+$", results[rank][4]) -- their digests may be told
         assert.matches("\n3 init: ", "\n" .. results[rank][5], 1, true) -- the log has the debug level, too
         for _, secret in ipairs({KEY, UNIQUE_ID, UNIQUE_ID_BASE64, OTHER, OTHER_BASE64}) do
            for _, text in ipairs(results[rank]) do
               for _, form in ipairs({secret:sub(1, 12), hex(secret:sub(1, 12)), hex(secret:sub(1, 12)):upper()}) do
                  assert.is_nil(text:find(form, 1, true))
               end
            end
         end
      end
   end)

   it("lies in no memory of a rank that a core dump would show", function()
      local path = os.tmpname()
      os.execute(("head -c 48 /dev/urandom > %s && chmod 600 %s"):format(path, path)) -- bytes that no Lua has seen
      local ready, go = world.gate(), world.gate(300) -- under a sanitizer there are gigabytes to read
      local found, seen = {}, 0
      run({engine = {key_file = path}, timeout = 300, meanwhile = function(children)
         for _ = 0, 3 do
            ready.pass()
         end
         local key = assert(files.read(path))
         for rank = 0, 3 do
            for from, to in world.dumped(children[rank].pid) do
               local holds, bytes = world.holds(children[rank].pid, from, to, key)
               seen = seen + bytes
               if holds then
                  found[#found + 1] = rank
               end
            end
         end
         go.open(4)
      end}, function(self, _, port)
         self:init(init_info(port))
         ready.open()
         go.pass()
         return {}
      end)
      os.remove(path)
      ready.close()
      go.close()
      assert.is_true(seen > 4 * 2 ^ 20, "too little memory was read to say so")
      assert.same({}, found)
   end)

   it("and the unique id of an init info leave nothing of them in what the library lets go of #1.11", function()
      if os.getenv("SLUICE_SANITIZER") then
         pending("a sanitizer maps terabytes of its own")
         return
      end
      local said, code = shell(built.folder .. "spec/secret_driver")
      assert.equal(0, code, said)
      local ready, gone = said:match("^ready: found 0 times in (%d+) MiB\ngone: found 0 times in (%d+) MiB\n$")
      assert.is_true(ready ~= nil and ready + 0 > 2 and gone + 0 > 2, said)
   end)
end)

describe("deadlines", function()
   it("are refused out of range, each by name", function()
      local cases = {
         {{timeout_s = -1}, "options.timeout_s (-1) must be above 0 and at most 86400, or 0 for 300"},
         {{timeouts = {connect = 1e9}}, "options.timeouts.connect (1e+09) must be above 0 and at most 86400, or 0 for 10"},
         {{timeouts = {agree = -2}}, "options.timeouts.agree (-2) must be above 0 and at most 86400, or 0 for 10"},
         {{timeouts = {update = math.huge}}, "options.timeouts.update (inf) must be above 0 and at most 86400, or 0 for 10"},
         {{timeouts = {finish = -1}}, "options.timeouts.finish (-1) must be above 0 and at most 86400, or 0 for 10"},
         {{timeouts = {shutdown = -1}}, "options.timeouts.shutdown (-1) must be above 0 and at most 86400, or 0 for 10"},
         {{beat_s = 0.01}, "options.beat_s (0.01) must be 0.05 to 3600, or 0 for 1"},
         {{beat_s = 4000}, "options.beat_s (4000) must be 0.05 to 3600, or 0 for 1"},
      }
      for _, case in ipairs(cases) do
         case[1].rank = 0
         assert.equal("create: " .. case[2], host.refused(host.create, case[1]).text)
      end
   end)

   it("of one phase hold for that phase alone", function()
      local results = run({engine = {timeouts = {update = 0.5}, beat_s = 0.05}}, function(self, rank, port)
         sleep(rank == 2 and 0.8 or 0) -- longer than an update may take
         self:init(init_info(port))
         self:start()
         sleep(rank == 3 and 1.5 or 0)
         return outcome(self, self.update, {"w"})
      end)
      for rank = 0, 2 do
         assert.equal("deadline passed", results[rank].status)
         assert.equal("update: no word from rank 3 (process) within 0.5 s", results[rank].text)
      end
   end)

   it("of connect ends the wait for a rank that never comes, and names it #2.12", function()
      local fd, port = world.listen()
      local results = world.run(2, function(rank)
         local self = make(rank, fd, {timeouts = {connect = 1.5}})
         local result = outcome(self, self.init, init_info(port))
         self:destroy()
         return result
      end)
      unistd.close(fd)
      for rank = 0, 1 do
         assert.equal("deadline passed", results[rank].status)
         assert.equal("rendezvous: 2 of 4 ranks came within 1.5 s: ranks 0, 1; missing: ranks 2, 3; rank 0 listens on 127.0.0.1:PORT",
            results[rank].text)
      end
   end)
end)
