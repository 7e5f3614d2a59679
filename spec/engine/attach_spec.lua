--- Attaching to an engine: the socket that its host opens, who may ask, what is told, and that nobody who asks disturbs.

local cjson = require "cjson"
local door = require "spec.support.door"
local four = require "spec.support.four"
local host = require "spec.support.host"
local socket = require "posix.sys.socket"
local stat = require "posix.sys.stat"
local unistd = require "posix.unistd"
local world = require "spec.support.world"

local folder, engine

before_each(function()
   folder = os.tmpname()
   os.remove(folder)
   assert(stat.mkdir(folder, tonumber("700", 8)))
end)

after_each(function()
   if engine then
      engine:destroy()
      engine = nil
   end
   os.execute(("rm -rf '%s'"):format(folder))
end)

local function path(name)
   return folder .. "/" .. (name or "door")
end

local function open(options)
   engine = host.create(options or { rank = 0 })
   engine:allow_attach(path())
   return path()
end

local function refused(...)
   local engine_here = host.create { rank = 0 }
   local err = host.refused(engine_here.allow_attach, engine_here, ...)
   engine_here:destroy()
   return err and err.text
end

local function listener(at)
   local fd = assert(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0))
   assert(socket.bind(fd, { family = socket.AF_UNIX, path = at }))
   assert(socket.listen(fd, 4))
   return fd
end

local function descriptors()
   local count = 0
   for _ in io.popen("ls /proc/self/fd"):lines() do
      count = count + 1
   end
   return count
end

describe("the place of a door", function()
   it("is a socket that only its owner can use, gone after shutdown, after destroy, and when it is closed", function()
      local at = open()
      local facts = stat.stat(at)
      assert.equal(1, stat.S_ISSOCK(facts.st_mode))
      assert.equal(tonumber("600", 8), facts.st_mode % 512)
      engine:shutdown()
      assert.is_nil(stat.lstat(at))
      engine:allow_attach(at)
      engine:refuse_attach()
      assert.is_nil(stat.lstat(at))
      engine:refuse_attach()
      engine:allow_attach(at)
      engine:destroy()
      engine = nil
      assert.is_nil(stat.lstat(at))
   end)

   it("stays found when the process goes elsewhere", function()
      local before = unistd.getcwd()
      unistd.chdir(folder)
      engine = host.create { rank = 0 }
      engine:allow_attach("relative")
      unistd.chdir("/")
      engine:shutdown()
      unistd.chdir(before)
      assert.is_nil(stat.lstat(path("relative")))
   end)

   it("is not taken from what is there: a file, a folder, a link, a socket on which somebody listens", function()
      local file = assert(io.open(path("file"), "w"))
      file:close()
      unistd.link(path("file"), path("link"), true)
      local fd = listener(path("taken"))
      assert.equal("attach: " .. path("file") .. " is there already (a file)", refused(path("file")))
      assert.equal("attach: " .. path("link") .. " is a symbolic link; a socket is made only where nothing is", refused(path("link")))
      assert.equal("attach: somebody listens on " .. path("taken") .. " already", refused(path("taken")))
      assert.truthy(stat.lstat(path("taken")))
      unistd.close(fd)
      assert.is_nil(refused(path("taken"))) -- whoever made it has ended
      assert.equal("attach: the path (" .. folder .. "/) must end in the name of a socket", refused(folder .. "/"))
      assert.equal("attach: the folder of /no/such/door: No such file or directory", refused("/no/such/door"))
      assert.truthy(refused(path(("x"):rep(120))):find("bytes from the root; a Unix socket's has at most 107$"))
      assert.equal("attach: one of a path and a descriptor must be given, and not both", refused(nil))
   end)

   it("is in no folder where anyone may replace it", function()
      assert(stat.chmod(folder, tonumber("777", 8)))
      assert.equal("attach: the folder of " .. path() .. " has mode 0777: anyone could put another socket there", refused(path()))
      assert(stat.chmod(folder, tonumber("1777", 8)))
      assert.is_nil(refused(path()))
   end)

   it("leaves a socket that has taken its place", function()
      local at = open()
      os.remove(at)
      local fd = listener(at)
      engine:shutdown()
      assert.truthy(stat.lstat(at))
      unistd.close(fd)
   end)

   it("may be a listening socket of the host's, whose file is the host's", function()
      local fd = listener(path())
      engine = host.create { rank = 0 }
      engine:allow_attach(nil, unistd.dup(fd))
      assert.equal("new", door.status(path()).state)
      engine:shutdown()
      assert.truthy(stat.lstat(path()))
      unistd.close(fd)
      local other = assert(socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0))
      assert.equal(("attach: the descriptor (%d) must be a listening Unix stream socket"):format(other), refused(nil, other))
   end)

   it("opens before init only, and once", function()
      local at = open()
      local err = host.refused(engine.allow_attach, engine, path("other"))
      assert.equal("attach: this engine can be attached to already", err.text)
      assert.is_nil(stat.lstat(path("other")))
      assert.equal("new", door.status(at).state)
   end)
