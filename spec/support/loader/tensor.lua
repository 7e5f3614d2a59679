--- Strided tensors of the slow loader: narrow, select, transpose and a copy of single elements, the words in which a serving
-- model's own loading code is written. Each element remembers whether it was loaded, so that one loaded twice or never is seen.

local ffi = require "ffi"

local tensor = {}
tensor.__index = tensor

local widths = { BOOL = 1, U8 = 1, I8 = 1, F8_E4M3 = 1, F8_E5M2 = 1, F8_E8M0 = 1, BF16 = 2, F16 = 2, I16 = 2, U16 = 2, F32 = 4,
   I32 = 4, U32 = 4, F64 = 8, I64 = 8, U64 = 8 }

local FRESH, LOADED, PADDING = 0, 1, 2

local function count_of(shape)
   local count = 1
   for _, extent in ipairs(shape) do
      count = count * extent
   end
   return count
end

local function strides_of(shape)
   local strides, step = {}, 1
   for d = #shape, 1, -1 do
      strides[d] = step
      step = step * shape[d]
   end
   return strides
end

--- The bytes of a tensor of that dtype and shape.
function tensor.size_of(dtype, shape)
   return count_of(shape) * assert(widths[dtype], dtype)
end

--- A tensor over bytes that somebody else holds. dtype: as safetensors calls it; offset: its first byte.
function tensor.over(dtype, shape, bytes, offset)
   local width = assert(widths[dtype], dtype)
   return setmetatable({
      dtype = dtype, width = width, shape = shape, strides = strides_of(shape), data = ffi.cast("uint8_t *", bytes) + offset,
      keep = bytes, first = 0,
   }, tensor)
end

--- A tensor of its own, zeros, that remembers which elements were loaded.
function tensor.zeros(dtype, shape)
   local count = count_of(shape)
   local self = tensor.over(dtype, shape, ffi.new("uint8_t[?]", count * assert(widths[dtype], dtype) + 1), 0)
   self.marks, self.tally = ffi.new("uint8_t[?]", count + 1, FRESH), { [LOADED] = 0, [PADDING] = 0 }
   return self
end

function tensor:count()
   return count_of(self.shape)
end

function tensor:size()
   return self:count() * self.width
end

-- Another view of the same elements.
local function view(self, shape, strides, first)
   return setmetatable({ dtype = self.dtype, width = self.width, shape = shape, strides = strides, data = self.data, keep = self.keep,
      marks = self.marks, tally = self.tally, first = first }, tensor)
end

local function copied(list)
   return { unpack(list) }
end

--- Elements [start, start + length) of a dim; dims count from 0.
function tensor:narrow(dim, start, length)
   local d = dim + 1
   assert(start >= 0 and length >= 0 and start + length <= self.shape[d],
      ("narrow(%d, %g, %g) leaves a dim of %g"):format(dim, start, length, self.shape[d] or -1))
   local shape = copied(self.shape)
   shape[d] = length
   return view(self, shape, self.strides, self.first + start * self.strides[d])
end

--- Every `step`-th element of a dim from `start` on.
function tensor:every(dim, start, step)
   local d = dim + 1
   local shape, strides = copied(self.shape), copied(self.strides)
   shape[d] = math.ceil((self.shape[d] - start) / step)
   strides[d] = step * self.strides[d]
   return view(self, shape, strides, self.first + start * self.strides[d])
end

--- One index of a dim; the dim is gone.
function tensor:select(dim, index)
   local narrowed = self:narrow(dim, index, 1)
   local shape, strides = copied(narrowed.shape), copied(self.strides)
   table.remove(shape, dim + 1)
   table.remove(strides, dim + 1)
   return view(self, shape, strides, narrowed.first)
end

--- Two dims exchanged.
function tensor:transpose(a, b)
   local shape, strides = copied(self.shape), copied(self.strides)
   shape[a + 1], shape[b + 1] = shape[b + 1], shape[a + 1]
   strides[a + 1], strides[b + 1] = strides[b + 1], strides[a + 1]
   return view(self, shape, strides, self.first)
end

-- Calls each(index of this one's element, index of the other's) for every element; `other` may be this one.
local function walk(self, other, each)
   local shape, a, b, ndim = self.shape, self.strides, other.strides, #self.shape
   local function step(d, at, from)
      if d > ndim then
         return each(at, from)
      end
      for i = 0, shape[d] - 1 do
         step(d + 1, at + i * a[d], from + i * b[d])
      end
   end
   step(1, self.first, other.first)
end

local function mark(self, index, as)
   if self.marks[index] ~= FRESH then
      error("the element " .. index .. " is loaded twice", 0)
   end
   self.marks[index] = as
   self.tally[as] = self.tally[as] + 1
end

--- Loads the elements of another tensor of the same shape and dtype into this one.
function tensor:copy(source)
   local mine, theirs = table.concat(self.shape, ", "), table.concat(source.shape, ", ")
   if mine ~= theirs or self.dtype ~= source.dtype then
      error(("%s [%s] cannot take %s [%s]"):format(self.dtype, mine, source.dtype, theirs), 0)
   end
   local width, to, from = self.width, self.data, source.data
   walk(self, source, function(at, index)
      mark(self, at, LOADED)
      ffi.copy(to + at * width, from + index * width, width)
   end)
end

--- Says that these elements stay zero.
function tensor:pad()
   walk(self, self, function(at)
      mark(self, at, PADDING)
   end)
end

--- How many elements were loaded, and how many are neither loaded nor padding. For a whole tensor, not a view.
function tensor:loaded()
   return self.tally[LOADED], self:count() - self.tally[LOADED] - self.tally[PADDING]
end

--- One like it, of memory that nobody wrote, as `sluice run` makes it.
function tensor:unwritten()
   local size = self:size()
   return tensor.over(self.dtype, self.shape, ffi.new("uint8_t[?]", size + 1, ("\219"):rep(size)), 0)
end

--- Its bytes, row-major. For a whole tensor, not a view.
function tensor:bytes()
   return ffi.string(self.data, self:size())
end

return tensor
