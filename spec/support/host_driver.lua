--- Starts host_driver (spec/support/host_driver.c) and reads its answer.

local built = require "spec.support.built"
local cjson = require "cjson"
local files = require "scripts.files"

local driver = {}

--- Runs a command line through the shell: its exit status, its standard output, its standard error.
function driver.run(command)
   local errors = os.tmpname()
   local pipe = assert(io.popen(("%s 2>%s; echo $?"):format(command, errors)))
   local text = pipe:read("*a")
   pipe:close()
   local complaint = assert(files.read(errors))
   os.remove(errors)
   local output, code = text:match("^(.-)%s*(%d+)%s*$")
   return tonumber(code), output, complaint
end

--- The driver of the build that the specs use.
function driver.path()
   return built.folder .. "spec/host_driver"
end

--- Builds the driver under sanitizers, at a path that the caller removes.
function driver.sanitized()
   local path = os.tmpname()
   os.remove(path)
   local code, output, complaint = driver.run(
      "cc -g -O1 -std=c11 -D_GNU_SOURCE -fsanitize=address,undefined -fno-sanitize-recover=all -Isrc -Ispec/support "
         .. "spec/support/host_*.c src/transport/*.c src/transport/host/*.c src/plan/*.c src/base/*.c -o " .. path
         .. " -lcrypto -lpthread")
   assert(code == 0, output .. complaint)
   return path
end

--- One scene over one road. The answer has ok, trainers, workers and for each rank (from 1) status and text.
function driver.check(path, scene, road, options)
   local _, output, complaint = driver.run(("timeout 120 %s check %s %s %s"):format(path, scene, road, options or ""))
   local good, answer = pcall(cjson.decode, output)
   assert(good, complaint .. output)
   answer.complaint = complaint
   return answer
end

--- What the ranks of a side said, each different text once, in rank order.
function driver.words(answer, side)
   local first, last = 1, answer.trainers
   if side == "workers" then
      first, last = answer.trainers + 1, answer.trainers + answer.workers
   end
   local seen, list = {}, {}
   for i = first, last do
      local text = answer.ranks[i].text
      if not seen[text] then
         seen[text] = true
         list[#list + 1] = text
      end
   end
   return list
end

return driver
