--- Init info: what a trainer sends to every worker. Reads both forms (schema_version 2 and "sluice/1"), checks every field,
-- computes the source digest and hands meshes, layouts and parameters to C, which builds the plan.
--
-- Errors read "<path> (<found>) <rule>". The unique id is a secret and appears in none of them.
-- @module sluice.init_info

local check = require "sluice.check"
local core = require "sluice.core"
local general_form = require "sluice.init_general_form"
local seed_form = require "sluice.init_seed_form"

local init_info = {}

local MOST_RANKS = 2 ^ 31 - 1
local HOW_TO_SEAL = "; sluice_seal_init_info fills it in"

-- ---- where to meet ----

local ADDRESS_RULE = "must be a host name, an IPv4 address or an IPv6 address, which may stand in brackets"

local function is_host_name(text)
   if #text > 253 or text:find("[^%w%-%._]") then
      return false
   end
   if text:find("^[%d%.]+$") then
      return core.is_address(text, 4)
   end
   for label in (text:gsub("%.$", "") .. "."):gmatch("([^%.]*)%.") do
      if label == "" or #label > 63 or label:find("^%-") or label:find("%-$") then
         return false
      end
   end
   return true
end

local function is_ipv6(text)
   return core.is_address(text:gsub("%%[%w%-%._]+$", ""), 6) and #text < 100
end

local function read_address(value)
   if not check.is_name(value) then
      check.fail(value, ADDRESS_RULE, "master_address")
   end
   local inner = value:match("^%[(.*)%]$")
   if inner and is_ipv6(inner) then
      return inner
   elseif not inner and (value:find(":", 1, true) and is_ipv6(value) or is_host_name(value)) then
      return value
   end
   check.fail(value, ADDRESS_RULE, "master_address")
end

local function need_integer(info, key, low, high)
   if not check.is_integer(info[key], low, high) then
      check.fail(info[key], ("must be an integer from %d to %.0f"):format(low, high), key)
   end
   return info[key]
end

local function meet(info, builder)
   local address = read_address(info.master_address)
   local port = need_integer(info, "master_port", 1, 65535)
   local trainers = need_integer(info, "rank_offset", 1, MOST_RANKS)
   local world = need_integer(info, "world_size", 1, MOST_RANKS)
   if trainers >= world then
      check.fail(trainers, ("must be below world_size (%.0f)"):format(world), "rank_offset")
   end
   builder.meet(address, port, trainers, world)
   return trainers, world
end

-- ---- which form ----

local KNOWN = 'known are "schema_version": 2 and "schema": "sluice/1"'

local function choose_form(info)
   local version, schema = info.schema_version, info.schema
   if version ~= nil and schema ~= nil then
      check.fail(schema, "must not stand beside schema_version", "schema")
   elseif schema ~= nil then
      if schema ~= "sluice/1" then
         check.fail(schema, "must be a schema that this version knows; " .. KNOWN, "schema")
      end
      return general_form
   elseif version ~= 2 then
      check.fail(version, "must be a schema that this version knows; " .. KNOWN, "schema_version")
   end
   return seed_form
end

-- ---- what both forms share ----

local ID_RULE = "must be base64 of exactly 128 bytes"

local function read_common(info, builder)
   local id = info.nccl_unique_id_b64
   if id ~= nil and (type(id) ~= "string" or not builder.unique_id(id)) then
      check.raise("INVALID", "nccl_unique_id_b64 (not shown) " .. ID_RULE)
   end
   if info.max_cta ~= nil then
      builder.max_cta(need_integer(info, "max_cta", 1, MOST_RANKS))
   end
   if not check.is_list(info.params) then
      check.fail(info.params, "must be a list", "params")
   end
end

local function read_digest(value)
   if type(value) ~= "string" or #value ~= 64 or value:find("[^0-9a-f]") then
      check.fail(value, "must be 64 lower-case hex digits" .. HOW_TO_SEAL, "source_digest")
   end
   return value
end

local function decode(builder)
   local info, odd_path, odd_text = builder.json()
   if info == nil then
      check.raise("INVALID", odd_path)
   elseif type(info) == "table" and next(info) == nil then
      check.raise("INVALID", "the text (empty) must be an object with the fields of an init info")
   elseif not check.is_object(info) then
      check.fail(info, "must be an object", "the text")
   end
   return info, odd_path, odd_text
end

local function refuse_odd(path, text)
   if path then
      check.raise("INVALID", ("%s (%s) %s"):format(path == "" and "the text" or path, text,
         text == "{}" and "must not be empty" or "must be an integer of at most 2^53 in size"))
   end
end

local function with_digest(keys)
   local all = { "source_digest" }
   for i, key in ipairs(keys) do
      all[i + 1] = key
   end
   return all
end

-- Everything but source_digest. Gives the digest.
local function read_rest(info, form, builder, trainers, world)
   read_common(info, builder)
   builder.open(trainers, world - trainers)
   form.read(info, builder, trainers, world - trainers)
   return core.canonical_digest(form.hashed(info))
end

local function read(builder, draft)
   local info, odd_path, odd_text = decode(builder)
   local trainers, world = meet(info, builder)
   refuse_odd(odd_path, odd_text)
   local form = choose_form(info)
   local unsealed = info.source_digest == nil
   if unsealed and not draft and pcall(check.keys, info, form.required, form.optional) then
      check.raise("INVALID", "source_digest (missing) must be that of params" .. HOW_TO_SEAL)
   end
   check.keys(info, unsealed and draft and form.required or with_digest(form.required), form.optional)
   local told = not unsealed and read_digest(info.source_digest) or nil
   local computed = read_rest(info, form, builder, trainers, world)
   builder.digests(told or computed, computed)
end

--- Reads init info into the builder of init_info.c.
function init_info.read(builder)
   read(builder, false)
end

--- The same, but for plans that no other rank has to agree with: source_digest may be missing.
function init_info.draft(builder)
   read(builder, true)
end

--- The same init info with its digest filled in, in canonical form.
function init_info.seal(builder)
   local info, odd_path, odd_text = decode(builder)
   info.source_digest = nil
   local trainers, world = meet(info, builder)
   refuse_odd(odd_path, odd_text)
   local form = choose_form(info)
   check.keys(info, form.required, form.optional)
   info.source_digest = read_rest(info, form, builder, trainers, world)
   return core.canonical(info)
end

--- The same init info, which has been read before, without its unique id.
function init_info.without_secret(builder)
   local info = decode(builder)
   info.nccl_unique_id_b64 = nil
   return core.canonical(info)
end

return init_info
