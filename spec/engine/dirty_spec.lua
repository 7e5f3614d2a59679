--- What is left of an update that failed: which ranks know after a new init that live memory holds parts of it, and that
-- only a whole update ends that. Two worlds one after the other, the second with other processes or another size.

local four = require "spec.support.four"
local host = require "spec.support.host"
local inside = require "spec.support.inside"
local ports = require "spec.support.ports"
local signal = require "posix.signal"
local unistd = require "posix.unistd"
local world = require "spec.support.world"

local C = inside.declare("sluice.h")
local BOTH = four.BOTH

-- Runs `processes` of which the first four are the ranks of a first world: first(self, rank). Then process `child` is rank
-- second(child) of a world of 2 trainers and `workers` workers, with a fresh engine where it has none, and with tensors of its own
-- where there are others than 2 workers, or `anew`. Gives what each saw there.
local function two_worlds(processes, workers, first, second, anew)
   local fd, port = world.listen()
   local again_port = ports.hold()
   local results = world.run(processes, function(child)
      local self
      if child > 0 then
         unistd.close(fd)
      end
      if child < 4 then
         self = child < 2 and four.trainer(child, {fd = fd}) or four.worker(child, {})
         self:init(four.init_info(port))
         first(self, child)
         self:shutdown()
      end
      local rank = second(child)
      if not rank then
         return {}
      end
      if not self or rank ~= child then
         self = rank < 2 and four.trainer(rank, {}) or four.worker(rank, {})
      end
      if rank >= 2 and (workers ~= 2 or anew) then
         assert(tonumber(C.sluice_forget(self.engine, nil)) == 0)
         self.a = self:live("a.weight", {4, 4 / workers}, {attributes = ('{"loader":"row","input_dim":1,"tp_size":%d}'):format(workers)})
         self:live("b.bias", {4})
      end
      self:init(four.init_info(again_port, function(info)
         info.world_size, info.dst_mesh_dims = 2 + workers, {1, workers}
      end))
      local seen = {version = self:version()}
      local refused = host.refused(self.start, self, true)
      if refused then
         seen.partial, seen.status = refused.text, refused.status
         self:start()
         self:update {"b.bias"}
         seen.during = self:version()
         seen.incomplete = host.refused(self.finish, self, "half").text
         self:update {"a.weight"}
         self:finish("whole")
         self:start(true)
         self:update {"b.bias"}
      end
      self:finish("partial")
      seen.after = self:version()
      return seen
   end, {meanwhile = function() unistd.close(fd) end})
   for child = 0, processes - 1 do
      assert.is_nil(results[child].raised)
   end
   return results
end

local function same(child)
   return child
end

local function all_dirty(results, processes, why, second)
   for child = 0, processes - 1 do
      local rank = second(child)
      local seen = results[child]
      if rank then
         assert.equal("dirty", seen.version)
         assert.equal("update: a partial update is refused until a whole one is finished: " .. why, seen.partial)
         assert.equal("call not allowed in this state", seen.status)
         assert.equal("dirty", seen.during)
         assert.equal("finish: 1 of 2 parameters have not come in this update, the first is 'a.weight'", seen.incomplete)
         assert.equal("partial", seen.after)
      end
   end
end

local function all_clean(results, processes, version)
   for child = 0, processes - 1 do
      assert.same({version = version, after = "partial"}, results[child])
   end
end

-- An update of which one batch moved, then given up.
local function half(self, rank)
   self:start()
   self:update {"a.weight"}
   if rank == 3 then
      self:abort()
   else
      assert(host.refused(self.update, self, {"b.bias"}))
   end
   assert(self:version() == "dirty")
end

local function whole(self)
   self:start()
   self:update(BOTH)
   self:finish("v1")
end

