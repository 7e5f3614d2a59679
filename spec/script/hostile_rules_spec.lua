--- Rule files that mean harm, past what the sandbox itself stops (sandbox_spec.lua): values changed behind a check, tables
-- that are no lists, patterns made to be searched for ever, texts that no name can be. Each ends soon, with a message.

local resolving = require "spec.support.resolving"

local function resolve(text, case)
   case = case or { params = { "w" }, live = { "w" } }
   case.text = text
   local got = resolving.resolve(case)
   return got.ok and "ok" or got.text:gsub("^destination: ", "")
end

local function names(count, name)
   local list = {}
   for i = 1, count do
      list[i] = name .. i
   end
   return { params = list, live = {} }
end

local LISTS = ""
for i = 1, 500 do
   LISTS = LISTS .. "{c" .. i .. "=x}"
end

local LONG_INTO = 'FILE:1: rule "{w}": ' .. ("w"):rep(200) .. "... goes into " .. ("w"):rep(200)
   .. "..., a name of 8000 bytes; a name has at most 4096"

describe("a hostile rule file", function()
   local cases = {
      { "changes a span after it was checked", "local s = span(0, 0, 4)\ns.dim = 0 / 0", "FILE:2: a span cannot be changed; make another one" },
      { "changes a word for the file that it extends", "column.dim = 1", "FILE:1: a shard cannot be changed; make another one" },
      { "looks inside a value", "local s = span(0, 0, 4)\nreturn { rules = { rule 'w' { skip = tostring(s.dim) .. tostring(next) } } }",
        "FILE:2: unknown name 'next'" },
      { "changes the text of an error that it caught", "local _, e = pcall(divide, 5, 2)\ne.text = {}\nerror(e)", "FILE:1: 5 does not divide by 2" },
      { "gives the host for a rule", "return { rules = { rule 'w' (host) } }", 'FILE:1: rule "w" (a host description) must be followed by a table '
         .. "in braces" },
      { "gives axes for the rules", "return { rules = axes }", "FILE:1: rules (a table of axes) must be a list" },
      { "returns the host", "return host", "FILE:1: the file (a host description) must return a table: return { rules = { ... } }" },
      { "makes a list as long as numbers go", "return {\n rules = { [2^40] = rule 'w' {} } }",
        "FILE:2: rules must have at most 100000 entries; it has number 1099511627776" },
      { "puts rules between the places of a list", "return {\n rules = { [1.5] = rule 'w' {} } }",
        "FILE:2: rules must be a list; it has the key '1.5'" },
      { "has a pattern longer than any name", "return { rules = { rule(('x'):rep(5000)) {} } }",
        'FILE:1: rule "' .. ("x"):rep(200) .. '...": the pattern is longer than a name can be (4096 bytes)' },
      { "has a pattern of hundreds of lists", "local s = '' for i = 1, 500 do s = s .. '{c' .. i .. '=x}' end\nreturn { rules = { rule(s) {} } }",
         'FILE:2: rule "' .. LISTS:sub(1, 200) .. '...": the pattern has more than 16 of {name=a|b}' },
      { "has a pattern of more segments than names have", "return { rules = { rule('w' .. ('.{c}'):rep(128)) {} } }",
         'FILE:1: rule "' .. ("w" .. (".{c}"):rep(128)):sub(1, 200) .. '...": the pattern captures {c} twice' },
      { "has a pattern of a thousand segments", "return { rules = { rule(('a.'):rep(1000) .. 'b') {} } }",
         'FILE:1: rule "' .. ("a."):rep(100) .. '...": the pattern has more than 128 segments, which no name has' },
      { "has keys without end", "local t = {} for i = 1, 2e5 do t['k' .. i] = 1 end\nreturn t", "FILE:2: unknown key 'k1'" },
      { "has strips before the first", "return { rules = { rule 'w' { [0] = {} } } }",
         'FILE:1: rule "w": strips are numbered from 1 on; it has the number 0' },
      { "has a key that has no text", "return { [{}] = 1 }", "FILE:1: the table has a key that is no name (table)" },
      { "has such a key in a rule", "return { rules = { rule 'w' { [{}] = 1 } } }", 'FILE:1: rule "w": unknown key \'table\'; known: alias, at, '
         .. "companion, convert, from, full, into, layout, pad, permute, shape, skip, zero" },
      { "has a template that multiplies a name", "return { rules = { rule '{w}' { into = ('{w}'):rep(60) } } }",
        'FILE:1: rule "{w}": into (' .. ("{w}"):rep(60) .. ") uses too many captures" },
      { "has a zero character in a pattern", "return { rules = { rule 'w\\0' {} } }",
        'FILE:1: rule "w\\0": the pattern has a zero character, which no name has' },
      { "has a zero character in a name", "return { rules = { rule 'w' { into = 'w\\0x' } } }",
        'FILE:1: rule "w": into ("w\\0x") must be a text of at most 4096 bytes without zero characters' },
      { "has a name that is no UTF-8", "return { rules = { rule 'w' { into = '\\255' } } }", 'FILE:1: rule "w": into ("?") must be UTF-8' },
      { "has a reason that is no UTF-8", "return { rules = { rule 'w' { skip = 'f\\252r' } } }", 'FILE:1: rule "w": skip ("f?r") must be UTF-8' },
      { "has a pattern that is no UTF-8", "return { rules = { rule '\\255' {} } }",
        'FILE:1: rule "?": the pattern is no UTF-8, which every name is' },
      { "renames to what is no UTF-8", "return { rename = { { 'w', '\\255' } }, rules = {} }",
        'FILE:1: rename[1][2] ("?") must be UTF-8 without zero characters' },
      { "strips what is no UTF-8", "return { strip = { '\\255' }, rules = {} }", 'FILE:1: strip[1] ("?") must be UTF-8 without zero characters' },
      { "has a name of its own that is no UTF-8", "return { name = '\\255', rules = {} }",
        'FILE:1: name ("?") must be UTF-8 without zero characters' },
      { "has a reason of a megabyte", "return { rules = { rule 'w' { skip = ('x'):rep(1e6) } } }",
        'FILE:1: rule "w": skip ("' .. ("x"):rep(60) .. '...") must be a text of at most 4096 bytes without zero characters' },
      { "has patterns without end", [[local l = {}
         for i = 1, 200 do l[i] = rule('x' .. i .. '.{a=0|1|2|3|4|5|6|7}.{b=0|1|2|3|4|5|6|7}.{c=0|1|2|3|4|5|6|7}') {} end
         return { rules = l }]], "FILE:2: more than 100000 patterns, each {p=a|b} counted once a value" },
      { "renames without end", "local l = {} for i = 1, 300 do l[i] = { 'a' .. i, 'b' } end\nreturn { rename = l, rules = {} }",
        "FILE: more than 256 renames" },
      { "strips without end", "local l = {} for i = 1, 300 do l[i] = 'a' .. i end\nreturn { strip = l, rules = {} }", "FILE: more than 256 strips" },
      { "ends in a call that has no frame left", "local x = 1\nreturn select(-9, x)", "FILE:2: bad argument #1 to '?' (index out of range)" },
      { "renames to a name that grows", "local l = {} for i = 1, 30 do l[i] = { '{w}', ('{w}'):rep(30) } end\nreturn { rename = l, rules = {} }",
        "FILE:1: rename \"{w}\": it makes of " .. ("w"):rep(60) .. "... a name of 27000 bytes; a name has at most 4096" },
      { "goes into a name that no tensor can have", "return { rules = { rule '{w}' { into = ('{w}'):rep(20) } } }", LONG_INTO,
        { params = { ("w"):rep(400) }, live = {} } },
      { "picks copies without end", "local t = {} for i = 1, 1025 do t[i] = 0 end\nlocal p = pick('e', { 0, t })",
        'FILE:2: pick("e")[1] must list at most 1024 copies; it has 1025' },
      { "has strips without end", [[local s, l = {}, {} for i = 1, 64 do s[i] = {} end
         for i = 1, 2000 do l[i] = rule('x' .. i) (s) end return { rules = l }]], "FILE:2: the rules have more than 100000 strips in all" },
      { "goes to places without end", "local s = {} for i = 1, 2 do s[i] = { at = span(0, each(1000), 1) } end\nreturn { rules = { rule 'w' (s) } }",
        'FILE:2: rule "w": w goes to 2000 places; 1024 are allowed' },
      { "goes on after a value of more than 64 strips", "local t = {} for i = 1, 65 do t[i] = {} end\nreturn { rules = { rule 'w' (t) } }",
        'FILE:2: rule "w": 65 strips; a rule may have 64' },
   }
   for _, case in ipairs(cases) do
      it(case[1], function()
         assert.equal(case[3], (resolve(case[2], case[4])))
      end)
   end

   it("has renames that could match in thousands of ways, one after the other", function()
      assert.equal("FILE: too many patterns with ** and captures could match alike; the search for a name's rule is too long", (resolve([[
         local l = {}
         for i = 1, 256 do l[i] = { "**.a" .. i .. ".**.b", "x" } end
         return { rename = l, rules = {}, otherwise = "full" }
      ]], names(400, ("a."):rep(30)))))
   end)

   local ENDLESS = "FILE: too many patterns with ** and captures could match alike; the search for a name's rule is too long"

   it("has patterns that could match in thousands of ways", function()
      assert.equal(ENDLESS, (resolve([[
         local l = {}
         for i = 1, 200 do l[i] = rule("**.a.**." .. ("a."):rep(i % 50) .. "x" .. i) {} end
         return { rules = l, otherwise = "full" }
      ]], names(300, ("a."):rep(60)))))
      assert.equal(ENDLESS, (resolve([[
         local l = {}
         for i = 0, 4095 do
            local t, n = {}, i
            for k = 1, 12 do t[k], n = n % 2 == 0 and "a" or "{c" .. k .. "}", math.floor(n / 2) end
            l[#l + 1] = rule(table.concat(t, ".") .. ".a.a.zz") {}
         end
         return { rules = l, otherwise = "full" }
      ]], names(400, ("a."):rep(14)))))
   end)

   it("may have as many rules as are allowed, each made by a word", function()
      assert.equal("ok", (resolve("local l = {} for i = 1, 99999 do l[i] = rule('x' .. i) {} end l[100000] = rule 'w' {}\nreturn { rules = l }")))
   end)

   it("may have thousands of rules without words, each told by its line", function()
      local lines = { "return { rules = {" }
      for i = 2, 8001 do
         lines[i] = ('{ "p%d", into = "x" },'):format(i)
      end
      lines[8002] = '{ "w", itno = "x" } } }'
      assert.equal("FILE:8002: rule \"w\": unknown key 'itno' (did you mean into?)", (resolve(table.concat(lines, "\n"))))
   end)
end)
