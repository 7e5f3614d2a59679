--- What the tables of benchmarks between GPUs have in common: files, the machine, and what is promised of figures.

local cjson = require "cjson"
local files = require "scripts.files"

local figures = {}

--- Writes an object as JSON.
function figures.write(path, object)
   files.write(path, cjson.encode(object), "\n")
end

--- This machine and day, as far as the kernel tells. `cuda`: the version that the driver knows, as 13000.
function figures.machine(cuda)
   return {
      date = os.date("!%Y-%m-%d"), cuda = ("%d.%d"):format(cuda / 1000, cuda % 1000 / 10),
      driver = (files.read("/proc/driver/nvidia/version") or ""):match("%d+%.%d+%.?%d*"),
      processor = (files.read("/proc/cpuinfo") or ""):match("model name%s*:%s*([^\n]+)"),
      kernel = (files.read("/proc/sys/kernel/osrelease") or ""):match("[^\n]+"),
   }
end

--- A figure as tables have it; "" where it was not measured.
function figures.number(value)
   return value and (value >= 1000 and "%.0f" or value >= 100 and "%.1f" or "%.3f"):format(value) or ""
end

--- A promise: `value` must be "at least" or "at most" `wanted`. `met` is nil where there is no value.
function figures.promise(what, value, bound, wanted)
   local met
   if value then
      met = bound == "at least" and value >= wanted or bound == "at most" and value <= wanted
   end
   return { what = what, value = value, bound = bound, wanted = wanted, met = met }
end

function figures.print_promises(list)
   print("\npromised")
   for _, promise in ipairs(list) do
      local wanted = promise.wanted < 1000 and promise.wanted % 1 == 0 and ("%d"):format(promise.wanted) or figures.number(promise.wanted)
      print(("   %-56s %9s  %s %-7s %s"):format(promise.what, figures.number(promise.value), promise.bound, wanted,
         promise.met == nil and "not measured" or promise.met and "met" or "NOT MET"))
   end
end

return figures
