--- The Lua state itself: how errors come out of it, which modules it finds, and that it lives through refused memory.

local ffi = require "ffi"
local files = require "scripts.files"
local inside = require "spec.support.inside"
local script = require "spec.support.script"

local C = script.C

describe("a script state", function()
   local state = script.new()

   it("gives an error's text with a traceback", function()
      local _, text, status = state:evaluate("local function f() error('lost') end f()")
      assert.equal(8, status)
      assert.truthy(text:find("^script: spec:1: lost\nstack traceback:\n"), text)
   end)

   it("keeps the text and status of an error that a module raised", function()
      local _, text, status = state:evaluate("require('sluice.check').raise('INVALID', 'a (1) must be 2')")
      assert.equal("script: a (1) must be 2", text)
      assert.equal(1, status)
   end)

   it("says what an error is that is no text", function()
      for code, expected in pairs({ ["error({})"] = "table", ["error()"] = "nil", ["error(true)"] = "boolean" }) do
         local _, text = state:evaluate(code)
         assert.equal(("script: an error that is no text (%s)"):format(expected), text)
      end
   end)

   it("goes on after an error", function()
      state:evaluate("error('x')")
      assert.equal("3", (state:evaluate("return 1 + 2")))
   end)

   it("finds modules inside the library and nowhere else", function()
      assert.equal("table", (state:evaluate("return type(require('sluice.resolve'))")))
      assert.equal("table", (state:evaluate("return type(require('sluice.models'))")))
      local _, text = state:evaluate("require 'spec.support.script'")
      assert.truthy(text:find("no module 'spec.support.script' in the library", 1, true))
   end)

   it("ends a recursion of its own modules", function()
      local _, text = state:evaluate("local function f() return 1 + f() end return f()")
      assert.truthy(text:find("stack overflow", 1, true))
      assert.equal("1", (state:evaluate("return 1")))
   end)

   it("bounds what a state may hold", function()
      local _, text, status = state:evaluate("local t = {} for i = 1, 1e9 do t[i] = { i } end")
      assert.equal(3, status)
      assert.truthy(text:find("^script: out of memory in the script %(%d+ bytes held, at most 805306368%)$"), text)
      assert.equal("1", (state:evaluate("return 1")))
   end)

   it("ends what runs when it is watched and the answer is to stop, also out of its own functions and of guarded code", function()
      ffi.cdef [[
         typedef bool (*slc_lua_stop)(void *user);
         void slc_script_watch(slc_script *script, slc_lua_stop stop, void *user);
      ]]
      local asked, most = 0, 3
      local stop = ffi.cast("slc_lua_stop", function()
         asked = asked + 1
         return asked > most
      end)
      local watched = script.new()
      jit.off()
      C.slc_script_watch(watched.pointer, stop, nil)
      local sandboxed = "local sandbox = require 'sluice.sandbox'; local _, text = sandbox.run(%q, 'x.lua', { forever = "
         .. "sandbox.word(function() while true do end end, function(problem) return problem.text end) }, { instructions = 1e12 }) return text"
      for code, expected in pairs({
         ["while true do end"] = { nil, "script: interrupted", 10 },
         [sandboxed:format("pcall(function() while true do end end) while true do end")] = { "x.lua:1: interrupted" },
         [sandboxed:format("forever()")] = { "interrupted" },
      }) do
         asked = 0
         local result, problem, status = watched:evaluate(code)
         assert.same(expected, { result, problem, status ~= 0 and status or nil })
         assert.is_true(asked > most)
      end
      asked = -1e9
      assert.equal("2", (watched:evaluate("return 1 + 1")))
      C.slc_script_watch(watched.pointer, nil, nil)
      stop:free()
      jit.on()
   end)

   it("takes what its own functions do off no budget", function()
      assert.equal("done", (state:evaluate([[
         local sandbox = require "sluice.sandbox"
         local work = sandbox.word(function() for _ = 1, 1e6 do end return "done" end, tostring)
         return (sandbox.run("return work()", "x.lua", { work = work }, { instructions = 10000 }))]])))
   end)

   it("is one of several that know nothing of each other", function()
      local other = script.new()
      state:evaluate("shared = 5")
      assert.equal("nil", (other:evaluate("return tostring(shared)")))
   end)
end)

