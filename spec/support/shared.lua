--- Runs once before any spec file. Busted gives each file its own modules; what is declared to LuaJIT's ffi stays declared
-- for the whole process, so the module that keeps the list of it must be the same one in all files.

require "spec.support.inside"

-- A sanitizer's runtime that scripts/test loads before LuaJIT is for this process and its forks alone: what specs build or
-- start brings its own.
require("posix.stdlib").setenv("LD_PRELOAD", nil)
