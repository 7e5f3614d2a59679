--- Models that no family file is for, as their own loading code has them; examples/rules has a rule file for each. The words are those of
-- spec/support/loader/host.lua, and beside them copies told piece by piece.

local host = require "spec.support.loader.host"

local unseen = {}

local divide = host.divide

local function same_name(name)
   return name
end

-- A list of tensors, and a function that adds one.
local function new_list()
   local list = {}
   return list, function(name, shape, dtype)
      list[#list + 1] = { name, shape, dtype }
   end
end

local function each_layer(model, config, pattern, each)
   local first, behind = 0, config.layers
   if model then
      first, behind = model:layers(config.layers)
   end
   for layer = first, behind - 1 do
      each(pattern:format(layer), layer)
   end
end

-- KV heads of a worker, and the first.
local function kv_heads(model, all)
   if model.tp >= all then
      local repeats = divide(model.tp, all, "workers over the KV heads")
      return 1, math.floor(model.r / repeats)
   end
   local count = divide(all, model.tp, "KV heads")
   return count, model.r * count
end

-- Copies `count` rows.
local function rows(live, loaded, at, from, count)
   live:narrow(0, at, count):copy(loaded:narrow(0, from, count))
end

-- ---- falcon: groups of (query heads, k, v) ----

unseen.falcon = {
   checkpoint = function(config)
      local list, add = new_list()
      local d, hidden = config.d, config.hidden
      add("transformer.word_embeddings.weight", { config.vocab, hidden })
      each_layer(nil, config, "transformer.h.%d.", function(prefix)
         add(prefix .. "self_attention.query_key_value.weight", { (config.heads + 2 * config.groups) * d, hidden })
         add(prefix .. "self_attention.dense.weight", { hidden, config.heads * d })
         add(prefix .. "mlp.dense_h_to_4h.weight", { 4 * hidden, hidden })
         add(prefix .. "mlp.dense_4h_to_h.weight", { hidden, 4 * hidden })
         for _, norm in ipairs({ "ln_attn", "ln_mlp" }) do
            add(prefix .. norm .. ".weight", { hidden })
            add(prefix .. norm .. ".bias", { hidden })
         end
      end)
      add("transformer.ln_f.weight", { hidden })
      add("transformer.ln_f.bias", { hidden })
      add("lm_head.weight", { config.vocab, hidden })
      return list
   end,
   build = function(model, config)
      local d, hidden = config.d, config.hidden
      local in_group = config.heads / config.groups
      local q = divide(config.heads, model.tp, "query heads")
      local count, first = kv_heads(model, config.groups)
      model:vocabulary("transformer.word_embeddings.weight", config.vocab, hidden)
      each_layer(model, config, "transformer.h.%d.", function(prefix)
         model:parameter(prefix .. "self_attention.query_key_value.weight", { (q + 2 * count) * d, hidden }, function(live, loaded)
            for i = 0, q - 1 do
               local head = model.r * q + i
               local group = math.floor(head / in_group)
               rows(live, loaded, i * d, (group * (in_group + 2) + head % in_group) * d, d)
            end
            for i = 0, count - 1 do
               local behind = ((first + i) * (in_group + 2) + in_group) * d
               rows(live, loaded, (q + i) * d, behind, d)
               rows(live, loaded, (q + count + i) * d, behind + d, d)
            end
         end)
         model:row(prefix .. "self_attention.dense.weight", hidden, config.heads * d)
         model:column(prefix .. "mlp.dense_h_to_4h.weight", 4 * hidden, { hidden })
         model:row(prefix .. "mlp.dense_4h_to_h.weight", hidden, 4 * hidden)
         for _, norm in ipairs({ "ln_attn", "ln_mlp" }) do
            model:replicated(prefix .. norm .. ".weight", { hidden })
            model:replicated(prefix .. norm .. ".bias", { hidden })
         end
      end)
      model:replicated("transformer.ln_f.weight", { hidden })
      model:replicated("transformer.ln_f.bias", { hidden })
      model:vocabulary("lm_head.weight", config.vocab, hidden)
   end,
   target = same_name,
}

-- ---- gpt-neox: each head its q, k and v ----

unseen.gpt_neox = {
   checkpoint = function(config)
      local list, add = new_list()
      each_layer(nil, config, "gpt_neox.layers.%d.", function(prefix)
         add(prefix .. "attention.query_key_value.weight", { 3 * config.heads * config.d, config.hidden })
         add(prefix .. "attention.query_key_value.bias", { 3 * config.heads * config.d })
      end)
      return list
   end,
   build = function(model, config)
      local d, q = config.d, divide(config.heads, model.tp, "query heads")
      local function load(live, loaded)
         for part = 0, 2 do
            for i = 0, q - 1 do
               rows(live, loaded, (part * q + i) * d, ((model.r * q + i) * 3 + part) * d, d)
            end
         end
      end
      each_layer(model, config, "gpt_neox.layers.%d.", function(prefix)
         model:parameter(prefix .. "attention.query_key_value.weight", { 3 * q * d, config.hidden }, load)
         model:parameter(prefix .. "attention.query_key_value.bias", { 3 * q * d }, load)
      end)
   end,
   target = same_name,
}

-- ---- chatglm: all stacked ----

unseen.chatglm = {
   checkpoint = function(config)
      local list, add = new_list()
      local d, hidden = config.d, config.hidden
      local all = (config.heads + 2 * config.groups) * d
      add("transformer.embedding.word_embeddings.weight", { config.vocab, hidden })
      add("transformer.rotary_pos_emb.inv_freq", { d / 4 })
      each_layer(nil, config, "transformer.encoder.layers.%d.", function(prefix)
         add(prefix .. "self_attention.query_key_value.weight", { all, hidden })
         add(prefix .. "self_attention.query_key_value.bias", { all })
         add(prefix .. "self_attention.dense.weight", { hidden, config.heads * d })
         add(prefix .. "mlp.dense_h_to_4h.weight", { 2 * config.wide, hidden })
         add(prefix .. "mlp.dense_4h_to_h.weight", { hidden, config.wide })
         add(prefix .. "input_layernorm.weight", { hidden })
         add(prefix .. "post_attention_layernorm.weight", { hidden })
      end)
      add("transformer.encoder.final_layernorm.weight", { hidden })
      add("transformer.output_layer.weight", { config.vocab, hidden })
      return list
   end,
   build = function(model, config)
      local d, hidden = config.d, config.hidden
      model:vocabulary("transformer.embedding.weight", config.vocab, hidden)
      each_layer(model, config, "transformer.encoder.layers.%d.", function(prefix)
         model:qkv(prefix .. "self_attention.query_key_value.weight", config.heads, config.groups, d, { hidden })
         model:qkv(prefix .. "self_attention.query_key_value.bias", config.heads, config.groups, d, {})
         model:row(prefix .. "self_attention.dense.weight", hidden, config.heads * d)
         model:merged(prefix .. "mlp.dense_h_to_4h.weight", { config.wide, config.wide }, { hidden })
         model:row(prefix .. "mlp.dense_4h_to_h.weight", hidden, config.wide)
         model:replicated(prefix .. "input_layernorm.weight", { hidden })
         model:replicated(prefix .. "post_attention_layernorm.weight", { hidden })
      end)
      model:replicated("transformer.encoder.final_layernorm.weight", { hidden })
      model:vocabulary("transformer.output_layer.weight", config.vocab, hidden)
   end,
   target = function(name)
      return not name:find("inv_freq$") and (name:gsub("embedding%.word_embeddings", "embedding")) or nil
   end,
}

-- ---- gpt-2: [in, out] ----

unseen.gpt2 = {
   checkpoint = function(config)
      local list, add = new_list()
      local hidden = config.hidden
      local function linear(name, inputs, outputs)
         add(name .. ".weight", { inputs, outputs })
         add(name .. ".bias", { outputs })
      end
      add("wte.weight", { config.vocab, hidden })
      add("wpe.weight", { 12, hidden })
      each_layer(nil, config, "h.%d.", function(prefix)
         linear(prefix .. "attn.c_attn", hidden, 3 * hidden)
         linear(prefix .. "attn.c_proj", hidden, hidden)
         linear(prefix .. "mlp.c_fc", hidden, 4 * hidden)
         linear(prefix .. "mlp.c_proj", 4 * hidden, hidden)
         add(prefix .. "attn.bias", { 1, 1, 4, 4 })
         for _, norm in ipairs({ "ln_1", "ln_2" }) do
            add(prefix .. norm .. ".weight", { hidden })
            add(prefix .. norm .. ".bias", { hidden })
         end
      end)
      add("ln_f.weight", { hidden })
      add("ln_f.bias", { hidden })
      return list
   end,
   -- The layers of any decoder; a weight is turned over before it is loaded.
   build = function(model, config)
      local hidden = config.hidden
      local turned = setmetatable({ parameter = function(_, name, shape, load, dtype)
         return model:parameter(name, shape, function(live, loaded, ...)
            load(live, loaded:transpose(0, 1), ...)
         end, dtype)
      end }, { __index = model })
      model:vocabulary("transformer.wte.weight", config.vocab, hidden)
      model:replicated("transformer.wpe.weight", { 12, hidden })
      each_layer(model, config, "transformer.h.%d.", function(prefix)
         turned:qkv(prefix .. "attn.c_attn.weight", config.heads, config.heads, hidden / config.heads, { hidden })
         model:qkv(prefix .. "attn.c_attn.bias", config.heads, config.heads, hidden / config.heads, {})
         turned:row(prefix .. "attn.c_proj.weight", hidden, hidden)
         model:replicated(prefix .. "attn.c_proj.bias", { hidden })
         turned:column(prefix .. "mlp.c_fc.weight", 4 * hidden, { hidden })
         model:column(prefix .. "mlp.c_fc.bias", 4 * hidden, {})
         turned:row(prefix .. "mlp.c_proj.weight", hidden, 4 * hidden)
         model:replicated(prefix .. "mlp.c_proj.bias", { hidden })
         for _, norm in ipairs({ "ln_1", "ln_2" }) do
            model:replicated(prefix .. norm .. ".weight", { hidden })
            model:replicated(prefix .. norm .. ".bias", { hidden })
         end
      end)
      model:replicated("transformer.ln_f.weight", { hidden })
      model:replicated("transformer.ln_f.bias", { hidden })
   end,
   target = function(name)
      return not name:find("%.attn%.bias$") and "transformer." .. name or nil
   end,
}

-- ---- mamba-2 ----

-- Where the parts of a stack are: { on disk, rows on disk, live, rows of a worker, first of its rows in the part }.
local function mamba_parts(model, config, with_gate)
   local heads, state = config.heads, config.state
   local mine = divide(heads, model.tp, "heads")
   local count, first = kv_heads(model, config.groups)
   local parts, disk, live = {}, 0, 0
   local function part(all, rows_of_mine, from)
      parts[#parts + 1] = { disk, live, rows_of_mine, from }
      disk, live = disk + all, live + rows_of_mine
   end
   if with_gate then
      part(heads * config.d, mine * config.d, model.r * mine * config.d)
   end
   part(heads * config.d, mine * config.d, model.r * mine * config.d)
   part(config.groups * state, count * state, first * state)
   part(config.groups * state, count * state, first * state)
   if with_gate then
      part(heads, mine, model.r * mine)
   end
   return parts, live, disk
end

local function load_parts(parts)
   return function(live, loaded)
      for _, part in ipairs(parts) do
         rows(live, loaded, part[2], part[1] + part[4], part[3])
      end
   end
end

unseen.mamba2 = {
   checkpoint = function(config)
      local list, add = new_list()
      local inner, hidden = config.heads * config.d, config.hidden
      local wide = inner + 2 * config.groups * config.state
      add("backbone.embeddings.weight", { config.vocab, hidden })
      each_layer(nil, config, "backbone.layers.%d.", function(prefix)
         add(prefix .. "norm.weight", { hidden })
         add(prefix .. "mixer.in_proj.weight", { inner + wide + config.heads, hidden })
         add(prefix .. "mixer.conv1d.weight", { wide, 1, 4 })
         add(prefix .. "mixer.conv1d.bias", { wide })
         add(prefix .. "mixer.A_log", { config.heads }, "F32")
         add(prefix .. "mixer.D", { config.heads })
         add(prefix .. "mixer.dt_bias", { config.heads })
         add(prefix .. "mixer.norm.weight", { inner })
         add(prefix .. "mixer.out_proj.weight", { hidden, inner })
      end)
      add("backbone.norm_f.weight", { hidden })
      return list
   end,
   build = function(model, config)
      local inner, hidden = config.heads * config.d, config.hidden
      local stack, stack_rows = mamba_parts(model, config, true)
      local conv, conv_rows = mamba_parts(model, config, false)
      model:vocabulary("backbone.embeddings.weight", config.vocab, hidden)
      each_layer(model, config, "backbone.layers.%d.", function(prefix)
         model:replicated(prefix .. "norm.weight", { hidden })
         model:parameter(prefix .. "mixer.in_proj.weight", { stack_rows, hidden }, load_parts(stack))
         model:parameter(prefix .. "mixer.conv1d.weight", { conv_rows, 1, 4 }, load_parts(conv))
         model:parameter(prefix .. "mixer.conv1d.bias", { conv_rows }, load_parts(conv))
         model:parameter(prefix .. "mixer.A", { config.heads / model.tp }, nil, "F32")
         model:column(prefix .. "mixer.D", config.heads, {})
         model:column(prefix .. "mixer.dt_bias", config.heads, {})
         model:column(prefix .. "mixer.norm.weight", inner, {})
         model:row(prefix .. "mixer.out_proj.weight", hidden, inner)
      end)
      model:replicated("backbone.norm_f.weight", { hidden })
   end,
   target = function(name)
      return not name:find("A_log$") and name or nil
   end,
}

-- ---- whisper ----

unseen.whisper = {
   checkpoint = function(config)
      local list, add = new_list()
      local hidden = config.hidden
      local function linear(name, outputs, inputs, bias)
         add(name .. ".weight", { outputs, inputs })
         if bias then
            add(name .. ".bias", { outputs })
         end
      end
      local function attention(name)
         for _, part in ipairs({ "q_proj", "k_proj", "v_proj", "out_proj" }) do
            linear(name .. "." .. part, hidden, hidden, part ~= "k_proj")
         end
         linear(name .. "_layer_norm", hidden, nil, true)
      end
      for _, side in ipairs({ "encoder", "decoder" }) do
         each_layer(nil, config, "model." .. side .. ".layers.%d.", function(prefix)
            attention(prefix .. "self_attn")
            if side == "decoder" then
               attention(prefix .. "encoder_attn")
            end
            linear(prefix .. "fc1", 4 * hidden, hidden, true)
            linear(prefix .. "fc2", hidden, 4 * hidden, true)
            linear(prefix .. "final_layer_norm", hidden, nil, true)
         end)
         linear("model." .. side .. ".layer_norm", hidden, nil, true)
         add("model." .. side .. ".embed_positions.weight", { 10, hidden })
      end
      add("model.encoder.conv1.weight", { hidden, 5, 3 })
      add("model.encoder.conv1.bias", { hidden })
      add("model.encoder.conv2.weight", { hidden, hidden, 3 })
      add("model.encoder.conv2.bias", { hidden })
      add("model.decoder.embed_tokens.weight", { config.vocab, hidden })
      add("proj_out.weight", { config.vocab, hidden })
      return list
   end,
   build = function(model, config)
      local hidden = config.hidden
      local mine = divide(config.heads, model.tp, "query heads") * hidden / config.heads
      -- Parts stacked in the order given; a part that no checkpoint has (a bias of k) stays zero.
      local function stacked(name, parts, tail, missing)
         local at = {}
         local live = model:parameter(name, { #parts * mine, unpack(tail) }, function(live, loaded, part)
            rows(live, loaded, at[part], model.r * mine, mine)
         end)
         for i, part in ipairs(parts) do
            at[part] = (i - 1) * mine
            if part == missing then
               live:narrow(0, at[part], mine):pad()
            end
         end
      end
      local function norm(name)
         model:replicated(name .. ".weight", { hidden })
         model:replicated(name .. ".bias", { hidden })
      end
      local function output(name, inputs)
         model:row(name .. ".weight", hidden, inputs)
         model:replicated(name .. ".bias", { hidden })
      end
      local function mlp(prefix)
         model:column(prefix .. "mlp.fc1.weight", 4 * hidden, { hidden })
         model:column(prefix .. "mlp.fc1.bias", 4 * hidden, {})
         output(prefix .. "mlp.fc2", 4 * hidden)
         norm(prefix .. "final_layer_norm")
      end
      local function self_attention(prefix)
         stacked(prefix .. "self_attn.qkv_proj.weight", { "q", "k", "v" }, { hidden })
         stacked(prefix .. "self_attn.qkv_proj.bias", { "q", "k", "v" }, {}, "k")
         output(prefix .. "self_attn.out_proj", hidden)
         norm(prefix .. "self_attn_layer_norm")
      end
      local function cross_attention(prefix)
         model:column(prefix .. "encoder_attn.q_proj.weight", hidden, { hidden })
         model:column(prefix .. "encoder_attn.q_proj.bias", hidden, {})
         stacked(prefix .. "encoder_attn.kv_proj.weight", { "k", "v" }, { hidden })
         stacked(prefix .. "encoder_attn.kv_proj.bias", { "k", "v" }, {}, "k")
         output(prefix .. "encoder_attn.out_proj", hidden)
         norm(prefix .. "encoder_attn_layer_norm")
      end
      for _, side in ipairs({ "encoder", "decoder" }) do
         each_layer(model, config, "model." .. side .. ".layers.%d.", function(prefix)
            self_attention(prefix)
            if side == "decoder" then
               cross_attention(prefix)
            end
            mlp(prefix)
         end)
         norm("model." .. side .. ".layer_norm")
         model:replicated("model." .. side .. ".embed_positions.weight", { 10, hidden })
      end
      model:replicated("model.encoder.conv1.weight", { hidden, 5, 3 })
      model:replicated("model.encoder.conv1.bias", { hidden })
      model:replicated("model.encoder.conv2.weight", { hidden, hidden, 3 })
      model:replicated("model.encoder.conv2.bias", { hidden })
      model:vocabulary("model.decoder.embed_tokens.weight", config.vocab, hidden)
   end,
   target = function(name)
      if name == "proj_out.weight" then
         return nil -- tied
      end
      local before, part, kind = name:match("^(.*attn)%.([qkv])_proj%.(%w+)$")
      if before and not (part == "q" and before:find("encoder_attn$")) then
         return ("%s.%s.%s"):format(before, before:find("encoder_attn$") and "kv_proj" or "qkv_proj", kind), part
      end
      return (name:gsub("%.(fc[12])%.", ".mlp.%1."))
   end,
}

return unseen
