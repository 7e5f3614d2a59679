-- The verifier finds what it must find: a flipped byte, a stale tensor, one that was never written, two that are swapped,
-- padding that is not zero, a description with a hole.

local ffi = require "ffi"
local inside = require "spec.support.inside"

local C = inside.declare("base/dtype.h", "cli/verify.h", "cli/walk.h")

local cancelled, err = ffi.new("bool[1]"), inside.error()

local function row_major(shape, element)
   local strides, step = {}, element
   for i = #shape, 1, -1 do
      strides[i] = step
      step = step * shape[i]
   end
   return strides, step
end

-- A job of one worker. params: {name, shape}; served: {name, shape, contents = {{source, from, extent, at, dims}}, zero}.
local function job_of(dtype_name, params, served)
   local dtype = C.slc_dtype_find(dtype_name)
   local element = tonumber(dtype.bytes)
   local job = { anchors = {}, c = ffi.new("slc_job"), element = element, params = params, served = served }
   local function keep(value)
      table.insert(job.anchors, value)
      return value
   end
   local function fill(target, list)
      for i, value in ipairs(list) do
         target[i - 1] = value
      end
   end
   local c_params, index = keep(ffi.new("slc_job_param[?]", #params)), {}
   for i, param in ipairs(params) do
      local p = c_params[i - 1]
      index[param.name] = i - 1
      p.name, p.dtype, p.ndim = keep(ffi.new("char[?]", #param.name + 1, param.name)), dtype, #param.shape
      fill(p.shape, param.shape)
      p.bytes = select(2, row_major(param.shape, element))
      p.values = C.slc_values_of(param.name, nil)
   end
   local c_served = keep(ffi.new("slc_served[?]", #served))
   for i, live in ipairs(served) do
      local s = c_served[i - 1]
      s.name, s.dtype, s.ndim = keep(ffi.new("char[?]", #live.name + 1, live.name)), dtype, #live.shape
      fill(s.shape, live.shape)
      s.bytes = select(2, row_major(live.shape, element))
      s.data = keep(ffi.new("unsigned char[?]", tonumber(s.bytes)))
      ffi.fill(s.data, tonumber(s.bytes), 0xDB) -- SLC_POISON
      s.ncontents, s.content = #live.contents, keep(ffi.new("slc_content[?]", #live.contents + 1))
      for k, content in ipairs(live.contents) do
         local c = s.content[k - 1]
         c.param = assert(index[content.source])
         fill(c.from, content.from)
         fill(c.extent, content.extent)
         fill(c.at, content.at)
         fill(c.dim, content.dims)
      end
      local zero = live.zero or {}
      s.nzeros, s.zero = #zero, keep(ffi.new("slc_zero[?]", #zero + 1))
      for k, box in ipairs(zero) do
         fill(s.zero[k - 1].at, box.at)
         fill(s.zero[k - 1].extent, box.extent)
      end
   end
   job.c.workers, job.c.trainers, job.c.rank = 1, 1, 1
   job.c.nparams, job.c.param, job.c.nserved, job.c.served = #params, c_params, #served, c_served
   return job
end

-- Writes what the description says, element by element, the slowest and plainest way.
local function serve(job, update)
   local whole = {}
   for i, param in ipairs(job.params) do
      local bytes = tonumber(job.c.param[i - 1].bytes)
      local buffer = ffi.new("unsigned char[?]", bytes)
      C.slc_values_write(job.c.param[i - 1].values, update, 0, buffer, bytes)
      whole[param.name] = { buffer = buffer, strides = row_major(param.shape, job.element) }
   end
   for i, live in ipairs(job.served) do
      local data, strides = job.c.served[i - 1].data, row_major(live.shape, job.element)
      for _, content in ipairs(live.contents) do
         local source = whole[content.source]
         local total = 1
         for _, count in ipairs(content.extent) do
            total = total * count
         end
         for number = 0, total - 1 do
            local left, from, to = number, 0, 0
            for d, start in ipairs(content.at) do
               to = to + start * strides[d]
            end
            for d = #content.extent, 1, -1 do
               local step = left % content.extent[d]
               left = (left - step) / content.extent[d]
               from = from + (content.from[d] + step) * source.strides[d]
               if content.dims[d] >= 0 then
                  to = to + step * strides[content.dims[d] + 1]
               end
            end
            ffi.copy(data + to, source.buffer + from, job.element)
         end
      end
      for _, box in ipairs(live.zero or {}) do
         for row = box.at[1], box.at[1] + box.extent[1] - 1 do
            ffi.fill(data + row * strides[1] + box.at[2] * strides[2], box.extent[2] * job.element, 0)
         end
      end
   end
end

local function verify(job, update)
   local checked = ffi.new("uint64_t[1]")
   local status = C.slc_verify(job.c, update, cancelled, checked, err)
   return tonumber(status), status == C.SLUICE_OK and tonumber(checked[0]) or inside.text(err)
end

local function check_description(job)
   local status = C.slc_verify_description(job.c, err)
   return tonumber(status), inside.text(err)
end

-- A fused tensor, a stacked and transposed one, padded rows, a scalar.
local function model()
   return job_of("bfloat16", {
      { name = "q", shape = { 8, 6 } }, { name = "k", shape = { 4, 6 } }, { name = "e0", shape = { 4, 10 } },
      { name = "e1", shape = { 4, 10 } }, { name = "embed", shape = { 7, 3 } }, { name = "scale", shape = {} },
   }, {
      { name = "qk", shape = { 6, 6 }, contents = {
         { source = "q", from = { 4, 0 }, extent = { 4, 6 }, at = { 0, 0 }, dims = { 0, 1 } },
         { source = "k", from = { 2, 0 }, extent = { 2, 6 }, at = { 4, 0 }, dims = { 0, 1 } },
      } },
      { name = "experts", shape = { 2, 5, 4 }, contents = {
         { source = "e0", from = { 0, 5 }, extent = { 4, 5 }, at = { 0, 0, 0 }, dims = { 2, 1 } },
         { source = "e1", from = { 0, 5 }, extent = { 4, 5 }, at = { 1, 0, 0 }, dims = { 2, 1 } },
      } },
      { name = "vocab", shape = { 4, 3 }, contents = {
         { source = "embed", from = { 4, 0 }, extent = { 3, 3 }, at = { 0, 0 }, dims = { 0, 1 } },
      }, zero = { { at = { 3, 0 }, extent = { 1, 3 } } } },
      { name = "scale", shape = {}, contents = { { source = "scale", from = {}, extent = {}, at = {}, dims = {} } } },
   })
end

describe("slc_verify()", function()
   it("counts every live byte when all are right", function()
      local job = model()
      serve(job, 1)
      assert.same({ 0, 2 * (36 + 40 + 12 + 1) }, { verify(job, 1) })
      assert.equal(0, check_description(job))
   end)

   it("finds each single byte that is flipped", function()
      local job = model()
      serve(job, 2)
      for i = 0, 3 do
         local served = job.c.served[i]
         for at = 0, tonumber(served.bytes) - 1 do
            served.data[at] = bit.bxor(served.data[at], 1)
            assert.equal(12, (verify(job, 2)), ("byte %d of tensor %d"):format(at, i))
            served.data[at] = bit.bxor(served.data[at], 1)
         end
      end
      assert.equal(0, (verify(job, 2)))
   end)

   it("names both places and both values", function()
      local job = model()
      serve(job, 1)
      local data = job.c.served[0].data
      local right = ("%02x %02x"):format(data[2 * (5 * 6 + 5)], data[2 * (5 * 6 + 5) + 1])
      data[2 * (5 * 6 + 5)] = bit.bxor(data[2 * (5 * 6 + 5)], 0xFF)
      local wrong = ("%02x %02x"):format(data[2 * (5 * 6 + 5)], data[2 * (5 * 6 + 5) + 1])
      local _, text = verify(job, 1)
      assert.equal(('verify: update 1: "qk" [5, 5] holds %s where "k" [3, 5] has %s (1 of 4 live tensors differ)'):format(wrong, right),
         text)
   end)

   it("says that a tensor is stale, and of which update", function()
      local job = model()
      serve(job, 2)
      local old = ffi.string(job.c.served[1].data, job.c.served[1].bytes)
      serve(job, 4)
      ffi.copy(job.c.served[1].data, old, #old)
      local status, text = verify(job, 4)
      assert.equal(12, status)
      assert.truthy(text:find('"experts" [0, 0, 0] holds', 1, true), text)
      assert.truthy(text:find(": stale, the values of update 2 (1 of 4 live tensors differ)", 1, true), text)
   end)

   it("says that a tensor was never written", function()
      local job = model()
      local status, text = verify(job, 1)
      assert.equal(12, status)
      assert.truthy(text:find(": never written since it was allocated (4 of 4 live tensors differ)", 1, true), text)
   end)

   it("finds two tensors that took each other's place", function()
      local job = model()
      serve(job, 1)
      local data, half = job.c.served[1].data, 40
      local first = ffi.string(data, half)
      ffi.copy(data, data + half, half)
      ffi.copy(data + half, first, half)
      assert.equal(12, (verify(job, 1)))
   end)

   it("finds padding that is not zero", function()
      local job = model()
      serve(job, 1)
      job.c.served[2].data[2 * 11 + 1] = 7
      local status, text = verify(job, 1)
      assert.equal(12, status)
      assert.truthy(text:find('"vocab" [3, 2] holds 00 07 where padding, which must be zero has 00 00', 1, true), text)
   end)

   it("ends when it is cancelled", function()
      local job = model()
      serve(job, 1)
      cancelled[0] = true
      local status, text = verify(job, 1)
      cancelled[0] = false
      assert.equal(10, status)
      assert.equal("verify: cancelled in update 1", text)
   end)

   it("agrees with the plain way on random boxes", function()
      local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time()
      math.randomseed(seed)
      for case = 1, 300 do
         local ndim = math.random(1, 5)
         local shape, from, extent, dims, live, at, order = {}, {}, {}, {}, {}, {}, {}
         for d = 1, ndim do
            order[d] = d
         end
         for d = ndim, 2, -1 do
            local other = math.random(1, d)
            order[d], order[other] = order[other], order[d]
         end
         for d = 1, ndim do
            extent[d] = math.random(1, 5)
            from[d] = math.random(0, 3)
            shape[d] = from[d] + extent[d] + math.random(0, 2)
            dims[d] = order[d] - 1
            live[order[d]], at[order[d]] = extent[d], 0
         end
         local dtype = ({ "uint8", "bfloat16", "float32", "float64" })[math.random(1, 4)]
         local job = job_of(dtype, { { name = "p", shape = shape } }, {
            { name = "l", shape = live, contents = { { source = "p", from = from, extent = extent, at = at, dims = dims } } },
         })
         local replay = ("case %d, SLUICE_SEED=%d"):format(case, seed)
         serve(job, 3)
         assert.equal(0, (verify(job, 3)), replay)
         assert.equal(0, (check_description(job)), replay)
         local byte = math.random(0, tonumber(job.c.served[0].bytes) - 1)
         job.c.served[0].data[byte] = bit.bxor(job.c.served[0].data[byte], 0x10)
         assert.equal(12, (verify(job, 3)), replay)
      end
   end)
end)

describe("slc_verify_description()", function()
   it("refuses a live tensor with a hole", function()
      local job = model()
      job.c.served[0].content[1].extent[0] = 1
      assert.same({ 1, 'description: live "qk": it speaks of 60 of 72 bytes, it must speak of each' }, { check_description(job) })
   end)

   it("refuses two boxes on the same elements, even when the sum is right", function()
      local job = model()
      job.c.served[0].content[1].at[0] = 3
      assert.same({ 1, 'description: live "qk": "q" and "k" lie on the same elements' }, { check_description(job) })
   end)

   it("refuses zeros where a parameter lies", function()
      local job = model()
      job.c.served[2].zero[0].at[0] = 2
      assert.same({ 1, 'description: live "vocab": "embed" and a box of zeros lie on the same elements' }, { check_description(job) })
   end)
end)
