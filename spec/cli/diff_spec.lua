--- sluice diff and sluice check as programs: what they compare, what they find, exit codes.

local cjson = require "cjson"
local program = require "spec.cli.program"

local function run(...)
   local result = program.run({ ... })
   assert.same({}, result.left)
   return result
end

local function rules(text)
   return program.file('return { extends = "llama", rules = {\n' .. text .. "\n} }\n", ".lua")
end

describe("sluice diff", function()
   after_each(program.cleanup)

   it("ends with 0 where two rule files place everything alike", function()
      local result = run("diff", "llama", "mistral", "--deployment", program.deployment({ rules = "llama" }))
      assert.equal("", result.err)
      assert.equal(0, result.code)
      assert.equal("a  llama: 3 trainers to 4 workers, direct 21 (404.10 KB)\nb  mistral: 3 trainers to 4 workers, direct 21 (404.10 KB)\n"
         .. "they are the same\n", result.out)
   end)

   it("tells what became of a parameter, layers together", function()
      local mine = rules('rule "model.layers.{l}.mlp.down_proj.weight" { full = "the host repacks it" },')
      local result = run("diff", "llama", mine, "--deployment", program.deployment())
      assert.equal(1, result.code)
      assert.equal("1", tostring(select(2, result.out:gsub("\nchanged  ", ""))))
      assert.truthy(result.out:find("\n2 changed, 0 only in a, 0 only in b\n"
         .. "changed  model.layers.*.mlp.down_proj.weight, 2 parameters, 32.77 KB\n"
         .. "         as model.layers.0.mlp.down_proj.weight\n         mode        direct\n           now       full\n", 1, true), result.out)
      local json = program.json(run("diff", "llama", mine, "--deployment", program.deployment(), "--json"))
      assert.is_false(json.same)
      assert.equal("model.layers.1.mlp.down_proj.weight", json.changed[2].name)
      assert.same({ what = "mode", from = "direct", to = "full" }, json.changed[1].changes[1])
      assert.equal("the host repacks it", json.changed[1].changes[3].to)
      assert.equal(19, json.b.totals.direct.parameters)
   end)

   it("tells what only one of two deployments has", function()
      local tied = program.deployment({ rules = "llama", model = { family = "llama", config = { num_hidden_layers = 2, hidden_size = 64,
         intermediate_size = 128, num_attention_heads = 8, num_key_value_heads = 4, vocab_size = 1000, tie_word_embeddings = true } } })
      local json = program.json(run("diff", program.deployment({ rules = "llama" }), tied, "--json"))
      assert.same({}, json.added)
      assert.equal("lm_head.weight", json.removed[1].name)
      assert.is_nil(json.removed[2])
   end)

   it("compares a saved plan with a deployment", function()
      local deployment = program.deployment({ rules = "llama" })
      local saved = program.file(run("plan", deployment, "--json", "--full").out, ".json")
      local result = run("diff", saved, deployment)
      assert.equal(0, result.code, result.err .. result.out)
      result = run("diff", saved, deployment, "--set", "worker.mesh.2.2=1")
      assert.equal(1, result.code)
      assert.truthy(result.out:find("b  [^\n]*to 2 workers"), result.out)
   end)

   it("says under each side for what its plan is refused", function()
      local mine = rules('rule "model.norm.weight" { into = "model.nrm.weight" },')
      local json = program.json(run("diff", "llama", mine, "--deployment", program.deployment(), "--json"))
      local text = mine .. ':2: rule "model.norm.weight": model.norm.weight goes into model.nrm.weight, which is no live tensor (did you mean '
         .. "model.norm.weight?)"
      assert.equal(text, json.b.problem)
      assert.equal("unresolved", json.changed[1].mode)
      assert.same({ what = "problem", to = text }, json.changed[1].changes[4])
   end)

   it("refuses what is none of these", function()
      local result = run("diff", "a.lua", "b.lua")
      assert.equal(2, result.code)
      local wants = " (without --deployment, --checkpoint or --attach, it must be a deployment or a saved plan)\n"
      assert.equal("sluice: diff: a.lua: No such file or directory" .. wants, result.err)
      local mine = rules('rule "model.norm.weight" { layout = replicate },')
      assert.equal("sluice: deployment: " .. mine .. ":2: unknown name 'rule'; it reads like a rule file" .. wants, run("diff", mine, "llama").err)
      result = run("diff", "llama", "llama", "--deployment", program.deployment(), "--rank", "1")
      assert.equal("sluice: diff: --rank 1 must be a worker's: 3 to 6\n", result.err)
      local good = '"name": "a", "bytes": 1, "mode": "skip", "destination": "skip"'
      assert.equal(0, run("diff", program.file(('{"plan": [{%s}], "trainers": 1, "workers": 1}'):format(good)),
         program.file(('{"plan": [{%s}], "trainers": 1, "workers": 1}'):format(good))).code)
      local text
      for _, item in ipairs({ '{"name": "a"}', "1", "[]", "{" .. good .. ', "shape": [[]]}', "{" .. good .. ', "shape": 1}',
         "{" .. good .. ', "reason": {}}' }) do
         text = program.file(('{"plan": [%s], "trainers": 1, "workers": 1}'):format(item))
         result = run("diff", text, text)
         assert.equal(2, result.code, item)
      end
      assert.equal("sluice: " .. text .. ": plan[0] must have a name, bytes, a mode and a destination, as sluice plan --json --full writes "
         .. "them" .. wants, result.err)
   end)
end)

