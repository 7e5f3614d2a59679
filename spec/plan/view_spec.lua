--- Live tensors and views on them.

local ffi = require "ffi"
local build = require "spec.plan.build"

local C = build.C

describe("slc_live_set_add", function()
   local set
   before_each(function()
      set = build.live_set {}
   end)

   it("keeps copies in the order of registration and finds them by name", function()
      local name = ffi.new("char[2]", "a")
      assert.is_nil(build.add_live(set, {name = name, shape = {2}, attributes = '{"loader":"row"}'}))
      assert.is_nil(build.add_live(set, {name = "b", shape = {}}))
      name[0] = 120
      assert.equal(2, tonumber(set.count))
      assert.equal("a", ffi.string(set.item[0].name))
      assert.equal('{"loader":"row"}', ffi.string(set.item[0].attributes))
      assert.equal("{}", ffi.string(set.item[1].attributes))
      assert.is_true(C.slc_live_set_find(set, "b") == set.item + 1)
      assert.is_true(C.slc_live_set_find(set, "x") == nil)
      assert.is_true(C.slc_live_set_find(build.live_set {}, "x") == nil)
   end)

   it("refuses what is no tensor", function()
      build.add_live(set, {name = "a", shape = {2}})
      assert.equal("register: live 'a' is registered twice", build.add_live(set, {name = "a", shape = {3}}))
      assert.equal("register: live[1] has no name", build.add_live(set, {name = "", shape = {3}}))
      assert.equal("register: live[1] has no name", build.add_live(set, {shape = {3}}))
      assert.equal("register: live[1] has a name of 4097 bytes; 4096 are allowed",
         build.add_live(set, {name = ("n"):rep(4097), shape = {3}}))
      assert.equal("register: live 'b' has no dtype", build.add_live(set, {name = "b", dtype = "float7", shape = {3}}))
      assert.equal("register: live 'b' shape[1] (-1) must not be negative",
         build.add_live(set, {name = "b", shape = {3, -1}, strides = {4, 4}}))
      assert.equal("register: live 'b' stride[0] (-4 bytes) must not be negative",
         build.add_live(set, {name = "b", shape = {3}, strides = {-4}}))
      assert.equal("register: live 'b' of shape [2147483648, 2147483648] and strides [8589934592, 4] bytes does not fit the address"
         .. " space",
         build.add_live(set, {name = "b", shape = {2147483648, 2147483648}}))
      local live = ffi.new("slc_live", {name = "b", dtype = C.slc_dtype_find("int8"), ndim = 9})
      assert.equal("register: live 'b' has 9 dims; 0 to 8 are allowed", build.fails(C.slc_live_set_add, set, live))
      assert.equal(1, tonumber(set.count))
   end)

   it("refuses elements that share bytes, by any strides", function()
      local number = 0
      local function shares(shape, strides)
         number = number + 1
         local text = build.add_live(set, {name = "s" .. number, shape = shape, strides = strides})
         assert.is_true(text == nil or text:find("has elements that share bytes", 1, true) ~= nil, text)
         return text ~= nil
      end
      assert.is_false(shares({3, 4}, {16, 4}))
      assert.is_false(shares({3, 4}, {4, 12}))
      assert.is_false(shares({3, 4}, {100, 8}))
      assert.is_false(shares({1, 4}, {0, 4}))
      assert.is_false(shares({0, 4}, {0, 0}))
      assert.is_true(shares({3, 4}, {12, 4}))
      assert.is_true(shares({3, 4}, {16, 2}))
      assert.is_true(shares({3, 4}, {0, 4}))
      assert.is_true(shares({2, 2}, {8, 8}))
      -- Interleaved: 0, 12, 8, 20 and 0, 12, 24 with 8, 20, 32.
      assert.is_false(shares({2, 2}, {12, 8}))
      assert.is_false(shares({2, 3}, {8, 12}))
      assert.is_true(shares({4, 3}, {8, 12}))
   end)

   it("says so when there is no memory, and keeps what it had", function()
      build.add_live(set, {name = "a", shape = {2}})
      for nth = 1, 40 do
         C.slc_fail_allocation(nth, true)
         local text, status = build.add_live(set, {name = "b" .. nth, shape = {2}, attributes = (" "):rep(3000)})
         C.slc_fail_allocation(0, false)
         assert.is_true(text == nil or status == 3)
         assert.is_true(C.slc_live_set_find(set, "a") ~= nil)
      end
   end)
end)

