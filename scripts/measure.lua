--- Runs a program as a whole process and says how long it took and how much memory its largest moment held; and what the
-- middle and the ends of several such figures are. For scripts/bench.lua.

local ffi = require "ffi"
local files = require "scripts.files"

ffi.cdef [[
typedef struct { long s, us; } measure_time;
typedef struct { measure_time user, system; long maxrss_kb, rest[13]; } measure_usage;
typedef struct { long s, ns; } measure_clock;
int fork(void);
int execv(const char *path, char *const argv[]);
void _exit(int status);
int wait4(int pid, int *status, int options, measure_usage *usage);
int clock_gettime(int clock, measure_clock *time);
]]

local measure = {}

local MONOTONIC, PROCESS = 1, 2

--- Seconds of a clock that only goes forward.
function measure.now(clock)
   local time = ffi.new("measure_clock")
   ffi.C.clock_gettime(clock or MONOTONIC, time)
   return tonumber(time.s) + tonumber(time.ns) * 1e-9
end

--- Seconds of a processor that this process has had: what it costs, whoever else is at work.
function measure.cpu()
   return measure.now(PROCESS)
end

--- Runs a shell command line with its output kept.
-- @return {seconds, peak_mb, output}; or nil and the output with the status where that was not 0
function measure.run(command)
   local path = os.tmpname()
   local line = ("exec %s >%s 2>&1"):format(command, path)
   local words = {"sh", "-c", line}
   local argv = ffi.new("char *[4]")
   for i, word in ipairs(words) do
      argv[i - 1] = ffi.cast("char *", word)
   end
   io.flush()
   local began = measure.now()
   local pid = ffi.C.fork()
   if pid == 0 then
      ffi.C.execv("/bin/sh", argv)
      ffi.C._exit(127)
   end
   assert(pid > 0, "cannot fork")
   local status, usage = ffi.new("int[1]"), ffi.new("measure_usage")
   assert(ffi.C.wait4(pid, status, 0, usage) == pid, "cannot wait")
   local seconds = measure.now() - began
   local output = assert(files.read(path))
   os.remove(path)
   if status[0] ~= 0 then
      return nil, ("%s\n(wait status %d of: %s)"):format(output, status[0], command)
   end
   return {seconds = seconds, peak_mb = tonumber(usage.maxrss_kb) / 1024, output = output}
end

--- Middle, smallest and largest of a list of numbers.
function measure.spread(list)
   local sorted = {unpack(list)}
   table.sort(sorted)
   local half = math.floor(#sorted / 2)
   local median = #sorted % 2 == 1 and sorted[half + 1] or (sorted[half] + sorted[half + 1]) / 2
   return {median = median, smallest = sorted[1], largest = sorted[#sorted], runs = #sorted}
end

return measure
