--- The module rule: where a host finalises modules as wholes, one with a full parameter has no direct one. A module is what
-- stands before the last dot of a name, be it a parameter's or that of a live tensor which the host's loader writes.
-- @module sluice.modules

local check = require "sluice.check"
local default = require "sluice.default"

local modules = {}

local DIRECT, FULL = 1, 2
local LONGEST_SHOWN = 200

local function note(context, cause, param, loads)
   local module = default.module(param.canonical)
   cause[module] = cause[module] or param
   for _, name in ipairs(context.set and loads(context, param) or {}) do
      module = context.live[name] and default.module(name)
      if module then
         cause[module] = cause[module] or param
      end
   end
end

-- Makes full what the default resolver placed in a module with a full parameter; gives whether there was any.
local function spread(context, cause, params, loads)
   local changed = false
   for _, param in ipairs(params) do
      local direct = param.by_default and param.mode == DIRECT
      local other = direct and (cause[default.module(param.canonical)] or cause[default.module(param.targets[1])])
      if other then
         param.mode, param.targets, changed = FULL, nil, true
         param.reason = ("%s of the same module is full: %s"):format(other.name, other.reason)
         note(context, cause, param, loads)
      end
   end
   return changed
end

--- Applies the rule to what the default resolver placed. Parameters without a mode are passed over.
-- @param context of resolve.open
-- @param params of resolve.params, decided
-- @param loads resolve.loads
-- @return for modules.check: by module, a full parameter of it
function modules.apply(context, params, loads)
   local cause = {}
   for _, param in ipairs(params) do
      if param.mode == FULL then
         note(context, cause, param, loads)
      end
   end
   while spread(context, cause, params, loads) do end
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
