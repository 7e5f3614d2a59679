--- The words of rule files: what a file sees beside plain Lua. Each makes a small value and remembers the line it was
-- written on; nothing is looked up or moved here. lua/README.md tells what each word means.
-- @module sluice.words

jit.off(true, true)

local check = require "sluice.check"
local default = require "sluice.default"
local match = require "sluice.match"
local nearest = require "sluice.nearest"
local sandbox = require "sluice.sandbox"

local words = {}

local MOST_DIM = 7
local LARGEST = 2 ^ 53
local MOST_RANKS = 2 ^ 31 - 1
local MOST_SPREAD = 2 ^ 20

-- What kind of value a table made by a word is. Rule code cannot reach this, and so cannot make such values by hand. It
-- holds an empty table for each: what was checked when it was made cannot be changed afterwards.
local kinds = setmetatable({}, { __mode = "k" })
local opened = setmetatable({}, { __mode = "k" })
local SEALED = {}

local function made(kind, value)
   local handle = setmetatable({}, SEALED)
   kinds[value], kinds[handle], opened[handle] = kind, kind, value
   return handle
end

--- The value behind what a word gave to rule code.
function words.value(handle)
   return opened[handle]
end

--- The kind of a value that a word made ("rule", "span", "shard", ...), nil for any other value.
function words.kind(value)
   return (type(value) == "table" or type(value) == "function") and kinds[value] or nil
end

-- Whether a chunk is Sluice's own, which no rule's author wrote.
local function is_own(source)
   return source:find("^@sluice/") and not source:find("^@sluice/rules/")
end

-- "file:line" of the rule code that is running.
local function place()
   for level = 2, 60 do
      local frame = debug.getinfo(level, "Sl")
      if not frame then
         break
      elseif frame.currentline > 0 and not is_own(frame.source) then
         return frame.source:sub(2) .. ":" .. frame.currentline
      end
   end
   return "a rule file"
end

words.place = place

local function raise(text, ...)
   sandbox.raise(place() .. ": " .. text:format(...))
end

function SEALED.__newindex(handle)
   raise("a %s cannot be changed; make another one", kinds[handle])
end

local function shown(value)
   if type(value) == "string" then
      return '"' .. check.shorten(value) .. '"'
   elseif type(value) == "number" and value == math.floor(value) and math.abs(value) <= LARGEST then
      return ("%.0f"):format(value)
   elseif kinds[value] then
      return "a " .. kinds[value]
   end
   return type(value) == "number" and ("%.14g"):format(value) or type(value) == "boolean" and tostring(value) or type(value)
end

words.shown = shown

local function integer(value, what, low, high)
   if type(value) ~= "number" or value ~= math.floor(value) or value < low or value > (high or LARGEST) then
      raise("%s (%s) must be an integer%s", what, shown(value),
         high and high < LARGEST and (" from %.0f to %.0f"):format(low, high) or (" of at least %.0f"):format(low))
   end
   return value
end

local function integer_or_pick(value, what, low)
   return words.kind(value) == "pick" and opened[value] or integer(value, what, low)
end

-- ---- rules ----

-- rule "pattern" { ... }
local function rule(pattern)
   local where = place()
   if type(pattern) ~= "string" or pattern == "" then
      raise("rule (%s) must be followed by a pattern in quotes", shown(pattern))
   end
   local function body(table_)
      if type(table_) ~= "table" or kinds[table_] then
         raise('rule "%s" (%s) must be followed by a table in braces', pattern, shown(table_))
      end
      return made("rule", { pattern = pattern, body = table_, place = where })
   end
   kinds[body] = "rule without braces"
   return body
end

-- where "pattern" (pins)
local function where(pattern)
   local at = place()
   if type(pattern) ~= "string" or pattern == "" then
      raise("where (%s) must be followed by a pattern in quotes", shown(pattern))
   end
   return function(...)
      local pins = { ... }
      for i = 1, select("#", ...) do
         if words.kind(pins[i]) ~= "pin" then
            raise('where "%s" (%s) must be followed by pins', pattern, shown(pins[i]))
         end
         pins[i] = opened[pins[i]]
      end
      return made("where", { pattern = pattern, pins = pins, place = at })
   end
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
            integer(option, "shard: " .. key, 1, key == "parts" and MOST_RANKS or LARGEST)
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

-- ---- numbers ----

