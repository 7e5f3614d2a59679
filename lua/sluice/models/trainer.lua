--- How a trainer lays a parameter out, by the names of its mesh axes: tp as Megatron cuts, fsdp on dim 0 inside tp, pp pins
-- contiguous blocks of layers, ep pins experts, every other axis replicates. Placements are ordered, outermost first.

local check = require "sluice.models.check"
local mesh = require "sluice.models.mesh"

local trainer = {}
trainer.__index = trainer

local tp_dim = { column = 0, row = 1, replicated = nil }

--- A trainer of `deployment.trainer` for a model of `layers` layers and `experts` experts (0 for none).
function trainer.new(part, layers, experts)
   local expert_axes = part.expert_mesh or part.mesh
   local self = setmetatable({
      layers = layers, experts = experts, dense = part.mesh, expert = expert_axes,
      expert_name = part.expert_mesh and "expert" or "dense", known = {},
   }, trainer)
   if part.expert_mesh and mesh.has(part.expert_mesh, "pp") and
      mesh.size(part.expert_mesh, "pp") ~= mesh.size(part.mesh, "pp") then
      check.fail("trainer.expert_mesh has %d pp stages and trainer.mesh %d: both pin the same layers",
         mesh.size(part.expert_mesh, "pp"), mesh.size(part.mesh, "pp"))
   end
   return self
end

--- The pipeline stage of a layer (0-based, or "first" or "last" for what stands before and behind the layers).
function trainer:stage(layer, stages)
   if layer == "first" then
      return 0
   elseif layer == "last" then
      return stages - 1
   end
   return math.floor(layer / math.ceil(self.layers / stages))
end

-- The ep coordinate that owns an expert: the first (experts mod ep) coordinates own one more.
function trainer:owner(expert, size)
   local base, more = math.floor(self.experts / size), self.experts % size
   local in_larger = more * (base + 1)
   if expert < in_larger then
      return math.floor(expert / (base + 1))
   end
   return more + math.floor((expert - in_larger) / base)
end

local function append_shard(list, axes, name, dim, split)
   if dim and mesh.size(axes, name) > 1 then
      list[#list + 1] = { axis = name, shard = dim, split = split }
   end
end

-- An axis of size 1 places nothing and is left out.
local function build(axes, kind, stage, owner)
   local list = {}
   if owner == "packed" then
      append_shard(list, axes, "ep", 0, "balanced")
   end
   append_shard(list, axes, "tp", kind.tp)
   append_shard(list, axes, "fsdp", kind.fsdp)
   if mesh.size(axes, "pp") > 1 then
      list[#list + 1] = { axis = "pp", pin = stage }
   end
   if type(owner) == "number" and mesh.size(axes, "ep") > 1 then
      list[#list + 1] = { axis = "ep", pin = owner }
   end
   return list
end

-- Tables of placements are shared by all parameters that are laid out alike: they are values, never written to.
local function place(self, mesh_name, axes, kind, layer, owner)
   local stage = self:stage(layer, mesh.size(axes, "pp"))
   local key = mesh_name .. kind.key .. stage .. "/" .. tostring(owner)
   local found = self.known[key]
   if not found then
      found = build(axes, kind, stage, owner)
      self.known[key] = found
   end
   return mesh_name, found
end

local kinds = {}
for _, name in ipairs({ "column", "row", "replicated" }) do
   kinds[name] = { key = name, tp = tp_dim[name], fsdp = 0 }
end
kinds.buffer = { key = "buffer" } -- what FSDP does not shard
kinds.packed = { key = "packed", fsdp = 0 }
kinds.packed_column = { key = "packed_column", tp = 1, fsdp = 0 }
kinds.packed_row = { key = "packed_row", tp = 2, fsdp = 0 }

--- Where a parameter outside the experts lies. kind: "column", "row", "replicated" (under tp; fsdp still shards), "buffer".
-- @return the mesh' name, the placements
function trainer:place(kind, layer)
   return place(self, "dense", self.dense, kinds[kind], layer, nil)
end

--- Where a parameter of one expert lies.
function trainer:place_expert(kind, layer, expert)
   local size = mesh.size(self.expert, "ep")
   return place(self, self.expert_name, self.expert, kinds[kind], layer, size > 1 and self:owner(expert, size) or nil)
end

--- Where the packed tensor of all experts of a layer lies; kind: "packed_column" and "packed_row"
-- (tp cuts dim 1 or 2), "packed" (tp cuts none).
function trainer:place_packed(kind, layer)
   return place(self, self.expert_name, self.expert, kinds[kind], layer, "packed")
end

return trainer
