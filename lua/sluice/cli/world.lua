--- From a deployment file to what every command needs: the checked deployment, the model's description, the init info, and
-- the job of one rank. Reads files; starts nothing.

local cjson = require "cjson"
local native = require "sluice.native"
local deployment = require "sluice.deployment"
local models = require "sluice.models"
local fault = require "sluice.cli.fault"

local world = {}
world.__index = world

local NO_MEMORY = 3 -- of sluice_status
local LONGEST_DEPLOYMENT, LONGEST_CONFIG = 1024 * 1024, 1024 * 1024

local function natural(text)
   local number = tonumber(text)
   if not number or number < 1 or number % 1 ~= 0 then
      return nil, ("'%s' is no whole number above 0"):format(text)
   end
   return number
end

local function positive(text)
   local number = tonumber(text)
   if not number or not (number > 0 and number < math.huge) then
      return nil, ("'%s' is no number above 0"):format(text)
   end
   return number
end

-- Options that stand for a key of the deployment.
local keys = {
   { "--updates", "updates", natural, "Number of updates." },
   { "--batches", "batches", natural, "Batches of parameters an update." },
   { "--layers", "model.layers", natural, "Use only the first LAYERS layers of the model." },
   { "--rules", "rules", nil, "Rule file, or the name of a family." },
   { "--transport", "transport", nil, "What moves the bytes: host, or between GPUs nccl, or m2n (by NVIDIA's nccl_m2n)." },
   { "--no-sm", "no_sm", "flag", "Transport nccl: only copy engines, no kernel that takes SMs of a trainer's GPU." },
   { "--mix", "mix", "flag", "Transport m2n: transport nccl carries what nccl_m2n cannot." },
   { "--grouped", "grouped", "flag", "Transport m2n: a batch's reshards are one group." },
   { "--road", "road", nil, "How bytes go: map, pull or ring on the host, link or wire between GPUs; without it the best that works." },
   { "--timeout", "timeout_s", positive, "Deadline of every wait." },
   { "--connect-timeout", "timeouts.connect", positive, "The same until every rank has joined." },
   { "--agree-timeout", "timeouts.agree", positive, "The same for the rest of init." },
   { "--update-timeout", "timeouts.update", positive, "The same for one batch." },
   { "--finish-timeout", "timeouts.finish", positive, "The same for the end of an update." },
   { "--shutdown-timeout", "timeouts.shutdown", positive, "The same for a rank's last words; at most 1 counts." },
   { "--beat", "beat_s", positive, "How often ranks say that they live; the same on every rank. One that is silent for three is lost." },
}

--- What --save is for, as help tells it.
world.save_help = "After the last update each worker N writes all that it holds to FOLDER/worker-N.safetensors. The folder is "
   .. "made where it is not there; files of that name are replaced."

--- What --allow-attach is for.
world.attach_help = "Make a Unix socket at PATH where sluice repl --attach asks what an engine is doing: only this user and root "
   .. "may, and only look. {rank} in PATH stands for the rank."

--- The path where a rank makes that socket, or nil.
function world.attach_path(path, rank)
   return path and path:gsub("{rank}", ("%d"):format(rank)) or nil
end

--- Adds the deployment and everything that can be set over it to a command's parser.
function world.configure(parser)
   parser:argument("deployment", "Deployment file: a Lua table or JSON.")
   for _, entry in ipairs(keys) do
      local is_flag = entry[3] == "flag"
      local option = (is_flag and parser.flag or parser.option)(parser, entry[1], entry[4]):target(entry[2])
      if entry[3] and not is_flag then
         option:convert(entry[3])
      end
      if entry[3] == positive then
         option:argname("<seconds>")
      end
   end
   parser:option("--set", "Set a key of the deployment: KEY.PATH=VALUE; may be given again."):count("*"):argname("<key=value>")
   parser:flag("--json", "Print one JSON object on standard output.")
end

--- Adds --replay to a command's parser.
function world.replay_option(parser)
   parser:flag("--replay", "Record each batch once and replay it in every update.")
end

--- Adds --log to a command's parser.
function world.log_option(parser)
   parser:option("--log", "What of its engine's log a rank prints: error, warning, info (who has joined and when all were ready), "
      .. "or debug (each stage of init, too, before it begins)."):choices({ "error", "warning", "info", "debug" }):default("warning")
      :argname("<level>")
end

--- Adds --rank, or an option of another name that takes a rank, to a command's parser.
function world.rank_option(parser, help, name)
   parser:option(name or "--rank", help):argname("<rank>"):convert(function(text)
      local rank = tonumber(text)
      if not rank or rank < 0 or rank % 1 ~= 0 then
         return nil, ("'%s' is no rank"):format(text)
      end
      return rank
   end)
end

