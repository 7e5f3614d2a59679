--- The parts of scripts/abi that read C and compare records.
--
--    luajit scripts/abi.lua questions HEADER            a C program that prints constants and layouts
--    luajit scripts/abi.lua functions HEADER SYMBOLS    functions with type and symbol version (SYMBOLS: what nm prints)
--    luajit scripts/abi.lua compare BEFORE NOW          what a host built against BEFORE would miss; status 1 when something is
--
-- HEADER is sluice.h behind the preprocessor. A record has a line for each thing, and further in, one for each of its parts.

local files = require "scripts.files"

local function squeeze(text)
   return (text:gsub("%s+", " "):gsub("^ ", ""):gsub(" $", ""):gsub("%* ", "*"))
end

-- A member's declaration without its name, and the name: "char [32]", "stage".
local function split_member(text)
   local before, name, behind = text:match("^(.-%(%*)([%w_]+)(%b[]%).*)$")
   if not name then
      before, name, behind = text:match("^(.-%(%*)([%w_]+)(%).*)$")
   end
   if not name then
      before, name, behind = text:match("^(.-)([%w_]+)(%s*%b[])$")
   end
   if not name then
      before, name, behind = text:match("^(.-)([%w_]+)$"), text:match("([%w_]+)$"), ""
   end
   return squeeze(before .. behind), name
end

-- Members of a struct's body, one for each declarator.
local function members(body)
   local list = {}
   for declaration in body:gmatch("([^;]+);") do
      declaration = squeeze(declaration)
      if declaration:find("[%(%[]") then
         list[#list + 1] = { split_member(declaration) }
      else
         local kind
         for part in declaration:gmatch("[^,]+") do
            local own, name = split_member(squeeze(part))
            kind = kind or own
            list[#list + 1] = { kind, name }
         end
      end
   end
   return list
end

local function each_type(header, visit)
   for kind, name, body in header:gmatch("typedef (%w+) (sluice_[%w_]+)%s*(%b{})") do
      visit(kind, name, body:sub(2, -2))
   end
end

local function questions(header)
   local out = { '#include "sluice.h"', "#include <stdio.h>", "int main(void)", "{" }
   local function ask(format, ...)
      out[#out + 1] = "    printf(" .. format:format(...) .. ");"
   end
   each_type(header, function(kind, name, body)
      if kind == "enum" then
         ask('"enum %s\\n"', name)
         for constant in body:gmatch("SLUICE_[%w_]+") do
            ask('"   %s = %%d\\n", (int)%s', constant, constant)
         end
         return
      end
      ask('"struct %s, %%zu bytes\\n", sizeof(%s)', name, name)
      for _, member in ipairs(members(body)) do
         local type, field = member[1], member[2]
         ask('"   %s %s at %%zu, %%zu bytes\\n", offsetof(%s, %s), sizeof(((%s *)0)->%s)', field, type, name, field, name, field)
      end
   end)
   out[#out + 1] = "    return 0;\n}"
   return table.concat(out, "\n")
end

local function functions(header, symbols)
   local version, list = {}, {}
   for symbol, node in symbols:gmatch("(sluice_[%w_]+)@@?(SLUICE_[%d.]+)") do
      version[symbol] = node
   end
   for result, name, arguments in ("\n" .. header):gmatch("\n([%w_ ]-[ %*]+)(sluice_[%w_]+)(%b());") do
      if not result:find("typedef") then
         list[#list + 1] = ("function %s, %s\n   type %s"):format(name, version[name] or "not exported", squeeze(result .. arguments))
      end
   end
   table.sort(list)
   return table.concat(list, "\n")
end

-- "what" -> { line =, parts = { name -> rest }, order = }
local function parse(text)
   local things, order, thing = {}, {}, nil
   for line in text:gmatch("[^\n]+") do
      local part, rest = line:match("^   (%S+) (.*)$")
      if part then
         thing.parts[part] = rest
         thing.order[#thing.order + 1] = part
      elseif line:sub(1, 1) ~= "#" then
         local name, more = line:match("^(%w+ [^,%s]+),?%s?(.*)$")
         thing = { rest = more, parts = {}, order = {} }
         things[name] = thing
         order[#order + 1] = name
      end
   end
   return things, order
end

local function bytes(thing)
   return tonumber(thing.rest:match("^(%d+) bytes"))
end

-- Whether a host's struct of the old length may be given where the new one is expected.
local function may_grow(old, new)
   if not old.parts.size or not old.parts.size:find("^uint32_t at 0,") or bytes(new) < bytes(old) then
      return false
   end
   for _, part in ipairs(new.order) do
      if not old.parts[part] and tonumber(new.parts[part]:match(" at (%d+), ")) < bytes(old) then
         return false
      end
   end
   return true
end

local function compare(before, now)
   local broken, fresh = {}, {}
   local old, names = parse(before)
   local new, new_names = parse(now)
   local function lost(...)
      broken[#broken + 1] = table.concat({ ... })
   end
   for _, name in ipairs(names) do
      local was, is = old[name], new[name]
      if not is then
         lost(name, " is gone")
      else
         if was.rest ~= is.rest and not (name:find("^struct") and may_grow(was, is)) then
            lost(name, ": was ", was.rest, ", is ", is.rest)
         end
         for _, part in ipairs(was.order) do
            if was.parts[part] ~= is.parts[part] then
               lost(name, ": ", part, " was ", was.parts[part], ", ", is.parts[part] and "is " .. is.parts[part] or "is gone")
            end
         end
         for _, part in ipairs(is.order) do
            fresh[#fresh + 1] = not was.parts[part] and name .. ": " .. part or nil
         end
      end
   end
   for _, name in ipairs(new_names) do
      fresh[#fresh + 1] = not old[name] and name or nil
   end
   for _, line in ipairs(fresh) do
      print("abi: new, in no release yet: " .. line)
   end
   for _, line in ipairs(broken) do
      print("abi: a host breaks: " .. line)
   end
   if #broken > 0 then
      print("abi: keep what was released, or change the soname; what was never released: scripts/abi --write")
      return 1
   end
   print(("abi: all %d functions and types of src/sluice.abi are as hosts were built against them"):format(#names - 1))
   return 0
end

local command = arg[1]
if command == "questions" then
   print(questions(assert(files.read(arg[2]))))
elseif command == "functions" then
   print(functions(assert(files.read(arg[2])), assert(files.read(arg[3]))))
else
   os.exit(compare(assert(files.read(arg[2])), assert(files.read(arg[3]))))
end
