--- Hosts that were built with another version of sluice.h: their structs say their size, and the library reads what it knows.

local ffi = require "ffi"
local inside = require "spec.support.inside"

local C = inside.declare("sluice.h")
jit.off(true, true) -- calls from here call back into Lua, which a compiled trace must not

local VERSION = ffi.string(C.sluice_library_version())

local kept = {} -- ffi's pointers keep nothing alive

-- A struct of `ctype` with `more` bytes behind it, and that memory; what is not said is 0.
local function longer(ctype, more, values)
   local memory = ffi.new("unsigned char[?]", ffi.sizeof(ctype) + more)
   kept[#kept + 1] = {memory, values}
   local struct = ffi.cast(ctype .. " *", memory)
   for key, value in pairs(values) do
      struct[0][key] = value
   end
   struct.size = ffi.sizeof(ctype) + more
   return struct, memory
end

local function options(more)
   local given, memory = longer("sluice_options", more or 0, {listen_fd = -1, key_fd = -1})
   given.callbacks.size = ffi.sizeof("sluice_callbacks")
   return given, memory
end

local function create(given, err)
   local engine = ffi.new("sluice_engine *[1]")
   err = err or inside.error()
   local status = tonumber(C.sluice_engine_create(given, engine, err))
   if status == 0 then
      return engine[0]
   end
   assert(engine[0] == nil)
   return nil, inside.text(err), status
end

local function refused(given)
   local engine, text = create(given)
   assert.is_nil(engine)
   return text
end

local function with_engine(check)
   local engine = assert(create((options())))
   check(engine)
   C.sluice_engine_destroy(engine)
end

local SHAPE = ffi.new("int64_t[1]", 2)
local DATA = ffi.new("float[2]")

local function live(more, attributes)
   return longer("sluice_live", more, {name = "w", dtype = "float32", ndim = 1, shape = SHAPE, data = DATA, attributes = attributes})
end

local function register(engine, given)
   local err = inside.error()
   local status = tonumber(C.sluice_register_live(engine, given, err))
   return status == 0 and "ok" or inside.text(err)
end

describe("a struct of another version of the header", function()
   it("is read as far as it goes when it is shorter, and the rest has its initial value", function()
      local given = options()
      given.size = ffi.offsetof("sluice_options", "beat_s")
      given.beat_s, given.key_fd = -1, 12345 -- no member of that version: what stands there is not the host's
      local engine, text = create(given)
      assert.is_nil(text)
      C.sluice_engine_destroy(engine)
      with_engine(function(other)
         local tensor = live(0, "[")
         tensor.size = ffi.offsetof("sluice_live", "attributes")
         assert.equal("ok", register(other, tensor))
      end)
   end)

   it("is read when it is longer and the unknown rest is 0", function()
      local engine, text = create((options(64)))
      assert.is_nil(text)
      C.sluice_engine_destroy(engine)
      with_engine(function(other)
         assert.equal("ok", register(other, (live(8))))
      end)
   end)

   it("is refused when something that the library does not know is set in it", function()
      local given, memory = options(64)
      local size = ffi.sizeof("sluice_options")
      memory[size + 9] = 1
      assert.equal(("create: options.size (%d) is that of a newer sluice.h than libsluice %s has (%d), and a member that it does not " ..
         "know (at byte %d) is set"):format(size + 64, VERSION, size, size + 9), refused(given))
      with_engine(function(engine)
         local tensor, bytes = live(16)
         local known = ffi.sizeof("sluice_live")
         bytes[known + 15] = 255
         assert.equal(("register: live.size (%d) is that of a newer sluice.h than libsluice %s has (%d), and a member that it does not " ..
            "know (at byte %d) is set"):format(known + 16, VERSION, known, known + 15), register(engine, tensor))
      end)
   end)

   it("is refused when its size can be none: not set, within a member, or beyond all reason", function()
      local size, least = ffi.sizeof("sluice_options"), ffi.offsetof("sluice_options", "timeouts")
      for _, wrong in ipairs({0, 8, least - 8, least + 4, size - 1, size + 4, size + 4104, 0xFFFFFFF8}) do
         local given = options()
         given.size = wrong
         assert.equal(("create: options.size (%d) must be sizeof(sluice_options), which is %d in libsluice %s and was at least %d before")
            :format(wrong, size, VERSION, least), refused(given))
      end
      assert.equal("create: options (NULL) must point to a sluice_options", refused(nil))
      with_engine(function(engine)
         local known, before = ffi.sizeof("sluice_live"), ffi.offsetof("sluice_live", "attributes")
         for _, wrong in ipairs({0, 4, before - 8, known + 1}) do
            local tensor = live(0)
            tensor.size = wrong
            assert.equal(("register: live.size (%d) must be sizeof(sluice_live), which is %d in libsluice %s and was at least %d before")
               :format(wrong, known, VERSION, before), register(engine, tensor))
         end
         assert.equal("register: live (NULL) must point to a sluice_live", register(engine, nil))
      end)
   end)

   it("is refused when a reserved member is set, or when its callbacks are longer than their place", function()
      local given = options()
      given.callbacks.reserved[2] = ffi.cast("void (*)(void)", 16)
      assert.equal(("create: options.callbacks.reserved[2] must be NULL: libsluice %s has no such callback"):format(VERSION), refused(given))
      given = options()
      given.timeouts.reserved[1] = 0.5
      assert.equal(("create: options.timeouts.reserved[1] (0.5) must be 0: libsluice %s has no such deadline"):format(VERSION), refused(given))
      given = options()
      given.callbacks.size = ffi.sizeof("sluice_callbacks") + 8
      assert.equal(("create: options.callbacks.size (%d) must be sizeof(sluice_callbacks), which is %d"):format(
         ffi.sizeof("sluice_callbacks") + 8, ffi.sizeof("sluice_callbacks")), refused(given))
   end)
end)

describe("an error of the host", function()
   it("that is too small is not written; the call is refused and the log says why", function()
      local err = inside.error()
      err.size = ffi.offsetof("sluice_error", "text")
      local engine, text, status = create(nil, err)
      assert.same({nil, "", 1}, {engine, text, status})

      local lines, given = {}, options()
      local log = ffi.cast("void (*)(void *, sluice_log_level, const char *)", function(_, _, line)
         lines[#lines + 1] = ffi.string(line)
      end)
      given.callbacks.log = log
      engine = assert(create(given))
      for _, call in ipairs({
         function() return C.sluice_init(engine, "{", 1, err) end,
         function() return C.sluice_register_live(engine, (live(0)), err) end,
         function() return C.sluice_register_source(engine, "w", "float32", DATA, 8, err) end,
         function() return C.sluice_start_update(engine, false, err) end,
         function() return C.sluice_shutdown(engine, err) end,
      }) do
         assert.equal(1, tonumber(call()))
         assert.equal("", inside.text(err))
      end
      C.sluice_engine_destroy(engine)
      log:free()
      local rule = (": error.size (%d) must be at least %d; start from SLUICE_ERROR_INIT"):format(err.size, ffi.sizeof("sluice_error"))
      assert.same({"init" .. rule, "register_live" .. rule, "register_source" .. rule, "start_update" .. rule, "shutdown" .. rule}, lines)
      local sealed = ffi.new("char *[1]")
      assert.equal(1, tonumber(C.sluice_seal_init_info("{", 1, sealed, err)))
      assert.equal("", inside.text(err))
   end)

   it("that is larger is written as far as the library knows it", function()
      local err, memory = longer("sluice_error", 64, {rank = -1})
      ffi.fill(memory + ffi.sizeof("sluice_error"), 64, 0x5A)
      local _, text = create(nil, err)
      assert.equal("create: options (NULL) must point to a sluice_options", text)
      assert.equal(("\x5A"):rep(64), ffi.string(memory + ffi.sizeof("sluice_error"), 64))
   end)
end)

describe("attributes of a live tensor", function()
   it("that are no JSON object are refused when the tensor is registered", function()
      with_engine(function(engine)
         for _, case in ipairs({
            {"[1]", "[1]"}, {"[]", "[]"}, {"5", "5"}, {"null", "null"}, {'"loader"', '"loader"'},
            {"{", "JSON byte 1 (the end) must be a key in quotes"}, {"", "JSON byte 0 (the end) must be a value"},
         }) do
            assert.equal(("register: live tensor 'w': its attributes (%s) must be a JSON object"):format(case[2]),
               register(engine, (live(0, case[1]))))
         end
         assert.equal("register: live tensor 'w': its attributes: a.b[1] (inf) must be a number that a double can hold",
            register(engine, (live(0, '{"a":{"b":[2.5,1e999]}}'))))
         assert.equal("ok", register(engine, (live(0, ' { "loader": "column", "scale": 1.5e300, "zero": -0 } '))))
      end)
   end)
end)
