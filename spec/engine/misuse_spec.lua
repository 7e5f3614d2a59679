--- A host that is wrong or unlucky: calls from callbacks and from a forked child, callbacks that leave rubbish behind, names
-- that are no text, a cancel that comes while the host has the word, a process that gets no thread.

local ffi = require "ffi"
local four = require "spec.support.four"
local host = require "spec.support.host"
local inside = require "spec.support.inside"
local unistd = require "posix.unistd"
local wait = require "posix.sys.wait"

local C = inside.declare("sluice.h")
local BOTH = four.BOTH

local function tidy(text)
   return (text:gsub("%(process %d+ on [^,]+, [^)]+%)", "(process)"))
end

-- The text of the refusal, or "succeeded".
local function try(call, ...)
   local err = host.refused(call, ...)
   return err and tidy(err.text) or "succeeded"
end

local function outcome(self, call, ...)
   local err = host.refused(call, self, ...) or {text = "succeeded"}
   return {status = err.status, text = tidy(err.text), rank = err.rank, state = self:state()}
end

-- Every call that can be refused, each with its stage and name.
local function every_call(self)
   return {
      {"init: init", self.init, self, "{}"},
      {"update: start_update", self.start, self},
      {"update: update", self.update, self, {"a.weight"}},
      {"update: finish_update", self.finish, self, "v2"},
      {"abort: abort_update", self.abort, self},
      {"reload: reload_rules", self.reload, self},
      {"shutdown: shutdown", self.shutdown, self},
      {"report: plan_json", self.plan, self},
      {"report: failure_json", self.failure, self},
      {"explain: explain_json", self.explain, self, ""},
      {"register: register_source", self.source, self, "c", {1}},
      {"register: register_live", self.live, self, "c", {1}},
      {"register: describe_host", self.describe, self, "{}"},
      {"register: forget", function()
         local err = inside.error()
         if C.sluice_forget(self.engine, err) ~= 0 then
            error({text = inside.text(err)}, 0)
         end
      end},
      {"memory: memory_alloc", function()
         local data, err = ffi.new("void *[1]"), inside.error()
         if C.sluice_memory_alloc(self.engine, 1, data, err) ~= 0 then
            error({text = inside.text(err)}, 0)
         end
      end},
   }
end

local function whole_update(self, label)
   self:start()
   self:update(BOTH)
   self:finish(label)
   return {version = self:version(), state = self:state()}
end

local function pull_all(_, next_tensor)
   local tensor, status
   repeat
      tensor, status = next_tensor()
   until not tensor
   return status
end

jit.off(true, true) -- calls from here call back into Lua, which a compiled trace must not

