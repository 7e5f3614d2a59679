--- Runs model families through the program and holds what every worker then has against the slow loader: for each case a small
-- but awkward model with a checkpoint of random bytes, for each size of the serving host one deployment of real processes.
-- scripts/families prints it as a table; specs assert it.

local cjson = require "cjson"
local files = require "scripts.files"
local filled = require "spec.support.loader.checkpoint"
local loader = require "spec.support.loader"
local safetensors = require "spec.support.safetensors"
local with = require "spec.support.with"
local workers = require "spec.support.loader.workers"

local families = { cases = require "spec.support.families_cases" }

-- What the loader goes by: the published keys, and what the case says beside them.
local function loader_config(case)
   return with({ dtype = case.dtype or "BF16", model_type = case.family }, case.config, case.loader)
end

-- Writes the case's checkpoint into `folder` and keeps its tensors in memory.
local function make_checkpoint(case, folder, seed)
   local config = loader_config(case)
   local list, tensors = filled.make(loader.family(case.family), config, seed)
   safetensors.write_checkpoint(folder, list, case.files or 1)
   local file = assert(io.open(folder .. "/config.json", "w"))
   file:write(cjson.encode(case.config))
   assert(file:close())
   return { config = config, tensors = tensors, path = folder, parameters = #list }
end

-- ---- the deployment ----

--- The layouts of trainers, one for each size in turn.
local dense_trainers = {
   { mesh = { { "fsdp", 3 } } }, { mesh = { { "pp", 2 }, { "tp", 2 } } }, { mesh = { { "fsdp", 2 }, { "tp", 2 } } },
   { mesh = { { "dp", 2 }, { "fsdp", 2 } } }, { mesh = { { "pp", 3 }, { "fsdp", 2 } } }, { mesh = { { "tp", 4 } } },
   { mesh = { { "fsdp", 5 } } },
}
local expert_trainers = {
   { mesh = { { "pp", 2 }, { "fsdp", 3 } }, expert_mesh = { { "pp", 2 }, { "ep", 3 } } }, { mesh = { { "fsdp", 3 } } },
   { mesh = { { "dp", 2 }, { "tp", 2 } }, expert_mesh = { { "ep", 4 } } }, { mesh = { { "pp", 2 }, { "tp", 2 } } },
   { mesh = { { "fsdp", 2 }, { "tp", 2 } }, expert_mesh = { { "fsdp", 2 }, { "ep", 2 } } }, { mesh = { { "fsdp", 2 }, { "ep", 2 } } },
   { mesh = { { "fsdp", 4 } }, expert_mesh = { { "ep", 2 }, { "tp", 2 } } },
}

local function deployment_of(case, checkpoint, size, number, options)
   local trainers = case.experts and expert_trainers or dense_trainers
   local model = with({ family = case.model_family or case.family, config = case.config, checkpoint = checkpoint.path }, case.model)
   return {
      model = model, trainer = options.trainer or trainers[number % #trainers + 1], worker = workers.meshes(size),
      rules = options.rules or model.family, updates = 1, batches = number % 3 + 1, timeout_s = 60,
   }
end

--- The sizes that a case is run at: tp 1, 2, 4, 8 with pp 1 and 2, with experts ep 1 and tp; and two with dp 2.
function families.sizes(case)
   local list = {}
   local function add(tp, ep, pp, dp)
      list[#list + 1] = { tp = tp, ep = ep, pp = pp, dp = dp }
   end
   for _, tp in ipairs({ 1, 2, 4, 8 }) do
      for _, ep in ipairs(case.experts and tp > 1 and { 1, tp } or { 1 }) do
         for pp = 1, 2 do
            add(tp, ep, pp, 1)
         end
      end
   end
   add(2, 1, 2, 2)
   if case.experts then
      add(2, 4, 1, 2)
   end
   return list
end

-- ---- one cell ----

local function read_text(path)
   return assert(files.read(path))
end

local function count(text, what)
   return ("%d %s"):format(text, what)
end

-- What the loader gives for every worker: their tensors, the bytes that each took, and which checkpoint tensors were taken.
local function load_all(case, checkpoint, size)
   local all = { tensors = {}, taken = {}, bytes = 0, of = {}, untouched = {} }
   local family = loader.family(case.family)
   for rank = 0, workers.count(size) - 1 do
      local live, taken, bytes, untouched = loader.load(family, checkpoint.config, checkpoint.tensors, workers.place(size, rank))
      all.tensors[rank], all.of[rank], all.untouched[rank], all.bytes = live, bytes, untouched, all.bytes + bytes
      for name in pairs(taken) do
         all.taken[name] = true
      end
   end
   all.source_bytes = 0
   for name, held in pairs(checkpoint.tensors) do
      if all.taken[name] then
         all.source_bytes = all.source_bytes + held:size()
      elseif family.target(name, checkpoint.config) then
         error("no worker loads " .. name, 0)
      end
   end
   return all
end

-- Fills in what the run and the files say; cell.wrong is the first thing that is not as it must be.
local function judge(cell, run, all, folder)
   local function must(good, text, ...)
      if not good and not cell.wrong then
         cell.wrong = text:format(...)
      end
      return good
   end
   local coverage = run.coverage
   must(#run.aliases_that_differ == 0, "an alias has other values")
   cell.direct = run.bytes_direct / all.source_bytes
   must(run.bytes_full == 0 and run.bytes_direct == all.source_bytes, "%s direct, %s full; the loader takes %s",
      count(run.bytes_direct, "bytes"), count(run.bytes_full, "bytes"), count(all.source_bytes, "bytes"))
   local uncovered = 0
   for _, live in ipairs(coverage.uncovered) do
      uncovered = uncovered + live.bytes
   end
   cell.covered = must(uncovered == all.untouched[0] and coverage.written_bytes == all.of[0]
      and coverage.written_bytes + coverage.padded_bytes + uncovered == coverage.live_bytes,
      "worker 0 has %d live bytes, %d written, %d cleared, %d neither; the loader writes %d and leaves %d", coverage.live_bytes,
      coverage.written_bytes, coverage.padded_bytes, uncovered, all.of[0], all.untouched[0])
      and must(run.bytes_received == all.bytes, "the workers received %d bytes; the loader writes %d", run.bytes_received, all.bytes)
   cell.exact = true
   for rank = 0, #all.tensors do
      local text = loader.difference(safetensors.read(("%s/worker-%d.safetensors"):format(folder, rank)), all.tensors[rank])
      cell.exact = must(not text, "worker %d: %s", rank, text) and cell.exact
   end
end

-- Runs a line of shell in which $P is the program and $F the folder.
local function shell(line, folder, program)
   return os.execute(("P='%s'; F='%s'; %s"):format(program or "", folder, line)) == 0
end

-- Runs a command of the program on a deployment; what it printed, or nil and what it said.
local function run_program(command, deployment, folder, program)
   local file = assert(io.open(folder .. "/deployment.json", "w"))
   file:write(cjson.encode(deployment))
   assert(file:close())
   local good = shell(('"$P" %s "$F"/deployment.json --json >"$F"/out 2>"$F"/err'):format(command), folder, program)
   if not good then
      return nil, (read_text(folder .. "/err"):gsub("%s+$", ""))
   end
   return cjson.decode(read_text(folder .. "/out"))
end

--- Makes the checkpoint of a case below `folder`, for families.run.
function families.prepare(case, folder, seed)
   local path = folder .. "/" .. case.name:gsub("[^%w]+", "-"):lower()
   assert(shell('mkdir -p "$F"', path))
   return make_checkpoint(case, path, seed)
end

--- Runs a case at one size.
-- @param number chooses the trainers' layout and the batches
-- @param options program, and for specs trainer (another layout), rules and no_verify
-- @return a cell: case, tp, ep, pp, dp, parameters, and either unfit = why the size cannot be served (which the program must see, too),
--    or direct (a share), covered, exact; and wrong = what is not as it must be
function families.run(case, checkpoint, size, number, options)
   local cell = { case = case.name, tp = size.tp, ep = size.ep, pp = size.pp, dp = size.dp, parameters = checkpoint.parameters }
   local good, all = pcall(load_all, case, checkpoint, size)
   if not good and not (type(all) == "table" and all.unfit) then
      cell.wrong = "the loader: " .. tostring(all)
      return cell
   end
   local folder, deployment, run = checkpoint.path .. "/run", deployment_of(case, checkpoint, size, number, options), nil
   assert(shell('rm -rf "$F" && mkdir "$F"', folder))
   if not good then
      cell.unfit = all.unfit
      cell.wrong = run_program("plan", deployment, folder, options.program) and "the program plans it all the same" or nil
   else
      local command = 'run --quiet --save "$F"/saved' .. (options.no_verify and " --no-verify" or "")
      run, cell.wrong = run_program(command, deployment, folder, options.program)
   end
   if run then
      judge(cell, run, all, folder .. "/saved")
   end
   shell('rm -rf "$F"', folder)
   return cell
end

return families
