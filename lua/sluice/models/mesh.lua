--- Meshes as deployments write them: a list of {axis name, size}, outermost first, ranks row-major.

local mesh = {}

--- How many ranks the mesh covers.
function mesh.ranks(axes)
   local ranks = 1
   for _, axis in ipairs(axes) do
      ranks = ranks * axis[2]
   end
   return ranks
end

--- The size of the axis `name`: 1 where the mesh has none of that name.
function mesh.size(axes, name)
   for _, axis in ipairs(axes) do
      if axis[1] == name then
         return axis[2]
      end
   end
   return 1
end

--- Whether the mesh has an axis of that name.
function mesh.has(axes, name)
   for _, axis in ipairs(axes) do
      if axis[1] == name then
         return true
      end
   end
   return false
end

--- How many ranks apart two neighbours on the axis `name` are: 0 where there is no such axis.
function mesh.stride(axes, name)
   local stride = 1
   for i = #axes, 1, -1 do
      if axes[i][1] == name then
         return stride
      end
      stride = stride * axes[i][2]
   end
   return 0
end

--- The coordinate of `rank` (0-based) on the axis `name`: 0 where there is no such axis.
function mesh.coordinate(axes, rank, name)
   local stride = mesh.stride(axes, name)
   if stride == 0 then
      return 0
   end
   return math.floor(rank / stride) % mesh.size(axes, name)
end

--- Part `index` (0-based) of `total` things over `parts` parts, the first ones one larger.
-- @return where it starts, how many it holds
function mesh.balanced(total, parts, index)
   local base, more = math.floor(total / parts), total % parts
   return index * base + math.min(index, more), base + (index < more and 1 or 0)
end

return mesh