-- The entry of a list that the captured number names, counted from 0; an entry may itself be a list, one for each copy.
local function pick(capture, list)
   if type(capture) ~= "string" or not capture:find("^[%a_][%w_]*$") then
      raise("pick (%s) must begin with the name of a capture", shown(capture))
   elseif type(list) ~= "table" or kinds[list] or #list == 0 then
      raise('pick("%s") (%s) needs a list of numbers', capture, shown(list))
   end
   local copy, several = {}, false
   for i = 1, #list do
      copy[i] = list[i]
      if type(list[i]) == "table" and not kinds[list[i]] and #list[i] > 0 then
         copy[i], several = {}, true
         for k = 1, #list[i] do
            copy[i][k] = integer(list[i][k], ('pick("%s")[%d][%d]'):format(capture, i - 1, k - 1), 0)
         end
      else
         integer(list[i], ('pick("%s")[%d]'):format(capture, i - 1), 0)
      end
   end
   return made("pick", { capture = capture, list = copy, several = several })
end

local function divide(a, b)
   integer(a, "divide", 0)
   integer(b, "divide: by", 1)
   if a % b ~= 0 then
      raise("%.0f does not divide by %.0f", a, b)
   end
   return a / b
end

local function round_up(a, b)
   integer(a, "round_up", 0)
   integer(b, "round_up: to a multiple of", 1)
   return math.ceil(a / b) * b
end

local function ceil_divide(a, b)
   integer(a, "ceil_divide", 0)
   integer(b, "ceil_divide: by", 1)
   return math.ceil(a / b)
end

-- How many of `total` things each of `ranks` gets, and how many different parts there are: fewer things than ranks are
-- repeated, never split.
local function share(total, ranks)
   integer(total, "share", 1)
   integer(ranks, "share: among", 1)
   if total >= ranks then
      if total % ranks ~= 0 then
         raise("%.0f cannot be shared among %.0f ranks: it must divide", total, ranks)
      end
      return total / ranks, ranks
   elseif ranks % total ~= 0 then
      raise("%.0f cannot be repeated over %.0f ranks: the ranks must divide by it", total, ranks)
   end
   return 1, total
end

local function even_counts(total, ranks)
   integer(total, "spread", 1, MOST_SPREAD)
   integer(ranks, "spread: over", 1, MOST_SPREAD)
   local counts = {}
   for rank = 1, ranks do
      counts[rank] = math.floor(total / ranks) + (rank <= total % ranks and 1 or 0)
   end
   return counts
end

