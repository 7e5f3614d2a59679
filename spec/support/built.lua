--- Specs that want files which not every build makes.
--
--    local it = require("spec.support.built")(it, "libsluice_cuda.so", "spec/cuda/libcuda.so.1")
--    it("orders copies", function() ... end)      -- pending where one of the files is missing
--
-- Paths are below the build folder; `it` is that of the spec file.

local folder = (os.getenv("SLUICE_INSIDE") or "build/libsluice_inside.so"):gsub("[^/]*$", "")

return function(it, ...)
   local missing
   for _, path in ipairs({ ... }) do
      local file = io.open(folder .. path)
      missing = missing or not file and path
      if file then
         file:close()
      end
   end
   return function(name, body)
      it(name, not missing and body or function()
         getfenv(body).pending(missing .. " was not built: nvcc or nccl.h was not found") -- busted gives it to spec files alone
      end)
   end
end
