-- Qwen2.5-VL: Qwen2.5 under language_model, beside it a vision tower whose q, k and v are fused on both sides, each part cut by
-- heads. A host may keep the tower whole on every rank (mm_encoder_tp_mode "data").

local vision = required "vision_config"
local cut = optional "mm_encoder_tp_mode" ~= "data"
local tp = cut and axes.tp or 1
local column, row = cut and column or replicate, cut and row or replicate

local h = vision.hidden_size
local part = divide(vision.num_heads, tp) * divide(h, vision.num_heads)
local gate = divide(vision.intermediate_size, tp)
local block = "visual.blocks.{b}."

return {
   name = "qwen2_5_vl",
   extends = "qwen2",
   -- A trainer names its parameters as the module does, as the published files do, or as the language model alone.
   rename = { { "model.language_model.**", "model.**" }, { "model.visual.**", "visual.**" } },
   rename_live = { { "model.**", "language_model.model.**" }, { "lm_head.**", "language_model.lm_head.**" } },
   unsourced = optional "trainer_is_text_only" and { "visual.**" },
   rules = {
      rule "visual.patch_embed.proj.weight" { layout = replicate },
      rule(block .. "attn.qkv.{w=weight|bias}") { layout = column,
         { from = span(0, 0, h), at = span(0, 0, part) },
         { from = span(0, h, h), at = span(0, part, part) },
         { from = span(0, 2 * h, h), at = span(0, 2 * part, part) },
      },
      rule(block .. "mlp.gate_proj.{w=weight|bias}") {
         into = block .. "mlp.gate_up_proj.{w}", at = span(0, 0, gate), layout = column },
      rule(block .. "mlp.up_proj.{w=weight|bias}") {
         into = block .. "mlp.gate_up_proj.{w}", at = span(0, gate, gate), layout = column },
      rule "visual.merger.mlp.0.{w=weight|bias}" { layout = column },
      rule "visual.**.{m=attn.proj|mlp.down_proj|mlp.2}.weight" { layout = row },
      rule "visual.**.{m=attn.proj|mlp.down_proj|mlp.2}.bias" { layout = replicate },
      rule "visual.**.{n=norm1|norm2|ln_q}.weight" { layout = replicate },
   },
}
