local ffi = require "ffi"
local files = require "scripts.files"
local inside = require "spec.support.inside"
local control = require "spec.support.control"
local fcntl = require "posix.fcntl"
local stat = require "posix.sys.stat"
local unistd = require "posix.unistd"

describe("key", function()
   local C = control.open()
   local status = control.status
   local paths = {}

   local function file(bytes, mode)
      local path = os.tmpname()
      paths[#paths + 1] = path
      files.write(path, bytes)
      assert(stat.chmod(path, mode or tonumber("600", 8)))
      return path
   end

   after_each(function()
      for _, path in ipairs(paths) do
         os.remove(path)
      end
      paths = {}
   end)

   local function read_with(call, what)
      local key, err = ffi.new("slc_key *[1]"), inside.error()
      local code = tonumber(call(what, key, err))
      if code ~= 0 then
         assert.is_true(key[0] == nil)
         return nil, code, inside.text(err)
      end
      return key[0]
   end

   local function read_file(path)
      return read_with(C.slc_key_read_file, path)
   end

   local function derived(key, info)
      local bytes = ffi.new("unsigned char[48]")
      assert.is_true(C.slc_key_derive(key, info, bytes, 48))
      return ffi.string(bytes, 48)
   end

   local function derived_from(bytes, info)
      local key = control.key(bytes)
      local result = derived(key, info)
      C.slc_key_destroy(key)
      return result
   end

   it("is taken from a file of its owner alone, byte for byte", function()
      for _, bytes in ipairs({("k"):rep(32), ("k\0\n"):rep(200), ("x"):rep(4096)}) do
         local key = read_file(file(bytes))
         assert.equal(derived_from(bytes, "a"), derived(key, "a"))
         C.slc_key_destroy(key)
      end
   end)

   it("is refused where others could read or write it, with the mode", function()
      for _, mode in ipairs({"640", "620", "604", "602", "644", "666"}) do
         local path = file(("k"):rep(32), tonumber(mode, 8))
         local text = ("create: key_file (%s) has mode 0%s; only its owner may read or write it (chmod 600)"):format(path, mode)
         assert.same({nil, status.invalid, text}, {read_file(path)})
      end
   end)

   it("is refused where it is another user's", function()
      local path = file(("k"):rep(32))
      if unistd.geteuid() ~= 0 then
         pending("only root can give a file to another user, and read it then")
         return
      end
      unistd.chown(path, 54321, -1)
      assert.same({nil, status.invalid, ("create: key_file (%s) belongs to user 54321; it must be of user 0, who runs this, or of root")
         :format(path)}, {read_file(path)})
   end)

   it("is refused when it is no file, is not there, or has a wrong length", function()
      assert.same({nil, status.invalid, "create: key_file (/dev/zero) must be a regular file"}, {read_file("/dev/zero")})
      assert.same({nil, status.invalid, "create: key_file (/) must be a regular file"}, {read_file("/")})
      assert.same({nil, status.system, "create: key_file (/nowhere/key) cannot be read: No such file or directory"}, {read_file("/nowhere/key")})
      local short, long = file(("s"):rep(31)), file(("l"):rep(4097))
      assert.same({nil, status.invalid, ("create: key_file (%s) has 31 bytes; a key must have 32 to 4096"):format(short)}, {read_file(short)})
      assert.same({nil, status.invalid, ("create: key_file (%s) has more than 4096 bytes; a key must have 32 to 4096"):format(long)},
                  {read_file(long)})
   end)

   it("is read from a pipe to its end, which closes it", function()
      local from, to = unistd.pipe()
      unistd.write(to, ("p"):rep(20))
      unistd.write(to, ("q"):rep(20))
      unistd.close(to)
      local key = read_with(C.slc_key_read_descriptor, from)
      assert.equal(derived_from(("p"):rep(20) .. ("q"):rep(20), "a"), derived(key, "a"))
      C.slc_key_destroy(key)
      assert.is_nil(unistd.read(from, 1))
   end)

   it("is read from a shared file from its beginning, by each that has the descriptor", function()
      local fd = fcntl.open(file(("f"):rep(40)), fcntl.O_RDONLY)
      for _ = 1, 2 do
         local key = read_with(C.slc_key_read_descriptor, unistd.dup(fd))
         assert.equal(derived_from(("f"):rep(40), "a"), derived(key, "a"))
         C.slc_key_destroy(key)
      end
      unistd.close(fd)
   end)

   it("is refused from a descriptor that holds too little or is none", function()
      local from, to = unistd.pipe()
      unistd.close(to)
      assert.same({nil, status.invalid, ("create: key_fd (%d) has 0 bytes; a key must have 32 to 4096"):format(from)},
                  {read_with(C.slc_key_read_descriptor, from)})
      assert.same({nil, status.system, "create: key_fd (987654) cannot be read: Bad file descriptor"},
                  {read_with(C.slc_key_read_descriptor, 987654)})
   end)

   it("gives each name a key of its own", function()
      local one = derived_from(("k"):rep(32), "sluice/1 rank 1 of 8")
      assert.equal(one, derived_from(("k"):rep(32), "sluice/1 rank 1 of 8"))
      assert.are_not.equal(one, derived_from(("k"):rep(32), "sluice/1 rank 2 of 8"))
      assert.are_not.equal(one, derived_from(("K"):rep(32), "sluice/1 rank 1 of 8"))
   end)

   it("lies in memory that no core dump shows, and is wiped when it goes", function()
      local key = control.key(("secret"):rep(10))
      local address = tonumber(ffi.cast("uintptr_t", key))
      local flags, inside_range
      for line in io.lines("/proc/self/smaps") do
         local from, to = line:match("^(%x+)%-(%x+) ")
         if from then
            inside_range = address >= tonumber(from, 16) and address < tonumber(to, 16)
         elseif inside_range then
            flags = flags or line:match("^VmFlags:(.*)")
         end
      end
      assert.matches(" dd ", flags .. " ", 1, true)
      C.slc_key_destroy(key)
      C.slc_key_destroy(nil)
   end)

   it("is read whole or not at all when there is no memory", function()
      local path = file(("k"):rep(32))
      C.slc_fail_allocation(1, false)
      local _, code, text = read_file(path)
      C.slc_fail_allocation(0, false)
      assert.equal(status.no_memory, code)
      assert.matches("^create: out of memory for a key", text)
   end)
end)
