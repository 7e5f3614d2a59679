--- Small plans for specs of rules: parameters and live tensors as tables, rule files as text, destinations as text.

local ffi = require "ffi"
local cjson = require "cjson"
local files = require "scripts.files"
local inside = require "spec.support.inside"
local script = require "spec.support.script"

local C = script.C
local resolving = {}

local DIGEST = ("0"):rep(64)

local function init_info(case)
   local params = {}
   for i, param in ipairs(case.params) do
      param = type(param) == "string" and { name = param } or param
      params[i] = {
         name = param.name, dtype_name = param.dtype or "bfloat16", shape = param.shape or { 8, 8 }, src_placements = param.source or cjson.null,
         allow_full_fallback = param.allow_full,
      }
   end
   local axes, trainer_axes = case.axes or { { "tp", case.tp or 1 } }, case.trainers or { { "fsdp", 1 } }
   local workers, trainers = 1, 1
   for _, axis in ipairs(axes) do
      workers = workers * axis[2]
   end
   for _, axis in ipairs(trainer_axes) do
      trainers = trainers * axis[2]
   end
   local meshes = { { name = "", axes = axes } }
   for _, mesh in ipairs(case.meshes or {}) do
      meshes[#meshes + 1] = mesh
   end
   local list = #params == 0 and "[]" or cjson.encode(params):gsub('"shape":{}', '"shape":[]')
   return cjson.encode({
      schema = "sluice/1", master_address = "localhost", master_port = 1, rank_offset = trainers,
      world_size = trainers + workers, source_digest = DIGEST, src_meshes = { { name = "", axes = trainer_axes } }, dst_meshes = meshes,
   }):gsub("}$", function() return ',"params":' .. list .. "}" end)
end

local function live_list(case)
   local list = {}
   for i, live in ipairs(case.live or {}) do
      live = type(live) == "string" and { name = live } or live
      list[i] = {
         name = live.name, dtype = live.dtype or "bfloat16", shape = live.shape or { 8, 8 },
         attributes = type(live.attributes) == "table" and (next(live.attributes) and cjson.encode(live.attributes) or "{}")
            or live.attributes,
      }
   end
   return list
end

--- Writes a rule file; gives its path, which error texts then hold.
function resolving.write(text, path)
   path = path or os.tmpname()
   files.write(path, text)
   return path
end

--- What a case says, read: { state =, plan =, live =, host = }.
function resolving.prepare(case)
   local state = script.new()
   local read = state:read_init_info((init_info(case)))
   assert(read.ok, read.text)
   local host = case.host and (type(case.host) == "string" and case.host or cjson.encode(case.host)) or "{}"
   return { state = state, plan = read.plan, live = script.live_set(live_list(case)), host = host }
end

--- Resolves a case: { params =, live =, tp = or axes = and meshes =, host =, rules = name or path, text = a rule file's text }.
-- In texts the rule file's path reads "FILE".
-- @return { ok, text, plan, live, unsourced, strict, whole_modules, by = { name = { mode, reason, where, alias, line } } }
function resolving.resolve(case)
   local prepared = resolving.prepare(case)
   local state, read, live, host = prepared.state, prepared, prepared.live, prepared.host
   local path = case.text and resolving.write(case.text)
   local resolved = state:resolve(read.plan, live, host, path or case.rules)
   local function clean(text)
      return path and (text:gsub(path:gsub("%p", "%%%0"), "FILE")) or text
   end
   local result = { ok = resolved.ok, text = clean(resolved.text), status = resolved.status, plan = read.plan, live = live, by = {},
                    resolved = resolved, unsourced = {} }
   if path then
      os.remove(path)
   end
   if not result.ok then
      return result
   end
   local line = ffi.new("char[4096]")
   for i = 0, tonumber(C.slc_plan_count(read.plan)) - 1 do
      local param = C.slc_plan_at(read.plan, i)
      C.slc_plan_describe(read.plan, i, line, 4096)
      result.by[ffi.string(param.name)] = {
         mode = ffi.string(C.slc_mode_text(param.mode)), reason = ffi.string(param.reason), where = clean(ffi.string(param.where)),
         alias = param.alias_of ~= nil and ffi.string(param.alias_of) or nil, line = clean(ffi.string(line)), param = param,
      }
   end
   local texts = resolved.resolution.unsourced
   for i = 0, tonumber(texts.count) - 1 do
      result.unsourced[i + 1] = ffi.string(texts.item[i])
   end
   result.strict, result.whole_modules = resolved.resolution.strict_coverage, resolved.resolution.whole_modules
   return result
end

--- Asks about a case, whose destinations are resolved as far as its rules allow.
-- @param name what is asked for
-- @param options { rank = the worker (its `live` is the case's), one_rank =, all = }
-- @return the answer as JSON, in which the rule file's path reads "FILE", or nil and the error's text; the plan, the live set
function resolving.explain(case, name, options)
   local prepared = resolving.prepare(case)
   local question, json, err = ffi.new("slc_question"), ffi.new("char *[1]"), inside.error()
   local path = case.text and resolving.write(case.text)
   local rules = path or case.rules
   question.name, question.live, question.rank, question.rules = name, prepared.live, options.rank, rules
   question.one_rank, question.all = options.one_rank == true, options.all == true
   local status = C.slc_script_describe_host(prepared.state.pointer, prepared.host, #prepared.host, err)
   if status == 0 then
      status = C.slc_explain_rules(prepared.state.pointer, prepared.plan, question, json, err)
   end
   if path then
      os.remove(path)
   end
   local text = status == 0 and ffi.string(json[0]) or inside.text(err)
   C.slc_release(json[0])
   text = path and (text:gsub(path:gsub("%p", "%%%0"), "FILE")) or text
   return status == 0 and text or nil, text, prepared
end

local function box_text(layout, ndim, shape, rank)
   local box = ffi.new("slc_box")
   if not C.slc_layout_box(layout, ndim, shape, rank, box) then
      return "nothing"
   end
   local parts = {}
   for i = 0, ndim - 1 do
      parts[i + 1] = ("[%d,%d)"):format(tonumber(box.low[i]), tonumber(box.high[i]))
   end
   return table.concat(parts, "x")
end

--- The box of a parameter's target on a world rank, as "[0,4)x[0,8)".
function resolving.box(result, name, target, rank)
   local param = result.by[name].param
   local item, shape = param.target[target], ffi.new("int64_t[8]")
   local ndim = C.slc_target_strip(param, item, shape, nil)
   return box_text(item.layout, ndim, shape, rank)
end

--- The box that a trainer holds of a parameter, in the same form.
function resolving.source_box(param, rank)
   return box_text(param.source, param.ndim, param.shape, rank)
end

resolving.error = inside.error

return resolving
