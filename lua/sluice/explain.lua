--- Answers questions about a plan: why a parameter lands where it does and what each worker gets of it, who fills a live
-- tensor, what a pattern finds, what goes whole and what nobody writes. Tables in, tables out, which lua/EXPLAIN.md
-- describes; show.lua makes text of them. The decisions are asked of the code that made them.
-- @module sluice.explain

local attempt = require "sluice.explain.attempt"
local copy = require "sluice.copy"
local core = require "sluice.core"
local fill = require "sluice.explain.fill"
local match = require "sluice.match"
local resolve = require "sluice.resolve"
local slices = require "sluice.explain.slices"
local trace = require "sluice.explain.trace"

local explain = {}

local FEW_MATCHES = 50
local FEW_NEAR = 5
local LARGEST = 2 ^ 53

-- ---- parameters ----

--- The answer on one parameter.
-- @param state of open
-- @param i its number
function explain.parameter(state, i)
   local view, param = state.view, state.params[i]
   local decision = view.decision(i)
   local answer = {
      name = param.name, dtype = param.dtype, shape = param.shape, bytes = decision.bytes, source_layout = decision.source,
      mode = decision.mode, reason = decision.reason, where = decision.where, alias_of = decision.alias_of, problem = param.problem,
      targets = {},
   }
   for t = 1, decision.targets do
      local item = view.target(i, t) or {}
      if item.pad ~= "clear" then
         local workers = slices.workers(state, i, t)
         item.workers, item.groups, item.without = workers.workers, workers.groups, workers.without
      end
      answer.targets[t] = item
   end
   if state.knows_rules then
      trace.add(state, param, answer)
   end
   trace.add_reasons(state, param, answer)
   return answer
end

--- The answer on one live tensor; nil where neither this worker nor a rule knows it.
function explain.live(state, name)
   return fill.live(state, name)
end

-- ---- finding ----

