--- What the specs of models share: a model of a few elements, and how it is described.

local deployment = require "sluice.deployment"
local models = require "sluice.models"
local with = require "spec.support.with"

local tiny = {}

local base = {
   num_hidden_layers = 2, hidden_size = 6, intermediate_size = 16, num_attention_heads = 8, num_key_value_heads = 2, head_dim = 2,
   vocab_size = 70,
}

--- A tiny decoder's configuration, with changes.
function tiny.config(changes)
   return with(base, changes)
end

--- The description of a model for workers and, where it matters, trainers.
function tiny.describe(model, worker, trainer)
   return assert(models.describe(assert(deployment.check({
      model = model, trainer = trainer or { mesh = { { "dp", 1 } } }, worker = worker,
   }))))
end

--- One live tensor of a worker, by name.
function tiny.live(description, rank, name)
   for _, live in ipairs(description.live(rank)) do
      if live.name == name then
         return live
      end
   end
end

return tiny
