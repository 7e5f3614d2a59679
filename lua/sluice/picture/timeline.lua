--- The simulated timeline of the plan: how long each GPU's link and each node's network is busy in an update.

local svg = require "sluice.picture.svg"
local terminal = require "sluice.picture.terminal"
local units = require "sluice.cli.units"
local words = require "sluice.picture.words"

local timeline = {}

local LEFT, WIDE, TOP, ROWS = 190, 470, 30, 40

local kinds = {
   { key = "link_out", title = "link out of GPU", colour = "c1", hue = 1 },
   { key = "link_in", title = "link into GPU", colour = "c4", hue = 4 },
   { key = "card_out", title = "network out of node", colour = "c2", hue = 2 },
   { key = "card_in", title = "network into node", colour = "c7", hue = 6 },
}

-- The links of one kind that are used, in runs of neighbours where there are more than `most`:
-- { first, last, least, mean, most }, seconds.
local function grouped(busy, kind, most)
   local used, list = {}, {}
   for i, seconds in ipairs(busy) do
      if seconds > 0 then
         used[#used + 1] = { i - 1, seconds }
      end
   end
   local count = math.min(#used, most)
   for group = 1, count do
      local from, to = math.floor((group - 1) * #used / count) + 1, math.floor(group * #used / count)
      local row = { kind = kind, first = used[from][1], last = used[to][1], least = math.huge, most = 0, sum = 0, count = to - from + 1 }
      for i = from, to do
         row.least, row.most = math.min(row.least, used[i][2]), math.max(row.most, used[i][2])
         row.sum = row.sum + used[i][2]
      end
      row.mean = row.sum / row.count
      list[group] = row
   end
   return list, #used
end

local function rows_of(row, most)
   local busy, kinds_used, list, all = row.phases[1].busy, 0, {}, 0
   for _, kind in ipairs(kinds) do
      kinds_used = kinds_used + (#grouped(busy[kind.key], kind, 1) > 0 and 1 or 0)
   end
   for _, kind in ipairs(kinds) do
      local groups, used = grouped(busy[kind.key], kind, math.max(1, math.floor(most / math.max(1, kinds_used))))
      all = all + used
      for _, group in ipairs(groups) do
         list[#list + 1] = group
      end
   end
   return list, all
end

local function name_of(row)
   return row.kind.title .. " " .. (row.first == row.last and ("%d"):format(row.first) or ("%d-%d"):format(row.first, row.last))
end

local function tip_of(row)
   if row.count == 1 then
      return ("%s: busy for %s"):format(name_of(row), units.time(row.most))
   end
   return ("%s (%d in use): busy for %s at least, %s on average, %s at most"):format(name_of(row), row.count, units.time(row.least),
      units.time(row.mean), units.time(row.most))
end

local function caption(list, all)
   local text = "A link is drawn busy from the start; after that it waits for the slowest."
   if all > #list then
      text = text .. (" %d links in groups of neighbours: full up to the least busy of a group, pale up to the busiest."):format(all)
   end
   return text
end

--- Draws the first row of a prediction, the plan's own.
function timeline.draw(result)
   local row, canvas = result.strategies[1], svg.new()
   local list, all = rows_of(row, ROWS)
   local high = #list <= 16 and 22 or 13
   local total, bottom = math.max(row.seconds, 1e-9), TOP + math.max(1, #list) * high
   local step, at = words.tick(total, 6), 0
   while at <= total * 1.0001 do
      local x = LEFT + WIDE * at / total
      canvas:line(x, TOP - 4, x, bottom, "rule")
      canvas:text(x, TOP - 9, words.mark(at), { class = "quiet small", anchor = "middle" })
      at = at + step
   end
   for i, one in ipairs(list) do
      local y = TOP + (i - 1) * high
      canvas:text(LEFT - 8, y + high / 2 + 4, name_of(one), { class = "small", anchor = "end" })
      canvas:rect(LEFT, y + high * 0.15, WIDE, high * 0.7, { class = "panel faint" })
      canvas:rect(LEFT, y + high * 0.15, WIDE * one.most / total, high * 0.7, { class = one.kind.colour .. " faint", tip = tip_of(one) })
      canvas:rect(LEFT, y + high * 0.15, WIDE * one.least / total, high * 0.7, { class = one.kind.colour, tip = tip_of(one) })
      canvas:text(LEFT + WIDE + 6, y + high / 2 + 4, units.time(one.most), { class = "quiet small" })
   end
   if #list == 0 then
      canvas:text(LEFT, TOP + high / 2 + 4, "nothing leaves a GPU", { class = "quiet" })
   end
   return { title = ("One update: %s, waiting longest for %s"):format(units.time(row.seconds), row.bottleneck.name),
      caption = caption(list, all), width = LEFT + WIDE + 80, height = bottom + 8, canvas = canvas }
end

--- The same in characters.
function timeline.text(result, columns, colour)
   local row, lines = result.strategies[1], {}
   local list, all = rows_of(row, 24)
   local wide, total = math.max(10, columns - 40), math.max(row.seconds, 1e-9)
   for _, one in ipairs(list) do
      local bar, used = terminal.bar(one.most / total, wide)
      lines[#lines + 1] = ("%-28s%s%s %s"):format(name_of(one), terminal.hue(bar, one.kind.hue, colour), ("·"):rep(wide - used),
         units.time(one.most))
   end
   lines[#lines + 1] = all > #list and ("%d links in groups of neighbours, each bar the busiest of its group"):format(all) or nil
   return lines
end

return timeline