describe("a call that must not be made now", function()
   it("is refused from a callback, whichever it is, and the update goes on", function()
      local said = {}
      local results = four.run(function(self, rank, port)
         self:init(four.init_info(port))
         local result = whole_update(self, "v1")
         result.said = rank == 2 and said or nil
         return result
      end, {load_weights = function(self, next_tensor)
         for i, case in ipairs(every_call(self)) do
            said[i] = {case[1], try(unpack(case, 2))}
         end
         C.sluice_engine_destroy(self.engine)
         return pull_all(self, next_tensor)
      end})
      four.each(results, function(result)
         assert.is_nil(result.raised)
         assert.same({"v1", "ready"}, {result.version, result.state})
      end)
      assert.equal(15, #results[2].said)
      for _, case in ipairs(results[2].said) do
         assert.equal(case[1] .. " within another call of the same engine: a callback must not make it, nor a second thread", case[2])
      end
   end)

   it("is refused in a forked child, which does not disturb its parent", function()
      local results = four.run(function(self, _, port)
         self:init(four.init_info(port))
         local from, to = unistd.pipe()
         local parent, child = unistd.getpid(), unistd.fork()
         if child == 0 then
            local lines = {}
            for _, case in ipairs(every_call(self)) do
               local text = try(unpack(case, 2))
               lines[#lines + 1] = text == ("%s in a forked child: the engine is that of process %d"):format(case[1], parent) and "good" or text
            end
            self:destroy()
            unistd.write(to, table.concat(lines, "\n"))
            unistd._exit(0)
         end
         unistd.close(to)
         local said = unistd.read(from, 65536)
         unistd.close(from)
         local _, how, code = wait.wait(child)
         local result = whole_update(self, "v1")
         result.said, result.child = said, how .. code
         return result
      end)
      four.each(results, function(result)
         assert.same({version = "v1", state = "ready", child = "exited0", said = ("good\n"):rep(14) .. "good"}, result)
      end)
   end)

   it("is refused in a child that load_weights forks, also the pull of a tensor, and the update goes on", function()
      local told, wanted = {}, {}
      local results = four.run(function(self, _, port)
         self:init(four.init_info(port))
         local result = whole_update(self, "v1")
         result.told, result.wanted = told, wanted
         return result
      end, {load_weights = function(self, next_tensor, weights)
         local from, to = unistd.pipe()
         local parent, child = unistd.getpid(), unistd.fork()
         if child == 0 then
            local err, tensor = inside.error(), ffi.new("const sluice_tensor *[1]")
            C.sluice_weights_next(weights, tensor, err)
            C.sluice_weights_release(weights, tensor[0])
            unistd.write(to, inside.text(err))
            unistd._exit(0)
         end
         told[#told + 1] = unistd.read(from, 4096)
         wanted[#wanted + 1] = ("update: weights_next in a forked child: the engine is that of process %d"):format(parent)
         unistd.close(from)
         unistd.close(to)
         wait.wait(child)
         return pull_all(self, next_tensor)
      end})
      four.each(results, function(result, rank)
         assert.same({"v1", "ready"}, {result.version, result.state})
         assert.equal(rank >= 2 and 1 or 0, #result.told)
         assert.same(result.wanted, result.told)
      end)
   end)
end)

describe("what a callback leaves in its error", function()
   it("is ended and made plain before anybody reads it", function()
      local results = four.run(function(self, _, port)
         self:init(four.init_info(port))
         self:start()
         return outcome(self, self.update, BOTH)
      end, {load_weights = function(_, _, _, err)
         ffi.fill(err, ffi.sizeof("sluice_error"), 0xFF)
         ffi.copy(err.text, "a\27[1m\r\195\169", 8)
         return 11
      end})
      for rank = 0, 3 do
         local mine = "load_weights failed: a?[1m?\195\169?"
         local text = results[rank].text:match(": (load_weights .*)$")
         assert.equal(mine, text:sub(1, #mine))
         assert.matches("^%?+$", text:sub(#mine + 1))
      end
   end)
end)

-- Four ranks of which only `rank` has this load_weights.
local function run_with(rank, load_weights, body)
   return four.run(body, {load_weights = function(self, next_tensor, weights, err)
      return (self.own_rank == rank and load_weights or pull_all)(self, next_tensor, weights, err)
   end})
end

describe("an update that one rank's host ends", function()
   it("leaves torn on every rank what came in the batch under way, complete what came before", function()
      local results = run_with(3, function()
         return 11
      end, function(self, rank, port)
         self.own_rank = rank
         self:init(four.init_info(port))
         self:start()
         self:update {"a.weight"}
         assert(host.refused(self.update, self, {"b.bias"}))
         return {failure = self:failure(), version = self:version(), a = rank < 2 and "good" or four.expect_a(self, rank, 1)}
      end)
      four.each(results, function(result)
         assert.same({failure = {complete = {"a.weight"}, torn = {"b.bias"}, untouched = {}}, version = "dirty", a = "good"}, result)
      end)
   end)

   it("has that rank's number in every error, its own too", function()
      local results = run_with(3, function()
         return 11
      end, function(self, rank, port)
         self.own_rank = rank
         self:init(four.init_info(port))
         self:start()
         return outcome(self, self.update, BOTH)
      end)
      for rank = 0, 2 do
         assert.same({status = "another rank failed or was lost", text = "update: rank 3 (process) gave up: load_weights failed", rank = 3,
            state = "failed"}, results[rank])
      end
      assert.same({status = "a callback of the host failed", text = "update: load_weights failed", rank = 3, state = "failed"}, results[3])
   end)

   it("by a cancel that load_weights passes on is cancelled on every rank", function()
      local results = run_with(2, function(self, next_tensor)
         C.sluice_cancel(self.engine)
         return pull_all(self, next_tensor) or 11
      end, function(self, rank, port)
         self.own_rank = rank
         self:init(four.init_info(port))
         self:start()
         return outcome(self, self.update, BOTH)
      end)
      four.each(results, function(result, rank)
         assert.same({status = "cancelled", rank = 2, state = "failed",
            text = rank == 2 and "update: cancelled" or "update: rank 2 (process) gave up: cancelled"}, result)
      end)
   end)

   for _, case in ipairs {{"start_update", "start"}, {"update", "update", BOTH}, {"finish_update", "finish", "v1"}} do
      it("by a cancel before " .. case[1] .. " is told to the others at once", function()
         local results = four.run(function(self, rank, port)
            self:init(four.init_info(port))
            if case[2] ~= "start" then
               self:start()
            end
            if case[2] == "finish" then
               self:update(BOTH)
            end
            if rank == 1 then
               C.sluice_cancel(self.engine)
               return outcome(self, self[case[2]], case[3])
            end
            if case[2] == "start" then
               self:start()
               return outcome(self, self.update, BOTH)
            end
            return outcome(self, self[case[2]], case[3])
         end)
         for rank = 0, 3 do
            local result = results[rank]
            result.text = result.text:gsub("^%l+: ", "") -- of the call, or of the control connection where the word came before it
            assert.same({status = "cancelled", state = "failed", rank = rank ~= 1 and 1 or result.rank,
               text = rank == 1 and "cancelled; only shutdown is allowed" or "rank 1 (process) gave up: cancelled"}, result)
         end
      end)
   end
end)

describe("a name that is no UTF-8", function()
   it("is refused where it is given", function()
      local self = host.create {rank = 2}
      assert.equal("register: the name of live[0] (w?) must be UTF-8", try(self.live, self, "w\xff", {1}))
      assert.equal("register: the name of a source (w?) must be UTF-8", try(self.source, self, "w\xff", {1}))
      self:destroy()
   end)

   it("is no label and no question, nor is one with control characters a label", function()
      local results = four.run(function(self, _, port)
         self:init(four.init_info(port))
         local texts = {try(self.explain, self, "w\xff")}
         self:start()
         self:update(BOTH)
         for _, label in ipairs {"v\xff", "v\n", "v\27", "", ("v"):rep(256)} do
            texts[#texts + 1] = try(self.finish, self, label)
         end
         self:finish(("v"):rep(253) .. "\195\169")
         return texts
      end, {load_weights = pull_all})
      four.each(results, function(texts)
         assert.equal("explain: the name (w?) must be UTF-8", texts[1])
         assert.equal(6, #texts)
         for i = 2, 6 do
            assert.equal("finish: version must be a label of 1 to 255 bytes of UTF-8 without control characters", texts[i])
         end
      end)
   end)
end)

describe("a rank that gets no thread for its beats", function()
   it("says so to the others", function()
      ffi.cdef "int unshare(int flags);"
      local NEW_PROCESSES = 0x20000000 -- after it no thread can be made
      local results = four.run(function(self, rank, port)
         if rank == 3 and ffi.C.unshare(NEW_PROCESSES) ~= 0 then
            return {forbidden = true}
         end
         return outcome(self, self.init, four.init_info(port))
      end, {timeout_s = 2})
      if results[3].forbidden then
         pending("this machine lets only root make process namespaces")
         return
      end
      for rank = 0, 2 do
         assert.equal("rank 3 (process) gave up: no thread for beats: Invalid argument", (results[rank].text:gsub("^%l+: ", "")))
         assert.equal(3, results[rank].rank)
      end
      assert.equal("rendezvous: no thread for beats: Invalid argument", results[3].text)
   end)
end)
