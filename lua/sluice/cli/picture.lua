--- sluice picture: a deployment's traffic, its timeline, the map of a parameter and who fills a live tensor, drawn.

local native = require "sluice.native"
local coverage = require "sluice.picture.coverage"
local fault = require "sluice.cli.fault"
local file = require "sluice.cli.file"
local json = require "sluice.cli.json"
local matrix = require "sluice.picture.matrix"
local page = require "sluice.picture.page"
local parameter = require "sluice.picture.parameter"
local planned = require "sluice.cli.planned"
local predict = require "sluice.simulate".predict
local simulate = require "sluice.cli.simulate"
local source = require "sluice.cli.source"
local timeline = require "sluice.picture.timeline"
local units = require "sluice.cli.units"
local ways = require "sluice.picture.ways"

local picture = {
   name = "picture", summary = "Draws a deployment: who sends how much to whom, what takes how long, how a tensor is cut and filled.",
   example = "sluice picture examples/deployments/qwen3-235b.lua --out plan.html\n"
      .. "   sluice picture examples/deployments/llama3-8b.lua --parameter model.layers.0.mlp.down_proj.weight\n"
      .. "   sluice picture examples/deployments/llama3-8b.lua --tensor model.layers.0.self_attn.qkv_proj.weight --out qkv.svg\n\n"
      .. "A page (.html) opens from disk and asks for nothing. The times are those of sluice simulate, by the same options. lua/PICTURE.md\n"
      .. "says what is drawn how, and what --json holds.",
}

local CELLS, STDOUT = 64, 1

function picture.configure(parser)
   source.arguments(parser, "World rank of the worker whose live tensor is drawn. The first that has it when not given.")
   parser:option("--parameter", "Draw how this parameter is cut on both sides, and which shard feeds which slice."):argname("<name>")
   parser:option("--tensor", "Draw who fills this live tensor."):argname("<name>")
   parser:option("--out", "Write to FILE: a page where it ends in .html, one SVG where it ends in .svg. Characters on standard "
      .. "output when not given."):argname("<file>")
   simulate.model_options(parser)
   parser:flag("--json", "Print one JSON object on standard output.")
end

-- ---- what is drawn ----

-- The live tensor that most parameters go into, and the first of these; whichever was not asked for.
local function interesting(plan)
   local count, first, best = {}, {}, nil
   for _, param in ipairs(plan:params()) do
      for _, live in ipairs(param.into or {}) do
         count[live] = (count[live] or 0) + 1
         first[live] = first[live] or param.name
         best = (not best or count[live] > count[best]) and live or best
      end
   end
   return first[best], best
end

local function parts_of(plan, name)
   local parts = plan:parts(name)
   if not parts then
      local near = plan:explain(name).near or {}
      fault.wrong("picture: no parameter is called %s%s", name, near[1] and (" (did you mean %s?)"):format(near[1].name) or "")
   end
   return parts
end

local function live_of(plan, name, given_rank)
   local answer = plan:explain(name, { all = true })
   local live = answer.live
   if live and live.elsewhere and live.elsewhere[1] and not given_rank then
      return live_of(planned.open(plan.source, live.elsewhere[1][1]), name, true)
   elseif not live or not live.shape then
      local near = answer.near and answer.near[1]
      fault.wrong("picture: no live tensor of worker rank %d is called %s%s", answer.rank, name,
         near and (" (did you mean %s?)"):format(near.name) or "")
   end
   live.rank = answer.rank
   return live
end

-- Everything that was asked for, or all of it: { { kind, data }, ... }.
local function gather(args, plan, model)
   local only = (args.parameter or args.tensor) and not (args.out and args.out:find("%.html$"))
   local data = {}
   if not only then
      local places = require "sluice.simulate.cost".places(model)
      places.cells = args.out and CELLS or math.max(8, math.min(CELLS, native.columns(STDOUT) - 24))
      data.traffic = plan:traffic(places)
      data.prediction = predict(data.traffic, model)
   end
   local name, live = args.parameter, args.tensor
   if not only and (args.out or args.json) and not (name and live) then
      local some, where = interesting(plan)
      name, live = name or some, live or where
   end
   data.parts = name and parts_of(plan, name)
   data.live = live and live_of(plan, live, args.rank)
   return data
