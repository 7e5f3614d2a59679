--- The table of scripts/check-gpu: runs each check as a program of its own and says what came of it.
--
--    luajit scripts/check-gpu.lua BUILD NCCL [--only WORDS] [--gpus T,W] [--sanitizer] [--list] [--json FILE]

local cjson = require "cjson"
package.path = "./?.lua;" .. package.path
local measure = require "scripts.measure"
local shell = require "scripts.shell"

local build, nccl = arg[1], arg[2]
local options = { gpus = "0,1", words = {} }

-- ---- what is checked ----

local checks = {}

-- A command of the build folder with what it must say: good(text) -> note; or nil and what is wrong.
local function add(name, what, command, good, limits)
   checks[#checks + 1] = { name = name, what = what, command = command, good = good, timeout = limits and limits.timeout or 120,
      optional = limits and limits.optional, environment = limits and limits.environment or "" }
end

-- The object that a program printed, among what else it said.
local function decoded(text)
   for line in text:gmatch("[^\n]+") do
      local good, object = pcall(cjson.decode, line:match("^{.*}$") or "")
      if good and type(object) == "table" then
         return object
      end
   end
   return nil
end

-- gpu_check's answer: by that road alone; with a stream, each update must have begun while it was still busy.
local function moved(road, arguments)
   local late = arguments:find("--stream", 1, true) ~= nil
   return function(text)
      local said = decoded(text)
      if not said or not said.roads or not said.compared then
         return nil, "it did not say what moved"
      elseif not said.roads[road] or next(said.roads, next(said.roads)) then
         return nil, "it took another road: " .. cjson.encode(said.roads)
      elseif late and (said.late[1] == 0 or said.late[2] == 0) then
         return nil, "no update began while a stream was busy: nothing is shown of its order"
      elseif arguments:find("--kill", 1, true) and not said.survived then
         return nil, "nobody survived anything"
      end
      return ("%.0f MB compared%s"):format(said.compared * 1e-6, late and (", %d updates in front of late work"):format(said.late[1]) or "")
   end
end

local function pair(road, name, what, arguments, environment)
   local line = ("%s/gpu_check --gpus %s --nccl %s --road %s %s"):format(build, "GPUS", nccl, road, arguments)
   add(road .. "." .. name, what, line, moved(road, arguments), { environment = environment })
end

for _, road in ipairs({ "link", "wire" }) do
   pair(road, "names", "by names", "")
   pair(road, "vmm", "memory of cuMemCreate, exported as descriptors", "--memory vmm")
   pair(road, "pieces", "memory of many pieces, tensors across them", "--memory pieces --stream")
   pair(road, "nccl_memory", "memory of ncclMemAlloc", "--memory nccl")
   pair(road, "moves", "sources that lie elsewhere in every update", "--moves")
   pair(road, "replay", "recorded; refused when sources moved, recorded again", "--how replay --moves --stream")
   pair(road, "stream", "the host's streams: made late, read late", "--stream")
   pair(road, "place", "a recording as a place in the worker's graph", "--how place --stream")
   pair(road, "full", "full parameters, load_weights on the host's stream", "--full --stream")
   pair(road, "full_alone", "full parameters, without a stream", "--full")
   pair(road, "kill_trainer", "the trainer killed in the middle, replaced", "--stream --kill 0")
   pair(road, "kill_worker", "the worker killed in the middle, replaced", "--stream --kill 1")
end
pair("link", "no_sm", "copy engines alone", "--no-sm")
pair("wire", "sockets", "sockets alone", "--stream --full", "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1")

local function verified(text)
   local said = decoded(text)
   if not said or said.verified ~= true then
      return nil, "it was not verified"
   end
   return ("%s, %.0f MB compared"):format(cjson.encode(said.roads), said.bytes_verified * 1e-6)
end

local function none_failed(text)
   local said = decoded(text)
   if not said or said.failed ~= 0 or said.cases == 0 then
      return nil, "cases failed"
   end
   return ("%d cases"):format(said.cases)
end

local function none_wrong(text)
   local said = decoded(text)
   for _, case in ipairs(said and said.cases or {}) do
      if case.wrong and case.wrong[1] then
         return nil, ("rank %s, %s: %s"):format(case.victim, case.phase, case.wrong[1])
      end
   end
   if not said or said.counts.wrong ~= 0 or said.counts.cases == 0 then
      return nil, "cases are wrong"
   end
   return ("%d cases"):format(said.counts.cases)
end

local function equal(text)
   return text:match("([^\n]-): equal"), "what came is not what must come"
end

local one_layer = build .. "/sluice run examples/deployments/llama3-8b.lua --transport nccl --json --set model.layers=1 "
local llama = one_layer .. "--set 'model.config={\"vocab_size\":16000}' "
add("ranks.model", "Llama-3-8B, 1 layer: FSDP 2 x TP 2 to TP 4", llama, verified)
add("ranks.fp8", "the same, made fp8 with scales on the way", llama .. "--set worker.dtype=float8_e4m3fn", verified)
add("ranks.turned", "GPT-OSS-20B, 1 layer of 8 experts, turned on the way", one_layer .. "--set rules=gpt_oss "
   .. "--set model.size=GPT-OSS-20B --set 'model.config={\"vocab_size\":16000,\"num_local_experts\":8}'", verified)
add("ranks.killed", "one of two trainers and two workers killed", ("scripts/faults --build %s --gpu --phase first,load,last --fault kill "
   .. "--victim 0,3 --jobs 1 --json"):format(build), none_wrong)
add("ranks.matrix_link", "the functional matrix, 2 ranks", ("scripts/matrix --build %s --transport nccl --world 2 --road link --json"):format(build),
   none_failed)
