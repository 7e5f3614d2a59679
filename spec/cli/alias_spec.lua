--- A head that is tied and sent all the same (the case tied_head): it is listed as an alias, moved once, and values that differ
-- from those of the embedding are reported.

local program = require "spec.cli.program"
local families = require "spec.support.families"
local safetensors = require "spec.support.safetensors"

describe("sluice run with a tied head in the checkpoint", function()
   local folder

   before_each(function()
      folder = os.tmpname()
      os.remove(folder)
      assert(os.execute("mkdir " .. folder) == 0)
   end)

   after_each(function()
      program.cleanup()
      os.execute("rm -rf " .. folder)
   end)

   -- change(tensors by name) may exchange what the checkpoint holds.
   local function run(change, ...)
      local case
      for _, one in ipairs(families.cases) do
         case = one.name == "Qwen2.5, tied" and one or case
      end
      local checkpoint = families.prepare(case, folder, 1)
      local list = {}
      for name, tensor in pairs(checkpoint.tensors) do
         list[#list + 1] = { name = name, dtype = tensor.dtype, shape = tensor.shape, bytes = change(name, tensor:bytes()) }
      end
      safetensors.write_checkpoint(checkpoint.path, list, 1)
      local deployment = program.deployment({ rules = "qwen2",
         model = { family = "qwen2", config = case.config, checkpoint = checkpoint.path } })
      local result = program.run({ "run", deployment, "--json", "--quiet", ... })
      assert.equal(0, result.code, result.err)
      return program.json(result), result.err
   end

   it("lists the alias and says nothing where both hold the same", function()
      local object, err = run(function(_, bytes)
         return bytes
      end)
      assert.same({ { name = "lm_head.weight", alias_of = "model.embed_tokens.weight" } }, object.aliases)
      assert.same({}, object.aliases_that_differ)
      assert.equal(331 * 72 * 2, object.bytes_alias)
      assert.equal("", err)
   end)

   local function changed(name, bytes)
      return name == "lm_head.weight" and bytes:sub(1, 1000) .. "????????" .. bytes:sub(1009) or bytes
   end

   it("reports a head that holds other values, and from where on", function()
      local object, err = run(changed)
      assert.same({ { name = "lm_head.weight", alias_of = "model.embed_tokens.weight", byte = 1000 } }, object.aliases_that_differ)
      assert.equal("warning: lm_head.weight is not moved, being an alias of model.embed_tokens.weight, but its values are others, "
         .. "from byte 1000 on\n", err)
      assert.is_true(object.verified)
   end)

   it("looks only where verification is on", function()
      local object, err = run(changed, "--no-verify")
      assert.same({}, object.aliases_that_differ)
      assert.equal("", err)
   end)
end)
