--- sluice repl: a console on one plan. Reads statements from a terminal with line editing, from standard input, or from -e.

local evaluate = require "sluice.console.evaluate"
local fault = require "sluice.cli.fault"
local native = require "sluice.native"
local session = require "sluice.console.session"
local source = require "sluice.cli.source"
local units = require "sluice.cli.units"

local repl = {
   name = "repl", summary = "A console on one plan: asks it questions, tries rules; never moves weights.",
   example = "sluice repl examples/deployments/llama3-8b.lua\n"
      .. "   sluice repl init_info.json --host host.json --live live.json --rules mine.lua\n"
      .. "   sluice repl --checkpoint model.safetensors --live live.json --host host.json --mesh tp=2 --rules mine.lua\n"
      .. "   sluice repl examples/deployments/llama3-8b.lua -e 'explain \"model.norm.weight\"' -e 'bytes()'\n"
      .. "   sluice repl --attach /run/user/1000/worker.sock                    (an engine that runs; reads only)\n\n"
      .. "Without a terminal it reads statements from standard input and prints plainly; it ends with 1 where one failed. The words\n"
      .. "are those of `help`.",
}

local STDIN, STDOUT = 0, 1
local PROMPT, MORE = "sluice> ", "   ...> "

function repl.configure(parser)
   source.arguments(parser, "World rank of the worker whose live tensors are meant. The first worker when not given.")
   parser:option("-e", "Run a statement instead of reading any; may be given again."):count("*"):argname("<statement>"):target("statements")
   parser:flag("--no-history", "Keep no history of what is typed."):target("no_history")
   parser:flag("--no-pager", "Print what is longer than the terminal all at once."):target("no_pager")
end

-- ---- output ----

local function height(line, columns)
   return math.max(1, math.ceil(#line / columns))
end

local function fits(text, rows, columns)
   local count = 0
   for line in (text .. "\n"):gmatch("([^\n]*)\n") do
      count = count + height(line, columns)
      if count >= rows then
         return false
      end
   end
   return true
end

local function write(text)
   io.stdout:write(units.plain(text))
   io.stdout:flush()
end

-- A screen at a time, where no PAGER is set.
local function page(text, rows, columns)
   local shown = 0
   for line in (text .. "\n"):gmatch("([^\n]*)\n") do
      if shown > 0 and shown + height(line, columns) > rows - 1 then
         write("-- more: Enter, or q and Enter to stop --")
         local answer = io.stdin:read("*l")
         if not answer or answer:find("^%s*q") then
            return
         end
         shown = 0
      end
      write(line .. "\n")
      shown = shown + height(line, columns)
   end
end

local function show_on_terminal(text, args)
   local rows, columns = native.rows(STDOUT), native.columns(STDOUT)
   local pager = os.getenv("PAGER")
   if args.no_pager or fits(text, rows, columns) then
      write(text .. "\n")
   elseif pager and pager ~= "" then
      native.shell(pager, units.plain(text) .. "\n")
   else
      page(text, rows, columns)
   end
end

-- ---- what is read ----

-- Whole statements out of lines: goes on while the end of the text is what is wrong with it.
-- @param next_line function(prompt) -> a line, false where what was typed is given up, nil at the end
local function statements(evaluator, next_line, first, more)
   return function()
      local text
      while true do
         local line = next_line(text and more or first)
         if line == nil then
            return text
         elseif line == false then
            return ""
         end
         text = text and text .. "\n" .. line or line
         local chunk, _, unfinished = evaluator:compile(text)
         if chunk or not unfinished or text:find("^%s*$") then
            return text
         end
      end
   end
end

local function until_quit(next_statement)
   return function()
      local text = next_statement()
      return text and not text:find("^%s*quit%s*$") and not text:find("^%s*exit%s*$") and text or nil
   end
end

local function complain(problem)
   io.stdout:flush()
   io.stderr:write(units.plain(problem) .. "\n")
end

local function run_plainly(evaluator, next_statement)
   local failed = false
   for text in until_quit(next_statement) do
      local answer, problem = evaluator:run(text)
      if not answer then
         failed = true
         complain(problem)
      elseif answer ~= "" then
         write(answer .. "\n")
      end
   end
   return failed and 1 or 0
end

-- Where the history lies, or nil and why there is none.
local function history_path()
   local state = os.getenv("XDG_STATE_HOME")
   if not state or state:sub(1, 1) ~= "/" then
      local home = os.getenv("HOME")
      if not home or home:sub(1, 1) ~= "/" then
         return nil, "HOME is not set"
      end
      state = home .. "/.local/state"
   end
   return native.private_file(state .. "/sluice", "history")
end

local function digest_line(here)
   local engine = here.source.engine
   if not engine then
      return ""
   elseif here.plan:is_of(engine) then
      return ("\nplanned here again, it has the engine's digest: %s"):format(engine.destination_digest:sub(1, 16))
   end
   return engine.in_use and ("\nplanned here again, it is not the engine's plan: its library is %s"):format(engine.library)
      or '\nit is not the engine\'s plan: diff "engine" tells where they differ'
end

local function banner(here)
   local plan = here.plan
   local engine = here.attached and "attached to " .. here.attached.path .. ", for reading only: engine tells how far it is.\n" or ""
   if not plan then
      return engine .. "no plan: " .. here.problem
   end
   local text = engine .. ("%s: %s to %s, %s. help lists the words."):format(plan.title, units.count(plan.trainers, "trainer"),
      units.count(plan.workers, "worker"), units.count(#plan.handle:live(), "live tensor"))
   return text .. (plan.problem and "\nthis plan is refused: " .. plan.problem or "") .. digest_line(here)
end

local function run_on_terminal(here, evaluator, args)
   local path, problem
   if not args.no_history then
      path, problem = history_path()
   end
   local editor = native.editor(here, path)
   local interrupts = fault.check(native.interrupts())
   here.interrupts = interrupts
   write(banner(here) .. "\n" .. (problem and "no history is kept: " .. problem .. "\n" or ""))
   for text in until_quit(statements(evaluator, function(prompt)
      interrupts:came() -- what was pressed while nothing ran
      local line = editor:read(prompt)
      if line and line:find("%S") then
         editor:add(line)
      end
      return line
   end, PROMPT, MORE)) do
      local answer, wrong = evaluator:run(text)
      if interrupts:came() and not answer then
         wrong = "interrupted"
      end
      if not answer then
         complain(wrong)
      elseif answer ~= "" then
         show_on_terminal(answer, args)
      end
   end
   write("\n")
   editor:close()
   return 0
end

function repl.run(args)
   local here
   if args.attach then
      here = session.attach(args.attach, function()
         local from = source.load(args)
         from:worker("repl", args.rank)
         return from
      end)
   else
      local from = source.load(args)
      here = session.open(from, from:worker("repl", args.rank))
   end
   local evaluator = evaluate.new(here, write)
   if args.statements[1] then
      local i = 0
      return run_plainly(evaluator, function()
         i = i + 1
         return args.statements[i]
      end)
   elseif not native.is_terminal(STDIN) then
      if here.problem then
         complain("no plan: " .. here.problem)
      end
      return run_plainly(evaluator, statements(evaluator, function()
         return io.stdin:read("*l")
      end))
   end
   return run_on_terminal(here, evaluator, args)
end

return repl
