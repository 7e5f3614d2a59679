--- A model's configuration: a public size or the deployment's own numbers, overridden and checked key by key.
-- Knows the keys and their ranges; what a family needs of them is said by the family.

local check = require "sluice.models.check"
local sizes = require "sluice.models.sizes"

local config = {}

local MAX_LAYERS, MAX_HEADS, MAX_EXTENT, MAX_EXPERTS = 4096, 65536, 2 ^ 26, 65536

-- The most parameters that a description may list: a bound on memory, far above any published model.
config.MAX_PARAMS = 1000000

local integers = {
   num_hidden_layers = MAX_LAYERS, hidden_size = MAX_EXTENT, intermediate_size = MAX_EXTENT,
   num_attention_heads = MAX_HEADS, num_key_value_heads = MAX_HEADS, head_dim = MAX_HEADS, vocab_size = 2 ^ 31 - 1,
   num_experts = MAX_EXPERTS, moe_intermediate_size = MAX_EXTENT, decoder_sparse_step = MAX_LAYERS,
   max_position_embeddings = MAX_EXTENT, type_vocab_size = MAX_EXTENT,
   num_local_experts = MAX_EXPERTS, checkpoint_vocab_size = 2 ^ 31 - 1,
   n_routed_experts = MAX_EXPERTS, n_shared_experts = MAX_EXPERTS, first_k_dense_replace = MAX_LAYERS, moe_layer_freq = MAX_LAYERS,
   q_lora_rank = MAX_EXTENT, kv_lora_rank = MAX_EXTENT, qk_nope_head_dim = MAX_HEADS, qk_rope_head_dim = MAX_HEADS,
   v_head_dim = MAX_HEADS, num_nextn_predict_layers = MAX_LAYERS,
}
local may_be_zero = { first_k_dense_replace = true, num_nextn_predict_layers = true }
local booleans = { tie_word_embeddings = true, announce_tied = true, attention_bias = true, mlp_bias = true }

-- Choices of a deployment that no published configuration makes; a family names those that it has. The first is the default.
local choices = {
   experts = { "single", "packed" },
   live_experts = { "experts", "experts.routed_experts" },
   naming = { "module", "hub", "text" }, -- whose names a multimodal trainer has; "text": it has the language model alone
   mtp = { "skipped", "served" },
   live_qkv = { "qkv_proj", "qkv" },
   mm_encoder_tp_mode = { "weights", "data" }, -- the vision tower is cut over tp, or whole on every rank
}

local model_keys = {
   "family", "size", "layers", "config", "checkpoint", "experts", "dtype", "live_experts", "naming", "mtp", "live_qkv",
   "mm_encoder_tp_mode",
}
local dtypes = { "bfloat16", "float16", "float32" }

