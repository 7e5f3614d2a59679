--- A quantized weight and its scale, where no rule speaks of either (the case missing_scale): the host's own tensors tell that one
-- needs the other.

local script = require "spec.support.script"
local resolving = require "spec.support.resolving"

local C = script.C
local GATE = "model.layers.0.mlp.gate_proj.weight"
local FUSED = { { name = "model.layers.0.mlp.gate_up_proj.weight", dtype = "float8_e4m3fn", shape = { 512, 128 } },
                { name = "model.layers.0.mlp.gate_up_proj.weight_scale_inv", dtype = "float32", shape = { 4, 1 } } }
local PLAIN = { loader = "replicated" }

local function weight(name, dtype)
   return { name = name, dtype = dtype or "float8_e4m3fn", shape = { 256, 128 } }
end

local function scale(name)
   return { name = name, dtype = "float32", shape = { 2, 1 } }
end

-- A live weight of the same name with its scale.
local function beside(ending, dtype)
   return { { name = "m.weight", dtype = dtype or "float8_e4m3fn", shape = { 256, 128 }, attributes = PLAIN },
            { name = "m.weight" .. ending, dtype = "float32", shape = { 2, 1 }, attributes = PLAIN } }
end

local function rules(body)
   return ("return { rules = { %s } }"):format(body)
end

describe("of a quantized weight and its scale one comes not without the other:", function()
   local MUST = " must come with its companion %s, which the trainer does not announce: "
   local refused = {
      { "the default resolver, fused", { params = { weight(GATE) }, live = FUSED }, "default resolver: " .. GATE .. MUST:format(GATE
         .. "_scale_inv") .. "the host's quantized weights have scales, as model.layers.0.mlp.gate_up_proj.weight_scale_inv" },
      { "a rule", { params = { weight(GATE) }, live = FUSED,
         text = rules 'rule "**.gate_proj.weight" { into = "**.gate_up_proj.weight", at = span(0, 0, 256) }' },
         'FILE:1: rule "**.gate_proj.weight": ' .. GATE .. MUST:format(GATE .. "_scale_inv")
         .. "beside live model.layers.0.mlp.gate_up_proj.weight stands model.layers.0.mlp.gate_up_proj.weight_scale_inv" },
      { "the default resolver, in place", { params = { weight "m.weight" }, live = beside "_scale_inv" },
         "default resolver: m.weight" .. MUST:format "m.weight_scale_inv" .. "beside live m.weight stands m.weight_scale_inv" },
      { "int8 with a scale a row", { params = { weight("m.weight", "int8") }, live = beside("_scale", "int8") },
         "default resolver: m.weight" .. MUST:format "m.weight_scale" .. "beside live m.weight stands m.weight_scale" },
      { "a quantized host's loader", { params = { weight "m.weight", weight "n.bias" }, live = beside "_scale_inv", host = { quantization = "fp8" } },
         "default resolver: m.weight" .. MUST:format "m.weight_scale_inv" .. "beside live m.weight stands m.weight_scale_inv" },
      { "a scale alone", { params = { scale "m.weight_scale_inv" }, live = beside "_scale_inv" },
         "default resolver: m.weight_scale_inv" .. MUST:format "m.weight" .. "m.weight_scale_inv is the scale of live m.weight" },
      { "a scale alone, fused", { params = { scale(GATE .. "_scale_inv") }, live = FUSED },
         "default resolver: " .. GATE .. "_scale_inv" .. MUST:format(GATE) .. "it is a scale alone" },
   }
   -- One of a fused tensor: what the scale of another one brings is not for it.
   refused[#refused + 1] = { "one of several that are fused", { live = FUSED, text = rules [[
         rule "{m}.gate_proj.{w=weight|weight_scale_inv}" { into = "model.layers.0.mlp.gate_up_proj.{w}", full = "x" },
         rule "{m}.up_proj.{w=weight|weight_scale_inv}" { into = "model.layers.0.mlp.gate_up_proj.{w}", full = "x" }]],
      params = { weight "m.gate_proj.weight", scale "m.gate_proj.weight_scale_inv", weight "m.up_proj.weight" } },
      "FILE:2: m.up_proj.weight" .. MUST:format "m.up_proj.weight_scale_inv"
         .. "beside live model.layers.0.mlp.gate_up_proj.weight stands model.layers.0.mlp.gate_up_proj.weight_scale_inv" }
   for _, case in ipairs(refused) do
      it(case[1], function()
         assert.equal("destination: " .. case[3], resolving.resolve(case[2]).text)
      end)
   end

   local taken = {
      { "both", { params = { weight "m.weight", scale "m.weight_scale_inv" }, live = beside "_scale_inv" } },
      { "a host without scales", { params = { weight "m.weight" }, live = { beside("_scale_inv")[1] } } },
      { "a scale that the trainer names otherwise", { params = { weight "m.weight", scale "m.scale" }, live = beside "_scale_inv",
         text = rules 'rule "m.weight" {}, rule "m.scale" { into = "m.weight_scale_inv" }' } },
      { "a scale that the host's loader knows by another name", { params = { weight "m.weight", scale "m.scale" }, live = beside "_scale_inv",
         host = { quantization = "fp8" } } },
      { "a scale that the rules say nobody has", { params = { weight "m.weight" }, live = beside "_scale_inv",
         text = 'return { unsourced = { "m.weight_scale_inv" }, rules = { rule "m.weight" {} } }' } },
      { "bfloat16, which the host quantizes", { params = { weight("m.weight", "bfloat16") }, live = beside "_scale_inv" } },
      { "what is not moved", { params = { weight "m.weight" }, live = beside "_scale_inv",
         text = 'return { unsourced = { "**" }, rules = { rule "**" { skip = "kept" } } }' } },
   }
   for _, case in ipairs(taken) do
      it("but it takes " .. case[1], function()
         assert.equal("", resolving.resolve(case[2]).text)
      end)
   end

   it("nor in an update", function()
      local got = resolving.resolve(taken[1][2])
      for i = 0, 1 do
         local param = C.slc_plan_at(got.plan, i)
         assert.same({ 1, 1 - i }, { tonumber(param.ncompanions), tonumber(param.companion[0]) })
      end
   end)
end)
