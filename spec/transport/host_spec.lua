local dirent = require "posix.dirent"
local driver = require "spec.support.host_driver"
local ffi = require "ffi"
local fcntl = require "posix.fcntl"
local inside = require "spec.support.inside"
local resource = require "posix.sys.resource"
local unistd = require "posix.unistd"

local C = inside.declare("transport/host/host.h", "transport/host/card.h")

local path = driver.path()

local function check(scene, road, options)
   return driver.check(path, scene, road, options)
end

local function assert_moved(answer)
   assert.is_true(answer.ok, answer.complaint .. table.concat(driver.words(answer, "trainers"), "; ") .. "; "
      .. table.concat(driver.words(answer, "workers"), "; "))
end

--- What the host transport could leave behind: names in shared memory, and of sockets.
local function traces()
   local found = {}
   for _, name in ipairs(dirent.dir("/dev/shm")) do
      if name:find("sluice", 1, true) then
         found[#found + 1] = name
      end
   end
   for line in io.lines("/proc/net/unix") do
      if line:find("@sluice-", 1, true) then
         found[#found + 1] = line
      end
   end
   return found
end

-- Another run on this machine may leave some for a moment.
local function assert_no_traces()
   local found = traces()
   for _ = 1, 100 do
      if #found == 0 then
         return
      end
      require("posix.time").nanosleep({tv_sec = 0, tv_nsec = 100000000})
      found = traces()
   end
   assert.same({}, found)
end

describe("the host transport", function()
   local SCENES = {
      {"contiguous", "contiguous shards"},
      {"strided", "rows of a wider matrix"},
      {"permuted", "rows that become columns"},
      {"tiny_rows", "rows of a few bytes"},
      {"empty", "fewer elements than ranks, and a scalar"},
      {"many", "thousands of small tensors"},
      {"padding", "padded rows, cleared or left alone"},
      {"staging", "full tensors through the staging buffer"},
      {"fan_in", "five trainers into one worker"},
      {"fan_out", "one trainer to five workers"},
   }
   for _, scene in ipairs(SCENES) do
      for _, road in ipairs {"pull", "ring", "map"} do
         it(("moves %s by %s"):format(scene[2], road), function()
            local answer = check(scene[1], road)
            assert_moved(answer)
            for _, text in ipairs(driver.words(answer, "workers")) do
               for word in text:gmatch("%S+") do
                  assert.equal(road, word)
               end
            end
         end)
      end
   end

   it("moves random tensors by every road", function()
      local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time() % 1000000
      for i = seed, seed + (tonumber(os.getenv("SLUICE_CASES")) or 10) - 1 do
         for _, road in ipairs {"any", "pull", "ring", "map"} do
            local answer = check("random", road, "seed=" .. i)
            assert.is_true(answer.ok, ("SLUICE_SEED=%d SLUICE_CASES=1, road %s: %s"):format(i, road, answer.complaint))
         end
      end
   end)

   it("tries map, then pull, for each shard", function()
      local answer = check("mixed", "any")
      assert_moved(answer)
      assert.same({"map+pull map+pull"}, driver.words(answer, "workers"))
      assert.same({"map+pull map+pull"}, driver.words(answer, "trainers"))
   end)

   it("goes by ring where the kernel forbids the pull", function()
      local answer = check("contiguous", "any", "forbid")
      assert_moved(answer)
      assert.same({"ring ring"}, driver.words(answer, "workers"))
      answer = check("mixed", "any", "forbid")
      assert_moved(answer)
      assert.same({"map+ring map+ring"}, driver.words(answer, "workers"))
   end)

   it("finds shards that moved between batches", function()
      for _, road in ipairs {"any", "pull", "ring"} do
         assert_moved(check("mixed", road, "batches=4 move_sources"))
      end
   end)

   it("keeps no descriptor over a hundred lives", function()
      for _, road in ipairs {"any", "ring"} do
         assert_moved(check("mixed", road, "cycles=100 batches=1"))
      end
   end)

   it("is not held up by strangers at its sockets", function()
      assert_moved(check("mixed", "any", "strangers cycles=3"))
      assert_moved(check("contiguous", "ring", "strangers"))
   end)

   describe("refuses", function()
      it("a forced pull that the kernel forbids", function()
         local answer = check("contiguous", "pull", "forbid")
         assert.is_false(answer.ok)
         local text = answer.ranks[3].text
         local expected = '^runtime: road "pull" to rank 0 %(pid %d+%) does not work %(process_vm_readv: Operation not permitted[^)]*%): '
            .. "leave the road open, or let this process read that one$"
         assert.is_truthy(text:match(expected), text)
         assert.equal("not supported here", answer.ranks[3].status)
      end)

      it("a forced map of memory that is not shared", function()
         local answer = check("mixed", "map")
         assert.is_truthy(answer.ranks[3].text:find(
            '^runtime: parameter t0: rank [01] holds it outside of shared regions %(road "map" reaches only those%)$'), answer.ranks[3].text)
         assert.equal("not supported here", answer.ranks[3].status)
      end)

      it("a live tensor in memory that cannot be written #5.12", function()
         local answer = check("contiguous", "any", "read_only")
         assert.is_truthy(answer.ranks[3].text:match(
            "^runtime: live tensor live %(0x%x+ to 0x%x+%) must lie in memory that this process can write$"), answer.ranks[3].text)
         assert.equal("invalid input", answer.ranks[3].status)
      end)

      it("a source that is no longer registered", function()
         for _, road in ipairs {"pull", "ring"} do
            local answer = check("contiguous", road, "lose_source")
            assert.equal("update: parameter t0 has no source memory on this rank", answer.ranks[1].text)
         end
      end)

      it("a road of another name", function()
         local answer = check("contiguous", "train")
         assert.equal('runtime: road ("train") must be "map", "pull" or "ring"', answer.ranks[1].text)
      end)
   end)

   describe("when a rank is lost in a batch", function()
      for _, road in ipairs {"any", "pull", "ring"} do
         for _, rank in ipairs {0, 2} do
            it(("ends on all ranks, names rank %d and leaves nothing (%s)"):format(rank, road), function()
               local answer = check("mixed", road, ("kill=%d at=1"):format(rank))
               assert.is_false(answer.ok)
               for i, other in ipairs(answer.ranks) do
                  if i == rank + 1 then
                     assert.equal("signal 9", other.text)
                  else
                     assert.equal("another rank failed or was lost", other.status)
                     assert.is_truthy(other.text:find("rank " .. rank, 1, true), other.text)
                  end
               end
               assert_no_traces()
            end)
         end
      end

      it("says which parameter was being read", function()
         local answer = check("contiguous", "pull", "kill=1 at=1 silent")
         local named = 0
         for i = 3, 4 do
            local text = answer.ranks[i].text
            assert.is_truthy(text:find("update: parameter t%d: reading from rank 1 %(pid %d+, address 0x%x+%): that process has ended: "),
               text)
            named = named + (text:find("^update") and 1 or 0)
         end
         assert.is_true(named >= 1) -- the other may have heard of it first
      end)

      it("names the rank that a stopped one keeps waiting", function()
         local answer = check("contiguous", "ring", "stop kill=0 at=1 timeout=2")
         for i = 2, 4 do
            assert.is_truthy(answer.ranks[i].text:find("rank 0", 1, true), answer.ranks[i].text)
            assert.is_truthy(answer.ranks[i].text:find("took longer than 2 s", 1, true), answer.ranks[i].text)
         end
      end)
   end)

   it("measures every road against its limit", function()
      local code, output, complaint = driver.run(path .. " bench --json --mib=8 --samples=1")
      assert.equal(0, code, complaint)
      local courses = require("cjson").decode(output)
      for _, name in ipairs {"pull_contiguous", "pull_rows_4k", "map_contiguous", "ring_contiguous", "pull_10000_of_1k"} do
         assert.is_true(courses[name].gb_per_s.median > 0, name)
         assert.is_true(courses[name].limit_gb_per_s.median > 0, name)
         assert.equal(name:match("^%a+"), courses[name].road)
      end
   end)

   it("has settings that must match", function()
      local program, live = ffi.new("slc_program"), ffi.new("slc_live_set")
      for _, case in ipairs {{nil, "host_transport=1\nhost_road=any\n"}, {"ring", "host_transport=1\nhost_road=ring\n"}} do
         local config = ffi.new("slc_transport_config")
         config.rank, config.trainers, config.workers = 1, 1, 1
         config.program, config.live, config.road = program, live, case[1]
         local transport, err, lines = ffi.new("slc_transport *[1]"), inside.error(), ffi.new("slc_buffer")
         assert.equal(0, tonumber(C.slc_host_transport.open(config, transport, err)), inside.text(err))
         assert.equal(0, tonumber(C.slc_host_transport.must_match(transport[0], lines, err)))
         assert.equal(case[2], ffi.string(lines.data, lines.length))
         C.slc_buffer_clear(lines)
         C.slc_host_transport.close(transport[0])
      end
   end)
end)

describe("the card of a host process", function()
   local mine, err

   before_each(function()
      mine, err = ffi.new("slc_host_card"), inside.error()
      assert.equal(0, tonumber(C.slc_host_card_make(mine, err)))
   end)

   local function written(card)
      local buffer = ffi.new("slc_buffer")
      assert.equal(0, tonumber(C.slc_host_card_write(card, buffer, err)))
      local bytes = ffi.string(buffer.data, buffer.length)
      C.slc_buffer_clear(buffer)
      return bytes
   end

   local function read(bytes)
      local card = ffi.new("slc_host_card")
      return tonumber(C.slc_host_card_read(bytes, #bytes, 7, card, err)), card
   end

   local function changed(field, value)
      local card = ffi.new("slc_host_card", mine)
      card[field] = value
      return tonumber(C.slc_host_card_check(mine, card, 7, err)), inside.text(err)
   end

   it("is read as it was written", function()
      mine.mark_address, mine.socket = 0x7f0012345678ULL, "sluice-somewhere"
      local status, card = read(written(mine))
      assert.equal(0, status)
      assert.equal(ffi.string(mine, ffi.sizeof(mine)), ffi.string(card, ffi.sizeof(card)))
   end)

   it("is refused when it is cut anywhere or has more", function()
      local bytes = written(mine)
      for length = 0, #bytes - 1 do
         assert.equal(1, (read(bytes:sub(1, length))))
      end
      assert.equal(("runtime: card of rank 7 (%d bytes) is damaged"):format(#bytes - 1), inside.text(err))
      assert.equal(1, (read(bytes .. "x")))
   end)

   it("is refused when a byte of a length lies", function()
      local bytes = written(mine)
      for value = 0, 255 do
         if value ~= bytes:byte(5) then
            assert.not_equal(0, (read(bytes:sub(1, 4) .. string.char(value) .. bytes:sub(6))))
         end
      end
   end)

   it("is refused from another version", function()
      assert.equal(7, (read("\9\0\0\0" .. written(mine):sub(5))))
      assert.equal("runtime: card of rank 7: version (9) must be 1", inside.text(err))
   end)

   it("knows this process", function()
      assert.equal(0, tonumber(C.slc_host_card_check(mine, mine, 7, err)))
   end)

   it("tells another machine", function()
      local status, text = changed("machine", "4f2a")
      assert.equal(9, status)
      assert.equal(("runtime: rank 7 is not on this machine (its boot id is 4f2a, here %s): the host transport moves bytes within one")
         :format(ffi.string(mine.machine)), text)
   end)

   it("tells other namespaces", function()
      local text = select(2, changed("processes", "pid:[1]"))
      assert.equal(("runtime: rank 7 is on this machine but in another pid namespace (pid:[1], here %s): the host transport needs one "
         .. "for all ranks"):format(ffi.string(mine.processes)), text)
      text = select(2, changed("network", "net:[1]"))
      assert.equal(("runtime: rank 7 is on this machine but in another network namespace (net:[1], here %s): the host transport "
         .. "needs one for all ranks"):format(ffi.string(mine.network)), text)
   end)

   it("tells a pid that is used again, and one that has ended", function()
      local status, text = changed("started", mine.started + 1)
      assert.equal(6, status)
      assert.equal(("runtime: rank 7 is gone (pid %d is another process now)"):format(mine.pid), text)
      assert.equal(7, err.rank)
      text = select(2, changed("pid", 0x7ffffff0))
      assert.equal("runtime: rank 7 is gone (pid 2147483632 has ended)", text)
   end)

   it("blames no other rank and no machine where this process is out of descriptors", function()
      local before = resource.getrlimit(resource.RLIMIT_NOFILE)
      local free = fcntl.open("/dev/null", fcntl.O_RDONLY)
      unistd.close(free)
      resource.setrlimit(resource.RLIMIT_NOFILE, {rlim_cur = free, rlim_max = before.rlim_max})
      local status, text = changed("pid", mine.pid)
      local made, own = tonumber(C.slc_host_card_make(ffi.new("slc_host_card"), err)), inside.text(err)
      resource.setrlimit(resource.RLIMIT_NOFILE, before)
      assert.same({4, ("runtime: the host transport cannot read /proc/%d/stat: Too many open files"):format(mine.pid)}, {status, text})
      assert.same({4, "runtime: the host transport cannot read /proc/sys/kernel/random/boot_id: Too many open files"}, {made, own})
   end)
end)

describe("slc_region_create", function()
   it("gives zeroed whole pages that nobody can shrink", function()
      local region, err = ffi.new("slc_region"), inside.error()
      assert.equal(0, tonumber(C.slc_region_create(5000, region, err)), inside.text(err))
      assert.equal(8192, tonumber(region.bytes))
      local bytes = ffi.cast("unsigned char *", region.data)
      for i = 0, 8191 do
         assert.equal(0, bytes[i])
      end
      bytes[8191] = 1
      ffi.cdef "int ftruncate(int, long);"
      assert.equal(-1, ffi.C.ftruncate(region.fd, 4096))
      assert_no_traces()
      C.slc_region_destroy(region)
      C.slc_region_destroy(region)
   end)

   it("refuses more than half of the address space", function()
      local region, err = ffi.new("slc_region"), inside.error()
      assert.equal(1, tonumber(C.slc_region_create(0xffffffffffffffffULL, region, err)))
      assert.equal("memory: shared region (18446744073709551615 bytes) must fit half the address space", inside.text(err))
   end)
end)
