--- What a machine's facts mean for Sluice. Pure: facts in (native.facts and what /proc and /sys say), findings out.
--
-- A finding is { what, state, found, advice }: state is "good", "note" (works, or a part is not there that not everybody needs)
-- or "bad" (the host transport cannot work).

local units = require "sluice.cli.units"

local doctor = {}

local MANY_FILES, LITTLE_MEMORY, LITTLE_SHM = 4096, 2 ^ 30, 2 ^ 28

local function good(what, found)
   return { what = what, state = "good", found = found }
end

local function note(what, found, advice)
   return { what = what, state = "note", found = found, advice = advice }
end

local function bad(what, found, advice)
   return { what = what, state = "bad", found = found, advice = advice }
end

-- 12080 is 12.8
local function cuda_version(number)
   return ("%d.%d"):format(math.floor(number / 1000), math.floor(number % 1000 / 10))
end

-- 22703 is 2.27.3, 2809 was 2.8.9
local function nccl_version(number)
   local major, minor = number >= 10000 and 10000 or 1000, 100
   return ("%d.%d.%d"):format(math.floor(number / major), math.floor(number % major / minor), number % minor)
end

-- ---- what every rank needs ----

local function system(facts)
   local text = ("%s %s, %s, %s"):format(facts.system or "?", facts.release or "?", facts.architecture or "?",
      units.count(facts.processors, "processor"))
   return facts.system == "Linux" and good("system", text) or bad("system", text, "Sluice runs on Linux")
end

local function memory(facts)
   if not facts.memory then
      return note("memory", "neither /proc/meminfo nor the control group say how much is available", "mount /proc")
   end
   local text = units.bytes(facts.memory) .. " available to this process"
   return facts.memory >= LITTLE_MEMORY and good("memory", text)
      or note("memory", text, "a plan of a large model takes up to 1 GB, besides the weights; raise the control group's limit")
end

local function files(facts)
   local soft, hard = facts.files.soft, facts.files.hard
   if not soft then
      return good("open files", "no limit")
   end
   local text = ("%d a process, %s at most"):format(soft, hard and ("%d"):format(hard) or "any number")
   return soft >= MANY_FILES and good("open files", text) or note("open files", text,
      ("rank 0 holds a connection a rank: enough for about %d ranks; for more, ulimit -n %d"):format(math.max(1, soft - 64),
         math.min(65536, hard or 65536)))
end

local function locked(facts)
   local soft = facts.locked.soft
   return not soft and good("locked memory", "no limit")
      or note("locked memory", units.bytes(soft) .. " a process", "network cards that write into memory want it unlimited: "
         .. "ulimit -l unlimited, or LimitMEMLOCK=infinity; a single machine does not")
end

local function shared(facts)
   if facts.memfd ~= "" then
      return bad("shared memory", "memfd_create: " .. facts.memfd, "ranks of the host transport share memory by memfd: let the "
         .. "container's seccomp profile allow memfd_create")
   end
   local shm = facts.shm and units.bytes(facts.shm) .. " free in /dev/shm" or "no /dev/shm"
   if (facts.shm or 0) < LITTLE_SHM then
      return note("shared memory", "memfd works; " .. shm, "NCCL wants room in /dev/shm (docker run --shm-size=1g); the host transport "
         .. "does not use it")
   end
   return good("shared memory", "memfd works; " .. shm)
end

local function reading(facts)
   local scope = facts.ptrace_scope and (" (kernel.yama.ptrace_scope is %d)"):format(facts.ptrace_scope) or ""
   if facts.read == "" then
      return good("reading processes", "process_vm_readv works between ranks" .. scope)
   end
   return note("reading processes", "process_vm_readv: " .. facts.read .. scope, "ordinary memory goes through a ring, at two thirds of the "
      .. "speed; what comes from sluice_memory_alloc is not concerned. sysctl kernel.yama.ptrace_scope=0, or the capability "
      .. "SYS_PTRACE in a container")
end

-- ---- network ----

local function loopback(facts)
   return facts.loopback == "" and good("loopback", "127.0.0.1 can be listened on")
      or bad("loopback", "127.0.0.1: " .. facts.loopback, "bring the loopback interface up: ip link set lo up")
end

local function addresses(facts)
   local items = {}
   for i, item in ipairs(facts.addresses) do
      items[i] = ("%s (%s)"):format(item[2], item[1])
   end
   return #items > 0 and good("addresses", table.concat(items, ", ") .. "; off the loopback a key is wanted (--key-file)")
      or note("addresses", "none but the loopback", "ranks of other machines cannot reach rank 0 here")
end

local function port(facts)
   if facts.listen then
      local what = ("port %d"):format(facts.port)
      return facts.listen == "" and good(what, "can be listened on")
         or note(what, facts.listen, "rank 0 cannot listen there: choose another MASTER_PORT")
   end
   local range = facts.port_range
   return range and good("ports", ("%d to %d are given out by the kernel; --port N tries one"):format(range[1], range[2]))
      or note("ports", "/proc/sys/net/ipv4/ip_local_port_range cannot be read", "mount /proc")