describe("after an update that was given up half way", function()
   it("the same ranks are dirty, and only a whole update ends that #4.15 #4.16", function()
      all_dirty(two_worlds(4, 2, half, same), 4, "rank 0 sent parts of an update that was not finished", same)
   end)

   it("a world with fewer workers is dirty", function()
      local function second(child)
         return child < 3 and child or nil
      end
      all_dirty(two_worlds(4, 1, half, second), 4, "rank 0 sent parts of an update that was not finished", second)
   end)

   it("a world with more workers is dirty, the fresh ones too", function()
      all_dirty(two_worlds(6, 4, half, same), 6, "rank 0 sent parts of an update that was not finished", same)
   end)

   it("fresh trainers hear it from the workers", function()
      local function second(child) -- processes 4 and 5 take the trainers' places
         return ({[2] = 2, [3] = 3, [4] = 0, [5] = 1})[child]
      end
      all_dirty(two_worlds(6, 2, half, second), 6, "rank 2 holds parts of an update that was not finished", second)
   end)

   it("all fresh but one hear it from that one", function()
      local function second(child)
         return ({[3] = 3, [4] = 0, [5] = 1, [6] = 2})[child]
      end
      all_dirty(two_worlds(7, 2, half, second), 7, "rank 3 holds parts of an update that was not finished", second)
   end)

   it("a fresh process in the place of a worker that was killed is dirty with the others", function()
      local function second(child)
         return child ~= 3 and (child == 4 and 3 or child) or nil
      end
      local results = two_worlds(5, 2, function(self, rank)
         whole(self)
         self:start()
         self:update {"a.weight"}
         if rank == 3 then
            signal.kill(unistd.getpid(), signal.SIGKILL)
         end
         assert(host.refused(self.update, self, {"b.bias"}))
      end, second)
      all_dirty(results, 5, "rank 0 sent parts of an update that was not finished", second)
   end)
end)

describe("after an update that failed before anything moved", function()
   it("nothing is dirty", function()
      all_clean(two_worlds(4, 2, function(self, rank)
         whole(self)
         self:start()
         self:update {}
         assert(host.refused(self.update, self, rank == 1 and {"c"} or BOTH))
         if rank == 3 then
            self:abort()
         else
            assert(host.refused(self.update, self, BOTH))
         end
         assert(self:version() == "v1")
      end, same), 4, "v1")
   end)
end)

describe("without any failure", function()
   it("ranks that are new take the version over that all workers hold", function()
      local results = two_worlds(6, 2, whole, function(child)
         return ({[2] = 2, [3] = 3, [4] = 0, [5] = 1})[child]
      end)
      for _, child in ipairs {2, 3, 4, 5} do
         assert.same({version = "v1", after = "partial"}, results[child])
      end
   end)

   it("workers that forgot their tensors hold no version in those that they register then", function()
      local results = two_worlds(6, 2, whole, function(child)
         return ({[2] = 2, [3] = 3, [4] = 0, [5] = 1})[child]
      end, true)
      for _, child in ipairs {2, 3, 4, 5} do
         assert.same({version = "", after = "partial"}, results[child])
      end
      all_dirty(two_worlds(4, 2, whole, same, true), 4, "rank 0 sent version 'v1', rank 2 holds ''", same)
   end)

   it("a worker that registers one tensor more holds no version in it", function()
      local results = two_worlds(4, 2, function(self, rank)
         whole(self)
         self:shutdown()
         if rank == 3 then
            self:live("c.weight", {1})
         end
      end, same)
      all_dirty(results, 4, "rank 3 holds version '', rank 2 holds 'v1'", same)
   end)

   it("a fresh worker among others that hold a version makes all dirty", function()
      local function second(child)
         return ({[0] = 0, [1] = 1, [2] = 2, [4] = 3})[child]
      end
      all_dirty(two_worlds(5, 2, whole, second), 5, "rank 3 holds version '', rank 2 holds 'v1'", second)
   end)

   it("fresh workers under trainers that sent a version are dirty with them", function()
      local function second(child)
         return ({[0] = 0, [1] = 1, [4] = 2, [5] = 3})[child]
      end
      all_dirty(two_worlds(6, 2, whole, second), 6, "rank 0 sent version 'v1', rank 2 holds ''", second)
   end)
end)
