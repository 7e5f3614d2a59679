--- Moves cases of the functional matrix between real processes: one a rank, through the public API as `sluice run` drives it, with
-- generated values and every live byte compared. What each worker must hold is spec/support/matrix.lua's word.
--
-- A move is the cases of one share of a world, said in one form of init info:
--    sluice/1   named meshes on both sides; a rule file says where each parameter lands
--    2          two axes on both sides; live tensors declare their loaders, the default resolver decides. Not every case can be said so

local cjson = require "cjson"
local files = require "scripts.files"
local matrix = require "spec.support.matrix"

local run = {}

local TIMEOUT_S, BEAT_S = 120, 5 -- many ranks on few cores may all be slow
local MOST_BYTES = 1e9 -- of shards and live tensors together, of one move

-- The module that the program calls C through, out of a build folder's library for specs.
local function native_of(build)
   local path = build .. "/libsluice_inside.so"
   local open = assert(package.loadlib(path, "slc_native_open"))
   return open()
end

--- Makes what lua/sluice/cli/ needs available. Once a process.
function run.open(build)
   run.native = native_of(build)
   package.preload["sluice.native"] = function() return run.native end
   package.preload["sluice.core"] = function() return {} end -- only to read files, which nothing here does
end

-- ---- what goes into one move ----

local function product(list)
   local result = 1
   for _, factor in ipairs(list) do
      result = result * factor
   end
   return result
end

local function held_bytes(case)
   local bytes = 0
   for _, side in ipairs({ { case.source, case.trainers }, { case.destination, case.workers } }) do
      for rank = side[1].first, side[1].first + side[2] - 1 do
         local extents = {}
         for d, interval in ipairs(matrix.box(side[1], case.shape, rank) or {}) do
            extents[d] = interval[2] - interval[1]
         end
         bytes = bytes + product(extents) * case.item
      end
   end
   return bytes
end

