--- What each rank, link and card carries in one phase of a strategy, and which of them is the slowest.

local cost = require "sluice.simulate.cost"

local flow = {}
flow.__index = flow

local function zeros(count)
   local list = {}
   for i = 1, count do
      list[i] = 0
   end
   return list
end

--- An empty one for a world.
function flow.new(model, world)
   local gpus = math.floor((world - 1) / model.ranks_per_gpu) + 1
   local nodes = math.floor((gpus - 1) / model.node) + 1
   return setmetatable({
      model = model, world = world, gpus = gpus, nodes = nodes, sent = zeros(world), received = zeros(world),
      link_out = zeros(gpus), link_in = zeros(gpus), card_out = zeros(nodes), card_in = zeros(nodes),
   }, flow)
end

local function add(list, at, bytes)
   list[at + 1] = list[at + 1] + bytes
end

--- What goes from one rank to another.
function flow:move(from, to, bytes)
   local a, b = cost.gpu_of(self.model, from), cost.gpu_of(self.model, to)
   local road = cost.road(self.model, a, b)
   add(self.sent, from, bytes)
   add(self.received, to, bytes)
   if road == "link" then
      add(self.link_out, a, bytes)
      add(self.link_in, b, bytes)
   elseif road == "card" then
      add(self.card_out, cost.node_of(self.model, a), bytes)
      add(self.card_in, cost.node_of(self.model, b), bytes)
   end
end

local function ranks_text(first, last, world)
   last = math.min(last, world - 1)
   return first == last and ("rank %d"):format(first) or ("ranks %d-%d"):format(first, last)
end

--- Words for a link or card: "link out of GPU 3 (rank 3)".
function flow:name(kind, index)
   local model = self.model
   local of_gpu = kind:sub(1, 4) == "link"
   local width = model.ranks_per_gpu * (of_gpu and 1 or model.node)
   local preposition = kind:find("out", 1, true) and "out of" or "into"
   return ("%s %s %s %d (%s)"):format(of_gpu and "link" or "network", preposition, of_gpu and "GPU" or "node", index,
      ranks_text(index * width, (index + 1) * width - 1, self.world))
end

--- The slowest link or card: { kind, index, name, bytes, seconds }, and all of them with their seconds by kind.
-- @param link_gb_s the rate of links
-- @param[opt] extra function(kind, index) -> seconds beside the bytes
function flow:slowest(link_gb_s, extra)
   local found = { kind = "none", index = 0, name = "nothing leaves a GPU", bytes = 0, seconds = 0 }
   local busy = {}
   for _, kind in ipairs({ "link_out", "link_in", "card_out", "card_in" }) do
      local rate, list = kind:sub(1, 4) == "link" and link_gb_s or self.model.nic_gb_s, {}
      for i, bytes in ipairs(self[kind]) do
         list[i] = cost.seconds(bytes, rate) + (extra and extra(kind, i - 1) or 0)
         if list[i] > found.seconds then
            found = { kind = kind, index = i - 1, name = self:name(kind, i - 1), bytes = bytes, seconds = list[i] }
         end
      end
      busy[kind] = list
   end
   return found, busy
end

--- The sum of `count` of a list's numbers, their most and where, and their mean; imbalance is most / mean, 1 where nothing moves.
-- @param list the numbers
-- @param first how many stand before the first one
-- @param count how many there are
-- @param[opt] used whether the mean is only over those above 0
function flow.spread(list, first, count, used)
   local sum, most, at, counted = 0, 0, first, 0
   for i = first + 1, first + count do
      sum = sum + list[i]
      counted = counted + ((list[i] > 0 or not used) and 1 or 0)
      if list[i] > most then
         most, at = list[i], i - 1
      end
   end
   local mean = counted > 0 and sum / counted or 0
   return { total = sum, most = most, at = at, mean = mean, imbalance = mean > 0 and most / mean or 1 }
end

return flow
