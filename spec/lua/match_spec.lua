--- Patterns over dotted names: what they match, what templates make of it, and that a slow matcher agrees.

local match = require "sluice.match"

local function build(...)
   local matcher, number = match.new(), 0
   for _, pattern in ipairs({ ... }) do
      local read = assert(match.pattern(pattern))
      for _, simple in ipairs(read.simples) do
         number = number + 1
         matcher:add(simple, number, { pattern = pattern, read = read, bound = simple.bound })
      end
   end
   return matcher
end

local function apply(pattern, template, name)
   local matcher = build(pattern)
   local found = matcher:find(name)
   return found and assert(match.template(template, found.read))(matcher, name, found.bound)
end

describe("a pattern", function()
   local cases = {
      { "a.b", "a.b", true }, { "a.b", "a.bc", false }, { "a.b", "a", false }, { "a.b", "a.b.c", false },
      { "{l}.b", "x.b", true }, { "*.b", "x.b", true }, { "*.b", "x.y.b", false }, { "*", "a", true }, { "*", "a.b", false },
      { "**", "a", true }, { "**", "a.b.c", true }, { "**.c", "c", true }, { "**.c", "a.b.c", true }, { "**.c", "a.bc", false },
      { "a.**", "a", true }, { "a.**", "a.b.c", true }, { "a.**", "ab", false }, { "a.**.z", "a.z", true }, { "a.**.z", "a.b.z", true },
      { "**.m.**", "m", true }, { "**.m.**", "a.m.b.m", true }, { "**.m.**", "a.n", false },
      { "{p=q|k}_proj", "k_proj", true }, { "{p=q|k}_proj", "v_proj", false }, { "{m=a.b|c}.w", "a.b.w", true },
      { "up_proj", "gate_up_proj", false }, { "a-b.c%d", "a-b.c%d", true }, { "a..b", "a..b", nil },
   }
   for _, case in ipairs(cases) do
      if case[3] ~= nil then
         it(("%s %s %s"):format(case[1], case[3] and "matches" or "does not match", case[2]), function()
            assert.equal(case[3], build(case[1]):find(case[2]) ~= nil)
         end)
      end
   end

   it("that stands first wins, whatever matches more exactly", function()
      assert.equal("a.*", build("a.*", "a.b"):find("a.b").pattern)
      assert.equal("a.b", build("a.b", "a.*"):find("a.b").pattern)
      assert.equal("**", build("**", "a.b", "a.*"):find("a.b").pattern)
      assert.equal("a.{x}.c", build("a.{x}.c", "**.c"):find("a.b.c").pattern)
   end)

   it("does not match a name of more than 128 segments", function()
      assert.is_nil(build("**"):find(("a."):rep(128) .. "a"))
      assert.truthy(build("**"):find(("a."):rep(127) .. "a"))
   end)

   local wrong = {
      { "a..b", "has an empty segment" }, { "", "has an empty segment" }, { ".a", "has an empty segment" },
      { "{x}.{x}", "captures {x} twice" }, { "{x=a|b}.{x}", "captures {x} twice" }, { "{x=a|b}.{x=c|d}", "captures {x} twice" },
      { "w{n}", "has a segment 'w{n}' that is no capture: {name} is a whole segment, {name=a|b} lists its values" },
      { "{1}", "has a segment '{1}' that is no capture: {name} is a whole segment, {name=a|b} lists its values" },
      { "{x", "has a segment '{x' that is no capture: {name} is a whole segment, {name=a|b} lists its values" },
      { "a*", "has a segment 'a*': * and ** are whole segments" }, { "***", "has a segment '***': * and ** are whole segments" },
      { "**.**.**", "has more than 2 of **" }, { "{x=}", "has an empty value in {x=}" }, { "{x=a||b}", "has an empty value in {x=a||b}" },
      { "{x=a|*}", "has a star in {x=a|*}" },
   }
   for _, case in ipairs(wrong) do
      it(("'%s' is refused"):format(case[1]), function()
         local simples, problem = match.pattern(case[1])
         assert.is_nil(simples)
         assert.equal(case[2], problem)
      end)
   end

   it("that stands for too many others is refused", function()
      local many = {}
      for i = 1, 11 do
         many[i] = ("{a%d=x|y}"):format(i)
      end
      local _, problem = match.pattern(table.concat(many, "."))
      assert.equal("stands for more than 1024 patterns", problem)
   end)
end)

