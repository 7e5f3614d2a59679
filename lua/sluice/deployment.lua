--- Deployment files: which model, which trainers, which workers. Reads Lua (in the sandbox) or JSON, checks every key, and
-- makes the init info that the trainers of such a deployment send. What the model's numbers mean is `sluice.models`' matter.
--
-- Functions return nil and a text that says the place: deployment: worker.mesh[2][2] (0) must be at least 1

local cjson = require "cjson"
local check = require "sluice.models.check"
local mesh = require "sluice.models.mesh"
local models = require "sluice.models"

local deployment = {}

local LONGEST_TEXT = 1024 * 1024
local BUDGET = { instructions = 10000000, bytes = 16 * 1024 * 1024 }
local MAX_RANKS = 2 ^ 31 - 1
local LONGEST_TIMEOUT_S, LEAST_BEAT_S, LONGEST_BEAT_S, MAX_SLOTS = 86400, 0.05, 3600, 1024 -- as the engine has them

local keys = {
   "model", "trainer", "worker", "rules", "transport", "road", "no_sm", "mix", "grouped", "staging_slots", "updates",
   "batches", "timeout_s", "timeouts", "beat_s", "host",
}
local phases = { "connect", "agree", "update", "finish", "shutdown" }
local part_keys = { trainer = { "mesh", "expert_mesh" }, worker = { "mesh", "expert_mesh", "dtype" } }
local landed_dtypes = { "bfloat16", "float16", "float32", "float8_e4m3fn" } -- the last: linear layers, with scales
local trainer_axes = { "dp", "fsdp", "pp", "cp", "tp", "ep" }
local worker_axes = { "dp", "pp", "tp", "ep" }
local roads = { host = { "map", "pull", "ring" }, nccl = { "link", "wire" }, m2n = { "link", "wire" } }

local function axis_of(entry, path, known, seen)
   if type(entry) ~= "table" or #entry ~= 2 then
      check.fail("%s (%s) must be a pair of an axis name and a size, as {\"tp\", 2}", path, check.shown(entry))
   end
   check.list(entry, path, 2, 2, "an axis name and a size")
   local name = check.one_of(entry[1], path .. "[1]", known)
   if seen[name] then
      check.fail("%s[1] (%s) names an axis that the mesh already has", path, check.shown(name))
   end
   seen[name] = true
   return { name, check.integer(entry[2], path .. "[2]", 1, MAX_RANKS) }
end

local function mesh_of(value, path, known)
   check.list(value, path, 1, 8, "axes")
   local axes, seen = {}, {}
   for i, entry in ipairs(value) do
      axes[i] = axis_of(entry, ("%s[%d]"):format(path, i), known, seen)
      if mesh.ranks(axes) > MAX_RANKS then
         check.fail("%s has more than %d ranks", path, MAX_RANKS)
      end
   end
   return axes
end

local function part_of(value, path, known)
   check.keys(value, path, part_keys[path])
   if value.mesh == nil then
      check.fail("%s.mesh is missing", path)
   end
   local part = { mesh = mesh_of(value.mesh, path .. ".mesh", known),
                  dtype = value.dtype ~= nil and check.one_of(value.dtype, path .. ".dtype", landed_dtypes) or nil }
   if value.expert_mesh ~= nil then
      part.expert_mesh = mesh_of(value.expert_mesh, path .. ".expert_mesh", known)
      local dense, expert = mesh.ranks(part.mesh), mesh.ranks(part.expert_mesh)
      if dense ~= expert then
         check.fail("%s.expert_mesh has %d ranks and %s.mesh %d: both must cover the same ranks", path, expert, path, dense)
      end
   end
   return part
end

local function host_of(value)
   local host = {}
   if type(value) ~= "table" then
      check.fail("host (%s) must be a table", check.shown(value))
   end
   for key, item in pairs(value) do
      local path = "host." .. tostring(key)
      if type(key) ~= "string" then
         check.fail("host has the key %s; keys must be names", check.shown(key))
      end
      local kind = type(item)
      if kind ~= "string" and kind ~= "number" and kind ~= "boolean" then
         check.fail("%s (%s) must be a string, a number or a boolean", path, check.shown(item))
      end
      if kind == "number" and (item ~= item or item == math.huge or item == -math.huge) then
         check.fail("%s (%s) must be a finite number", path, check.shown(item))
      end
      host[key] = item
   end
   return host
end

local function seconds_of(value, path)
   if type(value) ~= "number" or not (value > 0 and value <= LONGEST_TIMEOUT_S) then
      check.fail("%s (%s) must be a number above 0 and at most %d", path, check.shown(value), LONGEST_TIMEOUT_S)
   end
   return value
end

local function timeouts_of(value)
   local timeouts = {}
   check.keys(value, "timeouts", phases)
   for phase, seconds in pairs(value) do
      timeouts[phase] = seconds_of(seconds, "timeouts." .. phase)
   end
   return timeouts
