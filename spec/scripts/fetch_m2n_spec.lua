--- scripts/fetch-m2n where it downloads nothing.

local files = require "scripts.files"
local shell = require "scripts.shell"

-- Runs the script without any package index; what it said and its exit status.
local function fetch(arguments)
   return shell("scripts/fetch-m2n " .. arguments, { PIP_INDEX_URL = "http://127.0.0.1:9/", PIP_EXTRA_INDEX_URL = "", PIP_RETRIES = "0" })
end

local function read(line)
   return (shell(line):gsub("%s+$", ""))
end

describe("scripts/fetch-m2n", function()
   local folder

   before_each(function()
      folder = read("mktemp -d")
   end)

   after_each(function()
      os.execute("rm -rf " .. folder)
   end)

   it("tells that there is no index, and leaves nothing behind", function()
      if read("python3 -m pip --version 2>/dev/null") == "" then
         pending("python3 has no pip")
         return
      end
      local said, code = fetch(folder)
      assert.equal(1, code)
      assert.truthy(said:find("fetch-m2n: pip could not download them: is there a network, and does pip's index carry the packages?", 1, true), said)
      assert.equal("", read("ls -A " .. folder))
   end)

   it("does nothing where the packages of these versions are there", function()
      local machine = read("uname -m")
      local list = read(("sed -n '/^      %s)/,/;;/s/^ *echo \"\\(.*\\)\"$/\\1/p' scripts/fetch-m2n"):format(machine))
      assert.truthy(list:find("^nccl%-extensions==.*\nnvidia%-nccl%-cu13=="), list)
      files.write(folder .. "/packages", list, "\n")
      local said, code = fetch(folder)
      assert.equal(0, code)
      assert.equal(("fetch-m2n: %s holds nccl_m2n and NCCL\n"):format(folder), said)
   end)

   it("refuses what it does not know", function()
      local said, code = fetch("--all")
      assert.equal(1, code)
      assert.equal("fetch-m2n: unknown argument --all; scripts/fetch-m2n --help tells\n", said)
      said, code = fetch("a b")
      assert.equal(1, code)
      assert.equal("fetch-m2n: one directory at most (2 arguments)\n", said)
   end)
end)
