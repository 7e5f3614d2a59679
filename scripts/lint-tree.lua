--- Checks what no compiler checks: which layer includes which, how long files and functions are, words and characters that
-- have no place in the tree.
--
--    luajit scripts/lint-tree.lua FILE ...        (paths from the root of the tree)
--
-- Prints "file:line: fault" for each; exit status 1 when there was one, 2 without files.

local LONGEST = {file = 500, fn = 60}
local LONGEST_INTERFACE = {file = 700, fn = 60} -- the one public header says all that a host must know
local LONGEST_IN_SPECS = {file = 1000, fn = 100} -- a list of cases is long and easy to read
local WIDEST = 150

-- What a folder below src/ may include of the others; src/sluice.h is open to all.
local LAYERS = {
   base = "base",
   plan = "base plan",
   control = "base control",
   transport = "base plan transport",
   checkpoint = "base plan checkpoint",
   script = "base plan script",
   engine = "base plan control transport script engine",
   cli = "base plan control transport script checkpoint engine cli",
}

-- Which folders below src/ may include a foreign library's headers, by how those begin.
local FOREIGN = {
   {prefix = "^lua", where = "script cli"},
   {prefix = "^lauxlib", where = "script cli"},
   {prefix = "^openssl/", where = "base control"},
   {prefix = "^histedit", where = "cli"},
   {prefix = "^jansson", where = "checkpoint engine"},
   {prefix = "^cuda", where = "transport"},
   {prefix = "^nccl", where = "transport"},
}

local WORDS = {"TODO", "FIXME", "XXX", "HACK", "stub", "placeholder", "unimplemented", "not implemented"}

local faults = 0
local function fault(path, line, text, ...)
   io.write(("%s:%d: %s\n"):format(path, line, text:format(...)))
   faults = faults + 1
end

local function allowed(list, name)
   for word in list:gmatch("%S+") do
      if word == name then
         return true
      end
   end
   return false
end

local function check_include(path, number, header)
   local layer = path:match("^src/([^/]+)/")
   local other = header:match("^([^/]+)/.*%.h$")
   if layer and other and LAYERS[other] and not allowed(LAYERS[layer] or "", other) then
      fault(path, number, "src/%s must not include %s", layer, header)
   end
   for _, rule in ipairs(FOREIGN) do
      if layer and header:find(rule.prefix) and not allowed(rule.where, layer) then
         fault(path, number, "%s must not be included here", header)
      end
   end
end

--- How long a line is in characters of UTF-8.
local function width(line)
   local _, continuations = line:gsub("[\128-\191]", "")
   return #line - continuations
end

local function check_line(path, number, line, is_code)
   if line:find("%s$") then
      fault(path, number, "white space at the end of the line")
   end
   if line:find("\t") then
      fault(path, number, "a tab")
   end
   if is_code and width(line) > WIDEST then
      fault(path, number, "%d characters wide; at most %d", width(line), WIDEST)
   end
   if path ~= "scripts/lint-tree.lua" then
      for _, word in ipairs(WORDS) do
         if line:find("%f[%w_]" .. word .. "%f[^%w_]") then
            fault(path, number, "the word %s marks unfinished work", word)
         end
      end
   end
end

local function check(path)
   local is_c = path:find("%.[ch]$") ~= nil
   local is_code = is_c or path:find("%.lua$") ~= nil or path:find("%.py$") ~= nil or path:find("^scripts/[%w-]+$") ~= nil
   local longest = path:find("^spec/") and LONGEST_IN_SPECS or path == "src/sluice.h" and LONGEST_INTERFACE or LONGEST
   local number, opened, name = 0, nil, nil
   for line in io.lines(path) do
      number = number + 1
      check_line(path, number, line, is_code)
      if is_c then
         local header = line:match('^%s*#%s*include%s*["<]([^">]+)[">]')
         if header then
            check_include(path, number, header)
         end
         name = line:match("^%a.-([%w_]+)%(") or name
         if line == "{" then
            opened = number
         elseif line == "}" and opened then
            if number - opened - 1 > longest.fn then
               fault(path, opened, "%s has %d lines; at most %d", name or "a function", number - opened - 1, longest.fn)
            end
            opened = nil
         end
      end
   end
   if is_code and number > longest.file then
      fault(path, number, "%d lines; at most %d", number, longest.file)
   end
end

if not arg[1] then
   io.stderr:write("lint-tree: which files? scripts/lint gives it all of them\n")
   os.exit(2)
end
for _, path in ipairs(arg) do
   check(path)
end
os.exit(faults == 0 and 0 or 1)
