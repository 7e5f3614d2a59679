--- Makes the planner's C structs from plain Lua tables, for specs. What a struct points to is kept alive by the object
-- that the function returns.
--
--    local plan = build.plan {
--       trainers = 2, workers = 4,
--       sources = { { axes = { {"tp", 2} } } }, destinations = { { axes = { {"dp", 2}, {"tp", 2} } } },
--    }
--    plan:add { name = "w", shape = {8, 4}, source = { {axis = "tp", shard = 0} } }
--    plan:direct("w", { live = "w", layout = { {axis = "tp", shard = 1} } })

local ffi = require "ffi"
local inside = require "spec.support.inside"

local C = inside.declare("plan/program.h", "plan/coverage.h", "plan/replica.h", "plan/route.h", "plan/landing.h", "plan/text.h",
   "plan/overlap.h", "plan/traffic.h", "base/dtype.h", "base/text.h")

-- A state that closes lets go of the library before the last finalisers that call into it: one more handle keeps it there.
ffi.cdef "void *dlopen(const char *path, int mode);"
assert(ffi.C.dlopen(require("spec.support.built").inside, 2) ~= nil)

local build = {C = C}

--- A fresh sluice_error; inside.error looks at the headers each time, which is too slow for random tests.
function build.error()
   local err = ffi.new("sluice_error")
   err.size = ffi.sizeof("sluice_error")
   err.rank = -1
   return err
end

--- Raises the error's text unless the call went well.
function build.check(status, err)
   if tonumber(status) ~= 0 then
      error(inside.text(err), 0)
   end
end

--- Runs a call that takes an error last; returns nil when it went well, else its text and its status.
function build.fails(call, ...)
   local err = build.error()
   local arguments = {...}
   arguments[select("#", ...) + 1] = err
   local status = tonumber(call(unpack(arguments, 1, select("#", ...) + 1)))
   if status ~= 0 then
      return inside.text(err), status
   end
end

