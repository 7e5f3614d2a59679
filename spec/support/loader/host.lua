--- The layers of a serving model as their host makes and loads them: each call makes the live parameters of one layer on one
-- worker, together with the way in which a checkpoint tensor is loaded into each. The words are those of vLLM's own layers.
--
-- A worker's place: tp and tp_rank; pp and pp_rank; ep and ep_rank (1 and 0 without expert parallelism); moe_tp and
-- moe_tp_rank, into how many parts an expert is cut (1 and 0 under expert parallelism).

local tensor = require "spec.support.loader.tensor"

local host = {}
host.__index = host

--- a / b where b divides a; else the size cannot be served, and `what` says why.
function host.divide(a, b, what)
   if a % b ~= 0 then
      error({ unfit = ("%d %s do not divide by %d"):format(a, what, b) }, 0)
   end
   return a / b
end

--- A model without layers. dtype: of its parameters, as safetensors calls it.
function host.new(place, dtype)
   return setmetatable({ place = place, dtype = dtype, parameters = {}, tp = place.tp, r = place.tp_rank }, host)
end

--- The same model, for layers that tp does not cut.
function host:uncut()
   return setmetatable({ tp = 1, r = 0 }, { __index = self })
end

--- Makes one live parameter. load(live, loaded, shard, expert): how a checkpoint tensor gets into it.
function host:parameter(name, shape, load, dtype)
   assert(not self.parameters[name], name)
   self.parameters[name] = { live = tensor.zeros(dtype or self.dtype, shape), load = load }
   return self.parameters[name].live
end

local function whole(live, loaded)
   live:copy(loaded)
end

--- The same on every worker: norms, routers.
function host:replicated(name, shape, dtype)
   self:parameter(name, shape, whole, dtype)
end

-- A shape: rows, and what each row is made of ({} for a bias).
local function rows_of(rows, tail)
   return { rows, unpack(tail) }
end

-- Loads this worker's part of a dim into a part of the live parameter: both are told by where they start.
local function part(live, loaded, dim, at, from, length)
   live:narrow(dim, at, length):copy(loaded:narrow(dim, from, length))
end

--- Rows cut by tp.
function host:column(name, rows, tail, dtype)
   local mine = host.divide(rows, self.tp, "rows of " .. name)
   self:parameter(name, rows_of(mine, tail), function(live, loaded)
      part(live, loaded, 0, 0, self.r * mine, mine)
   end, dtype)
end

--- Columns cut by tp.
function host:row(name, rows, columns, dtype)
   local mine = host.divide(columns, self.tp, "columns of " .. name)
   self:parameter(name, { rows, mine }, function(live, loaded)
      part(live, loaded, 1, 0, self.r * mine, mine)
   end, dtype)
end

--- Several layers stacked, each cut by tp on its own. rows: of each; a checkpoint tensor is one of them (shard 1, 2, ...), or all
-- of them stacked (no shard). `tp` over the worker's: 1 for layers that tp does not cut.
function host:merged(name, rows, tail, dtype, tp)
   local parts, r = tp or self.tp, tp and 0 or self.r
   local total, at, mine, disk, behind = 0, {}, {}, {}, 0
   for i, count in ipairs(rows) do
      mine[i] = host.divide(count, parts, "rows of " .. name)
      at[i], disk[i] = total, behind
      total, behind = total + mine[i], behind + count
   end
   self:parameter(name, rows_of(total, tail), function(live, loaded, shard)
      for i = shard or 1, shard or #rows do
         local from = shard and 0 or disk[i]
         part(live, loaded, 0, at[i], from + r * mine[i], mine[i])
      end
   end, dtype)
end

