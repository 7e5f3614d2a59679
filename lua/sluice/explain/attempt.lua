--- Resolves a plan as far as its rules allow: what is wrong with one parameter is noted with it, and the rest goes on.
-- resolve.lua decides; nothing here does.
-- @module sluice.explain.attempt

local companions = require "sluice.companions"
local core = require "sluice.core"
local diff = require "sluice.diff"
local modules = require "sluice.modules"
local resolve = require "sluice.resolve"

local attempt = {}

-- Each mistake looks for the nearest right word among thousands of names: after so many, the first of each kind of name.
local MOST_PROBLEMS, MOST_KINDS = 16, 64

-- The text of what a pcall caught; memory that ended is no parameter's mistake and goes on up.
local function text_of(view, problem)
   local text, status = problem, nil
   if type(problem) == "table" then
      text, status = problem.text, problem.status
   elseif type(problem) == "userdata" then
      text, status = view.raised()
   elseif problem == "not enough memory" then
      status = core.status.NO_MEMORY
   end
   if status == core.status.NO_MEMORY then
      error(problem, 0)
   end
   return (tostring(text):gsub("^destination: ", ""))
end

-- Calls f; where that raises, the parameter keeps the text and is left without a mode.
local function try(context, param, f, ...)
   local good, problem = pcall(f, ...)
   if not good then
      param.mode, param.targets, param.problem = nil, nil, text_of(context.plan, problem)
   end
   return good
end

--- Fills in the destinations.
-- @param context of resolve.open
-- @param params of resolve.params; those that failed get a `problem`, and where they end full against an order not to,
-- `must_not_be_full`
-- @param wanted function(param) -> whether it is to be decided even when many others have failed
-- @return how many failed, and the text of the first
function attempt.resolve(context, params, wanted)
   local failed, first, failed_kinds = 0, nil, {}
   local function note(param)
      failed, first, failed_kinds[diff.kind(param.name)] = failed + 1, first or param.problem, true
   end
   for _, param in ipairs(params) do
      if failed >= MOST_PROBLEMS and (failed >= MOST_KINDS or failed_kinds[diff.kind(param.name)]) and not wanted(param) then
         param.problem = "not decided: too many parameters before it have mistakes"
      elseif not try(context, param, resolve.decide, context, param) then
         note(param)
      end
   end
   local whole_modules = resolve.whole_modules(context)
   local cause = whole_modules and modules.apply(context, params, resolve.loads)
   local together = companions.open(context, params, resolve.loads)
   for i, param in ipairs(params) do
      if param.mode and not try(context, param, resolve.check_full, context, param) then
         param.must_not_be_full = true
         note(param)
      elseif param.mode and not (try(context, param, companions.check, together, param)
         and try(context, param, modules.check, cause, param)) then
         note(param)
      elseif param.mode and not try(context, param, resolve.hand_over, context, i, param) then
         note(param)
      end
   end
   resolve.finish(context, whole_modules)
   return failed, first
end

return attempt
