--- JSON from outside: what is JSON, what is not, and that neither hurts.

local script = require "spec.support.script"

describe("JSON (#5.1)", function()
   local state = script.new()

   -- Through init info, which asks for an object, and through the host's description, which is any object.
   local function message(text)
      local result = state:read_init_info(text)
      assert.is_false(result.ok)
      return result.text
   end

   local bad = {
      { "", "JSON byte 0 (the end) must be a value" },
      { " ", "JSON byte 1 (the end) must be a value" },
      { "{", "JSON byte 1 (the end) must be a key in quotes" },
      { "[", "JSON byte 1 (the end) must be a value" },
      { "[1", "JSON byte 2 (the end) must be a comma or ]" },
      { "[1,]", "JSON byte 3 (]) must be a value" },
      { "[1 2]", "JSON byte 3 (2) must be a comma or ]" },
      { '{"a"}', "JSON byte 4 (}) must be a colon" },
      { '{"a":}', "JSON byte 5 (}) must be a value" },
      { '{"a":1,}', "JSON byte 7 (}) must be a key in quotes" },
      { '{"a":1 "b":2}', 'JSON byte 7 (") must be a comma or }' },
      { "{a:1}", "JSON byte 1 (a) must be a key in quotes" },
      { "{'a':1}", "JSON byte 1 (') must be a key in quotes" },
      { "nul", "JSON byte 0 (n) must be a value" },
      { "NaN", "JSON byte 0 (N) must be a value" },
      { "Infinity", "JSON byte 0 (I) must be a value" },
      { "-Infinity", "JSON byte 0 (-) must be a number as JSON writes it" },
      { "+1", "JSON byte 0 (+) must be a value" },
      { "01", "JSON byte 0 (0) must be a number as JSON writes it" },
      { "-", "JSON byte 0 (-) must be a number as JSON writes it" },
      { "1.", "JSON byte 0 (1) must be a number as JSON writes it" },
      { ".5", "JSON byte 0 (.) must be a value" },
      { "1e", "JSON byte 0 (1) must be a number as JSON writes it" },
      { "1e+", "JSON byte 0 (1) must be a number as JSON writes it" },
      { "0x10", "JSON byte 1 (x) must be the end of the text" },
      { "1 1", "JSON byte 2 (1) must be the end of the text" },
      { "{}\0", "JSON byte 2 (code 0) must be the end of the text" },
      { "[] // no", "JSON byte 3 (/) must be the end of the text" },
      { '"a', "JSON byte 2 (the end) must be the rest of a string" },
      { '"a\\', "JSON byte 3 (the end) must be an escape that JSON knows" },
      { '"\\x41"', "JSON byte 2 (x) must be an escape that JSON knows" },
      { '"\\u12"', "JSON byte 2 (u) must be an escape that JSON knows" },
      { '"\\u12g4"', "JSON byte 2 (u) must be an escape that JSON knows" },
      { '"\\ud83d"', "JSON byte 2 (u) must be the first of a pair of surrogates" },
      { '"\\ud83d\\u0041"', "JSON byte 2 (u) must be the first of a pair of surrogates" },
      { '"\\ude00"', "JSON byte 2 (u) must be the first of a pair of surrogates" },
      { '"a\nb"', "JSON byte 2 (code 10) must not be a control character inside a string" },
      { '"a\0b"', "JSON byte 2 (code 0) must not be a control character inside a string" },
      { '"\255"', "JSON byte 1 (code 255) must be valid UTF-8" },
      { '"\192\128"', "JSON byte 1 (code 192) must be valid UTF-8" },
      { '"\237\160\128"', "JSON byte 1 (code 237) must be valid UTF-8" },
      { '"\244\144\128\128"', "JSON byte 1 (code 244) must be valid UTF-8" },
      { '"\195"', "JSON byte 1 (code 195) must be valid UTF-8" },
      { '"\240\159\152', "JSON byte 1 (code 240) must be valid UTF-8" },
      { "\239\187\191{}", "JSON byte 0 (code 239) must be a value" },
      { ("["):rep(100000), "JSON byte 32 ([) must not nest more than 32 deep" },
      { ('{"a":'):rep(100000), "JSON byte 160 ({) must not nest more than 32 deep" },
   }
   for _, case in ipairs(bad) do
      it(("is not %q"):format(#case[1] > 30 and case[1]:sub(1, 30) .. "..." or case[1]), function()
         assert.equal("init: " .. case[2], message(case[1]))
      end)
   end

   it("that is no object is refused as init info", function()
      assert.equal("init: the text (empty) must be an object with the fields of an init info", message("[]"))
      assert.equal("init: the text (empty) must be an object with the fields of an init info", message("{}"))
      assert.equal("init: the text ([1]) must be an object", message("[1]"))
      assert.equal("init: the text (null) must be an object", message("null"))
      assert.equal('init: the text ("x") must be an object', message('"x"'))
   end)

   local odd = {
      { "1.5", "1.5" }, { "1.0", "1.0" }, { "1e3", "1e3" }, { "1e999", "1e999" }, { "-1e999", "-1e999" }, { "-0", "-0" },
      { "9007199254740993", "9007199254740993" }, { "-9007199254740993", "-9007199254740993" },
      { "9007199254740994", "9007199254740994" }, { "9223372036854775808", "9223372036854775808" }, { "-9007199254740994", "-9007199254740994" },
      { ("9"):rep(5000), ("9"):rep(64) .. "..." }, { "0.0", "0.0" },
   }
   for _, case in ipairs(odd) do
      it(("number %s is no integer of init info"):format(case[1]:sub(1, 30)), function()
         local json = '{"master_address":"a","master_port":1,"rank_offset":1,"world_size":2,"params":[{"shape":[1,' .. case[1] .. "]}]}"
         local result = state:read_init_info(json)
         assert.equal(("init: params[0].shape[1] (%s) must be an integer of at most 2^53 in size"):format(case[2]), result.text)
         assert.is_true(result.met)
      end)
   end

   it("2^53 is an integer of init info", function()
      local result = state:read_init_info('{"master_address":"a","master_port":1,"rank_offset":1,"world_size":2,"x":9007199254740992,'
         .. '"y":-9007199254740992,"schema_version":2}')
      assert.truthy(result.text:find("unknown: x, y", 1, true))
   end)

   it("is taken from any cut of a text without harm", function()
      local text = '{"a":[1,-2.5e3,"x\\u00e9\\ud83d\\ude00",true,false,null,{"b":{}}]} '
      for length = 0, #text do
         message(text:sub(1, length))
      end
   end)

   it("is taken from random bytes without harm", function()
      local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time()
      math.randomseed(seed)
      local text = '{"master_address":"::1","master_port":29500,"params":[{"name":"w\\u00e9","shape":[1,2]}],"x":[true,null,-1]}'
      for case = 1, 20000 do
         local bytes = { text:byte(1, -1) }
         for _ = 1, math.random(4) do
            bytes[math.random(#bytes)] = math.random(0, 255)
         end
         local result = state:read_init_info(string.char(unpack(bytes)))
         assert.is_false(result.ok, ("seed %d case %d"):format(seed, case))
      end
   end)

   it("of a hundred million bytes of nothing ends in an error within the memory bound", function()
      local result = state:read_init_info("[" .. ("[],"):rep(2 ^ 24) .. "[]]")
      assert.is_false(result.ok)
      assert.truthy(result.text == "init: the text ([[...], [...], [...], [...], [...], [...], [...], [...], ...]) must be an object"
         or result.text:find("^init: out of memory in the script"), result.text)
      assert.equal("init: JSON byte 0 (the end) must be a value", message(""))
   end)
end)
