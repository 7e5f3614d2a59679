--- Conversions bit by bit, against an oracle that decodes 16-bit numbers and looks for the nearest (spec/support/cast_oracle.h).

local inside = require "spec.support.inside"

local folder = (os.getenv("SLUICE_INSIDE") or "build/libsluice_inside.so"):gsub("[^/]*$", "")

describe("a conversion of float32", function()
   it("is the nearest number, halfway the even one, for numbers of every exponent and for random bits", function()
      local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time()
      local pipe = assert(io.popen(("%sspec/cast_driver %d 2>&1"):format(folder, seed)))
      local text = pipe:read("*a")
      pipe:close()
      assert.equal("7340032 numbers: equal\n", text)
   end)

   it("is there to bfloat16 and float16, and from nothing else", function()
      local C = inside.declare("base/dtype.h")
      local function cast(from, to)
         return tonumber(C.slc_cast_find(C.slc_dtype_find(from), C.slc_dtype_find(to)))
      end
      assert.same({ 1, 2, 0, 0, 0 }, { cast("float32", "bfloat16"), cast("float32", "float16"), cast("float32", "float32"),
         cast("bfloat16", "float32"), cast("float64", "bfloat16") })
   end)
end)
