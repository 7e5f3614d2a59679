-- A rule file with every word in it, for a small made-up model. Copy it, keep what your model needs, throw the rest away.
-- spec/script/template_spec.lua runs it; lua/README.md ("Writing rules") has the tables of all keys and words.
--
-- The file is Lua, run once a plan, before anything moves. Plain Lua may compute whatever no word says; what counts is the
-- table at the end.

-- ---- what the host says ----

local heads = required "num_attention_heads" -- an error where the host does not say it
local d = host.head_dim or divide(required "hidden_size", heads) -- nil where the host is silent; divide wants no rest
local block = optional "weight_block_size" or { 8, 8 } -- like host.key, for keys that Sluice does not know, too

-- ---- what the workers' meshes are ----

local tp = axes.tp -- the size of an axis; 1 where no mesh has it
local ep = meshes.expert.ep -- the same in one mesh, by name

-- ---- numbers ----

local q = divide(heads, tp) * d -- rows of q in one worker
local kv_heads, kv_parts = share(required "num_key_value_heads", tp) -- heads a worker, and how many different parts there are
local kv = kv_heads * d
local gate = divide(required "intermediate_size", tp)
local half = ceil_divide(heads * d, 2) -- rounded up
local padded = host.padded_vocab_size or round_up(required "vocab_size", 64) -- up to a multiple
local head = spread(heads, tp) -- for each head its rank, and which of that rank's it is
local map = spread(host.expert_map or required "num_experts", ep) -- the same for each expert

-- ---- layouts and slices that several rules share ----

local kv_column = shard("tp", 0, { parts = kv_parts }) -- cut dim 0 in fewer parts than tp has ranks: some get the same one
local vocabulary = shard("tp", 0, { chunk = divide(padded, tp) }) -- pieces of a given size, the last ones short or empty
local experts = shard("ep", 0, { split = "balanced" }) -- the first ranks hold one more where it does not divide
local owner = pin("ep", pick("e", map.owner)) -- only on the rank that the list has for the captured number
local slab = index(0, pick("e", map.position)) -- one index of a dim, which is gone then

-- ---- what the serving model has ----

-- The first live tensor that a pattern names, with its shape, dtype and attributes; nil where there is none.
local fused = live "**.qkv_proj.weight"
local qkv = fused and "qkv_proj" or "qkv"

local A, M = "model.layers.{l}.attn.", "model.layers.{l}.mlp."

return {
   name = "template",

   -- Another family, or a file beside this one: its rules come after these, its keys count where this file is silent.
   extends = "decoder",

   -- Whether anything may be written in place: a reason sends all whole to the host's loader. policy {} is the default's
   -- reason (quantized, several stages); here it is said which cases this file knows how to place.
   full = policy { quantization = "fp8", pipeline = true },
   -- Beside a weight stands its `..._scale_inv`, one number for each block: it goes as the weight's rule says, counted in blocks.
   -- { 1, "*" } would be a number for each row.
   scales = { ending = "_scale_inv", block = block },
   -- A float32 parameter lands as bfloat16, rounded by its trainer, unless its rule says otherwise.
   convert = "bfloat16",
   -- What a parameter without a rule gets: "error", "default" (the default resolver) or "full".
   otherwise = "error",
   -- true: a parameter that would go whole is an error.
   require_direct = false,

   -- Names, in this order: what a trainer's wrappers leave is taken out, ...
   strip = { "_fsdp_wrapped_module" },
   -- ... each rename is tried once, and then a rule is looked for.
   rename = { { "transformer.h.{l}.**", "model.layers.{l}.**" }, { "transformer.**", "model.**" } },
   -- What rules call a live tensor, and what this server calls it.
   rename_live = { { "model.layers.{l}.attn.**", "model.layers.{l}.self_attn.**" } },

   -- Pins for every name that matches, whatever its rule says: layers on their stages.
   pins = { where "model.layers.{l}.**" (pin("pp", 0)) },

   -- Live tensors that the trainer never has, and that may stay as they are.
   unsourced = { "**.rotary.cos_cached" },

   rules = {
      -- q, k and v, each cut by heads, one behind the other in one live tensor. at: where in the live tensor, in a worker's sizes.
      rule(A .. "q.weight") { into = A .. qkv .. ".weight", at = span(0, 0, q), layout = column },
      rule(A .. "k.weight") { into = A .. qkv .. ".weight", at = span(0, q, kv), layout = kv_column },
      rule(A .. "v.weight") { into = A .. qkv .. ".weight", at = span(0, q + kv, kv), layout = kv_column },

      -- Two strips: the first brings the weight, the second clears a bias that the server has and the trainer has not.
      rule(A .. "o.weight") {
         { layout = row },
         { into = A .. "o.bias", zero = true },
      },

      -- Interleaved: even rows in the first half, odd ones in the second. from: what is taken, in the whole parameter's sizes.
      rule(A .. "rope.weight") {
         { from = span(0, 0, half, 2), at = span(0, 0, half) },
         { from = span(0, 1, half, 2), at = span(0, half, half) },
      },

      -- Fused on disk, too: each part is cut on its own.
      rule(M .. "gate_up.weight") { layout = column,
         { from = span(0, 0, gate * tp), at = span(0, 0, gate) },
         { from = span(0, gate * tp, gate * tp), at = span(0, gate, gate) },
      },

      -- Fused head by head, q's rows and then k's: each makes its strip once a head.
      rule(A .. "qk.weight") { layout = pin("tp", each(head.owner)),
         { from = span(0, each(heads, 2 * d), d), at = span(0, each(head.position, d), d) },
         { from = span(0, each(heads, 2 * d, d), d), at = span(0, each(head.position, d, q), d) },
      },

      rule(M .. "down.weight") { layout = row },
      -- The server wants this one in float32: it is not converted.
      rule(M .. "router.weight") { layout = replicate, convert = false },

      -- One tensor an expert: {e} says which, pick turns it into its rank and its slab.
      rule(M .. "experts.{e}.up.weight") { into = M .. "experts.w13", at = slab, layout = { owner, column } },
      -- All experts in one tensor, in and out swapped. The first placement of a layout is the outermost.
      rule(M .. "experts.down") { into = M .. "experts.w2", permute = { 0, 2, 1 }, layout = { experts, shard("tp", 1) } },
      -- What ranks sum up must come once: the first rank along tp has it, the others have zeros. It does not come without the weight.
      rule(M .. "experts.down_bias") { companion = M .. "experts.down", into = M .. "experts.w2_bias", layout = { experts, first "tp" } },

      -- More rows in the live tensor than there are: the rest is cleared. shape: what the parameter must look like, "*" for any extent.
      rule "model.score.weight" { layout = vocabulary, pad = "zero", shape = { required "vocab_size", "*" } },

      -- The same values under a second name; what nobody serves; what the host's own loader had better do.
      rule "model.readout.weight" { alias = "model.score.weight" },
      rule "**.lora_{w=A|B}.weight" { skip = "merged before it is sent" },
      rule "model.tower.conv.weight" { full = "the loader folds it", into = "model.tower.folded.weight" },

      -- A rule that a condition leaves out is false.
      host.tie_word_embeddings and rule "model.extra.weight" { skip = "tied" },
   },
}
