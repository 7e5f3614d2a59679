-- What stands around the layers of any decoder: a padded vocabulary at both ends, the last norm, the norms before attention and
-- MLP, and a served pipeline. No family by itself: families extend it.

local tp = axes.tp
local vocab = required "vocab_size"
local padded = host.padded_vocab_size or round_up(vocab, 64)
local vocabulary = shard("tp", 0, { chunk = divide(padded, tp) })

-- A served pipeline: blocks of layers, the embedding on the first stage, the final norm and the head on the last. A tied head
-- is the embedding, which the last stage then holds, too.
local tied, stages = host.tie_word_embeddings, axes.pp
local layers = stages > 1 and spread(host.pipeline_layers or required "num_hidden_layers", stages).owner
local on_first, on_last = pin("pp", 0), pin("pp", stages - 1)

-- A host that serves LoRA adapters wraps its modules, and names the weights inside base_layer. Where it does not say which,
-- live tensors tell; stages of a pipeline that hold other modules would then tell otherwise.
local function is_wrapped(module)
   for _, name in ipairs(host.lora_modules or {}) do
      if name == module then
         return true
      end
   end
   return not host.lora_modules and live("**." .. module .. ".base_layer.weight")
end

local wrapped = {}
for _, module in ipairs { "qkv_proj", "o_proj", "gate_up_proj", "down_proj", "embed_tokens" } do
   if is_wrapped(module) then
      wrapped[#wrapped + 1] = { "**." .. module .. ".{w=weight|bias}", "**." .. module .. ".base_layer.{w}" }
   end
end

-- In fp8 a weight comes with a scale for each block of it.
local block = host.quantization == "fp8" and host.weight_block_size

return {
   name = "decoder",
   -- What FSDP, checkpointing of activations, torch.compile, DDP and PEFT leave in a trainer's names.
   strip = { "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "module", "base_model.model", "base_layer" },
   rename_live = wrapped,
   full = policy { pipeline = true, quantization = block and "fp8" },
   scales = block and { ending = "_scale_inv", block = block },
   -- What a trainer has in bfloat16 or float32 and such a host in fp8.
   convert = block and {
      { "model.layers.{l}.self_attn.{p=q|k|v|o|qkv}_proj.weight", "float8_e4m3fn" },
      { "model.layers.{l}.mlp.{p=gate|up|down|gate_up}_proj.weight", "float8_e4m3fn" },
      { "model.layers.{l}.{b=mlp|block_sparse_moe}.experts.**", "float8_e4m3fn" },
   },
   pins = layers and {
      where "model.layers.{l}.**" (pin("pp", pick("l", layers))),
      not tied and where "model.embed_tokens.**" (on_first),
      where "{m=model.norm|lm_head}.**" (on_last),
   },
   rules = {
      rule "model.layers.{l}.{n=input_layernorm|post_attention_layernorm}.weight" { layout = replicate },
      rule "model.norm.weight" { layout = replicate },
      tied and stages > 1 and rule "model.embed_tokens.weight" { pad = "zero", shape = { vocab, "*" },
            { layout = { on_first, vocabulary } },
            { layout = { on_last, vocabulary } },
         }
         or rule "model.embed_tokens.weight" { layout = vocabulary, pad = "zero", shape = { vocab, "*" } },
      tied and rule "lm_head.weight" { alias = "model.embed_tokens.weight" }
         or rule "lm_head.weight" { layout = vocabulary, pad = "zero", shape = { vocab, "*" } },
      rule "**.{b=inv_freq|cos_cached|sin_cached}" { skip = "computed by the host" },
   },
}