end

local function cards(facts)
   local items = {}
   for i, card in ipairs(facts.cards) do
      items[i] = card.name .. (card.rate and (" (%s)"):format(card.rate) or "")
   end
   return #items > 0 and good("network cards", table.concat(items, ", "))
      or note("network cards", "no InfiniBand or RoCE card in /sys/class/infiniband", "only updates between machines want one")
end

-- ---- GPUs ----

local function driver(facts)
   local found = facts.driver
   if found.missing then
      return note("GPU driver", found.missing, "no GPU can be used: transport nccl is not for this machine, host is. With a GPU, install "
         .. "its driver, and in a container let it in (docker run --gpus all)")
   end
   local text = (facts.driver_release and "driver " .. facts.driver_release .. ", " or "")
      .. (found.version and "CUDA " .. cuda_version(found.version) or "of unknown version")
      .. (found.file and " (" .. found.file .. ")" or "")
   if found.status ~= 0 then
      return note("GPU driver", ("%s: cuInit says %d"):format(text, found.status), "the driver does not start: nvidia-smi says more; a "
         .. "kernel module of another version is told by 803, no device by 100")
   elseif (found.version or 0) < 12000 then
      return note("GPU driver", text, "transport nccl wants a driver of CUDA 12.0 or later")
   end
   return good("GPU driver", text)
end

local function gpus(facts)
   local list = facts.driver.gpus or {}
   if #list == 0 then
      return nil
   end
   local kinds, order = {}, {}
   for _, gpu in ipairs(list) do
      local name = ("%s, %s"):format(gpu.name or "unknown", gpu.bytes and units.bytes(gpu.bytes) or "unknown memory")
      order[#order + 1] = not kinds[name] and name or nil
      kinds[name] = (kinds[name] or 0) + 1
   end
   for i, name in ipairs(order) do
      order[i] = ("%d of %s"):format(kinds[name], name)
   end
   return good("GPUs", table.concat(order, "; "))
end

local function links(facts)
   local list, reached = facts.driver.gpus or {}, 0
   if #list < 2 then
      return nil
   end
   for _, gpu in ipairs(list) do
      if not gpu.peers then
         return note("links", "the driver does not say which GPUs reach each other", "nvidia-smi topo -p2p r says it")
      end
      reached = reached + gpu.peers
   end
   local all = #list * (#list - 1)
   local text = ("%d of %d pairs of GPUs reach each other's memory"):format(reached / 2, all / 2)
   return reached == all and good("links", text) or note("links", text, "transport nccl wants peer access between the GPUs of an update: "
      .. "NVLink, or PCIe with access control services off (nvidia-smi topo -p2p r)")
end

local function plugin(facts)
   local found = facts.plugin
   if found.missing then
      return note("libsluice_cuda", found.missing, "only transport nccl wants it: build where nvcc and nccl.h are, or name the file with "
         .. "SLUICE_CUDA_PLUGIN")
   end
   local text = ("made with CUDA %s and NCCL %s"):format(cuda_version(found.cuda), nccl_version(found.nccl))
   if found.gpus and found.gpus > 0 then
      return good("libsluice_cuda", ("%s, sees %s"):format(text, units.count(found.gpus, "GPU")))
   end
   return note("libsluice_cuda", text .. (found.problem and ": " .. found.problem or ", sees no GPU"), "transport nccl cannot be used here")
end

local function nccl(facts)
   local found = facts.nccl
   if found.missing then
      return note("NCCL", found.missing, found.named and "name a file that is there" or "not needed where GPUs reach each other's "
         .. "memory; a serving host takes the one that its process has, others name it with SLUICE_NCCL_LIBRARY")
   end
   return good("NCCL", ("%s, %s"):format(nccl_version(found.version), found.file))
end

local function m2n(facts)
   local found = facts.m2n
   return found.found and good("nccl_m2n", found.found) or note("nccl_m2n", found.missing, found.named and "name a file that is there" or "only "
      .. "transport m2n wants it: pip install nccl-extensions[cu13], or name the file with SLUICE_M2N_LIBRARY")
end

-- ---- libraries of this program ----

local function openssl(facts)
   return facts.openssl_number >= 0x30000000 and good("OpenSSL", facts.openssl)
      or bad("OpenSSL", facts.openssl, "the control connection wants OpenSSL 3.0 or later")
end

local function luajit(facts)
   return facts.lua:find("^LuaJIT 2%.1") and good("LuaJIT", facts.lua) or bad("LuaJIT", facts.lua, "rules want LuaJIT 2.1")
end

local questions = {
   system, memory, files, locked, shared, reading, loopback, addresses, port, cards, driver, gpus, links, plugin, nccl, m2n, openssl,
   luajit,
}

--- What facts come to.
-- @return list of findings, and whether the host transport can work
function doctor.findings(facts)
   local list, works = {}, true
   for _, ask in ipairs(questions) do
      local finding = ask(facts)
      list[#list + 1] = finding
      works = works and not (finding and finding.state == "bad")
   end
   return list, works
end

return doctor
