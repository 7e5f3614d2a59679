--- The command line and the table of scripts/families.
--
--    luajit scripts/families.lua PROGRAM|--arguments [--family NAME] [--tp N,...] [--ep N,...] [--pp N,...] [--dp N,...] [--json] [--seed N]

package.path = "./?.lua;" .. package.path
local cjson = require "cjson"
local stdlib = require "posix.stdlib"
local time = require "posix.time"
local unistd = require "posix.unistd"
local families = require "spec.support.families"

local AXES = { "tp", "ep", "pp", "dp" }
local COLUMNS = { "tp", "ep", "pp", "dp", "parameters", "direct", "covered", "exact", "seconds" }

local function usage(text, ...)
   io.stderr:write("families: ", text:format(...), "; scripts/families --help tells\n")
   os.exit(2)
end

local function numbers_of(option, text)
   local set = {}
   for word in ((text or "") .. ","):gmatch("([^,]*),") do
      if not word:find("^%d+$") then
         usage("%s (%s) must be a list of numbers", option, text or "nothing")
      end
      set[tonumber(word)] = true
   end
   return set
end

local function arguments(words)
   local given = { names = {}, sizes = {}, seed = 1, program = words[1] or usage("the program's path is missing") }
   local i = 2
   while words[i] do
      local option, value = words[i], words[i + 1]
      local axis = option:match("^%-%-([tepd]p)$")
      if option == "--json" then
         given.json = true
         i = i - 1
      elseif option == "--family" and value then
         table.insert(given.names, (value:lower()))
      elseif option == "--seed" and value and value:find("^%d+$") then
         given.seed = tonumber(value)
      elseif axis then
         given.sizes[axis] = numbers_of(option, value)
      else
         usage("unknown or incomplete argument %s", option)
      end
      i = i + 2
   end
   return given
end

local function wants_case(given, case)
   for _, name in ipairs(given.names) do
      if case.name:lower():find(name, 1, true) then
         return true
      end
   end
   return #given.names == 0
end

local function wants_size(given, size)
   for _, axis in ipairs(AXES) do
      if given.sizes[axis] and not given.sizes[axis][size[axis]] then
         return false
      end
   end
   return true
end

-- All that is to be run: { case =, size =, number = }.
local function work_of(given)
   local list = {}
   for _, case in ipairs(families.cases) do
      if wants_case(given, case) then
         for number, size in ipairs(families.sizes(case)) do
            if wants_size(given, size) then
               list[#list + 1] = { case = case, size = size, number = number }
            end
         end
      end
   end
   return list
end

local function now()
   local t = time.clock_gettime(time.CLOCK_MONOTONIC)
   return t.tv_sec + t.tv_nsec * 1e-9
end

local function shown(cell, column)
   local value = cell[column]
   if column == "direct" then
      return value and ("%s%%"):format((("%.2f"):format(100 * value):gsub("%.?0+$", ""))) or "-"
   elseif column == "seconds" then
      return ("%.2f"):format(value)
   elseif type(value) == "boolean" then
      return value and "yes" or "NO"
   end
   return value == nil and "-" or tostring(value)
end

local function write_cell(cell)
   io.stdout:write(("%-24s"):format(cell.case))
   for _, column in ipairs(COLUMNS) do
      io.stdout:write(("%" .. math.max(4, #column + 2) .. "s"):format(cell.unfit and #column > 2 and "" or shown(cell, column)))
   end
   local note = cell.unfit and "not run: " .. cell.unfit .. (cell.wrong and "; " .. cell.wrong or "") or cell.wrong
   io.stdout:write(note and "  " .. note or "", "\n")
end

local function write_head()
   io.stdout:write(("%-24s"):format("family"))
   for _, column in ipairs(COLUMNS) do
      io.stdout:write(("%" .. math.max(4, #column + 2) .. "s"):format(column))
   end
   io.stdout:write("\n")
end

local function run_all(given, work, folder)
   local cells, checkpoints = {}, {}
   local terminal = unistd.isatty(2) == 1
   if not given.json then
      write_head()
   end
   for i, item in ipairs(work) do
      local case, size, start = item.case, item.size, now()
      if terminal then
         io.stderr:write(("\r\27[K%d of %d: %s, tp %d, ep %d, pp %d, dp %d"):format(i, #work, case.name, size.tp, size.ep, size.pp, size.dp))
      end
      checkpoints[case] = checkpoints[case] or families.prepare(case, folder, given.seed)
      local cell = families.run(case, checkpoints[case], size, item.number, { program = given.program })
      cell.seconds = now() - start
      cells[i] = cell
      if terminal then
         io.stderr:write("\r\27[K")
      end
      if not given.json then
         write_cell(cell)
         io.stdout:flush()
      end
   end
   return cells
end

local function summary(cells, seconds)
   local counts = { run = 0, wrong = 0, unfit = 0, seconds = seconds, cells = cells }
   local known, names = {}, 0
   for _, cell in ipairs(cells) do
      local kind = cell.unfit and "unfit" or "run"
      counts[kind] = counts[kind] + 1
      counts.wrong = counts.wrong + (cell.wrong and 1 or 0)
      names = names + (known[cell.case] and 0 or 1)
      known[cell.case] = true
   end
   counts.models, counts.good = names, counts.wrong == 0 and counts.run > 0
   return counts
end

local function main()
   local given, start = arguments(arg), now()
   local work = work_of(given)
   if #work == 0 then
      usage("no family and size is left")
   elseif given.program == "--arguments" then -- they are good; the program is not built yet
      return 0
   end
   local folder = assert(stdlib.mkdtemp((os.getenv("TMPDIR") or "/tmp") .. "/sluice-families-XXXXXX"))
   local good, result = xpcall(run_all, debug.traceback, given, work, folder)
   os.execute("rm -rf '" .. folder .. "'")
   if not good then
      io.stderr:write("families: ", result, "\n")
      return 1
   end
   local counts = summary(result, now() - start)
   if given.json then
      io.stdout:write(cjson.encode(counts), "\n")
   else
      io.stdout:write(("families: %d deployments of %d models, %s, %d not run (%.0f s)\n"):format(counts.run, counts.models,
         counts.wrong == 0 and "each 100% direct, covered and exact" or counts.wrong .. " WRONG", counts.unfit, counts.seconds))
   end
   return counts.good and 0 or 1
end

os.exit(main())
