--- `sluice run` between GPUs where there is none: real ranks on the driver, the NCCL and the nccl_m2n that processors stand in for
-- (spec/support/cuda/), every byte checked.
--
--    local gpu_run = require "spec.support.gpu_run"
--    local object = gpu_run.verified({ transport = "nccl", road = "wire", updates = 2 }, { SLUICE_WIRE_BYTES = "4096" }, "--batches", "3")

local assert = require "luassert"
local built = require "spec.support.built"
local program = require "spec.cli.program"
local unistd = require "posix.unistd"
local with = require "spec.support.with"

local gpu_run = {}

local folder = built.folder:sub(1, 1) == "/" and built.folder or unistd.getcwd() .. "/" .. built.folder

--- Where the libraries are.
gpu_run.CUDA, gpu_run.NCCL, gpu_run.M2N = folder .. "spec/cuda", folder .. "spec/nccl/libnccl.so.2", folder .. "spec/m2n/libnccl_m2n.so"

--- The environment in which a transport finds them, with `more` over it.
function gpu_run.environment(transport, more)
   local by_m2n = transport == "m2n"
   return with({ LD_LIBRARY_PATH = gpu_run.CUDA, NCCL_MULTI_RANK_GPU_ENABLE = "1", SLUICE_M2N_LIBRARY = by_m2n and gpu_run.M2N or nil,
      SLUICE_NCCL_LIBRARY = not by_m2n and gpu_run.NCCL or nil }, more)
end

--- Runs a deployment (changes of program.deployment's), with arguments behind; what program.run gives.
function gpu_run.run(deployment, environment, ...)
   return program.run({ "run", program.deployment(deployment), "--json", ... }, gpu_run.environment(deployment.transport, environment))
end

--- The same where all must go well and every byte be right; the object that it says.
function gpu_run.verified(...)
   return program.verified(gpu_run.run(...))
end

--- The same where it must be refused, with each of `texts`.
function gpu_run.refused(deployment, environment, ...)
   local result = gpu_run.run(deployment, environment)
   assert.not_equal(0, result.code)
   assert.same({}, result.left)
   for _, text in ipairs({ ... }) do
      assert.truthy(result.err:find(text, 1, true), result.err)
   end
   return result
end

--- A file of rules that has a part of Llama loaded from full parameters; `convert`: what all is converted to, or nil.
function gpu_run.full_mlp(convert)
   return program.file(([[
return { extends = "llama", convert = %s, rules = {
   rule "model.layers.{l}.mlp.{p=gate|up}_proj.weight" { full = "to be loaded", into = "model.layers.{l}.mlp.gate_up_proj.weight" },
   rule "model.layers.{l}.mlp.down_proj.weight" { full = "to be loaded" },
} }]]):format(convert and ("%q"):format(convert) or "nil"), ".lua")
end

return gpu_run
