--- Numbers as people read them. 1 GB is 1e9 bytes.

local units = {}

local steps = { { 1e12, "TB" }, { 1e9, "GB" }, { 1e6, "MB" }, { 1e3, "KB" } }

--- 90.2 MB
function units.bytes(count)
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

--- Gigabytes a second as a number; 0 where no time passed.
function units.rate(bytes, seconds)
   return seconds > 0 and bytes / seconds / 1e9 or 0
end

--- "1 rank", "2 ranks"
function units.count(count, noun)
   return ("%d %s%s"):format(count, noun, count == 1 and "" or "s")
end

return units
