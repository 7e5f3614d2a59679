--- Updates through the public API, ranks as processes: batches, refusals, failures, load_weights.

local ffi = require "ffi"
local four = require "spec.support.four"
local host = require "spec.support.host"
local inside = require "spec.support.inside"
local unistd = require "posix.unistd"
local world = require "spec.support.world"

local C = inside.declare("sluice.h")
local init_info, shard = four.init_info, four.shard

local function tidy(text)
   return (text:gsub("%(process %d+ on [^,]+, [^)]+%)", "(process)"))
end

local expect_a, run, each, BOTH = four.expect_a, four.run, four.each, four.BOTH

describe("update", function()
   -- What rank 1 gives in place of the list of the others, and what it gets.
   local wrong = {
      {"a name that was not announced", {"a.weight", "c"}, "names[1] ('c') was not announced at init"},
      {"a name twice in one batch", {"b.bias", "b.bias"}, "names[1] ('b.bias') comes a second time in this update"},
      {"what its own host refuses", "the memory of a.weight is lost", "the memory of a.weight is lost", call = host.refuse_update},
      {"what its own host refuses in bytes that are no text", "\255", "refused by the host, which gave no reason in UTF-8",
         call = host.refuse_update},
   }
   for _, case in ipairs(wrong) do
      it("refuses " .. case[1] .. " there at once, tells every rank when it comes, and changes nothing #4.1", function()
         for _, culprit in ipairs {0, 1, 3} do
            local told, tell = unistd.pipe()
            local results = run(function(self, rank, port)
               self:init(init_info(port))
               self:start()
               if rank ~= culprit then
                  unistd.read(told, 1) -- nobody comes before the culprit is refused
               end
               local err = host.refused(rank == culprit and case.call or self.update, self, rank == culprit and case[2] or BOTH)
               if rank == culprit then
                  unistd.write(tell, "123")
               end
               local state, version = self:state(), self:version()
               self:update(BOTH)
               local again = host.refused(self.update, self, {"a.weight"})
               self:finish("v1")
               return {err = err, state = state, version = version, again = again.text,
                  a = rank >= 2 and expect_a(self, rank, 1)}
            end)
            each(results, function(result, rank)
               local who = rank == culprit and "" or ("refused: rank %d: "):format(culprit)
               assert.is_nil(result.raised)
               assert.same({status = "invalid input", text = "update: " .. who .. case[3], rank = culprit}, result.err)
               assert.equal("updating", result.state)
               assert.equal("", result.version)
               assert.equal("update: names[0] ('a.weight') comes a second time in this update", result.again)
               assert.equal(rank >= 2 and "good" or false, result.a)
            end)
            unistd.close(told)
            unistd.close(tell)
         end
      end)
   end

   it("refuses what is no list of names, on all ranks at once, and goes on #4.1", function()
      local results = run(function(self, _, port)
         self:init(init_info(port))
         self:start()
         local texts, half_empty = {}, ffi.new("const char *[2]")
         half_empty[0] = "a.weight"
         for i, list in ipairs({false, half_empty}) do
            local err = inside.error()
            assert(C.sluice_update(self.engine, list or nil, 2, err) == 1)
            texts[i] = inside.text(err)
         end
         self:update(BOTH)
         self:finish("v1")
         texts[3] = self:version()
         return texts
      end)
      each(results, function(texts)
         assert.same({"update: names (NULL) must be a list of 2 strings", "update: names[1] (NULL) must be a string", "v1"}, texts)
      end)
   end)

   it("tells every cause where several lists are wrong, of a rank too that has left meanwhile #2.2", function()
      local results = run(function(self, rank, port)
         self:init(init_info(port))
         self:start()
         world.sleep(rank < 2 and 0.3 or 0)
         local err = host.refused(self.update, self, rank < 2 and BOTH or {"no " .. rank})
         if rank == 3 then
            self:shutdown()
         elseif rank == 2 then
            host.refused(self.update, self, BOTH) -- stays until the others have come
         end
         return {text = err.text}
      end)
      for rank = 0, 1 do
         assert.equal("update: refused: rank 2: names[0] ('no 2') was not announced at init; rank 3: names[0] ('no 3') was not announced at init",
            results[rank].text)
      end
      assert.equal("update: names[0] ('no 2') was not announced at init", results[2].text)
      assert.equal("update: names[0] ('no 3') was not announced at init", results[3].text)
   end)

   it("waits for the others before a second wrong list, so that no call is lost", function()
      local results = run(function(self, rank, port)
         local texts = {}
         self:init(init_info(port))
         self:start()
         for i = 1, 3 do
            world.sleep(rank ~= 3 and 0.2 or 0)
            texts[i] = host.refused(self.update, self, rank == 3 and {"no " .. i} or BOTH).text
         end
         self:update(BOTH)
         self:finish("v1")
         texts[4] = self:version()
         return texts
      end)
      each(results, function(texts, rank)
         for i = 1, 3 do
            assert.equal(("update: %snames[0] ('no %d') was not announced at init"):format(rank == 3 and "" or "refused: rank 3: ", i), texts[i])
         end
         assert.equal("v1", texts[4])
      end)
   end)

   it("refuses lists that differ, names the first difference, and goes on #4.3", function()
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
         assert.equal("update: ranks 0 and 2 differ, first at name 0: rank 0 has 'a.weight', rank 2 has 'b.bias' (2 and 2 in all); "
            .. "rank 3 says what rank 2 does",
            result.text)
      end)
   end)

   it("finishes only when everything came, unless it was opened as partial, and only under one label #4.8 #4.9", function()
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
      each(results, function(texts)
         assert.equal("finish: 1 of 2 parameters have not come in this update, the first is 'a.weight'", texts[1])
         assert.equal("finish: settings must be the same on every rank: rank 0 has version=v1, rank 3 has version=v2", texts[2])
         assert.equal("finish: version ('dirty') is the label of an unfinished update; choose another", texts[3])
         assert.equal("dirty", texts[4])
         assert.equal("v2", texts[5])
      end)
   end)

   it("finishes a partial update only with all companions or none of them", function()
      local path = host.file('return { rules = {\n rule "a.weight" { layout = row, companion = "b.bias" }, rule "b.bias" {} } }')
      local results = run(function(self, _, port)
         local texts = {}
         self:init(init_info(port))
         self:start()
         self:update(BOTH)
         self:finish("v1")
         self:start(true)
         self:update {"b.bias"}
         local err = host.refused(self.finish, self, "v2")
         texts[1], texts[2] = err.text, self:state()
         self:update {"a.weight"}
         self:finish("v2")
         self:start(true)
         self:finish("v3")
         texts[3] = self:version()
         return texts
      end, {rules = path})
      os.remove(path)
      each(results, function(texts)
         assert.equal("finish: 'b.bias' has come in this update, 'a.weight' has not; they are companions (" .. path .. ":2)", texts[1])
         assert.equal("updating", texts[2])
         assert.equal("v3", texts[3])
      end)
   end)

   it("refuses new source memory that does not fit, and reads new memory that does #5.8", function()
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

   it("ends on every rank when one aborts #4.13 #4.14 #4.18", function()
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
         assert.equal("dirty", result.version)
         if rank ~= 3 then
            assert.equal("abort: rank 3 (process) gave up: the host gave the update up", tidy(result.err.text))
            assert.equal("cancelled", result.err.status)
         end
      end)
   end)

   it("fails on every rank, naming it, when a rank is killed in the middle #4.12 #5.9", function()
      local results = run(function(self, rank, port)
         self:init(init_info(port))
         self:start()
         self:update {"a.weight"}
         if rank == 1 then
            require("posix.signal").kill(unistd.getpid(), 9)
         end
         local err = host.refused(self.update, self, {"b.bias"})
         return {err = err, state = self:state(), failure = self:failure()}
      end)
      assert.same({signal = 9}, results[1])
      for _, rank in ipairs {0, 2, 3} do
         assert.equal("failed", results[rank].state)
         assert.same({status = "another rank failed or was lost", rank = 1, text = results[rank].err.text}, results[rank].err)
         assert.matches("^%l+: rank 1 %(process%) was lost: its connection ended$", tidy(results[rank].err.text))
         assert.same({complete = {"a.weight"}, torn = {}, untouched = {"b.bias"}}, results[rank].failure)
      end
   end)
