--- The words of the console and what each is for, with an example.
-- @module sluice.console.help

local nearest = require "sluice.nearest"
local units = require "sluice.cli.units"

local help = {}

-- { word, what it is, an example, more }
help.words = {
   { "plan", "what goes where, in figures", "plan.totals.direct.bytes" },
   { "params", "the trainer's parameters, in transfer order", "params[1].destination",
     "Each has name, dtype, shape, bytes, source, mode, reason, where, destination, into, and problem where its rule is wrong." },
   { "live", "the live tensors of this worker", "#live", "Each has name, dtype, shape, bytes." },
   { "topology", "ranks and meshes of both sides", "topology.workers" },
   { "engine", "where a running engine stands (sluice repl --attach)", "engine.version",
     "Asked anew each time. It has rank, role, process, state, stage (of an init or reload under way), version, dirty, batch, progress, "
     .. "transport, roads, plan (a digest) and library; silent says why the engine does not answer any more." },
   { "rules", "each rule, where it stands, and what it decides", "rules[1].pattern",
     "Each has number, pattern, where, mode, into, parameters (how many it decides), bytes, first (a name), and shadow where an earlier "
     .. "rule takes all that it would match." },
   { "explain", "why a parameter lands where it does, or who fills a live tensor", 'explain "model.norm.weight"',
     'Also explain("name", { rank = 5 }) for the pieces of one worker, explain("name", { all = true }) for every rule and group.' },
   { "find", "names that a pattern matches", 'find "*.k_proj.*"', "* is any text; with {braces} it is read as in a rule file." },
   { "why_full", "what goes whole to load_weights, and why", "why_full()" },
   { "uncovered", "live tensors with bytes that nothing writes in place", "uncovered()" },
   { "worker", "one worker, by its number from 0", "worker(1):received()" },
   { "trainer", "one trainer, by its rank", "trainer(0):sends()" },
   { "bytes", "bytes by kind of parameter, largest first", "bytes()" },
   { "rule", "puts a rule in front of all others, for this session", 'rule "model.norm.weight" { full = "the host scales it" }',
     "It is written as in a rule file, with the same words." },
   { "forget", "takes the last rule made here away", "forget()" },
   { "reload", "reads the rule file again", "reload()" },
   { "edit", "opens the rule file in $EDITOR, then reads it again", "edit()" },
   { "diff", "what changed since the session began", "diff()", 'diff "reload" tells what the last change did, diff "engine" how '
     .. "this plan differs from that of the engine to which the session is attached." },
   { "rule_text", "the text of the rule file in use; of an engine, as it read it", "rule_text()" },
   { "save", "writes a rule file that extends the one in use with the rules made here", 'save "mine.lua"' },
   { "what_if", "the plan for other mesh sizes of the workers", "what_if{ tp = 2 }",
     "what_if{ trainer = { fsdp = 4 }, tp = 8 } changes both sides. The session's plan stays as it is." },
   { "dry_run", "runs this plan with generated data on this machine, at a reduced size, and verifies every byte", "dry_run()",
     "Where no deployment describes the model: one parameter of each kind that this worker receives, in this process." },
   { "print", "prints values", "print(#params, #live)" },
   { "help", "this list, or one word", 'help "explain"' },
   { "quit", "ends the session, as exit and Ctrl-D do", "quit" },
}

--- The text of help, for one word or for all.
-- @return the text; or nil and what is wrong
function help.text(word)
   if word == nil then
      local rows = {}
      for i, entry in ipairs(help.words) do
         rows[i] = { entry[1], entry[2], entry[3] }
      end
      local lines = units.columns(rows, "")
      lines[#lines + 1] = "Any Lua expression prints its value. Nothing here can move weights. Tab completes names; Ctrl-C stops what runs."
      return table.concat(lines, "\n")
   end
   local names = {}
   for i, entry in ipairs(help.words) do
      names[i] = entry[1]
      if entry[1] == word then
         return ("%s: %s\n%sExample: %s"):format(word, entry[2], entry[4] and entry[4] .. "\n" or "", entry[3])
      end
   end
   return nil, ("no word is called %s%s"):format(tostring(word), nearest.hint(tostring(word), names))
end

return help
