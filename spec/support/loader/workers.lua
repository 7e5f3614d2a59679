--- The workers of a serving host of one size, { tp =, ep =, pp =, dp = }: their meshes, and where each stands.

local workers = {}

local function axes_of(...)
   local axes = {}
   for _, axis in ipairs({ ... }) do
      if axis[2] > 1 then
         axes[#axes + 1] = axis
      end
   end
   return #axes > 0 and axes or { { "tp", 1 } }
end

--- How many there are.
function workers.count(size)
   return size.dp * size.pp * size.tp
end

--- Their meshes, { mesh =, expert_mesh = or nil }. Without expert parallelism (ep 1) tp cuts experts, too; else ep lies over tp, or
-- over dp and tp.
function workers.meshes(size)
   local worker = { mesh = axes_of({ "dp", size.dp }, { "pp", size.pp }, { "tp", size.tp }) }
   if size.ep > 1 then
      local over_all = size.ep == size.dp * size.tp
      worker.expert_mesh = over_all and axes_of({ "pp", size.pp }, { "ep", size.ep })
         or axes_of({ "dp", size.dp }, { "pp", size.pp }, { "ep", size.ep })
   end
   return worker
end

local function coordinates(axes, rank)
   local at = {}
   for i = #axes, 1, -1 do
      at[axes[i][1]] = rank % axes[i][2]
      rank = math.floor(rank / axes[i][2])
   end
   return at
end

--- Where worker `rank` (from 0) stands, as the loader wants it told.
function workers.place(size, rank)
   local worker = workers.meshes(size)
   local dense = coordinates(worker.mesh, rank)
   local expert = coordinates(worker.expert_mesh or worker.mesh, rank)
   local whole = size.ep > 1
   return {
      tp = size.tp, tp_rank = dense.tp or 0, pp = size.pp, pp_rank = dense.pp or 0, ep = size.ep, ep_rank = expert.ep or 0,
      moe_tp = whole and 1 or size.tp, moe_tp_rank = whole and 0 or dense.tp or 0,
   }
end

return workers
