local ffi = require "ffi"
local inside = require "spec.support.inside"
local control = require "spec.support.control"

describe("address", function()
   local C = control.open()

   local function resolve(address, seconds, cancelled)
      local list, count, err = ffi.new("slc_endpoint *[1]"), ffi.new("size_t[1]"), inside.error()
      local status = C.slc_address_resolve(address, 4711, C.slc_deadline_in(seconds or 10), cancelled, list, count, err)
      if status ~= 0 then
         return nil, inside.text(err), tonumber(status)
      end
      local texts, text = {}, ffi.new("char[80]")
      for i = 0, tonumber(count[0]) - 1 do
         C.slc_address_text(list[0] + i, text)
         texts[i + 1] = ffi.string(text)
      end
      C.slc_release(list[0])
      return texts
   end

   local good = {
      {"127.0.0.1", "127.0.0.1:4711"},
      {"0.0.0.0", "0.0.0.0:4711"},
      {"::1", "[::1]:4711"},
      {"[::1]", "[::1]:4711"},
      {"[fe80::2%lo]", "[fe80::2]:4711"},
      {"2001:db8::1", "[2001:db8::1]:4711"},
      {"::ffff:10.1.2.3", "10.1.2.3:4711"},
      {"[::]", "[::]:4711"},
   }
   for _, case in ipairs(good) do
      it("takes " .. case[1] .. " as it stands", function()
         assert.same({case[2]}, (resolve(case[1])))
      end)
   end

   it("looks names up", function()
      local found = resolve("localhost")
      assert.is_true(#found >= 1)
      for _, text in ipairs(found) do
         assert.is_true(text == "127.0.0.1:4711" or text == "[::1]:4711")
      end
   end)

   local bad = {
      {"", "rendezvous: address must not be empty"},
      {"[::1", 'rendezvous: address "[::1" has a bracket without its partner'},
      {"::1]", 'rendezvous: address "::1]" has a bracket without its partner'},
      {"[", 'rendezvous: address "[" has a bracket without its partner'},
      {"[]", 'rendezvous: address "[]" must hold an IPv6 address in its brackets'},
      {"[127.0.0.1]", 'rendezvous: address "[127.0.0.1]" must hold an IPv6 address in its brackets'},
      {"[localhost]", 'rendezvous: address "[localhost]" must hold an IPv6 address in its brackets'},
      {"1:2", 'rendezvous: address "1:2" does not resolve: Name or service not known'},
      {("a"):rep(256), "rendezvous: address must be at most 255 bytes long"},
   }
   for _, case in ipairs(bad) do
      it(("refuses %q"):format(case[1]:sub(1, 20)), function()
         local found, text, status = resolve(case[1])
         assert.is_nil(found)
         assert.equal(case[2], text)
         assert.equal(control.status.invalid, status)
      end)
   end

   it("says at once that a name does not resolve", function()
      local found, text, status = resolve("no-such-host.invalid")
      assert.is_nil(found)
      assert.matches('^rendezvous: address "no%-such%-host%.invalid" does not resolve: ', text)
      assert.equal(control.status.invalid, status)
   end)

   it("ends a look-up that is cancelled, or beyond its deadline, whatever the name server does", function()
      -- Either the answer was there before the wait was looked at, or the wait ended: never anything else.
      local cancelled = ffi.new("bool[1]", true)
      for _, outcome in ipairs({{resolve("no-such-host.invalid", 10, cancelled)}, {resolve("no-such-host.invalid", 0)}}) do
         assert.is_nil(outcome[1])
         local text = outcome[2]
         assert.is_true(text:find("does not resolve", 1, true) ~= nil or text == 'rendezvous: cancelled while looking up "no-such-host.invalid"'
                        or text == 'rendezvous: the look-up of "no-such-host.invalid" took longer than 0 s', text)
      end
   end)
end)
