--- with(base, more, ...): a new table with the keys of all of them; of a key in several the last has its way, nil is none.
return function(...)
   local all = {}
   for i = 1, select("#", ...) do
      for key, value in pairs((select(i, ...)) or {}) do
         all[key] = value
      end
   end
   return all
end