end

local function figures_of(data)
   local list = {}
   if data.traffic then
      list[1], list[2], list[3] = ways.draw(data.prediction), timeline.draw(data.prediction), matrix.draw(data.traffic)
   end
   list[#list + 1] = data.parts and parameter.draw(data.parts) or nil
   list[#list + 1] = data.live and coverage.draw(data.live) or nil
   return list
end

-- ---- where it goes ----

local function summary(plan, data)
   local text = ("%s to %s."):format(units.count(plan.trainers, "trainer"), units.count(plan.workers, "worker"))
   if data.traffic then
      local row = data.prediction.strategies[1]
      text = text .. (" %d parameters move, %s; a trainer sends at most %s, a worker receives at most %s."):format(data.traffic.parameters,
         units.bytes(data.traffic.whole), units.bytes(row.sent.most), units.bytes(row.received.most))
   end
   return text
end

local function write_file(path, text)
   local good, problem, unopened = file.write(path, text)
   if not good then
      fault.raise(unopened and 2 or 1, "picture: %s", problem)
   end
   io.stdout:write(("wrote %s, %s\n"):format(units.plain(path), units.bytes(#text)))
end

-- Names from outside must not speak to the terminal.
local function plain(value)
   if type(value) == "table" then
      for key, item in pairs(value) do
         value[key] = plain(item)
      end
      return value
   end
   return type(value) == "string" and value:gsub("[%z\1-\31\127]", "?") or value
end

local function write_text(plan, data)
   plain(data.parts)
   plain(data.live)
   local columns, colour = native.columns(STDOUT), native.is_terminal(STDOUT) and not os.getenv("NO_COLOR")
   local blocks = {}
   local function block(title, lines)
      blocks[#blocks + 1] = (title and title .. "\n\n" or "") .. table.concat(lines, "\n") .. "\n"
   end
   if data.traffic then
      block(plan.title .. ": " .. summary(plan, data), ways.text(data.prediction, columns, colour))
      block("How long links are busy, " .. units.time(data.prediction.strategies[1].seconds) .. " in all",
         timeline.text(data.prediction, columns, colour))
      block("Who sends how much to whom", matrix.text(data.traffic, columns, colour))
   end
   if data.parts then
      block(nil, parameter.text(data.parts, columns, colour))
   end
   if data.live then
      block(nil, coverage.text(data.live, columns, colour))
   end
   io.stdout:write(table.concat(blocks, "\n"))
end

local LISTS = {}
for key in ("targets sources workers pieces shape box ranks unwritten cleared writes shares_memory_with loaded_by source live")
   :gmatch("%S+") do
   LISTS[key] = true
end

-- Marks lists, so that empty ones are written as such.
local function marked(value, key)
   if type(value) ~= "table" then
      return value
   end
   for name, item in pairs(value) do
      value[name] = marked(item, name)
   end
   return (LISTS[key] or type(key) == "number") and (#value > 0 or not next(value)) and json.list(value) or value
end

local function write_json(plan, data)
   local rows = {}
   for i, row in ipairs(data.traffic and data.traffic.matrix or {}) do
      rows[i] = json.list(row)
   end
   io.stdout:write(json.encode({
      model = plan.title, trainers = plan.trainers, workers = plan.workers, matrix = data.traffic and json.list(rows),
      seconds = data.prediction and data.prediction.strategies[1].seconds, parameter = marked(data.parts), live = marked(data.live),
   }), "\n")
end

function picture.run(args)
   local kind = args.out and args.out:match("%.(%a+)$")
   if args.out and kind ~= "html" and kind ~= "svg" then
      fault.wrong("picture: --out (%s) must end in .html or .svg", args.out)
   end
   local from, model = source.load(args), simulate.model(args)
   local plan = planned.open(from, from:worker("picture", args.rank))
   if plan.problem then
      fault.wrong("%s", plan.problem)
   end
   local data = gather(args, plan, model)
   if args.json then
      write_json(plan, data)
   elseif kind == "html" then
      write_file(args.out, page.html(plan.title, summary(plan, data), figures_of(data)))
   elseif kind == "svg" then
      write_file(args.out, page.svg(plan.title, figures_of(data)))
   else
      write_text(plan, data)
   end
   return 0
end

return picture