describe("refused memory", function()
   local INFO = [=[{"schema":"sluice/1","master_address":"::1","master_port":1,"rank_offset":2,"world_size":4,"source_digest":"%s",
      "src_meshes":[{"name":"t","axes":[["fsdp",2]]}],"dst_meshes":[{"name":"","axes":[["tp",2]]}],
      "params":[{"name":"a.b","dtype_name":"float32","shape":[4,4],"src_placements":[{"axis":"fsdp","shard":0}]},
                {"name":"c","dtype_name":"float32","shape":[],"src_placements":null}]}]=]

   -- One whole life; gives the first status that is not 0.
   local function life(path)
      local pointer, err = ffi.new("slc_script *[1]"), inside.error()
      local status = C.slc_script_create(nil, pointer, err)
      if status ~= 0 then
         assert(pointer[0] == nil)
         return status, err
      end
      local info, met, plan = ffi.new("slc_init_info"), ffi.new("bool[1]"), ffi.new("slc_plan *[1]")
      local json = INFO:format(("0"):rep(64))
      status = C.slc_init_info_read(pointer[0], json, #json, info, met, plan, err)
      local set, arena, resolution = ffi.new("slc_live_set"), ffi.new("slc_arena"), ffi.new("slc_resolution")
      if status == 0 then
         local live = ffi.new("slc_live")
         live.name, live.dtype, live.ndim, live.attributes = "a.b", C.slc_dtype_find("float32"), 2, "{}"
         live.shape[0], live.shape[1], live.stride[0], live.stride[1] = 2, 4, 16, 4
         live.data = ffi.cast("unsigned char *", 4096)
         status = C.slc_live_set_add(set, live, err)
      end
      if status == 0 then
         status = C.slc_script_describe_host(pointer[0], '{"quantization":null}', 21, err)
      end
      if status == 0 then
         status = C.slc_resolve(pointer[0], plan[0], set, path, arena, resolution, err)
      end
      C.slc_plan_destroy(plan[0])
      C.slc_live_set_clear(set)
      C.slc_arena_clear(arena)
      C.slc_script_destroy(pointer[0])
      return status, err
   end

   local function with_rules(run)
      local path = os.tmpname()
      files.write(path, 'return { rules = { rule "a.b" { layout = column }, rule "c" { skip = "x" } } }')
      local good, problem = pcall(run, path)
      os.remove(path)
      assert(good, problem)
   end

   it("at any request ends in an error and nothing else", function()
      with_rules(function(path)
         C.slc_fail_allocation(0, false)
         assert(life(path) == 0)
         local requests = tonumber(C.slc_fail_allocation(0, false))
         local step = math.max(1, math.floor(requests / 400))
         for nth = 1, requests, step do
            C.slc_fail_allocation(nth, true)
            local status, err = life(path)
            -- Lua's own requests differ by a few from life to life: one life may end just before the request that was to fail.
            if tonumber(C.slc_fail_allocation(0, false)) >= nth then
               assert(status == 3, ("request %d of %d was refused; the status is %d"):format(nth, requests, tonumber(status)))
               assert(inside.text(err):find("out of memory", 1, true), inside.text(err))
            else
               assert(nth > requests - 50)
            end
         end
      end)
   end)

   it("once, at any request, ends in an error or is made good", function()
      with_rules(function(path)
         C.slc_fail_allocation(0, false)
         assert(life(path) == 0)
         local requests = tonumber(C.slc_fail_allocation(0, false))
         local step = math.max(1, math.floor(requests / 400))
         for nth = 1, requests, step do
            C.slc_fail_allocation(nth, false)
            local status, err = life(path)
            C.slc_fail_allocation(0, false)
            assert(status == 0 or inside.text(err) ~= "")
         end
      end)
   end)
end)
