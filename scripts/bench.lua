--- The measurements of scripts/bench: runs the programs of a build folder, prints a table, writes bench.json there.
--
--    luajit scripts/bench.lua BUILD [--repeats N] [--only transport|plan|run]

local cjson = require "cjson"
package.path = "./?.lua;" .. package.path
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
      if arg[i] == "--repeats" and tonumber(value) and tonumber(value) >= 1 then
         repeats = math.floor(tonumber(value))
      elseif arg[i] == "--only" and (value == "transport" or value == "plan" or value == "run") then
         only = value
      else
         usage(("unknown or incomplete argument %s"):format(arg[i]))
      end
      i = i + 2
   end
end

local rows = {}
local failed = false

--- One line of the table. limit: what the figure is held against, in the same unit; ratio: figure by limit.
local function row(part, name, unit, spread, limit, wanted)
   rows[#rows + 1] = {
      part = part, name = name, unit = unit, median = spread.median, smallest = spread.smallest, largest = spread.largest,
      runs = spread.runs, limit = limit, wanted = wanted,
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

function parts.plan()
   local deployment = "examples/deployments/qwen3-235b.lua"
   for _, who in ipairs({{name = "trainer rank 0", rank = 0}, {name = "worker rank 64", rank = 64}}) do
      local planning, whole, peak = {}, {}, {}
      local command = ("%s/sluice plan %s --rank %d --json"):format(build, deployment, who.rank)
      local good = runs(command, repeats, function(result, json)
         planning[#planning + 1], whole[#whole + 1], peak[#peak + 1] = json.seconds.planning, result.seconds, result.peak_mb
      end)
      if good then
         row("plan", "Qwen3-235B, " .. who.name .. ", planning", "s", measure.spread(planning), nil, "< 2")
         row("plan", "Qwen3-235B, " .. who.name .. ", whole program", "s", measure.spread(whole))
         row("plan", "Qwen3-235B, " .. who.name .. ", peak memory", "MB", measure.spread(peak), nil, "< 400")
      end
   end
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
      row("run", "Llama-3-8B, 1 layer, update", "GB/s", measure.spread(rate))
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
   local format = "%-10s %-48s %9s %9s %9s  %-8s %9s %6s  %s\n"
   io.write(format:format("part", "what", "median", "smallest", "largest", "unit", "limit", "ratio", "wanted"))
   for _, item in ipairs(rows) do
      local ratio = item.limit and ("%.2f"):format(item.median / item.limit) or ""
      io.write(format:format(item.part, item.name, number(item.median), number(item.smallest), number(item.largest), item.unit,
         number(item.limit), ratio, item.wanted or ""))
   end
end

for _, name in ipairs({"transport", "plan", "run"}) do
   if (not only or only == name) and parts[name] then
      io.write(("bench: %s\n"):format(name))
      io.flush()
      parts[name]()
   end
end

print_table()
local path = build .. "/bench.json"
local file = assert(io.open(path, "w"))
file:write(cjson.encode({repeats = repeats, rows = rows}), "\n")
file:close()
io.write(("bench: wrote %s\n"):format(path))
os.exit(failed and 1 or 0)
