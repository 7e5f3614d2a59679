--- Numbers as people read them. 1 GB is 1e9 bytes.

local units = {}

local steps = { { 1e12, "TB" }, { 1e9, "GB" }, { 1e6, "MB" }, { 1e3, "KB" } }

--- 90.2 MB
-- @param count a number, or its text where JSON's numbers could not tell it
function units.bytes(count)
   count = tonumber(count)
   for _, step in ipairs(steps) do
      if count >= step[1] then
         return ("%.2f %s"):format(count / step[1], step[2])
      end
   end
   return ("%d B"):format(count)
end

--- 0.123 s
function units.seconds(seconds)
   return (seconds < 10 and "%.3f s" or "%.1f s"):format(seconds)
end

--- "41.6 ms": from microseconds on
function units.time(seconds)
   if seconds >= 10 then
      return ("%.1f s"):format(seconds)
   elseif seconds >= 1 then
      return ("%.2f s"):format(seconds)
   end
   return seconds >= 1e-3 and ("%.3g ms"):format(seconds * 1e3) or ("%.3g us"):format(seconds * 1e6)
end

--- Gigabytes a second as a number; 0 where no time passed.
function units.rate(bytes, seconds)
   return seconds > 0 and bytes / seconds / 1e9 or 0
end

--- A text as lines of at most `most` bytes, cut between words.
function units.lines(text, most)
   local lines, line = {}, ""
   for word in text:gmatch("%S+") do
      if #line > 0 and #line + 1 + #word > most then
         lines[#lines + 1], line = line, word
      else
         line = #line > 0 and line .. " " .. word or word
      end
   end
   lines[#lines + 1] = line
   return lines
end

--- "1 rank", "2 ranks"
function units.count(count, noun)
   return ("%d %s%s"):format(count, noun, count == 1 and "" or "s")
end

--- "[4096, 128]"
function units.shape(shape)
   local items = {}
   for i, extent in ipairs(shape) do
      items[i] = ("%.0f"):format(extent)
   end
   return "[" .. table.concat(items, ", ") .. "]"
end

--- "pull (3 peers), ring (1 peer)"
-- @param roads road -> how many peers
function units.roads(roads)
   local parts = {}
   for road, count in pairs(roads) do
      parts[#parts + 1] = ("%s (%s)"):format(road, units.count(count, "peer"))
   end
   table.sort(parts)
   return table.concat(parts, ", ")
end

--- Rows of texts as lines with aligned columns.
-- @param rows a list of lists
-- @param indent what each line begins with
function units.columns(rows, indent)
   local width, lines = {}, {}
   for _, row in ipairs(rows) do
      for i, text in ipairs(row) do
         width[i] = math.max(width[i] or 0, #text)
      end
   end
   for k, row in ipairs(rows) do
      local cells = {}
      for i, text in ipairs(row) do
         cells[i] = i == #row and text or text .. (" "):rep(width[i] - #text)
      end
      lines[k] = indent .. table.concat(cells, "  "):gsub("%s+$", "")
   end
   return lines
end

--- Rows of texts as one text with aligned columns, which ends with how many more there are, where there are.
function units.rows(rows, more)
   local lines = units.columns(rows, "")
   lines[#lines + 1] = more > 0 and ("... and %d more"):format(more) or nil
   return table.concat(lines, "\n")
end

--- A text that cannot speak to a terminal: names come from outside.
function units.plain(text)
   return (text:gsub("[%z\1-\8\11-\31\127]", "?"))
end

return units
