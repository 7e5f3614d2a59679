--- A small world for specs of the engine: two trainers, two workers, one parameter in place and one that goes to load_weights.

local ffi = require "ffi"
local host = require "spec.support.host"
local unistd = require "posix.unistd"
local world = require "spec.support.world"

local four = {}

-- a.weight [4, 4] goes direct (row over tp 2); b.bias [4] has no loader and goes full; both sharded on dim 0 by two trainers.
function four.init_info(port, change)
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

function four.shard(name, update, rank, count)
   local values = {}
   for i = 1, count do
      values[i] = value(name, update, rank * count + i - 1)
   end
   return values
end

function four.trainer(rank, options)
   local self = host.create {rank = rank, listen_fd = rank == 0 and options.fd or nil, timeout_s = options.timeout_s or 10,
      road = options.road, log = options.log}
   self.shards = {["a.weight"] = self:source("a.weight", four.shard("a.weight", 1, rank, 8)),
      ["b.bias"] = self:source("b.bias", four.shard("b.bias", 1, rank, 2))}
   return self
end

function four.set_values(self, rank, update)
   for name, count in pairs {["a.weight"] = 8, ["b.bias"] = 2} do
      for i, v in ipairs(four.shard(name, update, rank, count)) do
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

function four.worker(rank, options)
   local self
   self = host.create {rank = rank, timeout_s = options.timeout_s or 10, rules = options.rules, road = options.road, log = options.log,
      load_weights = not options.no_load_weights and (options.load_weights or collecting(options.store or {})) or nil,
      reload_begin = options.reload_begin, reload_end = options.reload_end, staging_slots = options.staging_slots}
   self.a = self:live("a.weight", {4, 2}, {attributes = '{"loader":"row","input_dim":1,"tp_size":2}'})
   self.b = self:live("b.bias", {4})
   return self
end

four.BOTH = {"a.weight", "b.bias"}

-- What worker `rank` must hold of a.weight after an update: columns [2r, 2r + 2).
function four.expect_a(self, rank, update)
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
function four.run(body, options)
   local fd, port = world.listen()
   options = options or {}
   local meanwhile = options.meanwhile
   options.meanwhile = function(children)
      unistd.close(fd)
      if meanwhile then
         meanwhile(children)
      end
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
      local self = rank < 2 and four.trainer(rank, given) or four.worker(rank, given)
      return body(self, rank, port, store)
   end, options)
end

function four.each(results, check)
   for rank = 0, 3 do
      check(results[rank], rank)
   end
end

return four
