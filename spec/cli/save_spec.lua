--- --save: what every worker holds after the last update, in files; and what is said when it cannot be written.

local ffi = require "ffi"
local program = require "spec.cli.program"
local safetensors = require "spec.support.safetensors"

describe("sluice run --save", function()
   local folder

   before_each(function()
      folder = os.tmpname()
      os.remove(folder)
   end)

   after_each(function()
      program.cleanup()
      os.execute("rm -rf " .. folder)
   end)

   local function run(...)
      return program.run({ "run", program.deployment({ rules = "llama" }), "--json", "--save", folder, ... })
   end

   it("writes a file a worker, the same for replicas, and says how much", function()
      local result = run()
      assert.equal(0, result.code, result.err)
      local sum, files = 0, {}
      for worker = 0, 3 do
         local file = assert(io.open(("%s/worker-%d.safetensors"):format(folder, worker), "rb"))
         files[worker] = file:read("*a")
         file:close()
         sum = sum + #files[worker]
      end
      assert.equal(sum, program.json(result).bytes_saved)
      assert.is_true(files[0] == files[2] and files[1] == files[3] and files[0] ~= files[1])
      local tensors = safetensors.read(folder .. "/worker-1.safetensors")
      -- Rows 512 to 999 of the vocabulary, then padding.
      local embed = tensors["model.embed_tokens.weight"]
      assert.same({ "BF16", 512, 64 }, { embed.dtype, unpack(embed.shape) })
      assert.equal(("\0"):rep(24 * 64 * 2), ffi.string(embed.data + 488 * 64 * 2, 24 * 64 * 2))
      assert.not_equal(("\0"):rep(64 * 2), ffi.string(embed.data + 487 * 64 * 2, 64 * 2))
   end)

   it("says the folder that cannot be made before anything moves", function()
      local whole = folder
      folder = folder .. "/none"
      local result = run()
      assert.equal(1, result.code)
      assert.truthy(result.err:find(("save: %s cannot be made: No such file or directory"):format(folder), 1, true), result.err)
      assert.is_nil(result.err:find("update 1 of", 1, true))
      folder = whole
   end)

   it("refuses a file in the folder's place", function()
      folder = program.file("text")
      local result = run()
      assert.equal(2, result.code)
      assert.truthy(result.err:find(("save: %s must be a folder, not a file"):format(folder), 1, true), result.err)
   end)

   it("says that the disk takes no more, and leaves no half of a file", function()
      local text, code = program.shell(("ulimit -f 200; $SLUICE run %s --memory ordinary --save %s"):format(
         program.deployment({ rules = "llama" }), folder))
      assert.equal(1, code, text)
      assert.truthy(text:find("%.safetensors%.part cannot be written: File too large"), text)
      assert.same("", program.shell("ls " .. folder))
   end)
end)
