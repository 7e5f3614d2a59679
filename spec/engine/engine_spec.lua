--- The whole life of an engine through the public API, ranks as processes: init, update, finish, failure, shutdown.

local ffi = require "ffi"
local host = require "spec.support.host"
local inside = require "spec.support.inside"
local unistd = require "posix.unistd"
local world = require "spec.support.world"

local C = inside.declare("sluice.h")

-- a.weight [4, 4] goes direct (row over tp 2); b.bias [4] has no loader and goes full; both sharded on dim 0 by two trainers.
local function init_info(port, change)
   local info = {
      schema_version = 2, master_address = "127.0.0.1", master_port = port, rank_offset = 2, world_size = 4,
      dst_mesh_dims = {1, 2},
      params = {
         {name = "a.weight", dtype_name = "float32", shape = {4, 4}, src_mesh_dims = {1, 2}, src_placements = {-1, 0}},
         {name = "b.bias", dtype_name = "float32", shape = {4}, src_mesh_dims = {1, 2}, src_placements = {-1, 0}},
      },
   }
   if change then
      change(info)
   end
   return world.seal(info)
end

local function value(name, update, index)
   return (name == "a.weight" and 100 or 1000) * update + index
end

local function shard(name, update, rank, count)
   local values = {}
   for i = 1, count do
      values[i] = value(name, update, rank * count + i - 1)
   end
   return values
end

local function trainer(rank, options)
   local self = host.create {rank = rank, listen_fd = rank == 0 and options.fd or nil, timeout_s = options.timeout_s or 10,
      road = options.road}
   self.shards = {["a.weight"] = self:source("a.weight", shard("a.weight", 1, rank, 8)),
      ["b.bias"] = self:source("b.bias", shard("b.bias", 1, rank, 2))}
   return self
end

local function set_values(self, rank, update)
   for name, count in pairs {["a.weight"] = 8, ["b.bias"] = 2} do
      for i, v in ipairs(shard(name, update, rank, count)) do
         self.shards[name][i - 1] = v
      end
   end
end

-- The load_weights of a host that copies every full tensor into a table.
local function collecting(store)
   return function(_, next_tensor)
      local tensor, status = next_tensor()
      while tensor do
         local values = {}
         for i = 0, tonumber(tensor.bytes) / 4 - 1 do
            values[i + 1] = ffi.cast("const float *", tensor.data)[i]
         end
         store[ffi.string(tensor.name)] = values
         tensor, status = next_tensor()
      end
      return status
   end
end

local function worker(rank, options)
   local self
   self = host.create {rank = rank, timeout_s = options.timeout_s or 10, rules = options.rules, road = options.road,
      load_weights = options.load_weights or collecting(options.store or {}),
      reload_begin = options.reload_begin, reload_end = options.reload_end, staging_slots = options.staging_slots}
   self.a = self:live("a.weight", {4, 2}, {attributes = '{"loader":"row","input_dim":1,"tp_size":2}'})
   self.b = self:live("b.bias", {4})
   return self
end

local BOTH = {"a.weight", "b.bias"}

-- What worker `rank` must hold of a.weight after an update: columns [2r, 2r + 2).
local function expect_a(self, rank, update)
   for row = 0, 3 do
      for column = 0, 1 do
         local want = value("a.weight", update, row * 4 + (rank - 2) * 2 + column)
         if self.a[row * 2 + column] ~= want then
            return ("a.weight[%d][%d] is %g, not %g"):format(row, column, self.a[row * 2 + column], want)
         end
      end
   end
   return "good"
end

-- The listening socket is rank 0's alone: whoever else holds it keeps the port from a second init.
local function run(body, options)
   local fd, port = world.listen()
   options = options or {}
   options.meanwhile = function()
      unistd.close(fd)
   end
   return world.run(4, function(rank)
      local store = {}
      if rank > 0 then
         unistd.close(fd)
      end
      local given = {fd = fd, store = store}
      for key, v in pairs(options) do
         given[key] = v
      end
      local self = rank < 2 and trainer(rank, given) or worker(rank, given)
      return body(self, rank, port, store)
   end, options)
