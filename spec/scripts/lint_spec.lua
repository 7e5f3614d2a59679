--- The checks that the project has of its own must be able to fail.

local files = require "scripts.files"
local shell = require "scripts.shell"

local function run(command)
   return ("%sstatus %d\n"):format(shell(command))
end

describe("scripts/lint-headers.lua", function()
   local path

   before_each(function()
      path = os.tmpname()
   end)
   after_each(function()
      os.remove(path)
   end)

   local function lint(text)
      files.write(path, text)
      local result = run("luajit scripts/lint-headers.lua " .. path)
      return (result:gsub(path:gsub("%p", "%%%0"), "HEADER"))
   end

   it("takes a comment above, beside, or at the head of the paragraph", function()
      assert.equal("status 0\n", lint([[
/* x.h: an example. */
#define F(a) \
   int hidden(a);

/* Above. */
int above(void);
int same_paragraph(int a,
                   int b);

int beside(void); /* beside */

typedef int (*callback)(int);
struct table { int (*slot)(void); };
extern const int list[];

/* Inline. */
static inline int twice(int a) { return above() + a; }
]]))
   end)

   it("names the line and the function that has none", function()
      assert.equal("HEADER:3: plain has no comment\nHEADER:7: apart has no comment\nHEADER:10: inside_c has no comment\nstatus 1\n", lint([[
/* x.h: an example. */

int plain(void);

/* Above. */

__attribute__((format(printf, 1, 2))) int apart(const char *format, ...);

extern "C" {
int inside_c(void);
}
]]))
   end)

   it("wants a comment at the head of the file", function()
      assert.equal("HEADER:1: a file opens with a comment that says what it is for\nstatus 1\n", lint("#define X 1\n"))
   end)
end)

describe("scripts/lint-tree.lua", function()
   local folder

   before_each(function()
      folder = os.tmpname()
      os.remove(folder)
      assert(os.execute("mkdir -p " .. folder .. "/src/plan " .. folder .. "/scripts"))
      assert(os.execute("cp scripts/lint-tree.lua " .. folder .. "/scripts/"))
   end)
   after_each(function()
      os.execute("rm -rf " .. folder)
   end)

   local function lint(path, text)
      files.write(folder .. "/" .. path, text)
      return run(("cd %s && luajit scripts/lint-tree.lua %s"):format(folder, path))
   end

   it("lets a layer include what lies below it", function()
      assert.equal("status 0\n", lint("src/plan/a.c", '#include "base/error.h"\n#include "plan/box.h"\n#include "sluice.h"\n#include <stdio.h>\n'))
   end)

   it("refuses an include upward and a library of another layer", function()
      assert.equal("src/plan/a.c:1: src/plan must not include engine/engine.h\nsrc/plan/a.c:2: lua.h must not be included here\nstatus 1\n",
         lint("src/plan/a.c", '#include "engine/engine.h"\n#include <lua.h>\n'))
   end)

   it("refuses a long function, a long file and a wide line", function()
      local long = "int f(void)\n{\n" .. ("    g();\n"):rep(61) .. "}\n"
      assert.equal("src/plan/a.c:2: f has 61 lines; at most 60\nstatus 1\n", lint("src/plan/a.c", long))
      assert.equal("src/plan/a.c:501: 501 lines; at most 500\nstatus 1\n", lint("src/plan/a.c", ("int a;\n"):rep(501)))
      assert.equal("src/plan/a.c:1: 151 characters wide; at most 150\nstatus 1\n", lint("src/plan/a.c", ("x"):rep(151) .. "\n"))
   end)

   it("refuses words of unfinished work, tabs and white space at the end", function()
      assert.equal("src/plan/a.c:1: the word TO" .. "DO marks unfinished work\nstatus 1\n", lint("src/plan/a.c", "/* TO" .. "DO */\n"))
      assert.equal("src/plan/a.c:1: a tab\nsrc/plan/a.c:2: white space at the end of the line\nstatus 1\n",
         lint("src/plan/a.c", "int\ta;\nint b; \n"))
   end)
end)

describe("busted's closing line", function()
   local folder

   before_each(function()
      folder = os.tmpname()
      os.remove(folder)
      assert(os.execute("mkdir -p " .. folder))
   end)
   after_each(function()
      os.execute("rm -rf " .. folder)
   end)

   local function closing(text)
      files.write(folder .. "/a_spec.lua", text)
      local result = run("busted " .. folder)
      return result:match("([^\n]*\n[^\n]*)\n$"), result
   end

   it("counts what passed, failed and could not run", function()
      assert.equal("1 passed, 2 failed, 1 skipped\nstatus 1", (closing([[
         it("passes", function() end)
         it("fails", function() assert.equal(1, 2) end)
         it("errors", function() error("no") end)
         it("cannot run", function() pending("needs a GPU") end)
      ]])))
      assert.equal("1 passed, 0 failed, 1 skipped\nstatus 0", (closing([[
         it("passes", function() end)
         it("cannot run", function() pending("needs a GPU") end)
      ]])))
   end)

   it("fails a spec that is pending without a reason", function()
      local line, all = closing('it("passes", function() end) pending("some day")')
      assert.equal("1 passed, 1 failed, 1 skipped\nstatus 1", line)
      assert.truthy(all:find("some day\npending without a stated reason", 1, true))
   end)

   it("fails a run that runs nothing", function()
      assert.equal("0 passed, 1 failed, 0 skipped\nstatus 1", (closing("local nothing = 1 return nothing")))
   end)

   it("fails a run that crashes", function()
      local _, all = closing('it("crashes", function() local ffi = require "ffi" ffi.cast("int *", 0)[0] = 1 end)')
      assert.truthy(all:find("status [1-9]%d*\n$"))
   end)
end)
