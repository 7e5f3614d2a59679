--- The measurements of scripts/bench: runs the programs of a build folder, prints a table, writes bench.json there.
--
--    luajit scripts/bench.lua BUILD|--arguments [--repeats N] [--only transport|plan|rules|run]

local cjson = require "cjson"
package.path = "./?.lua;" .. package.path
local files = require "scripts.files"
local measure = require "scripts.measure"

local build = arg[1]
local repeats, only = 5, nil

local function usage(text)
   io.stderr:write("bench: ", text, "; scripts/bench --help tells\n")
   os.exit(2)
end

do
   local i = 2
   while arg[i] do
      local value = arg[i + 1]
      if arg[i] == "--repeats" and value and value:find("^[1-9]%d?%d?$") then
         repeats = tonumber(value)
      elseif arg[i] == "--only" and (value == "transport" or value == "plan" or value == "rules" or value == "run") then
         only = value
      else
         usage(("unknown or incomplete argument %s"):format(arg[i]))
      end
      i = i + 2
   end
   if build == "--arguments" then -- they are good; what is measured is not built yet
      os.exit(0)
   end
end

local rows = {}
local failed = false

--- One line of the table. wanted: what the project promises of it; limit: {median, ratio, name} of what it is held against.
local function row(part, name, unit, spread, wanted, limit)
   limit = limit or {}
   rows[#rows + 1] = {
      part = part, name = name, unit = unit, median = spread.median, smallest = spread.smallest, largest = spread.largest,
      runs = spread.runs, wanted = wanted, limit = limit.median, ratio = limit.ratio, limit_name = limit.name,
   }
end

--- Runs a program `repeats` times. each(result, json) is called with every run and its output as JSON.
local function runs(command, times, each)
   for _ = 1, times do
      local result, text = measure.run(command)
      if not result then
         io.stderr:write("bench: ", text, "\n")
         failed = true
         return false
      end
      local good, json = pcall(cjson.decode, result.output:match("%b{}"))
      if not good then
         io.stderr:write(("bench: no JSON from %s:\n%s\n"):format(command, result.output))
         failed = true
         return false
      end
      each(result, json)
   end
   return true
end

local parts = {}

local TRANSPORT = {
   {"pull_contiguous", "ordinary memory, contiguous", "ratio >= 0.9"},
   {"pull_rows_4k", "ordinary memory, rows of 4 KB", "ratio >= 0.8"},
   {"pull_rows_128", "ordinary memory, rows of 128 B"},
   {"pull_permuted", "ordinary memory, transposed"},
   {"map_contiguous", "memory of sluice_memory_alloc, contiguous", "ratio >= 0.8"},
   {"map_rows_4k", "memory of sluice_memory_alloc, rows of 4 KB"},
   {"map_permuted", "memory of sluice_memory_alloc, transposed"},
   {"ring_contiguous", "ring, contiguous"},
   {"ring_rows_4k", "ring, rows of 4 KB"},
}

local TENSORS = {{"pull_10000_of_1k", "pull"}, {"ring_10000_of_1k", "ring"}}

-- The driver alternates each course with its own limit and repeats both; its figures are medians already.
function parts.transport()
   runs(build .. "/spec/host_driver bench --json", 1, function(_, json)
      for _, course in ipairs(TRANSPORT) do
         local key, name, wanted = unpack(course)
         local found = assert(json[key], "host_driver measured no " .. key)
         local rate, limit = found.gb_per_s, found.limit_gb_per_s
         row("transport", name, "GB/s", {median = rate.median, smallest = rate.least, largest = rate.most, runs = found.samples}, wanted,
            {median = limit.median, ratio = found.of_limit, name = found.limit})
      end
      for _, course in ipairs(TENSORS) do
         local found = assert(json[course[1]], "host_driver measured no " .. course[1])
         local scale = found.us_per_tensor * found.gb_per_s.median -- so that rates become times
         row("transport", "10,000 tensors of 1 KB, " .. course[2], "us each", {
            median = found.us_per_tensor, smallest = scale / found.gb_per_s.most, largest = scale / found.gb_per_s.least,
            runs = found.samples}, course[2] == "pull" and "<= 3 us" or nil)
      end
   end)
end