add("ranks.matrix_wire", "the same by NCCL", ("scripts/matrix --build %s --transport nccl --world 2 --road wire --json"):format(build), none_failed)
add("ranks.matrix_4", "the functional matrix, 4 ranks", ("scripts/matrix --build %s --transport nccl --world 4 --json"):format(build), none_failed)
add("kernels.copies", "random strided copies", build .. "/spec/kernels_driver 1 400", equal)
add("kernels.casts", "every halfway case of the conversions", build .. "/spec/kernels_driver casts", equal)

local function clean(text)
   local count = text:match("ERROR SUMMARY: (%d+) error") or text:match("RACECHECK SUMMARY: (%d+) hazard")
   return count == "0" and "0 errors" or nil, count and count .. " errors" or "compute-sanitizer said no summary"
end

local function sanitized(tool, name, what, line)
   -- What a call of CUDA answers is looked at by whoever made it, and NCCL asks for kernels that it has not.
   add(tool .. "." .. name, what .. ", " .. tool,
      ("compute-sanitizer --tool %s --target-processes all --report-api-errors no --error-exitcode 9 %s"):format(tool, line),
      clean, { timeout = 240, optional = true })
end

local small = build .. "/gpu_check --updates 2 --timeout 200 --gpus GPUS --nccl " .. nccl
sanitized("memcheck", "link", "by link, full parameters", small .. " --road link --full")
sanitized("memcheck", "wire", "by NCCL, full parameters", small .. " --road wire --full")
sanitized("memcheck", "kernels", "random strided copies", build .. "/spec/kernels_driver 1 20")
sanitized("racecheck", "kernels", "random strided copies", build .. "/spec/kernels_driver 1 20")
sanitized("initcheck", "kernels", "random strided copies", build .. "/spec/kernels_driver 1 20")

-- ---- arguments ----

local function usage(text, ...)
   io.stderr:write("check-gpu: ", text:format(...), "; scripts/check-gpu --help tells\n")
   os.exit(2)
end

local i = 3
while arg[i] do
   local name = arg[i]:match("^%-%-(%l+)$")
   if name == "list" or name == "sanitizer" then
      options[name] = true
   else
      options[name], i = arg[i + 1], i + 1
   end
   i = i + 1
end
if not options.gpus:match("^%d+,%d+$") then
   usage("--gpus (%s) must be two numbers, as 0,1", options.gpus)
end

local function is_chosen(check)
   if not options.only then
      return options.sanitizer or not check.optional
   end
   for word in options.only:gmatch("[^,]+") do
      if check.name:find(word, 1, true) then
         return true
      end
   end
   return false
end

local chosen = {}
for _, check in ipairs(checks) do
   if is_chosen(check) then
      chosen[#chosen + 1] = check
   end
end
if #chosen == 0 then
   usage("--only (%s) names no check", options.only)
end
if options.list then
   for _, check in ipairs(chosen) do
      print(("%-22s %s"):format(check.name, check.what))
   end
   os.exit(0)
end

-- ---- running ----

local function last_line(text)
   return (text:gsub("%s+$", ""):match("[^\n]*$"):sub(1, 300))
end

local function run(check)
   local began = measure.now()
   local line = check.command:gsub("GPUS", options.gpus)
   local said, code = shell(("env %s timeout %d %s"):format(check.environment, check.timeout, line))
   local object = decoded(said)
   local why = object and object.why or last_line(said)
   local result = { name = check.name, what = check.what, command = (check.environment .. " " .. line):gsub("^ ", ""), code = code,
      seconds = measure.now() - began }
   if code == 3 or code == 127 then
      result.outcome, result.note = "left out", why
   elseif code == 124 then
      result.outcome, result.note = "FAILED", ("it did not end in %d s"):format(check.timeout)
   else
      local note, wrong = check.good(said)
      if code ~= 0 then
         note, wrong = nil, wrong or why ~= "" and why or "exit status " .. code
      end
      result.outcome, result.note = note and "verified" or "FAILED", note or wrong
   end
   if result.outcome == "FAILED" then
      result.said = said:sub(-4000)
   end
   return result
end

-- What the machine has, as `sluice doctor` finds it.
local function machine()
   local report = decoded((shell(build .. "/sluice doctor --json"))) or { findings = {} }
   local found = { date = os.date("!%Y-%m-%d") }
   for _, finding in ipairs(report.findings) do
      found[finding.what] = finding.found
   end
   return { date = found.date, system = found.system, gpus = found.GPUs, driver = found["GPU driver"], nccl = found.NCCL,
      plugin = found.libsluice_cuda, links = found.links }
end

local where = machine()
local quiet = options.json == "-"
local function say(format, ...)
   if not quiet then
      print((format:format(...):gsub("%s+$", "")))
      io.flush()
   end
end

say("%s; %s; NCCL %s; %s", where.gpus or "no GPUs", where.driver or "no driver", where.nccl or "none", where.date)
local counts, results = { verified = 0, FAILED = 0, ["left out"] = 0 }, {}
for k, check in ipairs(chosen) do
   local result = run(check)
   counts[result.outcome] = counts[result.outcome] + 1
   results[k] = result
   say("%-22s %-58s %-9s %6.1f s  %s", result.name, result.what, result.outcome, result.seconds, result.note)
end
say("%d verified, %d failed, %d left out", counts.verified, counts.FAILED, counts["left out"])
if options.json then
   local text = cjson.encode({ machine = where, checks = results, verified = counts.verified, failed = counts.FAILED,
      left_out = counts["left out"] })
   local file = quiet and io.stdout or assert(io.open(options.json, "w"))
   file:write(text, "\n")
   if not quiet then
      file:close()
   end
end
os.exit(counts.FAILED > 0 and 1 or counts.verified == 0 and 3 or 0)
