--- A trainer and a worker with six parameters of 64 float32, for specs of the engine on any transport: in place where the
-- worker has live tensors, else through load_weights. On nccl and m2n their memory is that of a GPU which processors stand in for.

local cjson = require "cjson"
local ffi = require "ffi"
local gpu = require "spec.support.gpu"
local gpu_run = require "spec.support.gpu_run"
local host = require "spec.support.host"
local stdlib = require "posix.stdlib"
local unistd = require "posix.unistd"
local world = require "spec.support.world"

local pair = { LENGTH = 64, COUNT = 6, NAMES = {} }
local zeros = {}
for i = 1, pair.COUNT do
   pair.NAMES[i] = "w" .. i
end
for i = 1, pair.LENGTH do
   zeros[i] = 0
end

--- `id`: nccl_unique_id_b64, or nil.
function pair.init_info(port, id)
   local info = { schema_version = 2, master_address = "127.0.0.1", master_port = port, rank_offset = 1, world_size = 2,
      dst_mesh_dims = { 1, 1 }, params = {}, nccl_unique_id_b64 = id }
   for i, name in ipairs(pair.NAMES) do
      info.params[i] = { name = name, dtype_name = "float32", shape = { pair.LENGTH }, src_mesh_dims = { 1, 1 }, src_placements = cjson.null }
   end
   return world.seal(info)
end

local function value(update, number, index)
   return update * 10000 + number * 1000 + index
end

--- Writes the values of an update into tensor `number`.
function pair.fill(data, update, number)
   for i = 0, pair.LENGTH - 1 do
      data[i] = value(update, number, i)
   end
end

--- The same for all sources of a trainer; nothing on a worker.
function pair.fill_all(self, update)
   for i = 1, self.rank == 0 and pair.COUNT or 0 do
      pair.fill(self.w[i], update, i)
   end
end

--- Adds what is wrong with a tensor of an update to a list.
function pair.check(wrong, what, data, update, number)
   for i = 0, pair.LENGTH - 1 do
      if data[i] ~= value(update, number, i) then
         wrong[#wrong + 1] = ("%s of update %d: w%d[%d] is %g, not %g"):format(what, update, number, i, data[i], value(update, number, i))
         return
      end
   end
end

--- The same for all live tensors of a worker; nothing on a trainer.
function pair.check_all(wrong, self, update)
   for i = 1, self.rank == 1 and pair.COUNT or 0 do
      pair.check(wrong, "a live tensor", self.w[i], update, i)
   end
end

--- A tensor of a GPU that nobody knows of.
function pair.floats(self)
   return ffi.cast("float *", self.there.memory(pair.LENGTH * 4))
end

--- A whole update of all names, in one batch.
function pair.update(self, turn)
   self:start()
   self:update(pair.NAMES)
   self:finish("v" .. turn)
end

--- The same by a recording.
function pair.replay(self, recording, turn)
   self:start()
   self:replay(recording)
   self:finish("v" .. turn)
end

--- A whole update with values of its own; what is then wrong with live tensors is added to a list.
function pair.turn(self, turn, wrong)
   pair.fill_all(self, turn)
   pair.update(self, turn)
   pair.check_all(wrong, self, turn)
end

--- body(self, rank, port) on both: `self` has its rank, its sources or live tensors in self.w and, on nccl, its GPU in self.there
-- and a stream in self.queue. options: transport; trainer or worker (which of them gives that stream), on (the GPU of that
-- stream); driver (the version of CUDA that it knows, as 12000); started(children); what host.create takes; what world.run takes.
function pair.run(body, options)
   local fd, port = world.listen()
   options.meanwhile = function(children)
      unistd.close(fd)
      if options.started then
         options.started(children)
      end
   end
   return world.run(2, function(rank)
      if rank > 0 then
         unistd.close(fd)
      end
      local there, stream
      if options.transport == "nccl" or options.transport == "m2n" then
         for name, setting in pairs(gpu_run.environment(options.transport)) do
            stdlib.setenv(name, setting)
         end
         if options.driver then
            stdlib.setenv("SLUICE_CUDA_ON_CPU_VERSION", options.driver)
         end
         stream = gpu.open(options.on).stream()
         there = gpu.open()
      end
      local gives = rank == 0 and options.trainer or rank == 1 and options.worker
      local given = { rank = rank, listen_fd = rank == 0 and fd or nil, memory = there and there.memory, stream = gives and stream.handle or nil }
      for _, key in ipairs({ "transport", "road", "load_weights", "launch", "staging_slots", "timeout_s", "beat_s", "rules", "mix", "grouped" }) do
         given[key] = options[key]
      end
      local self = host.create(given)
      self.rank, self.queue, self.there, self.w = rank, stream, there, {}
      for i, name in ipairs(pair.NAMES) do
         if rank == 0 then
            self.w[i] = self:source(name, zeros)
         elseif not options.load_weights then
            self.w[i] = self:live(name, { pair.LENGTH }, { attributes = '{"loader":"replicated"}' })
         end
      end
      return body(self, rank, port)
   end, options)
end

return pair