end

local function beat_of(value)
   if type(value) ~= "number" or not (value >= LEAST_BEAT_S and value <= LONGEST_BEAT_S) then
      check.fail("beat_s (%s) must be a number from %g to %d", check.shown(value), LEAST_BEAT_S, LONGEST_BEAT_S)
   end
   return value
end

local function model_of(value)
   local config, text = models.config(value)
   if not config then
      check.fail("%s", text)
   end
   local model = {}
   for key, item in pairs(value) do
      model[key] = item
   end
   model.family = config.family
   return model, config
end

local function checked(raw)
   if type(raw) ~= "table" then
      check.fail("the file gives %s; it must give a table with model, trainer and worker", check.shown(raw))
   end
   check.keys(raw, "the table", keys)
   for _, key in ipairs({ "model", "trainer", "worker" }) do
      if raw[key] == nil then
         check.fail("%s is missing", key)
      end
   end
   local result = {
      trainer = part_of(raw.trainer, "trainer", trainer_axes), worker = part_of(raw.worker, "worker", worker_axes),
      transport = raw.transport == nil and "host" or check.text(raw.transport, "transport", 64),
      rules = raw.rules ~= nil and check.text(raw.rules, "rules", 4096) or nil,
      no_sm = check.optional(raw.no_sm, "no_sm", "boolean"),
      mix = check.optional(raw.mix, "mix", "boolean"), grouped = check.optional(raw.grouped, "grouped", "boolean"),
      road = raw.road ~= nil and check.one_of(raw.road, "road", roads[raw.transport] or roads.host) or nil,
      staging_slots = raw.staging_slots ~= nil and check.integer(raw.staging_slots, "staging_slots", 2, MAX_SLOTS) or nil,
      updates = raw.updates == nil and 1 or check.integer(raw.updates, "updates", 1, 1000000),
      batches = raw.batches == nil and 1 or check.integer(raw.batches, "batches", 1, 1000000),
      timeout_s = raw.timeout_s == nil and 60 or seconds_of(raw.timeout_s, "timeout_s"),
      timeouts = raw.timeouts ~= nil and timeouts_of(raw.timeouts) or {},
      beat_s = raw.beat_s ~= nil and beat_of(raw.beat_s) or nil,
      host = raw.host ~= nil and host_of(raw.host) or {},
   }
   local config
   result.model, config = model_of(raw.model)
   for _, path in ipairs({ "trainer", "worker" }) do
      if result[path].expert_mesh and not config.num_experts then
         check.fail("%s.expert_mesh is for models with experts; %s has none", path, config.title)
      end
   end
   if mesh.ranks(result.trainer.mesh) + mesh.ranks(result.worker.mesh) > MAX_RANKS then
      check.fail("trainer.mesh and worker.mesh have more than %d ranks together", MAX_RANKS)
   end
   return result
end

-- JSON's null says that a key is not given.
local function without_nulls(value, depth)
   if type(value) ~= "table" or depth > 8 then
      return value
   end
   local copy = {}
   for key, item in pairs(value) do
      if item ~= cjson.null then
         copy[key] = without_nulls(item, depth + 1)
      end
   end
   return copy
end

-- The end of the string that begins at `from`.
local function string_end(text, from)
   local to = text:find('["\\]', from + 1)
   while text:sub(to, to) == "\\" do
      to = text:find('["\\]', to + 2)
   end
   return to
end

-- A key that an object of good JSON has twice: cjson would silently take the last.
local function twice(text)
   local seen, depth, at = {}, 0, 1
   while true do
      local from = text:find('[%[%]{}"]', at)
      local mark = from and text:sub(from, from)
      if not mark then
         return nil
      elseif mark == '"' then
         local to = string_end(text, from)
         if seen[depth] and text:find("^%s*:", to + 1) then
            local key = cjson.decode("[" .. text:sub(from, to) .. "]")[1]
            if seen[depth][key] then
               return key
            end
            seen[depth][key] = true
         end
         at = to + 1
      else
         local opens = mark == "{" or mark == "["
         depth = depth + (opens and 1 or -1)
         if opens then
            seen[depth] = mark == "{" and {} or nil
         end
         at = from + 1
      end
   end
end

local function parse_json(text, chunkname)
   local zero = text:find("\0", 1, true)
   if zero then -- where cjson would end
      check.fail("%s is not JSON: a zero byte at character %d", chunkname, zero)
   end
   local parser = cjson.new()
   parser.decode_invalid_numbers(false)
   parser.decode_max_depth(16)
   local good, result = pcall(parser.decode, text)
   if not good then
      check.fail("%s is not JSON: %s", chunkname, (tostring(result):gsub("^.-:%d+: ", "")))
   elseif type(result) ~= "table" then
      check.fail("%s holds %s, not a JSON object", chunkname, check.shown(result))
   end
   local key = twice(text)
   if key then
      check.fail("%s has the key %s twice in one object", chunkname, check.shown(key))
   end
   return without_nulls(result, 0)
