--- What one worker of a serving host holds: the geometry of fused, column, row, vocabulary and expert parameters, rank by
-- rank, as plain arithmetic. It shares nothing with rules or with the planner: verification trusts it against them.

local check = require "sluice.models.check"
local mesh = require "sluice.models.mesh"
local names = require "sluice.models.names"

local serving = {}
serving.__index = serving

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local IN_BLOCKS, BLOCK = "float8_e4m3fn", 128

--- How many layers each pipeline stage of a serving host holds: what does not divide goes, one each, to the stages before
-- the last one.
function serving.partition(layers, stages)
   local counts = {}
   for i = 1, stages do
      counts[i] = floor(layers / stages)
   end
   for i = 1, layers % stages do
      counts[stages - i] = counts[stages - i] + 1
   end
   return counts
end

--- The vocabulary with its padding: rounded up to a multiple of 64.
function serving.padded(vocab_size)
   return math.ceil(vocab_size / 64) * 64
end

--- Sizes of the worker meshes that the geometry depends on: tp, pp, ep (nil without expert parallelism), moe_tp.
function serving.sizes(part)
   local expert = part.expert_mesh or part.mesh
   local has_ep = mesh.has(expert, "ep")
   return {
      tp = mesh.size(part.mesh, "tp"), pp = mesh.size(part.mesh, "pp"),
      ep = has_ep and mesh.size(expert, "ep") or nil,
      moe_tp = (part.expert_mesh or not has_ep) and mesh.size(expert, "tp") or 1,
   }
end

--- Fails unless both meshes of a worker put every rank into the same pipeline stage.
function serving.check_meshes(part)
   if not part.expert_mesh then
      return
   end
   local dense, expert = mesh.size(part.mesh, "pp"), mesh.size(part.expert_mesh, "pp")
   if dense ~= expert then
      check.fail("worker.expert_mesh has %d pp stages and worker.mesh %d: a worker holds both parts of its layers", expert, dense)
   end
   if dense > 1 and mesh.stride(part.mesh, "pp") ~= mesh.stride(part.expert_mesh, "pp") then
      check.fail("worker.expert_mesh and worker.mesh put a rank into different pp stages: pp must be at the same place in both")
   end
end

--- Fails unless `value` of the configuration divides by the workers' `name` size.
function serving.check_divides(config, key, size, name)
   if config[key] % size ~= 0 then
      check.fail("model.config.%s (%d) must divide by the workers' %s (%d)", key, config[key], name, size)
   end
end

--- Fails unless every worker gets a part of the padded vocabulary, of the layers and of the experts, whose number the
-- configuration's key `count_key` says (num_experts where it is left out).
function serving.check_whole(config, sizes, count_key)
   local padded = serving.padded(config.vocab_size)
   if padded % sizes.tp ~= 0 then
      check.fail("model.config.vocab_size (%d, padded to %d) must divide by the workers' tp (%d) after padding",
         config.vocab_size, padded, sizes.tp)
   end
   if config.num_experts and sizes.ep and sizes.ep > config.num_experts then
      check.fail("model.config.%s (%d) must be at least the workers' ep (%d)", count_key or "num_experts", config.num_experts,
         sizes.ep)
   end
   if sizes.pp > config.num_hidden_layers then
      check.fail("%d layers must be at least the workers' pp (%d)", config.num_hidden_layers, sizes.pp)
   end
end

--- The geometry of worker `rank` (0-based among the workers). config: the model's configuration; prefixes: what its
-- checkpoint and its host call otherwise than the family, { checkpoint =, live = }.
function serving.new(part, config, rank, prefixes)
   local sizes = serving.sizes(part)
   local expert = part.expert_mesh or part.mesh
   local stage = mesh.coordinate(part.mesh, rank, "pp")
   local counts, first_layer = serving.partition(config.num_hidden_layers, sizes.pp), 0
   for i = 1, stage do
      first_layer = first_layer + counts[i]
   end
   local self = setmetatable({
      tp = sizes.tp, r = mesh.coordinate(part.mesh, rank, "tp"), ep = sizes.ep, moe_tp = sizes.moe_tp,
      moe_r = sizes.moe_tp > 1 and mesh.coordinate(expert, rank, "tp") or 0,
      is_first = stage == 0, is_last = stage == sizes.pp - 1,
      first_layer = first_layer, last_layer = first_layer + counts[stage + 1] - 1,
      dtype = part.dtype ~= IN_BLOCKS and part.dtype or config.dtype, in_blocks = part.dtype == IN_BLOCKS,
      list = {}, attributes = {}, prefixes = prefixes, unsourced = false,
   }, serving)
   if config.num_experts then
      self.first_expert, self.local_experts =
         mesh.balanced(config.num_experts, sizes.ep or 1, sizes.ep and mesh.coordinate(expert, rank, "ep") or 0)
   end
   return self
end

