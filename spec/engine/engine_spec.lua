--- The whole life of an engine through the public API, ranks as processes: init, calls out of order, shutdown.

local cjson = require "cjson"
local ffi = require "ffi"
local four = require "spec.support.four"
local host = require "spec.support.host"
local inside = require "spec.support.inside"
local unistd = require "posix.unistd"
local world = require "spec.support.world"

local init_info, trainer, set_values, worker = four.init_info, four.trainer, four.set_values, four.worker
local C = inside.declare("sluice.h")
local expect_a, run, each, BOTH = four.expect_a, four.run, four.each, four.BOTH

describe("engine", function()
   for _, road in ipairs {"pull", "ring"} do
      it("moves direct and full parameters over three updates (#4.4, #4.9) by " .. road, function()
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

   it("takes the names in any order and in several batches, the same on both sides #4.2", function()
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

   it("runs after shutdown and a new init in the same process, with what was registered #4.17", function()
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

   it("refuses calls out of order, each by name #2.8", function()
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
describe("what a host registers", function()
   it("is refused by name, under the name of that stage", function()
      local self = host.create {rank = 0}
      self:live("w", {2})
      local cases = {
         {self.live, {"", {2}}, "live[1] has no name"},
         {self.live, {"w", {2}}, "live 'w' is registered twice"},
         {self.live, {"v", {2}, {dtype = "float31"}}, "live tensor 'v': dtype (float31) must be a torch name such as bfloat16"},
         {self.source, {"", {1}}, "a source needs a name and a dtype"},
         {self.source, {"v", {1}, "f32"}, "source 'v': dtype (f32) must be a torch name such as bfloat16"},
         {self.describe, {"[1]"}, "the host's description ([1]) must be a JSON object"},
         {self.describe, {"{"}, "the host's description: JSON byte 1 (the end) must be a key in quotes"},
         {self.describe, {"{}\0"}, "the host description must be a JSON object without zero bytes"},
      }
      for _, case in ipairs(cases) do
         local err = host.refused(case[1], self, unpack(case[2]))
         assert.equal("register: " .. case[3], err and err.text)
      end
      self:destroy()
   end)
end)

describe("init", function()
   it("names the first position and both names when lists differ in order (case order_differs) #2.3", function()
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
         assert.equal("source: ranks 0 and 2 differ, first at parameter 1: rank 0 has 'a.bias' float32 [4], cut (1:0) of '1x2', "
            .. "rank 2 has 'b.weight' float32 [4], cut (1:0) of '1x2' (3 and 3 in all); rank 3 says what rank 2 does", result.text)
      end)
   end)

   -- Each has what one rank makes of the init info, and the text that every rank gets.
   local differing = {
      { "lists, each kind of it #2.2 #2.3", { [1] = function(info) info.params[2].allow_full_fallback = false end,
         [2] = function(info) info.params[2] = nil end, [3] = function(info) info.params[2].allow_full_fallback = false end },
         "source: ranks 0 and 1 differ, first at parameter 1: rank 0 has 'b.bias' float32 [4], cut (1:0) of '1x2', rank 1 has 'b.bias' "
            .. "float32 [4] direct only, cut (1:0) of '1x2' (2 and 2 in all); rank 3 says what rank 1 does; ranks 0 and 2 "
            .. "differ, first at parameter 1: rank 0 has 'b.bias' float32 [4], cut (1:0) of '1x2', rank 2 has (none) (2 and 1 in all)" },
      { "meshes of the trainers alone", { [2] = function(info) info.params[2].src_placements = cjson.null end,
         [3] = function(info) info.params[2].src_placements, info.params[2].src_mesh_dims = cjson.null, { 2, 1 } end },
         "source: ranks 0 and 2 differ, first at parameter 1: rank 0 has 'b.bias' float32 [4], cut (1:0) of '1x2', rank 2 has 'b.bias' "
            .. "float32 [4], cut () of '1x2' (2 and 2 in all); ranks 0 and 3 differ, first at parameter 1: rank 0 has 'b.bias' "
            .. "float32 [4], cut (1:0) of '1x2', rank 3 has 'b.bias' float32 [4], cut () of '2x1' (2 and 2 in all)" },
      { "worlds, which the digest does not cover", { [0] = function(info) info.dst_mesh_dims = { 2, 1 } end },
         "source: ranks 0 and 1 differ: rank 0 has rank_offset 2, workers' mesh (dp 2, tp 1), rank 1 has rank_offset 2, workers' mesh "
            .. "(dp 1, tp 2); ranks 2, 3 say what rank 1 does" },
      { "settings #2.6", { [1] = function(info) info.max_cta = 4 end, [2] = function(info) info.max_cta = 8 end,
         [3] = function(info) info.max_cta = 4 end },
         "data plane: settings must be the same on every rank: rank 0 has max_cta=0, rank 1 has max_cta=4; rank 3 says what rank 1 does; "
            .. "rank 0 has max_cta=0, rank 2 has max_cta=8" },
   }
   for _, case in ipairs(differing) do
      it("names every rank that has other " .. case[1], function()
         local results = run(function(self, rank, port)
            return host.refused(self.init, self, init_info(port, case[2][rank]))
         end)
         each(results, function(result)
            assert.equal(case[3], result.text)
            assert.equal("ranks disagree", result.status)
         end)
      end)
   end

   it("tells every rank of a source that is not what was announced #2.1 #2.2 #5.8", function()
      local results = run(function(self, rank, port)
         if rank == 1 then
            self:source("b.bias", {1, 2, 3})
         end
         return host.refused(self.init, self, init_info(port))
      end)
      each(results, function(result)
         assert.equal("invalid input", result.status)
         assert.equal(1, result.rank)
         assert.equal("source: refused: rank 1: source 'b.bias' has 12 bytes on rank 1; its box under the announced layout has 8", result.text)
      end)
   end)

   it("tells every rank of a source that was never registered #2.2 #5.8", function()
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

   it("tells every rank of a live tensor that was refused and not given again #2.1", function()
      local results = run(function(self, rank, port)
         if rank == 3 then
            host.refused(self.live, self, "odd.weight", {2}, {dtype = "float33"})
         end
         return host.refused(self.init, self, init_info(port))
      end)
      each(results, function(result)
         assert.equal(3, result.rank)
         assert.equal("source: refused: rank 3: register: live tensor 'odd.weight': dtype (float33) must be a torch name such as bfloat16",
            result.text)
      end)
   end)

   it("says what is wrong on this rank, too, when another never comes", function()
      local self = host.create {rank = 1, timeout_s = 0.3}
      local err = host.refused(self.init, self, init_info(1))
      assert.equal("deadline passed", err.status)
      assert.equal("rendezvous: rank 1 got no welcome from rank 0 at 127.0.0.1 port 1 within 0.3 s; the last attempt: cannot connect to "
         .. "127.0.0.1:1: Connection refused; on this rank, source: source 'a.weight' is not registered on rank 1; its box under the "
         .. "announced layout has 32 bytes", err.text)
      self:destroy()
   end)

   it("lets workers keep one rule file under different paths", function()
      local paths = {}
      for rank = 2, 3 do
         paths[rank] = host.file('return { rules = { rule "a.weight" { layout = row }, rule "b.bias" { layout = replicate } } }')
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
      local path = host.file('return { rules = { rule "a.weight" { skip = "forgotten" }, rule "b.bias" { full = "the host loads it" } } }')
      local results = run(function(self, _, port)
         return host.refused(self.init, self, init_info(port))
      end, {rules = path})
      os.remove(path)
      each(results, function(result)
         assert.equal("destination: refused: ranks 2, 3: live tensor 'a.weight' [4, 2]: nothing writes 32 of its 32 bytes; give it a rule, name "
            .. "it as the `into` of a full rule, or list it under unsourced", result.text)
      end)
   end)

   it("never reads a source that was not announced, and logs it; between updates it is refused", function()
      local log = {}
      local results = four.run(function(self, rank, port)
         if rank == 0 then
            self:source("a.wieght", {1})
            self:source("b.bais", {1})
         end
         self:init(four.init_info(port))
         if rank == 0 then
            local err = host.refused(self.source, self, "a source", {1})
            assert.equal("register: source 'a source' was not announced at init", err.text)
         end
         self:start()
         self:update(four.BOTH)
         self:finish("step-1")
         self:shutdown()
         self:init(four.init_info(port))
         return {said = table.concat(log, "\n"):match(".*(init: of the sources[^\n]*)"), a = rank < 2 and "good" or four.expect_a(self, rank, 1)}
      end, {log = log})
      each(results, function(result, rank)
         assert.same({said = rank == 0 and "init: of the sources that are registered here 2 were not announced; the first is 'a.wieght'" or nil,
                      a = "good"}, result)
      end)
   end)

   it("tells every rank of a digest that is not that of the parameters #1.10", function()
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
         local told, computed = result.text:match("^source: refused: rank 3: init: source_digest %((%x+)%) must be that of params %((%x+)%)"
            .. "; sluice_seal_init_info fills it in$")
         assert.equal("0000" .. computed:sub(5), told)
      end)
   end)

   it("names every rank that cannot connect, with its cause #2.13", function()
      ffi.cdef("int prctl(int option, unsigned long argument);")
      local results = run(function(self, rank, port)
         -- Without capabilities and not dumpable, a process cannot be read by others of its own user.
         if unistd.geteuid() == 0 then
            assert(unistd.setpid("g", 65534) and unistd.setpid("u", 65534))
         end
         ffi.C.prctl(4, 0)
         return {text = host.refused(self.init, self, init_info(port)).text, state = self:state(), rank = rank}
      end, {road = "pull"})
      each(results, function(result)
         assert.equal("new", result.state)
         assert.equal('connect: refused: ranks 2, 3: runtime: road "pull" to rank 0 (PID) does not work (NO): leave the road open, or let '
            .. "this process read that one", (result.text:gsub("%(pid %d+%)", "(PID)")
            :gsub("%(process_vm_readv: Operation not permitted[^:]*%):", "(NO):")))
      end)
   end)

   it("names the first destination that differs between workers, from both sides #2.4", function()
      local paths = {[2] = host.file('return { rules = { rule "a.weight" { layout = row }, rule "b.bias" { layout = replicate } } }'),
         [3] = host.file('return { rules = { rule "a.weight" { layout = row }, rule "b.bias" { full = "as it likes" } } }')}
      local fd, port = world.listen()
      local results = world.run(4, function(rank)
         local self = rank < 2 and trainer(rank, {fd = fd}) or worker(rank, {rules = paths[rank]})
         return host.refused(self.init, self, init_info(port))
      end)
      unistd.close(fd)
      for _, path in pairs(paths) do
         os.remove(path)
      end
      each(results, function(result)
         assert.equal("destination: ranks 2 and 3 differ, first at parameter 1: rank 2 has 'b.bias' direct [0:4] -> 'b.bias' [:] (), "
            .. "rank 3 has 'b.bias' full, because: as it likes (2 and 2 in all)", result.text)
         assert.equal("ranks disagree", result.status)
      end)
   end)

   it("gives every rank the same plan and commit token #2.5", function()
      local results = run(function(self, _, port)
         self:init(init_info(port))
         local plan = self:plan(true)
         return {plan.source_digest, plan.destination_digest, plan.commit_token, plan.plan}
      end)
      each(results, function(result)
         assert.equal(3 * 64, #(result[1] .. result[2] .. result[3]))
         assert.same(results[0], result)
      end)
   end)

   it("refuses settings that differ, with the names and both values #2.6", function()
      local results = run(function(self, rank, port)
         return host.refused(self.init, self, init_info(port, function(info)
            info.max_cta = rank == 3 and 8 or 16
            info.nccl_unique_id_b64 = rank == 3 and ("A"):rep(171) .. "=" or nil
         end))
      end)
      each(results, function(result)
         assert.equal(3, result.rank)
         assert.equal("data plane: settings must be the same on every rank: rank 0 has unique_id=none, rank 3 has unique_id="
            .. "38723a2e5e8a17aa7950dc008209944e898f69a7bd10a23c839d341e935fd5ca; rank 0 has max_cta=16, rank 3 has max_cta=8", result.text)
      end)
   end)

   it("names every rank that cannot run, with the bytes wanted and there where memory is short #2.7", function()
      local extent = 2 ^ 44
      local results = run(function(self, rank, port)
         if rank < 2 then
            local err = inside.error()
            assert(C.sluice_register_source(self.engine, "b.bias", "float32", self.shards["b.bias"], extent * 2, err) == 0, inside.text(err))
         end
         return host.refused(self.init, self, init_info(port, function(info)
            info.params[2].shape = {extent}
         end))
      end)
      each(results, function(result)
         local shown = result.text:gsub("%(%d+ bytes%)", "(SOME bytes)"):gsub("; rank 3: .*", function(rest)
            return rest == "; rank 3: 2 staging slots of 70368744177664 bytes must fit the memory that is available (SOME bytes)" and "" or rest
         end):gsub("ranks 2, 3", "rank 2")
         assert.equal("runtime: refused: rank 2: 2 staging slots of 70368744177664 bytes must fit the memory that is available (SOME bytes)", shown)
         assert.equal("out of memory", result.status)
      end)
   end)

   it("refuses a live tensor that cannot be written, on every rank #5.12", function()
      ffi.cdef("void *mmap(void *, size_t, int, int, int, long);")
      local results = run(function(self, rank, port)
         if rank == 3 then
            assert(tonumber(C.sluice_forget(self.engine, nil)) == 0)
            local live, shape = ffi.new("sluice_live"), ffi.new("int64_t[2]", {4, 2})
            live.size, live.ndim, live.shape, live.name, live.dtype = ffi.sizeof(live), 2, shape, "a.weight", "float32"
            live.attributes = '{"loader":"row","input_dim":1,"tp_size":2}'
            live.data = ffi.C.mmap(nil, 4096, 1, 0x22, -1, 0) -- readable, private, anonymous
            assert(tonumber(C.sluice_register_live(self.engine, live, nil)) == 0)
            self:live("b.bias", {4})
         end
         return host.refused(self.init, self, init_info(port))
      end)
      each(results, function(result)
         assert.equal("runtime: refused: rank 3: live tensor a.weight (FROM to TO) must lie in memory that this process can write",
            (result.text:gsub("%(0x%x+ to 0x%x+%)", "(FROM to TO)")))
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
         assert.equal("destination: refused: ranks 2, 3: the plan has 1 full parameter and this worker has no load_weights; the first "
            .. "is 'b.bias': no live parameter has its name (no rules were given: the default resolver decides)", result.text)
      end)
   end)

   it("refuses a rank outside the world on that rank, at once", function()
      local self = host.create {rank = 4}
      local err = host.refused(self.init, self, init_info(1))
      assert.same({status = "invalid input", text = "init: rank (4) must be below world_size (4)", rank = 4}, err)
      assert.equal("new", self:state())
      self:destroy()
   end)
end)