--- Resolves a plan as far as its rules allow, keeps what further questions need, and says which rules of its files do nothing.
-- @module sluice.audit

local attempt = require "sluice.explain.attempt"
local core = require "sluice.core"
local explain = require "sluice.explain"
local match = require "sluice.match"
local resolve = require "sluice.resolve"
local rule = require "sluice.rule"

local audit = {}

local MOST_PASSES = 16

local function nobody()
   return false
end

--- Fills in the destinations as far as the rules allow.
-- @param view the functions of explain.c
-- @param rules a family's name, a path, or nil
-- @return { problem =, failed =, problems = { { number =, text = }, ... } } as JSON, and the context for later questions
function audit.open(view, _, rules)
   local context = resolve.open(view, rules)
   local state = explain.open(view, context, {})
   local failed, problem = attempt.resolve(context, state.params, nobody)
   local kept = { params = state.params, number_of = state.number_of }
   if failed == 0 then
      problem, kept.uncovered = view.check()
      problem = problem and (problem:gsub("^destination: ", ""))
   end
   kept.problem = problem
   local problems = {}
   for i, param in ipairs(state.params) do
      if param.problem then
         problems[#problems + 1] = { number = i, text = param.problem }
      end
   end
   context.kept = kept
   context.plan, context.by_canonical = nil, nil -- they are for this call
   return core.canonical({ problem = problem, failed = failed, problems = problems }), context
end

-- ---- rules that decide nothing ----

-- Which rule decides each name: counts, bytes and the first name go to the rule's record.
local function count(state, records)
   local set, of = state.context.set, {}
   for number, said in ipairs(set.list) do
      of[said] = records[number]
   end
   for i, param in ipairs(state.params) do
      local entry = set.rules:find(param.ruled)
      local record = entry and of[entry.said]
      if record then
         record.parameters = record.parameters + 1
         record.bytes = record.bytes + state.view.decision(i).bytes
         record.first = record.first or param.name
      end
   end
end

-- Of the rules without a parameter those whose patterns match one that an earlier rule takes; each pass tells of the first.
local function find_shadowed(state, records)
   local set, left = state.context.set, {}
   for number, record in ipairs(records) do
      left[#left + 1] = record.parameters == 0 and number or nil
   end
   for _ = 1, MOST_PASSES do
      local matcher, found, order = match.new(), false, 0
      for _, number in ipairs(left) do
         for _, simple in ipairs(records[number].shadow and {} or set.list[number].read.simples) do
            order = order + 1
            matcher:add(simple, order, number)
         end
      end
      for _, param in ipairs(order > 0 and state.params or {}) do
         local number = matcher:find(param.ruled)
         if number and not records[number].shadow then
            local by = set.rules:find(param.ruled).said
            records[number].shadow = { name = param.name, number = by.number, pattern = by.pattern, where = by.place }
            found = true
         end
      end
      if not found then
         return
      end
   end
end

-- The live tensors that a rule names, for a list: its first strip's.
local function into_of(said)
   local strip = said.strips and said.strips[1]
   return strip and strip.into or nil
end

-- Whether a place is in the file that was asked for; families that ship with Sluice are for many models, so none is theirs.
local function is_own(set, place)
   return place:sub(1, #set.path) == set.path and not set.path:find("^sluice/rules/")
end

local function records_of(set)
   local list = {}
   for number, said in ipairs(set.list) do
      list[number] = { number = number, pattern = said.pattern, where = said.place, own = is_own(set, said.place),
                       mode = said.mode or "direct", into = into_of(said), parameters = 0, bytes = 0 }
   end
   return list
end

-- Strips and renames that no parameter's name met, in the order of the files.
local function find_idle(state)
   local set, used, idle = state.context.set, {}, {}
   local function key(word, where, from)
      return table.concat({ word, where, from }, "\0")
   end
   for _, param in ipairs(state.params) do
      local trace = {}
      if param.canonical ~= param.name then
         rule.canonical_name(set, param.name, trace)
      end
      for _, step in ipairs(trace) do
         used[key(step.word, step.where, step.from)] = true
      end
   end
   local function consider(word, pattern, where)
      if not used[key(word, where, pattern)] then
         idle[#idle + 1] = { word = word, pattern = pattern, where = where, own = is_own(set, where) }
      end
   end
   for _, strip in ipairs(set.strips) do
      consider("strip", strip.text, strip.place)
   end
   for _, step in ipairs(set.renames) do
      consider("rename", step.from, step.place)
   end
   return idle
end

--- What each rule of the set decides.
-- @return { file =, rules = { { number, pattern, where, own, mode, into, parameters, bytes, first, shadow }, ... }, idle = { { word,
-- pattern, where, own }, ... } } as JSON; own: of the file itself, not of one that it extends. Without a rule file the lists are empty
function audit.rules(view, _, context)
   local state = explain.open(view, context, {})
   local set = state.context.set
   local answer = { rules = {}, idle = {} }
   if set then
      answer.file, answer.rules = set.path, records_of(set)
      count(state, answer.rules)
      find_shadowed(state, answer.rules)
      answer.idle = find_idle(state)
   end
   context.plan, context.by_canonical = nil, nil
   return core.canonical(explain.exact(answer))
end

return audit
