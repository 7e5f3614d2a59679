--- What must come together though no rule says so: a quantized weight and its scale, wherever the host keeps a scale beside such a
-- weight. One without the other leaves scales that are stale. What a rule or the file's `scales` says is resolve.lua's matter.
-- @module sluice.companions

local check = require "sluice.check"
local default = require "sluice.default"

local companions = {}

local DIRECT, FULL = 1, 2
local ENDINGS = { "_scale_inv", "_scale" }
local LONGEST_SHOWN = 200

--- Whether numbers of a dtype mean nothing without a scale.
function companions.is_quantized(dtype)
   return dtype:find("^float8_e[45]m") ~= nil or dtype == "int8"
end

-- The weight's name and the ending of a scale's; nil for any other name.
local function split(name)
   for _, ending in ipairs(ENDINGS) do
      if #name > #ending and name:sub(-#ending) == ending then
         return name:sub(1, -#ending - 1), ending
      end
   end
end

local function is_quantized_weight(param)
   return companions.is_quantized(param.dtype) and not param.canonical:find("scale[^.]*$")
end

-- The live tensors that a parameter is written to, as far as the rules tell.
local function written_by(state, param)
   if param.mode == FULL then
      return state.loads(state.context, param)
   end
   local list = {}
   for i = 1, param.mode == DIRECT and #param.targets or 0, 2 do
      list[#list + 1] = param.targets[i]
   end
   return list
end

-- Which modules announce a scale, which a quantized weight.
local function note_module(state, param)
   local module, last = default.module(param.canonical), param.canonical:match("[^.]*$")
   if last:find("scale", 1, true) and not last:find("^input") then
      state.has_scale[module] = true
   elseif is_quantized_weight(param) then
      state.has_weight[module] = true
   end
end

--- Prepares the checks, after every parameter is decided.
-- @param context of resolve.open
-- @param params of resolve.params
-- @param loads resolve.loads
-- @return for companions.check; nil where the host has no scale beside a quantized weight
function companions.open(context, params, loads)
   local state = { context = context, params = params, loads = loads, scale_of = {} }
   for _, name in ipairs(context.live_names) do
      local weight = split(name)
      if weight and context.live[weight] and companions.is_quantized(context.live[weight].dtype) then
         state.scale_of[weight], state.first = name, state.first or name
      end
   end
   return state.first and state or nil
end

-- Whether the names of two announced parameters say that this one is the other's companion.
local function is_paired(state, param)
   local known, weight = state.context.by_canonical, split(param.canonical)
   local paired = weight and known[weight]
   for _, ending in ipairs(ENDINGS) do
      paired = paired or known[param.canonical .. ending]
   end
   return paired ~= nil
end

-- What all parameters together bring, save those whose companions are of their name: what these bring is for each other. Asked
-- for where one lacks its companion, and most plans have none such.
local function survey(state)
   if not state.written then
      state.written, state.has_scale, state.has_weight = {}, {}, {}
      for _, param in ipairs(state.params) do
         note_module(state, param)
         for _, name in ipairs(is_paired(state, param) and {} or written_by(state, param)) do
            state.written[name] = true
         end
      end
   end
   return state
end

local function is_brought(state, live)
   local unsourced = state.context.set and state.context.set.unsourced
   return survey(state).written[live] or unsourced and unsourced:find(live) ~= nil
end

local function refuse(param, companion, why, ...)
   local by = param.reason:find('^rule "') and param.reason .. ": " or ""
   check.raise("INVALID", ("%s: %s%s must come with its companion %s, which the trainer does not announce: %s"):format(param.where,
      check.shorten(by, LONGEST_SHOWN + 10), check.shorten(param.name, LONGEST_SHOWN), check.shorten(companion, LONGEST_SHOWN), why:format(...)))
end

local function link(param, other)
   param.companions = { other.number }
end

local function check_weight(state, param)
   local is_known, live, scale = false, nil, nil
   for _, name in ipairs(written_by(state, param)) do
      is_known = is_known or state.context.live[name] ~= nil
      if not scale then
         live, scale = name, state.scale_of[name]
      end
   end
   if is_known and not scale then
      return
   end
   local _, wanted = split(scale or state.first)
   for _, ending in ipairs({ wanted, unpack(ENDINGS) }) do
      if state.context.by_canonical[param.canonical .. ending] then
         return link(param, state.context.by_canonical[param.canonical .. ending])
      end
   end
   -- A loader may know the scale by another name.
   local may_have = param.mode == FULL and survey(state).has_scale[default.module(param.canonical)]
   if is_known and not may_have and not is_brought(state, scale) then
      refuse(param, param.canonical .. wanted, "beside live %s stands %s", live, scale)
   elseif not is_known and not may_have then
      refuse(param, param.canonical .. wanted, "the host's quantized weights have scales, as %s", state.first)
   end
end

local function check_scale(state, param, weight, ending)
   local is_known, live = false, nil
   for _, name in ipairs(written_by(state, param)) do
      is_known = is_known or state.context.live[name] ~= nil
      local stem = split(name)
      live = live or stem and state.scale_of[stem] == name and stem
   end
   local other = state.context.by_canonical[weight]
   if other then
      if is_quantized_weight(other) then
         link(param, other)
      end
   elseif live and not is_brought(state, live) then
      refuse(param, weight, "%s is the scale of live %s", state.scale_of[live], live)
   elseif not is_known and ending == "_scale_inv" and not survey(state).has_weight[default.module(weight)] then
      refuse(param, weight, "it is a scale alone")
   end
end

--- Raises where a weight comes without its scale, or a scale without its weight; notes what each must come with.
function companions.check(state, param)
   if not state or param.companions or param.mode ~= DIRECT and param.mode ~= FULL then
      return
   end
   local weight, ending = split(param.canonical)
   if weight then
      check_scale(state, param, weight, ending)
   elseif is_quantized_weight(param) then
      check_weight(state, param)
   end
end

return companions
