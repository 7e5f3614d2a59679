--- The table of scripts/bench-m2n, from what m2n_bench printed.
--
--    luajit scripts/bench-m2n.lua SAMPLES.json [OUT.json]

local cjson = require "cjson"
package.path = "./?.lua;" .. package.path
local figures = require "scripts.figures"
local files = require "scripts.files"
local measure = require "scripts.measure"

local number = figures.number

local run = cjson.decode((assert(files.read(arg[1]), "no samples")))

-- Rows of a whole model, and the one of small tensors: what is promised of them.
local whole_models = { llama = true, qwen = true }

--- The best of nccl_m2n's settings on its own, and its default.
local function peers_of(work)
   local default, best
   for _, way in ipairs(work.ways) do
      local alone = way.name:match("^alone_") or way.name:match("^pipe_") or way.name:match("^direct_") or way.name:match("^group_")
         or way.name:match("^split_")
      if way.seconds and alone then
         default = way.name == "alone_1" and way or default
         best = (not best or way.seconds.median < best.seconds.median) and way or best
      end
   end
   return default, best
end

local function way_of(work, name)
   for _, way in ipairs(work.ways) do
      if way.name == name and way.seconds then
         return way
      end
   end
end

local promised = {}
local function promise(...)
   promised[#promised + 1] = figures.promise(...)
end

local function most(bytes)
   return math.max(bytes[1], bytes[2])
end

for _, work in ipairs(run.works) do
   for _, way in ipairs(work.ways) do
      way.seconds = way.seconds and measure.spread(way.seconds)
      way.issue_us = way.issue_us and measure.spread(way.issue_us)
   end
   local ours, default, best = way_of(work, "nccl"), peers_of(work)
   local function times(way)
      return ours and way and way.seconds.median / ours.seconds.median
   end
   if whole_models[work.name] then
      promise(("%s: nccl_m2n's default takes, times nccl"):format(work.name), times(default), "at least", 1.4)
      promise(("%s: nccl_m2n's best (%s) takes, times nccl"):format(work.name, best and best.name or "none"), times(best), "at least", 1.05)
      local share = ours and default and most(ours.device_bytes) / most(default.device_bytes)
      promise(("%s: extra memory, of nccl_m2n's default"):format(work.name), share, "at most", 1 / 30)
   elseif work.name == "lora" then
      promise("lora: nccl_m2n's default takes, times nccl", times(default), "at least", 20)
      local replayed = way_of(work, "nccl_replay")
      promise("lora: the same, times nccl recorded once", replayed and default and default.seconds.median / replayed.seconds.median,
         "at least", 20)
   end
end

local FORMAT = "   %-12s %-42s %9s %9s %9s %8s %8s %10s"
local function line(...)
   print((FORMAT:format(...):gsub("%s+$", "")))
end

print(("%s and %s, CUDA %.1f, %s, %s"):format(run.gpu[1], run.gpu[2], run.cuda_driver / 1000, run.library, os.date("!%Y-%m-%d")))
print(("medians of %d with the smallest and the largest, in ms; every byte of every sample compared"):format(run.samples))
for _, work in ipairs(run.works) do
   local ours = way_of(work, "nccl")
   print(("\n%s: %s, %.2f GB, %d ranks"):format(work.name, work.title, work.bytes * 1e-9, work.ranks))
   line("way", "", "median", "smallest", "largest", "GB/s", "vs nccl", "extra MiB")
   for _, way in ipairs(work.ways) do
      if way.seconds then
         line(way.name, way.title, number(way.seconds.median * 1e3), number(way.seconds.smallest * 1e3), number(way.seconds.largest * 1e3),
            ("%.1f"):format(work.bytes * 1e-9 / way.seconds.median), ours and ("%.2f"):format(way.seconds.median / ours.seconds.median) or "",
            ("%.0f"):format(most(way.device_bytes) / 2 ^ 20))
         if way.wrong_words > 0 then
            print(("      %s: %.0f words of 8 bytes are WRONG"):format(way.name, way.wrong_words))
         end
      else
         print(("   %-12s %-42s left out: %s"):format(way.name, way.title, way.failed))
      end
   end
end
figures.print_promises(promised)
if arg[2] then
   run.promised = promised
   figures.write(arg[2], run)
   print(("bench-m2n: wrote %s"):format(arg[2]))
end