describe("a template", function()
   local cases = {
      { "a.{l}.{p=q|k}_proj.w", "b.{l}.{p}.x", "a.7.k_proj.w", "b.7.k.x" },
      { "{a}.{b}", "{b}.{a}.{b}", "x.y", "y.x.y" }, { "**.x.**", "**.**", "a.b.x.c", "a.b.c" }, { "**.x.**", "**.y.**", "x", "y" },
      { "a.**", "**", "a.b.c", "b.c" }, { "a.**", "b.**", "a", "b" }, { "**.a", "**.b", "a", "b" }, { "**", "m.**", "a.b", "m.a.b" },
      { "a.*.b", "c", "a.x.b", "c" }, { "{p=q|k}", "{p}", "k", "k" },
      { "{a=x|yy}.{l}.{b=z|ww.w}.c", "{b}.{l}.{a}", "yy.5.ww.w.c", "ww.w.5.yy" }, { "a.{l}", "{l}", "a.5", "5" },
      { "{a=x|yy.z}.{l}.w", "{a=x|yy.z}.{l}.v", "yy.z.5.w", "yy.z.5.v" },
      { "**.x.**", "a.**.**.b", "x", "a.b" }, { "**", "m.**", "a..b", "m.a..b" },
   }
   for _, case in ipairs(cases) do
      it(("%s -> %s makes %s of %s"):format(case[1], case[2], case[4], case[3]), function()
         assert.equal(case[4], apply(case[1], case[2], case[3]))
      end)
   end

   local wrong = {
      { "a.{l}", "{m}", "uses {m}, which the pattern does not capture" }, { "a", "**", "has more of ** than the pattern" },
      { "**", "**.**", "has more of ** than the pattern" }, { "a.{l}", "{l", "has a brace or a star that is no capture" },
      { "a.*", "*", "has a brace or a star that is no capture" },
      { "{a=x|y}", "{a=y|x}", "uses {a=y|x}; the pattern has {a=x|y}" }, { "{a}", "{a=x}", "uses {a=x}; the pattern has {a}" },
      { "a", "{a=x}", "uses {a=x}, which the pattern does not capture" },
   }
   for _, case in ipairs(wrong) do
      it(("%s -> %s is refused"):format(case[1], case[2]), function()
         local compiled, problem = match.template(case[2], match.pattern(case[1]))
         assert.is_nil(compiled)
         assert.equal(case[3], problem)
      end)
   end
end)

describe("match.strip", function()
   local cases = {
      { "x.a.x.b.x", "x", "a.b" }, { "ax.x.b", "x", "ax.b" }, { "x", "x", "x" }, { "a.b.c.a.b", "a.b", "c" }, { "x.x.x.a", "x", "a" },
      { "a.xy", "x", "a.xy" }, { "a.b", "z", "a.b" },
   }
   for _, case in ipairs(cases) do
      it(("takes %s out of %s"):format(case[2], case[1]), function()
         assert.equal(case[3], match.strip(case[1], case[2]))
      end)
   end
end)

-- ---- a matcher that is too simple to be wrong ----

local function split(text)
   local list = {}
   for segment in (text .. "."):gmatch("([^.]*)%.") do
      list[#list + 1] = segment
   end
   return list
end

local function slow(pattern, name, i, j)
   if i > #pattern then
      return j > #name
   elseif pattern[i] == "**" then
      return slow(pattern, name, i + 1, j) or j <= #name and slow(pattern, name, i, j + 1)
   end
   return j <= #name and (pattern[i] == "*" or pattern[i] == name[j]) and slow(pattern, name, i + 1, j + 1)
end

describe("the trie", function()
   it("agrees with trying each pattern in turn", function()
      local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time()
      math.randomseed(seed)
      for round = 1, 200 do
         local patterns = {}
         for i = 1, 30 do
            local pieces, deep = {}, 0
            for k = 1, math.random(1, 5) do
               local choice = math.random(6)
               deep = deep + (choice == 6 and 1 or 0)
               pieces[k] = choice <= 4 and ("abcd"):sub(choice, choice) or (choice == 6 and deep <= 2) and "**" or "*"
            end
            patterns[i] = table.concat(pieces, ".")
         end
         local matcher = build(unpack(patterns))
         for case = 1, 50 do
            local pieces = {}
            for k = 1, math.random(1, 6) do
               local letter = math.random(4)
               pieces[k] = ("abcd"):sub(letter, letter)
            end
            local name, expected = table.concat(pieces, "."), nil
            for _, pattern in ipairs(patterns) do
               if not expected and slow(split(pattern), pieces, 1, 1) then
                  expected = pattern
               end
            end
            local found = matcher:find(name)
            assert.equal(expected, found and found.pattern, ("seed %d round %d case %d: %s"):format(seed, round, case, name))
         end
      end
   end)
end)
