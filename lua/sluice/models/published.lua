--- From a checkpoint's config.json to what a deployment says of its model: the family by its architecture, and the keys that
-- decide shapes. All else in config.json is passed over; what a deployment says itself goes over it.

local check = require "sluice.models.check"

local published = {}

-- The families by every architecture that config.json may name.
local function by_architecture(families)
   local found = {}
   for name, family in pairs(families) do
      for _, architecture in ipairs(family.architectures or { family.architecture }) do
         found[architecture] = name
      end
   end
   return found
end

local function family_of(config, families)
   local known, names = by_architecture(families), {}
   local named = type(config.architectures) == "table" and config.architectures[1]
   if known[named] then
      return known[named]
   end
   for name in pairs(known) do
      names[#names + 1] = name
   end
   table.sort(names)
   check.fail("model.family is missing, and the checkpoint's config.json names the architecture %s, which is none of %s",
      check.shown(named or nil), check.listed(names))
end

local function pick(into, keys, from)
   for _, key in ipairs(keys) do
      if into[key] == nil and type(from) == "table" then
         into[key] = from[key]
      end
   end
end

--- The model of a deployment with what its checkpoint's config.json says, where it is silent.
-- @param model the `model` of a deployment; left as it is
-- @param config the decoded config.json, without nulls
-- @param families all that there are, by name
function published.filled_in(model, config, families)
   local filled = {}
   for key, value in pairs(model) do
      filled[key] = value
   end
   filled.family = filled.family == nil and family_of(config, families) or filled.family
   local family = families[filled.family]
   if not family or (model.config ~= nil and type(model.config) ~= "table") then
      return filled -- which is refused, with a better reason than can be told here
   end
   filled.config = {}
   for key, value in pairs(model.config or {}) do
      filled.config[key] = value
   end
   local keys, vision = {}, family.vision and config.vision_config
   for _, key in ipairs(family.keys) do
      keys[#keys + 1] = key ~= "vision_config" and key or nil
   end
   if filled.config.text_config == nil then
      pick(filled.config, keys, family.vision and config.text_config)
      pick(filled.config, keys, config)
   end
   if vision and filled.config.vision_config == nil then
      filled.config.vision_config = {}
      pick(filled.config.vision_config, family.vision, vision)
   end
   return filled
end

return published