describe("a live tensor", function()
   local function live(given)
      given.name = "x"
      local set = build.live_set {given}
      return set.item, set
   end

   it("is contiguous when its rows lie end to end, whatever dims of one element say", function()
      assert.is_true(C.slc_live_contiguous((live {shape = {2, 3}})))
      assert.is_true(C.slc_live_contiguous((live {shape = {2, 1, 3}, strides = {12, 999, 4}})))
      assert.is_true(C.slc_live_contiguous((live {shape = {0, 3}, strides = {1, 1}})))
      assert.is_true(C.slc_live_contiguous((live {shape = {}})))
      assert.is_false(C.slc_live_contiguous((live {shape = {2, 3}, strides = {16, 4}})))
      assert.is_false(C.slc_live_contiguous((live {shape = {2, 3}, strides = {4, 8}})))
   end)

   it("counts its elements' bytes and the span they lie in", function()
      local data = ffi.new("uint8_t[100]")
      local low, high = ffi.new("uintptr_t[1]"), ffi.new("uintptr_t[1]")
      local item, keep = live {dtype = "bfloat16", shape = {3, 2}, strides = {10, 2}, data = data}
      assert.equal(12, tonumber(C.slc_live_bytes(item)))
      C.slc_live_span(item, low, high)
      assert.equal(0, tonumber(low[0] - ffi.cast("uintptr_t", data)))
      assert.equal(24, tonumber(high[0] - low[0]))
      assert.is_true(keep ~= nil)
   end)
end)

describe("slc_view_window", function()
   local function window(shape, strides, ranges, order, ndim)
      local set = build.live_set {{name = "w", shape = shape, strides = strides}}
      local view, out = ffi.new("slc_view"), ffi.new("slc_window")
      view.ndim = #ranges
      for d, range in ipairs(ranges) do
         view.range[d - 1] = build.range(range or nil)
      end
      for i, dim in ipairs(order) do
         view.order[i - 1] = dim
      end
      local text = build.fails(C.slc_view_window, view, set.item, ndim, "a.lua:3", out)
      if text then
         return text
      end
      return {tonumber(out.offset), build.numbers(out.extent, out.ndim), build.numbers(out.stride, out.ndim)}
   end

   it("narrows, steps, selects and permutes", function()
      assert.same({0, {4, 6}, {24, 4}}, window({4, 6}, nil, {false, false}, {0, 1}, 2))
      assert.same({32, {2, 2}, {24, 8}}, window({4, 6}, nil, {{1, 2}, {2, nil, 2}}, {0, 1}, 2))
      assert.same({0, {6, 4}, {4, 24}}, window({4, 6}, nil, {false, false}, {1, 0}, 2))
      assert.same({72, {6}, {4}}, window({4, 6}, nil, {{3, select = true}, false}, {0}, 1))
      assert.same({4, {}, {}}, window({4, 6}, nil, {{0, select = true}, {1, select = true}}, {}, 0))
      assert.same({0, {2, 3, 4}, {4, 32, 8}}, window({3, 4, 2}, nil, {false, false, false}, {1, 2, 0}, 3))
   end)

   it("refuses a view that leaves the tensor or shows other dims", function()
      assert.equal("destination: a.lua:3: the view [2:5, :] of live 'w' of shape [4, 6] leaves it in dim 0",
         window({4, 6}, nil, {{2, 3}, false}, {0, 1}, 2))
      assert.equal("destination: a.lua:3: the view [4, :] of live 'w' of shape [4, 6] leaves it in dim 0",
         window({4, 6}, nil, {{4, select = true}, false}, {0}, 1))
      assert.equal("destination: a.lua:3: the view [:] of live 'w' of shape [4, 6] has 1 dims for 2 "
         .. "(index(dim, i) in `at` adds one, in `from` drops one)",
         window({4, 6}, nil, {false}, {0}, 1))
      assert.equal("destination: a.lua:3: the view [:, 1:6:2] of live 'w' of shape [4, 6] shows 2 dims of the strip's 3",
         window({4, 6}, nil, {false, {1, 3, 2}}, {0, 1}, 3))
      assert.equal("destination: a.lua:3: the view [:, 3:] of live 'w' of shape [4, 6] must show each of the strip's 2 dims once",
         window({4, 6}, nil, {false, {3}}, {1, 1}, 2))
      assert.equal("destination: a.lua:3: the view [:, ::2] of live 'w' of shape [4, 6] must show each of the strip's 1 dims"
         .. " once",
         window({4, 6}, nil, {false, {0, nil, 2}}, {0, 1}, 1))
   end)
end)
