--- Qwen2.5-VL: Qwen2.5 beside a vision tower whose q, k and v are fused in the checkpoint, too. A host may keep the tower whole
-- on every rank (mm_encoder_tp_mode "data") instead of cutting it; every stage of a pipeline has it.

local check = require "sluice.models.check"
local decoder = require "sluice.models.decoder"
local serving = require "sluice.models.serving"

local CHANNELS = 3

local text = decoder.family({
   architecture = "Qwen2_5_VLForConditionalGeneration", qkv_bias = true,
   keys = { "vision_config" }, required = { "vision_config" },
})

-- Whose names a trainer has: its module's (transformers 4.52 and later), those of the files that are published, or those of the
-- language model alone, which then is all it trains.
local namings = { module = { { "model.", "model.language_model." }, { "visual.", "model.visual." } }, hub = {}, text = {} }
local live_names = { { "model.", "language_model.model." }, { "lm_head.", "language_model.lm_head." } }

local family = setmetatable({
   choices = { "naming", "mm_encoder_tp_mode" },
   vision = {
      "depth", "hidden_size", "intermediate_size", "num_heads", "out_hidden_size", "patch_size", "temporal_patch_size",
      "spatial_merge_size",
   },
}, { __index = text })

-- What the merger takes: the patches of one square, one behind the other.
local function merged(vision)
   return vision.hidden_size * vision.spatial_merge_size ^ 2
end

function family.complete(config)
   text.complete(config)
   local vision = config.vision_config
   if vision.hidden_size % vision.num_heads ~= 0 then
      check.fail("model.config.vision_config.hidden_size (%d) must divide by its num_heads (%d)", vision.hidden_size,
         vision.num_heads)
   elseif vision.out_hidden_size ~= config.hidden_size then
      check.fail("model.config.vision_config.out_hidden_size (%d) must be hidden_size (%d)", vision.out_hidden_size,
         config.hidden_size)
   end
end

function family.check_workers(config, part)
   text.check_workers(config, part)
   local tp = serving.sizes(part).tp
   for _, key in ipairs(config.mm_encoder_tp_mode == "weights" and { "num_heads", "intermediate_size" } or {}) do
      if config.vision_config[key] % tp ~= 0 then
         check.fail("model.config.vision_config.%s (%d) must divide by the workers' tp (%d), or model.mm_encoder_tp_mode be %s", key,
            config.vision_config[key], tp, check.shown("data"))
      end
   end
end

function family.host(config)
   return {
      vision_config = config.vision_config, mm_encoder_tp_mode = config.mm_encoder_tp_mode,
      trainer_is_text_only = config.naming == "text" or nil,
   }
end

function family.prefixes(config)
   return { checkpoint = namings[config.naming], live = live_names }
end

-- A checkpoint's names tell whose they are.
function family.settle(config, holds)
   config.naming = holds["model.language_model.norm.weight"] and "module"
      or holds["visual.patch_embed.proj.weight"] and "hub" or "text"
   text.settle(config, { ["lm_head.weight"] = holds["lm_head.weight"] })
end

-- ---- the checkpoint ----

local function add_linear(add, name, shape, kind)
   add(name .. ".weight", shape, kind, "first")
   add(name .. ".bias", { shape[1] }, kind == "column" and kind or "replicated", "first")
end

local function add_norm(add, name, extent)
   add(name .. ".weight", { extent }, "replicated", "first")
end

local function add_tower(add, vision)
   local h, wide, patch = vision.hidden_size, vision.intermediate_size, vision.patch_size
   add("visual.patch_embed.proj.weight", { h, CHANNELS, vision.temporal_patch_size, patch, patch }, "replicated", "first")
   for number = 0, vision.depth - 1 do
      local block = ("visual.blocks.%d."):format(number)
      add_norm(add, block .. "norm1", h)
      add_norm(add, block .. "norm2", h)
      add_linear(add, block .. "attn.qkv", { 3 * h, h }, "column")
      add_linear(add, block .. "attn.proj", { h, h }, "row")
      add_linear(add, block .. "mlp.gate_proj", { wide, h }, "column")
      add_linear(add, block .. "mlp.up_proj", { wide, h }, "column")
      add_linear(add, block .. "mlp.down_proj", { h, wide }, "row")
   end
   add_norm(add, "visual.merger.ln_q", h)
   add_linear(add, "visual.merger.mlp.0", { merged(vision), merged(vision) }, "column")
   add_linear(add, "visual.merger.mlp.2", { vision.out_hidden_size, merged(vision) }, "row")
end

function family.params(config, add)
   if config.naming ~= "text" then
      add_tower(add, config.vision_config)
   end
   text.params(config, add)
end

-- ---- a worker ----

local function live_row(worker, name, shape)
   worker:part(name .. ".weight", shape, 1)
   worker:whole(name .. ".bias", { shape[1] }, "replicated")
end

local function live_block(worker, vision, block)
   local h, wide, heads = vision.hidden_size, vision.intermediate_size, vision.num_heads
   worker:whole(block .. "norm1.weight", { h })
   worker:whole(block .. "norm2.weight", { h })
   for _, ending in ipairs({ "weight", "bias" }) do
      local tail = ending == "weight" and { h } or {}
      local qkv = block .. "attn.qkv." .. ending
      worker:qkv(qkv, { { qkv, 0 }, { qkv, h }, { qkv, 2 * h } }, heads, heads, h / heads, tail)
      local gate, up = block .. "mlp.gate_proj." .. ending, block .. "mlp.up_proj." .. ending
      worker:merged(block .. "mlp.gate_up_proj." .. ending, { gate, up }, { wide, unpack(tail) }, "merged_column")
   end
   live_row(worker, block .. "attn.proj", { h, h })
   live_row(worker, block .. "mlp.down_proj", { h, wide })
end

local function live_tower(worker, vision)
   local h, patch = vision.hidden_size, vision.patch_size
   worker:whole("visual.patch_embed.proj.weight", { h, CHANNELS, vision.temporal_patch_size, patch, patch })
   for number = 0, vision.depth - 1 do
      live_block(worker, vision, ("visual.blocks.%d."):format(number))
   end
   worker:whole("visual.merger.ln_q.weight", { h })
   worker:part("visual.merger.mlp.0.weight", { merged(vision), merged(vision) }, 0)
   worker:part("visual.merger.mlp.0.bias", { merged(vision) }, 0)
   live_row(worker, "visual.merger.mlp.2", { vision.out_hidden_size, merged(vision) })
end

function family.live(config, worker)
   local tp, r = worker.tp, worker.r
   if config.mm_encoder_tp_mode == "data" then
      worker.tp, worker.r = 1, 0
   end
   worker.unsourced = config.naming == "text"
   live_tower(worker, config.vision_config)
   worker.unsourced, worker.tp, worker.r = false, tp, r
   text.live(config, worker)
end

return family
