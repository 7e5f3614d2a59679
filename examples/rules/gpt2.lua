-- GPT-2: weights are [in, out], so that each goes in transposed; c_attn stacks q, k and v along its last dim. The head is tied.

local tp = axes.tp
divide(required "n_head", tp)
local hidden = required "n_embd"
local width = divide(hidden, tp)

local H = "transformer.h.{l}."

-- The n-th third of a stack, cut on its own; dim 0 is the last one of a bias.
local function third(dim, n)
   return { from = span(dim, n * hidden, hidden), at = span(0, n * width, width) }
end

return {
   name = "gpt2",
   rename = { { "h.{l}.**", "transformer.h.{l}.**" }, { "{m=wte|wpe|ln_f}.**", "transformer.{m}.**" } },
   rules = {
      rule(H .. "attn.c_attn.weight") { permute = { 1, 0 }, layout = row, third(1, 0), third(1, 1), third(1, 2) },
      rule(H .. "attn.c_attn.bias") { layout = column, third(0, 0), third(0, 1), third(0, 2) },
      rule(H .. "{m=attn|mlp}.c_proj.weight") { permute = { 1, 0 }, layout = column },
      rule(H .. "{m=attn|mlp}.c_proj.bias") {},
      rule(H .. "mlp.c_fc.weight") { permute = { 1, 0 }, layout = row },
      rule(H .. "mlp.c_fc.bias") { layout = column },
      rule(H .. "{n=ln_1|ln_2}.{w=weight|bias}") {},
      rule "transformer.ln_f.{w=weight|bias}" {},
      rule "transformer.wte.weight" {
         layout = shard("tp", 0, { chunk = divide(round_up(required "vocab_size", 64), tp) }), pad = "zero" },
      rule "transformer.wpe.weight" {},
      rule(H .. "attn.{b=bias|masked_bias}") { skip = "a mask that the host computes" },
      rule "lm_head.weight" { alias = "transformer.wte.weight" },
   },
}