end)

describe("who asks at a door", function()
   it("hears where an engine stands that has no plan yet", function()
      local at = open { rank = 7 }
      local status = door.status(at)
      assert.equal(7, status.rank)
      assert.equal(unistd.getpid(), status.process)
      assert.equal("new", status.state)
      assert.equal("", status.version)
      assert.is_nil(status.plan)
      assert.same({ nil, "there is no plan: the engine is not ready" }, { door.ask(at, "plan") })
   end)

   it("is turned away with nonsense, whole or in pieces", function()
      local at = open()
      local rule = 'no a request is "sluice attach 1 status" or "sluice attach 1 plan" and a newline\n'
      for _, text in ipairs { "\n", "GET / HTTP/1.1\r\n\r\n", "sluice attach 2 status\n", "sluice attach 1 status\nmore", ("\0"):rep(9999),
                              "sluice attach 1 reload\n", "sluice attach 1 status\r\n" } do
         local fd = assert(door.connect(at))
         door.send(fd, text)
         assert.equal(rule, (door.hear(fd)), text)
         unistd.close(fd)
      end
      local fd = assert(door.connect(at))
      for byte in ("sluice attach 1 status\n"):gmatch(".") do
         door.send(fd, byte)
      end
      assert.truthy(door.hear(fd):find("^ok %d+\n{"))
      unistd.close(fd)
   end)

   it("does not keep others waiting, however many are silent, gone, or half a request", function()
      local at = open()
      local before, silent = descriptors(), {}
      for i = 1, 1000 do
         local fd = assert(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0))
         require "posix.fcntl".fcntl(fd, require "posix.fcntl".F_SETFL, require "posix.fcntl".O_NONBLOCK)
         if socket.connect(fd, { family = socket.AF_UNIX, path = at }) then
            door.send(fd, i % 3 == 0 and "sluice att" or i % 3 == 1 and "sluice attach 1 status\n" or "")
            if i % 2 == 0 and #silent < 12 then
               silent[#silent + 1] = fd
               fd = nil
            end
         end
         if fd then
            unistd.close(fd)
         end
      end
      local status
      assert.is_true(#silent > 0)
      for _ = 1, 200 do
         status = door.status(at)
         if status then
            break
         end
         world.sleep(0.05) -- 16 others are asking
      end
      assert.equal("new", status and status.state)
      for _, fd in ipairs(silent) do
         unistd.close(fd)
      end
      assert.is_true(descriptors() <= before + 20)
   end)

   it("is told that others are asking where there are too many", function()
      local at = open()
      local silent = {}
      for i = 1, 16 do
         silent[i] = assert(door.connect(at))
      end
      assert.same({ nil, "others are asking; try again" }, { door.ask(at, "status") }) -- all are let in before
      for _, fd in ipairs(silent) do
         unistd.close(fd)
      end
      assert.equal("new", door.status(at).state) -- who has gone makes room before
   end)

   it("holds up no end of the engine, also when it asks nothing or takes no answer", function()
      local log, fds = {}, {}
      local at = open { rank = 0, log = log }
      for i = 1, 8 do
         fds[i] = assert(door.connect(at))
         door.send(fds[i], i % 2 == 0 and "sluice attach 1 status\n" or "")
      end
      engine:shutdown()
      assert.truthy(log[#log]:find("attach: %d answers, 0 turned away$"), log[#log]) -- for none was waited until its time was up
      for _, fd in ipairs(fds) do
         unistd.close(fd)
      end
      assert.is_nil(door.connect(at))
   end)
end)

describe("what a door tells", function()
   -- Runs `steps` on each rank of four, one at each word of `ask(at, go)`; the last rank lets people attach.
   local function run_world(steps, options, ask)
      local at, answers = path(), nil
      local reader, writer = unistd.pipe()
      local results = four.run(function(self, rank, port)
         if rank == 3 then
            self:allow_attach(at)
         end
         self:init(four.init_info(port, options.change))
         for _, step in ipairs(steps) do
            unistd.read(reader, 1)
            step(self, rank)
         end
         self:shutdown()
         local left = stat.lstat(at) ~= nil and rank == 3
         self:destroy()
         return { left = left }
      end, { rules = options.rules, meanwhile = function()
         local gone = 0
         answers = ask(at, function()
            gone = gone + 1
            unistd.write(writer, "xxxx")
         end)
         unistd.write(writer, ("xxxx"):rep(#steps - gone))
      end })
      unistd.close(reader)
      unistd.close(writer)
      four.each(results, function(result)
         assert.same({ left = false }, result)
      end)
      return answers
   end

   local function until_true(f)
      for _ = 1, 400 do
         local value = f()
         if value then
            return value
         end
         world.sleep(0.05)
      end
   end

   local function update(self, rank)
      if rank < 2 then
         four.set_values(self, rank, 1)
      end
      self:start()
      self:update(four.BOTH)
      self:finish("step-1")
   end

   local function split(body)
      local line = body:match("^[^\n]*")
      local head, at, parts = cjson.decode(line), #line + 2, {}
      for _, part in ipairs { "init_info", "host", "live" } do
         parts[part] = body:sub(at, at + head[part] - 1)
         at = at + head[part]
      end
      for _, file in ipairs(head.files) do
         parts[#parts + 1] = body:sub(at, at + file.bytes - 1)
         at = at + file.bytes
      end
      assert.equal(#body + 1, at)
      return head, parts
   end

   it("is what the plan was made of, without the unique id, and where the engine stands", function()
      local answers = run_world({ update, function() end }, { change = function(info)
         info.nccl_unique_id_b64 = ("Qk7x"):rep(42) .. "Qk4="
      end }, function(at, go)
         local body = until_true(function()
            return door.ask(at, "plan")
         end)
         local before = door.status(at)
         go()
         return { body = body, before = before, after = until_true(function()
            local status = door.status(at)
            return status.version == "step-1" and status.state == "ready" and status
         end) }
      end)
      local head, parts = split(answers.body)
      assert.is_nil(answers.body:find("Qk7xQk7x", 1, true))
      local info = cjson.decode(parts.init_info)
      assert.is_nil(info.nccl_unique_id_b64)
      assert.equal(head.source_digest, info.source_digest)
      assert.same({ { name = "a.weight", dtype = "float32", shape = { 4, 2 },
                      attributes = { loader = "row", input_dim = 1, tp_size = 2 } },
                    { name = "b.bias", dtype = "float32", shape = { 4 }, attributes = {} } }, cjson.decode(parts.live))
      assert.same({ "ready", "", "worker", 2, 2 }, { answers.before.state, answers.before.version, answers.before.role,
         answers.before.trainers, answers.before.workers })
      local after = answers.after
      assert.same({ "step-1", 1, 2, 2 }, { after.version, after.batch, after.progress.params_done, after.progress.params_total })
      assert.equal(after.progress.bytes_total, after.progress.bytes_done)
      assert.equal(answers.before.plan, after.plan)
   end)

   it("is the other plan and its rule files after a reload", function()
      local parent = host.file('return { rules = { rule "a.weight" { layout = row }, rule "b.bias" { full = "parent" } } }')
      local child = host.file(('return { extends = "./%s", rules = { rule "a.weight" { full = "child" } } }'):format(parent:match("[^/]*$")))
      local answers = run_world({ function(self)
         self:reload(child)
      end, function() end }, { rules = parent }, function(at, go)
         local before = until_true(function()
            return door.ask(at, "plan")
         end)
         local status = door.status(at)
         go()
         until_true(function()
            return (door.status(at) or status).plan ~= status.plan
         end)
         return { before, (door.ask(at, "plan")) }
      end)
      local head, parts = split(answers[1])
      assert.same({ parent, { { name = parent, bytes = #parts[1], folder = 0 } } }, { head.rules, head.files })
      local other, its = split(answers[2])
      assert.same({ child, child, (parent:gsub("([^/]+)$", "./%1")) }, { other.rules, other.files[1].name, other.files[2].name })
      assert.truthy(its[1]:find('"child"', 1, true) and its[2] == parts[1])
      assert.equal(parts.init_info, its.init_info)
      os.remove(parent)
      os.remove(child)
   end)
end)
