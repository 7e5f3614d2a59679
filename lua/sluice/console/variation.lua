--- Deployments beside the one at hand: with other mesh sizes, or so small that this machine can run them.
-- @module sluice.console.variation

local copy = require "sluice.copy"
local deployment = require "sluice.deployment"
local fault = require "sluice.cli.fault"
local mesh = require "sluice.models.mesh"
local models = require "sluice.models"
local world = require "sluice.cli.world"

local variation = {}

local SIDES = { trainer = true, worker = true }
local MOST_RANKS = 8 -- of a side, in a dry run
local FEW_LAYERS = 2
-- What a dry run makes smaller, at most to this; a size that rules or the family's own checks refuse is left as it is.
local SMALL = {
   { vocab_size = 2048, intermediate_size = 1024, moe_intermediate_size = 1024, hidden_size = 1024, num_experts = 8,
     num_local_experts = 8, n_routed_experts = 8, first_k_dense_replace = 1 },
   { vocab_size = 2048, intermediate_size = 1024, moe_intermediate_size = 1024, num_experts = 8, num_local_experts = 8,
     n_routed_experts = 8, first_k_dense_replace = 1 },
   { num_experts = 8, num_local_experts = 8, n_routed_experts = 8, first_k_dense_replace = 1 },
   {},
}

--- A mesh as text: "pp=2, tp=4".
function variation.mesh_text(axes)
   local items = {}
   for i, axis in ipairs(axes) do
      items[i] = axis[1] .. "=" .. ("%d"):format(axis[2])
   end
   return table.concat(items, ", ")
end

