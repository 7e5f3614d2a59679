--- The runs of scripts/matrix, world by world, as a table or as JSON.
--
--    luajit scripts/matrix.lua BUILD [--world LIST] [--transport NAME] [--form FORM] [--filter TEXT] ...
--    luajit scripts/matrix.lua BUILD --rank N FILE --report-fd=FD      one rank, started by the former

package.path = "./?.lua;./lua/?.lua;./lua/?/init.lua;" .. package.path
local matrix = require "spec.support.matrix"
local run = require "spec.support.matrix_run"

local build = arg[1]
local options = { build = build, transport = "host", updates = 2, worlds = {} }

local function usage(text, ...)
   io.stderr:write("matrix: ", text:format(...), "; scripts/matrix --help tells\n")
   os.exit(2)
end

local function add_worlds(text)
   for part in text:gmatch("[^,]+") do
      local low, high = part:match("^(%d+)%-(%d+)$")
      low, high = tonumber(low or part), tonumber(high or part)
      if not low or not high or low < 2 or high > 4096 or low > high then
         usage("--world (%s) must be numbers of 2 or more and ranges, as 4,8 or 4-12", text)
      end
      for world = low, high do
         table.insert(options.worlds, world)
      end
   end
end

local function number_of(name, text)
   local number = tonumber(text)
   if not number or number < 1 or number % 1 ~= 0 then
      usage("--%s (%s) must be a whole number above 0", name, text)
   end
   return number
end

local words = { transport = { host = true, nccl = true, m2n = true }, form = { ["sluice/1"] = true, ["2"] = true } }

local function read_arguments()
   local i = 2
   while arg[i] do
      local name, value = arg[i]:match("^%-%-(%l+)$"), arg[i + 1]
      if name == "json" or name == "list" then
         options[name] = true
         i = i - 1
      elseif name == "world" and value then
         add_worlds(value)
      elseif (name == "largest" or name == "updates") and value then
         options[name] = number_of(name, value)
      elseif words[name] and value then
         if not words[name][value] then
            usage("--%s (%s) is unknown", name, value)
         end
         options[name] = value
      elseif (name == "filter" or name == "road") and value then
         options[name] = value
      else
         usage("unknown or incomplete argument '%s'", arg[i])
      end
      i = i + 2
   end
   if #options.worlds == 0 then
      add_worlds("4-32")
   end
end

-- ---- a list of the cases ----

local why = { source = "its source is none of m2n's two axes", destination = "its destination is none of m2n's two axes",
   dims = "too many dims for a tensor that is cut", sources = "too many sources of a shard", targets = "too many targets of a shard" }

local function list_cases(json)
   local list = json.list()
   for _, world in ipairs(options.worlds) do
      local by_shares, order = matrix.cases(world, options.largest)
      for _, key in ipairs(order) do
         for _, case in ipairs(by_shares[key]) do
            if not options.filter or case.name:find(options.filter, 1, true) then
               local can, reason = matrix.m2n_can(case)
               list[#list + 1] = { world = world, trainers = case.trainers, workers = case.workers, case = case.name, m2n = can,
                  reason = not can and why[reason] or nil }
            end
         end
      end
   end
   if options.json then
      io.stdout:write(json.encode(list), "\n")
      return
   end
   for _, entry in ipairs(list) do
      io.stdout:write(("%3d = %2d + %2d  %-75s %s\n"):format(entry.world, entry.trainers, entry.workers, entry.case,
         entry.m2n and "m2n can" or entry.reason))
   end
end

-- ---- moves ----

local HEAD, ROW = "%-9s %-9s %-9s %6s %12s %9s  %s\n", "%-9s %-9s %-9s %6d %12s %9s  %s\n"

local function roads_of(result)
   local names = {}
   for road in pairs(result.roads or {}) do
      names[#names + 1] = road
   end
   table.sort(names)
   return table.concat(names, " ")
end

local function write_row(units, result)
   io.stdout:write(ROW:format(("%d + %d"):format(result.trainers, result.workers), result.form, roads_of(result), result.cases,
      units.bytes(result.checked), units.seconds(result.seconds), result.failure or "exact"))
   io.stdout:flush()
end

local function move_all(json, units)
   local show = require("sluice.cli.progress").new(options.json)
   local results, failed, cases = json.list(), 0, 0
   if not options.json then
      io.stdout:write(HEAD:format("ranks", "form", "roads", "cases", "compared", "took", "result"))
   end
   for _, world in ipairs(options.worlds) do
      local moves = run.moves(world, options)
      for i, move in ipairs(moves) do
         show:status("world %d: move %d of %d, %d cases in form %s", world, i, #moves, #move.cases, move.form)
         local result = run.execute(move, options)
         show:done()
         result.world = world
         results[#results + 1] = result
         failed, cases = failed + (result.failure and 1 or 0), cases + result.cases
         if not options.json then
            write_row(units, result)
         end
      end
   end
   if options.json then
      io.stdout:write(json.encode({ transport = options.transport, moves = results, failed = failed, cases = cases }), "\n")
   else
      io.stdout:write(("%d moves of %d cases by transport %s: %s\n"):format(#results, cases, options.transport,
         failed == 0 and "every byte of every update is exact" or failed .. " failed"))
   end
   return failed == 0 and 0 or 1
end

if arg[2] == "--rank" then
   run.open(build)
   os.exit(run.rank(arg[4], tonumber(arg[3]), tonumber((arg[5] or ""):match("^%-%-report%-fd=(%d+)$"))))
end
read_arguments()
if build == "--arguments" then -- they are good; what runs is not built yet
   os.exit(0)
end
run.open(build)
local json, units = require "sluice.cli.json", require "sluice.cli.units"
if options.list then
   list_cases(json)
else
   os.exit(move_all(json, units))
end
