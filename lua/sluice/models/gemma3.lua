--- Gemma 3: as Gemma 2, with norms over each head of q and k. With a vision_config it is the multimodal model, which carries a
-- SigLIP tower and a projector.

local check = require "sluice.models.check"
local decoder = require "sluice.models.decoder"
local names = require "sluice.models.names"
local serving = require "sluice.models.serving"
local siglip = require "sluice.models.siglip"

local text = decoder.family({
   architecture = "Gemma3ForCausalLM", tied = true, every_stage = true, qk_norm = true, norms = decoder.four_norms,
   keys = { "attention_bias", "checkpoint_vocab_size", "vision_config" },
})

local TOWER, PROJECTOR = "vision_tower.vision_model.", "multi_modal_projector."

-- Whose names a multimodal trainer has: its module's (transformers 4.52 and later), those of the files that are published, or
-- those of the language model alone, which then is all it trains.
local namings = {
   module = { { "model.", "model.language_model." }, { "vision_tower.", "model.vision_tower." },
              { PROJECTOR, "model.multi_modal_projector." } },
   hub = { { "model.", "language_model.model." }, { "lm_head.", "language_model.lm_head." } },
   text = {},
}

local family = setmetatable({
   architectures = { "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration" }, vision = siglip.keys, choices = { "naming" },
   layer_pattern = "^[%a_.]*model%.layers%.(%d+)%.",
}, { __index = text })

function family.complete(config)
   text.complete(config)
   if config.vision_config then
      config.architecture = "Gemma3ForConditionalGeneration"
   end
   if not config.vision_config and config.naming ~= "module" then
      check.fail("model.naming (%s) is for the multimodal model, which has a vision_config", check.shown(config.naming))
   end
   if config.checkpoint_vocab_size and config.checkpoint_vocab_size < config.vocab_size then
      check.fail("model.config.checkpoint_vocab_size (%d) must be at least vocab_size (%d)", config.checkpoint_vocab_size,
         config.vocab_size)
   end
end

function family.check_workers(config, part)
   text.check_workers(config, part)
   if config.vision_config then
      siglip.check_workers(config.vision_config, serving.sizes(part).tp)
   end
end

function family.host(config)
   return { vision_config = config.vision_config, trainer_is_text_only = config.naming == "text" or nil }
end

function family.prefixes(config)
   local multimodal = config.vision_config ~= nil
   return { checkpoint = multimodal and namings[config.naming] or {}, live = multimodal and namings.hub or {} }
end

-- A checkpoint's names tell whose they are, and its embedding how many rows it really has.
function family.settle(config, holds)
   for _, naming in ipairs(config.vision_config and { "module", "hub", "text" } or {}) do
      if holds[names.renamed(namings[naming], "model.norm.weight")] then
         config.naming = naming
      end
   end
   local prefixes = family.prefixes(config).checkpoint
   local embed = holds[names.renamed(prefixes, "model.embed_tokens.weight")]
   if embed and embed.shape[1] and embed.shape[1] > config.vocab_size then
      config.checkpoint_vocab_size = embed.shape[1]
   end
   config.announce_tied = holds[names.renamed(prefixes, "lm_head.weight")] ~= nil
end

function family.params(config, add)
   local vision = config.naming ~= "text" and config.vision_config
   if vision then
      siglip.params(vision, add, TOWER)
      add(PROJECTOR .. "mm_input_projection_weight", { vision.hidden_size, config.hidden_size }, "replicated", "first")
      add(PROJECTOR .. "mm_soft_emb_norm.weight", { vision.hidden_size }, "replicated", "first")
   end
   text.params(config, add)
end

function family.live(config, worker)
   local vision = config.vision_config
   if vision then
      worker.unsourced = config.naming == "text"
      siglip.live(vision, worker, TOWER)
      worker:whole(PROJECTOR .. "mm_input_projection_weight", { vision.hidden_size, config.hidden_size })
      worker:whole(PROJECTOR .. "mm_soft_emb_norm.weight", { vision.hidden_size })
      worker.unsourced = false
   end
   text.live(config, worker)
end

return family
