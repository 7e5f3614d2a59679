--- Part of what scripts/faults runs: one victim for each phase and fault, another one in the build with sanitizers.

local built = require "spec.support.built"
local cjson = require "cjson"
local shell = require "scripts.shell"

local sanitized = os.getenv("SLUICE_SANITIZER") ~= nil

local function run(arguments)
   local command = "luajit scripts/faults.lua %s %s --json 2>/dev/null"
   return cjson.decode((shell(command:format(built.folder, arguments), { ASAN_OPTIONS = "detect_leaks=1" })))
end

describe("four ranks, one of which comes to grief", function()
   local said, by_phase = nil, {}

   setup(function()
      said = run(("--sample %d --delay 3"):format(sanitized and 1 or 3))
      for _, case in ipairs(said.cases) do
         by_phase[case.phase] = by_phase[case.phase] or {}
         table.insert(by_phase[case.phase], case)
      end
   end)

   for _, phase in ipairs(require("scripts.faults_wanted").phases) do
      it("end as they must and begin again, whatever happens at: " .. phase .. " #5.9 #5.10 #5.11 #4.12 #4.13 #4.17", function()
         local wrong, ran = {}, 0
         for _, case in ipairs(by_phase[phase]) do
            ran = ran + (case.wrong and 1 or 0)
            for _, text in ipairs(case.wrong or {}) do
               wrong[#wrong + 1] = ("%s of rank %d: %s"):format(case.fault, case.victim, text)
            end
         end
         assert.is_true(ran >= 8, "only " .. ran .. " cases ran")
         assert.equal("", table.concat(wrong, "\n"))
      end)
   end

   it("are cut off by a link that goes down, too", function()
      local ran, why = 0, "no case of it was run"
      for _, case in ipairs(said.cases) do
         ran = ran + (case.fault == "netns" and case.wrong and 1 or 0)
         why = case.pending or why
      end
      if ran == 0 then
         pending(why)
      end
   end)
end)

describe("init", function()
   it("brings 64 ranks together, and 8 ranks beside 10,000 strangers, with a key and without #5.2", function()
      local crowds = run("--crowd").crowds
      assert.equal(6, #crowds)
      for _, crowd in ipairs(crowds) do
         assert.equal("0 bad ranks: ", ("%d bad ranks: %s"):format(crowd.bad, crowd.text))
      end
      assert.is_true(crowds[4].strangers >= 10000 and crowds[6].strangers >= 10000)
   end)
end)