function parts.plan()
   local deployment = "examples/deployments/qwen3-235b.lua"
   for _, who in ipairs({{name = "trainer rank 0", rank = 0}, {name = "worker rank 64", rank = 64}}) do
      local planning, whole, peak = {}, {}, {}
      local command = ("%s/sluice plan %s --rank %d --json"):format(build, deployment, who.rank)
      local good = runs(command, repeats, function(result, json)
         planning[#planning + 1], whole[#whole + 1], peak[#peak + 1] = json.seconds.planning, result.seconds, result.peak_mb
      end)
      if good then
         row("plan", "Qwen3-235B, " .. who.name .. ", planning", "s", measure.spread(planning), "< 2 s")
         row("plan", "Qwen3-235B, " .. who.name .. ", whole program", "s", measure.spread(whole))
         row("plan", "Qwen3-235B, " .. who.name .. ", peak memory", "MB", measure.spread(peak), "< 400 MB")
      end
   end
end

function parts.rules()
   local resolve, init_info = {[10] = {}, [1000] = {}}, {}
   for _ = 1, repeats do -- in turn, so that both meet the same machine
      for _, count in ipairs({10, 1000}) do
         local command = ("env SLUICE_INSIDE=%s/libsluice_inside.so luajit scripts/bench-rules.lua --rules %d"):format(build, count)
         if not runs(command, 1, function(_, json)
            table.insert(resolve[count], json.seconds.resolve)
            init_info[#init_info + 1] = json.seconds.init_info
         end) then
            return
         end
      end
   end
   local few, many = measure.spread(resolve[10]), measure.spread(resolve[1000])
   row("rules", "91,991 parameters, init info read", "s", measure.spread(init_info))
   row("rules", "91,991 parameters, 10 rules, resolved", "s", few, "< 3 s")
   row("rules", "91,991 parameters, 1,000 rules, resolved", "s", many, "ratio <= 2", {median = few.median, ratio = many.median / few.median,
      name = "10 rules"})
end

function parts.run()
   local seconds, rate, phases = {}, {}, {}
   local command = ("%s/sluice run examples/deployments/llama3-8b.lua --layers 1 --json"):format(build)
   local good = runs(command, repeats, function(result, json)
      seconds[#seconds + 1], rate[#rate + 1] = result.seconds, json.gb_per_s
      for phase, value in pairs(json.seconds) do
         phases[phase] = phases[phase] or {}
         table.insert(phases[phase], value)
      end
      if json.verified ~= true then
         io.stderr:write("bench: not verified: ", command, "\n")
         failed = true
      end
   end)
   if good then
      row("run", "Llama-3-8B, 1 layer, whole program", "s", measure.spread(seconds))
      row("run", "Llama-3-8B, 1 layer, update rate", "GB/s", measure.spread(rate))
      local names = {}
      for phase in pairs(phases) do
         names[#names + 1] = phase
      end
      table.sort(names)
      for _, phase in ipairs(names) do
         row("run", "Llama-3-8B, 1 layer, " .. phase, "s", measure.spread(phases[phase]))
      end
   end
end

local function number(value)
   if not value then
      return ""
   end
   return (value >= 100 and "%.0f" or value >= 10 and "%.1f" or "%.3f"):format(value)
end

local function print_table()
   local format = "%-10s %-44s %9s %9s %9s  %-7s %9s %6s  %-12s %s"
   local function line(...)
      io.write((format:format(...):gsub("%s+$", "")), "\n")
   end
   line("part", "what", "median", "smallest", "largest", "unit", "limit", "ratio", "wanted", "limit is")
   for _, item in ipairs(rows) do
      line(item.part, item.name, number(item.median), number(item.smallest), number(item.largest), item.unit, number(item.limit),
         item.ratio and ("%.2f"):format(item.ratio) or "", item.wanted or "", item.limit_name or "")
   end
end

for _, name in ipairs({"transport", "plan", "rules", "run"}) do
   if (not only or only == name) and parts[name] then
      io.write(("bench: %s\n"):format(name))
      io.flush()
      parts[name]()
   end
end

print_table()
local path = build .. "/bench.json"
files.write(path, cjson.encode({repeats = repeats, rows = rows}), "\n")
io.write(("bench: wrote %s\n"):format(path))
os.exit(failed and 1 or 0)
