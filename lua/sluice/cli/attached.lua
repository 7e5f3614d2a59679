--- What a running engine says at the socket that its host opened for it (src/control/door.h): where it stands, and what its plan
-- was made of. Only asks; there is nothing that could change it.

local core = require "sluice.core"
local fault = require "sluice.cli.fault"
local native = require "sluice.native"

local attached = {}

local function decode(path, text)
   local value, problem = core.json(text)
   if type(value) ~= "table" then
      fault.raise(1, "attach: %s: its answer cannot be read: %s", path, problem or "it is no object")
   end
   return value
end

-- What each answer must hold, and may hold, by the type of the value.
local STATUS = { library = "string", rank = "number", process = "number", state = "string", version = "string", dirty = "boolean",
                 batch = "number", progress = "table" }
local PLAN = { library = "string", rank = "number" }
local WITH_PLAN = { role = "string", trainers = "number", workers = "number", transport = "string", roads = "table",
                    source_digest = "string", destination_digest = "string", plan = "string" }
local FILE = { name = "string", bytes = "number", folder = "number" }
local MAY = { stage = "string", rules = "string" }
local PROGRESS = { bytes_done = "number", bytes_total = "number", params_done = "number", params_total = "number" }

local function has_all(value, types)
   for key, kind in pairs(types) do
      if type(value[key]) ~= kind then
         return false
      end
   end
   return true
end

-- An answer may come from anything that listens there.
local function check(path, value, ...)
   local good = true
   for _, types in ipairs({ ... }) do
      good = good and has_all(value, types)
   end
   for key, kind in pairs(MAY) do
      good = good and (value[key] == nil or type(value[key]) == kind)
   end
   for _, peers in pairs(good and value.roads or {}) do
      good = good and type(peers) == "number"
   end
   if not good then
      fault.raise(1, "attach: %s: its answer is not what an engine says", path)
   end
   return value
end

--- Where the engine stands: rank, process, state, stage, version, dirty, batch, progress; and once there is a plan: role,
-- trainers, workers, transport, roads, source_digest, destination_digest, plan.
function attached.status(path)
   local status = decode(path, (fault.check(native.attach(path, "status"))))
   check(path, status, STATUS, status.plan ~= nil and WITH_PLAN or {})
   check(path, status.progress, PROGRESS)
   return status
end

-- Cuts parts of stated lengths off a text.
local function cutter(path, text, at)
   return function(length)
      if type(length) ~= "number" or length < 0 or length % 1 ~= 0 or at + length - 1 > #text then
         fault.raise(1, "attach: %s: its answer is not whole", path)
      end
      at = at + length
      return text:sub(at - length, at - 1)
   end
end

--- The plan: what status says of it, and the texts init_info, host, live, and `files`: the rule files, a list of
-- { name =, text =, family =, folder = }.
-- Ends the command where the engine has none yet.
function attached.plan(path)
   local text = fault.check(native.attach(path, "plan"))
   local line = text:match("^[^\n]*\n") or ""
   local told = check(path, decode(path, line), PLAN, WITH_PLAN)
   local cut = cutter(path, text, #line + 1)
   for _, part in ipairs({ "init_info", "host", "live" }) do
      told[part] = cut(told[part])
   end
   local files = {}
   for i, file in ipairs(type(told.files) == "table" and told.files or {}) do
      if type(file) ~= "table" or not has_all(file, FILE) or file.family ~= nil and type(file.family) ~= "string" then
         fault.raise(1, "attach: %s: its answer is not whole", path)
      end
      files[i] = { name = file.name, text = cut(file.bytes), family = file.family, folder = file.folder }
   end
   told.files = files
   return told
end

return attached
