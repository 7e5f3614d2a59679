--- The words of rule files: what a file sees beside plain Lua. Each makes a small value and remembers the line it was
-- written on; nothing is looked up or moved here. lua/README.md tells what each word means.
-- @module sluice.words

jit.off(true, true)

local default = require "sluice.default"
local host_keys = require("sluice.host").keys -- reading one that is absent gives nil, reading any other absent name is a mistake
local match = require "sluice.match"
local nearest = require "sluice.nearest"
local numbers = require "sluice.numbers"
local sealed = require "sluice.sealed"

local words = {}

local MOST_DIM = 7
local MOST_RANKS = 2 ^ 31 - 1

local kind, made, place, raise, shown, integer = sealed.kind, sealed.make, sealed.place, sealed.raise, sealed.shown, sealed.integer

words.kind, words.value, words.shown, words.place = sealed.kind, sealed.open, sealed.shown, sealed.place

local function integer_or_pick(value, what, low)
   local stands_for = kind(value) == "pick" or kind(value) == "each"
   return stands_for and sealed.open(value) or integer(value, what, low)
end

-- ---- rules ----

-- rule "pattern" { ... }
local function rule(pattern)
   local where = place()
   if type(pattern) ~= "string" or pattern == "" then
      raise("rule (%s) must be followed by a pattern in quotes", shown(pattern))
   end
   local function body(table_)
      if type(table_) ~= "table" or kind(table_) then
         raise('rule "%s" (%s) must be followed by a table in braces', pattern, shown(table_))
      end
      return made("rule", { pattern = pattern, body = table_, place = where })
   end
   sealed.mark(body, "rule without braces")
   return body
end

-- where "pattern" (pins)
local function where(pattern)
   local at = place()
   if type(pattern) ~= "string" or pattern == "" then
      raise("where (%s) must be followed by a pattern in quotes", shown(pattern))
   end
   local function body(...)
      local pins = { ... }
      for i = 1, select("#", ...) do
         if kind(pins[i]) ~= "pin" then
            raise('where "%s" (%s) must be followed by pins', pattern, shown(pins[i]))
         end
         pins[i] = sealed.open(pins[i])
      end
      return made("where", { pattern = pattern, pins = pins, place = at })
   end
   sealed.mark(body, "where without pins")
   return body
end

-- ---- slices ----

local function span(dim, start, count, step)
   integer(dim, "span: dim", 0, MOST_DIM)
   start = integer_or_pick(start, "span: start", 0)
   if count ~= nil then
      integer(count, "span: count", 1)
   end
   return made("span", { dim = dim, start = start, count = count, step = step == nil and 1 or integer(step, "span: step", 1) })
end

local function index(dim, at)
   return made("index", { dim = integer(dim, "index: dim", 0, MOST_DIM), at = integer_or_pick(at, "index: position", 0) })
end

-- ---- layouts ----

local OPTIONS = { parts = true, chunk = true, split = true }

local function shard_word(known_axis)
   return function(axis, dim, options)
      known_axis("shard", axis)
      integer(dim, "shard: dim", 0, MOST_DIM)
      local value = { axis = axis, dim = dim }
      if options ~= nil and type(options) ~= "table" then
         raise("shard: options (%s) must be a table", shown(options))
      end
      for key, option in pairs(options or {}) do
         if not OPTIONS[key] then
            raise("shard: unknown option '%s'%s", tostring(key), nearest.hint(tostring(key), nearest.keys(OPTIONS)))
         elseif key == "split" then
            if option ~= "ceil" and option ~= "balanced" then
               raise('shard: split (%s) must be "ceil" or "balanced"', shown(option))
            end
         else
            integer(option, "shard: " .. key, 1, key == "parts" and MOST_RANKS or sealed.largest)
         end
         value[key] = option
      end
      if value.chunk and value.split then
         raise("shard: chunk and split say the same thing; one of them must go")
      end
      return made("shard", value)
   end
end

local function first_word(known_axis)
   return function(axis)
      known_axis("first", axis)
      return made("first", { axis = axis })
   end
end

local function pin_word(known_axis)
   return function(axis, coordinate)
      known_axis("pin", axis)
      return made("pin", { axis = axis, coordinate = integer_or_pick(coordinate, "pin: coordinate", 0) })
   end
end

-- ---- the host ----

-- Why everything goes whole to the host's loader, unless the file says that it knows better; false where nothing speaks for it.
local function policy_word(host, meshes)
   return function(knows)
      if type(knows) ~= "table" or kind(knows) then
         raise("policy (%s) must be followed by a table in braces: what the file places all the same", shown(knows))
      end
      local known = { quantization = {} }
      for key, value in pairs(knows) do
         if key ~= "quantization" and key ~= "pipeline" then
            raise("policy: unknown key '%s'%s", tostring(key), nearest.hint(tostring(key), { "pipeline", "quantization" }))
         elseif key == "pipeline" then
            known.pipeline = value
         elseif value then
            for i, name in ipairs(type(value) == "table" and value or { value }) do
               if type(name) ~= "string" then
                  raise("policy: quantization[%d] (%s) must be a text", i, shown(name))
               end
               known.quantization[name] = true
            end
         end
      end
      return default.policies(host, meshes, known)[1] or false
   end
end

