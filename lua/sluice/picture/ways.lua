--- The ways to bring weights across, each a bar of its phases: what sluice.simulate predicts.

local style = require "sluice.picture.style"
local svg = require "sluice.picture.svg"
local terminal = require "sluice.picture.terminal"
local units = require "sluice.cli.units"
local words = require "sluice.picture.words"

local ways = {}

local LEFT, WIDE, HIGH, TOP = 150, 480, 34, 10

-- The phases that take time, and every phase's colour by its name.
local function phases_of(rows)
   local colours, names = {}, {}
   for _, row in ipairs(rows) do
      for _, phase in ipairs(row.phases) do
         if phase.seconds > 0 and not colours[phase.name] then
            names[#names + 1] = phase.name
            colours[phase.name] = #names
         end
      end
   end
   return names, colours
end

local function slowest(rows)
   local most = 0
   for _, row in ipairs(rows) do
      most = math.max(most, row.seconds)
   end
   return most
end

local function draw_axis(canvas, most, bottom)
   local step = words.tick(most, 6)
   local at = 0
   while at <= most * 1.0001 do
      local x = LEFT + WIDE * at / most
      canvas:line(x, TOP, x, bottom, "rule")
      canvas:text(x, bottom + 14, words.mark(at), { class = "quiet small", anchor = "middle" })
      at = at + step
   end
end

--- Draws the rows of a prediction.
function ways.draw(result)
   local rows, canvas = result.strategies, svg.new()
   local names, colours = phases_of(rows)
   local most = math.max(slowest(rows), 1e-9)
   local bottom = TOP + #rows * HIGH
   draw_axis(canvas, most, bottom)
   for i, row in ipairs(rows) do
      local y, x = TOP + (i - 1) * HIGH, LEFT
      canvas:text(LEFT - 8, y + HIGH / 2 + 4, row.title, { anchor = "end" })
      for _, phase in ipairs(row.phases) do
         local wide = WIDE * phase.seconds / most
         if phase.seconds > 0 then
            canvas:rect(x, y + 6, wide, HIGH - 12, { class = "cell " .. style.colour(colours[phase.name], #names),
               tip = ("%s, %s: %s, waits for %s"):format(row.title, phase.name, units.time(phase.seconds), phase.bottleneck.name) })
         end
         x = x + wide
      end
      canvas:text(x + 6, y + HIGH / 2 + 4, units.time(row.seconds), { class = i == 1 and "" or "quiet" })
   end
   local x, y = LEFT, bottom + 30
   for i, name in ipairs(names) do
      local wide = 30 + 6.6 * #name
      if x > LEFT and x + wide > LEFT + WIDE + 80 then
         x, y = LEFT, y + 18
      end
      canvas:rect(x, y, 11, 11, { class = style.colour(i, #names) })
      canvas:text(x + 16, y + 10, name, { class = "quiet small" })
      x = x + wide
   end
   return { title = "How long an update takes, by four ways", caption = "Predicted by the cost model of lua/SIMULATE.md; phases follow "
      .. "each other.", width = LEFT + WIDE + 90, height = y + 20, canvas = canvas }
end

--- The same in characters.
function ways.text(result, columns, colour)
   local rows, lines = result.strategies, {}
   local names, colours = phases_of(rows)
   local most, wide = math.max(slowest(rows), 1e-9), math.max(10, columns - 34)
   for _, row in ipairs(rows) do
      local bar = {}
      for _, phase in ipairs(row.phases) do
         if phase.seconds > 0 then
            bar[#bar + 1] = terminal.hue(terminal.bar(phase.seconds / most, wide), colours[phase.name], true)
         end
      end
      if not colour then -- nothing tells phases apart
         bar = { (terminal.bar(row.seconds / most, wide)) }
      end
      lines[#lines + 1] = ("%-22s%s %s"):format(row.title, table.concat(bar), units.time(row.seconds))
      lines[#lines + 1] = ("%-22s%s%s"):format("", row.phase, row.phase == row.bottleneck.name and "" or ": " .. row.bottleneck.name)
   end
   if colour then
      local key = {}
      for i, name in ipairs(names) do
         key[i] = terminal.hue("██", i, true) .. " " .. name
      end
      lines[#lines + 1] = table.concat(key, "  ")
   end
   return lines
end

return ways