local function sorted_keys(set)
   local keys = {}
   for key in pairs(set) do
      keys[#keys + 1] = key
   end
   table.sort(keys)
   return keys
end

local size_names = sorted_keys(sizes)

-- fp8 in blocks: the one form that a trainer sends as the host holds it.
local function quantization_of(value, path)
   check.keys(value, path, { "quant_method", "weight_block_size", "activation_scheme", "fmt", "scale_fmt" })
   check.one_of(value.quant_method, path .. ".quant_method", { "fp8" })
   check.one_of(value.fmt or "e4m3", path .. ".fmt", { "e4m3" })
   local block = check.list(value.weight_block_size, path .. ".weight_block_size", 2, 2, "the rows and columns of a block")
   for i, extent in ipairs(block) do
      check.integer(extent, ("%s.weight_block_size[%d]"):format(path, i), 1, MAX_EXTENT)
   end
   return { quant_method = "fp8", weight_block_size = { block[1], block[2] } }
end

-- One key of model.config, checked by what the key is.
local function value_of(key, value, layers)
   local path = "model.config." .. key
   if integers[key] then
      return check.integer(value, path, may_be_zero[key] and 0 or 1, integers[key])
   elseif booleans[key] then
      if type(value) ~= "boolean" then
         check.fail("%s (%s) must be true or false", path, check.shown(value))
      end
      return value
   elseif key == "quantization_config" then
      return quantization_of(value, path)
   end
   -- mlp_only_layers
   check.list(value, path, 0, MAX_LAYERS, "layer numbers")
   for i, layer in ipairs(value) do
      check.integer(layer, ("%s[%d]"):format(path, i), 0, layers - 1)
   end
   return value
end

local function family_of(model, families)
   local named = model.size and sizes[model.size].family
   if model.family == nil then
      if not named then
         check.fail("model must name a size (one of %s) or a family with a config", check.listed(size_names))
      end
      return named
   end
   check.one_of(model.family, "model.family", sorted_keys(families))
   if named and named ~= model.family then
      check.fail("model.size (%s) is of the family %s, not %s", check.shown(model.size), named, model.family)
   end
   return model.family
end

-- A family's default size stands in where the deployment gives neither a size nor a config.
local function base_of(model, family)
   local name = model.size or (model.config == nil and family.default_size) or nil
   local base = {}
   for key, value in pairs(name and sizes[name] or {}) do
      base[key] = value
   end
   return base, name
end

-- The keys that a deployment gives. A multimodal config.json has the language model's one level deeper, in text_config.
local function given_keys(model, family)
   local given = model.config or {}
   if not family.vision or type(given) ~= "table" or given.text_config == nil then
      return check.keys(given, "model.config", family.keys)
   end
   local flat = {}
   for key, value in pairs(check.keys(given.text_config, "model.config.text_config", family.keys)) do
      flat[key] = value
   end
   for key, value in pairs(given) do
      if key ~= "text_config" then
         flat[key] = value
      end
   end
   return check.keys(flat, "model.config", family.keys)
end

-- The vision tower's keys, all of them sizes: what is given, over the size's.
local function vision_of(given, base, family, family_name)
   local vision, path = {}, "model.config.vision_config"
   check.keys(given or {}, path, family.vision)
   for _, key in ipairs(family.vision) do
      local value = given and given[key] or base and base[key]
      if value == nil then
         check.fail("%s.%s is missing: the family %s needs it", path, key, family_name)
      end
      vision[key] = check.integer(value, path .. "." .. key, 1, integers[key] or MAX_EXTENT)
   end
   return vision
end

-- The public size that a configuration is, if it is one.
local function size_of(resolved, family_name)
   for _, name in ipairs(size_names) do
      local same = sizes[name].family == family_name
      for key, value in pairs(sizes[name]) do
         same = same and (key == "family" or type(value) == "table" or resolved[key] == value)
      end
      if same then
         return name
      end
   end
end

local function merge(model, family, family_name)
   local base, size = base_of(model, family)
   local given = given_keys(model, family)
   local vision = family.vision and (given.vision_config or base.vision_config) and
      vision_of(given.vision_config, base.vision_config, family, family_name)
   for _, key in ipairs(family.keys) do
      if given[key] ~= nil then
         base[key] = given[key]
      end
   end
   for _, key in ipairs(family.required) do
      if base[key] == nil then
         check.fail("model.config.%s is missing: the family %s needs it", key, family_name)
      end
   end
   local layers = value_of("num_hidden_layers", base.num_hidden_layers)
   for _, key in ipairs(family.keys) do
      if base[key] ~= nil and key ~= "vision_config" then
         base[key] = value_of(key, base[key], layers)
      end
   end
   base.vision_config = vision or nil
   return base, size or size_of(base, family_name)
end

local function title_of(model, resolved, size)
   local title = size or model.family
   if model.layers and model.layers < resolved.all_layers then
      return ("%s (%d of %d layers)"):format(title, model.layers, resolved.all_layers)
   end
   return title
end

-- Every choice that the deployment makes, or its default.
local function choose(model, family, name, resolved)
   local offered = {}
   for _, key in ipairs(family.choices or {}) do
      offered[key] = true
   end
   for _, key in ipairs(sorted_keys(choices)) do
      if model[key] ~= nil and not offered[key] then
         check.fail("model.%s (%s) is no choice of the family %s", key, check.shown(model[key]), name)
      end
      resolved[key] = model[key] == nil and choices[key][1] or check.one_of(model[key], "model." .. key, choices[key])
   end
end

--- Checks the `model` part of a deployment against the families and fills in every number. Fails through check.
-- @return the configuration: the published keys, and family, architecture, dtype, title, all_layers and the choices
function config.resolve(model, families)
   check.keys(model, "model", model_keys)
   if model.size ~= nil then
      check.one_of(model.size, "model.size", size_names)
   end
   local name = family_of(model, families)
   local family = families[name]
   local resolved, size = merge(model, family, name)
   resolved.family = name
   resolved.all_layers = resolved.num_hidden_layers
   if model.layers ~= nil then
      resolved.num_hidden_layers = check.integer(model.layers, "model.layers", 1, resolved.all_layers)
   end
   resolved.dtype = model.dtype == nil and family.dtype or check.one_of(model.dtype, "model.dtype", dtypes)
   if model.checkpoint ~= nil then
      check.text(model.checkpoint, "model.checkpoint", 4096)
   end
   choose(model, family, name, resolved)
   resolved.architecture = family.architecture
   resolved.title = title_of({ family = name, layers = model.layers }, resolved, size)
   family.complete(resolved)
   return resolved
end

return config