local function set_axis(axes, name, size)
   for _, axis in ipairs(axes) do
      if axis[1] == name then
         axis[2] = size
         return
      end
   end
   axes[#axes + 1] = { name, size }
end

-- The experts' mesh over as many ranks as the other one: pp as there, ep as wanted, and what is left on the axis `rest`.
local function settle_experts(part, ep, rest)
   local ranks, pp = mesh.ranks(part.mesh), mesh.size(part.mesh, "pp")
   local left = ranks / pp / ep
   if left % 1 ~= 0 then
      fault.wrong("%d ranks of a stage do not share out over ep = %d", ranks / pp, ep)
   end
   local axes = {}
   if mesh.has(part.mesh, "pp") then
      axes[1] = { "pp", pp }
   end
   if left > 1 then
      axes[#axes + 1] = { rest, left }
   end
   axes[#axes + 1] = { "ep", ep }
   part.expert_mesh = axes
end

-- The axis of an experts' mesh that takes the ranks which pp and ep leave.
local function rest_of(part)
   for _, axis in ipairs(part.expert_mesh or {}) do
      if axis[1] ~= "pp" and axis[1] ~= "ep" then
         return axis[1]
      end
   end
   return "dp"
end

local function resize(part, side, sizes)
   local ep = sizes.ep or part.expert_mesh and mesh.has(part.expert_mesh, "ep") and mesh.size(part.expert_mesh, "ep") or nil
   for name, size in pairs(sizes) do
      if type(name) ~= "string" or type(size) ~= "number" or size < 1 or size % 1 ~= 0 then
         fault.wrong("what_if: %s = %s: sizes of axes are whole numbers, as tp = 8", tostring(name), tostring(size))
      end
   end
   for _, name in ipairs({ "dp", "pp", "cp", "fsdp", "tp" }) do
      if sizes[name] then
         set_axis(part.mesh, name, sizes[name])
      end
   end
   for name in pairs(sizes) do
      if name ~= "ep" and not mesh.has(part.mesh, name) then
         fault.wrong("what_if: %s is no axis", name)
      end
   end
   if ep == 1 and side == "worker" then
      part.expert_mesh = nil -- tp cuts experts as it cuts all else
   elseif ep then
      settle_experts(part, ep, rest_of(part))
   end
end

--- The world of a deployment with other mesh sizes. Ends the command where they do not fit.
-- @param here the world
-- @param options sizes of the workers' axes, and `trainer`, `worker`: sizes of one side's
function variation.what_if(here, options)
   local raw = copy(here.deployment)
   local workers = {}
   for key, value in pairs(options) do
      if SIDES[key] then
         if type(value) ~= "table" then
            fault.wrong("what_if: %s must be a table of sizes", key)
         end
         resize(raw[key], key, value)
      else
         workers[key] = value
      end
   end
   if next(workers) then
      resize(raw.worker, "worker", workers)
   end
   return world.of((fault.check(deployment.check(raw))))
end

-- ---- small enough to run ----

local function shrink(part)
   local axes = part.mesh
   for _, axis in ipairs(axes) do
      axis[2] = (axis[1] == "pp" or axis[1] == "dp" or axis[1] == "cp") and math.min(axis[2], 2) or axis[2]
   end
   -- Replicas go first, then the largest.
   for _, name in ipairs({ "cp", "dp" }) do
      if mesh.ranks(axes) > MOST_RANKS and mesh.has(axes, name) then
         set_axis(axes, name, 1)
      end
   end
   while mesh.ranks(axes) > MOST_RANKS do
      local largest = axes[1]
      for _, axis in ipairs(axes) do
         largest = axis[2] > largest[2] and axis or largest
      end
      largest[2] = math.ceil(largest[2] / 2)
   end
   if part.expert_mesh then
      local ranks = mesh.ranks(axes) / mesh.size(axes, "pp")
      local ep = math.min(mesh.size(part.expert_mesh, "ep"), ranks)
      while ranks % ep ~= 0 do
         ep = ep - 1
      end
      settle_experts(part, ep, rest_of(part))
   end
end

local function smaller(here, limits)
   local raw = copy(here.deployment)
   shrink(raw.trainer)
   shrink(raw.worker)
   raw.updates, raw.batches, raw.transport, raw.road = 1, 1, "host", nil
   if raw.model.checkpoint then
      return raw
   end
   local config, allowed = here.description.config, {}
   for _, key in ipairs(models.families[raw.model.family].keys) do
      allowed[key] = true
   end
   raw.model.layers = math.min(config.num_hidden_layers, FEW_LAYERS)
   raw.model.config = raw.model.config or {}
   for key, most in pairs(limits) do
      if allowed[key] and config[key] and config[key] > most then
         raw.model.config[key] = most
         -- Heads stay as wide as they are.
         raw.model.config.head_dim = allowed.head_dim and raw.model.config.head_dim or config.head_dim
      end
   end
   return raw
end

local function changes(here, small)
   local list = {}
   local function note(what, from, to)
      if from ~= to then
         list[#list + 1] = ("%s %s instead of %s"):format(what, tostring(to), tostring(from))
      end
   end
   note("layers", here.description.config.num_hidden_layers, small.description.config.num_hidden_layers)
   local keys = {}
   for key in pairs(SMALL[1]) do
      keys[#keys + 1] = key
   end
   table.sort(keys)
   for _, key in ipairs(keys) do
      if key ~= "num_experts" or not here.description.config.n_routed_experts then -- the same under two names
         note(key, here.description.config[key], small.description.config[key])
      end
   end
   for _, side in ipairs({ "trainer", "worker" }) do
      local before, after = here.deployment[side], small.deployment[side]
      note(side .. "s", variation.mesh_text(before.mesh), variation.mesh_text(after.mesh))
      if before.expert_mesh then
         note("experts of " .. side .. "s", variation.mesh_text(before.expert_mesh), variation.mesh_text(after.expert_mesh))
      end
   end
   return list
end

--- The smallest world of a deployment that its rules still take, and what is smaller in it.
-- @param here the world
-- @param good function(world) -> whether its rules place everything
-- @return the world and a list of texts; or nil
function variation.small(here, good)
   for _, limits in ipairs(SMALL) do
      local checked = deployment.check(smaller(here, limits))
      local small = checked and fault.catch(world.of, checked)
      if small and good(small) then
         return small, changes(here, small)
      end
   end
end

return variation
