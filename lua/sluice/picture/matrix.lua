--- The traffic matrix: how many bytes each trainer sends to each worker, with what each sends and receives in all beside it.
-- A figure is { title, caption, width, height, canvas }; its text a list of lines.

local style = require "sluice.picture.style"
local svg = require "sluice.picture.svg"
local terminal = require "sluice.picture.terminal"
local units = require "sluice.cli.units"
local words = require "sluice.picture.words"

local matrix = {}

local LEFT, TOP, SIDE, GAP = 64, 46, 70, 8

local function edge(bin, bins, ranks)
   return math.floor(bin * ranks / bins)
end

-- The ranks of block `i` (from 1) of `count` blocks.
local function block(i, count, ranks, first)
   return first + edge(i - 1, count, ranks), first + edge(i, count, ranks) - 1
end

local function sums(cells)
   local rows, columns, most, all = {}, {}, 0, 0
   for i, row in ipairs(cells) do
      rows[i] = 0
      for j, bytes in ipairs(row) do
         rows[i], columns[j] = rows[i] + bytes, (columns[j] or 0) + bytes
         most, all = math.max(most, bytes), all + bytes
      end
   end
   return rows, columns, most, all
end

local function largest(list)
   local most = 0
   for _, value in ipairs(list) do
      most = math.max(most, value)
   end
   return most
end

local function caption(traffic)
   local rows, columns = #traffic.matrix, #traffic.matrix[1]
   if rows == traffic.trainers and columns == traffic.workers then
      return "One cell a pair of ranks. Bars: what a trainer sends and a worker receives in all."
   end
   return ("There are %d by %d pairs: a cell is the sum of about %.0f trainers by %.0f workers. Bars: the sums of these."):format(
      traffic.trainers, traffic.workers, traffic.trainers / rows, traffic.workers / columns)
end

-- Every how many cells of `size` a label of `room` fits.
local function every(size, room)
   return math.max(1, math.ceil(room / size))
end

local function draw_legend(canvas, x, y, most)
   canvas:text(x, y + 10, "bytes a cell", { class = "quiet small" })
   canvas:rect(x + 76, y, 16, 12, { class = "panel" })
   canvas:text(x + 84, y + 25, "0", { class = "quiet small", anchor = "middle" })
   for step = 1, style.STEPS do
      canvas:rect(x + 92 + (step - 1) * 26, y, 26, 12, { class = "h" .. step,
         tip = ("above %s, to %s"):format(units.bytes(most * (step - 1) / style.STEPS), units.bytes(most * step / style.STEPS)) })
   end
   for _, step in ipairs({ 3, 6, 9 }) do
      canvas:text(x + 92 + step * 26, y + 25, units.bytes(most * step / style.STEPS), { class = "quiet small", anchor = "middle" })
   end
end

--- Draws what native.traffic counted.
function matrix.draw(traffic)
   local cells, canvas = traffic.matrix, svg.new()
   local rows, columns = #cells, #cells[1]
   local row_sums, column_sums, most = sums(cells)
   local high, wide = math.max(6, math.min(44, 420 / rows)), math.max(6, math.min(44, 560 / columns))
   local right, bottom = LEFT + columns * wide, TOP + rows * high
   canvas:text(LEFT + columns * wide / 2, 12, "worker (world rank)", { class = "quiet", anchor = "middle" })
   canvas:text(12, TOP + rows * high / 2, rows * high < 120 and "trainer" or "trainer (world rank)",
      { class = "quiet", anchor = "middle", turned = true })
   for i, row in ipairs(cells) do
      local a, b = block(i, rows, traffic.trainers, 0)
      local y = TOP + (i - 1) * high
      if (i - 1) % every(high, 13) == 0 then
         canvas:text(LEFT - 6, y + high / 2 + 4, ("%d"):format(a), { class = "quiet small", anchor = "end" })
      end
      for j, bytes in ipairs(row) do
         local c, d = block(j, columns, traffic.workers, traffic.trainers)
         canvas:rect(LEFT + (j - 1) * wide, y, wide, high, { class = "cell " .. (style.step(bytes, most) or "panel"),
            tip = ("trainer %s → worker %s: %s"):format(words.ranks(a, b), words.ranks(c, d), words.bytes(bytes)) })
      end
      canvas:rect(right + GAP, y + high * 0.12, SIDE * row_sums[i] / math.max(1, largest(row_sums)), high * 0.76,
         { class = "c10", tip = ("trainer %s: sends %s"):format(words.ranks(a, b), words.bytes(row_sums[i])) })
   end
   for j, bytes in ipairs(column_sums) do
      local c, d = block(j, columns, traffic.workers, traffic.trainers)
      local x = LEFT + (j - 1) * wide
      if (j - 1) % every(wide, 34) == 0 then
         canvas:text(x + wide / 2, TOP - 7, ("%d"):format(c), { class = "quiet small", anchor = "middle" })
      end
      canvas:rect(x + wide * 0.12, bottom + GAP, wide * 0.76, SIDE * bytes / math.max(1, largest(column_sums)),
         { class = "c10", tip = ("worker %s: receives %s"):format(words.ranks(c, d), words.bytes(bytes)) })
   end
   canvas:text(right + GAP, bottom + GAP + 12, "sends", { class = "quiet small" })
   canvas:text(right + GAP, bottom + GAP + 26, "at most " .. units.bytes(largest(row_sums)), { class = "quiet small" })
   canvas:text(right + GAP, bottom + GAP + 44, "receives", { class = "quiet small" })
   canvas:text(right + GAP, bottom + GAP + 58, "at most " .. units.bytes(largest(column_sums)), { class = "quiet small" })
   draw_legend(canvas, LEFT, bottom + SIDE + 2 * GAP + 8, most)
   return { title = "Who sends how much to whom", caption = caption(traffic), width = math.max(right + GAP + 120, LEFT + 400),
      height = bottom + SIDE + 2 * GAP + 40, canvas = canvas }
end

--- The same in characters.
function matrix.text(traffic, _, colour)
   local cells, lines = traffic.matrix, {}
   local rows, columns = #cells, #cells[1]
   local row_sums, _, most, all = sums(cells)
   local width = columns <= 24 and 2 or 1
   lines[1] = ("%s in all; the rows are trainers, the columns workers"):format(units.bytes(all))
   lines[2] = caption(traffic):match("^[^.]*%.")
   lines[3] = ("%8s %-" .. columns * width .. "s"):format("", ("%d"):format(traffic.trainers))
   for i, row in ipairs(cells) do
      local first = block(i, rows, traffic.trainers, 0)
      local items = {}
      for j, bytes in ipairs(row) do
         items[j] = terminal.shade(bytes, most, width, colour)
      end
      lines[#lines + 1] = ("%8d %s  %s"):format(first, table.concat(items), units.bytes(row_sums[i]))
   end
   local key = {}
   for step = 1, 4 do
      key[step] = terminal.shade(step, 4, 2, colour) .. " to " .. units.bytes(most * step / 4)
   end
   lines[#lines + 1] = ("%8s ·  nothing  %s"):format("", table.concat(key, "  "))
   return lines
end

return matrix
