/* Empty: LuaJIT's ffi knows these types. */