-- Adds moves of as many cases as fit into memory.
local function add_moves(list, form, cases, destination)
   local move
   for _, case in ipairs(cases) do
      local bytes = held_bytes(case)
      if not move or move.bytes + bytes > MOST_BYTES then
         move = { form = form, trainers = case.trainers, workers = case.workers, cases = {}, bytes = 0, destination = destination }
         list[#list + 1] = move
      end
      table.insert(move.cases, case)
      move.bytes = move.bytes + bytes
   end
end

-- How schema 2 says a case, or nil: the trainers' two axes and codes, the workers' axes [replica, shard] and the dim that is cut.
local function two_axis_form(case)
   local source = #case.shape > 0 and matrix.two_axes(case.source, case.shape, case.trainers)
   local destination = source and matrix.two_axes(case.destination, case.shape, case.workers)
   if not destination or source.start ~= 0 or source.a * source.b ~= case.trainers or destination.start ~= case.trainers
      or destination.a * destination.b ~= case.workers or destination.axis ~= 2 then
      return nil
   end
   local codes = cjson.null
   if source.parts > 1 then
      codes = { source.axis == 1 and source.dim or -1, source.axis == 2 and source.dim or -1 }
   end
   return { source = { source.a, source.b }, codes = codes, destination = { destination.a, destination.b },
            dim = destination.parts > 1 and destination.dim or nil }
end

local function add_two_axis_moves(list, cases)
   local by_mesh, order = {}, {}
   for _, case in ipairs(cases) do
      local said = two_axis_form(case)
      local key = said and said.destination[1] .. "x" .. said.destination[2]
      if key and not by_mesh[key] then
         by_mesh[key] = { destination = said.destination }
         order[#order + 1] = key
      end
      if key then
         table.insert(by_mesh[key], case)
      end
   end
   for _, key in ipairs(order) do
      add_moves(list, "2", by_mesh[key], by_mesh[key].destination)
   end
end

--- The moves of a world.
-- @param options largest = bytes of a tensor, filter = a text that a case's name holds, form = only this one
function run.moves(world, options)
   local by_shares, order = matrix.cases(world, options.largest)
   local list = {}
   for _, key in ipairs(order) do
      local cases = {}
      for _, case in ipairs(by_shares[key]) do
         if not options.filter or case.name:find(options.filter, 1, true) then
            cases[#cases + 1] = case
         end
      end
      if options.form ~= "2" then
         add_moves(list, "sluice/1", cases)
      end
      if options.form ~= "sluice/1" then
         add_two_axis_moves(list, cases)
      end
   end
   return list
end

-- ---- init info and rules ----

local function name_of(number)
   return ("c%d.weight"):format(number) -- each in a module of its own
end

local function axis_name(side, layout, axis)
   return ("%s%s_%d"):format(side, layout.mesh, axis)
end

local function meshes_of(cases, side, letter)
   local seen, list = {}, {}
   for _, case in ipairs(cases) do
      local layout = case[side]
      if not seen[layout.mesh] then
         seen[layout.mesh] = true
         local axes = {}
         for i, size in ipairs(layout.axes) do
            axes[i] = { axis_name(letter, layout, i - 1), size }
         end
         list[#list + 1] = { name = layout.mesh, axes = axes }
      end
   end
   return list
end

local function placements_of(layout)
   local list = {}
   for i, placement in ipairs(layout.placements) do
      list[i] = { axis = axis_name("s", layout, placement.axis), shard = placement.shard, pin = placement.pin, parts = placement.parts,
         split = placement.split, chunk = placement.chunk }
   end
   return #list > 0 and list or cjson.null
end

local function init_info(move, port)
   local info = { master_address = "127.0.0.1", master_port = port, rank_offset = move.trainers,
      world_size = move.trainers + move.workers, params = {} }
   for i, case in ipairs(move.cases) do
      info.params[i] = { name = name_of(i), dtype_name = case.dtype, shape = case.shape, allow_full_fallback = false }
   end
   if move.form == "2" then
      info.schema_version, info.dst_mesh_dims = 2, move.destination
      for i, case in ipairs(move.cases) do
         local said = two_axis_form(case)
         info.params[i].src_mesh_dims, info.params[i].src_placements = said.source, said.codes
      end
   else
      info.schema = "sluice/1"
      info.src_meshes, info.dst_meshes = meshes_of(move.cases, "source", "s"), meshes_of(move.cases, "destination", "d")
      for i, case in ipairs(move.cases) do
         info.params[i].src_mesh, info.params[i].src_placements = case.source.mesh, placements_of(case.source)
      end
   end
   local text = cjson.encode(info):gsub('"shape":{}', '"shape":[]') -- cjson takes an empty list for an object
   return (assert(run.native.seal(text)))
end

local function rules_of(cases)
   local lines = { "return { rules = {" }
   for i, case in ipairs(cases) do
      local layout = {}
      for k, placement in ipairs(case.destination.placements) do
         local axis = axis_name("d", case.destination, placement.axis)
         layout[k] = placement.pin and ("pin(%q, %d)"):format(axis, placement.pin)
            or ("shard(%q, %d, { parts = %s, chunk = %s, split = %s })"):format(axis, placement.shard, tostring(placement.parts),
               tostring(placement.chunk), placement.split and ("%q"):format(placement.split) or "nil")
      end
      lines[#lines + 1] = ("   rule %q { layout = { %s } },"):format(name_of(i), table.concat(layout, ", "))
   end
   lines[#lines + 1] = "} }"
   return table.concat(lines, "\n")
end

-- ---- a rank ----

local function live_of(move, rank)
   local list = {}
   for i, case in ipairs(move.cases) do
      local box = matrix.box(case.destination, case.shape, rank)
      local from, extent, at, dims = {}, {}, {}, {}
      for d, interval in ipairs(box or {}) do
         from[d], extent[d], at[d], dims[d] = interval[1], interval[2] - interval[1], 0, d - 1
      end
      if box and product(extent) > 0 then
         local said = move.form == "2" and two_axis_form(case)
         list[#list + 1] = { name = name_of(i), dtype = case.dtype, shape = extent,
            contents = { { source = name_of(i), from = from, extent = extent, at = at, dims = dims } },
            attributes = said and cjson.encode({ loader = said.dim and "column" or "replicated", output_dim = said.dim,
               tp_size = said.destination[2] }) }
      end
   end
   return list
end

--- The life of one rank, in the process that spawn started: `path` is what execute wrote down. The exit code.
function run.rank(path, rank, report_fd)
   local file = assert(io.open(path))
   local told = cjson.decode(file:read("*a"))
   file:close()
   local move, params = told.move, {}
   for i, case in ipairs(move.cases) do
      params[i] = { name = name_of(i), dtype = case.dtype, shape = case.shape }
   end
   return run.native.run_rank({
      rank = rank, trainers = move.trainers, workers = move.workers, params = params, live = rank >= move.trainers and live_of(move, rank) or nil,
      init_info = told.init_info, host = "{}", rules = told.rules, transport = told.transport, road = told.road, mix = told.mix,
      timeout_s = TIMEOUT_S, timeouts = {},
      beat_s = BEAT_S, staging_slots = 0, updates = told.updates, batches = 3, listen_fd = rank == 0 and told.listener or -1,
      key_fd = -1, insecure_control = false, verify = true, ordinary = false,
   }, assert(run.native.report(report_fd)))
end

-- ---- a move ----

local function text_file(text)
   local path = os.tmpname()
   files.write(path, text)
   return path
end

-- The plugin lies with the library, not with the interpreter that runs the ranks.
local function environment_of(options)
   local plugin = options.transport ~= "host" and not os.getenv("SLUICE_CUDA_PLUGIN")
   return plugin and { ("SLUICE_CUDA_PLUGIN=%s/libsluice_cuda.so"):format(options.build) } or {}
end

-- What the ranks say of themselves, summed up.
local function books_of(result)
   return function(rank, event)
      if event.event == "ready" and event.plan and rank == result.trainers then
         result.roads, result.full = event.plan.roads, event.plan.full.parameters
      elseif event.event == "verified" then
         result.verified, result.checked = result.verified + 1, result.checked + event.bytes
      elseif event.event == "done" then
         result.done = result.done + 1
      end
   end
end

local function live_bytes(move)
   local bytes = 0
   for rank = move.trainers, move.trainers + move.workers - 1 do
      for _, live in ipairs(live_of(move, rank)) do
         bytes = bytes + product(live.shape) * move.cases[tonumber(live.name:match("%d+"))].item
      end
   end
   return bytes
end

--- Runs one move. Gives { form, trainers, workers, cases = count, updates, checked = bytes compared, seconds, roads } and, where
-- something is wrong, `failure`.
-- @param options build, transport, road, updates
function run.execute(move, options)
   local supervise = require "sluice.cli.supervise"
   local native, size, updates = run.native, move.trainers + move.workers, options.updates or 2
   local start, listener, port = native.monotonic(), native.listen(size)
   local rules = move.form ~= "2" and text_file(rules_of(move.cases)) or nil
   local told = assert(native.memfd(cjson.encode({ move = move, init_info = init_info(move, port), rules = rules, listener = listener,
      transport = options.transport, road = options.road, mix = options.transport == "m2n", updates = updates })))
   local ranks = {}
   for rank = 0, size - 1 do
      ranks[rank + 1] = { arguments = { "scripts/matrix.lua", options.build, "--rank", tostring(rank), "/proc/self/fd/" .. told },
         descriptors = rank == 0 and { told, listener } or { told }, environment = environment_of(options) }
   end
   local result = { form = move.form, trainers = move.trainers, workers = move.workers, cases = #move.cases, updates = updates, verified = 0,
      checked = 0, done = 0 }
   local first = supervise.run(ranks, { silence_s = TIMEOUT_S, on_event = books_of(result), started = function()
      native.close(told)
      native.close(listener)
   end })
   if rules then
      os.remove(rules)
   end
   local wanted = live_bytes(move) * updates
   if first then
      result.failure = ("rank %d: %s"):format(first.rank, first.text)
   elseif result.done ~= size or result.verified ~= move.workers * updates or result.checked ~= wanted or result.full ~= 0 then
      result.failure = ("%d of %d ranks ended well, %d of %d checks were made, of %.0f of %.0f bytes, %s parameters went whole"):format(result.done,
         size, result.verified, move.workers * updates, result.checked, wanted, tostring(result.full))
   end
   result.seconds = native.monotonic() - start
   return result
end

return run
