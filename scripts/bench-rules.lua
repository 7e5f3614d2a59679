--- Planning with very many parameters and with very many rules: prints JSON, seconds of a processor by step.
--
--    luajit scripts/bench-rules.lua [--rules N]
--
-- DeepSeek-V3 in fp8, one tensor an expert and a scale beside every weight, from its description; the family's own rules, and
-- before them a file of N rules (default 10) that match nothing.

package.path = "./?.lua;./lua/?.lua;./lua/?/init.lua;" .. package.path

local cjson = require "cjson"
local deployment = require "sluice.deployment"
local files = require "scripts.files"
local models = require "sluice.models"
local measure = require "scripts.measure"
local script = require "spec.support.script"

local count = 10
if arg[1] == "--rules" then
   count = assert(tonumber(arg[2]), "--rules needs a number")
end

-- Rules of every shape.
local function others()
   local list, shapes = {}, {
      "model.layers.{l}.mlp.experts.{e}.other_%d.weight", "model.layers.%d.mlp.experts.{e}.gate_proj.bias",
      "other_%d.layers.{l}.**", "model.layers.{l}.{p=q|k|v}_other_%d.weight", "**.other_%d.weight",
   }
   for i = 1, count do
      list[i] = ('rule "%s" { layout = column }'):format(shapes[i % #shapes + 1]:format(i))
   end
   return table.concat(list, ",\n")
end

local file = assert(loadfile("examples/deployments/deepseek-v3.lua"))()
file.worker = { mesh = { { "dp", 32 }, { "tp", 8 } }, expert_mesh = { { "ep", 256 } } }
local checked = assert(deployment.check(file))
local description = assert(models.describe(checked))
local trainers = deployment.ranks(checked)
local init_info = deployment.init_info(description, checked, "localhost", 1)
init_info.source_digest = ("0"):rep(64)
local parameters, host = #init_info.params, cjson.encode(deployment.host(description, checked))
init_info = cjson.encode(init_info)
local live = description.live(0)
for _, tensor in ipairs(live) do
   tensor.attributes = tensor.attributes and next(tensor.attributes) and cjson.encode(tensor.attributes) or "{}"
end

local path = os.tmpname()
files.write(path, ("return { extends = %q, rules = {\n%s\n} }\n"):format(file.rules, others()))

local seconds, mark = {}, measure.cpu()
local function lap(step)
   local now = measure.cpu()
   seconds[step], mark = now - mark, now
end

local state = script.new()
local read = state:read_init_info(init_info)
assert(read.ok, read.text)
lap("init_info")
local set = script.live_set(live)
lap("live")
local resolved = state:resolve(read.plan, set, host, path)
os.remove(path)
assert(resolved.ok, resolved.text)
lap("resolve")
local coverage, problem = script.cover(read.plan, set, trainers, resolved)
assert(coverage, problem)
assert(tonumber(coverage.nuncovered) == 0, "live bytes stay unwritten")
lap("check")
print(cjson.encode({ parameters = parameters, rules = count, seconds = seconds }))
