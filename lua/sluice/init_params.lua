--- What the two forms of init info say about a parameter in the same way: name, dtype, shape, allow_full_fallback.
-- @module sluice.init_params

local check = require "sluice.check"
local core = require "sluice.core"

local init_params = {}

local MOST_DIMS = 8
local MOST_BYTES = 2 ^ 62

local dtypes = core.dtypes

local function dtype_names()
   local names = {}
   for name in pairs(dtypes) do
      names[#names + 1] = name
   end
   table.sort(names)
   return table.concat(names, ", ")
end

local function check_name(param, i, seen)
   local name = param.name
   if not check.is_name(name) then
      check.fail(name, "must be a text of at least one character and no zero character", "params", i, "name")
   elseif seen[name] then
      check.fail(name, ("must be no other parameter's name; params[%d] has it"):format(seen[name] - 1), "params", i, "name")
   end
   seen[name] = i
end

local function check_shape(param, i, least_dims)
   local shape = param.shape
   if not check.is_list(shape) or #shape < least_dims or #shape > MOST_DIMS then
      check.fail(shape, ("must be a list of %d to %d integers"):format(least_dims, MOST_DIMS), "params", i, "shape")
   end
   local bytes = dtypes[param.dtype_name]
   for dim = 1, #shape do
      local extent = shape[dim]
      if type(extent) ~= "number" then
         check.fail(extent, "must be an integer", "params", i, "shape", dim)
      elseif extent < 1 then
         check.fail(extent, "must be at least 1", "params", i, "shape", dim)
      end
      bytes = bytes * extent
   end
   if bytes >= MOST_BYTES then
      check.fail(shape, "must make a tensor of fewer than 2^62 bytes", "params", i, "shape")
   end
end

--- Checks the fields of params[i - 1] that both forms have.
-- @param param the record
-- @param i its number, from 1
-- @param seen the names so far; this one is added
-- @param least_dims how many dims a shape has at least
function init_params.check(param, i, seen, least_dims)
   check_name(param, i, seen)
   local dtype = param.dtype_name
   if not check.is_name(dtype) then
      check.fail(dtype, "must be a text of at least one character and no zero character", "params", i, "dtype_name")
   elseif not dtypes[dtype] then
      check.fail(dtype, "must be one of " .. dtype_names(), "params", i, "dtype_name")
   end
   check_shape(param, i, least_dims)
   local allow = param.allow_full_fallback
   if allow ~= nil and type(allow) ~= "boolean" then
      check.fail(allow, "must be true or false", "params", i, "allow_full_fallback")
   end
end

return init_params
