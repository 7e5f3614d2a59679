--- An embedding host for specs: one rank that owns plain memory and drives the public C API through ffi. Every method
-- returns nothing on success and raises {status, text, rank} as a table on an error, so that a spec can assert both.

local ffi = require "ffi"
local files = require "scripts.files"
local inside = require "spec.support.inside"

local C = inside.declare("sluice.h")
jit.off(true, true) -- calls from here call back into Lua, which a compiled trace must not

local host = {}
host.__index = host

local function check(status, err)
   if tonumber(status) ~= 0 then
      error({status = ffi.string(C.sluice_status_text(status)), text = inside.text(err), rank = err.rank}, 0)
   end
end

--- options: rank, rules, road, timeout_s, timeouts, beat_s, listen_fd, key_file, key_fd, insecure_control, staging_slots,
-- load_weights(host, next) -> status, reload_begin, reload_end; launch(host, recording) -> status;
-- log, a list that gets "level text" of every line; memory(bytes),
-- where tensors lie (Lua's own memory); stream, a handle; mix, grouped.
function host.create(options)
   local self = setmetatable({anchors = {}, kept = {}, memory = options.memory}, host)
   local given = ffi.new("sluice_options")
   given.size = ffi.sizeof("sluice_options")
   given.callbacks.size = ffi.sizeof("sluice_callbacks")
   given.rank = options.rank
   given.listen_fd = options.listen_fd or -1
   given.key_fd = options.key_fd or -1
   given.insecure_control = options.insecure_control or false
   given.beat_s = options.beat_s or 0
   for phase, seconds in pairs(options.timeouts or {}) do
      given.timeouts[phase] = seconds
   end
   given.timeout_s = options.timeout_s or 10
   given.staging_slots = options.staging_slots or 0
   for _, name in ipairs {"rules", "road", "transport", "key_file"} do
      if options[name] then
         given[name] = options[name]
      end
   end
   given.stream = options.stream
   given.mix, given.grouped = options.mix and 1 or 0, options.grouped and 1 or 0
   if options.load_weights then
      self.anchors.load = ffi.cast("sluice_status (*)(void *, sluice_weights *, sluice_error *)", function(_, weights, err)
         local tensor = ffi.new("const sluice_tensor *[1]")
         local function next_tensor()
            local status = C.sluice_weights_next(weights, tensor, err)
            if tonumber(status) ~= 0 then
               return nil, tonumber(status)
            end
            return tensor[0] ~= nil and tensor[0] or nil
         end
         return options.load_weights(self, next_tensor, weights, err) or 0
      end)
      given.callbacks.load_weights = self.anchors.load
   end
   if options.log then
      jit.off() -- lines come from inside of other calls
      self.anchors.log = ffi.cast("void (*)(void *, sluice_log_level, const char *)", function(_, level, text)
         options.log[#options.log + 1] = tonumber(level) .. " " .. ffi.string(text)
      end)
      given.callbacks.log = self.anchors.log
   end
   if options.launch then
      self.anchors.launch = ffi.cast("sluice_status (*)(void *, sluice_recording, sluice_error *)", function(_, recording, err)
         return options.launch(self, recording, err) or 0
      end)
      given.callbacks.launch = self.anchors.launch
   end
   for _, name in ipairs {"reload_begin", "reload_end"} do
      if options[name] then
         self.anchors[name] = ffi.cast("sluice_status (*)(void *, sluice_error *)", function(_, err)
            return options[name](self, err) or 0
         end)
         given.callbacks[name] = self.anchors[name]
      end
   end
   local engine, err = ffi.new("sluice_engine *[1]"), inside.error()
   check(C.sluice_engine_create(given, engine, err), err)
   self.engine = engine[0]
   return self
end

-- Memory that lasts as long as the host.
local function take(self, bytes)
   local data = self.memory and self.memory(math.max(1, bytes)) or ffi.new("unsigned char[?]", math.max(1, bytes))
   self.kept[#self.kept + 1] = data
   return data
end

--- Registers a live tensor of float32 (or `dtype` of `size` bytes) and returns its memory, filled with byte 0xAA.
function host:live(name, shape, options)
   options = options or {}
   local size, count = options.size or 4, 1
   for _, extent in ipairs(shape) do
      count = count * extent
   end
   local data = take(self, count * size)
   ffi.fill(data, count * size, 0xAA)
   local live = ffi.new("sluice_live")
   local dims = ffi.new("int64_t[8]", shape)
   live.size, live.ndim, live.shape, live.data = ffi.sizeof("sluice_live"), #shape, dims, data
   live.name, live.dtype = name, options.dtype or "float32"
   if options.attributes then
      live.attributes = options.attributes
   end
   local err = inside.error()
   check(C.sluice_register_live(self.engine, live, err), err)
   return ffi.cast(options.ctype or "float *", data)
end

--- Registers a shard: a list of numbers as float32.
function host:source(name, values, dtype)
   local data = ffi.cast("float *", take(self, #values * 4))
   for i, value in ipairs(values) do
      data[i - 1] = value
   end
   local err = inside.error()
   check(C.sluice_register_source(self.engine, name, dtype or "float32", #values > 0 and data or nil, #values * 4, err), err)
   return data
end

function host:describe(json)
   local err = inside.error()
   check(C.sluice_describe_host(self.engine, json, #json, err), err)
end

--- path: where a socket is made, or nil beside a descriptor.
function host:allow_attach(path, fd)
   local err = inside.error()
   check(C.sluice_allow_attach(self.engine, path, fd or -1, err), err)
end

function host:refuse_attach()
   local err = inside.error()
   check(C.sluice_refuse_attach(self.engine, err), err)
end

function host:init(json)
   local err = inside.error()
   check(C.sluice_init(self.engine, json, #json, err), err)
end

--- rules: a path, the name of a family, or nil for the default resolver.
function host:reload(rules)
   local err = inside.error()
   check(C.sluice_reload_rules(self.engine, rules, err), err)
end

function host:start(partial)
   local err = inside.error()
   check(C.sluice_start_update(self.engine, partial or false, err), err)
end

function host:update(names)
   local list, err = ffi.new("const char *[?]", math.max(1, #names), names), inside.error()
   check(C.sluice_update(self.engine, list, #names, err), err)
end

function host:refuse_update(why)
   local err = inside.error()
   check(C.sluice_refuse_update(self.engine, why, err), err)
end

--- names: nil for the whole plan. Gives the recording.
function host:record(names)
   local list, err = names and ffi.new("const char *[?]", math.max(1, #names), names), inside.error()
   local recording = ffi.new("sluice_recording[1]", 1)
   check(C.sluice_record(self.engine, list, names and #names or 0, recording, err), err)
   return recording[0]
end

function host:replay(recording)
   local err = inside.error()
   check(C.sluice_replay(self.engine, recording, err), err)
end

function host:forget_recording(recording)
   local err = inside.error()
   check(C.sluice_forget_recording(self.engine, recording, err), err)
end

function host:finish(version)
   local err = inside.error()
   check(C.sluice_finish_update(self.engine, version, err), err)
end

function host:abort()
   local err = inside.error()
   check(C.sluice_abort_update(self.engine, err), err)
end

function host:shutdown()
   local err = inside.error()
   check(C.sluice_shutdown(self.engine, err), err)
end

function host:state()
   return ffi.string(C.sluice_state_text(C.sluice_engine_state(self.engine)))
end

function host:version()
   return ffi.string(C.sluice_version(self.engine))
end

local function json_of(call, engine, ...)
   local text, err = ffi.new("char *[1]"), inside.error()
   local arguments = {...}
   arguments[#arguments + 1] = text
   arguments[#arguments + 1] = err
   check(call(engine, unpack(arguments)), err)
   local value = require("cjson").decode(ffi.string(text[0]))
   C.sluice_free(text[0])
   return value
end

function host:plan(full)
   return json_of(C.sluice_plan_json, self.engine, full or false)
end

function host:explain(name)
   return json_of(C.sluice_explain_json, self.engine, name)
end

function host:failure()
   return json_of(C.sluice_failure_json, self.engine)
end

function host:destroy()
   C.sluice_engine_destroy(self.engine)
   self.engine = nil
end

--- A temporary file that holds a text; its path.
function host.file(text)
   local path = os.tmpname()
   files.write(path, text)
   return path
end

--- Calls and returns the error table, or nil where the call succeeded.
function host.refused(call, ...)
   local good, err = pcall(call, ...)
   if good then
      return nil
   end
   return type(err) == "table" and err or {status = "raised", text = tostring(err)}
end

return host
