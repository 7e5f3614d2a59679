--- Conversions bit by bit, against an oracle that decodes 16-bit numbers and looks for the nearest (spec/support/cast_oracle.h).

local built = require "spec.support.built"
local inside = require "spec.support.inside"
local shell = require "scripts.shell"

local function driver(arguments)
   return (shell(built.folder .. "spec/cast_driver " .. arguments))
end

describe("a conversion", function()
   it("of float32 is the nearest number, halfway the even one, for numbers of every exponent and for random bits", function()
      local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time()
      assert.equal("7340032 numbers: equal\n", driver(tostring(seed)))
   end)

   it("in blocks is the nearest to the number by its block's scale, for all bfloat16 numbers and float32 beside them", function()
      local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time()
      assert.equal("8355840 numbers: equal\n", driver("blocks " .. seed))
   end)

   it("is there from float32 to bfloat16, float16 and float8_e4m3fn, from bfloat16 to the last, and from nothing else", function()
      local C = inside.declare("base/convert.h")
      local function cast(from, to)
         return tonumber(C.slc_cast_find(C.slc_dtype_find(from), C.slc_dtype_find(to)))
      end
      assert.same({ 1, 2, 3, 4, 0, 0, 0, 0 }, { cast("float32", "bfloat16"), cast("float32", "float16"), cast("bfloat16", "float8_e4m3fn"),
         cast("float32", "float8_e4m3fn"), cast("float32", "float32"), cast("bfloat16", "float32"), cast("float64", "bfloat16"),
         cast("float16", "float8_e4m3fn") })
   end)
end)
