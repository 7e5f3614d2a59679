--- Conversions on the way, end to end: a float32 model into workers of bfloat16 and float16, over every road. What each number
-- must become is said in spec/base/cast_spec.lua; here each comes to its place.

local gpu = require "spec.support.gpu"
local gpu_run = require "spec.support.gpu_run"
local program = require "spec.cli.program"
local with = require "spec.support.with"

local on_gpu = gpu.specs(it)

local function deployment(dtype, changes)
   return program.deployment(with({
      model = { family = "llama", dtype = "float32", config = { num_hidden_layers = 2, hidden_size = 48, intermediate_size = 72,
         num_attention_heads = 4, num_key_value_heads = 2, head_dim = 12, vocab_size = 131 } },
      trainer = { mesh = { { "fsdp", 2 }, { "tp", 3 } } }, worker = { mesh = { { "tp", 2 } }, dtype = dtype },
      rules = program.file(('return { extends = "llama", convert = "%s" }'):format(dtype), ".lua"),
   }, changes))
end

local function verified(path, environment, ...)
   return program.verified(program.run({ "run", path, "--json", ... }, environment))
end

-- Bytes that workers get in an update, as `sluice simulate` predicts them.
local function simulated(path)
   local result = program.run({ "simulate", path, "--json" })
   assert.equal(0, result.code, result.err)
   local sum = 0
   for _, bytes in ipairs(program.json(result).strategies[1].bytes.link_in) do
      sum = sum + bytes
   end
   assert.truthy(sum > 0)
   return sum
end

describe("a conversion on the way", function()
   after_each(program.cleanup)

   for _, road in ipairs({ "map", "pull", "ring" }) do
      it("lands in every live tensor over the road " .. road .. "", function()
         local memory = road == "map" and "shared" or "ordinary"
         local object = verified(deployment("bfloat16"), nil, "--road", road, "--memory", memory, "--batches", "2")
         assert.equal(0, object.parameters_full)
         assert.same({ [road] = object.roads[road] }, object.roads)
      end)
   end

   it("is counted as it lands, in the plan and in what was received", function()
      local as_it_is = verified(deployment("float32", { rules = "llama" }))
      local converted = verified(deployment("bfloat16"))
      assert.equal(as_it_is.bytes_received / 2, converted.bytes_received)
      assert.equal(as_it_is.coverage.written_bytes, 2 * converted.coverage.written_bytes)
      assert.equal(simulated(deployment("float32", { rules = "llama" })), 2 * simulated(deployment("bfloat16")))
   end)

   on_gpu("is done by the trainer's kernel as it packs for NCCL, in turns of any size", function()
      local path = deployment("bfloat16", { transport = "nccl", road = "wire", updates = 2 })
      for _, bytes in ipairs({ "4096", "1000000" }) do
         local object = verified(path, gpu_run.environment("nccl", { SLUICE_WIRE_BYTES = bytes }), "--batches", "2")
         assert.same({ wire = object.roads.wire }, object.roads)
      end
   end)

   on_gpu("is done by the trainer's kernel over the link", function()
      local path = deployment("float16", { transport = "nccl", updates = 2 })
      local cuda = gpu_run.environment("nccl")
      local object = verified(path, cuda)
      assert.equal(0, object.sent_by.copy_engines)
      local result = program.run({ "run", path, "--no-sm" }, cuda)
      assert.equal(2, result.code)
      assert.truthy(result.err:find("is converted on the way, by a kernel, which no_sm forbids", 1, true), result.err)
   end)

   it("leaves what goes whole as it is, for the loader to convert", function()
      local object = verified(deployment("bfloat16", { rules = gpu_run.full_mlp("bfloat16") }))
      assert.truthy(object.parameters_full > 0)
   end)

   it("is refused where there is none, with the rule's place", function()
      local rules = program.file('return { extends = "llama", rules = { rule "model.norm.weight" { convert = "int8" } } }', ".lua")
      local result = program.run({ "plan", deployment("bfloat16", { rules = rules }) })
      assert.equal(2, result.code)
      assert.truthy(result.err:find("1: parameter 'model.norm.weight' [48]: is float32, which cannot be converted to int8; "
         .. "known are float32 to bfloat16 and float16, bfloat16 and float32 to float8_e4m3fn", 1, true), result.err)
   end)
end)

