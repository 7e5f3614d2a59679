--- What a plan is made of, as commands without ranks take it: a deployment, an init info with a host's description and a list of
-- live tensors, a checkpoint's list with both, or an engine that runs. Reads files and asks that engine; starts nothing.

local attached = require "sluice.cli.attached"
local cjson = require "cjson"
local core = require "sluice.core"
local native = require "sluice.native"
local deployment = require "sluice.deployment"
local fault = require "sluice.cli.fault"
local mesh = require "sluice.models.mesh"
local nearest = require "sluice.nearest"
local world = require "sluice.cli.world"

local source = {}

local LONGEST = 256 * 1024 * 1024
local LONGEST_HOST = 1024 * 1024
local LONGEST_HEAD = 4096 -- what may stand before the first bracket of a list
local TENSOR_KEYS = { name = true, dtype = true, shape = true, strides = true, attributes = true }
local MOST_RANKS = 2 ^ 31 - 1

local Source = {}
Source.__index = Source

--- Adds what says the plan in a deployment's place to a command's parser: --checkpoint with its meshes, --attach, --host, --live.
-- @param[opt] with_rules whether it has --rules, without which an engine's own are meant
function source.configure(parser, with_rules)
   parser:option("--checkpoint", "The trainer's tensors, whole on one trainer, in the place of a deployment: a JSON list of name, dtype and "
      .. "shape, or a safetensors file, index or folder."):argname("<list>")
   parser:option("--mesh", "The workers' mesh beside --checkpoint, outermost axis first. tp of the host's tensor_parallel_size when "
      .. "not given."):argname("<axis=size,...>")
   parser:option("--expert-mesh", "A second view of the same workers, for experts."):argname("<axis=size,...>")
   parser:option("--attach", "A running engine, at the socket that its host opened (sluice run --allow-attach), says all but the "
      .. "rules" .. (with_rules and ", and these unless --rules does." or ".")):argname("<socket>")
   parser:option("--host", "What the serving host says of itself (a JSON object), where no deployment says it."):argname("<host.json>")
   parser:option("--live", "Live tensors of the worker, where no deployment says them: a JSON list of name, dtype, shape "
      .. "and attributes, or a safetensors file."):argname("<live.json>"):target("live_list")
end

--- Adds everything that says what is planned, and for which worker, to a command's parser.
-- @param[opt] rank_help what --rank means there, if it has that option
function source.arguments(parser, rank_help)
   parser:argument("deployment", "Deployment file, or an init info (JSON) beside --host and --live."):args("?")
   parser:option("--rules", "Rule file, or the name of a family."):argname("<rules>")
   source.configure(parser, true)
   parser:option("--layers", "Use only the first LAYERS layers of the deployment's model."):argname("<layers>")
   parser:option("--set", "Set a key of the deployment: KEY.PATH=VALUE; may be given again."):count("*"):argname("<key=value>")
   if rank_help then
      world.rank_option(parser, rank_help)
   end
end

local function decode_text(stage, path, text)
   local value, problem = core.json(text)
   if value == nil then
      fault.wrong("%s: %s: %s", stage, path, problem)
   end
   return value
end

local function decode(stage, path, longest)
   local text = fault.read_file(stage, path, longest)
   return decode_text(stage, path, text), text
end

-- ---- lists of tensors ----

local function tensor_of(stage, path, i, item)
   local place = ("%s: %s: [%d]"):format(stage, path, i - 1)
   if type(item) ~= "table" or type(item.name) ~= "string" or type(item.dtype) ~= "string" or type(item.shape) ~= "table" then
      fault.wrong("%s must have a name, a dtype and a shape", place)
   end
   for key in pairs(item) do
      if not TENSOR_KEYS[key] then
         fault.wrong("%s of %s: unknown key '%s'%s", place, item.name, tostring(key), nearest.hint(tostring(key), nearest.keys(TENSOR_KEYS)))
      end
   end
   for key in pairs(item.shape) do
      local extent = type(key) == "number" and item.shape[key]
      if type(extent) ~= "number" or extent < 0 or extent % 1 ~= 0 then
         fault.wrong("%s.shape of %s must be a list of whole numbers", place, item.name)
      end
   end
   local attributes, text = item.attributes, nil
   if attributes ~= nil and (type(attributes) ~= "table" or attributes[1] ~= nil) then
      fault.wrong("%s.attributes of %s must be an object", place, item.name)
   elseif attributes and next(attributes) then
      local good
      good, text = pcall(cjson.encode, attributes)
      if not good then
         fault.wrong("%s.attributes of %s must be JSON: %s", place, item.name, text)
      end
   end
   return { name = item.name, dtype = item.dtype, shape = item.shape, strides = item.strides, attributes = text }
