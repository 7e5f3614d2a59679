--- The slow loader: what a worker of the serving model holds after it loaded a checkpoint, told as the model's own loading code
-- does it: make the layers that this worker has (spec/support/loader/host.lua), then go through the checkpoint tensor by tensor,
-- find the live parameter of each by its name, and copy this worker's slice, element by element. It knows no planner, no rules
-- and no descriptions: what they say is held against it.
--
-- A family (spec/support/loader/<family>.lua) is a table:
--    checkpoint(config)      the tensors that its checkpoints hold: a list of { name, shape[, dtype] }
--    build(model, config)    makes the layers of one worker
--    target(name, config)    where a checkpoint tensor goes: live name, shard, expert; nothing where it is not loaded

local host = require "spec.support.loader.host"

local loader = {}

local families = {
   llama = "llama", mistral = "llama", qwen2 = "llama", qwen3 = "llama", qwen3_moe = "moe", mixtral = "moe", gemma2 = "gemma",
   gemma3 = "gemma", phi3 = "phi3", deepseek_v3 = "deepseek", gpt_oss = "gpt_oss", qwen2_5_vl = "qwen2_5_vl",
   bert = "bert",
}

--- The family of that name.
function loader.family(name)
   local module = require("spec.support.loader." .. assert(families[name], name))
   return module[name]
end

local function sorted(set)
   local names = {}
   for name in pairs(set) do
      names[#names + 1] = name
   end
   table.sort(names)
   return names
end

local function load_one(model, name, loaded, target, shard, expert)
   local parameter = model.parameters[target]
   if not parameter then
      return false -- another pipeline stage has it
   end
   local before = parameter.live:loaded()
   local good, problem = pcall(parameter.load, parameter.live, loaded, shard, expert)
   if not good then
      error(("%s into %s: %s"):format(name, target, type(problem) == "table" and problem.unfit or problem), 0)
   end
   return parameter.live:loaded() > before
end

--- Loads a checkpoint (name -> tensor) on the worker at `place`.
-- @return name -> live tensor; the set of checkpoint tensors of which it took something; the bytes that it took; and those of live
--    tensors that the trainer does not have (config.unsourced says which), and nobody writes.
--    Raises { unfit = why } where the model cannot be served so.
function loader.load(family, config, checkpoint, place)
   local model = host.new(place, config.dtype)
   family.build(model, config)
   local taken, bytes = {}, 0
   for _, name in ipairs(sorted(checkpoint)) do
      local target, shard, expert = family.target(name, config)
      if target and load_one(model, name, checkpoint[name], target, shard, expert) then
         taken[name] = true
      end
   end
   local live, untouched = {}, 0
   for _, name in ipairs(sorted(model.parameters)) do
      live[name] = model.parameters[name].live
      local loaded, missing = live[name]:loaded()
      if config.unsourced and config.unsourced(name) and loaded == 0 then
         live[name], untouched = live[name]:unwritten(), untouched + live[name]:size()
      elseif missing > 0 then
         error(("%s: %d of %d elements are not in the checkpoint"):format(name, missing, live[name]:count()), 0)
      end
      bytes = bytes + loaded * live[name].width
   end
   return live, taken, bytes, untouched
end

local function first_difference(a, b)
   for i = 1, #a do
      if a:byte(i) ~= b:byte(i) then
         return i - 1
      end
   end
   return #a
end

--- What differs between the tensors that a worker holds and those of the loader, both by name; nil where they are the same.
function loader.difference(held, wanted)
   local names, those = sorted(held), sorted(wanted)
   for i = 1, math.max(#names, #those) do
      if names[i] ~= those[i] then
         local only = not names[i] or (those[i] and those[i] < names[i])
         return only and ("it lacks %s"):format(those[i]) or ("it has %s, which the loader does not know"):format(names[i])
      end
   end
   for _, name in ipairs(names) do
      local a, b = held[name], wanted[name]
      local shapes = { table.concat(a.shape, ", "), table.concat(b.shape, ", ") }
      if a.dtype ~= b.dtype or shapes[1] ~= shapes[2] then
         return ("%s is %s [%s], the loader's %s [%s]"):format(name, a.dtype, shapes[1], b.dtype, shapes[2])
      end
      local mine, theirs = a:bytes(), b:bytes()
      if mine ~= theirs then
         return ("%s differs at byte %d of %d"):format(name, first_difference(mine, theirs), #theirs)
      end
   end
   return nil
end

return loader
