--- A Lua state of the library's own, for specs of what runs inside it: init info, the sandbox, rules.
--
--    local script = require("spec.support.script").new()
--    local text, err = script:evaluate("return 1 + 1")
--    local read = script:read_init_info(json)

local ffi = require "ffi"
local inside = require "spec.support.inside"

local C = inside.declare("sluice.h", "plan/plan.h", "script/state.h", "script/init_info.h", "script/resolve.h", "script/explain.h",
   "plan/coverage.h")
ffi.cdef [[
sluice_status slc_script_evaluate(slc_script *script, const char *code, size_t length, const char *chunk_name, char **result,
                                  sluice_error *error);
]]

jit.off(true, true) -- what runs may ask a callback in Lua whether to stop, which a compiled trace must not

local script = {}
script.__index = script

--- A new state; ends with the collector.
function script.new()
   local pointer, err = ffi.new("slc_script *[1]"), inside.error()
   assert(C.slc_script_create(nil, pointer, err) == 0, inside.text(err))
   return setmetatable({ pointer = ffi.gc(pointer[0], C.slc_script_destroy) }, script)
end

--- Runs trusted Lua inside the state.
-- @return the text of the first result, or nil; the error's text; its status
function script:evaluate(code)
   local result, err = ffi.new("char *[1]"), inside.error()
   local status = C.slc_script_evaluate(self.pointer, code, #code, "=spec", result, err)
   local text = result[0] ~= nil and ffi.string(result[0]) or nil
   C.slc_release(result[0])
   return text, status ~= 0 and inside.text(err) or nil, tonumber(status)
end

--- Reads init info.
-- @return { ok, text, status, met, info, plan }
function script:read_init_info(json)
   local info, met, plan, err = ffi.new("slc_init_info"), ffi.new("bool[1]"), ffi.new("slc_plan *[1]"), inside.error()
   local status = C.slc_init_info_read(self.pointer, json, #json, info, met, plan, err)
   return {
      ok = status == 0, status = tonumber(status), text = inside.text(err), met = met[0], info = info,
      plan = plan[0] ~= nil and ffi.gc(plan[0], C.slc_plan_destroy) or nil,
   }
end

--- Seals init info.
-- @return the sealed text, or nil and the error's text
function script:seal(json)
   local sealed, err = ffi.new("char *[1]"), inside.error()
   if C.slc_init_info_seal(self.pointer, json, #json, sealed, err) ~= 0 then
      return nil, inside.text(err)
   end
   local text = ffi.string(sealed[0])
   C.slc_release(sealed[0])
   return text
end

--- A set of live tensors: { name =, dtype =, shape =, attributes = JSON }, with addresses that nothing reads.
function script.live_set(list)
   local set, err, at = ffi.gc(ffi.new("slc_live_set"), C.slc_live_set_clear), inside.error(), 4096
   local live = ffi.new("slc_live")
   for _, tensor in ipairs(list) do
      live.name, live.dtype, live.ndim = tensor.name, C.slc_dtype_find(tensor.dtype), #tensor.shape
      local stride = live.dtype.bytes
      for i = #tensor.shape, 1, -1 do
         live.shape[i - 1], live.stride[i - 1] = tensor.shape[i], stride
         stride = stride * tensor.shape[i]
      end
      live.data = ffi.cast("unsigned char *", at)
      live.attributes = tensor.attributes or "{}"
      at = at + tonumber(stride) + 64
      assert(C.slc_live_set_add(set, live, err) == 0, inside.text(err))
   end
   return set
end

--- Describes the host and resolves a plan.
-- @return { ok, text, status, resolution, arena }
function script:resolve(plan, live, host, rules)
   local resolution, err = ffi.new("slc_resolution"), inside.error()
   local arena = ffi.gc(ffi.new("slc_arena"), C.slc_arena_clear)
   local status = C.slc_script_describe_host(self.pointer, host, #host, err)
   if status == 0 then
      status = C.slc_resolve(self.pointer, plan, live, rules, arena, resolution, err)
   end
   return { ok = status == 0, status = tonumber(status), text = inside.text(err), resolution = resolution, arena = arena }
end

--- The checks on one worker after a resolve.
-- @return the coverage, or nil and the error's text
function script.cover(plan, live, rank, resolved)
   local coverage, err = ffi.new("slc_coverage"), inside.error()
   if C.slc_coverage_check(plan, live, rank, resolved.resolution.whole_modules, resolved.arena, coverage, err) ~= 0 then
      return nil, inside.text(err)
   end
   return coverage
end

script.C = C

return script
