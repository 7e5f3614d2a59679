--- Numbers, ranges of ranks and boxes as pictures tell them.

local units = require "sluice.cli.units"

local words = {}

--- "1.50 MB (1500000 bytes)"
function words.bytes(count)
   return count >= 1000 and ("%s (%.0f bytes)"):format(units.bytes(count), count) or ("%d bytes"):format(count)
end

--- "rank 3", "ranks 3-5"
function words.ranks(first, last, noun)
   noun = noun or "rank"
   return first == last and ("%s %d"):format(noun, first) or ("%ss %d-%d"):format(noun, first, last)
end

--- The same for round numbers, as on an axis: "5 s".
function words.mark(seconds)
   if seconds <= 0 then
      return "0"
   end
   return seconds >= 1 and ("%.6g s"):format(seconds) or seconds >= 1e-3 and ("%.6g ms"):format(seconds * 1e3)
      or ("%.6g us"):format(seconds * 1e6)
end

--- A list of ranks of which `count` are not all listed: "ranks 0, 4, 8 and 5 more".
function words.some(list, count, most)
   local items = {}
   for i = 1, math.min(#list, most or 4) do
      items[i] = ("%d"):format(list[i])
   end
   local left = count - #items
   return (count == 1 and "rank " or "ranks ") .. table.concat(items, ", ") .. (left > 0 and (" and %d more"):format(left) or "")
end

--- "[0:256, 0:4096]"
function words.box(box)
   local items = {}
   for i, range in ipairs(box) do
      items[i] = ("%.0f:%.0f"):format(range[1], range[2])
   end
   return "[" .. table.concat(items, ", ") .. "]"
end

--- A text cut to a number of characters, from the left, where the end tells more.
function words.tail(text, most)
   return #text <= most and text or "…" .. text:sub(#text - most + 2)
end

--- Round steps that cut 0 to `most` into at most `count` parts: 1, 2 or 5 times a power of ten.
function words.tick(most, count)
   local raw = most / count
   local power = 10 ^ math.floor(math.log10(raw))
   for _, step in ipairs({ 1, 2, 5, 10 }) do
      if step * power >= raw - power * 1e-9 then
         return step * power
      end
   end
   return 10 * power
end

return words
