--- Gemma 2 and 3: decoders with four norms a layer and a head that is always the embedding; Gemma 3 has norms over the heads, too,
-- and in its multimodal form a SigLIP tower, which every pipeline stage has whole.

local llama = require "spec.support.loader.llama"

local gemma = {}

local parts = llama.parts({
   every_stage = true,
   norms = { "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm" },
})

local PROJECTION, NORM = "multi_modal_projector.mm_input_projection_weight", "multi_modal_projector.mm_soft_emb_norm.weight"

-- What three kinds of checkpoint put in front of the names: those of the module (transformers 4.52 and later), those on the hub, those
-- of a trainer that has the text model alone.
local function name_on_disk(config, name)
   if not config.vision_config or config.naming == "text" then
      return name
   end
   local is_text = name:find("^model%.") or name:find("^lm_head%.")
   if config.naming == "hub" then
      return is_text and "language_model." .. name or name
   end
   return name:find("^lm_head%.") and name or is_text and name:gsub("^model%.", "model.language_model.", 1) or "model." .. name
end

local function name_in_host(config, name)
   if not config.vision_config or config.naming == "hub" then
      return name
   elseif config.naming == "text" then
      return "language_model." .. name
   end
   return (name:gsub("^lm_head%.", "language_model.lm_head."):gsub("^model%.language_model%.", "language_model.model.")
      :gsub("^model%.vision_tower%.", "vision_tower."):gsub("^model%.multi_modal_projector%.", "multi_modal_projector."))
end

local function positions_of(vision)
   return math.floor(vision.image_size / vision.patch_size) ^ 2
end

local function tower_tensors(vision, add)
   local h, wide = vision.hidden_size, vision.intermediate_size
   local function both(name, rows, ...)
      add(name .. ".weight", { rows, ... })
      add(name .. ".bias", { rows })
   end
   local within = "vision_tower.vision_model."
   both(within .. "embeddings.patch_embedding", h, 3, vision.patch_size, vision.patch_size)
   add(within .. "embeddings.position_embedding.weight", { positions_of(vision), h })
   for layer = 0, vision.num_hidden_layers - 1 do
      local prefix = ("%sencoder.layers.%d."):format(within, layer)
      for _, projection in ipairs({ "q_proj", "k_proj", "v_proj", "out_proj" }) do
         both(prefix .. "self_attn." .. projection, h, h)
      end
      both(prefix .. "mlp.fc1", wide, h)
      both(prefix .. "mlp.fc2", h, wide)
      both(prefix .. "layer_norm1", h)
      both(prefix .. "layer_norm2", h)
   end
   both(within .. "post_layernorm", h)
end

local function build_tower(model, vision)
   local h, wide, heads = vision.hidden_size, vision.intermediate_size, vision.num_attention_heads
   local function whole(name, rows, ...)
      model:replicated(name .. ".weight", { rows, ... })
      model:replicated(name .. ".bias", { rows })
   end
   local within = "vision_tower.vision_model."
   whole(within .. "embeddings.patch_embedding", h, 3, vision.patch_size, vision.patch_size)
   model:vocabulary(within .. "embeddings.position_embedding.weight", positions_of(vision), h)
   for layer = 0, vision.num_hidden_layers - 1 do
      local prefix = ("%sencoder.layers.%d."):format(within, layer)
      model:qkv(prefix .. "self_attn.qkv_proj.weight", heads, heads, h / heads, { h })
      model:qkv(prefix .. "self_attn.qkv_proj.bias", heads, heads, h / heads, {})
      model:row(prefix .. "self_attn.out_proj.weight", h, h)
      model:replicated(prefix .. "self_attn.out_proj.bias", { h })
      model:column(prefix .. "mlp.fc1.weight", wide, { h })
      model:column(prefix .. "mlp.fc1.bias", wide, {})
      model:row(prefix .. "mlp.fc2.weight", h, wide)
      model:replicated(prefix .. "mlp.fc2.bias", { h })
      whole(prefix .. "layer_norm1", h)
      whole(prefix .. "layer_norm2", h)
   end
   whole(within .. "post_layernorm", h)
end

local function checkpoint(config)
   local vision = config.naming ~= "text" and config.vision_config
   local list = llama.tensors(config, parts, function(name)
      return name_on_disk(config, name)
   end)
   local function add(name, shape)
      list[#list + 1] = { name_on_disk(config, name), shape }
   end
   if vision then
      tower_tensors(vision, add)
      add(PROJECTION, { vision.hidden_size, config.hidden_size })
      add(NORM, { vision.hidden_size })
   end
   return list
end

local function build(model, config)
   local vision = config.vision_config
   llama.decoder(model, config, parts, vision and "language_model." or "")
   if vision then
      build_tower(model, vision)
      model:replicated(PROJECTION, { vision.hidden_size, config.hidden_size })
      model:replicated(NORM, { vision.hidden_size })
   end
end

local function target(name, config)
   local host_name = name_in_host(config, name)
   if host_name:find("lm_head%.weight$") then
      return nil
   end
   return llama.target(host_name, config)
end

gemma.gemma2 = { checkpoint = checkpoint, build = build, target = target }
gemma.gemma3 = gemma.gemma2

return gemma
