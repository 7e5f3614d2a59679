--- Decides where every parameter of a plan lands on the workers: by the rules of a rule file, by the default resolver where
-- no rule speaks. Nothing here depends on which worker asks, save the default resolver's look at live tensors.
-- @module sluice.resolve

local check = require "sluice.check"
local companions = require "sluice.companions"
local core = require "sluice.core"
local default = require "sluice.default"
local hosts = require "sluice.host"
local modules = require "sluice.modules"
local nearest = require "sluice.nearest"
local rule = require "sluice.rule"
local scales = require "sluice.scales"
local target = require "sluice.target"
local words = require "sluice.words"

local resolve = {}

local DIRECT, FULL, ALIAS, SKIP = 1, 2, 3, 4
local DEFAULT = "default resolver"
local NO_PINS, NO_TEMPLATES = {}, {}
local MOST_TARGETS = 1024 -- as plan.h
local LONGEST, LONGEST_SHOWN = 4096, 200 -- bytes of a name

--- The place of a decision that no rule made.
resolve.DEFAULT = DEFAULT

-- ---- what is there ----

local function parse_shape(cache, key)
   local shape = cache[key]
   if not shape then
      shape = {}
      for extent in key:gmatch("%d+") do
         shape[#shape + 1] = tonumber(extent)
      end
      cache[key] = shape
   end
   return shape
end

local function read_params(context)
   local params = {}
   for i = 1, context.plan.count() do
      local name, dtype, shape_key, allow_full = context.plan.param(i)
      params[i] = { number = i, name = name, dtype = dtype, shape_key = shape_key, shape = parse_shape(context.shapes, shape_key),
                    allow_full = allow_full }
   end
   return params
end

-- Live tensors by name; attributes are read when they are asked for.
local function read_live(context)
   local live, names = {}, {}
   for i = 1, context.plan.live_count() do
      local name, dtype, shape_key, contiguous = context.plan.live(i)
      names[i] = name
      live[name] = { dtype = dtype, shape = parse_shape(context.shapes, shape_key), contiguous = contiguous, number = i }
   end
   return live, names
end

local function read_attributes(context, name, live)
   if not live.attributes then
      live.attributes = check.attributes(name, context.plan.attributes(live.number))
   end
   return live
end

-- Of names that differ in numbers only, the first: there are few, however many layers and experts a model has.
local function first_of_each_kind(names)
   local seen, list = {}, {}
   for _, name in ipairs(names) do
      local kind = ("." .. name .. "."):gsub("%.%d+%f[.]", ".#")
      if not seen[kind] then
         seen[kind], list[#list + 1] = true, name
      end
   end
   return list
end

-- What a rule file sees of live tensors.
local function shown_live(context)
   return {
      names = context.live_names, kinds = first_of_each_kind(context.live_names),
      number = function(name)
         return context.live[name] and context.live[name].number
      end,
      read = function(name)
         local live = read_attributes(context, name, context.live[name])
         return { name = name, dtype = live.dtype, shape = { unpack(live.shape) }, attributes = words.plain(live.attributes) }
      end,
   }
end

-- ---- the default resolver ----

local function shard_axis(meshes)
   for _, mesh in ipairs(meshes) do
      for number, axis in ipairs(mesh.axes) do
         if axis[1] == "tp" then
            return axis[2], mesh.name, number - 1
         end
      end
   end
   return 1, meshes[1].name
end

-- A whole parameter into a live tensor of its own shape, cut along one dim or along none.
local function plain_template(context, ndim, dim)
   local key = ndim * 16 + (dim or 15)
   local id = context.plain[key]
   if not id then
      local ranges, order = {}, {}
      for i = 1, ndim do
         ranges[i], order[i] = { 0, 1, -1, 0 }, i - 1
      end
      local tp, mesh, axis = shard_axis(context.meshes)
      local placements = dim and tp > 1 and { { axis, dim, tp, 0, 0 } } or {}
      id = context.plan.template(mesh, placements, ranges, ranges, order, "none")
      context.plain[key] = id
   end
   return id
end

local function plain_live(context, param)
   local name = context.set and rule.live_name(context.set, param.canonical) or param.canonical
   local live = context.live[name]
   return name, live and read_attributes(context, name, live)
end

local function decide_by_default(context, param)
   local policy = default.policies(context.host, context.meshes)[1]
   param.by_default = true
   if policy then
      return FULL, policy, DEFAULT
   end
   local name, live = plain_live(context, param)
   local problems, dim = default.problems(param, live, (shard_axis(context.meshes)))
   if problems[1] then
      return FULL, problems[1], DEFAULT
   end
   param.targets = { name, plain_template(context, #param.shape, dim) }
   return DIRECT, ("its loader (%s) is a plain copy"):format(live.attributes.loader), DEFAULT
end

--- Every condition of the default resolver that fails for a parameter; the module rule is not among them.
function resolve.problems(context, param)
   local _, live = plain_live(context, param)
   local list = default.policies(context.host, context.meshes)
   for _, problem in ipairs((default.problems(param, live, (shard_axis(context.meshes))))) do
      list[#list + 1] = problem
   end
   return list
end

-- ---- rules ----

local function shown(name)
   return check.shorten(name, LONGEST_SHOWN)
end

local function fail(said, param, text, ...)
   check.raise("SCRIPT", ('%s: rule "%s": %s %s'):format(said.place, shown(said.pattern), shown(param.name), text:format(...)))
end

local function check_shape(said, param)
   local wanted = said.shape
   local good = not wanted or #wanted == #param.shape
   for i = 1, wanted and good and #wanted or 0 do
      good = good and (wanted[i] == "*" or wanted[i] == param.shape[i])
   end
   if not good then
      local items = {}
      for i, extent in ipairs(wanted) do
         items[i] = tostring(extent)
      end
      fail(said, param, "has shape %s; the rule wants [%s]", default.shape_text(param.shape), table.concat(items, ","))
   end
end

local function check_scale_shape(context, said, param)
   local block, weight = context.set.scales.block, param.weight
   local wanted = scales.shape_problem(block, weight.shape, param.shape)
   if wanted then
      fail(said, param, "has shape %s; with a number for each block of [%s] of %s %s it has %s", default.shape_text(param.shape),
         table.concat(block, ","), shown(weight.name), default.shape_text(weight.shape), default.shape_text(wanted))
   end
end

-- The announced name that comes nearest to one that is not.
local function announced_hint(context, name)
   local found = nearest.word(name, nearest.keys(context.by_canonical), 3)
   return found and (" (did you mean %s?)"):format(found) or ""
end

local function add_companion(context, said, param, companion)
   local other = context.by_canonical[companion]
   if other and other ~= param then
      param.companions = param.companions or {}
      param.companions[#param.companions + 1] = other.number
   elseif not other then
      fail(said, param, "must come with its companion %s, which the trainer does not announce%s", shown(companion),
         announced_hint(context, companion))
   end
end

local function check_companions(context, entry, matcher, param)
   param.companions = nil
   local said = entry.said
   for _, template in ipairs(param.weight == nil and said.companion or {}) do
      add_companion(context, said, param, template(matcher, param.ruled, entry.bound))
   end
   local partner = #said.companion == 0 and said.mode ~= "skip" and scales.partner(context.set, param)
   if partner then
      add_companion(context, said, param, partner)
   end
end

-- On a worker that surely holds elements, a live name that is missing is a mistake that can be told at once.
local function check_live(context, said, param, live, template)
   if #live > LONGEST then
      fail(said, param, "goes into %s, a name of %d bytes; a name has at most %d", shown(live), #live, LONGEST)
   elseif template.everywhere and not context.live[live] then
      fail(said, param, "goes into %s, which is no live tensor%s", shown(live), nearest.hint(live, context.live_names))
   end
end

--- The live tensor that a parameter's rule names in its strip `i`.
-- @param entry of the matcher set.rules, right after it found param.ruled; nil: the parameter's own name
-- @param trace of rule.live_name
function resolve.live_name(set, entry, i, param, trace)
   local into = entry and entry.said.into[i]
   return rule.live_name(set, into and into(set.rules, param.ruled, entry.bound) or param.ruled, trace) .. param.ending
end

-- Gives back why the trainers' shards do not let the parameter be converted as its rule says, if so.
local function set_targets(context, entry, matcher, param)
   local pins, pins_key = NO_PINS, ""
   local pin_matcher = context.set.pins
   local where = pin_matcher and pin_matcher:find(param.ruled)
   if where then
      pins, pins_key = target.pins(where, pin_matcher, param.ruled)
   end
   local targets, count, blocked = {}, 0, nil
   for i, strip in ipairs(entry.said.strips) do
      local live = resolve.live_name(context.set, entry, i, param)
      -- What a strip clears it clears when the weight comes.
      local templates = strip.zero and param.weight and NO_TEMPLATES
         or target.templates(context, strip, entry, matcher, param, pins, pins_key)
      for copy = 1, #templates do
         local made = templates[copy]
         check_live(context, entry.said, param, live, made)
         count = count + 2
         targets[count - 1], targets[count] = live, made.id
         if made.scales then
            blocked = blocked or context.plan.blocked(param.number, made.id)
            check_live(context, entry.said, param, live .. context.set.scales.ending, made)
            count = count + 2
            targets[count - 1], targets[count] = live .. context.set.scales.ending, made.scales
         end
      end
   end
   if count > 2 * MOST_TARGETS then
      fail(entry.said, param, "goes to %d places; %d are allowed", count / 2, MOST_TARGETS)
   end
   param.targets = targets
   return blocked
end

local function reason_of(said)
   said.reason = said.reason or ('rule "%s"'):format(said.pattern)
   return said.reason
end

local function note_loaded(context, live)
   if context.live[live] and not context.is_loaded[live] then
      context.is_loaded[live] = true
      context.loaded[#context.loaded + 1] = live
   end
end

--- The live tensors that the host's loader writes from a full parameter: where its rule would have put it, and its scales.
function resolve.loads(context, param)
   local set, list = context.set, {}
   local entry = set and set.rules:find(param.ruled)
   for i = 1, math.max(1, entry and entry.said.strips and #entry.said.strips or 0) do
      list[#list + 1] = set and resolve.live_name(set, entry, i, param) or param.canonical
      if entry and entry.said.strips and set.scales and target.converted(context, entry, entry.said.strips[i], param) == "float8_e4m3fn" then
         list[#list + 1] = list[#list] .. set.scales.ending
      end
   end
   return list
end

local function note_loaded_by(context, param)
   for _, name in ipairs(resolve.loads(context, param)) do
      note_loaded(context, name)
   end
end

local function decide_by_rule(context, entry, matcher, param)
   local said = entry.said
   if param.weight == nil then
      check_shape(said, param)
   elseif param.weight and said.mode ~= "skip" then
      check_scale_shape(context, said, param)
   end
   check_companions(context, entry, matcher, param)
   if said.mode == "skip" then
      return SKIP, said.text, said.place
   elseif said.mode == "alias" then
      local other = said.alias(matcher, param.ruled, entry.bound) .. param.ending
      local announced = context.by_canonical[other]
      if not announced then
         fail(said, param, "is an alias of %s, which the trainer does not announce%s", shown(other), announced_hint(context, other))
      end
      if announced.shape_key ~= param.shape_key then
         fail(said, param, "of shape %s is an alias of %s of shape %s, which cannot hold the same values", default.shape_text(param.shape),
            shown(other), default.shape_text(announced.shape))
      end
      param.alias = announced.name
      return ALIAS, reason_of(said), said.place
   elseif said.mode == "full" or context.set.full then
      note_loaded_by(context, param)
      if said.mode == "full" then
         return FULL, said.text, said.place
      end
      return FULL, context.set.full, context.set.place.full
   end
   local blocked = set_targets(context, entry, matcher, param)
   if blocked and context.set.otherwise == "full" and param.allow_full then
      param.targets = nil
      note_loaded_by(context, param)
      return FULL, blocked, said.place
   end
   return DIRECT, reason_of(said), said.place
end

local function decide_otherwise(context, param)
   local set = context.set
   if set.full or set.otherwise then
      note_loaded_by(context, param)
   end
   if set.full then
      return FULL, set.full, set.place.full
   elseif set.otherwise == "default" then
      return decide_by_default(context, param)
   elseif set.otherwise == "full" then
      return FULL, "no rule matches, and otherwise is full", set.place.otherwise
   end
   check.raise("SCRIPT", ('%s: no rule matches parameter %s%s%s; add one, or say otherwise = "default" or "full"'):format(set.place.rules,
      shown(param.name), param.canonical ~= param.name and (" (renamed %s)"):format(shown(param.canonical)) or "", rule.hint(set, param.canonical)))
end

local function mode_of(context, param)
   local set = context.set
   if not set then
      return decide_by_default(context, param)
   end
   local entry = set.rules:find(param.ruled)
   if entry then
      return decide_by_rule(context, entry, set.rules, param)
   end
   return decide_otherwise(context, param)
end

--- Decides one parameter, before the module rule. Raises what is wrong with its rule.
function resolve.decide(context, param)
   param.mode, param.reason, param.where = mode_of(context, param)
end

-- ---- after all are decided ----

--- Raises where a parameter ends full that must not.
function resolve.check_full(context, param)
   local require_direct = context.set and context.set.require_direct
   if param.mode == FULL and (require_direct or not param.allow_full) then
      check.raise("INVALID", ("%s: %s ends full, and %s: %s"):format(param.where, param.name,
         param.allow_full and "require_direct holds" or "its allow_full_fallback is false", param.reason))
   end
end

--- Writes the decision on parameter `i` into the plan, which checks it.
function resolve.hand_over(context, i, param)
   local set, targets = context.plan.set, param.targets
   if not targets then
      set(i, param.mode, param.reason, param.where, param.alias)
   elseif #targets == 2 then
      set(i, param.mode, param.reason, param.where, nil, targets[1], targets[2])
   else
      set(i, param.mode, param.reason, param.where, nil, unpack(targets))
   end
   if param.companions then
      context.plan.companions(i, param.companions)
   end
end

local function list_unsourced(context)
   local matcher, list = context.set and context.set.unsourced, {}
   for _, name in ipairs(context.live_names) do
      if matcher and matcher:find(name) then
         list[#list + 1] = name
      end
   end
   return list
end

local function read_host(context)
   local text = context.plan.host()
   local host = text and core.json(text) or {}
   if not check.is_object(host) and next(host) ~= nil then
      check.raise("INVALID", "the host's description must be a JSON object")
   end
   return host
end

--- Reads what decisions hang on: the host's description, the meshes, the rule file, the live tensors.
-- @param plan the functions of resolve.c
-- @param rules a family's name, a path, or nil
function resolve.open(plan, rules)
   local context = { plan = plan, meshes = plan.meshes(), shapes = {}, plain = {}, by_canonical = {}, loaded = {}, is_loaded = {} }
   context.host = read_host(context)
   context.live, context.live_names = read_live(context)
   context.set = rules and rule.load(rules, words.environment(context.host, context.meshes, shown_live(context)), default.repacks(context.host))
   return context
end

--- The parameters of the plan in its order, with the names that rules see.
function resolve.params(context)
   local params, set = read_params(context), context.set
   for _, param in ipairs(params) do
      param.canonical = set and rule.canonical_name(set, param.name) or param.name
      param.ruled, param.ending = param.canonical, "" -- a scale goes by its weight's rule
   end
   if set and set.scales then
      scales.pair(set, params)
   end
   for _, param in ipairs(params) do
      context.by_canonical[param.canonical] = param
   end
   return params
end

--- Whether modules are loaded as wholes.
function resolve.whole_modules(context)
   return not context.set or context.host.finalizes_modules == true
end

--- Hands over what holds for all: which live tensors may stay unwritten, and how strict coverage is.
function resolve.finish(context, whole_modules)
   local by_rules = context.set ~= nil and not context.set.full -- else the host's loader knows what it writes
   context.plan.finish(list_unsourced(context), context.loaded, by_rules, whole_modules)
end

--- Fills in every destination.
-- @param plan the functions of resolve.c
-- @param rules a family's name, a path, or nil
-- @return the context, without what belongs to single parameters, for explain.lua
function resolve.resolve(plan, rules)
   local context = resolve.open(plan, rules)
   local params = resolve.params(context)
   for _, param in ipairs(params) do
      resolve.decide(context, param)
   end
   local whole_modules = resolve.whole_modules(context)
   local cause = whole_modules and modules.apply(context, params, resolve.loads)
   local together = companions.open(context, params, resolve.loads)
   for _, param in ipairs(params) do
      resolve.check_full(context, param)
      companions.check(together, param)
      modules.check(cause, param)
   end
   for i, param in ipairs(params) do
      resolve.hand_over(context, i, param)
   end
   resolve.finish(context, whole_modules)
   context.plan, context.by_canonical, context.loaded, context.is_loaded, context.plain = nil, nil, nil, nil, nil
   return context
end

--- Checks a host's description.
function resolve.check_host(text)
   local value, problem, malformed = check.read_object(text)
   if malformed then
      check.raise("INVALID", "the host's description: " .. problem)
   elseif not value then
      check.raise("INVALID", ("the host's description (%s) must be a JSON object"):format(problem))
   end
   hosts.check(value, problem)
end

return resolve
