--- The module rule: where a host finalises modules as wholes, one with a full parameter has no direct one. A module is what
-- stands before the last dot of a name, be it a parameter's or that of a live tensor which the host's loader writes.
-- @module sluice.modules

local check = require "sluice.check"
local default = require "sluice.default"

local modules = {}

local DIRECT, FULL = 1, 2
local LONGEST_SHOWN = 200

--- Applies the rule to what the default resolver placed. Parameters without a mode are passed over.
-- @param context of resolve.open
-- @param params of resolve.params, decided
-- @param loads resolve.loads
-- @return for modules.check: by module, a full parameter of it
function modules.apply(context, params, loads)
   local cause, queue, members = {}, {}, {}
   local function mark(module, param)
      if not cause[module] then
         cause[module], queue[#queue + 1] = param, module
      end
   end
   local function note_full(param)
      mark(default.module(param.canonical), param)
      for _, name in ipairs(context.set and loads(context, param) or {}) do
         if context.live[name] then
            mark(default.module(name), param)
         end
      end
   end
   local function note_direct(param, module)
      members[module] = members[module] or {}
      table.insert(members[module], param)
   end
   for _, param in ipairs(params) do
      if param.mode == FULL then
         note_full(param)
      elseif param.mode == DIRECT and param.by_default then
         note_direct(param, default.module(param.canonical))
         note_direct(param, default.module(param.targets[1]))
      end
   end
   local at = 1
   while queue[at] do
      local other = cause[queue[at]]
      for _, param in ipairs(members[queue[at]] or {}) do
         if param.mode == DIRECT then
            param.mode, param.targets = FULL, nil
            param.reason = ("%s of the same module is full: %s"):format(other.name, other.reason)
            note_full(param)
         end
      end
      at = at + 1
   end
   return cause
end

--- Raises where a rule places a parameter in a module of which the loader writes a live tensor for another one. Where that one's own
-- name is of the module, coverage.c says so.
-- @param cause of modules.apply, or nil where modules are no wholes
function modules.check(cause, param)
   for i = 1, cause and param.mode == DIRECT and #param.targets or 0, 2 do
      local live = param.targets[i]
      local module = default.module(live)
      local other = cause[module]
      if other and default.module(other.name) ~= module then
         check.raise("INVALID", ("%s: %s is direct into live %s, but for its module %s the loader has %s, which is full (%s: %s); a module is "
            .. "finalised as one"):format(param.where, check.shorten(param.name, LONGEST_SHOWN), check.shorten(live, LONGEST_SHOWN),
            check.shorten(module, LONGEST_SHOWN), check.shorten(other.name, LONGEST_SHOWN), other.where, check.shorten(other.reason, LONGEST_SHOWN)))
      end
   end
end

return modules