end

local function tensors_of(stage, path, list)
   local tensors = {}
   for i, item in ipairs(list) do
      tensors[i] = tensor_of(stage, path, i, item)
   end
   return tensors
end

-- The first bytes of a regular file, which may be a whole model's weights.
local function head_of(stage, path)
   local file, problem = io.open(path, "rb")
   if not file then
      fault.wrong("%s: %s", stage, problem)
   end
   local head = file:read(LONGEST_HEAD) or ""
   file:close()
   return head
end

--- The tensors of a JSON list, or of a safetensors file, index or folder.
function source.tensors(stage, path)
   local head = native.kind(path) == "file" and head_of(stage, path) or ""
   local is_text = not head:sub(1, 8):find("%z") -- a safetensors file begins with 8 bytes of a length, whose last are zeros
   if is_text and head:find("^%s*%[") then
      return tensors_of(stage, path, (decode(stage, path, LONGEST)))
   elseif is_text and head:find("^%s*{") and not path:find("%.index%.json$") then
      fault.wrong("%s: %s: it must hold a JSON list of tensors, each with name, dtype and shape", stage, path)
   end
   local list, text, status = native.checkpoint(path)
   return fault.check(list, list == nil and text:gsub("^checkpoint: ", stage .. ": ") or text, status)
end

-- ---- what has no deployment ----

local function host_of(path)
   if not path then
      return {}, "{}"
   end
   local host, text = decode("host", path, LONGEST_HOST)
   if type(host) ~= "table" or host[1] ~= nil then
      fault.wrong("host: %s: it must hold a JSON object", path)
   end
   return host, text
end

local function whole(stage, info, key, low, high)
   local value = info[key]
   if type(value) ~= "number" or value % 1 ~= 0 or value < low or value > high then
      fault.wrong("%s: %s (%s) must be a whole number from %d to %d", stage, key, tostring(value), low, high)
   end
   return value
end

local function checked_digest(text, sealed)
   local told, computed = text:match('"source_digest"%s*:%s*"(%x+)"'), sealed:match('"source_digest"%s*:%s*"(%x+)"')
   if told and told ~= computed then
      fault.wrong("init: source_digest (%s) is not that of the parameters (%s)", told, computed)
   end
   return sealed
end

local function of_init_info(args, info, text)
   if args.layers or args.set and args.set[1] then
      fault.wrong("%s is an init info, of which nothing is set: %s is for a deployment file", args.deployment,
         args.layers and "--layers" or "--set")
   end
   local self = setmetatable({ kind = "init info", title = args.deployment:match("[^/]*$") }, Source)
   self.trainers = whole("init", info, "rank_offset", 1, MOST_RANKS)
   self.size = whole("init", info, "world_size", self.trainers + 1, MOST_RANKS)
   self.workers = self.size - self.trainers
   self.info = checked_digest(text, (fault.check(native.seal(text))))
   self.host, self.host_text = host_of(args.host)
   self.live = args.live_list and source.tensors("live", args.live_list) or {}
   self.rules = args.rules
   return self
end

local function of_engine(args)
   local path = args.attach
   if args.host or args.live_list or args.layers or args.set and args.set[1] then
      fault.wrong("--attach: the engine says what %s would", args.host and "--host" or args.live_list and "--live"
         or args.layers and "--layers" or "--set")
   end
   local told = attached.plan(path)
   if told.role ~= "worker" then
      fault.wrong("attach: rank %d is a trainer, which has read no rules and has no live tensors; attach to a worker", told.rank)
   end
   local self = setmetatable({ kind = "engine", title = ("engine of rank %d"):format(told.rank), trainers = told.trainers,
                               workers = told.workers, size = told.trainers + told.workers, rank = told.rank }, Source)
   self.info, self.host_text = told.init_info, told.host
   self.host = decode_text("host", path, told.host)
   self.live = tensors_of("live", path, decode_text("live", path, told.live))
   self.engine, self.transport = told, told.transport
   self.rules, self.files = args.rules or told.rules, not args.rules and told.files or nil
   told.path, told.in_use = path, args.rules == nil -- whether its own rules are
   return self
end

