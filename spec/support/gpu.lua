--- A host's own GPU work for specs, on the driver that processors stand in for (spec/support/cuda/): memory, streams, captures
-- and graphs. Its memory is this process', too: it can be read and written as any other.
--
--    local gpu = require "spec.support.gpu"
--    local it = gpu.specs(it)
--    it("orders copies", function()      -- pending where the plugin was not built
--       local world = gpu.open()         -- in the process that uses it
--       local stream = world.stream()
--       stream:busy(); stream:copy(to, from, bytes)
--    end)

local ffi = require "ffi"
local built = require "spec.support.built"

local gpu = {}

local files = { "libsluice_cuda.so", "spec/cuda/libcuda.so.1" }

--- A spec file's `it` for specs that want the plugin, the driver and further files of the build folder: see spec/support/built.
function gpu.specs(it, ...)
   return built.specs(it, files[1], files[2], ...)
end

--- Why there is no plugin or no driver; nil where both are.
function gpu.missing()
   return built.missing(files[1], files[2])
end

local stream = {}
stream.__index = stream

local functions = {
   Init = { 2000, "int (*)(unsigned)" }, DevicePrimaryCtxRetain = { 7000, "int (*)(void **, int)" },
   CtxPushCurrent = { 4000, "int (*)(void *)" }, CtxPopCurrent = { 4000, "int (*)(void **)" },
   MemAlloc = { 3020, "int (*)(uint64_t *, size_t)" }, MemFree = { 3020, "int (*)(uint64_t)" },
   MemGetInfo = { 3020, "int (*)(size_t *, size_t *)" }, MemcpyAsync = { 4000, "int (*)(uint64_t, uint64_t, size_t, void *)" },
   StreamCreate = { 2000, "int (*)(void **, unsigned)" }, StreamQuery = { 2000, "int (*)(void *)" },
   StreamWaitValue64 = { 11070, "int (*)(void *, uint64_t, uint64_t, unsigned)" },
   StreamSynchronize = { 2000, "int (*)(void *)" }, StreamBeginCapture = { 10010, "int (*)(void *, int)" },
   StreamEndCapture = { 10000, "int (*)(void *, void **)" }, GraphInstantiateWithFlags = { 11040, "int (*)(void **, void *, uint64_t)" },
   GraphLaunch = { 10000, "int (*)(void *, void *)" }, GraphDestroy = { 10000, "int (*)(void *)" },
   GraphExecDestroy = { 10000, "int (*)(void *)" },
}

--- The driver, with the context of GPU `ordinal` (0) current for this thread. Once loaded, the plugin finds it, too.
function gpu.open(ordinal)
   pcall(ffi.cdef, "int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);")
   require("posix.stdlib").setenv("SLUICE_CUDA_PLUGIN", built.folder .. "libsluice_cuda.so")
   local library = ffi.load(built.folder .. "spec/cuda/libcuda.so.1")
   local cuda = {}
   for name, known in pairs(functions) do
      local found, how = ffi.new("void *[1]"), ffi.new("int[1]")
      assert(library.cuGetProcAddress_v2("cu" .. name, found, known[1], 0, how) == 0, name)
      local call = ffi.cast(known[2], found[0])
      cuda[name] = function(...)
         local result = call(...)
         assert(result == 0, ("cu%s: %d"):format(name, result))
      end
      cuda["try" .. name] = function(...)
         return tonumber(call(...))
      end
   end
   local self = { cuda = cuda, library = library }
   local context = ffi.new("void *[1]")
   cuda.Init(0)
   cuda.DevicePrimaryCtxRetain(context, ordinal or 0)
   cuda.CtxPushCurrent(context[0])

   function self.memory(bytes)
      local at = ffi.new("uint64_t[1]")
      cuda.MemAlloc(at, bytes)
      return ffi.cast("unsigned char *", ffi.cast("uintptr_t", at[0]))
   end

   function self.free(data)
      cuda.MemFree(ffi.cast("uint64_t", ffi.cast("uintptr_t", data)))
   end

   --- Bytes of the GPU's memory that are taken.
   function self.taken()
      local left, all = ffi.new("size_t[1]"), ffi.new("size_t[1]")
      cuda.MemGetInfo(left, all)
      return tonumber(all[0] - left[0])
   end

   function self.stream()
      local made = ffi.new("void *[1]")
      cuda.StreamCreate(made, 1)
      return setmetatable({ handle = made[0], gpu = self, cuda = cuda }, stream)
   end

   return self
end

function stream:copy(to, from, bytes)
   self.cuda.MemcpyAsync(ffi.cast("uint64_t", ffi.cast("uintptr_t", to)), ffi.cast("uint64_t", ffi.cast("uintptr_t", from)), bytes, self.handle)
end

--- Work that takes a while: what comes behind it on the stream comes late.
function stream:busy()
   local bytes = 16 * 2^20
   self.block = self.block or self.gpu.memory(2 * bytes)
   for _ = 1, 20 do
      self:copy(self.block + bytes, self.block, bytes)
   end
end

--- Work that never ends.
function stream:stick()
   local word = self.gpu.memory(8)
   self.cuda.StreamWaitValue64(self.handle, ffi.cast("uint64_t", ffi.cast("uintptr_t", word)), 1, 0)
end

function stream:wait()
   self.cuda.StreamSynchronize(self.handle)
end

function stream:idle()
   return self.cuda.tryStreamQuery(self.handle) == 0
end

function stream:capture()
   self.cuda.StreamBeginCapture(self.handle, 0)
end

--- Ends the capture; what was captured is launched by `launch`.
function stream:captured()
   local graph, ready = ffi.new("void *[1]"), ffi.new("void *[1]")
   self.cuda.StreamEndCapture(self.handle, graph)
   self.cuda.GraphInstantiateWithFlags(ready, graph[0], 0)
   self.cuda.GraphDestroy(graph[0])
   return ready[0]
end

function stream:launch(graph)
   self.cuda.GraphLaunch(graph, self.handle)
end

return gpu
