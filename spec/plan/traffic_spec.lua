--- Bytes between every trainer and every worker, counted by kinds of parameters, beside the programs of all ranks.
--
--    SLUICE_CASES=10000 busted spec/plan/traffic_spec.lua     more of them
--    SLUICE_SEED=4711 busted spec/plan/traffic_spec.lua       this one again

local ffi = require "ffi"
local build = require "spec.plan.build"
local random = require "spec.plan.random"

local C = build.C

local function places(ranks, domain, node)
   return ffi.new("slc_places", ranks or 1, domain or 8, node or 8)
end

local function count(plan, where)
   local traffic = ffi.gc(ffi.new("slc_traffic"), C.slc_traffic_clear)
   local err = build.error()
   build.check(C.slc_traffic_count(plan.plan, where or places(), traffic, err), err)
   return traffic
end

local function load_of(traffic, where)
   local load, err = ffi.gc(ffi.new("slc_load"), C.slc_load_clear), build.error()
   build.check(C.slc_traffic_load(traffic, where, load, err), err)
   return load
end

-- Each parameter of the case several times, in an order in which equal ones do not lie together.
local function repeated(case, seed)
   local r, list = random.stream(seed + 77), {}
   for _, param in ipairs(case.params) do
      for i = 1, r.next(1, 4) do
         local copy = {}
         for key, value in pairs(param) do
            copy[key] = value
         end
         copy.name = param.name .. "." .. i
         list[#list + 1] = copy
      end
   end
   case.params = r.shuffle(list)
   return case
end

-- cells["trainer>worker"] = {bytes, copies}, out of every worker's program; and bytes of every trainer's.
local function compiled(case, plan)
   local cells, sent = {}, {}
   for worker = 0, case.workers - 1 do
      local set = build.live_set(case.live[worker])
      local program = plan:compile(case.trainers + worker, set)
      for s = 0, tonumber(program.count) - 1 do
         local segment = program.segment[s]
         for i = 0, segment.ncopies - 1 do
            local key = segment.copy[i].peer .. ">" .. worker
            local cell = cells[key] or {0, 0}
            cells[key] = {cell[1] + tonumber(segment.copy[i].bytes), cell[2] + 1}
         end
      end
   end
   for trainer = 0, case.trainers - 1 do
      sent[trainer] = tonumber(plan:compile(trainer).bytes)
   end
   return cells, sent
end

local function table_of(traffic)
   local cells = {}
   for trainer = 0, traffic.trainers - 1 do
      for worker = 0, traffic.workers - 1 do
         local at = trainer * traffic.workers + worker
         local bytes, copies = tonumber(traffic.bytes[at]), traffic.copies[at]
         if bytes > 0 or copies > 0 then
            cells[trainer .. ">" .. worker] = {bytes, copies}
         end
      end
   end
   return cells
end

-- Every GPU's and node's sums, made pair by pair out of the cells.
local function summed(case, cells, where)
   local sums = {rank = {}, link_out = {}, link_in = {}, card_out = {}, card_in = {}, copies = {}, peers = {}, card_peers = {},
      card = {}}
   local function add(name, at, by)
      sums[name][at] = (sums[name][at] or 0) + by
   end
   for key, cell in pairs(cells) do
      local t, w = key:match("(%d+)>(%d+)")
      t, w = tonumber(t), tonumber(w) + case.trainers
      local a, b = math.floor(t / where.ranks_a_gpu), math.floor(w / where.ranks_a_gpu)
      local near = math.floor(a / where.gpus_a_domain) == math.floor(b / where.gpus_a_domain)
      for _, rank in ipairs {t, w} do
         add("rank", rank, cell[1])
         add("peers", rank, 1)
         add(near and "copies" or "card_peers", rank, near and cell[2] or 1)
         add("card", rank, near and 0 or cell[1])
      end
      if a ~= b and near then
         add("link_out", a, cell[1])
         add("link_in", b, cell[1])
      elseif a ~= b then
         add("card_out", math.floor(a / where.gpus_a_node), cell[1])
         add("card_in", math.floor(b / where.gpus_a_node), cell[1])
      end
   end
   return sums
end

local function compare(case, traffic, cells, where)
   local load = load_of(traffic, where)
   for name, values in pairs(summed(case, cells, where)) do
      local size = (name:find("^link") and load.gpus) or (name:find("^card_[oi]") and load.nodes) or load.world
      for i = 0, size - 1 do
         assert.equal(values[i] or 0, tonumber(load[name][i]), name .. " of " .. i)
      end
   end
end

-- Every byte that a worker gets was sent once, by a trainer or by another worker; trainers send no more than where all come from them.
local function compare_forwarded(case, traffic, where)
   local load, forwarded, sent, received = load_of(traffic, where), traffic.forwarded, 0, 0
   for rank = 0, load.world - 1 do
      local plain, bytes = tonumber(load.rank[rank]), tonumber(forwarded.rank[rank])
      if rank < case.trainers then
         sent = sent + bytes
      else
         assert(bytes >= plain, "a worker gets less")
         received, sent = received + plain, sent + bytes - plain
      end
   end
   assert.equal(received, sent)
end

describe("traffic.h", function()
   it("counts what the programs of all ranks move, pair by pair, copy by copy", function()
      local first = tonumber(os.getenv("SLUICE_SEED"))
      local cases = first and 1 or tonumber(os.getenv("SLUICE_CASES")) or 300
      for seed = first or 1, (first or 1) + cases - 1 do
         local case = repeated(random.case(seed), seed)
         local good, problem = pcall(function()
            local plan = build.case_plan(case):resolve_case(case)
            local r = random.stream(seed + 5)
            local where = places(r.next(1, 3), r.next(1, 4), r.next(1, 4))
            local traffic, cells, sent = count(plan, where), compiled(case, plan)
            assert.same(cells, table_of(traffic))
            local load = load_of(traffic, where)
            for trainer, bytes in pairs(sent) do
               assert.equal(bytes, tonumber(load.rank[trainer]))
            end
            compare(case, traffic, cells, where)
            compare_forwarded(case, traffic, where)
         end)
         if not good then
            error(("seed %d: %s"):format(seed, tostring(type(problem) == "table" and problem.message or problem)), 0)
         end
      end
   end)

   it("says of each kind what its first parameter puts on the busiest rank, link and card", function()
      local plan = build.plan {trainers = 2, workers = 2, sources = {{axes = {{"fsdp", 2}}}},
         destinations = {{axes = {{"tp", 2}}}}}
      for i = 1, 3 do
         plan:add {name = "w" .. i, shape = {8, 4}, source = {{axis = "fsdp", shard = 0}}}
         plan:direct("w" .. i, {live = "w" .. i, layout = {{axis = "tp", shard = 1}}})
      end
      plan:add {name = "norm", shape = {4}}
      plan:direct("norm", {live = "norm"})
      local traffic = count(plan, places(1, 3, 2)) -- the last worker is in another domain
      local kinds = {}
      for i = 0, tonumber(traffic.nkinds) - 1 do
         local kind = traffic.kind[i]
         kinds[tonumber(kind.count)] = {tonumber(kind.bytes), tonumber(kind.rank), tonumber(kind.link), tonumber(kind.card)}
      end
      assert.same({[3] = {128, 64, 64, 64}, [1] = {32, 16, 16, 16}}, kinds)
      assert.same({4, 3 * 128 + 16, 128}, {tonumber(traffic.parameters), tonumber(traffic.whole), tonumber(traffic.largest)})
      -- Rank 0 holds half of each weight and the norm; the rest would come from rank 1.
      assert.same({0, 3 * 64}, build.numbers(traffic.gathered, 2))
   end)

   it("gathers a parameter once, however many targets it has, and what rank 0 does not hold from those who do", function()
      local plan = build.plan {trainers = 4, workers = 1, sources = {{axes = {{"pp", 2}, {"dp", 2}}}},
         destinations = {{axes = {{"tp", 1}}}}}
      plan:add {name = "a", shape = {4, 4}, source = {{axis = "pp", pin = 1}}}
      plan:direct("a", {live = "x", source = {{0, 2}}}, {live = "y", source = {{2, 2}}})
      local traffic = count(plan)
      assert.same({0, 0, 64, 0}, build.numbers(traffic.gathered, 4))
      assert.equal(64, tonumber(traffic.whole))
   end)

   it("counts 4,096 trainers to 4,096 workers", function()
      local plan = build.plan {trainers = 4096, workers = 4096, sources = {{axes = {{"fsdp", 4096}}}},
         destinations = {{axes = {{"dp", 512}, {"tp", 8}}}}}
      for i = 1, 40 do
         plan:add {name = "w" .. i, dtype = "bfloat16", shape = {8192, 8192}, source = {{axis = "fsdp", shard = 0}}}
         plan:direct("w" .. i, {live = "w" .. i, layout = {{axis = "tp", shard = 0}}})
      end
      local traffic = count(plan)
      assert.equal(1, tonumber(traffic.nkinds))
      -- A trainer holds two rows of each, which go to one tensor-parallel rank of 512 replicas.
      assert.equal(40 * 2 * 8192 * 2, tonumber(traffic.bytes[0]))
      assert.equal(0, tonumber(traffic.bytes[1]))
      local load = load_of(traffic, places())
      assert.equal(512, tonumber(load.peers[17]))
      assert.equal(40 * 8192 * 8192 * 2 / 8, tonumber(load.rank[8191]))
      -- Forwarded, it sends them once; every worker but the last replica's sends on what it got.
      assert.is_true(traffic.forwards)
      assert.equal(40 * 2 * 8192 * 2, tonumber(traffic.forwarded.rank[0]))
      assert.equal(40 * 8192 * 8192 * 2 / 8, tonumber(traffic.forwarded.rank[8191]))
      assert.equal(2 * 40 * 8192 * 8192 * 2 / 8, tonumber(traffic.forwarded.rank[8183]))
   end)

   it("fails cleanly whichever allocation fails", function()
      local case = repeated(random.case(11), 11)
      local plan = build.case_plan(case):resolve_case(case)
      local nth, where = 0, places()
      repeat
         nth = nth + 1
         local traffic, load = ffi.new("slc_traffic"), ffi.new("slc_load")
         C.slc_fail_allocation(nth, true)
         local text, status = build.fails(C.slc_traffic_count, plan.plan, where, traffic)
         if not text then
            text, status = build.fails(C.slc_traffic_load, traffic, where, load)
         end
         C.slc_fail_allocation(0, false)
         assert(not text or status == 3, text) -- NO_MEMORY
         C.slc_load_clear(load)
         C.slc_traffic_clear(traffic)
      until not text
      assert(nth > 10)
   end)

   it("refuses a world of more ranks, places below one and sums that do not fit", function()
      local plan = build.plan {trainers = 8000, workers = 193, sources = {{axes = {8000}}}, destinations = {{axes = {193}}}}
      assert.equal("traffic: a world of 8193 ranks is more than the 8192 that are counted",
         (build.fails(C.slc_traffic_count, plan.plan, places(), ffi.gc(ffi.new("slc_traffic"), C.slc_traffic_clear))))
      plan = build.plan {trainers = 1, workers = 4, sources = {{axes = {1}}}, destinations = {{axes = {4}}}}
      assert.equal("traffic: ranks a GPU (1), GPUs a domain (0) and GPUs a node (8) must be at least 1",
         (build.fails(C.slc_traffic_count, plan.plan, places(1, 0), ffi.gc(ffi.new("slc_traffic"), C.slc_traffic_clear))))
      plan:add {name = "huge", dtype = "uint8", shape = {2 ^ 40, 2 ^ 21}}
      plan:direct("huge", {live = "huge"})
      assert.equal("traffic: the plan moves more than can be counted (parameter 'huge')",
         (build.fails(C.slc_traffic_count, plan.plan, places(), ffi.gc(ffi.new("slc_traffic"), C.slc_traffic_clear))))
   end)
end)
