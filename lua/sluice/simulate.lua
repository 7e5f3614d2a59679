--- What an update would move and how long it would take, by this plan and by the ways of others. Pure: the traffic that
-- native.traffic counts in, tables out. The cost model is sluice.simulate.cost's; lua/SIMULATE.md describes the result.

local cost = require "sluice.simulate.cost"
local flow = require "sluice.simulate.flow"

local simulate = {}

local function phase(name, seconds, bottleneck, busy)
   return { name = name, seconds = seconds, bottleneck = bottleneck, busy = busy }
end

-- A phase that waits for no link.
local function work(kind, name, seconds)
   return phase(name, seconds, { kind = kind, index = 0, name = name, bytes = 0, seconds = seconds })
end

-- A strategy from its phases: it takes their sum, and the longest says what it waits for.
local function strategy(name, title, phases)
   local seconds, longest = 0, phases[1]
   for _, one in ipairs(phases) do
      seconds = seconds + one.seconds
      longest = one.seconds > longest.seconds and one or longest
   end
   return {
      name = name, title = title, seconds = seconds, phases = phases, bottleneck = longest.bottleneck, phase = longest.name,
   }
end

-- ---- ours ----

-- The traffic of the plan as a flow.
local function planned(traffic, model)
   local moved = flow.new(model, traffic.trainers + traffic.workers)
   for rank, bytes in ipairs(traffic.rank) do
      (rank <= traffic.trainers and moved.sent or moved.received)[rank] = bytes
   end
   moved.link_out, moved.link_in = traffic.link_out, traffic.link_in
   moved.card_out, moved.card_in = traffic.card_out, traffic.card_in
   return moved
end

-- Sums over the ranks of each GPU, of ranks [first, last] counted from 1.
local function by_gpu(list, model, gpus, first, last)
   local sums = {}
   for i = 1, gpus do
      sums[i] = 0
   end
   for rank = first, last do
      local gpu = cost.gpu_of(model, rank - 1) + 1
      sums[gpu] = sums[gpu] + list[rank]
   end
   return sums
end

-- The GPU that is kept longest by what it brings to the network, or takes from it.
local function slowest_at_cards(traffic, model, moved)
   local world, found = traffic.trainers + traffic.workers, nil
   for _, side in ipairs({ { 1, traffic.trainers, "out of" }, { traffic.trainers + 1, world, "into" } }) do
      local bytes = by_gpu(traffic.card, model, moved.gpus, side[1], side[2])
      local peers = by_gpu(traffic.card_peers, model, moved.gpus, side[1], side[2])
      for gpu = 1, moved.gpus do
         local messages = peers[gpu] + math.floor(bytes[gpu] / cost.MESSAGE)
         local seconds = cost.seconds(bytes[gpu], model.nccl_gb_s) + messages * model.message_us * 1e-6
         if not found or seconds > found.seconds then
            found = { kind = "messages", index = gpu - 1, bytes = bytes[gpu], seconds = seconds,
               name = ("messages %s GPU %d"):format(side[3], gpu - 1) }
         end
      end
   end
   return found
end

local function ours(traffic, model)
   local moved = planned(traffic, model)
   local copies = by_gpu(traffic.copies, model, moved.gpus, 1, traffic.trainers)
   local slowest, busy = moved:slowest(model.link_gb_s, function(kind, gpu)
      return kind == "link_out" and copies[gpu + 1] * model.copy_us * 1e-6 or 0
   end)
   local messages = slowest_at_cards(traffic, model, moved)
   if messages.seconds > slowest.seconds then
      slowest = messages
   end
   local row = strategy("sluice", "this plan", {
      phase("copies", slowest.seconds, slowest, busy), phase("start", model.start_us * 1e-6, slowest),
   })
   local worker = flow.spread(traffic.card, traffic.trainers, traffic.workers).most > 0 and 2 * cost.MESSAGE or 0
   local trainer = flow.spread(traffic.card, 0, traffic.trainers).most > 0 and 2 * cost.MESSAGE or 0
   row.staging = { trainer = trainer, worker = worker + (traffic.staging_slots or 2) * traffic.largest_full }
   return row, moved
end

-- What goes to several replicas sent to the first of them, and on from worker to worker. As many hops as it takes begin one after the other.
-- Nothing where that takes no tenth off what trainers send.
local function forwarded(traffic, model)
   local load, moved = traffic.forwarded, planned(traffic, model)
   for rank = 1, load and traffic.trainers or 0 do
      moved.sent[rank] = load.rank[rank]
   end
   local received, sent = flow.spread(moved.received, traffic.trainers, traffic.workers), flow.spread(moved.sent, 0, traffic.trainers)
   if sent.total > 0.9 * received.total then
      return nil
   end
   moved.link_out, moved.link_in, moved.card_out, moved.card_in = load.link_out, load.link_in, load.card_out, load.card_in
   local copies = by_gpu(load.copies, model, moved.gpus, 1, traffic.trainers + traffic.workers)
   local slowest, busy = moved:slowest(model.link_gb_s, function(kind, gpu)
      return kind == "link_out" and copies[gpu + 1] * model.copy_us * 1e-6 or 0
   end)
   local hops = math.ceil(received.total / sent.total)
   local row = strategy("forwarded", "forwarded by workers", {
      phase("copies", slowest.seconds, slowest, busy), phase("start", hops * model.start_us * 1e-6, slowest),
   })
   row.staging = { trainer = 0, worker = (traffic.staging_slots or 2) * traffic.largest_full }
   return row, moved
end

-- ---- one collective a parameter ----

