--- Updates and the stream that the host gives, where there is no GPU: on the driver that processors stand in for.

local ffi = require "ffi"
local gpu = require "spec.support.gpu"
local host = require "spec.support.host"
local pair = require "spec.support.pair"

local COUNT, LENGTH, NAMES = pair.COUNT, pair.LENGTH, pair.NAMES
local init_info, fill, check, floats, update = pair.init_info, pair.fill, pair.check, pair.floats, pair.update

local function run(body, options)
   options.transport = "nccl"
   return pair.run(body, options)
end

describe("a stream of the host's", function()
   it("brings what a trainer queued there in front of what reads its sources", function()
      if not gpu.built() then
         return
      end
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
      if not gpu.built() then
         return
      end
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
      if not gpu.built() then
         return
      end
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
      if not gpu.built() then
         return
      end
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

   it("is one of the GPU where the tensors lie; of another it is refused at init, on every rank", function()
      if not gpu.built() then
         return
      end
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
         text = 'create: options.stream is a CUDA stream and wants options.transport "nccl"' }, refused)
   end)
end)
