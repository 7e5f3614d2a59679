--- Answers of sluice.explain as people read them.

local units = require "sluice.cli.units"

local explanation = {}

local FEW_RUNS, FEW_STRIPS = 6, 4
local PADDED = { zero = ", the rest of the view cleared", empty = ", cleared where there are no elements" }

-- ---- pieces of text ----

local function box_text(box)
   if not box then
      return "-"
   end
   local items = {}
   for i, range in ipairs(box) do
      items[i] = ("%.0f:%.0f"):format(range[1], range[2]) .. (range[3] and (":%.0f"):format(range[3]) or "")
   end
   return "[" .. table.concat(items, ", ") .. "]"
end

local function runs_text(runs)
   if not runs then
      return "-"
   end
   local items = {}
   for i = 1, math.min(#runs, FEW_RUNS) do
      local run = runs[i]
      items[i] = run[1] == run[2] and ("%d"):format(run[1]) or ("%d-%d"):format(run[1], run[2])
      items[i] = items[i] .. (run[3] and (" by %d"):format(run[3]) or "")
   end
   return table.concat(items, ", ") .. (#runs > FEW_RUNS and ", ..." or "")
end

-- "tp 0-1, pp 2"
local function place_text(coordinates)
   local items = {}
   for i, item in ipairs(coordinates) do
      items[i] = item.axis .. " " .. runs_text(item.coordinates)
   end
   return table.concat(items, ", ")
end

local function layout_text(layout, whole)
   return layout:sub(1, 2) == "()" and whole or "cut " .. layout
end

-- A part of a tensor, behind its name; nothing where it is a whole tensor whose dims are not known.
local function view_text(view)
   return view == "[]" and "" or " " .. view
end

local function list_text(list, key, value, separator)
   local items = {}
   for i, item in ipairs(list) do
      items[i] = item[key] .. separator .. item[value]
   end
   return table.concat(items, ", ")
end

local function add(lines, text, ...)
   lines[#lines + 1] = select("#", ...) > 0 and text:format(...) or text
end

local function add_all(lines, more)
   for _, line in ipairs(more) do
      lines[#lines + 1] = line
   end
end

local function more(lines, shown, all, what)
   if all > shown then
      add(lines, "   ... and %d more %s (--all shows them)", all - shown, what)
   end
end

-- ---- a parameter ----

local function rename_text(step)
   local how = step.to and ('%s "%s" to "%s"'):format(step.word, step.from, step.to) or ('%s "%s"'):format(step.word, step.from)
   return ("%s -> %s, by %s (%s)"):format(step.before, step.after, how, step.where)
end

local function add_rules(lines, rules)
   local matched = rules.matched
   add(lines, "rules    %s: %s", rules.file, matched and ("tried %d of %d, the last matches"):format(rules.tried, rules.count)
      or ("none of %d matches; otherwise = \"%s\""):format(rules.count, rules.otherwise))
   local rows = {}
   for i, item in ipairs(rules.passed) do
      rows[i] = { ("%d"):format(item.number), item.pattern, item.where, "no: " .. item.why }
   end
   if matched then
      rows[#rows + 1] = { ("%d"):format(matched.number), matched.pattern, matched.where,
                          matched.captures[1] and "yes: " .. list_text(matched.captures, "name", "text", " = ") or "yes" }
   end
   add_all(lines, units.columns(rows, "   "))
   local passed = rules.tried - (matched and 1 or 0)
   if passed > #rules.passed then
      add(lines, "   (the nearest %d of %d that did not match; --all shows them)", #rules.passed, passed)
   end
end

-- Who gets what of some strips of one live tensor, of one as a rule.
local function add_groups(lines, targets, name)
   local in_place, shown, groups = targets[1].live, 0, 0
   local rows = { { "ranks", "at", in_place and "live elements" or "", "elements of the parameter", "bytes", "from trainers" } }
   for _, target in ipairs(targets) do
      for _, group in ipairs(target.workers) do
         rows[#rows + 1] = { runs_text(group.ranks), place_text(group.coordinates), box_text(group.live), box_text(group.source),
                             units.bytes(group.bytes), runs_text(group.trainers) }
      end
      shown, groups = shown + #target.workers, groups + target.groups
   end
   for _, row in ipairs(in_place and {} or rows) do
      table.remove(row, 3)
   end
   if rows[2] then
      add_all(lines, units.columns(rows, "   "))
   end
   more(lines, shown, groups, "groups of ranks")
   for _, target in ipairs(targets) do
      for _, group in ipairs(target.workers) do
         for _, piece in ipairs(group.pieces or {}) do
            add(lines, "   from trainer %d: %s of %s, %s", piece.trainer, box_text(piece.source), name, units.bytes(piece.bytes))
         end
      end
   end
end

local function add_without(lines, target)
   if target.without[1] then
      add(lines, "   nothing of it: ranks %s%s", runs_text(target.without),
         (target.pad == "zero" or target.pad == "empty") and ", which clear the view" or "")
   end
end

local function ways_text(target)
   return (target.permute and ", its dims in the order " .. table.concat(target.permute, ", ") or "")
      .. (target.convert and ", converted to " .. target.convert or "") .. (PADDED[target.pad] or "")
end

local function add_renames(lines, target)
   for _, step in ipairs(target.renames or {}) do
      add(lines, "   %s", rename_text(step))
   end
end

-- Whether two strips differ in nothing but elements and ranks, which a table of both tells.
local function alike(a, b)
   return a.live == b.live and ways_text(a) == ways_text(b) and a.workers and b.workers and a.pad ~= "clear" and b.pad ~= "clear"
end

-- How many strips from the i-th on are alike.
local function run_of(targets, i)
   local last = i
   while targets[i].live and targets[last + 1] and alike(targets[i], targets[last + 1]) do
      last = last + 1
   end
   return last - i + 1
end

local function add_strips(lines, targets, name)
   add(lines, "into     %s, in %d strips%s", targets[1].live, #targets, ways_text(targets[1]))
   add_renames(lines, targets[1])
   add_groups(lines, targets, name)
end

local function add_target(lines, target, name)
   if target.pad == "clear" then
      add(lines, "clears   %s%s, on workers that have it%s", target.live, view_text(target.view),
         target.layout:sub(1, 2) == "()" and "" or " at " .. target.layout)
   elseif target.live then
      add(lines, "into     %s%s, %s%s%s", target.live, view_text(target.view), layout_text(target.layout, "whole on each"),
         target.take and ", takes " .. target.take or "", ways_text(target))
   else
      add(lines, "whole    to load_weights on every worker")
   end
   add_renames(lines, target)
   if target.workers then
      add_groups(lines, { target }, name)
      add_without(lines, target)
   end
end

-- Many strips of one tensor, as heads that are fused one by one make them, are one table.
local function add_targets(lines, targets, name)
   local i = 1
   while targets[i] do
      local count = run_of(targets, i)
      if count >= FEW_STRIPS then
         add_strips(lines, { unpack(targets, i, i + count - 1) }, name)
      else
         count = 1
         add_target(lines, targets[i], name)
      end
      i = i + count
   end
end

local function add_why(lines, answer)
   for i, reason in ipairs(answer.why_not_direct or {}) do
      add(lines, "%s%s", i == 1 and "why not  " or "         ", reason)
   end
   if answer.module then
      add(lines, "module   %s: %s is full, %s (%s)", answer.module.name, answer.module.cause, answer.module.reason, answer.module.where)
   end
end

local function parameter_lines(answer)
   local lines = { ("parameter %s"):format(answer.name) }
   add(lines, "         %s %s, %s, %s", answer.dtype, units.shape(answer.shape), units.bytes(answer.bytes),
      (layout_text(answer.source_layout, "whole on each trainer"):gsub("^cut", "trainers cut it")))
   for _, step in ipairs(answer.renames or {}) do
      add(lines, "renamed  %s", rename_text(step))
   end
   if answer.scale_of then
      add(lines, "scale    goes as %s, counted in blocks", answer.scale_of)
   end
   if answer.rules then
      add_rules(lines, answer.rules)
   end
   if answer.problem then
      add(lines, "mistake  %s", answer.problem)
   end
   if answer.mode ~= "unresolved" then
      add(lines, "mode     %s%s: %s (%s)", answer.mode, answer.alias_of and " of " .. answer.alias_of or "", answer.reason, answer.where)
   end
   add_why(lines, answer)
   if answer.pins then
      add(lines, 'pinned   %s, by where "%s" (%s)', list_text(answer.pins.pins, "axis", "coordinate", " "), answer.pins.pattern,
         answer.pins.where)
   end
   add_targets(lines, answer.targets, answer.name)
   return lines
end

-- ---- a live tensor ----

local function add_cleared(lines, writes)
   for _, write in ipairs(writes) do
      for _, box in ipairs(write.cleared or {}) do
         add(lines, "cleared  %s, padding of %s (%s)", box_text(box), write.parameter, write.where)
      end
   end
end

local function add_unwritten(lines, answer)
   if answer.unwritten_bytes == 0 then
      return
   end
   add(lines, "nobody   writes %s of it%s", units.bytes(answer.unwritten_bytes), answer.unwritten and ":" or " in place")
   for _, box in ipairs(answer.unwritten or {}) do
      add(lines, "   %s", box_text(box))
   end
   if answer.unsourced then
      add(lines, 'which is allowed: unsourced "%s" (%s)', answer.unsourced.pattern, answer.unsourced.where)
   end
   for _, param in ipairs(answer.loaded_by or {}) do
      add(lines, "load_weights gets %s whole: %s (%s)", param.name, param.reason, param.where)
   end
   if answer.shares_memory_with[1] then
      add(lines, "what is written into %s may be written here: they share memory", table.concat(answer.shares_memory_with, ", "))
   end
end

local function live_lines(answer, rank)
   if answer.elsewhere then
      return { ("live tensor %s"):format(answer.name),
               ("         worker rank %d has none; rules put %s there on ranks %s"):format(rank, answer.named_by, runs_text(answer.elsewhere)) }
   end
   local lines = { ("live tensor %s of worker rank %d"):format(answer.name, rank) }
   add(lines, "         %s %s, %s: %s written, %s cleared, %s not written in place", answer.dtype, units.shape(answer.shape),
      units.bytes(answer.bytes), units.bytes(answer.written_bytes), units.bytes(answer.cleared_bytes), units.bytes(answer.unwritten_bytes))
   local rows = { { "live elements", "bytes", "parameter", "its elements", "rule" } }
   for _, write in ipairs(answer.writes) do
      if write.problem then
         rows[#rows + 1] = { "mistake", "-", write.parameter, write.problem }
      elseif write.live then
         rows[#rows + 1] = { box_text(write.live), units.bytes(write.bytes), write.parameter, box_text(write.source), write.where }
      end
   end
   if rows[2] then
      add_all(lines, units.columns(rows, "   "))
   end
   more(lines, #answer.writes, answer.writes_in_all, "writes")
   add_cleared(lines, answer.writes)
   add_unwritten(lines, answer)
   return lines
end

-- ---- lists ----

local function match_lines(matches)
   local lines, rows = {}, {}
   for i, item in ipairs(matches.parameters) do
      local to = item.problem or item.mode == "direct" and table.concat(item.into, ", ") or item.alias_of or item.reason
      rows[i] = { item.name, item.problem and "mistake" or item.mode, to, item.where or "" }
   end
   add(lines, "%s", units.count(matches.parameters_in_all, "parameter"))
   add_all(lines, units.columns(rows, "   "))
   more(lines, #matches.parameters, matches.parameters_in_all, "parameters")
   add(lines, "%s of the worker", units.count(matches.live_in_all, "live tensor"))
   for _, name in ipairs(matches.live) do
      add(lines, "   %s", name)
   end
   more(lines, #matches.live, matches.live_in_all, "live tensors")
   return lines
end

local function summary_lines(answer)
   local lines, rows = {}, {}
   for i, group in ipairs(answer.full) do
      rows[i] = { units.count(group.parameters, "parameter"), units.bytes(group.bytes), group.reason, group.where, "first " .. group.first }
   end
   add(lines, rows[1] and "full, and why:" or "no parameter is full")
   add_all(lines, units.columns(rows, "   "))
   rows = {}
   for i, live in ipairs(answer.uncovered or {}) do
      rows[i] = { live.name, units.bytes(live.bytes) }
   end
   if not answer.uncovered then
      add(lines, "what nothing writes in place is not known of a plan that is refused")
      return lines
   end
   add(lines, rows[1] and ("live tensors of worker rank %d with bytes that nothing writes in place:"):format(answer.rank)
      or ("every byte of worker rank %d is written in place"):format(answer.rank))
   add_all(lines, units.columns(rows, "   "))
   return lines
end

--- What is said where nobody has a name: the nearest of both kinds.
function explanation.unknown(answer)
   local lines = { ("no parameter and no live tensor is called %s"):format(answer.name) }
   for _, near in ipairs(answer.near) do
      add(lines, "   near: %s (%s)", near.name, near.kind == "live" and "live tensor" or "parameter")
   end
   return table.concat(lines, "\n")
end

--- An answer as text, which ends with a newline.
-- @param answer what explain.plan and explain.rules give, decoded
function explanation.text(answer)
   local lines = {}
   local parts = {
      answer.parameter and parameter_lines(answer.parameter), answer.live and live_lines(answer.live, answer.rank),
      answer.matches and match_lines(answer.matches), answer.full and summary_lines(answer),
   }
   for i = 1, 4 do
      if parts[i] then
         if lines[1] then
            add(lines, "")
         end
         add_all(lines, parts[i])
      end
   end
   if answer.problem and not (answer.parameter and answer.parameter.problem == answer.problem) then
      add(lines, "")
      add(lines, "this plan is refused: %s", answer.problem)
   end
   return table.concat(lines, "\n") .. "\n"
end

return explanation
