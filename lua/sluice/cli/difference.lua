--- Comparisons of sluice.diff as people read them.

local diff = require "sluice.diff"
local units = require "sluice.cli.units"

local difference = {}

local FEW = 20

local function side_line(letter, side)
   local totals = side.totals
   local parts = {}
   for _, mode in ipairs({ "direct", "full", "alias", "skip", "unresolved" }) do
      local total = totals[mode]
      if total.parameters > 0 then
         parts[#parts + 1] = ("%s %d (%s)"):format(mode, total.parameters, units.bytes(total.bytes))
      end
   end
   return ("%s  %s: %s to %s, %s"):format(letter, side.title, units.count(side.trainers, "trainer"), units.count(side.workers, "worker"),
      table.concat(parts, ", "))
end

local function changes_key(item)
   local parts = {}
   for i, change in ipairs(item.changes) do
      parts[i] = change.what .. (change.what == "mode" and (change.from .. change.to) or "")
   end
   return table.concat(parts, "\0")
end

local function group_line(word, group)
   return ("%-8s %s%s"):format(word, group.name,
      group.parameters > 1 and (", %s"):format(units.count(group.parameters, "parameter")) or "") .. ", " .. units.bytes(group.bytes)
end

local function add_groups(lines, word, list, all, key, detail)
   local groups = diff.kinds(list, key)
   for i = 1, all and #groups or math.min(#groups, FEW) do
      lines[#lines + 1] = group_line(word, groups[i])
      for _, line in ipairs(detail and detail(groups[i]) or {}) do
         lines[#lines + 1] = line
      end
   end
   if not all and #groups > FEW then
      lines[#lines + 1] = ("%-8s ... and %d more kinds of parameters (--all shows them)"):format(word, #groups - FEW)
   end
end

local function change_lines(group)
   local lines = {}
   if group.parameters > 1 then
      lines[1] = "         as " .. group.first.name
   end
   for _, change in ipairs(group.first.changes) do
      lines[#lines + 1] = ("         %-11s %s"):format(change.what, change.from or "none")
      lines[#lines + 1] = ("         %-11s %s"):format("  now", change.to or "none")
   end
   return lines
end

--- A comparison as text, which ends with a newline.
-- @param comparison of diff.compare
-- @param all whether all kinds of parameters are listed
function difference.text(comparison, all)
   local a, b = comparison.a, comparison.b
   local lines = { side_line("a", a), side_line("b", b) }
   for letter, side in pairs({ a = a, b = b }) do
      if side.problem then
         lines[#lines + 1] = ("%s is refused: %s"):format(letter, side.problem)
      end
   end
   table.sort(lines)
   if comparison.same then
      lines[#lines + 1] = "they are the same"
      return table.concat(lines, "\n") .. "\n"
   end
   lines[#lines + 1] = ("%d changed, %d only in a, %d only in b%s"):format(#comparison.changed, #comparison.removed, #comparison.added,
      comparison.moved and ", in another order" or "")
   add_groups(lines, "only a", comparison.removed, all)
   add_groups(lines, "only b", comparison.added, all)
   add_groups(lines, "changed", comparison.changed, all, changes_key, change_lines)
   return table.concat(lines, "\n") .. "\n"
end

return difference
