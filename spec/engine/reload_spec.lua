--- Other rules while ready: all ranks go over to the new plan, or the old one stays.

local built = require "spec.support.built"
local ffi = require "ffi"
local four = require "spec.support.four"
local host = require "spec.support.host"
local inside = require "spec.support.inside"
local shell = require "scripts.shell"
local signal = require "posix.signal"
local unistd = require "posix.unistd"

local C = inside.declare("sluice.h")
local init_info, set_values, expect_a, run, each, BOTH = four.init_info, four.set_values, four.expect_a, four.run, four.each, four.BOTH

local DIRECT = 'return { rules = { rule "a.weight" { layout = row }, rule "b.bias" { layout = replicate } } }'
local FULL_B = 'return { rules = { rule "a.weight" { layout = row }, rule "b.bias" { full = "as it was", into = "b.bias" } } }'
local SKIP_B = 'return { rules = { rule "a.weight" { layout = row }, rule "b.bias" { skip = "not yet" } }, unsourced = { "b.bias" } }'

local paths

local function file(text)
   paths[#paths + 1] = host.file(text)
   return paths[#paths]
end

-- One whole update; what a worker then holds, "good" or what is wrong with it. b: whether b.bias is to be in the live tensor,
-- in what load_weights brought, or (false) nowhere new.
local function move(self, rank, store, number, b)
   if rank < 2 then
      set_values(self, rank, number)
   else
      ffi.fill(self.a, 32, 0x55)
      ffi.fill(self.b, 16, 0x55)
      store["b.bias"] = nil
   end
   self:start()
   self:update(BOTH)
   self:finish("update-" .. number)
   if rank < 2 then
      return "good"
   end
   local values, live = {}, {}
   for i = 1, 4 do
      values[i], live[i] = 1000 * number + i - 1, self.b[i - 1]
   end
   local want, loaded = table.concat(values, " "), store["b.bias"] and table.concat(store["b.bias"], " ")
   local good = b == "live" and table.concat(live, " ") == want and not loaded or b == "loaded" and loaded == want and live[1] ~= 1000 * number
      or b == false and live[1] ~= 1000 * number and not loaded
   return good and expect_a(self, rank, number) or ("b.bias: live %s, loaded %s"):format(table.concat(live, " "), tostring(loaded))
end

local function plan_of(self)
   local plan = self:plan(true)
   plan.seconds_planning = nil
   return plan
end

describe("a reload of rules", function()
   before_each(function()
      paths = {}
   end)
   after_each(function()
      for _, path in ipairs(paths) do
         os.remove(path)
      end
   end)

   for _, road in ipairs {"pull", "ring"} do
      it("moves by the new rules from the next update on, there and back, by " .. road, function()
         local path, lines = file(DIRECT), {}
         local results = run(function(self, rank, port, store)
            local moved = {}
            self:init(init_info(port))
            moved[1] = move(self, rank, store, 1, "loaded")
            -- What a trainer gives is ignored.
            self:reload(rank < 2 and "no such family" or path)
            local version, modes = self:version(), {self:plan().direct.parameters, self:plan().full.parameters}
            local why = self:explain("b.bias").parameter
            moved[2] = move(self, rank, store, 2, "live")
            self:reload(nil)
            moved[3] = move(self, rank, store, 3, "loaded")
            local log = {}
            for _, line in ipairs(lines) do
               if line:match("^2 reload: ") then
                  log[#log + 1] = line:gsub("; .*", "")
               end
            end
            return {moved = moved, version = version, modes = modes, log = log, state = self:state(),
               why = why.mode .. " by " .. why.where:gsub("^/tmp/lua_[%w]+", "PATH")}
         end, {road = road, log = lines})
         each(results, function(result)
            assert.is_nil(result.raised)
            assert.same({"good", "good", "good"}, result.moved)
            assert.same({2, 0}, result.modes)
            assert.equal("update-1", result.version)
            assert.equal("ready", result.state)
            assert.equal("direct by PATH:1", result.why)
            assert.same({
               "2 reload: 1 of 2 destinations differ: 2 direct (1 before), 0 full (1), 0 alias (0), 0 skipped (0)",
               "2 reload: 1 of 2 destinations differ: 1 direct (2 before), 1 full (0), 0 alias (0), 0 skipped (0)",
            }, result.log)
         end)
      end)
   end

   it("with the rules in use changes nothing, and dirties nothing", function()
      local path = file(DIRECT)
      local results = run(function(self, rank, port, store)
         self:init(init_info(port))
         local moved = {move(self, rank, store, 1, "live")}
         local before, version = plan_of(self), self:version()
         self:reload(path)
         local after = plan_of(self)
         local same = {version == self:version()}
         self:start(true) -- a partial one: it is refused where anything is dirty
         self:update {"a.weight"}
         self:finish("part")
         moved[2] = move(self, rank, store, 2, "live")
         return {moved = moved, same = same, before = before, after = after}
      end, {rules = path})
      each(results, function(result)
         assert.is_nil(result.raised)
         assert.same({"good", "good"}, result.moved)
         assert.same({true}, result.same)
         assert.same(result.before, result.after)
      end)
   end)

   it("leaves dirty what is dirty: the next update must be a whole one still", function()
      local path = file(DIRECT)
      local results = run(function(self, rank, port, store)
         self:init(init_info(port))
         self:start()
         self:update(BOTH)
         self:abort()
         self:shutdown()
         self:init(init_info(port))
         local before = host.refused(self.start, self, true).text
         self:reload(path)
         local seen = {self:version(), before == host.refused(self.start, self, true).text, move(self, rank, store, 1, "live"), self:version()}
         self:start(true)
         return seen
      end)
      each(results, function(result)
         assert.same({"dirty", true, "good", "update-1"}, result)
      end)
   end)

   it("keeps a source that goes nowhere for the rules under which it goes again, also a new one", function()
      local skip, direct = file(SKIP_B), file(DIRECT)
      local results = run(function(self, rank, port, store)
         self:init(init_info(port))
         self:reload(skip)
         local moved = {move(self, rank, store, 1, false)}
         if rank < 2 then
            self.shards["b.bias"] = self:source("b.bias", {0, 0})
         end
         self:reload(direct)
         moved[2] = move(self, rank, store, 2, "live")
         self:shutdown()
         self:init(init_info(port)) -- with the rules that were loaded last
         moved[3] = move(self, rank, store, 3, "live")
         return moved
      end)
      each(results, function(result)
         assert.same({"good", "good", "good"}, result)
      end)
   end)

   -- before, after: texts of rules, `after` by rank where it is a function; b: where b.bias goes before; text: of the error, a path
   -- as PATH.
   local REFUSALS = {
      {
         name = "that are broken on one worker",
         after = function(rank)
            return rank == 3 and "return {\n   rules = { rule }\n" or DIRECT
         end,
         text = "destination: refused: rank 3: PATH:3: '}' expected (to close '{' at line 1) near '<eof>'",
      },
      {
         name = "that are broken on every worker, each in its own way",
         after = function(rank)
            return rank == 3 and "return {\n" or "return {\n   rules = { rule }\n"
         end,
         text = "destination: refused: rank 2: PATH:3: '}' expected (to close '{' at line 1) near '<eof>'; "
            .. "rank 3: PATH:2: unexpected symbol near '<eof>'",
      },
      {
         name = "that are not there",
         after = "", path = "/nowhere/rules.lua",
         text = "destination: refused: ranks 2, 3: rules (/nowhere/rules.lua: No such file or directory) must be a file that can be read",
      },
      {
         name = "that differ between workers",
         after = function(rank)
            return rank == 3 and SKIP_B or DIRECT
         end,
         text = "destination: ranks 2 and 3 differ, first at parameter 1: rank 2 has 'b.bias' direct [0:4] -> 'b.bias' [:] (), "
            .. "rank 3 has 'b.bias' skip, because: not yet (2 and 2 in all)",
      },
      {
         name = "that leave live bytes unwritten",
         after = 'return { rules = { rule "a.weight" { skip = "forgotten" }, rule "b.bias" { layout = replicate } } }',
         text = "destination: refused: ranks 2, 3: live tensor 'a.weight' [4, 2]: nothing writes 32 of its 32 bytes; give it a rule, name "
            .. "it as the `into` of a full rule, or list it under unsourced",
      },
      {
         name = "that want a load_weights that there is not",
         before = DIRECT, b = "live", load_weights = false, after = FULL_B,
         text = "destination: refused: ranks 2, 3: the plan has 1 full parameter and this worker has no load_weights; the first is "
            .. "'b.bias': as it was",
      },
      {
         name = "whose staging does not fit",
         before = SKIP_B, b = false, extent = 2 ^ 44, after = FULL_B,
         text = "runtime: refused: ranks 2, 3: 2 staging slots of 70368744177664 bytes must fit the memory that is available (SOME bytes)",
      },
   }
   for _, case in ipairs(REFUSALS) do
      local lines = {}
      it("to rules " .. case.name .. " is refused on every rank alike, and the old plan goes on #5.4", function()
         local before, after = case.before and file(case.before), {}
         for rank = 2, 3 do
            after[rank] = case.path or file(type(case.after) == "string" and case.after or case.after(rank))
         end
         local results = run(function(self, rank, port, store)
            if case.extent and rank < 2 then
               local err = inside.error()
               assert(C.sluice_register_source(self.engine, "b.bias", "float32", self.shards["b.bias"], case.extent * 2, err) == 0)
            end
            self:init(init_info(port, function(info)
               info.params[2].shape = {case.extent or 4}
            end))
            local b = case.b
            if b == nil then
               b = "loaded"
            end
            local moved, plan = {move(self, rank, store, 1, b)}, plan_of(self)
            local err = host.refused(self.reload, self, after[rank])
            local kept = {state = self:state(), version = self:version(), plan = plan_of(self)}
            local logged = lines[#lines]
            moved[2] = move(self, rank, store, 2, b)
            return {moved = moved, text = err.text, kept = kept, plan = plan, logged = logged}
         end, {rules = before, no_load_weights = case.load_weights == false, log = lines})
         each(results, function(result)
            assert.is_nil(result.raised)
            local text = result.text:gsub("/tmp/lua_[%w]+", "PATH"):gsub("%(%d+ bytes%)", "(SOME bytes)")
            -- What is available may be another figure on each; then each has a text of its own.
            text = text:gsub("rank 2: (.-); rank 3: (.*)$", function(a, b) return a == b and "ranks 2, 3: " .. a or nil end)
            assert.equal(case.text, text)
            assert.equal("1 reload: the old rules stay: " .. result.text, result.logged)
            assert.equal("ready", result.kept.state)
            assert.equal("update-1", result.kept.version)
            assert.same(result.plan, result.kept.plan)
            assert.same({"good", "good"}, result.moved)
         end)
         assert.equal(results[0].text, results[3].text)
      end)
   end

   it("is refused before init, during an update and after shutdown", function()
      local results = run(function(self, rank, port, store)
         local texts = {host.refused(self.reload, self).text}
         self:init(init_info(port))
         self:start()
         texts[2] = host.refused(self.reload, self).text
         self:update(BOTH)
         texts[3] = host.refused(self.reload, self).text
         self:finish("v")
         texts[5] = move(self, rank, store, 1, "loaded")
         self:shutdown()
         texts[4] = host.refused(self.reload, self).text
         return texts
      end)
      each(results, function(texts)
         assert.same({
            "reload: reload_rules wants the engine ready; it is new",
            "reload: reload_rules wants the engine ready; it is updating",
            "reload: reload_rules wants the engine ready; it is updating",
            "reload: reload_rules wants the engine ready; it is new",
            "good",
         }, texts)
      end)
   end)

   it("tells all where one rank is in an update instead, and both can be done afterwards", function()
      local path = file(DIRECT)
      local results = run(function(self, rank, port, store)
         self:init(init_info(port))
         local err
         if rank == 1 then
            self:start()
            err = host.refused(self.update, self, BOTH)
            self:update(BOTH)
            self:finish("v")
         else
            err = host.refused(self.reload, self, path)
            self:start()
            self:update(BOTH)
            self:finish("v")
         end
         self:reload(path)
         return {text = err.text, moved = move(self, rank, store, 2, "live")}
      end)
      each(results, function(result, rank)
         assert.is_nil(result.raised)
         assert.equal('destination: ranks are in different rounds: ranks 0, 2, 3: "destination"; rank 1: "update"', result.text, rank)
         assert.equal("good", result.moved)
      end)
   end)

   it("that a host cancels leaves all failed", function()
      local lines = {}
      local results = run(function(self, rank, port, store)
         self:init(init_info(port))
         local moved = move(self, rank, store, 1, "loaded")
         setmetatable(lines, {__newindex = function(log, i, text)
            rawset(log, i, text)
            if rank == 2 and text == "3 reload: round 3, data plane" then
               C.sluice_cancel(self.engine)
            end
         end})
         local err = host.refused(self.reload, self)
         return {moved = moved, status = err.status, state = self:state(), version = self:version()}
      end, {log = lines})
      each(results, function(result)
         assert.same({moved = "good", status = "cancelled", state = "failed", version = "update-1"}, result)
      end)
   end)

   for _, stage in ipairs {"round 2, destination", "round 4, runtime", "meets its peers"} do
      it("in which a rank is killed names it, and leaves the others failed: " .. stage, function()
         local path = file(DIRECT)
         -- Lines of rank 3's log come out of the call under way.
         local lines = setmetatable({}, {__newindex = function(log, i, text)
            rawset(log, i, text)
            if log.victim and text == "3 reload: " .. stage then
               signal.kill(unistd.getpid(), signal.SIGKILL)
            end
         end})
         local results = run(function(self, rank, port, store)
            rawset(lines, "victim", rank == 3)
            self:init(init_info(port))
            local moved = move(self, rank, store, 1, "loaded")
            local err = host.refused(self.reload, self, path)
            local state, failure, version = self:state(), self:failure(), self:version()
            self:shutdown()
            return {moved = moved, rank = err.rank, text = err.text, state = state, failure = failure, version = version, after = self:state()}
         end, {log = lines})
         assert.equal(9, results[3].signal)
         for rank = 0, 2 do
            local result = results[rank]
            assert.is_nil(result.raised)
            assert.equal("good", result.moved)
            assert.equal(3, result.rank)
            assert.truthy(result.text:find("rank 3 (process ", 1, true) or result.text:find("rank 3 (pid ", 1, true), result.text)
            assert.equal("failed", result.state)
            assert.same({complete = {}, torn = {}, untouched = BOTH}, result.failure)
            assert.equal("update-1", result.version)
            assert.equal("new", result.after)
         end
      end)
   end
end)

describe("reloads of two engines in one process", function()
   local function driver(arguments)
      return (shell(built.folder .. "spec/engine_driver " .. arguments))
   end

   it("leave neither descriptors nor memory behind, two hundred times in a row", function()
      local sanitized = os.getenv("SLUICE_SANITIZER") ~= nil
      local text = driver("reloads 200")
      local early, pages, late, pages_late =
         text:match("^20 reloads: (%d+) descriptors, (%d+) pages\n200 reloads: (%d+) descriptors, (%d+) pages\n$")
      assert.truthy(early, text)
      assert.equal(early, late)
      assert.is_true(sanitized or pages_late - pages < 256, text) -- 1 MiB over 180 reloads
   end)

   it("go over or keep the old plan, whichever request for memory fails", function()
      local text = driver("reload_sweep 97")
      local over, refused, broke =
         text:match("^%d+ requests in a reload, every 97. failed in turn: (%d+) went over, (%d+) were refused, (%d+) broke the group\n$")
      assert.truthy(over, text)
      assert.is_true(tonumber(refused) > tonumber(broke), text)
   end)
end)