local function reshard(traffic, model)
   local link, card, packed, largest = 0, 0, 0, 0
   for _, kind in ipairs(traffic.kinds) do
      local over_link, over_card = cost.seconds(kind.link, model.nccl_gb_s), cost.seconds(kind.card, model.nic_gb_s)
      if over_card > over_link then
         card = card + kind.count * over_card
      else
         link = link + kind.count * over_link
      end
      packed = packed + 2 * kind.count * kind.rank * model.ranks_per_gpu
      largest = math.max(largest, kind.rank)
   end
   local row = strategy("reshard", "per-parameter reshard", {
      work("link", "links of each parameter", link), work("card", "network of each parameter", card),
      work("calls", "calls", traffic.parameters * model.reshard_us * 1e-6),
      work("pack", "pack and unpack", cost.seconds(packed, model.pack_gb_s)),
   })
   row.staging = { trainer = 2 * largest, worker = 2 * largest }
   return row, planned(traffic, model)
end

-- ---- through rank 0 ----

local function gathering(traffic, model)
   local moved, any = flow.new(model, traffic.trainers + traffic.workers), 0
   for trainer, bytes in ipairs(traffic.gathered) do
      if bytes > 0 then
         moved:move(trainer - 1, 0, bytes)
         any = any + bytes
      end
   end
   return moved, any > 0
end

-- From rank 0 to the first worker, from there to the next, and so on.
local function chain(traffic, model)
   local moved, before = flow.new(model, traffic.trainers + traffic.workers), 0
   for worker = traffic.trainers, traffic.trainers + traffic.workers - 1 do
      moved:move(before, worker, traffic.whole)
      before = worker
   end
   return moved
end

local function both(a, b)
   for _, key in ipairs({ "sent", "received", "link_out", "link_in", "card_out", "card_in" }) do
      for i, bytes in ipairs(b[key]) do
         a[key][i] = a[key][i] + bytes
      end
   end
   return a
end

local function through_rank_0(traffic, model, name, title, calls, more)
   local gathered, gathers = gathering(traffic, model)
   local sent = chain(traffic, model)
   local first, first_busy = gathered:slowest(model.nccl_gb_s)
   local second, second_busy = sent:slowest(model.nccl_gb_s)
   local called = calls * (gathers and 2 or 1) * model.collective_us * 1e-6
   local phases = {
      phase("gather", first.seconds, first, first_busy), phase("broadcast", second.seconds, second, second_busy),
      work("calls", "calls", called),
   }
   if more then
      phases[#phases + 1] = work("pack", "pack and unpack", more)
   end
   local row = strategy(name, title, phases)
   return row, both(gathered, sent)
end

local function broadcast(traffic, model)
   local row, moved = through_rank_0(traffic, model, "broadcast", "gather and broadcast", traffic.parameters)
   row.staging = { trainer = traffic.largest, worker = traffic.largest }
   return row, moved
end

local function packed(traffic, model)
   local chunk = model.chunk_mib * 2 ^ 20
   local hidden = model.chunk_buffers == 2
   local exposed = hidden and math.min(chunk, traffic.whole) or traffic.whole
   local row, moved = through_rank_0(traffic, model, "packed", "packed broadcast", math.ceil(traffic.whole / chunk),
      2 * cost.seconds(exposed, model.pack_gb_s))
   local staging = math.min(model.chunk_buffers * chunk, traffic.whole) + traffic.largest
   row.staging = { trainer = staging, worker = staging - traffic.largest }
   return row, moved
end

-- ---- all ----

local function peers(traffic, name)
   local list, T, N = {}, traffic.trainers, traffic.workers
   if name == "sluice" or name == "reshard" or name == "forwarded" then
      list = traffic.peers
   else
      for rank = 0, T + N - 1 do
         local gathers = rank < T and rank > 0 and traffic.gathered[rank + 1] > 0
         list[rank + 1] = (rank >= T and (rank < T + N - 1 and 2 or 1)) or (gathers and 1 or 0)
      end
      list[1] = 1
      for rank = 2, T do
         list[1] = list[1] + (traffic.gathered[rank] > 0 and 1 or 0)
      end
   end
   return { trainer = flow.spread(list, 0, T), worker = flow.spread(list, T, N) }
end

--- Predicts an update.
-- @param traffic what native.traffic gives; `staging_slots` may say the deployment's
-- @param model of cost.model
-- @return { strategies = rows, places = { gpus =, nodes = } }; the last row, forwarded, only where several workers get the same. A row
--    has name, title, seconds, phases, bottleneck, sent (of trainers), received (of workers), link_out, link_in, card_out, card_in
--    (each total, most, at, mean, imbalance), peers, staging, flow (the bytes of every rank, link and card)
function simulate.predict(traffic, model)
   local rows, gpus, nodes = {}, nil, nil
   for i, make in ipairs({ ours, reshard, broadcast, packed, forwarded }) do
      local row, moved = make(traffic, model)
      if not row then
         break
      end
      row.flow = moved
      row.sent = flow.spread(moved.sent, 0, traffic.trainers)
      row.received = flow.spread(moved.received, traffic.trainers, traffic.workers)
      for _, key in ipairs({ "link_out", "link_in", "card_out", "card_in" }) do
         row[key] = flow.spread(moved[key], 0, #moved[key], true)
      end
      row.peers = peers(traffic, row.name)
      rows[i] = row
      gpus, nodes = moved.gpus, moved.nodes
   end
   return { strategies = rows, places = { gpus = gpus, nodes = nodes } }
end

return simulate