-- Adds what one more rank holds: the first time a thing comes its number stands alone, then a list of them.
local function add_held(held, thing, number)
   local before = held[thing + 1]
   if before == nil then
      held[thing + 1] = number
   elseif type(before) == "table" then
      before[#before + 1] = number
   else
      held[thing + 1] = { before, number }
   end
end

-- The same from lists of what each rank holds, by number, in its order; a thing may have several copies.
local function spread_lists(lists)
   local owner, position, most, sum = {}, {}, -1, 0
   for rank = 1, #lists do
      local list = lists[rank]
      if type(list) ~= "table" or kinds[list] then
         raise("spread[%d] (%s) must be a list of what rank %d holds", rank - 1, shown(list), rank - 1)
      end
      sum = sum + #list
      if sum > MOST_SPREAD then
         raise("spread (%.0f) must be at most %.0f things", sum, MOST_SPREAD)
      end
      for i = 1, #list do
         local thing = integer(list[i], ("spread[%d][%d]"):format(rank - 1, i - 1), 0, MOST_SPREAD)
         most = math.max(most, thing)
         add_held(owner, thing, rank - 1)
         add_held(position, thing, i - 1)
      end
   end
   for thing = 0, most do
      if owner[thing + 1] == nil then
         raise("spread: no rank holds %.0f, but one holds %.0f", thing, most)
      end
   end
   return { owner = owner, position = position }
end

-- Which rank owns each of `total` things in order, and as which of its own: the first ranks hold one more where it does not
-- divide. A list instead of a number says how many each rank holds, a list of lists which ones.
local function spread(total, ranks)
   local is_list = type(total) == "table" and not kinds[total]
   if is_list and ranks ~= nil and #total ~= integer(ranks, "spread: over", 1, MOST_SPREAD) then
      raise("spread has a list of %.0f ranks for %.0f", #total, ranks)
   elseif is_list and type(total[1]) == "table" then
      return spread_lists(total)
   end
   local counts = is_list and total or even_counts(total, ranks)
   local owner, position, sum = {}, {}, 0
   for rank = 1, #counts do
      sum = sum + integer(counts[rank], ("spread[%d]"):format(rank - 1), 0, MOST_SPREAD)
      if sum > MOST_SPREAD then
         raise("spread (%.0f) must be at most %.0f things", sum, MOST_SPREAD)
      end
      for i = 1, counts[rank] do
         owner[#owner + 1], position[#position + 1] = rank - 1, i - 1
      end
   end
   return { owner = owner, position = position }
end

-- ---- the host ----

-- What hosts say of themselves; reading one that is absent gives nil, reading any other absent name is a mistake.
local HOST_KEYS = {}
for key in ([[architecture quantization pipeline_parallel_size tensor_parallel_size num_attention_heads num_key_value_heads
   head_dim hidden_size intermediate_size moe_intermediate_size num_experts vocab_size padded_vocab_size tie_word_embeddings
   num_hidden_layers finalizes_modules weight_block_size repacks
   pipeline_layers expert_parallel_size moe_tensor_parallel_size expert_map live_experts serves_mtp
   n_routed_experts n_shared_experts num_local_experts num_experts_per_tok first_k_dense_replace num_nextn_predict_layers
   decoder_sparse_step mlp_only_layers shared_expert_intermediate_size
   q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim attention_bias use_sliding_window vision_config]]):gmatch("%S+") do
   HOST_KEYS[key] = true
end

-- Why everything goes whole to the host's loader, unless the file says that it knows better; false where nothing speaks for it.
local function policy_word(host)
   return function(knows)
      if type(knows) ~= "table" or kinds[knows] then
         raise("policy (%s) must be followed by a table in braces: what the file places all the same", shown(knows))
      end
      local known = { quantization = {} }
      for key, value in pairs(knows) do
         if key ~= "quantization" and key ~= "pipeline" then
            raise("policy: unknown key '%s'%s", tostring(key), nearest.hint(tostring(key), { "pipeline", "quantization" }))
         elseif key == "pipeline" then
            known.pipeline = value
         else
            for i, name in ipairs(type(value) == "table" and value or { value }) do
               if type(name) ~= "string" then
                  raise("policy: quantization[%d] (%s) must be a text", i, shown(name))
               end
               known.quantization[name] = true
            end
         end
      end
      return default.policies(host, known)[1] or false
   end
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
      local matcher = match.new()
      for number, simple in ipairs(read.simples) do
         matcher:add(simple, number, true)
      end
      for _, name in ipairs(live.names) do
         if matcher:find(name) then
            return live.read(name)
         end
      end
   end
end

local function frozen(values, name, missing)
   return setmetatable({}, {
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
   local known = nearest.keys(HOST_KEYS)
   for key in pairs(values) do
      known[#known + 1] = key
   end
   return values, frozen(values, "host", function(key)
      if not HOST_KEYS[key] then
         raise("the host's description has no '%s'%s", tostring(key), nearest.hint(tostring(key), known))
      end
   end)
end

--- Says how to ask where Lua met a nil that the host should have said.
function words.silent_host(problem, environment)
   local key = problem:match("field '([%w_]+)' %(a nil value%)$")
   if key and HOST_KEYS[key] and environment.optional(key) == nil then
      return ('; the host does not say it: required "%s" asks for it'):format(key)
   end
   return ""
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
      return frozen(own, name, function(axis)
         return AXES[axis] and 1 or unknown(axis)
      end)
   end
   local mesh_words = {}
   for name, own in pairs(by_mesh) do
      mesh_words[name] = frozen_axes(own, "meshes." .. name)
   end
   return frozen_axes(sizes, "axes"), frozen(mesh_words, "meshes", function(name)
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
-- @param live { names = in order, read = function(name) -> { name =, dtype =, shape =, attributes = } }
function words.environment(host, meshes, live)
   local axes, mesh_sizes, known_axis = axis_words(meshes)
   local values, frozen_values = frozen_host(host)
   local shard = shard_word(known_axis)
   local function required(key)
      local value = values[key]
      if value == nil then
         raise("the host's description must say '%s'", tostring(key))
      end
      return value
   end
   local function optional(key)
      return values[key]
   end
   return {
      host = frozen_values, axes = axes, meshes = mesh_sizes, required = required, optional = optional,
      live = live_word(live), policy = policy_word(values),
      rule = rule, where = where, span = span, index = index,
      shard = shard, pin = pin_word(known_axis), first = first_word(known_axis),
      column = made("shard", { axis = "tp", dim = 0 }), row = made("shard", { axis = "tp", dim = 1 }),
      replicate = made("replicate", {}),
      pick = pick, divide = divide, ceil_divide = ceil_divide, round_up = round_up, share = share, spread = spread,
   }
end

return words
