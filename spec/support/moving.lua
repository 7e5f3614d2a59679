--- Rule files on whole small models, in one process: each worker's live tensors are those of the slow loader (spec/support/loader.lua),
-- the plan is made from the rules, its copies are carried out here, byte by byte, and what each worker then holds must be what the
-- loader gives. No ranks are started; the transports are proved elsewhere.

local ffi = require "ffi"
local filled = require "spec.support.loader.checkpoint"
local inside = require "spec.support.inside"
local loader = require "spec.support.loader"
local resolving = require "spec.support.resolving"
local script = require "spec.support.script"
local tensor = require "spec.support.loader.tensor"
local workers = require "spec.support.loader.workers"

local C = inside.declare("plan/program.h", "script/resolve.h")

local moving = {}

local DIRT = 0x5A -- what is nowhere written

local dtypes = {
   BF16 = "bfloat16", F16 = "float16", F32 = "float32", F8_E4M3 = "float8_e4m3fn", I8 = "int8", U8 = "uint8", I32 = "int32", I64 = "int64",
}

local function each_run(ndim, dim, source, destination, visit)
   local function step(d, from, to)
      if d == ndim then
         return visit(from, to)
      end
      for i = 0, tonumber(dim[d].count) - 1 do
         step(d + 1, from + i * tonumber(dim[d].source), to + i * tonumber(dim[d].destination))
      end
   end
   step(0, source, destination)
end

-- Carries out a worker's program: reads from the checkpoint's tensors, writes into memory. What goes to staging is left out.
local function carry_out(program, plan, tensors, memory)
   for i = 0, tonumber(program.count) - 1 do
      local segment = program.segment[i]
      local from = tensors[ffi.string(C.slc_plan_at(plan, segment.param).name)].data
      for k = 0, segment.ncopies - 1 do
         local copy = segment.copy[k]
         local to = memory[tonumber(copy.buffer) + 1]
         if to then
            each_run(copy.ndim, copy.dim, tonumber(copy.source), tonumber(copy.destination), function(source, destination)
               ffi.copy(to + destination, from + source, tonumber(copy.run))
            end)
         end
      end
      for k = 0, segment.nfills - 1 do
         local fill = segment.fill[k]
         each_run(fill.ndim, fill.dim, 0, tonumber(fill.destination), function(_, destination)
            ffi.fill(memory[tonumber(fill.buffer) + 1] + destination, tonumber(fill.run), 0)
         end)
      end
   end
end

-- Compiles and carries out the plan of one worker.
-- @return name -> tensor that it then holds, or nil and what is wrong
local function move(got, rank, list, tensors)
   local coverage, problem = script.cover(got.plan, got.live, rank, got.resolved)
   if not coverage then
      return nil, problem
   end
   local err, program = inside.error(), ffi.gc(ffi.new("slc_program"), C.slc_program_clear)
   if C.slc_resolution_check(got.resolved.resolution, coverage, got.live, err) ~= 0
      or C.slc_program_compile(got.plan, got.live, rank, program, err) ~= 0 then
      return nil, inside.text(err)
   end
   local held, memory = {}, {}
   for i, live in ipairs(list) do
      local size = tensor.size_of(live.held_as, live.shape)
      memory[i] = ffi.new("uint8_t[?]", size + 1, DIRT)
      ffi.fill(memory[i], size, DIRT)
      held[live.name] = tensor.over(live.held_as, live.shape, memory[i], 0)
   end
   carry_out(program, got.plan, tensors, memory)
   return held
end

local function live_list(live)
   local list = {}
   for name, held in pairs(live) do
      list[#list + 1] = { name = name, dtype = dtypes[held.dtype], held_as = held.dtype, shape = held.shape }
   end
   table.sort(list, function(a, b) return a.name < b.name end)
   return list
end

-- What nobody writes holds what it held.
local function forget_unsourced(config, wanted, held)
   for name in pairs(wanted) do
      if config.unsourced and config.unsourced(name) then
         wanted[name], held[name] = nil, nil
      end
   end
end

local function try_worker(case, size, rank, params, tensors)
   local worker = workers.meshes(size)
   local good, live = pcall(loader.load, case.family, case.config, tensors, workers.place(size, rank))
   if not good then
      return type(live) == "table" and "unfit: " .. live.unfit or live
   end
   local list = live_list(live)
   local got = resolving.resolve({ params = params, live = list, axes = worker.mesh, host = case.host, rules = case.rules, text = case.text,
      meshes = worker.expert_mesh and { { name = "expert", axes = worker.expert_mesh } } })
   if not got.ok then
      return got.text
   end
   for name, param in pairs(got.by) do
      if param.mode == "full" and not (case.full and name:find(case.full)) or param.mode == "unresolved" then
         return ("%s is %s: %s"):format(name, param.mode, param.reason)
      end
   end
   local held, problem = move(got, 1 + rank, list, tensors)
   if not held then
      return problem
   end
   forget_unsourced(case.config, live, held)
   return loader.difference(held, live)
end

--- Moves a model once.
-- @param case { family =, config = (of spec/support/loader.lua), host = description, rules = a path, or text = }
-- @param size { tp =, ep =, pp =, dp = }
-- @return nil where every worker holds what the loader gives; else the first thing that is wrong: "worker R: ..."
function moving.run(case, size, seed)
   local list, tensors = filled.make(case.family, case.config, seed or 1)
   local params = {}
   for i, item in ipairs(list) do
      params[i] = { name = item.name, dtype = dtypes[item.dtype], shape = item.shape }
   end
   for rank = 0, workers.count(size) - 1 do
      local problem = try_worker(case, size, rank, params, tensors)
      if problem then
         return ("worker %d: %s"):format(rank, problem)
      end
   end
   return nil
end

return moving
