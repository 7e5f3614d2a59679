--- scripts/fetch-vllm and scripts/fetch-torch in a tree of their own, where pip is played and nothing is downloaded.

local files = require "scripts.files"
local shell = require "scripts.shell"

-- Plays build/torch/bin/python. Its pip downloads a wheel of what is to be unpacked and what is not, installs a package, and is
-- broken in the step that BREAKS names.
local PYTHON = [[
#!/bin/sh
while [ $# -gt 0 ]; do
   case $1 in download | install) step=$1 ;; --dest | --target) to=$2 ;; -) exec python3 "$@" ;; esac
   shift
done
[ "$BREAKS" != "$step" ] || { echo "THESE PACKAGES DO NOT MATCH THE HASHES"; exit 1; }
case $step in
download) cd "$to" && mkdir w w/vllm w/vllm-1.dist-info && touch w/vllm/__init__.py w/vllm/_C.so w/vllm-1.dist-info/METADATA &&
   (cd w && python3 -m zipfile -c ../vllm-1-py3-none-any.whl vllm vllm-1.dist-info) && rm -r w ;;
install) mkdir "$to/other" ;;
esac
]]

describe("scripts/fetch-vllm, fetch-torch", function()
   local tree

   local function fetch(arguments, breaks)
      return shell(tree .. "/scripts/fetch-vllm " .. arguments, { BREAKS = breaks })
   end

   local function in_tree(line)
      return (shell(("cd %s && %s"):format(tree, line)))
   end

   before_each(function()
      tree = shell("mktemp -d"):gsub("%s+$", "")
      shell(("mkdir -p %s/scripts %s/examples && cp scripts/common.sh scripts/fetch-vllm scripts/fetch-torch %s/scripts"):format(tree, tree, tree))
      shell(("cp --parents examples/vllm-host/requirements.txt examples/python-host/requirements.txt %s"):format(tree))
   end)

   after_each(function()
      shell("rm -rf " .. tree)
   end)

   local function torch()
      in_tree("mkdir -p build/torch/bin")
      files.write(tree .. "/build/torch/bin/python", PYTHON)
      in_tree("chmod +x build/torch/bin/python")
   end

   it("wants what fetch-torch makes", function()
      local said, code = fetch("")
      assert.equal(1, code)
      assert.equal("fetch-vllm: build/torch/bin/python is not there; run scripts/fetch-torch\n", said)
   end)

   for _, script in ipairs({ "fetch-vllm", "fetch-torch" }) do
      it(script .. " refuses what it does not know", function()
         local said, code = shell(("%s/scripts/%s --all"):format(tree, script))
         assert.equal(1, code)
         assert.equal(("%s: unknown argument --all; scripts/%s --help tells\n"):format(script, script), said)
         said, code = shell(("%s/scripts/%s a b"):format(tree, script))
         assert.equal(1, code)
         assert.equal(script .. ": one directory at most (2 arguments)\n", said)
      end)
   end

   it("leaves a directory alone that it did not make", function()
      torch()
      in_tree("mkdir mine && touch mine/letter")
      local said, code = fetch("mine")
      assert.equal(1, code)
      assert.equal("fetch-vllm: mine is there and not this script's; it would be removed\n", said)
      said, code = shell(tree .. "/scripts/fetch-torch mine")
      assert.equal(1, code)
      assert.truthy(said:find("mine is there and no Python environment; it would be removed", 1, true) or said:find("has wheels for", 1, true), said)
      assert.equal("letter\n", in_tree("ls -A mine"))
   end)

   it("unpacks Python files and metadata, and has nothing to do a second time", function()
      torch()
      local said, code = fetch("out")
      assert.equal(0, code)
      assert.truthy(said:find("fetch-vllm: out holds vLLM (", 1, true), said)
      assert.equal("out\nout/installed.txt\nout/other\nout/vllm\nout/vllm-1.dist-info\nout/vllm-1.dist-info/METADATA\nout/vllm/__init__.py\n",
         in_tree("find out | LC_ALL=C sort"))
      assert.same({ "fetch-vllm: out holds vLLM\n", 0 }, { fetch("out") })
   end)

   for _, step in ipairs({ "download", "install" }) do
      it(("leaves nothing of a damaged %s, and keeps what was there"):format(step), function()
         torch()
         local said, code = fetch("out", step)
         assert.equal(1, code)
         assert.equal("fetch-vllm: fetching vLLM into out (400 MB to download)\nTHESE PACKAGES DO NOT MATCH THE HASHES\n"
            .. "fetch-vllm: out could not be made; the end of the output is above\n", said)
         assert.equal("", in_tree("ls -d out*"):gsub("ls: .*", ""))
         in_tree("mkdir out && echo 'vllm==0' >out/installed.txt && touch out/older")
         assert.equal(1, (select(2, fetch("out", step))))
         assert.equal("installed.txt\nolder\n", in_tree("ls -A out*"))
         assert.equal(0, (select(2, fetch("out"))))
         assert.equal("installed.txt\nother\nvllm\nvllm-1.dist-info\n", in_tree("ls -A out"))
      end)
   end
end)