-- tp=4,pp=2
local function mesh_of(option, text)
   local axes, ranks = {}, 1
   for item in (text .. ","):gmatch("([^,]*),") do
      local name, size = item:match("^([%a_][%w_]*)=(%d+)$")
      size = tonumber(size)
      if not size or size < 1 then
         fault.wrong("%s (%s) must read axis=size,axis=size, outermost first, as pp=2,tp=4", option, text)
      end
      axes[#axes + 1], ranks = { name, size }, ranks * size
   end
   return axes, ranks
end

-- The workers' meshes, and how many workers there are.
local function meshes_of(args, host)
   local axes, ranks = mesh_of("--mesh", args.mesh or ("tp=%d"):format(host.tensor_parallel_size or 1))
   local meshes = { { name = "dense", axes = axes } }
   if args.expert_mesh then
      local others
      meshes[2] = { name = "expert" }
      meshes[2].axes, others = mesh_of("--expert-mesh", args.expert_mesh)
      if others ~= ranks then
         fault.wrong("--expert-mesh (%s) has %d ranks and --mesh %d: both must cover the same ranks", args.expert_mesh, others, ranks)
      end
   end
   return meshes, ranks
end

-- Tensors as parameters that every trainer holds whole; an encoder would make an object of a shape without dims.
local function params_of(tensors)
   local list = {}
   for i, tensor in ipairs(tensors) do
      local shape = {}
      for dim, extent in ipairs(tensor.shape) do
         shape[dim] = ("%.0f"):format(extent)
      end
      list[i] = ('{"name":%s,"dtype_name":%s,"shape":[%s],"src_placements":null}'):format(cjson.encode(tensor.name),
         cjson.encode(tensor.dtype), table.concat(shape, ","))
   end
   return "[" .. table.concat(list, ",") .. "]"
end

-- A checkpoint's tensors, whole on one trainer, for workers on a mesh; `whole` is true where nobody said which mesh.
local function of_lists(args)
   local self = setmetatable({ kind = "lists", title = args.checkpoint:match("[^/]+/*$"), trainers = 1 }, Source)
   self.host, self.host_text = host_of(args.host)
   local meshes
   meshes, self.workers = meshes_of(args, self.host)
   self.whole = not args.mesh and not self.host.tensor_parallel_size
   self.size = 1 + self.workers
   local tensors = source.tensors("checkpoint", args.checkpoint)
   if not tensors[1] then
      fault.wrong("checkpoint: %s has no tensor", args.checkpoint)
   end
   local info = cjson.encode({
      schema = "sluice/1", master_address = "127.0.0.1", master_port = 1, rank_offset = 1, world_size = self.size,
      src_meshes = { { name = "trainer", axes = { { "dp", 1 } } } }, dst_meshes = meshes,
   })
   self.info = fault.check(native.seal(('%s,"params":%s}'):format(info:sub(1, -2), params_of(tensors))))
   self.live = source.tensors("live", args.live_list)
   self.rules = args.rules
   return self
end

--- The same with the rules that the engine itself uses.
function Source:as_engine()
   local same = setmetatable({}, { __index = self })
   same.rules, same.files = self.engine.rules, self.engine.files
   return same
end

--- What worker `rank` is to plan, as native.open takes it.
function Source:job(rank)
   return { rank = rank, trainers = self.trainers, workers = self.workers, live = self.live, init_info = self.info,
            host = self.host_text, rules = self.rules, files = self.files, updates = 1, batches = 1, listen_fd = -1, key_fd = -1, staging_slots = 0 }
end

--- The sealed init info that trainers send. A deployment does not say where to meet: its address stands for any.
function Source:init_info()
   return self.info
end

--- The ranks of workers whose live tensors differ.
function Source:kinds_of_workers()
   return { self.rank or self.trainers }
end

--- "worker 2" or "trainer 0"
function Source:role(rank)
   return rank < self.trainers and "trainer " .. rank or "worker " .. rank - self.trainers
end

--- The rank of the worker that is meant: the one asked for, else the one whose live tensors are known.
-- @param command its name, for the message where there is no such worker
function Source:worker(command, rank)
   rank = rank or self.rank or self.trainers
   if rank < self.trainers or rank >= self.size then
      fault.wrong("%s: --rank %d must be a worker's: %d to %d", command, rank, self.trainers, self.size - 1)
   elseif self.rank and rank ~= self.rank then
      fault.wrong("%s: --rank %d: this engine is that of rank %d and knows no other worker's live tensors", command, rank, self.rank)
   end
   return rank
end

-- ---- deployments ----

local Deployed = setmetatable({}, Source)
Deployed.__index = Deployed

function Deployed:job(rank)
   self.info = self.info or self.world:draft()
   local job = self.world:job(rank, self.info)
   job.rules, job.params, job.checkpoint = self.rules, nil, nil -- plans look at neither contents nor values
   for _, live in ipairs(job.live) do
      live.contents, live.zero = nil, nil
   end
   return job
end

function Deployed:init_info()
   return (fault.check(native.seal(self.info or self.world:draft())))
end

-- What a worker holds, as one text.
local function holdings(description, worker)
   local parts = {}
   for i, live in ipairs(description.live(worker)) do
      parts[i] = live.name .. live.dtype .. table.concat(live.shape, ",")
   end
   return table.concat(parts, "\n")
end

-- The first and the last of the workers with the same live tensors: shards at the end may be short.
function Deployed:kinds_of_workers()
   local first, last, order = {}, {}, {}
   local part = self.world.deployment.worker
   for worker = 0, self.workers - 1 do
      -- Without experts of their own, replicas hold the same.
      if part.expert_mesh or mesh.coordinate(part.mesh, worker, "dp") == 0 then
         local key = holdings(self.world.description, worker)
         order[#order + 1] = not first[key] and key or nil
         first[key], last[key] = first[key] or worker, worker
      end
   end
   local ranks = {}
   for _, key in ipairs(order) do
      ranks[#ranks + 1] = self.trainers + first[key]
      ranks[#ranks + 1] = last[key] ~= first[key] and self.trainers + last[key] or nil
   end
   return ranks
end

--- The source of a world that was loaded or made.
function source.of_world(here)
   return setmetatable({ kind = "deployment", title = here.title, trainers = here.trainers, workers = here.workers, size = here.size,
                         rules = here.deployment.rules, transport = here.deployment.transport, staging_slots = here.deployment.staging_slots,
                         seconds = here.seconds, world = here, host = deployment.host(here.description, here.deployment) }, Deployed)
end

-- Whether args say in one way what is to be planned, and nothing beside it that belongs to another one.
local function check_way(args)
   local other = args.deployment or args.checkpoint and "--checkpoint"
   if args.attach and other then
      fault.wrong("--attach: the engine says what %s would", other)
   elseif args.deployment and args.checkpoint then
      fault.wrong("%s says what --checkpoint would", args.deployment)
   elseif not args.attach and not other then
      fault.wrong("a deployment file, an init info, --checkpoint or --attach must say what is to be planned")
   end
   local mesh_option = args.mesh and "--mesh" or args.expert_mesh and "--expert-mesh"
   local set_option = args.layers and "--layers" or args.set and args.set[1] and "--set"
   if mesh_option and not args.checkpoint then
      fault.wrong("%s says the workers' mesh; %s goes with --checkpoint", args.attach and "--attach" or args.deployment, mesh_option)
   elseif args.checkpoint and set_option then
      fault.wrong("%s sets a key of a deployment, and --checkpoint is none", set_option)
   elseif args.checkpoint and not args.live_list then
      fault.wrong("--checkpoint says what the trainer has; --live must say what the worker has")
   end
end

--- Reads what args name: a deployment, an init info beside --host and --live, a checkpoint's list beside these, or with --attach
-- asks an engine.
function source.load(args)
   check_way(args)
   if args.attach then
      return of_engine(args)
   elseif args.checkpoint then
      return of_lists(args)
   end
   local path = args.deployment
   if path:find("%.safetensors$") or path:find("%.safetensors%.index%.json$") or native.kind(path) == "folder" then
      fault.wrong("%s is no deployment file and no init info; --checkpoint takes a checkpoint's files and folders, beside --live", path)
   end
   local text = fault.read_file("deployment", path, LONGEST)
   if world.is_init_info(text) then
      local info, problem = core.json(text)
      if type(info) ~= "table" then
         fault.wrong("init: %s: %s", path, problem or "it must hold a JSON object")
      end
      return of_init_info(args, info, text)
   elseif text:find("^%s*%[") then
      fault.wrong("%s is a list, and a deployment file or an init info is wanted; --checkpoint takes lists of tensors", path)
   elseif args.host or args.live_list then
      fault.wrong("%s is a deployment, which says what %s would", path, args.host and "--host" or "--live")
   end
   return source.of_world(world.load({ deployment = path, rules = args.rules, set = args.set, ["model.layers"] = args.layers }))
end

return source
