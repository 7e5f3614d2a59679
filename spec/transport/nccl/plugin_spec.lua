--- libsluice_cuda says what it was built against, without needing CUDA or NCCL in the process.

local built = require "spec.support.built"
local ffi = require "ffi"
local inside = require "spec.support.inside"
local shell = require "scripts.shell"

local it = built.specs(it, "libsluice_cuda.so")
local path = built.folder .. "libsluice_cuda.so"

describe("the CUDA plugin", function()
   it("tells the versions of Sluice, CUDA and NCCL that it was built against", function()
      inside.declare("transport/nccl/plugin.h")
      local library = ffi.load(path)
      local versions = library.sluice_cuda_plugin_open().versions
      assert.equal(ffi.sizeof("sluice_cuda_versions"), versions.size)
      assert.same({0, 1, 0}, {versions.sluice_major, versions.sluice_minor, versions.sluice_patch})
      assert.truthy(versions.cuda >= 12080)
      assert.truthy(versions.nccl >= 21800)
   end)

   it("exports its door and nothing else", function()
      local names = {}
      for name in shell("nm --dynamic --defined-only " .. path):gmatch("%x+ %u ([%w_]+)") do
         names[#names + 1] = name
      end
      assert.same({ "sluice_cuda_plugin_open" }, names)
   end)

   it("loads neither CUDA nor NCCL by itself", function()
      local text, code = shell("readelf -d " .. path)
      assert.equal(0, code)
      assert.is_nil(text:find("NEEDED[^\n]*cuda"))
      assert.is_nil(text:find("NEEDED[^\n]*nccl"))
   end)
end)
