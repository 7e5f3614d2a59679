--- Builds a worker's live tensors element by element from a description, for tiny models: every element becomes the name of
-- the checkpoint element that it holds, as "tensor[1,2]", or "0" for padding. Too simple to be wrong, and slow.

local each = require("spec.support.oracle").each

local materialise = {}

local function key_of(index)
   return table.concat(index, ",")
end

local function put(tensor, index, value)
   for dim, extent in ipairs(tensor.shape) do
      assert(index[dim] >= 0 and index[dim] < extent, ("%s: [%s] is outside"):format(tensor.name, key_of(index)))
   end
   local key = key_of(index)
   assert(tensor.at[key] == nil, ("%s: [%s] is written twice"):format(tensor.name, key))
   tensor.at[key] = value
end

-- Packed experts are named by the single form's elements, so that both forms compare.
local function element(source, index)
   local base, kind = source.name:match("^(.*%.experts)%.(%w+)_proj$")
   if not base then
      base, kind = source.name:match("^(.*%.experts)%.(gate_up)_proj$")
   end
   if not base then
      return ("%s[%s]"):format(source.name, key_of(index))
   end
   local row = index[2]
   if kind == "gate_up" then
      local half = source.shape[2] / 2
      kind = row < half and "gate" or "up"
      row = row % half
   end
   return ("%s.%d.%s_proj.weight[%d,%d]"):format(base, index[1], kind, row, index[3])
end

local function fill(tensor, content, source, raw)
   assert(source, ("%s: %s is no parameter"):format(tensor.name, content.source))
   assert(source.dtype == tensor.dtype, tensor.name .. ": dtypes differ")
   each(content.extent, function(index)
      local from, at = {}, {}
      for dim, start in ipairs(content.at) do
         at[dim] = start
      end
      for dim, offset in ipairs(index) do
         from[dim] = content.from[dim] + offset
         assert(from[dim] < source.shape[dim], ("%s: leaves %s"):format(tensor.name, content.source))
         local live_dim = content.dims[dim]
         if live_dim >= 0 then
            at[live_dim + 1] = at[live_dim + 1] + offset
         else
            assert(content.extent[dim] == 1)
         end
      end
      put(tensor, at, raw and ("%s[%s]"):format(source.name, key_of(from)) or element(source, from))
   end)
end

--- The worker's live tensors by name: { name, shape, at = { ["1,2"] = element } }. Fails on an element that is written twice,
-- outside the tensor or not at all, save in tensors that are unsourced: they hold nothing. raw: packed experts keep their names.
function materialise.worker(description, rank, raw)
   local params = {}
   for _, param in ipairs(description.params) do
      params[param.name] = param
   end
   local tensors = {}
   for _, live in ipairs(description.live(rank)) do
      local tensor = { name = live.name, dtype = live.dtype, shape = live.shape, at = {} }
      assert(tensors[live.name] == nil, live.name .. " is there twice")
      tensors[live.name] = tensor
      for _, content in ipairs(live.contents) do
         fill(tensor, content, params[content.source], raw)
      end
      for _, zero in ipairs(live.zero) do
         each(zero.extent, function(index)
            local at = {}
            for dim, start in ipairs(zero.at) do
               at[dim] = start + index[dim]
            end
            put(tensor, at, "0")
         end)
      end
      each(live.unsourced and { 0 } or live.shape, function(index)
         assert(tensor.at[key_of(index)], ("%s: [%s] is not spoken of"):format(live.name, key_of(index)))
      end)
   end
   return tensors
end

--- The element of the tensor at (i, j, ...).
function materialise.get(tensor, ...)
   return tensor.at[key_of({ ... })]
end

materialise.each = each

return materialise
