--- Safetensors in plain Lua, for specs that must not ask the program's own reader and writer.

local cjson = require "cjson"
local ffi = require "ffi"
local files = require "scripts.files"
local tensor = require "spec.support.loader.tensor"

local safetensors = {}

local function length_of(bytes)
   local length = 0
   for i = 8, 1, -1 do
      length = length * 256 + bytes:byte(i)
   end
   return length
end

--- A length as a file begins with it: 8 bytes, the least first.
function safetensors.length(length)
   local bytes = {}
   for i = 1, 8 do
      bytes[i] = string.char(length % 256)
      length = math.floor(length / 256)
   end
   return table.concat(bytes)
end

--- What the header of a file says of each tensor, as it stands there; the file's bytes; and where its data begins.
function safetensors.header(path)
   local bytes = assert(files.read(path))
   local length = length_of(bytes)
   return cjson.decode(bytes:sub(9, 8 + length)), bytes, 8 + length
end

--- Reads one file: name -> tensor (spec/support/loader/tensor.lua).
function safetensors.read(path)
   local header, bytes, data = safetensors.header(path)
   local tensors = {}
   for name, record in pairs(header) do
      if name ~= "__metadata__" then
         tensors[name] = tensor.over(record.dtype, record.shape, ffi.cast("const uint8_t *", bytes), data + record.data_offsets[1])
         tensors[name].keep = bytes
      end
   end
   return tensors
end

--- Writes a list of { name =, dtype =, shape =, bytes = } as one file, in that order.
function safetensors.write(path, list)
   local records, at = {}, 0
   for i, entry in ipairs(list) do
      local shape = {}
      for d, extent in ipairs(entry.shape) do
         shape[d] = ("%d"):format(extent)
      end
      records[i] = ('%s:{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}'):format(cjson.encode(entry.name), entry.dtype,
         table.concat(shape, ","), at, at + #entry.bytes)
      at = at + #entry.bytes
   end
   local header = "{" .. table.concat(records, ",") .. "}"
   local file = assert(io.open(path, "wb"))
   file:write(safetensors.length(#header), header)
   for _, entry in ipairs(list) do
      file:write(entry.bytes)
   end
   assert(file:close())
end

--- Writes a list into `folder`: one model.safetensors, or `count` of them with their index.
function safetensors.write_checkpoint(folder, list, count)
   if count == 1 then
      return safetensors.write(folder .. "/model.safetensors", list)
   end
   local map, parts = {}, {}
   for i, entry in ipairs(list) do
      local part = i % count + 1
      parts[part] = parts[part] or {}
      table.insert(parts[part], entry)
      map[entry.name] = ("model-%05d-of-%05d.safetensors"):format(part, count)
   end
   for part, entries in pairs(parts) do
      safetensors.write(("%s/model-%05d-of-%05d.safetensors"):format(folder, part, count), entries)
   end
   files.write(folder .. "/model.safetensors.index.json", cjson.encode({ metadata = { total_size = 0 }, weight_map = map }))
end

return safetensors