-- Linear layers in fp8 with a scale for each 128 x 128 elements; hidden_size leaves blocks at the edges that are smaller.
local function in_blocks(changes, config)
   return program.deployment(with({
      model = { family = "qwen3_moe", dtype = "bfloat16", experts = "packed", config = with({ num_hidden_layers = 2, hidden_size = 320,
         intermediate_size = 256, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 128, vocab_size = 131, num_experts = 3,
         moe_intermediate_size = 256, decoder_sparse_step = 2 }, config) },
      trainer = { mesh = { { "dp", 2 }, { "tp", 2 } } }, worker = { mesh = { { "tp", 2 } }, dtype = "float8_e4m3fn" },
      rules = "qwen3_moe", updates = 2,
   }, changes))
end

local function refused(path, text)
   local result = program.run({ "plan", path })
   assert.equal(2, result.code)
   assert.truthy(result.err:find(text, 1, true), result.err)
end

describe("a conversion in blocks", function()
   after_each(program.cleanup)

   for _, road in ipairs({ "map", "pull", "ring" }) do
      it("lands with its scales, fused and stacked, over the road " .. road, function()
         local memory = road == "map" and "shared" or "ordinary"
         local object = verified(in_blocks(), nil, "--road", road, "--memory", memory, "--batches", "2")
         assert.equal(0, object.parameters_full)
         assert.same({ [road] = object.roads[road] }, object.roads)
      end)
   end

   it("is counted with its scales, in the plan, in what was received and by simulate", function()
      local path = in_blocks({ updates = 1 })
      local object = verified(path)
      assert.equal(simulated(path), object.bytes_received)
   end)

   on_gpu("is done by kernels on the trainer, over the link and for NCCL, replayed or not", function()
      local path = in_blocks({ transport = "nccl" })
      local cuda = gpu_run.environment("nccl")
      assert.equal(0, verified(path, cuda, "--replay").sent_by.copy_engines)
      for _, bytes in ipairs({ "4096", "1000000" }) do
         local object = verified(path, gpu_run.environment("nccl", { SLUICE_WIRE_BYTES = bytes }), "--road", "wire")
         assert.same({ wire = object.roads.wire }, object.roads)
      end
   end)

   local WITHIN = "within a block of the worker that gets elements 0 to 320 of it; shards must end a multiple of 128 behind the worker's "
      .. "first element"

   it("is refused where a shard of the trainers ends within a block, by parameter, place and cut", function()
      local path = in_blocks({ trainer = { mesh = { { "fsdp", 2 } } } })
      refused(path, "parameter 'model.layers.0.self_attn.o_proj.weight' [320, 512]: cannot be converted in blocks of 128 x 128: a trainer's "
         .. "shard ends at 160 of dim 0, " .. WITHIN)
   end)

   it("goes whole instead where otherwise is full", function()
      local rules = program.file('return { extends = "qwen3_moe", otherwise = "full" }', ".lua")
      local path = in_blocks({ rules = rules, trainer = { mesh = { { "fsdp", 2 } } } })
      local object = verified(path)
      assert.truthy(object.parameters_full > 0 and object.parameters_direct > object.parameters_full)
      local explained = program.run({ "explain", path, "model.layers.0.self_attn.o_proj.weight" })
      assert.truthy(explained.out:find("shard ends at 160 of dim 0", 1, true), explained.out)
   end)

   it("is explained with both tensors", function()
      local explained = program.run({ "explain", in_blocks(), "model.layers.0.self_attn.k_proj.weight" })
      assert.truthy(explained.out:find("qkv_proj.weight_scale_inv", 1, true), explained.out)
      assert.truthy(explained.out:find("converted to float8_e4m3fn", 1, true), explained.out)
      explained = program.run({ "explain", in_blocks(), "model.layers.0.self_attn.qkv_proj.weight_scale_inv" })
      assert.truthy(explained.out:find("   [2:3, 0:3]     12 B   model.layers.0.self_attn.k_proj.weight  [0:128, 0:320]", 1, true), explained.out)
   end)

   it("is refused where a worker's cut puts two parameters into one block", function()
      refused(in_blocks({ worker = { mesh = { { "tp", 4 } }, dtype = "float8_e4m3fn" } }, { moe_intermediate_size = 384 }), "within a block of 128")
   end)

   it("is refused where no file says where scales land", function()
      local rules = program.file('return { extends = "qwen3_moe", full = false, scales = false }', ".lua")
      refused(in_blocks({ rules = rules }), 'is converted to float8_e4m3fn, with scales: the file must say where they land, as scales = '
         .. '{ ending = "_scale_inv", block = { 128, 128 } }')
   end)
end)