end)
describe("load_weights", function()
   -- Worker 2 does `wrong`, worker 3 pulls everything.
   local function failing(wrong)
      local results = run(function(self, rank, port)
         self.rank = rank
         self:init(init_info(port))
         self:start()
         local err = host.refused(self.update, self, BOTH)
         return {text = tidy(err.text), status = err.status, state = self:state()}
      end, {load_weights = function(self, next_tensor, _, err)
         if self.rank == 2 then
            return wrong(next_tensor, err)
         end
         while next_tensor() do end -- luacheck: ignore
         return 0
      end})
      return results
   end

   local function all_fail(results, text)
      each(results, function(result, rank)
         assert.same({state = "failed", text = "update: " .. (rank == 2 and "" or "rank 2 (process) gave up: ") .. text,
            status = rank == 2 and "a callback of the host failed" or "another rank failed or was lost"}, result)
      end)
   end

   it("fails the update on every rank when it fails #4.12", function()
      all_fail(failing(function(next_tensor, err)
         next_tensor()
         ffi.copy(err.text, "no room for b.bias")
         return 3
      end), "load_weights failed: no room for b.bias")
   end)

   it("must pull every full parameter", function()
      all_fail(failing(function() return 0 end), "load_weights returned after 0 of 1 full parameters; it must pull all")
   end)

   it("calls the reload hooks once an update, begin before the first full parameter and end in finish #4.7", function()
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

   it("has no hooks to call where no parameter is full #4.7", function()
      local path = host.file('return { rules = { rule "a.weight" { layout = row }, rule "b.bias" { layout = replicate } } }')
      local function hook(self) self.called = true end
      local results = run(function(self, _, port)
         self:init(init_info(port))
         self:start()
         self:update(BOTH)
         self:finish("v")
         return {version = self:version(), called = self.called}
      end, {rules = path, reload_begin = hook, reload_end = hook, load_weights = function(self) self.called = true end})
      os.remove(path)
      each(results, function(result)
         assert.same({version = "v"}, result)
      end)
   end)

   it("ends on every rank with the cause when a worker's reload_end fails, and the version stays dirty #4.10", function()
      local results = run(function(self, rank, port)
         self.rank = rank
         self:init(init_info(port))
         self:start()
         self:update(BOTH)
         local err = host.refused(self.finish, self, "v")
         return {text = err.text, status = err.status, rank = err.rank, state = self:state(), version = self:version()}
      end, {reload_begin = function() end, reload_end = function(self, err)
         if self.rank == 3 then
            ffi.copy(err.text, "the model does not load")
            return 3
         end
      end})
      each(results, function(result)
         assert.same({text = "finish: refused: rank 3: reload_end failed: the model does not load", rank = 3, state = "failed",
            status = "a callback of the host failed", version = "dirty"}, result)
      end)
   end)

   it("gets the next tensor while it consumes one #4.6", function()
      local fd, port = world.listen()
      local json = world.seal {schema_version = 2, master_address = "127.0.0.1", master_port = port, rank_offset = 1, world_size = 2,
         dst_mesh_dims = {1, 1}, params = {
            {name = "p1", dtype_name = "float32", shape = {1}, src_mesh_dims = {1, 1}, src_placements = require("cjson").null},
            {name = "p2", dtype_name = "float32", shape = {1}, src_mesh_dims = {1, 1}, src_placements = require("cjson").null},
         }}
      local results = world.run(2, function(rank)
         local slots, seen = {}, {}
         local self = host.create {rank = rank, listen_fd = rank == 0 and fd or nil, load_weights = function(_, next_tensor)
            local first = ffi.cast("const float *", next_tensor().data)
            local other = slots[1] and (slots[1] == first and slots[2] or slots[1])
            local deadline = world.now() + 5
            while other and other[0] ~= 12 and world.now() < deadline do
               world.sleep(0.005)
            end
            seen = {first[0], other and other[0] or 0} -- before the second is pulled
            slots = {first, ffi.cast("const float *", next_tensor().data)}
            return next_tensor() and 1 or 0
         end}
         local sources = rank == 0 and {self:source("p1", {1}), self:source("p2", {2})}
         self:init(json)
         for update = 1, 2 do
            if rank == 0 then
               sources[1][0], sources[2][0] = update * 10 - 9, update * 10 - 8
            end
            self:start()
            self:update {"p1", "p2"}
            self:finish("v" .. update)
         end
         return seen
      end)
      unistd.close(fd)
      assert.same({11, 12}, results[1])
   end)

   it("hands out many full tensors through two slots, keeps one when asked and refuses to keep all #4.5", function()
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