--- q, k and v stacked; q is cut by heads; k and v, too, or where there are fewer KV heads than workers, each head is on several.
-- A checkpoint tensor is one of them ("q", "k", "v"), or all three stacked (no shard).
function host:qkv(name, heads, kv_heads, head_size, tail, dtype)
   local q = host.divide(heads, self.tp, "query heads")
   local kv, replicas = 1, 1
   if self.tp >= kv_heads then
      replicas = host.divide(self.tp, kv_heads, "workers of tp over the KV heads")
   else
      kv = host.divide(kv_heads, self.tp, "KV heads")
   end
   local kv_rank = math.floor(self.r / replicas)
   local strips = {
      q = { at = 0, from = self.r * q, heads = q, disk = 0 },
      k = { at = q, from = kv_rank * kv, heads = kv, disk = heads },
      v = { at = q + kv, from = kv_rank * kv, heads = kv, disk = heads + kv_heads },
   }
   self:parameter(name, rows_of((q + 2 * kv) * head_size, tail), function(live, loaded, shard)
      for id, strip in pairs(strips) do
         if shard == nil or shard == id then
            local from = strip.from + (shard and 0 or strip.disk)
            part(live, loaded, 0, strip.at * head_size, from * head_size, strip.heads * head_size)
         end
      end
   end, dtype)
end

--- An embedding or a head: the vocabulary is rounded up to a multiple of 64 and cut by tp; rows behind the vocabulary are zero,
-- and what a checkpoint has behind it is left out.
function host:vocabulary(name, rows, width, dtype)
   local padded = math.ceil(rows / 64) * 64
   local mine = host.divide(padded, self.tp, "rows of the padded vocabulary")
   local first = self.r * mine
   local real = math.max(0, math.min(mine, rows - first))
   local live = self:parameter(name, { mine, width }, function(live, loaded)
      assert(loaded.shape[1] >= rows, "the checkpoint has a smaller vocabulary")
      if real > 0 then
         part(live, loaded, 0, 0, first, real)
      end
   end, dtype)
   live:narrow(0, real, mine - real):pad()
end

--- Which experts a worker holds: the first, and how many. The first workers hold one more where they do not divide.
function host:local_experts(experts)
   local place = self.place
   local base, more = math.floor(experts / place.ep), experts % place.ep
   if base == 0 then
      error({ unfit = ("%d experts are fewer than %d expert-parallel workers"):format(experts, place.ep) }, 0)
   end
   return place.ep_rank * base + math.min(place.ep_rank, more), base + (place.ep_rank < more and 1 or 0)
end

--- Calls each(slab of the live tensor, slab of the checkpoint's) for the experts that this worker holds and the tensor brings:
-- one (`expert` is its number) or all of them.
function host.each_expert(first, count, live, loaded, expert, each)
   for e = first, first + count - 1 do
      if expert == nil then
         each(live:select(0, e - first), loaded:select(0, e))
      elseif expert == e then
         each(live:select(0, e - first), loaded)
      end
   end
end

--- The experts of a layer in two stacks: w13 (gate over up) and w2 (down). A checkpoint tensor is one expert's "w1", "w3" or "w2", or
-- of all experts "w13" or "w2".
function host:experts(w13, w2, experts, width, hidden, dtype)
   local first, count = self:local_experts(experts)
   local mine = host.divide(width, self.place.moe_tp, "columns of an expert")
   local from = self.place.moe_tp_rank * mine
   self:parameter(w13, { count, 2 * mine, hidden }, function(live, loaded, shard, expert)
      host.each_expert(first, count, live, loaded, expert, function(slab, one)
         if shard == "w1" or shard == "w13" then
            part(slab, one, 0, 0, from, mine)
         end
         if shard == "w3" then
            part(slab, one, 0, mine, from, mine)
         elseif shard == "w13" then
            part(slab, one, 0, mine, width + from, mine)
         end
      end)
   end, dtype)
   self:parameter(w2, { count, hidden, mine }, function(live, loaded, _, expert)
      host.each_expert(first, count, live, loaded, expert, function(slab, one)
         part(slab, one, 1, 0, from, mine)
      end)
   end, dtype)
end

--- The layers that this worker's pipeline stage holds: the first, and the one behind the last. What does not divide goes, one
-- layer each, to the stages before the last one.
function host:layers(count)
   local stages, first = self.place.pp, 0
   if count < stages then
      error({ unfit = ("%d layers are fewer than %d pipeline stages"):format(count, stages) }, 0)
   end
   for stage = 0, stages - 1 do
      local held = math.floor(count / stages)
      local behind = stages - 1 - stage
      if behind >= 1 and behind <= count % stages then
         held = held + 1
      end
      if stage == self.place.pp_rank then
         return first, first + held
      end
      first = first + held
   end
end

function host:is_first()
   return self.place.pp_rank == 0
end

function host:is_last()
   return self.place.pp_rank == self.place.pp - 1
end

return host
