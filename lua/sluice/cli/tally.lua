--- Keeps the books of a run: takes the events of all ranks, says when a step is done on all of them, and sums up.

local units = require "sluice.cli.units"

local tally = {}
tally.__index = tally

--- @param here the world
-- @param plan the plan of the first worker, as plan.make gives it
-- @param show the display (sluice.cli.progress)
-- @param verify whether workers verify
-- @param save whether they save what they hold
function tally.new(here, plan, show, verify, save)
   return setmetatable({
      here = here, plan = plan, show = show, verify = verify, save = save,
      ready = 0, init_s = 0, prepare_s = 0, roads = {}, update = {}, of_rank = {}, received = 0, checked = 0, saved = 0, savers = 0,
      expected = plan.worker_bytes * here.workers,
   }, tally)
end

local function of_update(self, number)
   local found = self.update[number]
   if not found then
      found = { number = number, updated = 0, verified = 0, from = 0, to = 0, bytes = 0, checked = 0, fill_s = 0, verify_s = 0, done = {} }
      self.update[number] = found
   end
   return found
end

local function title(self, update)
   return ("update %d of %d"):format(update.number, self.here.deployment.updates)
end

local take = {}

function take.ready(self, rank, event)
   self.ready = self.ready + 1
   self.init_s = math.max(self.init_s, event.seconds)
   for way, bytes in pairs(event.plan and event.plan.sent_by or {}) do
      self.sent_by = self.sent_by or {}
      self.sent_by[way] = (self.sent_by[way] or 0) + bytes
   end
   if event.plan and rank >= self.here.trainers then
      self.roads = event.plan.roads
      self.staging_bytes = event.plan.staging_bytes
   end
   if self.ready == self.here.size then
      self.show:line("%s ready in %s", units.count(self.ready, "rank"), units.seconds(self.init_s))
   else
      self.show:status("%d of %d ranks ready", self.ready, self.here.size)
   end
end

function take.prepared(self, _, event)
   self.prepare_s = math.max(self.prepare_s, event.seconds)
end

function take.filled(self, _, event)
   local update = of_update(self, event.update)
   update.fill_s = math.max(update.fill_s, event.seconds)
   update.began = self.now() -- the last rank's counts: from then on bytes move
end

function take.progress(self, rank, event)
   local update = of_update(self, event.update)
   update.bytes = update.bytes - (update.done[rank] or 0) + event.done
   update.done[rank] = event.done
   update.began = update.began or self.now()
   self.show:bar(title(self, update), update.bytes, self.expected, self.now() - update.began)
end

-- Workers may have verified before the last trainer says that it is done.
local function tell_verified(self, update)
   if update.verified == self.here.workers and update.updated == self.here.size then
      self.show:line("%s: verified, every live byte of %s (%s)", title(self, update), units.count(self.here.workers, "worker"),
         units.bytes(update.checked))
   end
end

function take.updated(self, rank, event)
   local update, own = of_update(self, event.update), self.of_rank[rank] or {}
   self.of_rank[rank] = own
   own[event.update] = { bytes = event.bytes, seconds = event.to - event.from, moving = event.moving }
   if rank >= self.here.trainers then
      update.bytes = update.bytes - (update.done[rank] or 0) + event.bytes
      update.done[rank] = event.bytes
   end
   update.updated = update.updated + 1
   -- From when the last rank came until the last one was done: before, ranks still write or check values.
   update.from = math.max(update.from, event.from)
   update.to = math.max(update.to, event.to)
   if update.updated == self.here.size then
      update.seconds = update.to - update.from
      self.received = self.received + update.bytes
      self.show:line("%s: %s in %s, %.2f GB/s", title(self, update), units.bytes(update.bytes), units.seconds(update.seconds),
         units.rate(update.bytes, update.seconds))
      tell_verified(self, update)
   end
end

function take.verified(self, _, event)
   local update = of_update(self, event.update)
   update.verified = update.verified + 1
   update.checked = update.checked + event.bytes
   update.verify_s = math.max(update.verify_s, event.seconds)
   if update.verified == self.here.workers then
      self.checked = self.checked + update.checked
      tell_verified(self, update)
   else
      self.show:status("%s: verified %d of %d workers", title(self, update), update.verified, self.here.workers)
   end
end

function take.saved(self, _, event)
   self.savers = self.savers + 1
   self.saved = self.saved + event.bytes
   if self.savers == self.here.workers then
      self.show:line("saved %s: what %s hold", units.bytes(self.saved), units.count(self.savers, "worker"))
   end
end

function take.log(self, rank, event)
   self.show:warn(("%s: %s: %s"):format(event.level, self.here:role(rank), event.text))
end

--- Takes one event of a rank.
function tally:event(rank, event)
   local taker = take[event.event]
   if taker then
      taker(self, rank, event)
   end
end

--- Whether every update came to every rank and, where asked, every worker verified each and saved the last.
function tally:complete()
   for number = 1, self.here.deployment.updates do
      local update = self.update[number]
      if not update or update.updated < self.here.size or (self.verify and update.verified < self.here.workers) then
         return false
      end
   end
   return not self.save or self.savers == self.here.workers
end

--- What each rank moved, in rank order: { rank, role, bytes = of an update, update_seconds, moving_seconds = one an update }; moving
-- leaves out how an update begins and ends.
function tally:ranks()
   local list = {}
   for rank = 0, self.here.size - 1 do
      local item = { rank = rank, role = self.here:role(rank), bytes = 0, update_seconds = {}, moving_seconds = {} }
      for number, own in ipairs(self.of_rank[rank]) do
         item.bytes, item.update_seconds[number], item.moving_seconds[number] = own.bytes, own.seconds, own.moving
      end
      list[rank + 1] = item
   end
   return list
end

--- Seconds of each phase, summed over updates; a phase lasts as long as on its slowest rank.
function tally:seconds()
   local sums, list = { prepare = self.prepare_s, init = self.init_s, fill = 0, update = 0, verify = 0 }, {}
   for number = 1, self.here.deployment.updates do
      local update = self.update[number]
      sums.fill = sums.fill + update.fill_s
      sums.verify = sums.verify + update.verify_s
      sums.update = sums.update + update.seconds
      list[number] = update.seconds
   end
   return sums, list
end

return tally
