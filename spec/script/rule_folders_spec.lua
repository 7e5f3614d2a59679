--- Where a rule file that is asked for by a bare name comes from: SLUICE_RULES_PATH, the user's folder, the installed one, the
-- library; and what becomes of files and folders that cannot be trusted.

local resolving = require "spec.support.resolving"
local stat = require "posix.sys.stat"
local stdlib = require "posix.stdlib"
local unistd = require "posix.unistd"

local VARIABLES = { "SLUICE_RULES_PATH", "XDG_DATA_HOME", "HOME" }

describe("a rule file that is asked for by name", function()
   local folder, before

   local function make(path)
      for part in (path:sub(#folder + 2) .. "/"):gmatch("()/") do
         stat.mkdir(path:sub(1, #folder + part))
      end
      return path
   end

   -- A file that places w, and says in its name where it was found.
   local function rules(path, more)
      make(path:match("^(.*)/"))
      resolving.write(('return {\n%s   rules = { rule "w" { layout = replicate } },\n}\n'):format(more or ""), path)
      stat.chmod(path, 420)
      return path
   end

   -- The rule's place, or the error's text.
   local function find(name)
      local got = resolving.resolve({ params = { { name = "w" } }, live = { { name = "w" } }, rules = name })
      return ((got.ok and got.by.w.where or got.text):gsub(folder:gsub("%p", "%%%0"), "DIR"))
   end

   before_each(function()
      before = {}
      for _, name in ipairs(VARIABLES) do
         before[name] = os.getenv(name)
         stdlib.setenv(name, nil)
      end
      folder = stdlib.mkdtemp("/tmp/sluice-rules.XXXXXX")
      stdlib.setenv("HOME", folder .. "/home")
   end)

   after_each(function()
      for _, name in ipairs(VARIABLES) do
         stdlib.setenv(name, before[name])
      end
      os.execute(("rm -rf '%s'"):format(folder))
   end)

   it("is taken from SLUICE_RULES_PATH in its order, then from the user's folder, then from the library", function()
      stdlib.setenv("SLUICE_RULES_PATH", (":%s/a:%s/gone:%s/b::"):format(folder, folder, folder))
      local first, second, user = rules(folder .. "/a/bert.lua"), rules(folder .. "/b/bert.lua"),
         rules(folder .. "/home/.local/share/sluice/rules/bert.lua")
      assert.equal("DIR/a/bert.lua:2", find("bert"))
      os.remove(first)
      assert.equal("DIR/b/bert.lua:2", find("bert"))
      os.remove(second)
      assert.equal("DIR/home/.local/share/sluice/rules/bert.lua:2", find("bert"))
      os.remove(user)
      assert.equal("destination: sluice/rules/bert.lua:5: the host's description must say 'num_attention_heads'"
         .. ", and says nothing: sluice_describe_host gives one, or --host on the command line", find("bert"))
   end)

   it("is looked for in XDG_DATA_HOME in place of the home folder, unless that is a relative path", function()
      rules(folder .. "/home/.local/share/sluice/rules/mine.lua")
      rules(folder .. "/data/sluice/rules/mine.lua")
      stdlib.setenv("XDG_DATA_HOME", folder .. "/data")
      assert.equal("DIR/data/sluice/rules/mine.lua:2", find("mine"))
      stdlib.setenv("XDG_DATA_HOME", "data")
      assert.equal("DIR/home/.local/share/sluice/rules/mine.lua:2", find("mine"))
   end)

   it("that extends its own name gets the next one of that name", function()
      stdlib.setenv("SLUICE_RULES_PATH", ("%s/a:%s/b"):format(folder, folder))
      resolving.write('return { extends = "mine" }\n', rules(folder .. "/a/mine.lua"))
      rules(folder .. "/b/mine.lua")
      assert.equal("DIR/b/mine.lua:2", find("mine"))
      resolving.write('return { extends = "mine" }\n', rules(folder .. "/b/mine.lua"))
      assert.match('^destination: DIR/b/mine.lua:1: extends %(mine%) must be a path, with a . or a / in it, or a family that ships ' ..
         'with Sluice: .*; ' ..
         'SLUICE_RULES_PATH has no mine.lua either$', find("mine"))
   end)

   it("is refused, and no other taken, when anyone may write it or its folder", function()
      stdlib.setenv("SLUICE_RULES_PATH", folder .. "/a")
      stat.chmod(rules(folder .. "/a/bert.lua"), 438)
      assert.equal("destination: rules (bert) must be a file that can be trusted: DIR/a/bert.lua: its mode 0666 must not have the bits 0002",
         find("bert"))
      stat.chmod(folder .. "/a/bert.lua", 420)
      stat.chmod(folder .. "/a", 1023)
      assert.equal("destination: rules (bert) must be a file that can be trusted: DIR/a/bert.lua: anyone may write into its folder " ..
         "(mode 1777); chmod o-w makes it good", find("bert"))
   end)

   it("is refused when it is no file, or a link that leads nowhere or to a file that anyone may write", function()
      stdlib.setenv("SLUICE_RULES_PATH", folder .. "/a")
      make(folder .. "/a/pipe.lua")
      assert.equal("destination: rules (pipe) must be a file that can be trusted: DIR/a/pipe.lua: it must be a regular file, not a folder",
         find("pipe"))
      unistd.link(folder .. "/gone", folder .. "/a/link.lua", true)
      assert.equal("destination: rules (link) must be a file that can be trusted: DIR/a/link.lua: No such file or directory", find("link"))
      stat.chmod(rules(folder .. "/gone"), 511)
      assert.equal("destination: rules (link) must be a file that can be trusted: DIR/a/link.lua: its mode 0777 must not have the bits 0002",
         find("link"))
      os.execute(("truncate -s 2M '%s/a/long.lua'"):format(folder))
      assert.equal("destination: rules (long) must be a file that can be trusted: DIR/a/long.lua: it must have at most 1048576 bytes",
         find("long"))
   end)

   it("has no slash or dot in its name: such a text is a path, which is looked for nowhere else", function()
      stdlib.setenv("SLUICE_RULES_PATH", folder .. "/a")
      rules(folder .. "/a/mine.lua")
      rules(folder .. "/mine.lua")
      for _, name in ipairs({ "./mine", "../mine", "sub/mine", "mine.lua", "~/mine", "mine\n" }) do
         assert.match("^destination: rules %(.*%) must be a file that can be read$", find(name))
      end
      assert.equal("DIR/mine.lua:2", find(folder .. "/mine.lua"))
   end)

   it("wants absolute paths, and not too many", function()
      stdlib.setenv("SLUICE_RULES_PATH", folder .. ":rules")
      assert.equal("destination: SLUICE_RULES_PATH (rules) must hold absolute paths", find("bert"))
      stdlib.setenv("SLUICE_RULES_PATH", (folder .. ":"):rep(65))
      assert.equal("destination: SLUICE_RULES_PATH must hold at most 64 paths", find("bert"))
   end)

   it("of an installed program comes from its own prefix, wherever that is", function()
      make(folder .. "/prefix/bin")
      os.execute(("cp '%s' '%s/prefix/bin/sluice'"):format(os.getenv("SLUICE_PROGRAM") or "build/sluice", folder))
      rules(folder .. "/prefix/share/sluice/rules/bert.lua", '   otherwise = "full",\n')
      local pipe = assert(io.popen(("HOME=/nowhere '%s/prefix/bin/sluice' explain examples/deployments/minilm.lua " ..
         "pooler.dense.bias --set model.checkpoint=null --set model.size='\"all-MiniLM-L6-v2\"' 2>&1"):format(folder)))
      local said = pipe:read("*a")
      pipe:close()
      assert.match(folder .. "/prefix/share/sluice/rules/bert.lua: none of 1 matches", said, 1, true)
   end)
end)
