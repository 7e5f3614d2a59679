--- The table of scripts/bench-gpu, from the samples that gpu_bench printed, and those of packed_torch.py where
-- there are any.
--
--    luajit scripts/bench-gpu.lua SAMPLES.json TORCH.json [OUT.json]

local cjson = require "cjson"
package.path = "./?.lua;" .. package.path
local figures = require "scripts.figures"
local files = require "scripts.files"
local measure = require "scripts.measure"

local number = figures.number

local run = cjson.decode((assert(files.read(arg[1]), "no samples")))
local torch = files.read(arg[2])
if torch then
   local row = cjson.decode(torch)
   row.name, row.kind, row.work, row.title = "packed_torch", "peer", "direct", "packed broadcast by PyTorch, torch.cat and copy_"
   run.rows[#run.rows + 1] = row
end
local by_name = {}
for _, row in ipairs(run.rows) do
   by_name[row.name] = not row.skipped and row or nil
   for _, series in ipairs({ "seconds", "whole_seconds", "issue_us", "agree_us", "idle_tflops", "busy_tflops" }) do
      row[series] = row[series] and measure.spread(row[series])
   end
end

local function median(name, series)
   local row = by_name[name]
   return row and row[series or "seconds"] and row[series or "seconds"].median
end

--- a / b, or nil where one was not measured.
local function ratio(a, b)
   return a and b and a / b
end

local function rate(name)
   return ratio(by_name[name] and by_name[name].bytes * 1e-9, median(name))
end

-- What the copy engines did at their best in this run, in one call, without gaps.
local limit = math.max(rate("limit_one") or 0, rate("limit_batch") or 0)
limit = limit > 0 and limit or nil

--- How many times the seconds of the same work by Sluice.
local function against_ours(row)
   return row.kind == "peer" and ratio(row.seconds.median, median(row.work)) or nil
end

-- What the project promises of a ratio or a figure in this run: { what, value, "at least" or "at most", wanted, unit }.
local function promises()
   local grouped
   for _, name in ipairs({ "group", "groups_of_32" }) do
      local seconds = median(name)
      grouped = seconds and math.min(seconds, grouped or seconds) or grouped
   end
   local direct, device = median("direct"), 0
   for _, name in ipairs({ "direct", "replay", "fused", "half", "eighth", "lora" }) do
      for _, bytes in ipairs(by_name[name] and by_name[name].device_bytes or {}) do
         device = math.max(device, bytes)
      end
   end
   local function of_limit(name)
      return ratio(rate(name), limit)
   end
   return {
      { "direct, of the limit", of_limit("direct"), "at least", 0.98 },
      { "halved rows, of the limit", of_limit("half"), "at least", 0.95 },
      { "rows cut in 8, of the limit", of_limit("eighth"), "at least", 0.92 },
      { "fused, seconds of direct", ratio(median("fused"), direct), "at most", 1.01 },
      { "times as fast as a broadcast each", ratio(median("broadcast"), direct), "at least", 1.15 },
      { "times as fast as grouped send and receive", ratio(grouped, direct), "at least", 1.08 },
      { "times as fast as PyTorch's packed broadcast", ratio(median("packed_torch"), direct), "at least", 1.22 },
      { "every SM held, seconds of idle", ratio(median("held_direct"), direct), "at most", 1.03 },
      { "every SM held, replayed, seconds of idle", ratio(median("held_replay"), median("replay")), "at most", 1.03 },
      { "every SM held, halved rows", ratio(median("held_half"), median("half")), "at most", 1.03 },
      { "matrix product's rate meanwhile, of idle", ratio(median("product", "busy_tflops"), median("product", "idle_tflops")), "at least", 0.97 },
      { "small tensors, us", median("lora") and median("lora") * 1e6, "at most", 500 },
      { "small tensors replayed, us", median("replay_lora") and median("replay_lora") * 1e6, "at most", 500 },
      { "small tensors, times as fast as grouped", ratio(median("group_lora"), median("lora")), "at least", 8 },
      { "host time to issue, us", median("direct", "issue_us"), "at most", 200 },
      { "host time to issue a replay, us", median("replay", "issue_us"), "at most", 200 },
      { "device memory beside the tensors, MB", direct and device * 1e-6, "at most", 64 },
   }
end

local function machine()
   local here = figures.machine(run.cuda_driver)
   here.gpu, here.gpus, here.pair = run.gpu, run.gpus, run.pair
   here.nccl = run.nccl > 0 and ("%d.%d.%d"):format(run.nccl / 10000, run.nccl / 100 % 100, run.nccl % 100) or nil
   return here
end

-- How fast rows move, by their width: copy engines alone, and an update, which takes the kernel where that is faster.
local function print_widths()
   for _, row in ipairs(run.rows) do
      if row.kind == "ours" and row.row_bytes and not row.skipped then
         local engines = rate("limit_" .. row.name)
         print(("rows of %4d bytes: %s GB/s by an update, %s by copy engines alone"):format(row.row_bytes, ("%5.1f"):format(rate(row.name)),
            engines and ("%5.1f"):format(engines) or "not measured"))
      end
   end
end

local function print_products()
   for _, row in ipairs(run.rows) do
      if row.product_rows and not row.skipped then
         local idle, busy = row.idle_tflops, row.busy_tflops
         print(("%s: bfloat16, %d x 8192 by 8192 x 8192, cuBLAS: %.1f TFLOP/s alone (%.1f to %.1f), %.1f (%.1f to %.1f) meanwhile, without a "
            .. "pause: %.3f"):format(row.name, row.product_rows, idle.median, idle.smallest, idle.largest, busy.median, busy.smallest, busy.largest,
               busy.median / idle.median))
      end
   end
end

local function print_table(where, promised)
   print(("%s and %s (GPUs %d and %d of %d), driver %s, CUDA %s, NCCL %s, %s"):format(where.gpu[1], where.gpu[2], where.pair[1], where.pair[2],
      where.gpus, where.driver or "unknown", where.cuda, where.nccl or "none", where.date))
   print(("%s, %d layers; medians of %d with the smallest and the largest, in ms; every byte of every sample compared"):format(run.model, run.layers,
      run.samples))
   local format = "%-6s %-16s %-50s %9s %9s %9s %7s %8s %9s %8s"
   local function line(...)
      print((format:format(...):gsub("%s+$", "")))
   end
   line("kind", "row", "what", "median", "smallest", "largest", "GB/s", "of limit", "issue us", "vs ours")
   for _, row in ipairs(run.rows) do
      if row.skipped and row.skipped ~= "not chosen" then
         print(("%-6s %-16s %-50s left out: %s"):format(row.kind, row.name, row.title, row.skipped))
      elseif not row.skipped and not row.row_bytes then
         local s = row.seconds
         line(row.kind, row.name, row.title, number(s.median * 1e3), number(s.smallest * 1e3), number(s.largest * 1e3),
            ("%.1f"):format(rate(row.name)),
            limit and row.bytes > 1e9 and ("%.3f"):format(rate(row.name) / limit) or "", row.issue_us and ("%.0f"):format(row.issue_us.median) or "",
            against_ours(row) and ("%.2f"):format(against_ours(row)) or "")
         if row.wrong_words > 0 then
            print(("       %s: %.0f words of 8 bytes are WRONG"):format(row.name, row.wrong_words))
         end
      end
   end
   local direct = by_name.direct
   if direct then
      print(("direct: start to finish %s ms; of an update %.0f us are agreed on before copies are launched; device memory beside the tensors %.1f MB "
         .. "(trainer), %.1f MB (worker)"):format(number(direct.whole_seconds.median * 1e3), direct.agree_us.median, direct.device_bytes[1] * 1e-6,
         direct.device_bytes[2] * 1e-6))
   end
   print_widths()
   print_products()
   figures.print_promises(promised)
end

local promised = {}
for i, promise in ipairs(promises()) do
   promised[i] = figures.promise(promise[1], promise[2], promise[3], promise[4])
end
local where = machine()
print_table(where, promised)
if arg[3] then
   local rows = {}
   for i, row in ipairs(run.rows) do
      row.gb_per_s = not row.skipped and rate(row.name) or nil
      row.of_limit = limit and row.gb_per_s and row.gb_per_s / limit
      row.times_ours = not row.skipped and against_ours(row) or nil
      rows[i] = row
   end
   figures.write(arg[3], { machine = where, model = run.model, layers = run.layers, samples = run.samples, rows = rows, promised = promised })
   print(("bench-gpu: wrote %s"):format(arg[3]))
end
