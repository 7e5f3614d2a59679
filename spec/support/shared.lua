--- Runs once before any spec file. Busted gives each file its own modules; what is declared to LuaJIT's ffi stays declared
-- for the whole process, so the module that keeps the list of it must be the same one in all files.

require "spec.support.inside"

-- A sanitizer's runtime that scripts/test loads before LuaJIT is for this process and its forks alone: what specs build or
-- start brings its own. SLUICE_SANITIZER says which it is.
local stdlib = require "posix.stdlib"
local preloaded = os.getenv("LD_PRELOAD") or ""
stdlib.setenv("SLUICE_SANITIZER", preloaded:find("libtsan", 1, true) and "thread" or preloaded:find("libasan", 1, true) and "address" or nil)
stdlib.setenv("LD_PRELOAD", nil)
