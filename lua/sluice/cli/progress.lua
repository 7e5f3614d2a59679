--- What `sluice run` shows while it runs: one line that moves on a terminal, plain lines elsewhere; on standard error.

local native = require "sluice.native"
local units = require "sluice.cli.units"

local progress = {}
progress.__index = progress

local BAR = 30
local SETTLED_S = 0.2 -- before that, a rate says nothing
local STDERR = 2

--- A display. `quiet` shows nothing but warnings.
function progress.new(quiet)
   local terminal = native.is_terminal(STDERR)
   return setmetatable({ quiet = quiet, terminal = terminal, shown = false }, progress)
end

local function clear(self)
   if self.shown then
      io.stderr:write("\r\27[K")
      self.shown = false
   end
end

--- A line that stays.
function progress:line(text, ...)
   if not self.quiet then
      clear(self)
      io.stderr:write(text:format(...), "\n")
   end
end

--- A warning, shown always.
function progress:warn(text)
   clear(self)
   io.stderr:write(text, "\n")
end

--- A line that the next one replaces; nothing where standard error is no terminal.
function progress:status(text, ...)
   if self.quiet or not self.terminal then
      return
   end
   io.stderr:write("\r\27[K", (text:format(...):sub(1, native.columns(STDERR) - 1)))
   self.shown = true
end

--- The bar of an update under way, with the rate since it began.
function progress:bar(title, done, total, seconds)
   if self.quiet or not self.terminal then
      return
   end
   local part = total > 0 and math.min(1, done / total) or 0
   local full = math.floor(part * BAR)
   local rate = seconds < SETTLED_S and "" or (", %.2f GB/s"):format(units.rate(done, seconds))
   self:status("%s [%s%s] %s of %s%s", title, ("#"):rep(full), (" "):rep(BAR - full), units.bytes(done), units.bytes(total), rate)
end

--- Leaves an empty line.
function progress:done()
   clear(self)
end

return progress
