--- Descriptions of models: what a trainer announces and what every worker of a serving host holds, made from a deployment.
-- A description is the independent word on where every byte belongs; rules and planner are held against it.
--
--    local models = require "sluice.models"
--    local description = assert(models.describe(deployment))
--    for _, live in ipairs(description.live(0)) do print(live.name) end
--
-- Tables inside a description are shared between entries that are alike: read them, never write to them.

local check = require "sluice.models.check"
local configuration = require "sluice.models.config"
local mesh = require "sluice.models.mesh"
local names = require "sluice.models.names"
local published = require "sluice.models.published"
local serving = require "sluice.models.serving"
local tensors = require "sluice.models.tensors"
local trainer_layout = require "sluice.models.trainer"

local models = {}

models.families = {
   llama = require "sluice.models.llama",
   mistral = require "sluice.models.mistral",
   qwen2 = require "sluice.models.qwen2",
   qwen3 = require "sluice.models.qwen3",
   qwen3_moe = require "sluice.models.qwen3_moe",
   mixtral = require "sluice.models.mixtral",
   gemma2 = require "sluice.models.gemma2",
   gemma3 = require "sluice.models.gemma3",
   phi3 = require "sluice.models.phi3",
   deepseek_v3 = require "sluice.models.deepseek_v3",
   gpt_oss = require "sluice.models.gpt_oss",
   qwen2_5_vl = require "sluice.models.qwen2_5_vl",
   bert = require "sluice.models.bert",
}

--- Checks the `model` part of a deployment alone.
-- @return the configuration with every number, or nil and the text of what is wrong
function models.config(model)
   return check.try(configuration.resolve, model, models.families)
end

--- The `model` part of a deployment with what the config.json of its checkpoint says, where it is silent. Fails through check.
function models.filled_in(model, config)
   return published.filled_in(model, config, models.families)
end

-- What the checkpoint and the host call otherwise than the family does.
local function prefixes_of(family, config)
   return family.prefixes and family.prefixes(config) or { checkpoint = {}, live = {} }
end

-- The parameters in transfer order. `add(name, shape, kind, layer[, dtype])` is what families call.
local function params_of(family, config, trainer)
   local layout = trainer_layout.new(trainer, config.num_hidden_layers, config.num_experts or 0)
   local list, prefixes = {}, prefixes_of(family, config).checkpoint
   local function append(name, shape, dtype, mesh_name, placements)
      if #list >= configuration.MAX_PARAMS then
         check.fail("model has more than %d parameters", configuration.MAX_PARAMS)
      end
      list[#list + 1] = {
         name = names.renamed(prefixes, name), dtype = dtype or config.dtype, shape = shape, src_mesh = mesh_name,
         src_placements = placements,
      }
   end
   local add = setmetatable({
      expert = function(name, shape, kind, layer, expert, dtype)
         append(name, shape, dtype, layout:place_expert(kind, layer, expert))
      end,
      packed = function(name, shape, kind, layer, dtype)
         append(name, shape, dtype, layout:place_packed(kind, layer))
      end,
   }, {
      __call = function(_, name, shape, kind, layer, dtype)
         append(name, shape, dtype, layout:place(kind, layer))
      end,
   })
   family.params(config, add)
   return list
end

local function meshes_of(part)
   local list = { { name = "dense", axes = part.mesh } }
   if part.expert_mesh then
      list[2] = { name = "expert", axes = part.expert_mesh }
   end
   return list
end

-- What the host tells the rules of itself.
local function host_of(family, config, worker)
   local sizes = serving.sizes(worker)
   local host = {
      architecture = config.architecture, pipeline_parallel_size = sizes.pp, tensor_parallel_size = sizes.tp,
      expert_parallel_size = sizes.ep, moe_tensor_parallel_size = config.num_experts and sizes.moe_tp or nil,
      pipeline_layers = serving.partition(config.num_hidden_layers, sizes.pp),
      num_hidden_layers = config.num_hidden_layers, num_attention_heads = config.num_attention_heads,
      num_key_value_heads = config.num_key_value_heads, head_dim = config.head_dim, hidden_size = config.hidden_size,
      intermediate_size = config.intermediate_size, moe_intermediate_size = config.moe_intermediate_size,
      num_experts = config.num_experts, vocab_size = config.vocab_size, padded_vocab_size = serving.padded(config.vocab_size),
      live_experts = config.live_experts ~= "experts" and config.live_experts or nil,
      tie_word_embeddings = config.tie_word_embeddings or false, finalizes_modules = false,
   }
   if worker.dtype == "float8_e4m3fn" then
      host.quantization, host.weight_block_size = "fp8", { 128, 128 }
   end
   for key, value in pairs(family.host and family.host(config) or {}) do
      host[key] = value
   end
   return host
end

local function settle_from(list, deployment, family, config)
   local holds = tensors.names(list)
   config.dtype = deployment.model.dtype or tensors.dtype(list) or config.dtype
   family.settle(config, holds)
end

local function describe(deployment, list)
   local config = configuration.resolve(deployment.model, models.families)
   local family = models.families[config.family]
   local worker = deployment.worker
   serving.check_meshes(worker)
   family.check_workers(config, worker)
   if list then
      settle_from(list, deployment, family, config)
   end
   local params = params_of(family, config, deployment.trainer)
   if list then
      tensors.match(params, list, config, family.layer_pattern)
   end
   local workers, prefixes = mesh.ranks(worker.mesh), prefixes_of(family, config)
   if worker.dtype == "float8_e4m3fn" then
      family.live(config, serving.new(worker, config, 0, prefixes)) -- fails where a part would begin within a block
   end
   return {
      title = config.title, config = config, host = host_of(family, config, worker), params = params,
      src_meshes = meshes_of(deployment.trainer), dst_meshes = meshes_of(worker),
      live = function(rank)
         if type(rank) ~= "number" or rank % 1 ~= 0 or rank < 0 or rank >= workers then
            error(("live: worker (%s) must be an integer from 0 to %d"):format(check.shown(rank), workers - 1), 2)
         end
         local held = serving.new(worker, config, rank, prefixes)
         family.live(config, held)
         return held.list
      end,
   }
end

--- Describes a deployment (as `sluice.deployment` reads it).
-- @param deployment the checked table
-- @param[opt] list the tensors of the checkpoint, {name =, dtype =, shape =} each: they settle dtypes and what is optional,
--    and must be exactly the model's parameters; without it the public shapes stand
-- @return the description, or nil and the text of what does not fit
function models.describe(deployment, list)
   local description, text = check.try(describe, deployment, list)
   if not description and not text:find("^checkpoint: ") then
      text = "deployment: " .. text
   end
   return description, text
end

return models