describe("sluice check", function()
   after_each(program.cleanup)

   it("finds a family good, and a file whose every rule decides something", function()
      local result = run("check", "llama", "--deployment", program.deployment())
      assert.equal(0, result.code, result.err)
      assert.equal("good: sluice/rules/llama.lua of llama (custom): 21 direct (404.10 KB), 0 full (0 B), 0 alias, 0 skip\n",
         result.out:match("[^\n]*\n$"):gsub("of .-:", "of llama (custom):"))
      local mine = rules('rule "model.norm.weight" { full = "the host scales it" },')
      result = run("check", mine, "--deployment", program.deployment())
      assert.equal(0, result.code, result.out .. result.err)
   end)

   it("finds rules that match nothing and rules that another one shadows, and ends with 1", function()
      local mine = rules('rule "model.norm.weight" { full = "a" },\nrule "model.nrm.weight" { full = "b" },\n'
         .. 'rule "**.norm.weight" { full = "c" },\nrule "*.norm.weight" { full = "d" },')
      local result = run("check", mine, "--deployment", program.deployment())
      assert.equal(1, result.code)
      assert.truthy(result.out:find(mine .. ':3: rule "model.nrm.weight" matches nothing\n', 1, true), result.out)
      for _, rule in ipairs({ '4: rule "**.norm.weight"', '5: rule "*.norm.weight"' }) do
         assert.truthy(result.out:find(mine .. ":" .. rule .. ' decides nothing: rule "model.norm.weight" (' .. mine
            .. ":2) takes model.norm.weight before it\n", 1, true), result.out)
      end
      assert.equal(0, run("check", mine, "--idle", "--deployment", program.deployment()).code)
      local json = program.json(run("check", mine, "--deployment", program.deployment(), "--json"))
      assert.is_false(json.good)
      assert.same({}, json.problems)
      assert.equal(3, #json.idle)
      assert.equal("model.norm.weight", json.idle[2].shadow.name)
   end)

   it("tells every mistake of the rules, each once, and the worker that refuses", function()
      local mine = rules('rule "model.norm.weight" { into = "model.nrm.weight" },\n'
         .. 'rule "model.layers.{l}.input_layernorm.weight" { layout = column },')
      local json = program.json(run("check", mine, "--deployment", program.deployment(), "--json"))
      assert.same({}, json.idle)
      local texts = {}
      for i, problem in ipairs(json.problems) do
         texts[i] = problem.text
      end
      local text = table.concat(texts, "\n")
      assert.truthy(text:find("which is no live tensor (did you mean model.norm.weight?)", 1, true), text)
      assert.equal(3, json.problems[1].rank)
   end)

   it("tells what differs in numbers only once, and of many mistakes the first of each kind of name", function()
      local function file(value)
         return program.file(cjson.encode(value), ".json")
      end
      local list = {}
      for l = 0, 9 do
         for _, name in ipairs({ "a", "b", "c" }) do
            list[#list + 1] = { name = ("h.%d.%s"):format(l, name), dtype = "float32", shape = { 4 } }
         end
      end
      local lists = { "--checkpoint", file(list), "--live", program.file("[]"), "--mesh", "tp=1" }
      local mine = program.file('return { rules = { rule "h.{l}.a" { skip = "no" } } }', ".lua")
      local json = program.json(run("check", mine, "--json", unpack(lists)))
      assert.same({ 10, 10 }, { json.problems[1].parameters, json.problems[2].parameters })
      assert.same({ 2, 0, 10 }, { #json.problems, json.undecided, json.totals.skip.parameters })
      assert.truthy(run("check", mine, unpack(lists)).out:find(
         'no rule matches parameter h.0.c; add one, or say otherwise = "default" or "full" (worker rank 1; and 9 more like it)\n', 1, true))
      for i = 1, 100 do
         list[#list + 1] = { name = "x" .. ("y"):rep(i), dtype = "float32", shape = { 4 } }
      end
      lists[2] = file(list)
      json = program.json(run("check", mine, "--json", unpack(lists)))
      assert.truthy(#json.problems < 64 and json.undecided > 0)
      assert.truthy(run("check", mine, unpack(lists)).out:find(
         ("\nnote     %d parameters more were not looked at: too many before them have mistakes\n"):format(json.undecided), 1, true))
   end)

   it("looks at a worker of every kind", function()
      -- The second stage alone has the last norm.
      local stages = program.deployment({ worker = { mesh = { { "pp", 2 }, { "tp", 2 } } } })
      local mine = rules('rule "model.norm.weight" { into = "model.norm.weight", at = span(0, 0, 8) },')
      local json = program.json(run("check", mine, "--deployment", stages, "--json"))
      assert.equal(5, json.problems[1].rank)
      assert.truthy(json.problems[1].text:find("model.norm.weight", 1, true))
   end)

   it("takes lists of tensors instead of a deployment", function()
      local function file(value)
         return program.file(cjson.encode(value), ".json")
      end
      local mine = program.file('return { rules = { rule "a.w" { into = "b.w", layout = column } } }', ".lua")
      local checkpoint = file({ { name = "a.w", dtype = "bfloat16", shape = { 8, 4 } } })
      local live = file({ { name = "b.w", dtype = "bfloat16", shape = { 2, 4 }, attributes = { loader = "column" } } })
      local result = run("check", mine, "--checkpoint", checkpoint, "--live", live, "--mesh", "tp=4")
      assert.equal("", result.err)
      assert.truthy(result.out:find("^note     worker rank 1 alone was checked, of 4 workers\ngood: .*: 1 direct %(64 B%)"), result.out)
      local host = file({ tensor_parallel_size = 2 })
      result = run("check", mine, "--checkpoint", checkpoint, "--live", live, "--host", host)
      assert.equal(1, result.code)
      assert.truthy(result.out:find("refused  ", 1, true), result.out)
      result = run("check", mine, "--checkpoint", checkpoint, "--live", live)
      assert.truthy(result.out:find("refused  [^\n]*\nnote     one worker was taken to have all: neither %-%-mesh nor the host's "
         .. "tensor_parallel_size says otherwise\nnot good: "), result.out)
      local lists = { "--checkpoint", checkpoint, "--live", live, "--mesh", "tp=4", "--rules", mine }
      assert.truthy(run("explain", "a.w", unpack(lists)).out:find("into     b.w [:, :], cut (tp:0) of 'dense'", 1, true))
      assert.truthy(run("plan", unpack(lists)).out:find(": 1 trainer to 4 workers, plan of rank 1 (worker 0)\n", 1, true))
      assert.equal(0, run("diff", mine, mine, unpack(lists, 1, 6)).code)
      assert.equal("sluice: --checkpoint says what the trainer has; --live must say what the worker has\n",
         run("plan", "--checkpoint", checkpoint).err)
      assert.equal("sluice: x.lua says what --checkpoint would\n", run("plan", "x.lua", unpack(lists)).err)
      assert.equal("sluice: a.safetensors is no deployment file and no init info; --checkpoint takes a checkpoint's files and folders, "
         .. "beside --live\n", run("plan", "a.safetensors").err)
      assert.equal(("sluice: %s is a list, and a deployment file or an init info is wanted; --checkpoint takes lists of "
         .. "tensors\n"):format(checkpoint), run("plan", checkpoint, "--live", live).err)
   end)

   it("refuses lists that say what nobody reads", function()
      local mine = program.file('return { rules = { rule "w" {} } }', ".lua")
      local checkpoint = program.file('[{"name":"w","dtype":"bfloat16","shape":[8]}]', ".json")
      local cases = {
         { '[{"name":"w","dtype":"bfloat16","shape":[8],"atributes":{}}]', "[0] of w: unknown key 'atributes' (did you mean attributes?)" },
         { '[{"name":"w","dtype":"bfloat16","shape":[8],"attributes":[1]}]', "[0].attributes of w must be an object" },
         { '{"w":{"dtype":"bfloat16","shape":[8]}}', "it must hold a JSON list of tensors, each with name, dtype and shape" },
      }
      for _, case in ipairs(cases) do
         local live = program.file(case[1], ".json")
         assert.equal(("sluice: live: %s: %s\n"):format(live, case[2]), run("check", mine, "--checkpoint", checkpoint, "--live", live).err)
      end
   end)

   it("takes a safetensors file of any size", function()
      local header = '{"w":{"dtype":"U8","shape":[300000000],"data_offsets":[0,300000000]}}'
      local path = program.file(("%s\0\0\0\0\0\0\0%s"):format(string.char(#header), header), ".safetensors")
      local file = assert(io.open(path, "r+b"))
      file:seek("set", 8 + #header + 300000000 - 1) -- a hole
      file:write("\0")
      file:close()
      local live = program.file('[{"name":"w","dtype":"uint8","shape":[300000000]}]', ".json")
      local result = run("check", program.file('return { rules = { rule "w" {} } }', ".lua"), "--checkpoint", path, "--live", live)
      assert.same({ "", 0 }, { result.err, result.code })
   end)

   it("takes a safetensors file whose header is as long as begins with a bracket, and says which list is missing", function()
      local mine = program.file('return { rules = { rule "w" {} } }', ".lua")
      local header = '{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
      for _, length in ipairs({ 0x5b, 0x5b20, 0x7b }) do
         local list = program.file(string.char(length % 256, math.floor(length / 256), 0, 0, 0, 0, 0, 0) .. header
            .. (" "):rep(length - #header) .. ("x"):rep(8), ".safetensors")
         local result = run("check", mine, "--checkpoint", list, "--live", list, "--mesh", "tp=1")
         assert.equal("", result.err)
         assert.truthy(result.out:find(": 1 direct (8 B), ", 1, true), result.out)
         assert.equal("sluice: live: /nowhere cannot be opened: No such file or directory\n",
            run("check", mine, "--checkpoint", list, "--live", "/nowhere", "--mesh", "tp=1").err)
      end
   end)

   it("checks the worker whose live tensors a list has, which may be the one with the short shard", function()
      local mine = program.file('return { rules = { rule "w" { layout = shard("tp", 0, { chunk = 64 }) } } }', ".lua")
      local function list(rows)
         return program.file(('[{"name":"w","dtype":"float32","shape":[%d,4]}]'):format(rows), ".json")
      end
      local lists = { "--checkpoint", list(100), "--live", list(64), "--mesh", "tp=2", "--json" }
      assert.same({ 1 }, program.json(run("check", mine, unpack(lists))).checked)
      local json = program.json(run("check", mine, "--rank", "2", unpack(lists)))
      assert.same({ 2 }, json.checked)
      assert.equal(2, json.problems[1].rank)
      assert.truthy(json.problems[1].text:find("shows [64, 4], but worker rank 2 gets [36, 4]", 1, true), json.problems[1].text)
      assert.equal("sluice: check: --rank 3 must be a worker's: 1 to 2\n", run("check", mine, "--rank", "3", unpack(lists)).err)
   end)

   it("takes tensors without dims, and a second mesh for experts, from lists", function()
      local mine = program.file([[
         local map = spread(4, axes.ep)
         return { rules = { rule "s" {}, rule "e.{e}.w" { into = "e.w", at = index(0, pick("e", map.position)),
            layout = pin("ep", pick("e", map.owner)) }, rule "w" { layout = column } } }]], ".lua")
      local function tensor(name, shape)
         return ('{"name":"%s","dtype":"float32","shape":%s}'):format(name, shape)
      end
      local checkpoint = program.file("[" .. table.concat({ tensor("s", "[]"), tensor("e.0.w", "[2]"), tensor("e.1.w", "[2]"), tensor("e.2.w", "[2]"),
         tensor("e.3.w", "[2]"), tensor("w", "[4]") }, ",") .. "]", ".json")
      local live = program.file("[" .. table.concat({ tensor("s", "[]"), tensor("e.w", "[2,2]"), tensor("w", "[2]") }, ",") .. "]", ".json")
      local lists = { "--checkpoint", checkpoint, "--live", live, "--mesh", "tp=2" }
      local result = run("check", mine, "--expert-mesh", "ep=2", unpack(lists))
      assert.equal("", result.err)
      assert.truthy(result.out:find("\ngood: .*: 6 direct %(52 B%)"), result.out)
      result = run("check", mine, "--expert-mesh", "ep=4", unpack(lists))
      assert.equal("sluice: --expert-mesh (ep=4) has 4 ranks and --mesh 2: both must cover the same ranks\n", result.err)
   end)

   it("refuses to guess what the rules are for", function()
      local result = run("check", "llama")
      assert.equal(2, result.code)
      assert.equal("sluice: check: --deployment, --attach, or --checkpoint and --live, must say what the rules are for\n", result.err)
      local broken = program.file("return 3", ".lua")
      result = run("check", broken, "--deployment", program.deployment())
      assert.equal(2, result.code)
      assert.equal("sluice: destination: " .. broken .. ":1: the file (3) must return a table: return { rules = { ... } }\n", result.err)
      result = run("check", "llama", "--checkpoint", program.file("[{}]"), "--live", program.file("[]"))
      assert.truthy(result.err:find("checkpoint: [^\n]*: %[0%] must have a name, a dtype and a shape\n$"), result.err)
      result = run("check", "llama", "--checkpoint", program.file('[{"name":"a","dtype":"int8","shape":[1]}]'), "--live", program.file("[]"),
         "--mesh", "tp")
      assert.equal("sluice: --mesh (tp) must read axis=size,axis=size, outermost first, as pp=2,tp=4\n", result.err)
      local deployment = program.deployment()
      result = run("check", "llama", "--deployment", deployment, "--expert-mesh", "ep=2")
      assert.equal(("sluice: %s says the workers' mesh; --expert-mesh goes with --checkpoint\n"):format(deployment), result.err)
      result = run("check", "llama", "--checkpoint", "a.json", "--live", "b.json", "--set", "updates=1")
      assert.equal("sluice: --set sets a key of a deployment, and --checkpoint is none\n", result.err)
   end)

   local function check_of(checkpoint, live)
      local file = program.file('return { unsourced = { "**" }, otherwise = "full", rules = {} }', ".lua")
      return run("check", file, "--checkpoint", program.file(checkpoint), "--live", program.file(live))
   end

   it("takes no list of tensors for what it is not", function()
      local good = '[{"name":"a","dtype":"int8","shape":[1]}]'
      for _, case in ipairs {
         { '{"a":1}', nil, "%[0%]%.shape of a must be a list of whole numbers\n$" },
         { "[1,null]", nil, "%[0%]%.shape of a must be a list of whole numbers\n$" },
         { "[1]", "1", "%[0%]%.attributes of a must be an object\n$" },
         { "[1]", '{"x":[1e999]}', "%[0%]%.attributes of a must be JSON: Cannot serialise number: must not be NaN or Inf\n$" },
      } do
         local list = ('[{"name":"a","dtype":"int8","shape":%s%s}]'):format(case[1], case[2] and ',"attributes":' .. case[2] or "")
         local result = check_of(good, list)
         assert.equal(2, result.code)
         assert.truthy(result.err:find(case[3]), result.err)
      end
   end)

   it("takes no extent or stride of a live tensor that a double would round", function()
      local list = '[{"name":"a","dtype":"int8","shape":%s}]'
      for shape, said in pairs {
         ["[9007199254740993]"] = "shape must be at most 8 whole numbers below 2^53",
         ['[2],"strides":[9007199254740993]'] = "strides must be one whole number below 2^53 a dim",
      } do
         local result = check_of('[{"name":"a","dtype":"int8","shape":[1]}]', list:format(shape))
         assert.same({ 2, ('sluice: description: live "a": %s\n'):format(said) }, { result.code, result.err })
      end
   end)

   it("counts what no double can", function()
      local result = check_of('[{"name":"a","dtype":"int64","shape":[9007199254740992]}]', "[]")
      assert.equal("", result.err)
      assert.truthy(result.out:find("1 full (72057.59 TB)", 1, true), result.out)
   end)
end)
