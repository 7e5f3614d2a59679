--- What the build under test holds, and specs that want files which not every build makes.
--
--    local built = require "spec.support.built"
--    local it = built.specs(it, "libsluice_cuda.so", "spec/cuda/libcuda.so.1")
--    it("orders copies", function() ... end)      -- pending where one of the files is missing

local built = {}

--- The library with every symbol visible: SLUICE_INSIDE, or build/libsluice_inside.so.
built.inside = os.getenv("SLUICE_INSIDE") or "build/libsluice_inside.so"

--- The build's folder, with the slash at its end.
built.folder = built.inside:gsub("[^/]*$", "")

--- Which of some files (paths below that folder) is missing, as a sentence; nil where all are there.
function built.missing(...)
   for _, path in ipairs({ ... }) do
      local file = io.open(built.folder .. path)
      if not file then
         return path .. " was not built: nvcc or nccl.h was not found"
      end
      file:close()
   end
end

--- A spec file's `it` for specs that want such files.
function built.specs(it, ...)
   local missing = built.missing(...)
   return function(name, body)
      it(name, not missing and body or function()
         getfenv(body).pending(missing) -- busted gives it to spec files alone
      end)
   end
end

return built