-- What a host says of the loader of a parameter. One table for all of a kind: values, never written to.
local loaders = {
   qkv = { output_dim = 0, input_dim = 1 }, merged_column = { output_dim = 0, input_dim = 1 },
   column = { output_dim = 0, input_dim = 1 }, row = { input_dim = 1, output_dim = 0 }, vocab = { output_dim = 0, input_dim = 1 },
   replicated = {}, fused_moe = {},
}

local function attributes(self, loader, ndim)
   local tp = loader == "replicated" and 1 or loader == "fused_moe" and self.moe_tp or self.tp
   local key = loader .. ndim .. "/" .. tp
   local found = self.attributes[key]
   if not found then
      found = { loader = loader, tp_size = tp, output_dim = loaders[loader].output_dim }
      found.input_dim = ndim > 1 and loaders[loader].input_dim or nil
      found.ep_size = loader == "fused_moe" and self.ep or nil
      self.attributes[key] = found
   end
   return found
end

-- The scales of a weight's blocks: of each box a number for every block of its last two live dims.
local function scales_of(weight)
   local first, contents, shape = #weight.shape - 2, {}, { unpack(weight.shape) }
   for dim = first + 1, #shape do
      shape[dim] = ceil(shape[dim] / BLOCK)
   end
   for i, box in ipairs(weight.contents) do
      local at = { unpack(box.at) }
      for dim = first + 1, #at do
         if at[dim] % BLOCK ~= 0 then
            check.fail("worker.dtype (%s): %s begins at %d in dim %d of %s, within a block of %d", IN_BLOCKS, box.source, at[dim], dim - 1,
               weight.name, BLOCK)
         end
         at[dim] = at[dim] / BLOCK
      end
      contents[i] = { source = box.source, from = box.from, extent = box.extent, at = at, dims = box.dims, scales = true }
   end
   return { name = weight.name .. "_scale_inv", dtype = "float32", shape = shape, contents = contents, zero = {},
            unsourced = weight.unsourced }
end

local linear = { qkv = true, merged_column = true, column = true, row = true, fused_moe = true }

