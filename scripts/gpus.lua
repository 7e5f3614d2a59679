--- Whether NVIDIA's driver finds a GPU here, before anything is built for one; where none is found, says why and ends with 1.

local ffi = require "ffi"

ffi.cdef "int cuGetProcAddress_v2(const char *name, void **call, int version, uint64_t flags, int *found);"

local function none(format, ...)
   io.write("there is no GPU: ", format:format(...), "\n")
   os.exit(1)
end

local loaded, driver = pcall(ffi.load, "libcuda.so.1")
if not loaded then
   none("NVIDIA's driver is not installed: %s", driver)
end

-- As src/transport/nccl/load.c finds them.
local function call(name, form)
   local found, how = ffi.new("void *[1]"), ffi.new("int[1]")
   local good, code = pcall(function()
      return driver.cuGetProcAddress_v2(name, found, 12000, 0, how)
   end)
   if not good or code ~= 0 or found[0] == nil then
      none("NVIDIA's driver has no %s; it must be 12.0 or newer", name)
   end
   return ffi.cast(form, found[0])
end

local count, text = ffi.new("int[1]"), ffi.new("const char *[1]")
local code = call("cuInit", "int (*)(unsigned)")(0)
if code ~= 0 then
   none("cuInit: %s", call("cuGetErrorString", "int (*)(int, const char **)")(code, text) == 0 and ffi.string(text[0]) or code)
elseif call("cuDeviceGetCount", "int (*)(int *)")(count) ~= 0 or count[0] == 0 then
   none("NVIDIA's driver lists none")
end
