--- Files that a command writes: whole, or as they were before.
-- @module sluice.cli.file

local file = {}

--- Writes beside the path first and then takes its place, so that a full disk costs nobody what was there.
-- @return true; or nil, what is wrong, with the path, and whether nothing could be opened there
function file.write(path, text)
   local part = path .. ".part"
   local out, problem = io.open(part, "wb")
   local good = out
   if out then
      good, problem = out:write(text)
      local closed, reason = out:close()
      if good then
         good, problem = closed, reason
      end
      if good then
         good, problem = os.rename(part, path)
      end
      if not good then
         os.remove(part)
      end
   end
   if good then
      return true
   end
   return nil, ("%s: %s"):format(path, problem and problem:gsub("^.*: ", "") or "it cannot be written"), out == nil
end

return file
