--- One session of the console: the plan at hand, the rules made at the prompt, what there was before. Knows nothing of terminals.
-- @module sluice.console.session

local attached = require "sluice.cli.attached"
local core = require "sluice.core"
local diff = require "sluice.diff"
local fault = require "sluice.cli.fault"
local file = require "sluice.cli.file"
local native = require "sluice.native"
local planned = require "sluice.cli.planned"

local session = {}
session.__index = session

local PROMPT = "(prompt)" -- what the rules made here call their file
local LONGEST_RULE_FILE = 1024 * 1024

--- Opens a session. A rule file that does not load leaves it without a plan, and `problem` says why.
-- @param source of sluice.cli.source
-- @param rank the worker whose live tensors are meant
function session.open(source, rank)
   local self = setmetatable({ source = source, rank = rank, made = {}, base = source.rules }, session)
   local good, problem = self:renew()
   self.problem = not good and problem or nil
   return self
end

--- Opens a session on a running engine. One that has no plan, or whose plan cannot be told, leaves it without one.
-- @param path the engine's socket
-- @param load function() -> the source as the engine tells it now; ends the command where it does not
function session.attach(path, load)
   local self = setmetatable({ attached = { path = path, load = load }, made = {} }, session)
   self.attached.last, self.attached.at = attached.status(path), native.monotonic()
   local good, problem = self:take_over()
   self.problem = not good and problem or nil
   return self
end

--- Takes over what the engine tells now, and plans anew.
-- @return whether that was possible; or false and the problem, and all stays as it was
function session:take_over()
   local source, wrong = fault.catch(self.attached.load)
   if not source then
      return false, wrong.text
   end
   local kept, base = self.source, self.base
   self.source, self.rank, self.base = source, source.rank, source.rules
   local good, problem = self:renew()
   if not good and kept then
      self.source, self.base = kept, base
   end
   return good, problem
end

--- Where the engine stands, and nil; or what it said last, and why it says nothing now.
function session:standing()
   local here = self.attached
   if not here then
      fault.wrong("this session asks no running engine: sluice repl --attach SOCKET does")
   end
   local status, wrong = fault.catch(attached.status, here.path)
   if status then
      here.last, here.at = status, native.monotonic()
   end
   return here.last, wrong and ("%s; what it said %.0f s ago:"):format(wrong.text, native.monotonic() - here.at)
end

-- ---- rules made at the prompt ----

