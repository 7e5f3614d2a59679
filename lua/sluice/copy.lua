--- A value with copies of all tables in it, which must hold no circle.
-- @module sluice.copy

local function copy(value)
   if type(value) ~= "table" then
      return value
   end
   local result = {}
   for key, item in pairs(value) do
      result[key] = copy(item)
   end
   return result
end

return copy