-- A test of names for a pattern: as a rule file reads it where it has braces, else `*` stands for any text.
local function tester(pattern)
   if pattern:find("{", 1, true) then
      local read, problem = match.pattern(pattern)
      if not read then
         return nil, "the pattern " .. problem
      end
      local matcher = match.new()
      for number, simple in ipairs(read.simples) do
         matcher:add(simple, number, true)
      end
      return function(name)
         return matcher:find(name)
      end
   end
   local pieces = {}
   for piece in (pattern .. "*"):gmatch("([^*]*)%*") do
      pieces[#pieces + 1] = piece
   end
   local head, tail = pieces[1], pieces[#pieces]
   return function(name)
      if #name < #head + #tail or name:sub(1, #head) ~= head or tail ~= "" and name:sub(-#tail) ~= tail then
         return false
      end
      local at = #head + 1
      for k = 2, #pieces - 1 do
         local from, to = name:find(pieces[k], at, true)
         if not from or to > #name - #tail then
            return false
         end
         at = math.max(to + 1, from)
      end
      return true
   end
end

local function summary(state, i)
   local param, view = state.params[i], state.view
   local decision = view.decision(i)
   local item = { name = param.name, mode = decision.mode, reason = decision.reason, where = decision.where, bytes = decision.bytes,
                  alias_of = decision.alias_of, problem = param.problem, into = {} }
   if decision.mode == "direct" then
      local seen = {}
      for t = 1, decision.targets do
         local live = view.target(i, t).live
         item.into[#item.into + 1] = not seen[live] and live or nil
         seen[live] = true
      end
   end
   return item
end

--- The parameters and live tensors whose names a pattern matches.
-- @return { parameters =, live =, parameters_in_all =, live_in_all = }, or nil and what is wrong with the pattern
function explain.find(state, pattern)
   local matches, problem = tester(pattern)
   if not matches then
      return nil, problem
   end
   local most = state.all and math.huge or FEW_MATCHES
   local answer = { parameters = {}, live = {}, parameters_in_all = 0, live_in_all = 0 }
   for i, param in ipairs(state.params) do
      if matches(param.name) then
         answer.parameters_in_all = answer.parameters_in_all + 1
         if answer.parameters_in_all <= most then
            answer.parameters[answer.parameters_in_all] = summary(state, i)
         end
      end
   end
   for _, name in ipairs(state.context.live_names) do
      if matches(name) then
         answer.live_in_all = answer.live_in_all + 1
         if answer.live_in_all <= most then
            answer.live[answer.live_in_all] = name
         end
      end
   end
   return answer
end

-- Characters that two names share at their beginnings and ends; of a part of the other, all of them.
local function likeness(name, other)
   if other:find(name, 1, true) then
      return math.huge
   end
   local shorter, head, tail = math.min(#name, #other), 0, 0
   while head < shorter and name:byte(head + 1) == other:byte(head + 1) do
      head = head + 1
   end
   while tail < shorter - head and name:byte(#name - tail) == other:byte(#other - tail) do
      tail = tail + 1
   end
   return head + tail
end

-- How good a guess `other` is, or nil: as a whole, or the best of its parts of as many segments as `name` has. Parts repeat from
-- layer to layer, so that each is looked at once.
local function guesser(name)
   local known, pattern = {}, "^" .. ("[^.]*%."):rep(select(2, name:gsub("%.", "")) + 1)
   local function good(score, other)
      return score >= 0.6 * math.max(#name, #other) and score or nil
   end
   return function(other)
      local best, rest = good(likeness(name, other), other), other .. "."
      while not best and rest ~= "" do
         local part = rest:match(pattern)
         if not part then
            break
         end
         if known[part] == nil then
            known[part] = good(likeness(name, part:sub(1, -2)), part:sub(1, -2)) or false
         end
         best = known[part] or nil
         rest = rest:match("^[^.]*%.(.*)$")
      end
      return best
   end
end

--- The names, of both kinds, that are nearest to one that nobody has.
function explain.near(state, name)
   local found, guess = {}, guesser(name)
   local function consider(other, kind)
      local score = guess(other)
      if score then
         found[#found + 1] = { name = other, kind = kind, score = score, number = #found }
      end
   end
   for _, param in ipairs(state.params) do
      consider(param.name, "parameter")
   end
   for _, live in ipairs(state.context.live_names) do
      consider(live, "live")
   end
   table.sort(found, function(a, b)
      if a.score ~= b.score then
         return a.score > b.score
      end
      return a.number < b.number
   end)
   local list = {}
   for i = 1, math.min(#found, FEW_NEAR) do
      if found[1].score == math.huge and found[i].score < math.huge then
         break -- names that hold what was asked for leave no doubt
      end
      list[i] = { name = found[i].name, kind = found[i].kind }
   end
   return list
end

-- ---- the whole plan ----

--- What goes whole to load_weights, by reason and place: how many, their bytes, the first of them.
function explain.why_full(state)
   local groups, by_key = {}, {}
   for i, param in ipairs(state.params) do
      if state.view.mode(i) == "full" then
         local decision = state.view.decision(i)
         local key = ("%s\0%s"):format(decision.where, decision.reason)
         local found = by_key[key]
         if not found then
            found = { reason = decision.reason, where = decision.where, first = param.name, parameters = 0, bytes = 0 }
            by_key[key], groups[#groups + 1] = found, found
         end
         found.parameters, found.bytes = found.parameters + 1, found.bytes + decision.bytes
      end
   end
   return groups
end

--- Live tensors of this worker with bytes that nothing writes in place: { name =, bytes = } each; nil where the plan is refused
-- before that is known.
function explain.uncovered(state)
   return state.uncovered
end

-- ---- questions ----

local function answer_name(state, answer, name)
   if name == "" then
      answer.full, answer.uncovered = explain.why_full(state), explain.uncovered(state)
      return
   end
   local number = state.number_of[name]
   answer.parameter = number and explain.parameter(state, number)
   answer.live = explain.live(state, name)
   if answer.parameter or answer.live then
      return
   elseif name:find("[*{]") then
      answer.matches, answer.bad_pattern = explain.find(state, name)
   else
      answer.near = explain.near(state, name)
   end
end

--- Numbers that a double does not hold become texts; `value` itself is changed.
function explain.exact(value)
   if type(value) == "table" then
      for key, item in pairs(value) do
         value[key] = explain.exact(item)
      end
   elseif type(value) == "number" and math.abs(value) > LARGEST then
      return ("%.0f"):format(value)
   end
   return value
end

--- What questions are asked of.
-- @param view the functions of explain.c
-- @param context of resolve.resolve or resolve.open; nil where only a plan is known
-- @param options { all =, one_rank = }
function explain.open(view, context, options)
   local state = { view = view, knows_rules = context ~= nil, all = options.all, one_rank = options.one_rank, number_of = {}, uncovered = {} }
   state.trainers, state.workers, state.rank = view.world()
   state.context = context or { shapes = {}, live = {}, live_names = {} }
   state.context.plan, state.context.by_canonical = view, {}
   local kept = state.context.kept
   if kept then
      state.params, state.number_of, state.uncovered = kept.params, kept.number_of, kept.uncovered
      return state
   end
   state.params = resolve.params(state.context)
   for i, param in ipairs(state.params) do
      state.number_of[param.name] = i
   end
   return state
end

local function ask(state, question, problem)
   local answer = { name = question.name, trainers = state.trainers, workers = state.workers, rank = state.rank,
                    problem = problem and (problem:gsub("^destination: ", "")) }
   answer_name(state, answer, question.name)
   state.context.plan, state.context.by_canonical = nil, nil -- they are for this call
   return core.canonical(explain.exact(copy(answer)))
end

--- Asks a plan whose destinations are set, as JSON.
-- @param view the functions of explain.c
-- @param question { name =, all =, one_rank = }
-- @param context what resolve.resolve gave, or nil
function explain.plan(view, question, context)
   local state = explain.open(view, context, question)
   if context and context.kept then
      return ask(state, question, context.kept.problem)
   elseif context then
      local _, uncovered = view.check()
      state.uncovered = uncovered
   end
   return ask(state, question)
end

--- Asks a plan without destinations: fills them in as far as the rules allow.
-- @param rules a family's name, a path, or nil
function explain.rules(view, question, rules)
   local context = resolve.open(view, rules)
   local state = explain.open(view, context, question)
   local failed, problem = attempt.resolve(context, state.params, function(param)
      return param.name == question.name
   end)
   state.uncovered = nil
   if failed == 0 then
      problem, state.uncovered = view.check()
   end
   return ask(state, question, problem)
end

return explain
