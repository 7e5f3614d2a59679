--- Checks that headers document what they declare: each function has a comment directly above it, or on its own lines, or
-- stands in one paragraph (no blank line between) with a documented function before it. The file itself opens with one.
--
--    luajit scripts/lint-headers.lua src/sluice.h src/*/*.h
--
-- Prints "file:line: function: ..." for each fault; exit status 1 when there was one.

local files = require "scripts.files"

--- Blanks out comments and strings, keeping lines; returns the text and the set of lines on which a comment lies.
local function without_comments(text)
   local commented = {}
   local out, position, line = {}, 1, 1
   local function keep(piece, blank)
      for character in piece:gmatch("[%z\1-\255]") do
         if blank and character ~= "\n" then
            character = " "
         end
         out[#out + 1] = character
         if character == "\n" then
            line = line + 1
         elseif blank then
            commented[line] = commented[line] or blank == "comment"
         end
      end
   end
   while position <= #text do
      local from, to = text:find('^/%*.-%*/', position)
      local kind = "comment"
      if not from then
         from, to = text:find('^//[^\n]*', position)
      end
      if not from then
         from, to = text:find('^"[^"\n]*"', position)
         kind = "string"
      end
      if from then
         keep(text:sub(from, to), kind)
         position = to + 1
      else
         keep(text:sub(position, position))
         position = position + 1
      end
   end
   return table.concat(out), commented
end

--- The name of the function that a declaration outside of any braces declares, or nil.
local function function_name(declaration)
   local text = declaration:gsub("__attribute__%s*%b()", " "):gsub("%f[%w_]SLUICE_API%f[^%w_]", " ")
   if text:find("^%s*typedef") or text:find("=") then
      return nil
   end
   return text:match("([%a_][%w_]*)%s*%(")
end

--- The functions of a header: {name, first line, last line} in order.
local function functions(text)
   local found = {}
   local depth, line, first, declaration = 0, 1, nil, ""
   local function finish()
      local name = function_name(declaration)
      if name then
         found[#found + 1] = {name = name, first = first, last = line}
      end
      declaration, first = "", nil
   end
   for character in text:gmatch("[%z\1-\255]") do
      if character == "{" then
         if depth == 0 and declaration:find("%)%s*$") then
            finish()
         end
         depth = depth + 1
      elseif character == "}" then
         depth = depth - 1
      elseif depth == 0 and character == ";" then
         finish()
      elseif depth == 0 then
         if not first and character:find("%S") then
            first = line
         end
         declaration = declaration .. character
      end
      if character == "\n" then
         line = line + 1
      end
   end
   return found
end

local function check(path)
   local text = assert(files.read(path))
   local faults = 0
   local function fault(line, message)
      io.write(("%s:%d: %s\n"):format(path, line, message))
      faults = faults + 1
   end
   if not text:find("^/%*") then
      fault(1, "a file opens with a comment that says what it is for")
   end
   local bare, commented = without_comments(text)
   -- Preprocessor lines, with those that they continue on, declare no function; nor does what opens extern "C".
   bare = bare:gsub("\\\n", " \1"):gsub("%f[^\n%z]%s*#[^\n]*", function(directive)
      return (directive:gsub("[^\1\n]", " "))
   end):gsub("\1", "\n"):gsub("extern%s*{", "        "):gsub("\n}%s*$", "\n")
   local previous
   for _, item in ipairs(functions(bare)) do
      local documented = commented[item.first - 1]
      for line = item.first, item.last do
         documented = documented or commented[line]
      end
      if not documented and previous and previous.last == item.first - 1 then
         documented = previous.documented
      end
      item.documented = documented
      previous = item
      if not documented then
         fault(item.first, item.name .. " has no comment")
      end
   end
   return faults
end

local faults = 0
for _, path in ipairs(arg) do
   faults = faults + check(path)
end
os.exit(faults == 0 and 0 or 1)