local function settings(args)
   local list = {}
   for _, entry in ipairs(keys) do
      if args[entry[2]] ~= nil then
         list[#list + 1] = ("%s=%s"):format(entry[2], tostring(args[entry[2]]))
      end
   end
   for _, setting in ipairs(args.set or {}) do
      list[#list + 1] = setting
   end
   return list
end

-- A path in a deployment means a file beside the deployment, or else one of the current directory.
local function beside(path, file)
   local folder = file:match("^(.*/)")
   if path:sub(1, 1) ~= "/" and folder and native.kind(folder .. path) then
      return folder .. path
   end
   return path
end

-- The text and the path of the config.json that lies with a checkpoint of the deployment in `file`, or nil.
local function config_beside(file)
   return function(checkpoint)
      local path = beside(checkpoint, file)
      local folder = native.kind(path) == "folder" and path or path:match("^(.*)/[^/]*$") or "."
      local config = folder .. "/config.json"
      if native.kind(config) == "file" then
         return fault.read_file("checkpoint", config, LONGEST_CONFIG), config
      end
   end
end

local function no_checkpoint(path, file)
   local folder = file:match("^(.*/)") or "./"
   fault.wrong("checkpoint: %s: nothing is there%s%s", path,
      path:sub(1, 1) == "/" and "" or (", neither beside the deployment (%s) nor in the current directory"):format(folder),
      path:find("build/minilm", 1, true) and "; scripts/fetch-minilm brings it" or "")
end

--- Whether a file's text is an init info's, which the same option takes in some commands.
function world.is_init_info(text)
   return text:find("^%s*{") ~= nil and text:find('"world_size"', 1, true) ~= nil
end

--- Reads and checks the deployment that args name, and describes its model. Ends the command on wrong input.
-- @return a world: deployment, description, trainers, workers, title, seconds (of describing)
function world.load(args)
   local start = native.monotonic()
   local source = fault.read_file("deployment", args.deployment, LONGEST_DEPLOYMENT)
   if world.is_init_info(source) then
      fault.wrong("deployment: %s is an init info, and this wants a deployment file, which says what the model and both sides are",
         args.deployment)
   end
   local checked = fault.check(deployment.read(source, args.deployment, settings(args),
      config_beside(args.deployment)))
   if checked.rules and checked.rules:find("[/.]") then -- else it is the name of a family
      checked.rules = beside(checked.rules, args.deployment)
      local kind = native.kind(checked.rules)
      if kind and kind ~= "file" then
         fault.wrong("rules: %s: it must be a regular file, not a %s", checked.rules, kind)
      end
   end
   if checked.model.checkpoint then
      local path = beside(checked.model.checkpoint, args.deployment)
      if not native.kind(path) then
         no_checkpoint(checked.model.checkpoint, args.deployment)
      end
      checked.model.checkpoint = path
   end
   local self = world.of(checked)
   self.seconds = native.monotonic() - start
   return self
end

--- The world of a checked deployment, whose checkpoint, if it has one, is a path that stands. Ends the command on wrong input.
function world.of(checked)
   local start = native.monotonic()
   local list
   if checked.model.checkpoint then
      local text, status
      list, text, status = native.checkpoint(checked.model.checkpoint)
      if not list then
         fault.raise(status == NO_MEMORY and 1 or 2, "%s", text)
      end
   end
   local self = setmetatable({ deployment = checked, description = fault.check(models.describe(checked, list)) }, world)
   self.trainers, self.workers = deployment.ranks(checked)
   self.size = self.trainers + self.workers
   self.title = self.description.title
   self.seconds = native.monotonic() - start
   return self
end

--- "worker 2" or "trainer 0"
function world:role(rank)
   return rank < self.trainers and "trainer " .. rank or "worker " .. rank - self.trainers
end

--- The effective deployment as text, for another process to read.
function world:encode()
   return cjson.encode(self.deployment)
end

--- Init info without a digest, for plans of this process alone: nobody meets anybody, so any address will do.
function world:draft()
   return cjson.encode(deployment.init_info(self.description, self.deployment, "127.0.0.1", 1))
end

--- The sealed init info of a world that meets at address and port.
function world:init_info(address, port)
   return (fault.check(native.seal(cjson.encode(deployment.init_info(self.description, self.deployment, address, port)))))
end

-- Attributes as the library takes them. Entries of a description are shared, so they are copied, not changed.
local function live_of(description, worker)
   local list, known = {}, {}
   for i, live in ipairs(description.live(worker)) do
      local attributes = live.attributes
      if attributes and not known[attributes] then
         known[attributes] = next(attributes) and cjson.encode(attributes) or "{}"
      end
      list[i] = {
         name = live.name, dtype = live.dtype, shape = live.shape, contents = live.contents, zero = live.zero,
         attributes = attributes and known[attributes], unsourced = live.unsourced,
      }
   end
   return list
end

--- What `rank` is to do, as native.run_rank and native.plan take it.
-- @param rank the world rank
-- @param init_info the sealed text, or a draft to plan by
-- @param[opt] more keys that go over the rest: listen_fd, key_fd, key_file, insecure_control, ordinary, verify, save, replay, log
function world:job(rank, init_info, more)
   local checked = self.deployment
   local job = {
      rank = rank, trainers = self.trainers, workers = self.workers, params = self.description.params,
      live = rank >= self.trainers and live_of(self.description, rank - self.trainers) or nil,
      init_info = init_info, host = cjson.encode(deployment.host(self.description, checked)),
      rules = checked.rules, transport = checked.transport, road = checked.road, no_sm = checked.no_sm or false,
      mix = checked.mix or false, grouped = checked.grouped or false, timeout_s = checked.timeout_s, timeouts = checked.timeouts,
      beat_s = checked.beat_s,
      staging_slots = checked.staging_slots or 0, updates = checked.updates, batches = checked.batches,
      checkpoint = checked.model.checkpoint, listen_fd = -1, key_fd = -1, insecure_control = false,
      verify = true, ordinary = false, replay = false,
   }
   for key, value in pairs(more or {}) do
      job[key] = value
   end
   return job
end

return world