--- Adds one live tensor. loader: what its host declares, or nil for none. While `unsourced` holds, tensors keep what they
-- have: the trainer brings nothing for them.
function serving:add(name, shape, loader, contents, zero, dtype)
   local live = {
      name = names.renamed(self.prefixes.live, name), dtype = dtype or self.dtype, shape = shape,
      attributes = loader and attributes(self, loader, #shape) or nil,
      contents = self.unsourced and {} or contents, zero = not self.unsourced and zero or {}, unsourced = self.unsourced or nil,
   }
   for _, list in ipairs({ live.contents, live.zero }) do
      for _, box in ipairs(list) do
         box.source = names.renamed(self.prefixes.checkpoint, box.source)
      end
   end
   self.list[#self.list + 1] = live
   if self.in_blocks and not dtype and linear[loader] and #shape > 1 then
      live.dtype = IN_BLOCKS
      self.list[#self.list + 1] = scales_of(live)
   end
end

-- `shape` with `extent` in its dim `dim` (0-based).
local function resized(shape, dim, extent)
   local copy = { unpack(shape) }
   copy[dim + 1] = extent
   return copy
end

-- Elements [start, start + count) of dim `dim` of a source of `shape`, landing at `offset` of the same dim; all else whole.
local function strip(source, shape, dim, start, count, offset)
   local from, at, dims = {}, {}, {}
   for i = 1, #shape do
      from[i], at[i], dims[i] = 0, 0, i - 1
   end
   from[dim + 1], at[dim + 1] = start, offset
   return { source = source, from = from, extent = resized(shape, dim, count), at = at, dims = dims }
end

--- The whole tensor on every worker. source: what the checkpoint calls it, where that is another name.
function serving:whole(name, shape, loader, dtype, source)
   self:add(name, shape, loader, { strip(source or name, shape, 0, 0, shape[1], 0) }, nil, dtype)
end

--- One part of `tp` along `dim`; dim 0 is a column-parallel layer, dim 1 a row-parallel one. source: as in serving:whole.
function serving:part(name, shape, dim, dtype, source)
   local count = shape[dim + 1] / self.tp
   local contents = { strip(source or name, shape, dim, self.r * count, count, 0) }
   self:add(name, resized(shape, dim, count), dim == 0 and "column" or "row", contents, nil, dtype)
end

-- A source is a name, or { name, row } for rows from there on of a checkpoint's tensor that is fused, too.
local function rows_of(source, shape, start, count, offset)
   local name, row = source, 0
   if type(source) == "table" then
      name, row = source[1], source[2]
   end
   return strip(name, shape, 0, row + start, count, offset)
end

--- Several sources of the same shape (`shape` each), each cut by tp on dim 0 on its own, one behind the other.
function serving:merged(name, sources, shape, loader, dtype)
   local count, contents = shape[1] / self.tp, {}
   for i, source in ipairs(sources) do
      contents[i] = rows_of(source, shape, self.r * count, count, (i - 1) * count)
   end
   self:add(name, resized(shape, 0, count * #sources), loader, contents, nil, dtype)
end

--- Several sources, { name, shape } each, whole on every worker, one behind the other.
function serving:joined(name, sources, loader, dtype)
   local rows, contents = 0, {}
   for i, source in ipairs(sources) do
      contents[i] = strip(source[1], source[2], 0, 0, source[2][1], rows)
      rows = rows + source[2][1]
   end
   self:add(name, resized(sources[1][2], 0, rows), loader, contents, nil, dtype)
end

--- q, k and v of grouped-query attention, cut by heads; with fewer KV heads than tp each is held by several ranks, whole.
-- tail: what follows the rows of the shape: {hidden size} for a weight, {} for a bias
function serving:qkv(name, sources, heads, kv_heads, head_dim, tail)
   local q_rows = heads / self.tp * head_dim
   local kv_count, repeats = kv_heads / self.tp, 1
   if self.tp >= kv_heads then
      kv_count, repeats = 1, self.tp / kv_heads
   end
   local kv_rows, kv_start = kv_count * head_dim, floor(self.r / repeats) * kv_count * head_dim
   local q_shape, kv_shape = { heads * head_dim, unpack(tail) }, { kv_heads * head_dim, unpack(tail) }
   self:add(name, resized(q_shape, 0, q_rows + 2 * kv_rows), "qkv", {
      rows_of(sources[1], q_shape, self.r * q_rows, q_rows, 0),
      rows_of(sources[2], kv_shape, kv_start, kv_rows, q_rows),
      rows_of(sources[3], kv_shape, kv_start, kv_rows, q_rows + kv_rows),
   })
end

--- Rows of a vocabulary table: the padded rows are cut by tp, and what lies behind the vocabulary is zero.
function serving:vocabulary(name, vocab_size, hidden)
   local rows = serving.padded(vocab_size) / self.tp
   local start = self.r * rows
   local real = max(0, min(rows, vocab_size - start))
   local contents, zero = {}, {}
   if real > 0 then
      contents[1] = strip(name, { vocab_size, hidden }, 0, start, real, 0)
   end
   if real < rows then
      zero[1] = { source = name, at = { real, 0 }, extent = { rows - real, hidden } }
   end
   self:add(name, { rows, hidden }, "vocab", contents, zero)
end

--- One stacked tensor of a layer's experts that come one by one, as base.E.part: of each expert its parts, matrices of one
-- `shape`, cut by the experts' tp along `dim` and laid one behind the other.
function serving:stack(name, base, parts, shape, dim, dtype)
   local width, contents = shape[dim + 1] / self.moe_tp, {}
   local from, extent = { 0, 0 }, resized(shape, dim, width)
   from[dim + 1] = self.moe_r * width
   local dims = { 1, 2 }
   for slab = 0, self.local_experts - 1 do
      for i, part in ipairs(parts) do
         local at = { slab, 0, 0 }
         at[dim + 2] = (i - 1) * width
         -- Equal tables are shared: they are values.
         contents[#contents + 1] = { source = ("%s.%d.%s"):format(base, self.first_expert + slab, part), from = from,
            extent = extent, at = at, dims = dims }
      end
   end
   self:add(name, { self.local_experts, unpack(resized(shape, dim, width * #parts)) }, "fused_moe", contents, nil, dtype)
end

local default_parts = { gate = "gate_proj.weight", up = "up_proj.weight", down = "down_proj.weight" }

--- The two stacked tensors of a layer's experts. base: name in front of the experts' own; `im` is one expert's width.
-- packed: all experts are in one tensor; else parts: what the checkpoint calls one expert's matrices, { gate =, up =, down = }.
function serving:experts(base, live_base, im, hidden, packed, parts)
   if packed then
      self:packed_experts(base, live_base, im, hidden)
      return
   end
   parts = parts or default_parts
   self:stack(live_base .. ".w13_weight", base, { parts.gate, parts.up }, { im, hidden }, 0)
   self:stack(live_base .. ".w2_weight", base, { parts.down }, { hidden, im }, 1)
end

-- All experts in gate_up_proj [E, 2 Im, H] (gate rows, then up rows) and down_proj [E, H, Im].
function serving:packed_experts(base, live_base, im, hidden)
   local dims, first, count, width = { 0, 1, 2 }, self.first_expert, self.local_experts, im / self.moe_tp
   local start = self.moe_r * width
   local function half(offset, at)
      return { source = base .. ".gate_up_proj", from = { first, offset + start, 0 }, extent = { count, width, hidden },
         at = { 0, at, 0 }, dims = dims }
   end
   self:add(live_base .. ".w13_weight", { count, 2 * width, hidden }, "fused_moe", { half(0, 0), half(im, width) })
   self:add(live_base .. ".w2_weight", { count, hidden, width }, "fused_moe", {
      { source = base .. ".down_proj", from = { first, 0, start }, extent = { count, hidden, width }, at = { 0, 0, 0 }, dims = dims },
   })
end

return serving
