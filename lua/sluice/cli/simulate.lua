--- sluice simulate: what an update of a deployment moves over each rank, link and card, and how long it takes by a cost model.

local native = require "sluice.native"
local cost = require "sluice.simulate.cost"
local fault = require "sluice.cli.fault"
local json = require "sluice.cli.json"
local predict = require "sluice.simulate".predict
local source = require "sluice.cli.source"
local units = require "sluice.cli.units"

local simulate = {
   name = "simulate", summary = "Predicts an update's bytes a rank and link, and its time, beside other ways to do it.",
   example = "sluice simulate examples/deployments/qwen3-235b.lua --link-domain 72 --nic-gb-s 200\n\n"
      .. "Ranks fill GPUs in world order, GPUs fill link domains and nodes. What two GPUs of a domain exchange loads the link of\n"
      .. "both, anything else the network cards of both nodes; a phase takes what its busiest link takes. lua/SIMULATE.md has the\n"
      .. "whole model, its predictions beside measured runs, and what --json prints.",
}

local function number(parameter)
   return function(text)
      local value = tonumber(text)
      local most = parameter.most or (parameter.whole and 2 ^ 31 - 1 or 1e9)
      if not value or not (value > 0 and value <= most) or parameter.whole and value % 1 ~= 0 then
         return nil, ("'%s' is no %s above 0%s"):format(text, parameter.whole and "whole number" or "number",
            value and value > most and (" and at most %.0f"):format(most) or "")
      end
      return value
   end
end

--- Adds the parameters of the cost model to a command's parser.
function simulate.model_options(parser)
   for _, parameter in ipairs(cost.parameters) do
      parser:option("--" .. parameter[1]:gsub("_", "-"), ("%s %g when not given."):format(parameter[3], parameter[2]))
         :target("model_" .. parameter[1]):convert(number(parameter)):argname("<n>")
   end
end

function simulate.configure(parser)
   source.arguments(parser)
   simulate.model_options(parser)
   parser:flag("--json", "Print one JSON object on standard output.")
end

--- The cost model that arguments give.
function simulate.model(args)
   local given = {}
   for _, parameter in ipairs(cost.parameters) do
      given[parameter[1]] = args["model_" .. parameter[1]]
   end
   return cost.model(given)
end

--- The traffic of a plan.
-- @param from of sluice.cli.source
-- @param model of simulate.model
-- @param[opt] cells the most rows and columns of its matrix
function simulate.traffic(from, model, cells)
   local places = cost.places(model)
   places.cells = cells
   local traffic = fault.check(native.traffic(from:job(from:worker "simulate"), places))
   traffic.staging_slots = from.staging_slots or 2
   return traffic
end

-- ---- text ----

local function wait_text(row)
   local what = row.bottleneck.name == row.phase and row.phase or row.phase .. ": " .. row.bottleneck.name
   return what .. ", " .. units.time(row.bottleneck.seconds)
end

local function table_of(result, header, cells)
   local rows = { header }
   for _, row in ipairs(result.strategies) do
      local items = cells(row)
      table.insert(items, 1, row.title)
      rows[#rows + 1] = items
   end
   return units.columns(rows, "")
end

local function most(spread)
   return ("%s (%.2f)"):format(units.bytes(spread.most), spread.imbalance)
end

local function write(here, model, traffic, result)
   local lines = {
      ("%s: %s to %s on %s and %s; %d parameters, %s"):format(here.title, units.count(here.trainers, "trainer"),
         units.count(here.workers, "worker"), units.count(result.places.gpus, "GPU"), units.count(result.places.nodes, "node"),
         traffic.parameters, units.bytes(traffic.whole)),
      ("links of %g GB/s (NCCL: %g) among %d GPUs, %g GB/s of network a node, each way"):format(model.link_gb_s, model.nccl_gb_s,
         model.link_domain, model.nic_gb_s),
      "",
   }
   local function block(header, cells)
      for _, line in ipairs(table_of(result, header, cells)) do
         lines[#lines + 1] = line
      end
      lines[#lines + 1] = ""
   end
   block({ "way", "time", "waits longest for" }, function(row)
      return { units.time(row.seconds), wait_text(row) }
   end)
   local sides = { "sent", "received", "link_out", "link_in", "card_out", "card_in" }
   block({ "most (over mean)", "a trainer sends", "a worker receives", "link out", "link in", "network out", "network in" },
      function(row)
         local items = {}
         for i, side in ipairs(sides) do
            items[i] = most(row[side])
         end
         return items
      end)
   block({ "most", "peers of a trainer", "of a worker", "staging of a trainer", "of a worker" }, function(row)
      return { ("%d"):format(row.peers.trainer.most), ("%d"):format(row.peers.worker.most), units.bytes(row.staging.trainer),
         units.bytes(row.staging.worker) }
   end)
   lines[#lines] = nil
   io.stdout:write(table.concat(lines, "\n"), "\n")
end

-- ---- JSON ----

local function row_json(row, all)
   local phases = {}
   for i, one in ipairs(row.phases) do
      phases[i] = { name = one.name, seconds = one.seconds, bottleneck = one.bottleneck.name }
   end
   local object = {
      name = row.name, title = row.title, seconds = row.seconds, phases = json.list(phases), bottleneck = row.bottleneck,
      phase = row.phase, sent = row.sent, received = row.received, link_out = row.link_out, link_in = row.link_in,
      network_out = row.card_out, network_in = row.card_in, peers = row.peers, staging_bytes = row.staging,
   }
   if all then
      object.bytes = {
         sent = json.list(row.flow.sent), received = json.list(row.flow.received), link_out = json.list(row.flow.link_out),
         link_in = json.list(row.flow.link_in), network_out = json.list(row.flow.card_out),
         network_in = json.list(row.flow.card_in),
      }
   end
   return object
end

local function write_json(here, model, traffic, result)
   local rows = {}
   for i, row in ipairs(result.strategies) do
      rows[i] = row_json(row, row.name == "sluice")
   end
   io.stdout:write(json.encode({
      model = here.title, trainers = here.trainers, workers = here.workers, gpus = result.places.gpus,
      nodes = result.places.nodes, parameters = traffic.parameters, bytes = traffic.whole, cost = model, strategies = json.list(rows),
      peak_bytes = native.peak(),
   }), "\n")
end

function simulate.run(args)
   local from, model = source.load(args), simulate.model(args)
   local traffic = simulate.traffic(from, model)
   local result = predict(traffic, model)
   if args.json then
      write_json(from, model, traffic, result)
   else
      write(from, model, traffic, result)
   end
   return 0
end

return simulate
