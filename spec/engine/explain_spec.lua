--- sluice_explain_json: what an engine says of the plan that it holds.

local cjson = require "cjson"
local explanation = require "sluice.cli.explanation"
local files = require "scripts.files"
local host = require "spec.support.host"
local inside = require "spec.support.inside"
local unistd = require "posix.unistd"
local world = require "spec.support.world"

local C = inside.declare("sluice.h")
local RULES = 'return { rules = {\n rule "h.{l}.weight" { into = "fused.{l}", at = span(0, 0, 2), layout = column },\n%s } }'

local function init_info(port)
   return world.seal({
      schema = "sluice/1", master_address = "127.0.0.1", master_port = port, rank_offset = 1, world_size = 3,
      src_meshes = { { name = "", axes = { { "fsdp", 1 } } } }, dst_meshes = { { name = "", axes = { { "tp", 2 } } } },
      params = { { name = "h.0.weight", dtype_name = "float32", shape = { 4, 2 }, src_placements = cjson.null } },
   })
end

-- Runs a trainer and two workers; the rule file changes after init.
local function run(body)
   local path = os.tmpname()
   local function write(text)
      files.write(path, text)
   end
   write(RULES:format(""))
   local fd, port = world.listen()
   local results = world.run(3, function(rank)
      local self = host.create { rank = rank, listen_fd = rank == 0 and fd or nil, rules = rank > 0 and path or nil }
      if rank == 0 then
         self:source("h.0.weight", { 1, 2, 3, 4, 5, 6, 7, 8 })
      else
         self:live("fused.0", { 2, 2 })
         unistd.close(fd)
      end
      self.before = host.refused(self.explain, self, "h.0.weight")
      self:init(init_info(port))
      write("return 7")
      return body(self, rank)
   end, { meanwhile = function() unistd.close(fd) end })
   os.remove(path)
   for rank = 0, 2 do
      assert.is_nil(results[rank].raised)
   end
   return results, path
end

describe("sluice_explain_json", function()
   it("tells what was planned, also after the rule file has changed, and during an update", function()
      local results, path = run(function(self)
         local seen = { before = self.before, ready = self:explain("h.0.weight"), live = self:explain("fused.0") }
         self:start()
         seen.updating = self:explain("h.0.weight")
         self:update({ "h.0.weight" })
         self:finish("one")
         self:shutdown()
         seen.after = host.refused(self.explain, self, "h.0.weight")
         self:destroy()
         return seen
      end)
      for rank = 1, 2 do
         local result = results[rank]
         assert.same({ status = "call not allowed in this state", rank = -1,
                       text = "explain: there is a plan only between init and shutdown; the engine is new" }, result.before)
         assert.same(result.before, result.after)
         assert.same(result.ready, result.updating)
         assert.equal(path .. ":2", result.ready.parameter.rules.matched.where)
         assert.same({ { name = "l", text = "0" } }, result.ready.parameter.rules.matched.captures)
         assert.equal(rank, result.live.rank)
         assert.same({ { 2 * rank - 2, 2 * rank }, { 0, 2 } }, result.live.live.writes[1].source)
         assert.equal(0, result.live.live.unwritten_bytes)
      end
   end)

   it("answers on a trainer from the plan alone", function()
      local results, path = run(function(self)
         local answer = self:explain("h.0.weight")
         answer.missing = self:explain("fused.0").near
         self:shutdown()
         self:destroy()
         return answer
      end)
      local text = explanation.text(results[0]):gsub(path:gsub("%p", "%%%0"), "FILE")
      assert.equal([[
parameter h.0.weight
         float32 [4, 2], 32 B, whole on each trainer
mode     direct: rule "h.{l}.weight" (FILE:2)
into     fused.0 [0:2, :], cut (tp:0)
   ranks  at    live elements  elements of the parameter  bytes  from trainers
   1      tp 0  [0:2, 0:2]     [0:2, 0:2]                 16 B   0
   2      tp 1  [0:2, 0:2]     [2:4, 0:2]                 16 B   0
]], text)
   end)

   it("refuses no name", function()
      local results = run(function(self)
         local json, err = require("ffi").new("char *[1]"), inside.error()
         local status = tonumber(C.sluice_explain_json(self.engine, nil, json, err))
         self:shutdown()
         self:destroy()
         return { status = status, text = inside.text(err) }
      end)
      assert.same({ status = 1, text = "explain: the name (NULL) must be a parameter's, a live tensor's or a pattern" }, results[1])
   end)
end)
