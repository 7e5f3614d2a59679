--- Checkpoints of random bytes for the slow loader: what a family says that its checkpoints hold, filled.

local bits = require "bit"
local ffi = require "ffi"
local tensor = require "spec.support.loader.tensor"

local checkpoint = {}

-- Random bytes that are the same for the same seed, on every machine.
local function random_bytes(count, seed)
   local words = math.ceil(count / 4)
   local bytes, state = ffi.new("uint32_t[?]", words + 1), bits.bor(seed, 1)
   for i = 0, words - 1 do
      state = bits.bxor(state, bits.lshift(state, 13))
      state = bits.bxor(state, bits.rshift(state, 17))
      state = bits.bxor(state, bits.lshift(state, 5))
      bytes[i] = state
   end
   return ffi.string(bytes, count)
end

--- Fills a checkpoint.
-- @param family, config as of spec/support/loader.lua
-- @return a list of { name =, dtype =, shape =, bytes = }, and name -> tensor
function checkpoint.make(family, config, seed)
   local list, tensors = {}, {}
   for i, entry in ipairs(family.checkpoint(config)) do
      local name, shape, dtype = entry[1], entry[2], entry[3] or config.dtype
      local tied = config.announce_tied and name:find("lm_head%.weight$") and tensors["model.embed_tokens.weight"]
      local bytes = tied and tied:bytes() or random_bytes(tensor.size_of(dtype, shape), seed + i * 7919)
      list[i] = { name = name, dtype = dtype, shape = shape, bytes = bytes }
      tensors[name] = tensor.over(dtype, shape, ffi.cast("const uint8_t *", bytes), 0)
      tensors[name].keep = bytes
   end
   return list, tensors
end

return checkpoint