-- The first of the live tensors that simple patterns without wildcards name.
local function first_named(live, simples)
   local best
   for _, simple in ipairs(simples) do
      if next(simple.kinds) then
         return nil, true
      end
      local name = table.concat(simple.path, ".")
      local number = live.number(name)
      if number and (not best or number < live.number(best)) then
         best = name
      end
   end
   return best
end

-- The first live tensor that a pattern names, in the order in which the host registered them, or nil.
local function live_word(live)
   return function(pattern)
      local read, problem = nil, "must be a pattern in quotes"
      if type(pattern) == "string" and pattern ~= "" then
         read, problem = match.pattern(pattern)
      end
      if not read then
         raise("live (%s) %s", shown(pattern), problem)
      end
      local named, has_wildcards = first_named(live, read.simples)
      if not has_wildcards then
         return named and live.read(named)
      end
      local matcher = match.new()
      for number, simple in ipairs(read.simples) do
         matcher:add(simple, number, true)
      end
      for _, name in ipairs(pattern:find("%d") and live.names or live.kinds) do
         if matcher:find(name) then
            return live.read(name)
         end
      end
   end
end

-- A table that is asked for its values and holds none to be seen; messages call it a `named`.
local function frozen(values, name, named, missing)
   local table_ = setmetatable({}, {
      __values = values, -- for pairs
      __index = function(_, key)
         local value = values[key]
         if value == nil then
            return missing(key)
         end
         return value
      end,
      __newindex = function(_, key)
         raise("%s.%s cannot be set", name, tostring(key))
      end,
   })
   sealed.mark(table_, named)
   return table_
end

-- JSON from the host without its nulls.
local function plain(value)
   if type(value) == "userdata" then -- null
      return nil
   elseif type(value) ~= "table" then
      return value
   end
   local copy = {}
   for key, item in pairs(value) do
      copy[key] = plain(item)
   end
   return copy
end

words.plain = plain

local function frozen_host(host)
   local values = plain(host)
   local known = nearest.keys(host_keys)
   for key in pairs(values) do
      known[#known + 1] = key
   end
   return values, frozen(values, "host", "host description", function(key)
      if not host_keys[key] then
         raise("the host's description has no '%s'%s", tostring(key), nearest.hint(tostring(key), known))
      end
   end)
end

-- ---- axes ----

-- Axes that deployments use; one that this deployment's workers lack has size 1.
local AXES = { dp = true, pp = true, cp = true, tp = true, ep = true, fsdp = true }

local function axis_words(meshes)
   local sizes, by_mesh = {}, {}
   for _, mesh in ipairs(meshes) do
      local own = {}
      for _, axis in ipairs(mesh.axes) do
         own[axis[1]] = axis[2]
         sizes[axis[1]] = sizes[axis[1]] or axis[2]
      end
      by_mesh[mesh.name] = own
   end
   local known = nearest.keys(AXES)
   for name in pairs(sizes) do
      known[#known + 1] = not AXES[name] and name or nil
   end
   table.sort(known)
   local function unknown(axis)
      raise("'%s' is no axis of the workers' meshes, nor dp, pp, cp, tp, ep or fsdp%s", tostring(axis),
         nearest.hint(tostring(axis), known))
   end
   local function frozen_axes(own, name)
      return frozen(own, name, "table of axes", function(axis)
         return AXES[axis] and 1 or unknown(axis)
      end)
   end
   local mesh_words = {}
   for name, own in pairs(by_mesh) do
      mesh_words[name] = frozen_axes(own, "meshes." .. name)
   end
   return frozen_axes(sizes, "axes"), frozen(mesh_words, "meshes", "table of meshes", function(name)
      raise("the workers have no mesh '%s'%s", tostring(name), nearest.among(tostring(name), nearest.keys(mesh_words)))
   end), function(word, axis)
      if type(axis) ~= "string" then
         raise("%s (%s) must begin with the name of an axis", word, shown(axis))
      elseif not sizes[axis] and not AXES[axis] then
         unknown(axis)
      end
   end
end

--- The names that a rule file sees.
-- @param host the host's description, decoded
-- @param meshes the workers' meshes: a list of { name =, axes = { { name, size }, ... } }
-- @param live { names = in order, kinds = the first of those that differ in numbers only,
--    number = function(name) -> which it is in that order, or nil, read = function(name) -> { name =, dtype =, shape =, attributes = } }
function words.environment(host, meshes, live)
   local axes, mesh_sizes, known_axis = axis_words(meshes)
   local values, frozen_values = frozen_host(host)
   local shard = shard_word(known_axis)
   local function required(key)
      local value = values[key]
      if value == nil then
         raise("the host's description must say '%s'%s", tostring(key), next(values) ~= nil
            and nearest.hint(tostring(key), nearest.keys(values))
            or ", and says nothing: sluice_describe_host gives one, or --host on the command line")
      end
      return value
   end
   local function optional(key)
      return values[key]
   end
   return {
      host = frozen_values, axes = axes, meshes = mesh_sizes, required = required, optional = optional,
      live = live_word(live), policy = policy_word(values, meshes),
      rule = rule, where = where, span = span, index = index,
      shard = shard, pin = pin_word(known_axis), first = first_word(known_axis),
      column = made("shard", { axis = "tp", dim = 0 }), row = made("shard", { axis = "tp", dim = 1 }),
      replicate = made("replicate", {}),
      pick = numbers.pick, each = numbers.each, divide = numbers.divide, ceil_divide = numbers.ceil_divide, round_up = numbers.round_up,
      share = numbers.share, spread = numbers.spread,
   }
end

return words
