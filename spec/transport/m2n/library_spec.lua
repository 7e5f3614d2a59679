--- src/transport/m2n/library.h tells nccl_m2n's interface in our own words: the same, byte for byte, as the header of the package,
-- where scripts/setup --m2n fetched it.

local files = require "scripts.files"

local HEADER, SOURCE = "build/m2n/include/nccl_m2n.h", [[
#include <stddef.h>
#include <nccl_m2n.h>
#include "transport/m2n/library.h"
#define SAME(a, x, b, y) _Static_assert(offsetof(a, x) == offsetof(b, y) && sizeof(((a *)0)->x) == sizeof(((b *)0)->y), #x)
#define WHOLE(a, b) _Static_assert(sizeof(a) == sizeof(b), #a)
WHOLE(slc_m2n_mesh, ncclMesh_t);
SAME(slc_m2n_mesh, size, ncclMesh_t, size);
SAME(slc_m2n_mesh, version, ncclMesh_t, version);
SAME(slc_m2n_mesh, ndims, ncclMesh_t, ndims);
SAME(slc_m2n_mesh, dims, ncclMesh_t, dims);
SAME(slc_m2n_mesh, first, ncclMesh_t, startRank);
WHOLE(slc_m2n_tensor, ncclDistTensor_t);
SAME(slc_m2n_tensor, size, ncclDistTensor_t, size);
SAME(slc_m2n_tensor, version, ncclDistTensor_t, version);
SAME(slc_m2n_tensor, data, ncclDistTensor_t, dataPtr);
SAME(slc_m2n_tensor, shape, ncclDistTensor_t, localShape);
SAME(slc_m2n_tensor, ndims, ncclDistTensor_t, ndims);
SAME(slc_m2n_tensor, dtype, ncclDistTensor_t, dtype);
SAME(slc_m2n_tensor, mesh, ncclDistTensor_t, mesh);
SAME(slc_m2n_tensor, placements, ncclDistTensor_t, placements);
WHOLE(slc_m2n_config, ncclM2nConfig_t);
SAME(slc_m2n_config, size, ncclM2nConfig_t, size);
SAME(slc_m2n_config, magic, ncclM2nConfig_t, magic);
SAME(slc_m2n_config, version, ncclM2nConfig_t, version);
SAME(slc_m2n_config, max_cta, ncclM2nConfig_t, maxCta);
_Static_assert(SLC_M2N_API == NCCL_M2N_API_VERSION && SLC_M2N_MAGIC == NCCL_M2N_API_MAGIC, "version and magic");
_Static_assert(SLC_M2N_DEFAULT == NCCL_M2N_CONFIG_UNDEF_INT, "the default");
_Static_assert(SLC_M2N_LOWEST_NCCL == NCCL_M2N_MIN_NCCL_VERSION_CODE, "the lowest NCCL");
]]

describe("what is said of nccl_m2n's interface", function()
   it("is what its own header says", function()
      local file, cuda = io.open(HEADER), io.open("/usr/local/cuda/include/cuda_runtime.h")
      if not file or not cuda then
         pending(HEADER .. " and CUDA's headers are not there: scripts/setup --m2n fetches the first")
         return
      end
      file:close()
      cuda:close()
      local path = os.tmpname()
      files.write(path, SOURCE)
      local pipe = io.popen(("cc -std=gnu11 -fsyntax-only -Ibuild/m2n/include -I/usr/local/cuda/include -Isrc -x c %s 2>&1"):format(path))
      local said = pipe:read("*a")
      pipe:close()
      os.remove(path)
      assert.equal("", said)
   end)
end)
