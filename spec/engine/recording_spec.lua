--- Updates that are recorded once and replayed, on the host transport and, with a driver that processors stand in for, on
-- nccl: by batches of copies, and by a graph where the driver knows no batches.

local ffi = require "ffi"
local gpu = require "spec.support.gpu"
local host = require "spec.support.host"
local pair = require "spec.support.pair"
local signal = require "posix.signal"
local unistd = require "posix.unistd"
local with = require "spec.support.with"
local world = require "spec.support.world"

ffi.cdef [[
   struct mallinfo2 { size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost; };
   struct mallinfo2 mallinfo2(void);
]]

local NAMES = pair.NAMES
local STATE, INVALID = "call not allowed in this state", "invalid input"

local roads = { { "host" }, { "nccl" }, { "nccl", "12000" } }

-- Runs the ranks of a pair on each transport: check(results).
local function on_each(body, options, check)
   for _, road in ipairs(roads) do
      if road[1] == "nccl" and gpu.missing() then
         return pending(gpu.missing())
      end
      check(pair.run(body, with({ transport = road[1], driver = road[2] }, options)))
   end
end

local function good(results)
   for rank = 0, 1 do
      assert.is_nil(results[rank].raised)
      assert.same({}, results[rank].wrong)
   end
end

-- What both ranks get where one of them is refused on its own.
local function refused_by(culprit, results, status, text)
   for rank = 0, 1 do
      local who = rank == culprit and "" or ("refused: rank %d: "):format(culprit)
      assert.same({ status = status, rank = culprit, text = "update: " .. who .. text }, results[rank].refused)
   end
end

