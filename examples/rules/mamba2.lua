-- Mamba-2: five things are stacked in in_proj (gate, x, B, C, dt), three in the convolution (x, B, C); B and C go by groups, which are
-- repeated where there are fewer than workers. The host keeps A = -exp(A_log), which is other values: its loader makes it.

local tp = axes.tp
local heads, groups = required "num_heads", required "n_groups"
local inner, state = heads * required "head_dim", required "state_size"
local all_bc = groups * state

local x, dt = divide(inner, tp), divide(heads, tp)
local count, parts = share(groups, tp)
local bc = count * state
local by_group = shard("tp", 0, { parts = parts })

-- x, B and C one behind the other from row `on_disk` on, in the live tensor from row `from` on.
local function x_b_c(on_disk, from)
   return { from = span(0, on_disk, inner), at = span(0, from, x), layout = column },
      { from = span(0, on_disk + inner, all_bc), at = span(0, from + x, bc), layout = by_group },
      { from = span(0, on_disk + inner + all_bc, all_bc), at = span(0, from + x + bc, bc), layout = by_group }
end

local M = "backbone.layers.{l}.mixer."

return {
   name = "mamba2",
   rules = {
      rule(M .. "in_proj.weight") {
         { from = span(0, 0, inner), at = span(0, 0, x), layout = column },
         { from = span(0, 2 * (inner + all_bc), heads), at = span(0, 2 * (x + bc), dt), layout = column },
         x_b_c(inner, x),
      },
      rule(M .. "conv1d.{w=weight|bias}") { x_b_c(0, 0) },
      rule(M .. "A_log") { full = "the host keeps -exp(A_log)", into = M .. "A" },
      rule(M .. "{p=D|dt_bias}") { layout = column },
      rule(M .. "norm.weight") { layout = column },
      rule(M .. "out_proj.weight") { layout = row },
      rule "backbone.layers.{l}.norm.weight" {},
      rule "backbone.norm_f.weight" {},
      rule "backbone.embeddings.weight" {
         layout = shard("tp", 0, { chunk = divide(round_up(required "vocab_size", 64), tp) }), pad = "zero" },
      rule "lm_head.weight" { alias = "backbone.embeddings.weight" },
   },
}