-- The rule file that stands for those in use: the rules made here in front of what there was.
-- @param made list of texts
-- @param base a path or a family's name, or nil
local function overlay_text(made, base)
   local lines = { "-- Rules made at the prompt of sluice repl.", "return {" }
   if base then
      lines[#lines + 1] = ("   extends = %q,"):format(base)
   else
      lines[#lines + 1] = '   otherwise = "default",'
   end
   lines[#lines + 1] = "   rules = {"
   for _, text in ipairs(made) do
      lines[#lines + 1] = "      " .. text .. ","
   end
   lines[#lines + 1] = "   },\n}\n"
   return table.concat(lines, "\n")
end

function session:overlay()
   return self.made[1] and { name = PROMPT, text = overlay_text(self.made, self.base) } or nil
end

-- ---- the plan ----

--- Plans anew, with the rule file as it is now.
-- @return whether that was possible; or false and the problem, and the plan stays as it was
function session:renew()
   local plan, wrong = fault.catch(planned.open, self.source, self.rank, self:overlay())
   if not plan then
      return false, wrong.text
   end
   if self.plan then
      self.before = self.plan:side("before")
      self.began = self.began or self.before
      self.plan:close()
   end
   self.plan, self.problem, self.known = plan, nil, nil
   return true
end

--- The plan; ends the evaluation where there is none.
function session:need()
   if not self.plan then
      fault.wrong("there is no plan: %s; %s", self.problem, self.attached and "reload() asks again" or "mend the rule file and reload()")
   end
   return self.plan
end

local function compare(self, earlier)
   local now = self:need():side("now")
   return diff.compare(earlier or now, now)
end

--- What the last change did.
function session:last_change()
   return compare(self, self.before)
end

--- What changed since the session began.
function session:all_changes()
   return compare(self, self.began)
end

--- How the plan differs from the engine's.
function session:against_engine()
   local now = self:need()
   if not self.source.engine then
      fault.wrong("this session asks no running engine: sluice repl --attach SOCKET does")
   end
   local engine = planned.open(self.source:as_engine(), self.rank)
   local comparison = diff.compare(engine:side("engine"), now:side("now"))
   engine:close()
   return comparison
end

-- Renews after a change of the rules made here; takes it back where no plan can be made.
local function change(self, made)
   local kept = self.made
   self.made = made
   local good, problem = self:renew()
   if not good then
      self.made = kept
      fault.wrong("%s", problem)
   end
   return self:last_change()
end

local function pattern_of(text)
   return select(2, text:match("^rule%s*%(?%s*([\"'])(.-)%1"))
end

--- Puts a rule in front, instead of one made here with the same pattern. Ends the evaluation where it does not load.
-- @param text the rule as a rule file has it
function session:add_rule(text)
   local made, pattern = { text }, pattern_of(text)
   for _, other in ipairs(self.made) do
      if not pattern or pattern_of(other) ~= pattern then
         made[#made + 1] = other
      end
   end
   return change(self, made)
end

--- Takes the last rule that was made away.
function session:forget()
   if not self.made[1] then
      fault.wrong("no rule was made here")
   end
   return change(self, { unpack(self.made, 2) })
end

--- Reads the rule file again; of an engine, all that it tells.
function session:reload()
   local good, problem
   if self.attached then
      good, problem = self:take_over()
   else
      good, problem = self:renew()
   end
   if not good then
      fault.wrong("%s", problem)
   end
   return self:last_change()
end

--- The path of the rule file, where it is one.
function session:rule_path()
   if not self.base then
      fault.wrong("there is no rule file: the default resolver decides")
   elseif self.source.engine and self.source.engine.in_use then
      fault.wrong("the rules are those of the engine, which nothing here changes; sluice repl --attach %s --rules FILE tries a file of yours",
         self.attached.path)
   elseif not self.base:find("[/.]") then
      fault.wrong('%s ships with Sluice; save "mine.lua" writes a file that extends it', self.base)
   end
   return self.base
end

-- Where the rule file in use lies, from the root. An engine may have read another one than lies there now.
function session:path_on_disk()
   local engine = self.source.engine
   if not engine or not engine.in_use then
      return fault.check(native.absolute(self.base))
   end
   local status = self:standing()
   local path = self.base:sub(1, 1) == "/" and self.base or ("/proc/%d/cwd/%s"):format(status.process, self.base)
   local text = core.read_file(path, LONGEST_RULE_FILE)
   if text ~= self:rule_text() then
      fault.wrong("%s is not on this disk as the engine read it; rule_text() is what it read", self.base)
   end
   return fault.check(native.absolute(path))
end

--- Writes the rules made here as a rule file that extends the one in use; a file that is there stays.
-- @return the path
function session:save(path)
   if type(path) ~= "string" or path == "" then
      fault.wrong('save must be followed by a path: save "mine.lua"')
   elseif not self.made[1] then
      fault.wrong("no rule was made here")
   elseif native.kind(path) then
      fault.wrong("%s is there already", path)
   end
   local base = self.base
   if base and base:find("[/.]") then
      base = self:path_on_disk()
   end
   local good, problem = file.write(path, overlay_text(self.made, base))
   if not good then
      fault.wrong("%s", problem)
   end
   return path
end

--- The text of the rule file, or nil.
function session:rule_text()
   local engine = self.source.engine
   if engine and engine.in_use then
      return engine.files[1] and engine.files[1].text
   end
   return self.base and self.base:find("[/.]") and core.read_file(self.base, LONGEST_RULE_FILE) or nil
end

-- ---- for completion ----

--- Names of parameters and live tensors, each once.
function session:names()
   if not self.known then
      local seen, list = {}, {}
      for _, items in ipairs(self.plan and { self.plan:params(), self.plan:live() } or {}) do
         for _, item in ipairs(items) do
            if not seen[item.name] then
               seen[item.name], list[#list + 1] = true, item.name
            end
         end
      end
      self.known = list
   end
   return self.known
end

--- The plan's world, for words that need a deployment.
function session:world(word)
   local here = self:need().source.world
   if not here then
      fault.wrong("%s wants a deployment, which describes the model: nothing else says what workers of another size hold", word)
   end
   return here
end

return session