describe("an update that was recorded", function()
   it("is replayed with what the sources hold by then #4.11", function()
      on_each(function(self, _, port)
         self:init(pair.init_info(port))
         local wrong, whole = {}, self:record()
         for turn = 1, 5 do
            pair.fill_all(self, turn)
            pair.replay(self, whole, turn)
            pair.check_all(wrong, self, turn)
         end
         return { wrong = wrong, version = self:version() }
      end, {}, function(results)
         good(results)
         assert.same({ "v5", "v5" }, { results[0].version, results[1].version })
      end)
   end)

   it("is replayed in parts, in other orders, beside names, on one side alone #4.11 #4.2", function()
      on_each(function(self, rank, port)
         self:init(pair.init_info(port))
         local wrong = {}
         local first, second = self:record({ "w6", "w1", "w3" }), self:record({ "w2" })
         for turn = 1, 4 do
            pair.fill_all(self, turn)
            self:start()
            if rank == turn % 2 then
               self:replay(first)
            else
               self:update({ "w6", "w1", "w3" })
            end
            self:update({ "w4", "w5" })
            self:replay(second)
            self:finish("v" .. turn)
            pair.check_all(wrong, self, turn)
         end
         return { wrong = wrong }
      end, {}, good)
   end)

   it("moves any lists in any order, by recordings or by names, as a loop over elements says #4.11", function()
      local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time()
      on_each(function(self, rank, port)
         self:init(pair.init_info(port))
         math.randomseed(seed)
         local wrong, lists, updates = {}, {}, 0
         for i = 1, 12 do -- the same on both sides, who each record them for themselves
            local names = {}
            for number = 1, pair.COUNT do
               if math.random(2) == 1 then
                  table.insert(names, math.random(#names + 1), NAMES[number])
               end
            end
            lists[i] = { names = names, recording = self:record(names) }
         end
         local held = {} -- by tensor, the update that it is of
         for turn = 1, 60 do
            pair.fill_all(self, turn)
            self:start(updates > 0)
            if updates == 0 then
               self:update(NAMES)
               for number = 1, pair.COUNT do
                  held[number] = turn
               end
            else
               local came = {}
               for _ = 1, 3 do
                  local list = lists[math.random(#lists)]
                  local fresh = true
                  for _, name in ipairs(list.names) do
                     fresh = fresh and not came[name]
                  end
                  local choices = { math.random(2), math.random(2) } -- drawn for both ranks on each
                  if not fresh then -- a name would come twice
                     choices = nil
                  elseif choices[rank + 1] == 1 then
                     self:replay(list.recording)
                  else
                     self:update(list.names)
                  end
                  for _, name in ipairs(choices and list.names or {}) do
                     came[name] = true
                     held[tonumber(name:sub(2))] = turn
                  end
               end
            end
            self:finish("v" .. turn)
            updates = updates + 1
            for number = 1, rank * pair.COUNT do
               pair.check(wrong, ("seed %d, turn %d, a live tensor"):format(seed, turn), self.w[number], held[number], number)
            end
         end
         return { wrong = wrong }
      end, {}, good)
   end)

   it("goes through load_weights where it holds full parameters #4.11 #4.5", function()
      on_each(function(self, _, port)
         local wrong = {}
         self.wrong = wrong
         self:init(pair.init_info(port))
         local whole = self:record()
         for turn = 1, 3 do
            self.turn, self.loaded = turn, 0
            pair.fill_all(self, turn)
            pair.replay(self, whole, turn)
         end
         return { wrong = wrong, loaded = self.loaded }
      end, { load_weights = function(self, next_tensor)
         local tensor, status = next_tensor()
         while tensor do
            self.loaded = self.loaded + 1
            pair.check(self.wrong, "a full tensor", ffi.cast("const float *", tensor.data), self.turn, self.loaded)
            tensor, status = next_tensor()
         end
         return status
      end }, function(results)
         good(results)
         assert.same({ 0, pair.COUNT }, { results[0].loaded, results[1].loaded })
      end)
   end)

   it("is refused, and no rank waits, where another rank replays or names another list #4.3", function()
      on_each(function(self, rank, port)
         self:init(pair.init_info(port))
         local mine = self:record(rank == 0 and { "w1", "w2" } or { "w2", "w1" })
         local whole, wrong = self:record(), {}
         self:start()
         local first = host.refused(self.replay, self, mine)
         local second = host.refused(rank == 0 and self.replay or self.update, self, rank == 0 and mine or { "w1" })
         pair.fill_all(self, 1)
         self:replay(whole)
         self:finish("v1")
         pair.check_all(wrong, self, 1)
         return { wrong = wrong, first = first, second = second }
      end, {}, function(results)
         good(results)
         for rank = 0, 1 do
            assert.same({ "ranks disagree", "update: ranks 0 and 1 differ, first at name 0: rank 0 has 'w1', rank 1 has 'w2' (2 and 2 in all)" },
               { results[rank].first.status, results[rank].first.text })
            assert.same({ "ranks disagree", "update: ranks 0 and 1 differ, first at name 1: rank 0 has 'w2', rank 1 has (none) (2 and 1 in all)" },
               { results[rank].second.status, results[rank].second.text })
         end
      end)
   end)

   it("is refused by its number once it was forgotten, or of an earlier life #4.11", function()
      for culprit = 0, 1 do
         on_each(function(self, rank, port)
            self:init(pair.init_info(port))
            local forgotten, whole, wrong = self:record({ "w1" }), self:record(), {}
            self:forget_recording(forgotten)
            local twice = host.refused(self.forget_recording, self, forgotten)
            self:start()
            local refused = host.refused(self.replay, self, rank == culprit and forgotten or whole)
            pair.fill_all(self, 1)
            self:replay(whole)
            self:finish("v1")
            pair.check_all(wrong, self, 1)
            return { refused = refused, twice = twice, wrong = wrong }
         end, {}, function(results)
            good(results)
            local text = "recording (1) is none of this engine's: it was forgotten, or made before a shutdown"
            refused_by(culprit, results, INVALID, text)
            assert.equal("record: " .. text, results[0].twice.text)
         end)
      end
      on_each(function(self, _, port)
         self:init(pair.init_info(port))
         local old = self:record()
         self:shutdown()
         local without = host.refused(self.record, self)
         return { wrong = {}, old = tonumber(old), without = without }
      end, {}, function(results)
         good(results)
         assert.same({ status = STATE, rank = -1, text = "record: record wants the engine ready; it is new" }, results[1].without)
      end)
   end)

   it("is refused after a source was registered at another address, and good again once it is recorded anew #4.11", function()
      on_each(function(self, rank, port)
         self:init(pair.init_info(port))
         local whole, wrong = self:record(), {}
         pair.fill_all(self, 1)
         pair.replay(self, whole, 1)
         local old = self.w[3]
         if rank == 0 then
            local zeros = {}
            for i = 1, pair.LENGTH do
               zeros[i] = 0
            end
            self.w[3] = self:source("w3", zeros)
         end
         pair.fill_all(self, 2)
         self:start()
         local refused = host.refused(self.replay, self, whole)
         local part = self:record({ "w1", "w2" }) -- in the middle of an update
         self:replay(part)
         self:update({ "w3", "w4", "w5", "w6" })
         self:finish("v2")
         pair.check_all(wrong, self, 2)
         self:forget_recording(whole)
         whole = self:record()
         pair.fill_all(self, 3)
         pair.replay(self, whole, 3)
         pair.check_all(wrong, self, 3)
         return { wrong = wrong, refused = refused, where = { tostring(old):match("0x%x+"), tostring(self.w[3]):match("0x%x+") } }
      end, {}, function(results)
         good(results)
         local where = results[0].where
         refused_by(0, results, STATE, ("recording (1): source 'w3' was registered anew, at %s instead of %s; forget it and record again")
            :format(where[2], where[1]))
      end)
   end)

   it("is refused after a reload of rules, and good again once it is recorded anew #4.11", function()
      on_each(function(self, rank, port)
         self:init(pair.init_info(port))
         local whole, wrong = self:record(), {}
         pair.fill_all(self, 1)
         pair.replay(self, whole, 1)
         local path = host.file('return { rules = { rule "{n}" { layout = replicate } } }')
         self:reload(path)
         os.remove(path)
         self:start()
         local refused = host.refused(self.replay, self, rank == 0 and whole or self:record())
         local again = self:record()
         self:forget_recording(whole)
         pair.fill_all(self, 2)
         self:replay(again)
         self:finish("v2")
         pair.check_all(wrong, self, 2)
         return { wrong = wrong, refused = refused }
      end, {}, function(results)
         good(results)
         refused_by(0, results, STATE, "recording (1) is of the plan before sluice_reload_rules; forget it and record again")
      end)
   end)

   it("is refused where a name has come already in this update, and where it is called outside of one #4.1", function()
      on_each(function(self, _, port)
         self:init(pair.init_info(port))
         local whole, wrong = self:record(), {}
         local outside = host.refused(self.replay, self, whole)
         pair.fill_all(self, 1)
         self:start()
         self:update({ "w2" })
         local refused = host.refused(self.replay, self, whole)
         self:update({ "w1", "w3", "w4", "w5", "w6" })
         self:finish("v1")
         pair.check_all(wrong, self, 1)
         return { wrong = wrong, refused = refused.text, outside = outside.text }
      end, {}, function(results)
         good(results)
         for rank = 0, 1 do
            assert.equal("update: replay wants the engine updating; it is ready", results[rank].outside)
            assert.matches("names%[1%] %('w2'%) comes a second time in this update$", results[rank].refused)
         end
      end)
   end)

   it("is not made of names that are wrong #4.11", function()
      on_each(function(self, _, port)
         self:init(pair.init_info(port))
         local texts = {}
         for i, names in ipairs({ { "w1", "w9" }, { "w1", "w2", "w1" }, { "w1", "w2", "w3", "w4", "w5", "w6", "w6" } }) do
            texts[i] = host.refused(self.record, self, names).text
         end
         return { wrong = {}, texts = texts, empty = tonumber(self:record({})) }
      end, {}, function(results)
         good(results)
         assert.same({ wrong = {}, empty = 1, texts = { "record: names[1] ('w9') was not announced at init",
            "record: names[2] ('w1') comes a second time",
            "record: names (7) must be no more than the parameters announced (6)" } }, results[1])
      end)
   end)

   it("is replayed thousands of times in flat memory #4.11", function()
      on_each(function(self, _, port)
         self:init(pair.init_info(port))
         local whole = self:record()
         local function held() -- by the C library's heap; Lua's own is another
            local info = ffi.C.mallinfo2()
            return tonumber(info.uordblks + info.hblkhd)
         end
         local bytes, taken
         for turn = 1, 2500 do
            pair.replay(self, whole, turn)
            self:forget_recording(self:record({ "w1", "w2" }))
            if turn == 500 then
               bytes, taken = held(), self.there and self.there.taken()
            end
         end
         return { wrong = {}, bytes = held() - bytes, taken = self.there and self.there.taken() - taken or 0 }
      end, { timeout = 120 }, function(results)
         good(results)
         for rank = 0, 1 do
            assert.equal(0, results[rank].taken)
            assert.is_true(results[rank].bytes < 65536, results[rank].bytes .. " bytes more")
         end
      end)
   end)

   it("ends on the other rank, naming it, when a rank is killed, gives up or is late #4.12 #4.13", function()
      for _, way in ipairs({ "kill", "abort", "late" }) do
         on_each(function(self, rank, port)
            self:init(pair.init_info(port))
            local whole = self:record()
            for turn = 1, 3 do
               pair.replay(self, whole, turn)
            end
            self:start()
            if rank == 0 and way == "kill" then
               signal.kill(unistd.getpid(), 9)
            elseif rank == 0 and way == "abort" then
               self:abort()
            elseif rank == 0 then
               world.sleep(1.5)
            end
            local refused = host.refused(self.replay, self, whole)
            local state, failure = self:state(), self:failure()
            self:shutdown()
            return { wrong = {}, refused = refused, state = state, failure = failure, after = self:state() }
         end, { timeout_s = way == "late" and 0.6 or 10 }, function(results)
            local last = results[1]
            assert.same({ "failed", "new" }, { last.state, last.after })
            local statuses = { kill = "another rank failed or was lost", abort = "cancelled", late = "deadline passed" }
            assert.same({ statuses[way], 0 }, { last.refused.status, last.refused.rank }, last.refused.text)
            assert.same({ complete = {}, torn = {}, untouched = NAMES }, last.failure)
         end)
      end
   end)

   gpu.specs(it)("ends on both ranks when one is stuck in the middle, or killed there #4.12 #5.9", function()
      for _, way in ipairs({ "deadline", "kill" }) do
         local gone
         local results = pair.run(function(self, rank, port)
            self:init(pair.init_info(port))
            local whole = self:record()
            pair.replay(self, whole, 1)
            self:start()
            if rank == 0 then
               self.queue:stick()
            end
            local refused = host.refused(self.replay, self, whole)
            return { refused = refused, state = self:state(), failure = self:failure() }
         end, { transport = "nccl", trainer = true, timeout_s = way == "kill" and 10 or 1, started = function(children)
            if way == "kill" then
               world.sleep(1)
               gone = signal.kill(children[0].pid, 9)
            end
         end })
         for rank = gone and 1 or 0, 1 do
            assert.equal("failed", results[rank].state)
            assert.same({ complete = {}, torn = NAMES, untouched = {} }, results[rank].failure)
         end
         assert.same({ gone and "another rank failed or was lost" or "deadline passed", 0 },
            { results[1].refused.status, results[1].refused.rank }, results[1].refused.text)
      end
   end)
end)

describe("an update by names", function()
   -- Six names in a random order, in batches cut at random.
   local function shuffled(random)
      local names, batches = {}, { {} }
      for i, name in ipairs(NAMES) do
         table.insert(names, random(i), name)
      end
      for _, name in ipairs(names) do
         table.insert(batches[#batches], name)
         if random(3) == 1 then
            batches[#batches + 1] = {}
         end
      end
      return batches
   end

   it("finds what the last one asked for, in whatever batches, also where one was refused or names come otherwise #4.2", function()
      local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time()
      local results = pair.run(function(self, rank, port)
         local state = seed % 2147483646 + 1
         local function random(most) -- the same on both
            state = state * 16807 % 2147483647
            return state % most + 1
         end
         self:init(pair.init_info(port))
         local wrong, usual = {}, shuffled(random)
         for turn = 1, 60 do
            local kind = random(4)
            usual = kind == 1 and shuffled(random) or usual
            pair.fill_all(self, turn)
            self:start()
            for i, names in ipairs(usual) do
               if kind == 2 and i == 2 then -- one side asks for other names first
                  host.refused(self.update, self, rank == 0 and names or { "w0" })
               end
               self:update(names)
            end
            self:finish("v" .. turn)
            pair.check_all(wrong, self, turn)
         end
         return { wrong = wrong }
      end, { transport = "host" })
      for rank = 0, 1 do
         assert.same({ wrong = {} }, results[rank], "SLUICE_SEED=" .. seed)
      end
   end)
end)
