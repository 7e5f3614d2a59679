-- Gemma 3: as Gemma 2, with a norm on the heads of q and k. The multimodal model serves the language model under
-- language_model, beside it a SigLIP tower whose q, k and v are stacked in one live qkv_proj.

local tp = axes.tp
local vocab = required "vocab_size"
local vocabulary = shard("tp", 0, { chunk = divide(host.padded_vocab_size or round_up(vocab, 64), tp) })

local vision = host.architecture == "Gemma3ForConditionalGeneration" and required "vision_config"
local rows = vision and divide(vision.hidden_size, tp)
local positions = vision and math.floor(vision.image_size / vision.patch_size) ^ 2

local tower = "vision_tower.vision_model."
local layer = tower .. "encoder.layers.{l}."

return {
   name = "gemma3",
   extends = "gemma2",
   -- A multimodal trainer names its parameters as the module does, or as the published files do.
   rename = vision and {
      { "model.language_model.**", "model.**" },
      { "language_model.model.**", "model.**" },
      { "language_model.lm_head.**", "lm_head.**" },
      { "model.{m=vision_tower|multi_modal_projector}.**", "{m}.**" },
   },
   rename_live = vision and { { "model.**", "language_model.model.**" } },
   unsourced = optional "trainer_is_text_only" and { "vision_tower.**", "multi_modal_projector.**" },
   rules = {
      rule "model.layers.{l}.self_attn.{n=q_norm|k_norm}.weight" { layout = replicate },
      -- Some checkpoints have 64 rows more than the vocabulary that the host serves: 262208 for 262144.
      rule "model.embed_tokens.weight" { from = span(0, 0, vocab), layout = vocabulary, pad = "zero" },

      vision and rule(tower .. "embeddings.patch_embedding.{w=weight|bias}") { layout = replicate },
      vision and rule(tower .. "embeddings.position_embedding.weight") {
         layout = shard("tp", 0, { chunk = divide(round_up(positions, 64), tp) }), pad = "zero", shape = { positions, "*" } },
      vision and rule(layer .. "self_attn.q_proj.{w=weight|bias}") {
         into = layer .. "self_attn.qkv_proj.{w}", at = span(0, 0, rows), layout = column },
      vision and rule(layer .. "self_attn.k_proj.{w=weight|bias}") {
         into = layer .. "self_attn.qkv_proj.{w}", at = span(0, rows, rows), layout = column },
      vision and rule(layer .. "self_attn.v_proj.{w=weight|bias}") {
         into = layer .. "self_attn.qkv_proj.{w}", at = span(0, 2 * rows, rows), layout = column },
      vision and rule(layer .. "mlp.fc1.{w=weight|bias}") { layout = column },
      vision and rule(layer .. "{m=self_attn.out_proj|mlp.fc2}.weight") { layout = row },
      vision and rule(layer .. "{m=self_attn.out_proj|mlp.fc2}.bias") { layout = replicate },
      vision and rule(layer .. "{n=layer_norm1|layer_norm2}.{w=weight|bias}") { layout = replicate },
      vision and rule(tower .. "post_layernorm.{w=weight|bias}") { layout = replicate },
      vision and rule "multi_modal_projector.{p=mm_input_projection_weight|mm_soft_emb_norm.weight}" { layout = replicate },
   },
}
