--- Updates and the stream that the host gives, where there is no GPU: on the driver that processors stand in for.

local ffi = require "ffi"
local gpu = require "spec.support.gpu"
local host = require "spec.support.host"
local pair = require "spec.support.pair"
local signal = require "posix.signal"
local world = require "spec.support.world"

local it = gpu.specs(it)
local COUNT, LENGTH, NAMES = pair.COUNT, pair.LENGTH, pair.NAMES
local init_info, fill, check, floats, update = pair.init_info, pair.fill, pair.check, pair.floats, pair.update

local function run(body, options)
   options.transport = "nccl"
   return pair.run(body, options)
end

describe("a stream of the host's", function()
   it("brings what a trainer queued there in front of what reads its sources", function()
      local results = run(function(self, rank, port)
         self:init(init_info(port))
         local wrong, busy = {}, 0
         for turn = 1, 3 do
            if rank == 0 then -- the values come into being on the stream, and late
               self.queue:busy()
               for i = 1, COUNT do
                  local made = floats(self)
                  fill(made, turn, i)
                  self.queue:copy(self.w[i], made, LENGTH * 4)
               end
               busy = busy + (self.queue:idle() and 0 or 1)
            end
            update(self, turn)
            for i = 1, rank * COUNT do
               check(wrong, "a live tensor", self.w[i], turn, i)
            end
         end
         return { wrong = wrong, busy = busy }
      end, { trainer = true })
      assert.same({ { wrong = {}, busy = 3 }, { wrong = {}, busy = 0 } }, { results[0], results[1] })
   end)

   it("lets what a worker queued there read the old weights, and what it queues later the new", function()
      local results = run(function(self, rank, port)
         self:init(init_info(port))
         local wrong, busy = {}, 0
         for turn = 1, 4 do
            local before, after = {}, {}
            for i = 1, COUNT do
               if rank == 0 then
                  fill(self.w[i], turn, i)
               else
                  before[i], after[i] = floats(self), floats(self)
               end
            end
            if rank == 1 then
               self.queue:busy()
            end
            for i = 1, rank * COUNT do
               self.queue:copy(before[i], self.w[i], LENGTH * 4)
            end
            busy = busy + (self.queue:idle() and 0 or 1)
            update(self, turn)
            for i = 1, rank * COUNT do
               self.queue:copy(after[i], self.w[i], LENGTH * 4)
            end
            self.queue:wait()
            for i = 1, rank * COUNT do
               check(wrong, "what was queued later", after[i], turn, i)
               if turn > 1 then
                  check(wrong, "what was queued before", before[i], turn - 1, i)
               end
            end
         end
         return { wrong = wrong, busy = busy }
      end, { worker = true })
      assert.same({ { wrong = {}, busy = 0 }, { wrong = {}, busy = 4 } }, { results[0], results[1] })
   end)

   it("keeps a staging slot until what load_weights queued there has read it, in later batches and at shutdown", function()
      local results = run(function(self, rank, port)
         self.turn, self.read = 0, {}
         self:init(init_info(port))
         for turn = 1, 3 do
            self.turn = turn
            for i = 1, (1 - rank) * COUNT do
               fill(self.w[i], turn, i)
            end
            update(self, turn)
         end
         local busy = not self.queue:idle()
         self:shutdown()
         local wrong = {}
         self.queue:wait()
         for _, one in ipairs(self.read) do
            check(wrong, "what was queued", one[1], one[2], one[3])
         end
         return { wrong = wrong, busy = busy, read = #self.read }
      end, { worker = true, load_weights = function(self, next_tensor)
         local tensor, status = next_tensor()
         while tensor do
            local kept = floats(self)
            self.queue:busy()
            self.queue:copy(kept, tensor.data, LENGTH * 4)
            self.read[#self.read + 1] = { kept, self.turn, tonumber(ffi.string(tensor.name):sub(2)) }
            tensor, status = next_tensor()
         end
         return status
      end })
      assert.same({ { wrong = {}, busy = false, read = 0 }, { wrong = {}, busy = true, read = 3 * COUNT } }, { results[0], results[1] })
   end)

   it("is no place for an update while it is captured: refused, told to all, and the next call is good", function()
      for culprit = 0, 1 do
         local results = run(function(self, rank, port)
            self:init(init_info(port))
            self:start()
            if rank == culprit then
               self.queue:capture()
            end
            local refused = host.refused(self.update, self, NAMES)
            if rank == culprit then
               self.queue:captured()
            end
            self:update(NAMES)
            self:finish("v1")
            return { refused = refused, version = self:version() }
         end, { trainer = culprit == 0, worker = culprit == 1 })
         for rank = 0, 1 do
            local who = rank == culprit and "" or ("refused: rank %d: "):format(culprit)
            assert.same({ version = "v1", refused = { status = "call not allowed in this state", rank = culprit,
               text = ("update: %soptions.stream is being captured: end its capture before an update"):format(who) } }, results[rank])
         end
      end
   end)

   it("tells the GPU of a worker that has no live tensors", function()
      local results = run(function(self, rank, port)
         self:init(init_info(port))
         local taken = {}
         for ordinal = 0, rank do
            taken[ordinal + 1] = gpu.open(ordinal).taken() > 0
         end
         return taken
      end, { worker = true, on = 1, load_weights = function()
         return 0
      end })
      assert.same({ { true }, { false, true } }, { results[0], results[1] })
   end)

   it("is one of the GPU where the tensors lie; of another it is refused at init, on every rank", function()
      local results = run(function(self, _, port)
         return host.refused(self.init, self, init_info(port))
      end, { worker = true, on = 1 })
      for rank = 0, 1 do
         assert.equal("invalid input", results[rank].status)
         assert.equal(1, results[rank].rank)
         assert.matches("options%.stream must be a stream of GPU 0's primary context, where this rank's tensors lie$", results[rank].text)
      end
   end)

   it("is refused where tensors lie in ordinary memory", function()
      local refused = host.refused(host.create, { rank = 0, stream = ffi.cast("void *", 1) })
      assert.same({ status = "invalid input", rank = -1,
         text = 'create: options.stream is a CUDA stream and wants options.transport "nccl" or "m2n"' }, refused)
   end)
end)

describe("a recording in a capture of the host's", function()
   -- The graph of a rank, with a place for `names` (nil: all) between `before` and `behind`, which queue work.
   local function graph_with_place(self, before, behind, names)
      self.queue:capture()
      before()
      local good, recording = pcall(self.record, self, names)
      behind()
      self.graph = self.queue:captured()
      if not good then
         error(recording, 0)
      end
      return recording
   end

   local function nothing()
   end

   local function launching(self)
      self.launched = (self.launched or 0) + 1
      self.queue:launch(self.graph)
   end

   it("is a place in a worker's graph: what comes before has the old weights, what comes behind has the new", function()
      local results = run(function(self, rank, port)
         self:init(init_info(port))
         local wrong, before, behind = {}, {}, {}
         local recording
         if rank == 1 then
            for i = 1, COUNT do
               before[i], behind[i] = floats(self), floats(self)
            end
            recording = graph_with_place(self, function()
               for i = 1, COUNT do
                  self.queue:copy(before[i], self.w[i], LENGTH * 4)
               end
            end, function()
               for i = 1, COUNT do
                  self.queue:copy(behind[i], self.w[i], LENGTH * 4)
               end
            end)
         else
            recording = self:record()
         end
         for turn = 1, 4 do
            pair.fill_all(self, turn)
            if rank == 1 then
               self.queue:busy()
            end
            pair.replay(self, recording, turn)
            if rank == 1 then
               self.queue:wait()
            end
            for i = 1, rank * COUNT do
               check(wrong, "behind", behind[i], turn, i)
               if turn > 1 then
                  check(wrong, "before", before[i], turn - 1, i)
               end
            end
         end
         if rank == 1 then -- by itself it passes
            self.queue:launch(self.graph)
            self.queue:wait()
            check(wrong, "outside of a replay, before", before[1], 4, 1)
            self:shutdown()
            self.queue:launch(self.graph)
            self.queue:wait()
         end
         return { wrong = wrong, launched = self.launched }
      end, { worker = true, launch = launching })
      assert.same({ wrong = {} }, results[0])
      assert.same({ wrong = {}, launched = 4 }, results[1])
   end)

   it("is a place in a trainer's graph: what comes before makes the sources, what comes behind may change them", function()
      local results = run(function(self, rank, port)
         self:init(init_info(port))
         local wrong, made = {}, {}
         local recording
         if rank == 0 then
            local other = floats(self)
            fill(other, 77, 7)
            recording = graph_with_place(self, function()
               for i = 1, COUNT do
                  made[i] = floats(self)
                  self.queue:copy(self.w[i], made[i], LENGTH * 4)
               end
            end, function()
               for i = 1, COUNT do
                  self.queue:copy(self.w[i], other, LENGTH * 4)
               end
            end)
         else
            recording = self:record()
         end
         for turn = 1, 4 do
            if rank == 0 then
               self.queue:wait()
               self.queue:busy()
            end
            for i = 1, #made do
               fill(made[i], turn, i)
            end
            pair.replay(self, recording, turn)
            pair.check_all(wrong, self, turn)
         end
         return { wrong = wrong, launched = self.launched }
      end, { trainer = true, launch = launching })
      assert.same({ wrong = {}, launched = 4 }, results[0])
      assert.same({ wrong = {} }, results[1])
   end)

   it("launches nothing for a batch that is refused, and lets the graph go on where an update fails", function()
      local results = run(function(self, rank, port)
         self:init(init_info(port))
         local part = rank == 1 and graph_with_place(self, nothing, nothing) or self:record({ "w1" })
         self:start()
         local refused = host.refused(self.replay, self, part)
         local launched = self.launched or 0
         if rank == 0 then
            world.sleep(0.5)
            self:abort()
            return { refused = refused.status }
         end
         local failed = host.refused(self.replay, self, part)
         self.queue:launch(self.graph)
         self.queue:wait()
         return { refused = refused.status, launched = launched, failed = failed.status, state = self:state() }
      end, { worker = true, launch = launching })
      assert.same({ refused = "ranks disagree" }, results[0])
      assert.same({ refused = "ranks disagree", launched = 0, failed = "cancelled", state = "failed" }, results[1])
   end)

   it("lets the graph go on when another rank is gone in the middle, and fails with the host's own error", function()
      for _, way in ipairs({ "killed", "launch fails" }) do
         local results = run(function(self, rank, port)
            self:init(init_info(port))
            local recording = rank == 1 and graph_with_place(self, nothing, nothing) or self:record()
            if rank == 0 and way == "killed" then
               self.queue:stick()
            end
            self:start()
            local refused = host.refused(self.replay, self, recording)
            self.queue:wait()
            return { status = refused.status, text = refused.text:match("launch failed: .*$"), state = self:state() }
         end, { trainer = way == "killed", worker = true, started = function(children)
            if way == "killed" then
               world.sleep(1)
               signal.kill(children[0].pid, 9)
            end
         end, launch = function(self, _, err)
            if way == "killed" then
               return launching(self)
            end
            err.text = "no graph today"
            return 1
         end })
         if way == "killed" then
            assert.same({ signal = 9 }, results[0])
            assert.same({ status = "another rank failed or was lost", state = "failed" }, results[1])
         else
            assert.same({ status = "another rank failed or was lost", state = "failed", text = "launch failed: no graph today" }, results[0])
            assert.same({ status = "a callback of the host failed", state = "failed", text = "launch failed: no graph today" }, results[1])
         end
      end
   end)

   it("is refused without callbacks.launch, and with full parameters", function()
      local function load(_, next_tensor)
         while next_tensor() do end -- luacheck: ignore
         return 0
      end
      local cases = { { nil, nil, "a recording made there wants callbacks.launch" },
         { load, launching, "full parameters cannot be recorded there: load_weights would wait for the graph that waits for it" } }
      for _, case in ipairs(cases) do
         local results = run(function(self, rank, port)
            self:init(init_info(port))
            local refused = rank == 1 and host.refused(graph_with_place, self, nothing, nothing) or nil
            pair.update(self, 1) -- and changes nothing
            return { refused = refused }
         end, { worker = true, load_weights = case[1], launch = case[2] })
         assert.same({}, results[0])
         assert.same({ status = "invalid input", rank = -1, text = "record: options.stream is being captured, and " .. case[3] },
            results[1].refused)
      end
   end)
end)
