--- Names that a family's checkpoint or host gives to what the family itself calls otherwise: pairs of prefixes.

local names = {}

--- The name with its prefix exchanged: the first pair {from, to} that fits decides.
function names.renamed(pairs_of_prefixes, name)
   for _, pair in ipairs(pairs_of_prefixes) do
      if name:sub(1, #pair[1]) == pair[1] then
         return pair[2] .. name:sub(#pair[1] + 1)
      end
   end
   return name
end

return names