end

local function parse(text, chunkname)
   if type(text) ~= "string" or #text > LONGEST_TEXT then
      local bytes = type(text) == "string" and #text or 0
      check.fail("%s (%d bytes) must be a text of at most %d bytes", chunkname, bytes, LONGEST_TEXT)
   end
   if text:find("^%s*{") then -- no Lua chunk begins so
      return parse_json(text, chunkname)
   end
   local result, reason = require("sluice.sandbox").run(text, chunkname, {}, BUDGET)
   if result == nil then
      local rules = text:find("%f[%w_]rules%s*=%s*{") and "; it reads like a rule file" or ""
      check.fail("%s%s", reason or (chunkname .. " returns nothing; it must return a table"), rules)
   end
   return result
end

-- The value of a setting: JSON where it is JSON, else the text itself.
local function value_of(text)
   local good, value = pcall(cjson.decode, "[" .. text .. "]")
   if good and #value == 1 then
      return value[1]
   end
   return text
end

local function apply(raw, setting)
   local path, text = setting:match("^([%w_.]+)=(.*)$")
   if not path or ("." .. path .. "."):find("..", 1, true) then
      check.fail("the setting %s must read key.key=value", check.shown(setting))
   end
   local place, steps = raw, {}
   for step in path:gmatch("[^.]+") do
      steps[#steps + 1] = step:find("^%d+$") and tonumber(step) or step
   end
   for i = 1, #steps - 1 do
      if place[steps[i]] == nil then
         place[steps[i]] = {}
      end
      place = place[steps[i]]
      if type(place) ~= "table" then
         check.fail("the setting %s goes through %s, which is no table", check.shown(setting), table.concat(steps, ".", 1, i))
      end
   end
   local value = value_of(text)
   if value == cjson.null then
      value = nil
   end
   place[steps[#steps]] = value
end

-- The model, completed by the config.json of its checkpoint; a model that names a public size needs none.
local function with_published(model, published)
   if type(model) ~= "table" or type(model.checkpoint) ~= "string" or model.size ~= nil then
      return model
   end
   local text, path = published(model.checkpoint)
   return text and models.filled_in(model, parse_json(text, path)) or model
end

local function try(f, ...)
   local result, text = check.try(f, ...)
   if result == nil then
      return nil, "deployment: " .. text
   end
   return result
end

--- Checks a deployment given as a plain table.
-- @return a fresh table with every default filled in, or nil and a text
function deployment.check(raw)
   return try(checked, raw)
end

--- Reads a deployment file's text: JSON where it begins with a brace, else Lua.
-- @param text the file's content
-- @param chunkname its name, for messages
-- @param[opt] settings a list of "model.layers=2", put over what the file says before it is checked; the value is JSON or a
--    text, null takes a key away
-- @param[opt] published function(checkpoint) -> the text of the config.json beside that checkpoint and its path, or nil: it
--    fills in what the model's config leaves out
-- @return the checked table as deployment.check makes it, or nil and a text
function deployment.read(text, chunkname, settings, published)
   return try(function()
      local raw = parse(text, chunkname)
      if type(raw) == "table" then
         for _, setting in ipairs(settings or {}) do
            apply(raw, setting)
         end
         raw.model = published and with_published(raw.model, published) or raw.model
      end
      return checked(raw)
   end)
end

--- How many trainers and how many workers a checked deployment has.
function deployment.ranks(checked_deployment)
   return mesh.ranks(checked_deployment.trainer.mesh), mesh.ranks(checked_deployment.worker.mesh)
end

--- The host description that a worker of this deployment gives: the model's, and over it the deployment's own `host` keys.
function deployment.host(description, checked_deployment)
   local host = {}
   for key, value in pairs(description.host) do
      host[key] = value
   end
   for key, value in pairs(checked_deployment.host or {}) do
      host[key] = value
   end
   return host
end

--- The init info of a described deployment in the general form, without its digest; ready for cjson.encode.
function deployment.init_info(description, checked_deployment, address, port)
   local trainers, workers = deployment.ranks(checked_deployment)
   local params = {}
   for i, param in ipairs(description.params) do
      params[i] = {
         name = param.name, dtype_name = param.dtype, shape = param.shape, src_mesh = param.src_mesh,
         -- An empty list would be encoded as an object; null says the same: every rank of the mesh holds it whole.
         src_placements = #param.src_placements > 0 and param.src_placements or cjson.null,
      }
   end
   return {
      schema = "sluice/1", master_address = address, master_port = port, rank_offset = trainers, world_size = trainers + workers,
      src_meshes = description.src_meshes, dst_meshes = description.dst_meshes, params = params,
   }
end

return deployment
