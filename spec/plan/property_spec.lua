--- Random source layouts, destination layouts and views against the oracle, element by element: every worker's program is
-- run on bytes and every byte compared, every trainer's program is laid beside it.
--
--    SLUICE_CASES=100000 busted spec/plan/property_spec.lua     more of them
--    SLUICE_SEED=4711 busted spec/plan/property_spec.lua        this one again

local ffi = require "ffi"
local build = require "spec.plan.build"
local oracle = require "spec.support.oracle"
local random = require "spec.plan.random"

local C = build.C

-- Many kinds of plans make many traces; at LuaJIT's own limits they would be thrown away again and again.
require("jit").opt.start("maxtrace=20000", "maxmcode=40960")

local GUARD = 0xEE
local STAGING = 4294967295

local function fail(text, ...)
   error(text:format(...), 0)
end

-- Byte b of element `number` of parameter p: neighbours differ, and so do parameters.
local function value(p, number, b)
   return (number * 7 + math.floor(number / 30) * 3 + b * 59 + p * 31) % 229
end

-- Every trainer's shards: shards[parameter][rank] = {numbers = elements in order, bytes = of them}.
local function make_shards(case)
   local shards = {}
   for p, param in ipairs(case.params) do
      shards[p] = {}
      for rank = 0, case.trainers - 1 do
         local numbers = oracle.shard(param.source, param.shape, rank)
         local bytes = ffi.new("uint8_t[?]", math.max(1, #numbers * param.item))
         for i, number in ipairs(numbers) do
            for b = 0, param.item - 1 do
               bytes[(i - 1) * param.item + b] = value(p, number, b)
            end
         end
         shards[p][rank] = {bytes = bytes, size = #numbers * param.item}
      end
   end
   return shards
end

-- What the oracle expects of a worker's memory, by byte: nil where nothing is written; and how many bytes of it are padding.
local function expect(case, worker)
   local expected, padding = {}, 0
   for p, param in ipairs(case.params) do
      for _, target in ipairs(param.targets or {}) do
         for _, live in ipairs(case.live[worker]) do
            if live.name == target.live then
               oracle.land(param.shape, target, case.trainers + worker, live, function(offset, number)
                  for b = 0, live.item - 1 do
                     local at = live.offset + offset + b
                     if expected[at] then
                        fail("the case itself writes byte %d of worker %d twice", at, worker)
                     end
                     expected[at] = number and value(p, number, b) or 0
                  end
                  padding = padding + (number and 0 or live.item)
               end)
            end
         end
      end
   end
   return expected, padding
end

-- Calls visit(source, destination) for every run of a copy or fill (ffi structs), in row-major order.
local function runs(copy, visit)
   local ndim = copy.ndim
   local function go(d, source, destination)
      if d == ndim then
         visit(source, destination)
         return
      end
      local dim = copy.dim[d]
      local by, to = tonumber(dim.source), tonumber(dim.destination)
      for i = 0, tonumber(dim.count) - 1 do
         go(d + 1, source + i * by, destination + i * to)
      end
   end
   go(0, 0, tonumber(copy.destination))
end

-- Runs one segment of a worker: what it writes where, and for each peer the source bytes in the order of the stream.
local function receive(segment, p, shards, write, streams)
   local moved, buffer_before, peer_before = 0, -1, -1
   for i = 0, segment.ncopies - 1 do
      local copy = segment.copy[i]
      local peer, run = copy.peer, tonumber(copy.run)
      -- Live tensors are registered in the order of the targets.
      if copy.buffer < buffer_before or (copy.buffer == buffer_before and peer < peer_before) then
         fail("parameter %d: a copy into %d from rank %d comes after one into %d from %d", p, copy.buffer, peer, buffer_before,
            peer_before)
      end
      buffer_before, peer_before = copy.buffer, peer
      local shard = shards[p][peer]
      local stream = streams[peer] or {}
      local bytes = 0
      streams[peer] = stream
      runs(copy, function(source, destination)
         source = source + tonumber(copy.source)
         if source < 0 or source + run > shard.size then
            fail("parameter %d: a copy reads [%d, %d) of the %d bytes of rank %d", p, source, source + run, shard.size, peer)
         end
         for b = 0, run - 1 do
            stream[#stream + 1] = source + b
            write(copy.buffer, destination + b, shard.bytes[source + b])
         end
         bytes = bytes + run
      end)
      if bytes ~= tonumber(copy.bytes) or bytes == 0 then
         fail("parameter %d: a copy of %d bytes says %d", p, bytes, tonumber(copy.bytes))
      end
      moved = moved + bytes
   end
   for i = 0, segment.nfills - 1 do
      local fill = segment.fill[i]
      local run, bytes = tonumber(fill.run), 0
      runs(fill, function(_, destination)
         for b = 0, run - 1 do
            write(fill.buffer, destination + b, 0)
         end
         bytes = bytes + run
      end)
      if bytes ~= tonumber(fill.bytes) or bytes == 0 then
         fail("parameter %d: a fill of %d bytes says %d", p, bytes, tonumber(fill.bytes))
      end
   end
   if moved ~= tonumber(segment.bytes) then
      fail("parameter %d: a segment of %d bytes says %d", p, moved, tonumber(segment.bytes))
   end
   if segment.param ~= p - 1 then
      fail("segment %d is of parameter %d", p - 1, segment.param)
   end
end

-- A trainer's segment must be the same streams, packed without gaps.
local function send(segment, p, worker_streams, rank, trainers)
   local sent, last = {}, {-1, -1}
   for i = 0, segment.ncopies - 1 do
      local copy = segment.copy[i]
      local stream = worker_streams[copy.peer - trainers][p][rank] or {}
      local at, run, packed = sent[copy.peer] or 0, tonumber(copy.run), 0
      runs(copy, function(source, destination)
         if destination ~= packed then
            fail("parameter %d: rank %d packs at %d what belongs at %d", p, rank, destination, packed)
         end
         for b = 0, run - 1 do
            at = at + 1
            if stream[at] ~= source + tonumber(copy.source) + b then
               fail("parameter %d: byte %d from rank %d to %d is byte %d of the shard there, %s here", p, at - 1, rank, copy.peer,
                  source + tonumber(copy.source) + b, tostring(stream[at]))
            end
         end
         packed = packed + run
      end)
      if packed ~= tonumber(copy.bytes) then
         fail("parameter %d: a packed copy of %d bytes says %d", p, packed, tonumber(copy.bytes))
      end
      if copy.peer < last[1] then
         fail("parameter %d: rank %d sends to %d after %d", p, rank, copy.peer, last[1])
      end
      last[1] = copy.peer
      sent[copy.peer] = at
   end
   for worker, streams in pairs(worker_streams) do
      local stream = streams[p][rank]
      if stream and #stream ~= (sent[worker + trainers] or 0) then
         fail("parameter %d: rank %d sends %d bytes to %d, which wants %d", p, rank, sent[worker + trainers] or 0,
            worker + trainers, #stream)
      end
   end
end

local function live_set(case, worker, memory)
   local list = {}
   for i, live in ipairs(case.live[worker]) do
      list[i] = {name = live.name, dtype = live.dtype, shape = live.shape, strides = live.strides, data = memory + live.offset}
   end
   return build.live_set(list)
end

local function check_coverage(case, plan, worker, set, expected, padding)
   local coverage, text = plan:coverage(set, case.trainers + worker)
   if not coverage then
      fail("coverage of worker %d: %s", worker, text)
   end
   local written, total = 0, 0
   for _ in pairs(expected) do
      written = written + 1
   end
   for i, live in ipairs(case.live[worker]) do
      local bytes, open = live.item, 0
      for _, extent in ipairs(live.shape) do
         bytes = bytes * extent
      end
      total = total + bytes
      oracle.each(live.shape, function(index)
         local at = live.offset
         for d = 1, #index do
            at = at + index[d] * live.strides[d]
         end
         open = open + (expected[at] == nil and live.item or 0)
      end)
      local said = 0
      for _, uncovered in ipairs(coverage.uncovered) do
         said = uncovered[1] == i - 1 and uncovered[2] or said
      end
      if said ~= open then
         fail("worker %d: %d bytes of '%s' are unwritten, coverage says %d", worker, open, live.name, said)
      end
   end
   if coverage.written + coverage.padded ~= written or coverage.padded ~= padding or coverage.live ~= total then
      fail("worker %d: coverage says %d written, %d padded of %d, found %d, %d of %d", worker, coverage.written, coverage.padded,
         coverage.live,
         written - padding, padding, total)
   end
end

-- Compiles and runs one worker, compares its memory, and returns its streams: streams[parameter][trainer] = source bytes.
local function check_worker(case, plan, worker, shards)
   local size = math.max(1, case.bytes[worker])
   local memory = ffi.new("uint8_t[?]", size)
   ffi.fill(memory, size, GUARD)
   local set = live_set(case, worker, memory)
   local expected, padding = expect(case, worker)
   check_coverage(case, plan, worker, set, expected, padding)
   local program = plan:compile(case.trainers + worker, set)
   local streams, seen, touched = {}, {}, {}
   for p, param in ipairs(case.params) do
      streams[p] = {}
      local staging, staged = {}, 0
      receive(program.segment[p - 1], p, shards, function(buffer, at, byte)
         if buffer == STAGING then
            staged = staged + (staging[at] and 0 or 1)
            if staging[at] then
               fail("parameter %d: byte %d of staging is written twice", p, at)
            end
            staging[at] = byte
            return
         end
         local live = case.live[worker][buffer + 1]
         if at < 0 or at >= live.reach then
            fail("parameter %d: byte %d is outside '%s' of worker %d", p, at, live.name, worker)
         end
         at = live.offset + at
         if touched[at] then
            fail("parameter %d: byte %d of worker %d is written twice", p, at, worker)
         end
         touched[at] = true
         memory[at] = byte
      end, streams[p])
      for peer in pairs(streams[p]) do
         seen[peer] = true
      end
      if param.full then
         local volume = 1
         for _, extent in ipairs(param.shape) do
            volume = volume * extent
         end
         for at = 0, volume * param.item - 1 do
            if staging[at] ~= value(p, math.floor(at / param.item), at % param.item) then
               fail("parameter %d: byte %d of staging on worker %d is %s", p, at, worker, tostring(staging[at]))
            end
         end
         if staged ~= volume * param.item then
            fail("parameter %d: %d bytes are staged of %d", p, staged, volume * param.item)
         end
      end
   end
   for at = 0, case.bytes[worker] - 1 do
      if memory[at] ~= (expected[at] or GUARD) or (expected[at] ~= nil) ~= (touched[at] ~= nil) then
         fail("byte %d of worker %d is %d, it should be %s", at, worker, memory[at], tostring(expected[at]))
      end
   end
   for i = 0, tonumber(program.npeers) - 1 do
      if not seen[program.peer[i]] or (i > 0 and program.peer[i - 1] >= program.peer[i]) then
         fail("worker %d lists %d as a peer", worker, program.peer[i])
      end
      seen[program.peer[i]] = nil
   end
   if next(seen) then
      fail("worker %d does not list rank %d as a peer", worker, (next(seen)))
   end
   return streams
end

local function encode(plan)
   local buffer, err = ffi.gc(ffi.new("slc_buffer"), C.slc_buffer_clear), build.error()
   build.check(C.slc_plan_encode_destinations(plan.plan, buffer, err), err)
   return ffi.string(buffer.data, buffer.length)
end

local function check_wire(case, plan)
   local bytes, other, err = encode(plan), build.case_plan(case), build.error()
   build.check(C.slc_plan_decode_destinations(other.plan, bytes, #bytes, err), err)
   for _, param in ipairs(case.params) do
      if plan:describe(param.name) ~= other:describe(param.name) then
         fail("the wire makes '%s' of '%s'", other:describe(param.name), plan:describe(param.name))
      end
   end
   if encode(other) ~= bytes then
      fail("the destinations that were decoded encode to other bytes")
   end
   return other
end

local function check_boxes(case, plan, shards)
   for p, param in ipairs(case.params) do
      local made = plan:param(param.name)
      for rank = 0, case.trainers - 1 do
         local held = shards[p][rank].size
         if tonumber(C.slc_source_bytes(made, rank)) ~= held then
            fail("parameter %d: rank %d holds %d bytes, the layout says %d", p, rank, held,
               tonumber(C.slc_source_bytes(made, rank)))
         end
      end
   end
end

local function check_case(seed)
   local case = random.case(seed)
   local plan = build.case_plan(case):resolve_case(case)
   local shards, streams = make_shards(case), {}
   check_boxes(case, plan, shards)
   -- Workers and trainers derive their programs each from their own copy of the plan, as ranks do.
   local theirs = check_wire(case, plan)
   for worker = 0, case.workers - 1 do
      streams[worker] = check_worker(case, plan, worker, shards)
   end
   for rank = 0, case.trainers - 1 do
      local program = theirs:compile(rank)
      for p in ipairs(case.params) do
         send(program.segment[p - 1], p, streams, rank, case.trainers)
      end
   end
end

describe("random plans", function()
   it("agree with the element-by-element oracle", function()
      local only, count = tonumber(os.getenv("SLUICE_SEED")), tonumber(os.getenv("SLUICE_CASES")) or 20000
      local first, last = only or 1, only or count
      for seed = first, last do
         local good, text = xpcall(check_case, function(problem)
            return os.getenv("SLUICE_SEED") and debug.traceback(tostring(problem), 2) or tostring(problem)
         end, seed)
         if not good then
            error(("SLUICE_SEED=%d: %s"):format(seed, text), 0)
         end
         if seed % 500 == 0 then
            collectgarbage()
         end
      end
   end)

   it("are the same for the same seed, and differ for another", function()
      local function text(seed)
         local case = random.case(seed)
         local plan = build.case_plan(case):resolve_case(case)
         local lines = {}
         for i, param in ipairs(case.params) do
            lines[i] = plan:describe(param.name)
         end
         return table.concat(lines, "\n")
      end
      assert.equal(text(17), text(17))
      assert.not_equal(text(17), text(18))
   end)
end)
