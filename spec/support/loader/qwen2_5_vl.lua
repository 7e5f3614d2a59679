--- Qwen2.5-VL: Qwen2.5 under language_model., and a vision tower whose q, k and v are stacked on disk already. Every pipeline stage has
-- the tower: cut over tp by heads, or whole on every worker, where the host was started so.

local llama = require "spec.support.loader.llama"

local vl = {}

local parts = llama.parts({})

-- What the merger takes: the patches of one square, one behind the other.
local function merged_size(vision)
   return vision.hidden_size * vision.spatial_merge_size ^ 2
end

local function patch_shape(vision)
   return { vision.hidden_size, 3, vision.temporal_patch_size, vision.patch_size, vision.patch_size }
end

-- The names of transformers 4.52 and later; those on the hub, and those of a trainer of the text alone, are the plain ones.
local function name_on_disk(config, name)
   if config.naming ~= "module" then
      return name
   end
   return (name:gsub("^model%.", "model.language_model."):gsub("^visual%.", "model.visual."))
end

local function tower_tensors(vision, add)
   local h, wide, merged = vision.hidden_size, vision.intermediate_size, merged_size(vision)
   local function linear(name, rows, columns)
      add(name .. ".weight", { rows, columns })
      add(name .. ".bias", { rows })
   end
   add("visual.patch_embed.proj.weight", patch_shape(vision))
   for block = 0, vision.depth - 1 do
      local prefix = ("visual.blocks.%d."):format(block)
      add(prefix .. "norm1.weight", { h })
      add(prefix .. "norm2.weight", { h })
      linear(prefix .. "attn.qkv", 3 * h, h)
      linear(prefix .. "attn.proj", h, h)
      linear(prefix .. "mlp.gate_proj", wide, h)
      linear(prefix .. "mlp.up_proj", wide, h)
      linear(prefix .. "mlp.down_proj", h, wide)
   end
   add("visual.merger.ln_q.weight", { h })
   linear("visual.merger.mlp.0", merged, merged)
   linear("visual.merger.mlp.2", vision.out_hidden_size, merged)
end

local function build_tower(model, vision)
   local h, wide, heads, merged = vision.hidden_size, vision.intermediate_size, vision.num_heads, merged_size(vision)
   model:replicated("visual.patch_embed.proj.weight", patch_shape(vision))
   for block = 0, vision.depth - 1 do
      local prefix = ("visual.blocks.%d."):format(block)
      model:replicated(prefix .. "norm1.weight", { h })
      model:replicated(prefix .. "norm2.weight", { h })
      model:qkv(prefix .. "attn.qkv.weight", heads, heads, h / heads, { h })
      model:qkv(prefix .. "attn.qkv.bias", heads, heads, h / heads, {})
      model:row(prefix .. "attn.proj.weight", h, h)
      model:replicated(prefix .. "attn.proj.bias", { h })
      model:merged(prefix .. "mlp.gate_up_proj.weight", { wide, wide }, { h })
      model:merged(prefix .. "mlp.gate_up_proj.bias", { wide, wide }, {})
      model:row(prefix .. "mlp.down_proj.weight", h, wide)
      model:replicated(prefix .. "mlp.down_proj.bias", { h })
   end
   model:replicated("visual.merger.ln_q.weight", { h })
   model:column("visual.merger.mlp.0.weight", merged, { merged })
   model:column("visual.merger.mlp.0.bias", merged, {})
   model:row("visual.merger.mlp.2.weight", vision.out_hidden_size, merged)
   model:replicated("visual.merger.mlp.2.bias", { vision.out_hidden_size })
end

local function checkpoint(config)
   local list = llama.tensors(config, parts, function(name)
      return name_on_disk(config, name)
   end)
   if config.naming ~= "text" then
      tower_tensors(config.vision_config, function(name, shape)
         list[#list + 1] = { name_on_disk(config, name), shape }
      end)
   end
   return list
end

local function build(model, config)
   llama.decoder(model, config, parts, "language_model.")
   build_tower(config.whole_tower and model:uncut() or model, config.vision_config)
end

local function target(name, config)
   name = name:gsub("^model%.language_model%.", "language_model.model."):gsub("^model%.visual%.", "visual.")
      :gsub("^lm_head%.", "language_model.lm_head."):gsub("^model%.", "language_model.model.")
   if name == "language_model.lm_head.weight" and config.tie_word_embeddings then
      return nil
   end
   return llama.target(name, config)
end

vl.qwen2_5_vl = { checkpoint = checkpoint, build = build, target = target }

return vl
