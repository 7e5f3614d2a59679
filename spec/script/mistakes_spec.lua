--- What each mistake in a rule file is told: the exact words, with file and line, and the nearest right word where there is
-- one. The last test counts the kinds.

local resolving = require "spec.support.resolving"
local script = require "spec.support.script"

-- The names of the families that ship with Sluice: rule files that are more than what others share.
local shipped = {}
for _, path in ipairs(require("posix.glob").glob("lua/sluice/rules/*.lua")) do
   local name = path:match("([^/]+)%.lua$")
   if not ("attention decoder every_stage experts mlp moe"):find(name, 1, true) then
      shipped[#shipped + 1] = name
   end
end
table.sort(shipped)
local SHIPPED = table.concat(shipped, ", ")

-- One parameter w [8,16] on one worker; `body` is what follows the pattern, on line 3.
local function with_rule(body, case)
   case = case or {}
   case.params = case.params or { { name = "w", shape = { 8, 16 } } }
   case.live = case.live or { { name = "w", shape = { 8, 16 } } }
   case.text = ('return {\n   rules = {\n      rule "%s" %s,\n   },\n}\n'):format(case.pattern or "w", body)
   return resolving.resolve(case)
end

-- Every message seen, for the last test.
local seen = {}
local function note(text)
   seen[#seen + 1] = text
   return text
end

describe("a mistake is told with its place:", function()
   local R = 'FILE:3: rule "w": '
   local bodies = {
      { '{ itno = "v" }', "unknown key 'itno' (did you mean into?)" },
      { "{ zzzzzz = 1 }",
        "unknown key 'zzzzzz'; known: alias, at, companion, convert, from, full, into, layout, pad, permute, shape, skip, zero" },
      { "{ into = 7 }", "into (7) must be a text" },
      { '{ into = "a.{l}" }', "into (a.{l}) uses {l}, which the pattern does not capture" },
      { '{ into = "a.**" }', "into (a.**) has more of ** than the pattern" },
      { '{ into = "a{" }', "into (a{) has a brace or a star that is no capture" },
      { "{ at = 5 }", "at (5) must be a span or an index, or a list of them" },
      { "{ at = { 5 } }", "at[1] (5) must be a span or an index" },
      { "{ at = { {0, 0, 4} } }", "at[1] (table) must be a span or an index" },
      { "{ at = column }", "at[1] (a shard) must be a span or an index" },
      { "{ at = { span(0, 0, 4), span(0, 4, 4) } }", "at slices dim 0 twice" },
      { "{ from = { dim = 1 } }", "from[1] (nil) must be a span or an index" },
      { "{ layout = 'column' }", 'layout ("column") is a text; without quotes it is the word column' },
      { "{ layout = 'columns' }", 'layout ("columns") must be column, row, replicate, a shard, a first or a pin, or a list of them' },
      { "{ layout = { column, row } }", "layout places axis 'tp' twice" },
      { "{ layout = { replicate, row } }", "layout has replicate beside other placements; axes that are not named replicate" },
      { "{ layout = span(0, 1) }", "layout[1] (a span) must be column, row, replicate, a shard, a first or a pin" },
      { "{ convert = 16 }", 'convert (16) must be a dtype, as "bfloat16", or false' },
      { '{ convert = "bfloat" }', 'convert ("bfloat") is no dtype (did you mean bfloat16?)' },
      { '{ {}, { into = "v", zero = true, convert = "bfloat16" } }', "convert cannot stand beside zero: that strip brings nothing" },
      { '{ full = "a reason", convert = "bfloat16" }', "convert cannot stand beside full" },
      { "{ permute = 1 }", "permute (1) must be a list of dims, as {1, 0}" },
      { "{ permute = {0, 0} }", "permute must hold each of 0 to 1 once; it has 0" },
      { "{ permute = {1, 2} }", "permute must hold each of 0 to 1 once; it has 2" },
      { "{ pad = 0 }", 'pad (0) must be "zero"' },
      { "{ full = true }", "full (true) must be a text: the reason" },
      { '{ full = "a", skip = "b" }', "full and skip cannot both hold" },
      { '{ skip = "a", layout = row }', "layout cannot stand beside skip" },
      { '{ alias = "x", {} }', "strips cannot stand beside alias" },
      { "{ {}, 5 }", "strip 2 (5) must be a table" },
      { "{ { layout = row, ful = 1 } }", "unknown key 'ful'; known: at, convert, from, into, layout, pad, permute, zero" },
      { "{ { layout = row, lyout = row } }", "unknown key 'lyout' (did you mean layout?)" },
      { "{ { shape = { 8, 16 } } }", "shape is a word for the whole rule, not for one of its strips" },
      { "{ { {} } }", "strip 1 must hold no strips of its own" },
      { "{ zero = true }", "zero stands in a strip beside the strip that brings the parameter: { ... }, { into = ..., zero = true }" },
      { "{ {}, { zero = 1 } }", "zero (1) must be true" },
      { "{ {}, { zero = true, from = span(0, 1) } }", "from cannot stand beside zero: that strip brings nothing" },
      { "{ {}, { zero = true, layout = row } }", "layout (a shard) of a strip with zero must be pins: each worker clears its own part" },
      { '{ { zero = true, into = "v" } }', 'every strip is zero, none brings the parameter; say skip = "a reason" if it is not served' },
      { '{ shape = 8 }', 'shape (8) must be a list of numbers and "*"' },
      { "{ shape = { 8, 1.5 } }", 'shape[2] (1.5) must be an integer of at least 1, or "*"' },
      { "{ companion = 5 }", "companion (5) must be a parameter's name, or a list of them" },
      { "{ companion = { 5 } }", "companion[1] (5) must be a text" },
      { '{ layout = pin("ep", pick("e", {0})) }', 'pick("e") names no capture of the pattern' },
      { "{ from = span(0, each(2), 1), at = span(0, each(3), 1) }", "a strip has an each of 3 and one of 2" },
      { '{ into = "{p=q|k}" }', "into ({p=q|k}) uses {p=q|k}, which the pattern does not capture" },
      { "{ at = { index(0, 0), index(1, 0), index(2, 0), index(3, 0), index(4, 0), index(5, 0), index(6, 0) } }",
        "w of shape [8,16]: with the index of at, its live tensor would have 9 dims; 8 are allowed" },
      -- seen only with a parameter
      { '{ shape = { 9, "*" } }', "w has shape [8,16]; the rule wants [9,*]" },
      { "{ at = span(2, 0, 4) }", "w of shape [8,16]: at slices dim 2 of 2 dims" },
      { "{ from = index(5, 0) }", "w of shape [8,16]: from slices dim 5 of 2 dims" },
      { "{ permute = {0, 2, 1} }", "w has 2 dims here; permute has 3" },
      { '{ into = "u" }', "w goes into u, which is no live tensor" },
      { '{ alias = "u" }', "w is an alias of u, which the trainer does not announce" },
      { '{ layout = pin("ep", 1) }', "w is pinned to ep 1; the workers have 1 of them" },
      { '{ companion = "w_scale" }', "w must come with its companion w_scale, which the trainer does not announce" },
   }
   for _, case in ipairs(bodies) do
      it(case[1], function()
         local got = with_rule(case[1])
         assert.equal("destination: " .. R .. case[2], note(got.text))
         assert.equal(8, got.status)
      end)
   end

   local words = {
      { '{ at = span(0, 1.5, 4) }', "span: start (1.5) must be an integer of at least 0" },
      { '{ at = span(0, 3 / 0, 4) }', "span: start (inf) must be an integer of at least 0" },
      { '{ at = span(8, 0) }', "span: dim (8) must be an integer from 0 to 7" },
      { '{ at = span("0", 0) }', 'span: dim ("0") must be an integer from 0 to 7' },
      { '{ at = span(0, 0, 0) }', "span: count (0) must be an integer of at least 1" },
      { '{ at = span(0, 0, 4, 0) }', "span: step (0) must be an integer of at least 1" },
      { '{ at = span(0) }', "span: start (nil) must be an integer of at least 0" },
      { '{ at = index(0, -1) }', "index: position (-1) must be an integer of at least 0" },
      { '{ layout = shard("pt", 0) }', "'pt' is no axis of the workers' meshes, nor dp, pp, cp, tp, ep or fsdp (did you mean pp?)" },
      { '{ layout = shard(0, "tp") }', "shard (0) must begin with the name of an axis" },
      { '{ layout = shard("tp") }', "shard: dim (nil) must be an integer from 0 to 7" },
      { '{ layout = shard("tp", 0, 4) }', "shard: options (4) must be a table" },
      { '{ layout = shard("tp", 0, { prts = 4 }) }', "shard: unknown option 'prts' (did you mean parts?)" },
      { '{ layout = shard("tp", 0, { parts = 2 ^ 31 }) }', "shard: parts (2147483648) must be an integer from 1 to 2147483647" },
      { '{ layout = shard("tp", 0, { split = "even" }) }', 'shard: split ("even") must be "ceil" or "balanced"' },
      { '{ layout = shard("tp", 0, { chunk = 0 }) }', "shard: chunk (0) must be an integer of at least 1" },
      { '{ layout = shard("tp", 0, { chunk = 4, split = "ceil" }) }', "shard: chunk and split say the same thing; one of them must go" },
      { '{ layout = pin("pp") }', "pin: coordinate (nil) must be an integer of at least 0" },
      { '{ layout = pin("stage", 0) }', "'stage' is no axis of the workers' meshes, nor dp, pp, cp, tp, ep or fsdp" },
      { '{ at = index(0, pick(1, {})) }', "pick (1) must begin with the name of a capture" },
      { '{ at = index(0, pick("e", {})) }', 'pick("e") (table) needs a list of numbers' },
      { '{ at = index(0, pick("e", {0, "1"})) }', 'pick("e")[1] ("1") must be an integer of at least 0' },
      { '{ at = index(0, each({})) }', "each (table) needs how many, or a list of 1 to 1024 numbers" },
      { '{ at = index(0, each(2000)) }', "each (2000) must be an integer from 1 to 1024" },
      { '{ at = index(0, each({0, 0.5})) }', "each[1] (0.5) must be an integer of at least 0" },
      { '{ at = index(0, each(2, -1)) }', "each: step (-1) must be an integer of at least 0" },
      { '{ at = index(0, each(2, 1, each(3))) }', "each of 2 has a start that is an each of 3" },
      { '{ at = index(0, each({ 1, 2 ^ 53 }, 2)) }', "each[1] (1.8014398509482e+16) must be an integer from 0 to 9007199254740992" },
      { '{ at = span(0, divide(7, 2)) }', "7 does not divide by 2" },
      { '{ at = span(0, divide(8, 0)) }', "divide: by (0) must be an integer of at least 1" },
      { '{ at = span(0, (share(6, 4))) }', "6 cannot be shared among 4 ranks: it must divide" },
      { '{ at = span(0, (share(3, 8))) }', "3 cannot be repeated over 8 ranks: the ranks must divide by it" },
      { '{ at = span(0, spread(1e9, 2).owner[1]) }', "spread (1000000000) must be an integer from 1 to 1048576" },
      { '{ at = span(0, spread({ 1e6, 1e6 }).owner[1]) }', "spread (2000000) must be at most 1048576 things" },
      { '{ at = span(0, spread({ { 0 }, { 2 } }).owner[1]) }', "spread: no rank holds 1, but one holds 2" },
      { '{ at = span(0, spread({ { 0 }, 5 }).owner[1]) }', "spread[1] (5) must be a list of what rank 1 holds" },
      { '{ at = span(0, spread({ 1, 2 }, 4).owner[1]) }', "spread has a list of 2 ranks for 4" },
      { '{ at = span(0, required "hidden_size") }', "the host's description must say 'hidden_size'"
         .. ", and says nothing: sluice_describe_host gives one, or --host on the command line" },
      { '{ at = span(0, required "windows") }', "the host's description must say 'windows' (did you mean window?)", { host = { window = 2 } } },
      { '{ at = span(0, required "windows") }', "the host's description must say 'windows'", { host = { rows = 2 } } },
      { '{ at = span(0, host.hiden_size) }', "the host's description has no 'hiden_size' (did you mean hidden_size?)" },
      { '{ at = span(0, axes.tpp) }', "'tpp' is no axis of the workers' meshes, nor dp, pp, cp, tp, ep or fsdp (did you mean tp?)" },
      { '{ at = span(0, meshes.moe.ep) }', "the workers have no mesh 'moe'" },
      { '{ at = spam(0, 0) }', "unknown name 'spam' (did you mean span?)" },
      { '{ at = span(0, host.hidden_size * 2) }', "attempt to perform arithmetic on field 'hidden_size' (a nil value); the host does not say it: "
        .. 'required "hidden_size" asks for it' },
      { '{ at = span(0, host.hidden_size and 4, host.hidden_size < 3) }',
         'attempt to compare nil with number; the host does not say it: required "hidden_size" asks for it' },
      { '{ layout = column() }', "attempt to call global 'column' (a table value): column stands without parentheses" },
      { '{ at = span(0, 0, host("hidden_size")) }', "attempt to call global 'host' (a table value): it is asked as host.key or required "
        .. '"key"' },
      { '{ layout = shard(tp, 0) }', "unknown name 'tp'; the axis is \"tp\" in quotes, its size axes.tp" },
      { '{ at = span(0, 0, required(hidden_size)) }', "unknown name 'hidden_size'; what the host says is host.hidden_size or required "
        .. '"hidden_size"' },
      { '= {}', "'}' expected (to close '{' at line 2) near '='; a rule is written rule \"pattern\" { ... }, a key of a table key = value" },
      { '{} rule "v" {}', "'}' expected (to close '{' at line 2) near 'rule'; a comma may be missing before it" },
      { '(5)', 'rule "w" (5) must be followed by a table in braces' },
      { '(column)', 'rule "w" (a shard) must be followed by a table in braces' },
   }
   for _, case in ipairs(words) do
      it(case[1], function()
         assert.equal("destination: FILE:3: " .. case[2], note(with_rule(case[1], case[3]).text))
      end)
   end

   local files = {
      { "return 5", "FILE:1: the file (5) must return a table: return { rules = { ... } }" },
      { "", "FILE:1: the file (nil) must return a table: return { rules = { ... } }" },
      { "return {", "FILE:1: unexpected symbol near '<eof>'" },
      { "\n\nreturn { ruels = {} }", "FILE:3: unknown key 'ruels' (did you mean rules?)" },
      { "return { [1] = 5 }", "FILE:1: the file returns a list; its rules go under a key: return { rules = { ... } }" },
      { "return {\n rules = 5 }", "FILE:2: rules (5) must be a list" },
      { "return {\n rules = { a = 5 } }", "FILE:2: rules must be a list; it has the key 'a'" },
      { "return { rules = { 5 } }", 'FILE:1: rules[1] (5) must be a rule: rule "pattern" { ... }' },
      { 'return { rules = { rule "a" } }', 'FILE:1: rules[1] (a rule without braces) must be a rule: rule "pattern" { ... }' },
      { "return { rules = { column } }", 'FILE:1: rules[1] (a shard) must be a rule: rule "pattern" { ... }' },
      { 'return { rules = {\n rule "a" {},\n rule "a" {} } }', 'FILE:3: rule "a": can never match: the rule at FILE:2 has the same pattern' },
      { 'return { rules = {\n rule "a..b" {} } }', 'FILE:2: rule "a..b": the pattern has an empty segment' },
      { 'return { rules = {\n rule "a.{n=b.{l}.c|d}" {} } }',
         'FILE:2: rule "a.{n=b.{l}.c|d}": the pattern has a capture among the values of {n=...}, which are plain texts; that is two '
            .. "patterns" },
      { "return { rules = {\n rule {} } }", "FILE:2: rule (table) must be followed by a pattern in quotes" },
      { "return {\n name = 5 }", "FILE:2: name (5) must be a text" },
      { 'return {\n otherwise = "direct" }', 'FILE:2: otherwise ("direct") must be "default", "full" or "error"' },
      { 'return {\n otherwise = "defualt" }', 'FILE:2: otherwise ("defualt") must be "default", "full" or "error" (did you mean default?)' },
      { 'return {\n convert = "bf16" }', 'FILE:2: convert ("bf16") is no dtype' },
      { 'return {\n require_direct = "yes" }', 'FILE:2: require_direct ("yes") must be true or false' },
      { "return {\n full = 5 }", "FILE:2: full (5) must be a text: the reason" },
      { 'return {\n unsourced = "visual.**" }', 'FILE:2: unsourced ("visual.**") must be a list' },
      { "return {\n unsourced = { 5 } }", "FILE:2: unsourced[1] (5) must be a text" },
      { 'return {\n unsourced = {\n "a*" } }', 'FILE:3: unsourced "a*": the pattern has a segment \'a*\': * and ** are whole segments' },
      { 'return {\n rename = { "a" } }', 'FILE:2: rename[1] ("a") must be a pair {"from", "to"}' },
      { 'return {\n rename = {\n {"a.{x}", "{y}"} } }', 'FILE:3: rename "a.{x}": ({y}) uses {y}, which the pattern does not capture' },
      { 'return {\n rename = {\n {"a..b", "c"} } }', 'FILE:3: rename "a..b": the pattern has an empty segment' },
      { 'return {\n rename_live = {\n {"a..b", "c"} } }', 'FILE:3: rename_live "a..b": the pattern has an empty segment' },
      { 'return { pins = { pin("pp", 0) } }', 'FILE:1: pins[1] (a pin) must be made by where "pattern" (pin(...))' },
      { 'return { pins = {\n where "a" (5) } }', 'FILE:2: where "a" (5) must be followed by pins' },
      { 'return { pins = {\n where "a..b" (pin("pp", 0)) } }', 'FILE:2: where "a..b": the pattern has an empty segment' },
      { 'return { pins = {\n where "a" (pin("pp", pick("l", {0}))) } }', 'FILE:2: where "a": pick("l") names no capture of the pattern' },
      { 'return { pins = {\n where "a" (pin("pp", each(1))) } }', 'FILE:2: where "a": each is for the strips of rules' },
      { 'return { pins = {\n where(5) } }', "FILE:2: where (5) must be followed by a pattern in quotes" },
      { "return {\n scales = 5 }", 'FILE:2: scales (5) must be a table: { ending = "_scale_inv", block = { 128, 128 } }' },
      { "return {\n scales = { blok = {} } }", "FILE:2: scales: unknown key 'blok'; known: block, ending" },
      { "return {\n scales = { ending = 5 } }", "FILE:2: scales: ending (5) must be what a scale's name has more than its weight's" },
      { "return {\n scales = { ending = '_s', block = 128 } }", "FILE:2: scales: block (128) must be a list of how many elements share a scale" },
      { "return {\n scales = { ending = '_s', block = { 128, 0 } } }",
         'FILE:2: scales: block[2] (0) must be an integer of at least 1, or "*" for all of the dim' },
      { "return {\n extends = { 'llama', 5 } }", "FILE:2: extends[2] (5) must be a text" },
      { "return {\n extends = 5 }", "FILE:2: extends (5) must be a text, or a list of them" },
      { "host.x = 1", "FILE:1: host.x cannot be set" },
      { "if axes.tp != 1 then end", "FILE:1: 'then' expected near '!'; Lua writes 'not equal' as ~= and 'not' as not" },
      { "local n = 1\nn += 1", "FILE:2: '=' expected near '+'; Lua writes n = n + 1 in full" },
      { "for i = 1, host.num_experts do end", "FILE:1: 'for' limit must be a number; the host does not say it: required \"num_experts\" asks "
        .. "for it" },
      { "return {\n rename = { ['a.**'] = 'b.**' } }", 'FILE:2: rename must be a list of pairs {"from", "to"}; it has the key \'a.**\'' },
      { 'return { pins = { where "a" } }', 'FILE:1: pins[1] (a where without pins) must be made by where "pattern" (pin(...))' },
      { "return {\n ['no name'] = 1 }", "FILE:1: unknown key 'no name'" },
      { "axes.tp = 1", "FILE:1: axes.tp cannot be set" },
      { "local x = host.pipeline", "FILE:1: the host's description has no 'pipeline' (did you mean pipeline_layers?)" },
      { "while true do end", "FILE:1: it ran too many instructions" },
      { "local t = {} while true do t[#t + 1] = {} end", "FILE:1: it used too much memory" },
      { "error('my own words')", "FILE:1: my own words" },
      { "local x = io.open('/etc/passwd')", "FILE:1: unknown name 'io'" },
      { "\27LJ\2", "FILE:1: bytecode is not run, only Lua text" },
   }
   for _, case in ipairs(files) do
      it(("%q"):format(case[1]), function()
         local got = resolving.resolve({ params = {}, live = {}, text = case[1] })
         assert.equal("destination: " .. case[2], note(got.text))
         assert.equal(8, got.status)
      end)
   end

   it("a name that a pick has no entry for", function()
      local function resolve(name)
         return with_rule('{ into = "x", at = index(0, pick("e", {0, 1})) }', { pattern = "e.{e}", params = { name }, live = { "x" } }).text
      end
      assert.equal('destination: FILE:3: rule "e.{e}": e.2 has {e} = 2; pick("e") has entries 0 to 1', resolve("e.2"))
      assert.equal('destination: FILE:3: rule "e.{e}": e.x has {e} = x; pick("e") has entries 0 to 1', resolve("e.x"))
      assert.equal('destination: FILE:3: rule "e.{e}": e.-1 has {e} = -1; pick("e") has entries 0 to 1', resolve("e.-1"))
   end)

   it("picks that give different numbers of copies, or copies to a pin that stands for a name", function()
      assert.equal('destination: FILE:3: rule "e.{e}": e.0 is picked 2 and 3 copies of', note(with_rule(
         '{ at = index(0, pick("e", {{0, 1}})), layout = pin("ep", pick("e", {{0, 1, 2}})) }', { pattern = "e.{e}", params = { "e.0" } }).text))
      assert.equal('destination: FILE:1: where "e.{e}": pick("e") must give one number each: copies are for rules', note(resolving.resolve({
         params = {}, text = 'return { pins = { where "e.{e}" (pin("ep", pick("e", { {0, 1} }))) } }' }).text))
   end)

   it("axes that no mesh has together", function()
      local got = with_rule('{ layout = { pin("ep", 3), shard("dp", 0) } }', { axes = { { "dp", 2 }, { "tp", 4 } },
         meshes = { { name = "expert", axes = { { "ep", 8 } } } }, live = {} })
      assert.equal("destination: " .. R .. "w needs the axes ep, dp in one mesh of the workers", got.text)
   end)

   it("a missing family, with the nearest", function()
      assert.equal("destination: rules (lama) must be a path, with a . or a / in it, or a family that ships with Sluice: " .. SHIPPED
         .. " (did you mean llama?)", resolving.resolve({ params = {}, live = {}, rules = "lama" }).text)
   end)

   it("a missing file, a folder, a pipe that nobody writes to", function()
      assert.equal("destination: rules (./no/such.lua: No such file or directory) must be a file that can be read",
         resolving.resolve({ params = {}, live = {}, rules = "./no/such.lua" }).text)
      assert.equal("destination: rules (./spec: it must be a regular file, not a folder) must be a file that can be read",
         resolving.resolve({ params = {}, live = {}, rules = "./spec" }).text)
      local path = os.tmpname()
      os.remove(path)
      assert(require("posix.sys.stat").mkfifo(path, 384))
      local text = resolving.resolve({ params = {}, live = {}, rules = path }).text
      os.remove(path)
      assert.equal(("destination: rules (%s: it must be a regular file, not a pipe) must be a file that can be read"):format(path), text)
   end)

   it("a file that extends a missing one, or itself", function()
      assert.equal("destination: FILE:2: extends (lama) must be a path, with a . or a / in it, or a family that ships with Sluice: " .. SHIPPED
         .. " (did you mean llama?)", resolving.resolve({ params = {}, live = {}, text = 'return {\n extends = "lama" }' }).text)
      local path = os.tmpname()
      resolving.write(('return { extends = "%s" }'):format(path), path)
      local text = resolving.resolve({ params = {}, live = {}, rules = path }).text
      os.remove(path)
      assert.equal(("destination: %s: extends: more than 16 files extend each other"):format(path), text)
   end)

   -- Seen only beside the live tensors of a worker: C says them, with the rule's line.
   local covers = {
      { "{ at = span(0, 0, 4) }", "the view [0:4, :] of live 'w' shows [4, 16], but worker rank 1 gets [8, 16] (the box [0:8, 0:16]); "
         .. "without padding the two must be equal" },
      { "{ at = span(0, 4, 8) }", "the view [4:12, :] of live 'w' of shape [8, 16] leaves it in dim 0" },
      { "{ at = index(0, 0) }", "the view [0, :, :] of live 'w' of shape [8, 16] has 3 dims for 2 "
         .. "(index(dim, i) in `at` adds one, in `from` drops one)" },
      { '{ from = span(0, 0, 4), pad = "zero", at = span(0, 0, 2) }', "the view [0:2, :] of live 'w' shows [2, 16], but worker rank 1 gets "
         .. "[4, 16] (the box [0:4, 0:16]); the view must have room for it" },
      { '{ into = "f32" }', "is bfloat16, but live 'f32' [8, 16] is float32; a direct destination has the same dtype" },
      { '{ layout = pin("pp", 0), into = "gone" }', "worker rank 1 has no live 'gone' for its box [0:8, 0:16]", { { "pp", 2 } } },
      { '{ {}, {} }', "targets 0 and 1 bring [0:8, 0:16] and [0:8, 0:16] of it into one live tensor, 'w'; there, strips must not overlap" },
      { '{ from = span(0, 4, 8) }', "the strip [4:12, :] leaves the parameter in dim 0" },
      { '{ layout = shard("tp", 0, { chunk = 2 }), pad = "zero" }', "axis 'tp' has 2 chunks of 2, which must reach the 8 elements of dim 0",
         { { "tp", 2 } } },
   }
   for _, case in ipairs(covers) do
      it(case[1], function()
         local got = with_rule(case[1], { axes = case[3], live = { { name = "w", shape = { 8, 16 } },
            { name = "f32", shape = { 8, 16 }, dtype = "float32" } } })
         local text = got.text
         if got.ok then
            local _, problem = script.cover(got.plan, got.live, 1, got.resolved)
            text = (problem or ""):gsub(": [^:]*:3:", ": FILE:3:", 1)
         end
         assert.equal("destination: FILE:3: parameter 'w' [8, 16]: " .. case[2], note(text))
      end)
   end

   it("two parameters onto the same live bytes", function()
      local got = resolving.resolve({ params = { "a", "b" }, live = { "x" },
         text = 'return { rules = { rule "a" { into = "x" },\n rule "b" { into = "x" } } }' })
      assert.is_true(got.ok)
      local _, problem = script.cover(got.plan, got.live, 1, got.resolved)
      problem = problem:gsub("%S+:(%d):", "FILE:%1:")
      assert.equal("destination: FILE:2: parameter 'b' [8, 8] writes [0:8, 0:8] of live 'x' [8, 8], where on worker rank 1 bytes are written "
         .. "already: FILE:1: parameter 'a' [8, 8] writes [0:8, 0:8] of live 'x' [8, 8]", note(problem))
   end)

   it("a misspelt pattern, by the parameter that it was meant for", function()
      local got = resolving.resolve({ params = { "model.layers.3.self_attn.q_proj.weight" }, live = {},
         text = 'return { rules = {\n rule "model.layers.{l}.self_atn.{p=q|k|v}_proj.weight" {} } }' })
      assert.equal("destination: FILE:1: no rule matches parameter model.layers.3.self_attn.q_proj.weight (did you mean rule "
         .. '"model.layers.{l}.self_atn.{p=q|k|v}_proj.weight" at FILE:2?); add one, or say otherwise = "default" or "full"', note(got.text))
   end)

   it("a name of more segments than patterns match", function()
      local name = ("x."):rep(128) .. "w"
      assert.equal(("destination: FILE:1: no rule matches parameter %s, which has 129 segments; patterns match names of at most 128; add one, "
         .. 'or say otherwise = "default" or "full"'):format(name:sub(1, 200) .. "..."),
         resolving.resolve({ params = { name }, live = { name }, text = 'return { rules = { rule "**" {} } }' }).text)
   end)

   it("a pattern that is a regular expression", function()
      local got = resolving.resolve({ params = { "model.layers.3.w" }, live = {}, text = 'return { rules = {\n rule "model.layers.(%d+).w" {} } }' })
      assert.equal('destination: FILE:1: no rule matches parameter model.layers.3.w (rule "model.layers.(%d+).w" at FILE:2 holds (, which stands '
         .. 'for itself: {l} is any one segment, segments are parted by dots); add one, or say otherwise = "default" or "full"', note(got.text))
   end)

   it("a misspelt live tensor, companion or alias, with the nearest", function()
      local function text(body)
         return note(resolving.resolve({ params = { "mlp.gate.weight", "mlp.gate.weight_scale" }, live = { "mlp.gate_up.weight" },
            text = ('return { rules = {\n rule "mlp.gate.weight" %s, rule "**.weight_scale" { skip = "x" } } }'):format(body) }).text)
      end
      local place = 'destination: FILE:2: rule "mlp.gate.weight": mlp.gate.weight '
      assert.equal(place .. "goes into mlp.gateup.weight, which is no live tensor (did you mean mlp.gate_up.weight?)",
         text '{ into = "mlp.gateup.weight" }')
      assert.equal(place .. "must come with its companion mlp.gate.weight_scales, which the trainer does not announce (did you mean "
         .. "mlp.gate.weight_scale?)", text '{ companion = "mlp.gate.weight_scales" }')
      assert.equal(place .. "is an alias of mlp.gat.weight_scale, which the trainer does not announce (did you mean mlp.gate.weight_scale?)",
         text '{ alias = "mlp.gat.weight_scale" }')
   end)

   it("in more than forty different ways, each with file and line", function()
      local different, count = {}, 0
      for _, text in ipairs(seen) do
         if not different[text] and text:find("FILE:%d+") then
            different[text], count = true, count + 1
         end
      end
      -- The kinds: what is left of the messages without what stands in brackets, quotes and numbers.
      local kinds, kind_count = {}, 0
      for text in pairs(different) do
         local kind = text:gsub("%b()", "()"):gsub("'[^']*'", "''"):gsub('"[^"]*"', '""'):gsub("%d+", "0")
         if not kinds[kind] then
            kinds[kind], kind_count = text, kind_count + 1
         end
      end
      assert.is_true(count >= 130, ("%d messages"):format(count))
      assert.is_true(kind_count >= 100, ("%d kinds"):format(kind_count))
   end)
end)
