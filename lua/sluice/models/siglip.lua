--- The SigLIP vision tower that multimodal models carry: q, k and v are fused when served, the table of positions is cut like a
-- vocabulary. Every pipeline stage of a host holds it whole.

local check = require "sluice.models.check"
local serving = require "sluice.models.serving"

local siglip = {}

local CHANNELS = 3

--- The keys of vision_config that it needs.
siglip.keys = { "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size" }

--- Fails where the tower cannot be cut over the workers' tp.
function siglip.check_workers(vision, tp)
   for _, key in ipairs({ "num_attention_heads", "intermediate_size" }) do
      if vision[key] % tp ~= 0 then
         check.fail("model.config.vision_config.%s (%d) must divide by the workers' tp (%d)", key, vision[key], tp)
      end
   end
   if vision.hidden_size % vision.num_attention_heads ~= 0 then
      check.fail("model.config.vision_config.hidden_size (%d) must divide by its num_attention_heads (%d)", vision.hidden_size,
         vision.num_attention_heads)
   end
   if vision.image_size < vision.patch_size then
      check.fail("model.config.vision_config.image_size (%d) must be at least its patch_size (%d)", vision.image_size,
         vision.patch_size)
   end
   local positions = siglip.positions(vision)
   if serving.padded(positions) % tp ~= 0 then
      check.fail("the vision tower's %d positions, padded to %d, must divide by the workers' tp (%d)", positions,
         serving.padded(positions), tp)
   end
end

--- How many patches an image has.
function siglip.positions(vision)
   return math.floor(vision.image_size / vision.patch_size) ^ 2
end

-- Weight and bias of a layer that every rank holds whole, in both lists.
local function add_whole(add, prefix, shape)
   add(prefix .. ".weight", shape, "replicated", "first")
   add(prefix .. ".bias", { shape[1] }, "replicated", "first")
end

local function live_whole(worker, prefix, shape)
   worker:whole(prefix .. ".weight", shape)
   worker:whole(prefix .. ".bias", { shape[1] })
end

local function shapes_of(vision)
   local h, wide = vision.hidden_size, vision.intermediate_size
   return { hidden = { h }, square = { h, h }, fc1 = { wide, h }, wide = { wide }, fc2 = { h, wide },
            patch = { h, CHANNELS, vision.patch_size, vision.patch_size } }
end

--- Adds the tower's parameters; prefix: what stands before its own names, with a dot.
function siglip.params(vision, add, prefix)
   local shapes = shapes_of(vision)
   add_whole(add, prefix .. "embeddings.patch_embedding", shapes.patch)
   add(prefix .. "embeddings.position_embedding.weight", { siglip.positions(vision), vision.hidden_size }, "column", "first")
   for layer = 0, vision.num_hidden_layers - 1 do
      local base = ("%sencoder.layers.%d."):format(prefix, layer)
      for _, part in ipairs({ "q", "k", "v" }) do
         add(base .. "self_attn." .. part .. "_proj.weight", shapes.square, "column", "first")
         add(base .. "self_attn." .. part .. "_proj.bias", shapes.hidden, "column", "first")
      end
      add(base .. "self_attn.out_proj.weight", shapes.square, "row", "first")
      add(base .. "self_attn.out_proj.bias", shapes.hidden, "replicated", "first")
      add(base .. "mlp.fc1.weight", shapes.fc1, "column", "first")
      add(base .. "mlp.fc1.bias", shapes.wide, "column", "first")
      add(base .. "mlp.fc2.weight", shapes.fc2, "row", "first")
      add(base .. "mlp.fc2.bias", shapes.hidden, "replicated", "first")
      add_whole(add, base .. "layer_norm1", shapes.hidden)
      add_whole(add, base .. "layer_norm2", shapes.hidden)
   end
   add_whole(add, prefix .. "post_layernorm", shapes.hidden)
end

local function live_layer(worker, vision, base, shapes)
   local heads, d = vision.num_attention_heads, vision.hidden_size / vision.num_attention_heads
   for _, suffix in ipairs({ "weight", "bias" }) do
      local sources = {}
      for i, part in ipairs({ "q", "k", "v" }) do
         sources[i] = ("%sself_attn.%s_proj.%s"):format(base, part, suffix)
      end
      worker:qkv(base .. "self_attn.qkv_proj." .. suffix, sources, heads, heads, d, suffix == "weight" and shapes.hidden or {})
   end
   worker:part(base .. "self_attn.out_proj.weight", shapes.square, 1)
   worker:whole(base .. "self_attn.out_proj.bias", shapes.hidden, "replicated")
   worker:part(base .. "mlp.fc1.weight", shapes.fc1, 0)
   worker:part(base .. "mlp.fc1.bias", shapes.wide, 0)
   worker:part(base .. "mlp.fc2.weight", shapes.fc2, 1)
   worker:whole(base .. "mlp.fc2.bias", shapes.hidden, "replicated")
   live_whole(worker, base .. "layer_norm1", shapes.hidden)
   live_whole(worker, base .. "layer_norm2", shapes.hidden)
end

--- Adds what a worker holds of the tower.
function siglip.live(vision, worker, prefix)
   local shapes = shapes_of(vision)
   live_whole(worker, prefix .. "embeddings.patch_embedding", shapes.patch)
   worker:vocabulary(prefix .. "embeddings.position_embedding.weight", siglip.positions(vision), vision.hidden_size)
   for layer = 0, vision.num_hidden_layers - 1 do
      live_layer(worker, vision, ("%sencoder.layers.%d."):format(prefix, layer), shapes)
   end
   live_whole(worker, prefix .. "post_layernorm", shapes.hidden)
end

return siglip