--- {first =, name =, axes = { {"tp", 2}, 4, ... }} as a slc_mesh, checked.
function build.mesh(given)
   local mesh = ffi.new("slc_mesh")
   local texts = {given.name or ""}
   mesh.name = texts[1]
   mesh.first = given.first or 0
   mesh.naxes = #given.axes
   for i, axis in ipairs(given.axes) do
      local name, size = "", axis
      if type(axis) == "table" then
         name, size = axis[1], axis[2]
      end
      texts[#texts + 1] = name
      mesh.axis_name[i - 1] = name
      mesh.axis[i - 1] = size
   end
   local err = build.error()
   build.check(C.slc_mesh_check(mesh, "mesh", err), err)
   return mesh, texts
end

local splits = {ceil = "SLC_SPLIT_CEIL", balanced = "SLC_SPLIT_BALANCED"}

--- Placements { {axis = name or 0-based number, shard = dim, parts =, split =, chunk =} or {axis =, pin =}, ... } over a mesh.
function build.layout(mesh, placements)
   local layout = ffi.new("slc_layout")
   layout.mesh = mesh
   layout.nplacements = #placements
   for i, given in ipairs(placements) do
      local placement = layout.placement[i - 1]
      placement.axis = type(given.axis) == "string" and C.slc_mesh_axis(mesh, given.axis) or given.axis
      if given.pin then
         placement.kind = "SLC_PIN"
         placement.coordinate = given.pin
      else
         placement.kind = "SLC_SHARD"
         placement.dim = given.shard
         placement.parts = given.parts or mesh.axis[placement.axis]
         placement.split = given.chunk and "SLC_SPLIT_CHUNK" or splits[given.split or "ceil"]
         placement.chunk = given.chunk or 0
      end
   end
   return layout
end

function build.shape(shape)
   return ffi.new("int64_t[8]", shape)
end

function build.numbers(array, count)
   local list = {}
   for i = 1, count do
      list[i] = tonumber(array[i - 1])
   end
   return list
end

--- nil: everything; {start, count, step} with count nil for the rest; {index, select = true}.
function build.range(given)
   local range = ffi.new("slc_range")
   range.step = 1
   range.count = -1
   if given then
      range.start = given[1] or 0
      range.count = given[2] or -1
      range.step = given[3] or 1
      range.select = given.select or false
      if range.select then
         range.count = 1
      end
   end
   return range
end

--- A box as { {low, high}, ... }.
function build.box(box)
   local list = {}
   for d = 1, box.ndim do
      list[d] = {tonumber(box.low[d - 1]), tonumber(box.high[d - 1])}
   end
   return list
end

--- The box of a rank under a layout, nil where it holds nothing of the tensor.
function build.box_of(layout, shape, rank)
   local box = ffi.new("slc_box")
   if C.slc_layout_box(layout, #shape, build.shape(shape), rank, box) then
      return build.box(box)
   end
end

--- Live tensors { {name =, dtype =, shape =, strides = in bytes, data =, attributes =}, ... } as a slc_live_set.
function build.live_set(list)
   local set = ffi.gc(ffi.new("slc_live_set"), C.slc_live_set_clear)
   for _, given in ipairs(list) do
      local text, status = build.add_live(set, given)
      if text then
         error(text, 2)
      end
      assert(status == nil)
   end
   return set
end

--- Adds one live tensor; returns nil, or the error's text and status.
function build.add_live(set, given)
   local live = ffi.new("slc_live")
   live.name = given.name
   live.dtype = C.slc_dtype_find(given.dtype or "float32")
   live.ndim = #given.shape
   local stride = live.dtype == nil and 1 or live.dtype.bytes
   for d = #given.shape, 1, -1 do
      live.shape[d - 1] = given.shape[d]
      live.stride[d - 1] = given.strides and given.strides[d] or stride
      stride = stride * given.shape[d]
   end
   live.data = given.data and ffi.cast("unsigned char *", given.data) or nil
   live.attributes = given.attributes
   return build.fails(C.slc_live_set_add, set, live)
end

-- ---- plans ----

local Plan = {}
Plan.__index = Plan

--- See the head of this file. `quantum` is the plan's, 1 MiB unless given.
function build.plan(given)
   local self = setmetatable({keep = {}, source = {}, destination = {}, index = {}, workers = given.workers,
      trainers = given.trainers}, Plan)
   self.plan = ffi.gc(C.slc_plan_create(given.trainers, given.workers), C.slc_plan_destroy)
   if given.quantum then
      C.slc_plan_set_quantum(self.plan, given.quantum)
   end
   for _, side in ipairs {{given.sources, self.source, 0}, {given.destinations, self.destination, given.trainers}} do
      for _, mesh in ipairs(side[1]) do
         local made, texts = build.mesh {name = mesh.name, axes = mesh.axes, first = side[3]}
         local added, err = ffi.new("const slc_mesh *[1]"), build.error()
         build.check(C.slc_plan_add_mesh(self.plan, made, added, err), err)
         side[2][mesh.name or ""] = added[0]
         self.keep[#self.keep + 1] = texts
      end
   end
   return self
end

--- Appends a parameter {name =, dtype =, shape =, source = placements, mesh = name, allow_full =}; raises on failure.
function Plan:add(given)
   local text = self:try_add(given)
   if text then
      error(text, 2)
   end
   return self
end

function Plan:try_add(given)
   local param = ffi.new("slc_param")
   local layout = build.layout(self.source[given.mesh or ""], given.source or {})
   param.name = given.name
   param.dtype = C.slc_dtype_find(given.dtype or "float32")
   param.ndim = #given.shape
   for d, extent in ipairs(given.shape) do
      if d <= 8 then
         param.shape[d - 1] = extent
      end
   end
   param.source = layout
   param.allow_full = given.allow_full ~= false
   return build.fails(C.slc_plan_add, self.plan, param)
end

function Plan:find(name)
   return tonumber(C.slc_plan_find(self.plan, name))
end

function Plan:param(name)
   return C.slc_plan_at(self.plan, self:find(name))
end

--- Sets a destination: {mode = "DIRECT", targets = {...}, alias_of =, reason =, where =}. Returns nil, or text and status.
function Plan:try_set(name, given)
   local destination = ffi.new("slc_param")
   local index = self:find(name)
   local keep = {given}
   destination.mode = "SLC_MODE_" .. given.mode
   destination.reason = given.reason
   destination.where = given.where
   destination.alias_of = given.alias_of
   if given.targets then
      local targets = ffi.new("slc_target[?]", math.max(1, #given.targets))
      for i, target in ipairs(given.targets) do
         self:fill_target(targets[i - 1], C.slc_plan_at(self.plan, index), target, keep)
      end
      destination.target = targets
      destination.ntargets = #given.targets
   end
   return build.fails(C.slc_plan_set, self.plan, index, destination)
end

function Plan:fill_target(target, param, given, keep)
   local strip = 0
   for d = 1, param.ndim do
      local range = given.source and given.source[d] or nil
      target.source[d - 1] = build.range(range or nil)
      if not (range and range.select) then
         strip = strip + 1
      end
   end
   target.live = given.live
   local view = given.view or {}
   target.view.ndim = given.view_ndim or given.pad == "CLEAR" and #view or math.max(#view, strip)
   local left = 0
   for d = 1, target.view.ndim do
      local range = view[d] or nil
      target.view.range[d - 1] = build.range(range)
      if not (range and range.select) then
         target.view.order[left] = given.order and given.order[left + 1] or left
         left = left + 1
      end
   end
   local layout = build.layout(self.destination[given.mesh or ""], given.layout or {})
   keep[#keep + 1] = layout
   target.layout = layout
   target.dtype = given.dtype and C.slc_dtype_find(given.dtype) or nil
   target.scales = given.scales or false
   target.pad = "SLC_PAD_" .. (given.pad == true and "ZERO" or given.pad or "NONE")
end

function Plan:set(name, given)
   local text = self:try_set(name, given)
   if text then
      error(text, 2)
   end
   return self
end

--- The companions of a parameter, by name or by number; nil, or text and status.
function Plan:try_companions(name, list)
   local numbers = ffi.new("uint32_t[?]", math.max(1, #list))
   for i, companion in ipairs(list) do
      numbers[i - 1] = type(companion) == "number" and companion or self:find(companion)
   end
   return build.fails(C.slc_plan_set_companions, self.plan, self:find(name), numbers, #list)
end

function Plan:companions(name, list)
   local text = self:try_companions(name, list)
   if text then
      error(text, 2)
   end
   return self
end

--- A direct destination of one or more targets.
function Plan:direct(name, ...)
   return self:set(name, {mode = "DIRECT", targets = {...}, where = "rules.lua:1"})
end

function Plan:describe(name)
   local text = ffi.new("char[4096]")
   C.slc_plan_describe(self.plan, self:find(name), text, 4096)
   return ffi.string(text)
end

--- The coverage of one worker: {live =, written =, padded =, uncovered = { {index, bytes}, ... }}, or nil, text, status.
function Plan:coverage(set, rank, whole_modules)
   local coverage = ffi.new("slc_coverage")
   local arena = ffi.gc(ffi.new("slc_arena"), C.slc_arena_clear)
   local text, status = build.fails(C.slc_coverage_check, self.plan, set, rank, whole_modules or false, arena, coverage)
   if text then
      return nil, text, status
   end
   local uncovered = {}
   for i = 0, tonumber(coverage.nuncovered) - 1 do
      uncovered[i + 1] = {tonumber(coverage.uncovered[i].live), tonumber(coverage.uncovered[i].bytes)}
   end
   return {live = tonumber(coverage.live_bytes), written = tonumber(coverage.written_bytes),
      padded = tonumber(coverage.padded_bytes),
      uncovered = uncovered}
end

--- The program of one rank; raises on failure.
function Plan:compile(rank, set)
   local program = ffi.gc(ffi.new("slc_program"), C.slc_program_clear)
   local err = build.error()
   build.check(C.slc_program_compile(self.plan, set, rank, program, err), err)
   return program
end

--- A program's segment as plain tables: {bytes =, copies = { {peer =, buffer =, source =, destination =, run =, dims =
-- {...}}, ... }, fills =}.
function build.segment(program, index)
   local segment = program.segment[index]
   local list = {bytes = tonumber(segment.bytes), copies = {}, fills = {}}
   for i = 0, segment.ncopies - 1 do
      local copy = segment.copy[i]
      local dims = {}
      for d = 1, copy.ndim do
         local dim = copy.dim[d - 1]
         dims[d] = {tonumber(dim.count), tonumber(dim.source), tonumber(dim.destination)}
      end
      list.copies[i + 1] = {peer = copy.peer, buffer = copy.buffer, source = tonumber(copy.source),
         destination = tonumber(copy.destination),
         run = tonumber(copy.run), bytes = tonumber(copy.bytes), dims = dims}
   end
   for i = 0, segment.nfills - 1 do
      local fill = segment.fill[i]
      local dims = {}
      for d = 1, fill.ndim do
         dims[d] = {tonumber(fill.dim[d - 1].count), tonumber(fill.dim[d - 1].destination)}
      end
      list.fills[i + 1] = {buffer = fill.buffer, destination = tonumber(fill.destination), run = tonumber(fill.run),
         bytes = tonumber(fill.bytes),
         dims = dims}
   end
   return list
end

-- ---- plans of spec.plan.random ----

--- The plan of a random case with its parameters, before their destinations.
function build.case_plan(case)
   local plan = build.plan {trainers = case.trainers, workers = case.workers, quantum = case.quantum,
      sources = {{axes = case.trainer_axes}},
      destinations = {{axes = case.worker_axes}}}
   for _, param in ipairs(case.params) do
      plan:add {name = param.name, dtype = param.dtype, shape = param.shape, source = param.source.placements}
   end
   return plan
end

--- Sets the destinations of such a plan; returns it.
function Plan:resolve_case(case)
   for _, param in ipairs(case.params) do
      if param.full then
         self:set(param.name, {mode = "FULL", reason = "chance", where = "random"})
      else
         local targets = {}
         for i, target in ipairs(param.targets) do
            targets[i] = {source = target.source, live = target.live, view = target.view, order = target.order, pad = target.pad,
               layout = target.layout.placements}
         end
         self:set(param.name, {mode = "DIRECT", targets = targets, where = "random"})
      end
   end
   return self
end

return build