end

local function each(results, check)
   for rank = 0, 3 do
      check(results[rank], rank)
   end
end

describe("engine", function()
   for _, road in ipairs {"pull", "ring"} do
      it("moves direct and full parameters over three updates by " .. road, function()
         local results = run(function(self, rank, port, store)
            local seen = {version = {self:version()}, a = {}, b = {}}
            self:init(init_info(port))
            for update = 1, 3 do
               if rank < 2 then
                  set_values(self, rank, update)
               end
               self:start()
               self:update(BOTH)
               seen.during = self:version()
               self:finish("update-" .. update)
               seen.version[update + 1] = self:version()
               if rank >= 2 then
                  seen.a[update] = expect_a(self, rank, update)
                  seen.b[update] = table.concat(store["b.bias"], " ")
               end
            end
            seen.plan = self:plan(true)
            self:shutdown()
            seen.state = self:state()
            self:destroy()
            return seen
         end, {road = road})
         each(results, function(result, rank)
            assert.is_nil(result.raised)
            assert.same({"", "update-1", "update-2", "update-3"}, result.version)
            assert.equal("new", result.state)
            assert.equal(1, result.plan.direct.parameters)
            assert.equal(64, result.plan.direct.bytes)
            assert.equal(16, result.plan.full.bytes)
            assert.equal(2, result.plan.roads[road])
            if rank >= 2 then
               assert.equal("dirty", result.during)
               assert.same({"good", "good", "good"}, result.a)
               assert.same({"1000 1001 1002 1003", "2000 2001 2002 2003", "3000 3001 3002 3003"}, result.b)
               assert.equal(48, result.plan.coverage.live_bytes)
               assert.equal(32, result.plan.coverage.written_bytes)
               assert.equal(32, result.plan.staging_bytes)
            end
         end)
      end)
   end

   it("takes the names in any order and in several batches, the same on both sides", function()
      local results = run(function(self, rank, port, store)
         self:init(init_info(port))
         self:start()
         self:update {"b.bias"}
         self:update {}
         self:update {"a.weight"}
         self:finish("v")
         return {a = rank >= 2 and expect_a(self, rank, 1), b = store["b.bias"] and #store["b.bias"]}
      end)
      assert.same({a = "good", b = 4}, results[2])
      assert.same({a = "good", b = 4}, results[3])
   end)

   it("runs after shutdown and a new init in the same process, with what was registered", function()
      local results = run(function(self, rank, port)
         self:init(init_info(port))
         self:shutdown()
         -- rank 0 binds the port itself now: the listening socket was taken by the first init
         self:init(init_info(port))
         self:start()
         self:update(BOTH)
         self:finish("again")
         self:shutdown()
         self:shutdown()
         return {a = rank >= 2 and expect_a(self, rank, 1), version = self:version()}
      end)
      each(results, function(result, rank)
         assert.is_nil(result.raised)
         assert.equal("again", result.version)
         assert.equal(rank >= 2 and "good" or false, result.a)
      end)
   end)

   it("refuses calls out of order, each by name", function()
      local results = run(function(self, _, port)
         local texts = {}
         local function note(call, ...)
            texts[#texts + 1] = (host.refused(call, ...) or {text = "succeeded"}).text
         end
         note(self.start, self)
         note(self.update, self, BOTH)
         note(self.finish, self, "v")
         note(self.abort, self)
         self:init(init_info(port))
         note(self.init, self, init_info(port))
         note(self.update, self, BOTH)
         note(self.failure, self)
         self:start()
         note(self.start, self)
         self:shutdown()
         return texts
      end)
      each(results, function(texts)
         assert.same({
            "update: start_update wants the engine ready; it is new",
            "update: update wants the engine updating; it is new",
            "update: finish_update wants the engine updating; it is new",
            "abort: abort_update wants the engine updating; it is new",
            "init: the engine is ready; call shutdown before a second init",
            "update: update wants the engine updating; it is ready",
            "report: there is a failure to report only while the engine is failed; it is ready",
            "update: start_update wants the engine ready; it is updating",
         }, texts)
      end)
   end)
end)

describe("init", function()
   it("names the first position and both names when lists differ in order (case order_differs)", function()
      local results = run(function(self, rank, port)
         return host.refused(self.init, self, init_info(port, function(info)
            local names = rank < 2 and {"a.weight", "a.bias", "b.weight"} or {"a.weight", "b.weight", "a.bias"}
            for i, name in ipairs(names) do
               info.params[i] = {name = name, dtype_name = "float32", shape = {4}, src_mesh_dims = {1, 2}, src_placements = {-1, 0}}
               if rank < 2 then
                  self:source(name, {1, 2})
               end
            end
         end))
      end)
      each(results, function(result)
         assert.equal("ranks disagree", result.status)
         assert.equal("source: ranks 0 and 2 differ, first at parameter 1: rank 0 has 'a.bias' float32 [4], axis 1 shards dim 0, "
            .. "rank 2 has 'b.weight' float32 [4], axis 1 shards dim 0 (3 and 3 in all)", result.text)
      end)
   end)

   it("tells every rank of a source that is not what was announced", function()
      local results = run(function(self, rank, port)
         if rank == 1 then
            self:source("b.bias", {1, 2, 3})
         end
         return host.refused(self.init, self, init_info(port))
      end)
      each(results, function(result)
         assert.equal("invalid input", result.status)
         assert.equal(1, result.rank)
         assert.truthy(result.text:find("source 'b.bias' has 12 bytes on rank 1; its box under the announced layout has 8", 1, true),
            result.text)
      end)
   end)

   it("tells every rank of a source that was never registered", function()
      local results = run(function(self, _, port)
         return host.refused(self.init, self, init_info(port, function(info)
            info.params[3] = {name = "c", dtype_name = "float32", shape = {2}, src_mesh_dims = {1, 2}, src_placements = {-1, 0}}
         end))
      end)
      each(results, function(result)
         assert.equal("source: refused: rank 0: source 'c' is not registered on rank 0; its box under the announced layout has 4 bytes; "
            .. "rank 1: source 'c' is not registered on rank 1; its box under the announced layout has 4 bytes", result.text)
      end)
   end)

   it("says what is wrong on this rank, too, when another never comes", function()
      local self = host.create {rank = 1, timeout_s = 0.3}
      local err = host.refused(self.init, self, init_info(1))
      assert.equal("deadline passed", err.status)
      assert.truthy(err.text:find("; on this rank, source: source 'a.weight' is not registered on rank 1", 1, true), err.text)
      self:destroy()
   end)

   it("lets workers keep one rule file under different paths", function()
      local paths = {[2] = os.tmpname(), [3] = os.tmpname()}
      for _, path in pairs(paths) do
         local file = assert(io.open(path, "w"))
         file:write('return { rules = { rule "a.weight" { layout = row }, rule "b.bias" { layout = replicate } } }')
         file:close()
      end
      local fd, port = world.listen()
      local results = world.run(4, function(rank)
         local self = rank < 2 and trainer(rank, {fd = fd}) or worker(rank, {rules = paths[rank]})
         self:init(init_info(port))
         self:start()
         self:update(BOTH)
         self:finish("v")
         return {a = rank >= 2 and expect_a(self, rank, 1)}
      end)
      unistd.close(fd)
      for _, path in pairs(paths) do
         os.remove(path)
      end
      each(results, function(result, rank)
         assert.equal(rank >= 2 and "good" or false, result.a)
      end)
   end)

   it("holds every live byte to account under a rule file, also beside full parameters", function()
      local path = os.tmpname()
      local file = assert(io.open(path, "w"))
      file:write('return { rules = { rule "a.weight" { skip = "forgotten" }, rule "b.bias" { full = "the host loads it" } } }')
      file:close()
      local results = run(function(self, _, port)
         return host.refused(self.init, self, init_info(port))
      end, {rules = path})
      os.remove(path)
      each(results, function(result)
         assert.truthy(result.text:find("live tensor 'a.weight': nothing writes 32 of its 32 bytes; give it a rule, name it as the "
            .. "`into` of a full rule, or list it under unsourced", 1, true), result.text)
      end)
   end)

   it("tells every rank of a digest that is not that of the parameters", function()
      local results = run(function(self, rank, port)
         local json = init_info(port)
         if rank == 3 then
            json = json:gsub('"source_digest":"%x%x%x%x', '"source_digest":"0000')
         end
         return host.refused(self.init, self, json)
      end)
      each(results, function(result)
         assert.equal("invalid input", result.status)
         assert.equal(3, result.rank)
         assert.truthy(result.text:find("source_digest", 1, true), result.text)
      end)
   end)

   it("refuses a plan with full parameters where a worker has no load_weights", function()
      local fd, port = world.listen()
      local results = world.run(4, function(rank)
         local self = rank < 2 and trainer(rank, {fd = fd}) or host.create {rank = rank}
         if rank >= 2 then
            self:live("a.weight", {4, 2}, {attributes = '{"loader":"row","input_dim":1,"tp_size":2}'})
         end
         return host.refused(self.init, self, init_info(port))
      end)
      unistd.close(fd)
      each(results, function(result)
         assert.truthy(result.text:find("the plan has 1 full parameters and this worker has no load_weights", 1, true), result.text)
      end)
   end)

   it("refuses a rank outside the world on that rank, at once", function()
      local self = host.create {rank = 4}
      local err = host.refused(self.init, self, init_info(1))
      assert.equal("init: rank (4) must be below world_size (4)", err.text)
      assert.equal("new", self:state())
      self:destroy()
   end)
end)

describe("update", function()
   it("refuses an unknown name on every rank and changes nothing", function()
      local results = run(function(self, rank, port)
         self:init(init_info(port))
         self:start()
         local err = host.refused(self.update, self, rank == 1 and {"a.weight", "c"} or BOTH)
         local state, version = self:state(), self:version()
         local twice = host.refused(self.update, self, {"b.bias", "b.bias"})
         self:update(BOTH)
         local again = host.refused(self.update, self, {"a.weight"})
         self:finish("v1")
         return {err = err, state = state, version = version, twice = twice, again = again, a = rank >= 2 and expect_a(self, rank, 1)}
      end)
      each(results, function(result, rank)
         assert.truthy(result.err.text:find("names[1] ('c') was not announced at init", 1, true), result.err.text)
         assert.equal(1, result.err.rank)
         assert.equal("updating", result.state)
         assert.equal("", result.version)
         assert.truthy(result.twice.text:find("names[1] ('b.bias') comes a second time in this update", 1, true), result.twice.text)
         assert.truthy(result.again.text:find("names[0] ('a.weight') comes a second time in this update", 1, true))
         assert.equal(rank >= 2 and "good" or false, result.a)
      end)
   end)

   it("refuses lists that differ, names the first difference, and goes on", function()
      local results = run(function(self, rank, port)
         self:init(init_info(port))
         self:start()
         local err = host.refused(self.update, self, rank < 2 and BOTH or {"b.bias", "a.weight"})
         local state = self:state()
         self:update(BOTH)
         self:finish("v1")
         return {text = err.text, status = err.status, state = state}
      end)
      each(results, function(result)
         assert.equal("ranks disagree", result.status)
         assert.equal("updating", result.state)
         assert.equal("update: ranks 0 and 2 differ, first at name 0: rank 0 has 'a.weight', rank 2 has 'b.bias' (2 and 2 in all)",
            result.text)
      end)
   end)

   it("finishes only when everything came, unless it was opened as partial, and only under one label", function()
      local results = run(function(self, rank, port)
         local texts = {}
         self:init(init_info(port))
         self:start()
         self:update {"b.bias"}
         texts[1] = host.refused(self.finish, self, "v1").text
         self:update {"a.weight"}
         texts[2] = host.refused(self.finish, self, rank == 3 and "v2" or "v1").text
         texts[3] = host.refused(self.finish, self, "dirty").text
         self:finish("v1")
         self:start(true)
         self:update {"a.weight"}
         texts[4] = self:version()
         self:finish("v2")
         texts[5] = self:version()
         return texts
      end)
      each(results, function(texts, rank)
         assert.truthy(texts[1]:find("1 of 2 parameters have not come in this update, the first is 'a.weight'", 1, true), texts[1])
         assert.truthy(texts[2]:find("rank 0 has version=v1, rank 3 has version=v2", 1, true), texts[2])
         assert.truthy(texts[3]:find("version ('dirty') is the label of an unfinished update; choose another", 1, true), texts[3])
         assert.equal(rank >= 2 and "dirty" or "v1", texts[4])
         assert.equal("v2", texts[5])
      end)
   end)

   it("refuses new source memory that does not fit, and reads new memory that does", function()
      local results = run(function(self, rank, port)
         self:init(init_info(port))
         local err, first
         if rank == 0 then
            err = host.refused(self.source, self, "a.weight", {1, 2})
         end
         self:start()
         self:update(BOTH)
         self:finish("v1")
         first = rank >= 2 and expect_a(self, rank, 1)
         if rank < 2 then
            self:source("a.weight", shard("a.weight", 7, rank, 8))
         end
         self:start()
         self:update(BOTH)
         self:finish("v7")
         return {err = err and err.text, first = first, a = rank >= 2 and expect_a(self, rank, 7)}
      end)
      assert.equal("good", results[2].first)
      assert.equal("register: source 'a.weight' has 8 bytes on rank 0; its box under the announced layout has 32", results[0].err)
      assert.equal("good", results[2].a)
      assert.equal("good", results[3].a)
   end)

   it("ends on every rank when one aborts", function()
      local results = run(function(self, rank, port)
         self:init(init_info(port))
         self:start()
         self:update {"a.weight"}
         local err
         if rank == 3 then
            self:abort()
         else
            err = host.refused(self.update, self, {"b.bias"})
         end
         local state, failure = self:state(), self:failure()
         local refused = host.refused(self.start, self).text
         self:shutdown()
         return {err = err, state = state, failure = failure, refused = refused, after = self:state(), version = self:version()}
      end)
      each(results, function(result, rank)
         assert.equal("failed", result.state)
         assert.equal("update: start_update wants the engine ready; it is failed", result.refused)
         assert.same({"a.weight"}, result.failure.complete)
         assert.same({"b.bias"}, result.failure.untouched)
         assert.equal("new", result.after)
         assert.equal(rank >= 2 and "dirty" or "", result.version)
         if rank ~= 3 then
            assert.truthy(result.err.text:find("rank 3 gave the update up", 1, true), result.err.text)
            assert.equal("cancelled", result.err.status)
         end
      end)
   end)

   it("fails on every rank, naming it, when a rank is killed in the middle", function()
      local results = run(function(self, rank, port)
         self:init(init_info(port))
         self:start()
         self:update {"a.weight"}
         if rank == 1 then
            require("posix.signal").kill(unistd.getpid(), 9)
         end
         local began = world.now()
         local err = host.refused(self.update, self, {"b.bias"})
         return {err = err, state = self:state(), seconds = world.now() - began}
      end)
      assert.same({signal = 9}, results[1])
      for _, rank in ipairs {0, 2, 3} do
         assert.equal("failed", results[rank].state)
         assert.truthy(results[rank].err.text:find("rank 1", 1, true), results[rank].err.text)
         assert.is_true(results[rank].seconds < 9, "the deadline, not the lost rank, ended the wait")
      end
   end)
end)

describe("load_weights", function()
   it("runs between the reload hooks, and fails the update on every rank when it fails", function()
      local results = run(function(self, _, port)
         self:init(init_info(port))
         self:start()
         local err = host.refused(self.update, self, BOTH)
         return {err = err, state = self:state()}
      end, {load_weights = function(self, next_tensor, _, err)
         next_tensor()
         local text = "no room for b.bias"
         ffi.copy(err.text, text, #text + 1)
         return self.fails or 3
      end})
      each(results, function(result)
         assert.equal("failed", result.state)
         assert.truthy(result.err.text:find("load_weights failed: no room for b.bias", 1, true), result.err.text)
      end)
   end)

   it("must pull every full parameter", function()
      local results = run(function(self, _, port)
         self:init(init_info(port))
         self:start()
         return host.refused(self.update, self, BOTH)
      end, {load_weights = function() return 0 end})
      assert.truthy(results[2].text:find("load_weights returned after 0 of 1 full parameters; it must pull all", 1, true), results[2].text)
   end)

   it("calls the reload hooks once an update, begin before the first full parameter and end in finish", function()
      local results = run(function(self, rank, port)
         self.calls = {}
         self:init(init_info(port))
         self:start()
         self:update {"a.weight"}
         self.calls[#self.calls + 1] = "direct done"
         self:update {"b.bias"}
         self:finish("v")
         return rank >= 2 and self.calls or {}
      end, {
         reload_begin = function(self) self.calls[#self.calls + 1] = "begin" end,
         reload_end = function(self) self.calls[#self.calls + 1] = "end" end,
      })
      assert.same({"direct done", "begin", "end"}, results[2])
      assert.same({"direct done", "begin", "end"}, results[3])
   end)

   it("hands out many full tensors through two slots, keeps one when asked and refuses to keep all", function()
      local count = 9
      local fd, port = world.listen()
      local json = world.seal {schema_version = 2, master_address = "127.0.0.1", master_port = port, rank_offset = 1, world_size = 2,
         dst_mesh_dims = {1, 1}, params = (function()
            local params = {}
            for i = 1, count do
               params[i] = {name = "p" .. i, dtype_name = "float32", shape = {i}, src_mesh_dims = {1, 1}, src_placements = require("cjson").null}
            end
            return params
         end)()}
      local names = {}
      for i = 1, count do
         names[i] = "p" .. i
      end
      local results = world.run(2, function(rank)
         local seen = {}
         local self = host.create {rank = rank, listen_fd = rank == 0 and fd or nil, staging_slots = 3,
            load_weights = function(_, next_tensor, weights)
               local kept
               for i = 1, count do
                  local tensor = next_tensor()
                  seen[i] = ffi.string(tensor.name) .. " " .. tonumber(tensor.shape[0]) .. " " .. ffi.cast("const float *", tensor.data)[i - 1]
                  local err = inside.error()
                  if i == 1 then
                     kept = tensor
                     assert(C.sluice_weights_keep(weights, tensor, err) == 0, inside.text(err))
                     seen.first = ffi.cast("const float *", tensor.data)
                  elseif i == 2 then
                     assert(C.sluice_weights_keep(weights, tensor, err) == 0, inside.text(err))
                     C.sluice_weights_release(weights, tensor)
                  elseif i == 3 then
                     seen.kept = seen.first[0]
                     C.sluice_weights_release(weights, kept)
                  end
               end
               seen.ended = next_tensor() == nil
               return 0
            end}
         if rank == 0 then
            for i = 1, count do
               local values = {}
               for j = 1, i do
                  values[j] = i * 10 + j
               end
               self:source("p" .. i, values)
            end
         end
         self:init(json)
         self:start()
         self:update(names)
         self:finish("v")
         seen.first = nil
         return seen
      end)
      unistd.close(fd)
      assert.is_nil(results[1].raised)
      assert.is_true(results[1].ended)
      assert.equal(11, results[1].kept)
      for i = 1, count do
         assert.equal(("p%d %d %d"):format(i, i, i * 10 + i), results[1][tostring(i)])
      end
   end)
end)
