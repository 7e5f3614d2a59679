--- Init info: every rule of the contract with its exact message, the digests, hostile JSON. Random cases; replay with
-- SLUICE_SEED=n.

local ffi = require "ffi"
local files = require "scripts.files"
local shell = require "scripts.shell"
local resolving = require "spec.support.resolving"
local script = require "spec.support.script"

local C = script.C
local DIGEST = ("0"):rep(64)

-- ---- writing init info ----

local function quote(value)
   if type(value) == "table" then
      local items = {}
      if #value > 0 or next(value) == nil then
         for i, item in ipairs(value) do
            items[i] = quote(item)
         end
         return "[" .. table.concat(items, ",") .. "]"
      end
      for key, item in pairs(value) do
         items[#items + 1] = '"' .. key .. '":' .. quote(item)
      end
      table.sort(items)
      return "{" .. table.concat(items, ",") .. "}"
   end
   return tostring(value)
end

-- Values are JSON already; `changes` replaces or, with false, drops a key.
local function object(base, changes)
   local merged = {}
   for key, value in pairs(base) do
      merged[key] = value
   end
   for key, value in pairs(changes or {}) do
      merged[key] = value or nil
   end
   return quote(merged)
end

local SEED = {
   schema_version = "2", master_address = '"127.0.0.1"', master_port = "29500", rank_offset = "2", world_size = "4",
   dst_mesh_dims = "[1,2]", source_digest = '"' .. DIGEST .. '"', params = "[]",
}
local SEED_PARAM = {
   name = '"w"', dtype_name = '"float32"', shape = "[8,4]", src_mesh_dims = "[2,1]", src_placements = "[0,-1]",
}
local GENERAL = {
   schema = '"sluice/1"', master_address = '"127.0.0.1"', master_port = "29500", rank_offset = "4", world_size = "8",
   source_digest = '"' .. DIGEST .. '"', params = "[]",
   src_meshes = '[{"name":"dense","axes":[["pp",2],["tp",2]]},{"name":"expert","axes":[["ep",4]]}]',
   dst_meshes = '[{"name":"dense","axes":[["dp",1],["tp",4]]}]',
}
local GENERAL_PARAM = {
   name = '"w"', dtype_name = '"float32"', shape = "[8,4]", src_mesh = '"dense"', src_placements = '[{"axis":"tp","shard":0}]',
}

describe("init info", function()
   local state = script.new()

   local function read(json)
      return state:read_init_info(json)
   end

   local function refuses(json, text)
      local result = read(json)
      assert.equal(text, result.text)
      assert.is_false(result.ok)
      assert.equal(1, result.status)
      assert.is_nil(result.plan)
      return result
   end

   -- ---- where to meet ----

   describe("says where to meet:", function()
      local good = {
         { '"127.0.0.1"', "127.0.0.1" }, { '"::1"', "::1" }, { '"[::1]"', "::1" }, { '"[fe80::1%eth0]"', "fe80::1%eth0" },
         { '"node-7.cluster.local"', "node-7.cluster.local" }, { '"localhost"', "localhost" }, { '"host.name."', "host.name." },
         { '"a_b"', "a_b" },
      }
      for _, case in ipairs(good) do
         it(("address %s #1.1"):format(case[1]), function()
            local result = read(object(SEED, { master_address = case[1] }))
            assert.equal("", result.text)
            assert.equal(case[2], ffi.string(result.info.address))
            assert.equal(29500, result.info.port)
            assert.equal(2, result.info.trainers)
            assert.equal(4, result.info.world_size)
            assert.is_true(result.met)
         end)
      end

      local RULE = "must be a host name, an IPv4 address or an IPv6 address, which may stand in brackets"
      local bad = {
         { '""', '""' }, { "7", "7" }, { "null", "null" }, { "true", "true" }, { '"1.2.3"', '"1.2.3"' },
         { '"999.1.1.1"', '"999.1.1.1"' }, { '"[127.0.0.1]"', '"[127.0.0.1]"' }, { '"[::1"', '"[::1"' }, { '"::1]"', '"::1]"' },
         { '"a b"', '"a b"' }, { '"a/b"', '"a/b"' }, { '"1:2"', '"1:2"' }, { '"-a"', '"-a"' }, { '"a..b"', '"a..b"' },
         { '"a\\u0000b"', '"a\\0b"' }, { '"' .. ("x"):rep(64) .. '"', '"' .. ("x"):rep(60) .. '..."' }, { "[1,2]", "[1, 2]" },
      }
      for _, case in ipairs(bad) do
         it(("no address in %s #1.1"):format(case[1]), function()
            local result = refuses(object(SEED, { master_address = case[1] }), ("init: master_address (%s) %s"):format(case[2], RULE))
            assert.is_false(result.met)
         end)
      end

      it("no address at all #1.1", function()
         refuses(object(SEED, { master_address = false }), "init: master_address (missing) " .. RULE)
      end)

      local integers = {
         { "master_port", "1 to 65535", { "0", "65536", "-1", "1.5", "true", '"80"', "null", "[80]" }, "#1.2" },
         { "rank_offset", "1 to 2147483647", { "0", "-1", "1.5", "false", "2147483648" }, "#1.3" },
         { "world_size", "1 to 2147483647", { "0", "true", "4294967296" }, "#1.3" },
      }
      for _, case in ipairs(integers) do
         for _, value in ipairs(case[3]) do
            it(("%s %s %s"):format(case[1], value, case[4]), function()
               local result = refuses(object(SEED, { [case[1]] = value }),
                  ("init: %s (%s) must be an integer from %s"):format(case[1], value, case[2]))
               assert.is_false(result.met)
            end)
         end
         it(("%s missing %s"):format(case[1], case[4]), function()
            refuses(object(SEED, { [case[1]] = false }), ("init: %s (missing) must be an integer from %s"):format(case[1], case[2]))
         end)
      end

      it("there must be a worker #1.3", function()
         refuses(object(SEED, { world_size = "2" }), "init: rank_offset (2) must be below world_size (2)")
      end)

      it("and is met even when the rest is wrong", function()
         assert.is_true(refuses(object(SEED, { params = "7" }), "init: params (7) must be a list").met)
         assert.is_true(refuses(object(SEED, { params = "[1e999]" }),
            "init: params[0] (1e999) must be an integer of at most 2^53 in size").met)
         assert.is_true(refuses(object(SEED, { schema_version = "3" }), 'init: schema_version (3) must be a schema that this '
            .. 'version knows; known are "schema_version": 2 and "schema": "sluice/1"').met)
      end)
   end)

   -- ---- keys and common fields ----

   describe("in the seed's form refuses", function()
      local KEYS = "source_digest, schema_version, master_address, master_port, rank_offset, world_size, dst_mesh_dims, params"
      local SEALS = "; sluice_seal_init_info fills it in"
      local PARAM = "name, dtype_name, shape, src_mesh_dims, src_placements and may have allow_full_fallback"
      local KNOWN = 'must be a schema that this version knows; known are "schema_version": 2 and "schema": "sluice/1"'
      local top = {
         { "an unknown schema #1.15", { schema = '"sluice/9"', schema_version = false }, 'schema ("sluice/9") ' .. KNOWN },
         { "no schema #1.15", { schema_version = false }, "schema_version (missing) " .. KNOWN },
         { "both schemas #1.15", { schema = '"sluice/1"' }, 'schema ("sluice/1") must not stand beside schema_version' },
         { "a missing key #1.18", { dst_mesh_dims = false }, "the text (missing: dst_mesh_dims; unknown: none) must have the keys " .. KEYS
            .. " and may have nccl_unique_id_b64, max_cta" },
         { "unknown keys #1.18", { zz = "1", extra = "2" }, "the text (missing: none; unknown: extra, zz) must have the keys " .. KEYS
            .. " and may have nccl_unique_id_b64, max_cta" },
         { "a missing and an unknown key #1.18", { source_digest = false, digest = '"x"' },
            "the text (missing: source_digest; unknown: digest) must have the keys " .. KEYS .. " and may have nccl_unique_id_b64, max_cta" },
         { "what is not sealed", { source_digest = false }, "source_digest (missing) must be that of params" .. SEALS },
         { "what is sealed with null", { source_digest = "null" }, "source_digest (null) must be 64 lower-case hex digits" .. SEALS },
         { "a digest that is none #1.10", { source_digest = '"abc"' }, 'source_digest ("abc") must be 64 lower-case hex digits' .. SEALS },
         { "a digest in upper case", { source_digest = '"' .. ("A"):rep(64) .. '"' },
            'source_digest ("' .. ("A"):rep(60) .. '...") must be 64 lower-case hex digits' .. SEALS },
         { "params that are an object #1.5", { params = '{"a":1}' }, "params (an object) must be a list" },
         { "params null", { params = "null" }, "params (null) must be a list" },
         { "params of an empty object", { params = "{}" }, "params ({}) must not be empty" },
         { "a max_cta of 0 #1.12", { max_cta = "0" }, "max_cta (0) must be an integer from 1 to 2147483647" },
         { "a max_cta that is true #1.12", { max_cta = "true" }, "max_cta (true) must be an integer from 1 to 2147483647" },
         { "a destination mesh of another size #1.4", { dst_mesh_dims = "[2,2]" },
            "dst_mesh_dims ([2, 2]) must be two integers of at least 1 whose product is world_size - rank_offset (2)" },
         { "a destination mesh of one axis #1.4", { dst_mesh_dims = "[2]" },
            "dst_mesh_dims ([2]) must be two integers of at least 1 whose product is world_size - rank_offset (2)" },
         { "a negative destination mesh #1.4", { dst_mesh_dims = "[-1,-2]" },
            "dst_mesh_dims ([-1, -2]) must be two integers of at least 1 whose product is world_size - rank_offset (2)" },
         { "a param that is no object #1.5", { params = "[7]" }, "params[0] (7) must be an object" },
         { "a param that is a list", { params = "[[]]" }, "params[0] ([]) must be an object" },
      }
      for _, case in ipairs(top) do
         it(case[1], function()
            refuses(object(SEED, case[2]), "init: " .. case[3])
         end)
      end

      local MESH = "must be two integers of at least 1 whose product is rank_offset (2)"
      local CODES = "must be null or two codes, one of them -1 and the other a dim of the shape"
      local TEXT = "must be a text of at least one character and no zero character"
      local params = {
         { "a missing key #1.5", { shape = false }, " (missing: shape; unknown: none) must have the keys " .. PARAM },
         { "an unknown key #1.5", { sharding = "1" }, " (missing: none; unknown: sharding) must have the keys " .. PARAM },
         { "a misspelt key #1.5", { shape = false, shpe = "[1]" }, " (missing: shape; unknown: shpe) must have the keys " .. PARAM },
         { "an empty name #1.6", { name = '""' }, '.name ("") ' .. TEXT },
         { "a name that is a number", { name = "5" }, ".name (5) " .. TEXT },
         { "a name with a zero character", { name = '"a\\u0000b"' }, '.name ("a\\0b") ' .. TEXT },
         { "an unknown dtype #1.6", { dtype_name = '"torch.float32"' }, '.dtype_name ("torch.float32") must be one of bfloat16, bool, '
            .. "float16, float32, float4_e2m1fn_x2, float64, float8_e4m3fn, float8_e5m2, float8_e8m0fnu, int16, int32, int64, int8, "
            .. "uint16, uint32, uint64, uint8" },
         { "an empty dtype #1.6", { dtype_name = '""' }, '.dtype_name ("") ' .. TEXT },
         { "a shape that is no list", { shape = "8" }, ".shape (8) must be a list of 1 to 8 integers" },
         { "an empty shape", { shape = "[]" }, ".shape ([]) must be a list of 1 to 8 integers" },
         { "nine dims", { shape = "[1,1,1,1,1,1,1,1,1]" }, ".shape ([1, 1, 1, 1, 1, 1, 1, 1, ...]) must be a list of 1 to 8 integers" },
         { "an extent of 0 #1.7", { shape = "[8,0]" }, ".shape[1] (0) must be at least 1" },
         { "a negative extent #1.7", { shape = "[-8,4]" }, ".shape[0] (-8) must be at least 1" },
         { "an extent that is true #1.7", { shape = "[8,true]" }, ".shape[1] (true) must be an integer" },
         { "an extent that is a text", { shape = '[8,"4"]' }, '.shape[1] ("4") must be an integer' },
         { "an extent that is null", { shape = "[8,null]" }, ".shape[1] (null) must be an integer" },
         { "a tensor that is too large", { shape = "[9007199254740992,4096]" },
            ".shape ([9007199254740992, 4096]) must make a tensor of fewer than 2^62 bytes" },
         { "a mesh of another size #1.8", { src_mesh_dims = "[2,2]" }, ".src_mesh_dims ([2, 2]) " .. MESH },
         { "a mesh that is no list", { src_mesh_dims = "2" }, ".src_mesh_dims (2) " .. MESH },
         { "a mesh of three axes", { src_mesh_dims = "[1,1,2]" }, ".src_mesh_dims ([1, 1, 2]) " .. MESH },
         { "a mesh with a 0 #1.8", { src_mesh_dims = "[0,2]" }, ".src_mesh_dims ([0, 2]) " .. MESH },
         { "two replicating codes #1.9", { src_placements = "[-1,-1]" }, ".src_placements ([-1, -1]) " .. CODES },
         { "two sharding codes #1.9", { src_placements = "[0,1]" }, ".src_placements ([0, 1]) " .. CODES },
         { "one code", { src_placements = "[0]" }, ".src_placements ([0]) " .. CODES },
         { "a dim that is not there #1.9", { src_placements = "[2,-1]" }, ".src_placements ([2, -1]) " .. CODES },
         { "a code of -2", { src_placements = "[-2,0]" }, ".src_placements ([-2, 0]) " .. CODES },
         { "codes that are a text", { src_placements = '"-1,0"' }, '.src_placements ("-1,0") ' .. CODES },
         { "a dim that does not divide #1.9", { shape = "[7,4]" },
            ".src_placements ([0, -1]) must shard a dim that divides evenly; dim 0 of shape [7, 4] does not divide by 2" },
         { "allow_full_fallback 1", { allow_full_fallback = "1" }, ".allow_full_fallback (1) must be true or false" },
         { "allow_full_fallback null", { allow_full_fallback = "null" }, ".allow_full_fallback (null) must be true or false" },
      }
      for _, case in ipairs(params) do
         it(case[1] .. " in a param", function()
            local param = object(SEED_PARAM, case[2])
            refuses(object(SEED, { params = "[" .. object(SEED_PARAM, { name = '"other"' }) .. "," .. param .. "]" }),
               "init: params[1]" .. case[3])
         end)
      end

      it("two params of one name #1.6", function()
         refuses(object(SEED, { params = ("[%s,%s]"):format(object(SEED_PARAM), object(SEED_PARAM)) }),
            'init: params[1].name ("w") must be no other parameter\'s name; params[0] has it')
      end)
   end)

   -- ---- the unique id ----

   describe("takes a unique id", function()
      local GOOD = ("AQID"):rep(42) .. "BAU="

      it("of exactly 128 bytes #1.11", function()
         local result = read(object(SEED, { nccl_unique_id_b64 = '"' .. GOOD .. '"', max_cta = "16" }))
         assert.equal("", result.text)
         assert.is_true(result.info.has_unique_id)
         assert.equal(1, result.info.unique_id[0])
         assert.equal(3, result.info.unique_id[125])
         assert.equal(5, result.info.unique_id[127])
         assert.equal(16, result.info.max_cta)
      end)

      it("or none", function()
         local result = read(object(SEED))
         assert.is_false(result.info.has_unique_id)
         assert.equal(0, result.info.max_cta)
      end)

      local bad = {
         short = '"' .. ("AQID"):rep(42) .. '"', long = '"' .. ("AQID"):rep(43) .. '"', letter = '"' .. ("AQI*"):rep(42) .. 'BAU="',
         ending = '"' .. ("AQID"):rep(42) .. 'BAV="', number = "128", null = "null", list = '["' .. GOOD .. '"]', empty = '""',
         zero = '"\\u0000' .. GOOD:sub(2) .. '"', padding = '"' .. ("AQID"):rep(42) .. 'BA=="',
      }
      for name, value in pairs(bad) do
         it(("and says nothing of a wrong one (%s) #1.11"):format(name), function()
            refuses(object(SEED, { nccl_unique_id_b64 = value }),
               "init: nccl_unique_id_b64 (not shown) must be base64 of exactly 128 bytes")
         end)
      end

      it("and shows it in no other error #1.11", function()
         local secret = ("AQIDBAUG"):rep(21) .. "BAU="
         for _, changes in ipairs({ { params = "[1]" }, { master_port = "0" }, { zz = "1" }, { params = "[1.5]" } }) do
            changes.nccl_unique_id_b64 = '"' .. secret .. '"'
            local result = read(object(SEED, changes))
            assert.is_false(result.ok)
            assert.is_nil(result.text:find("AQIDBAUG", 1, true))
         end
         local cut = object(SEED, { nccl_unique_id_b64 = '"' .. secret .. '"' })
         for length = 1, #cut - 1 do
            assert.is_nil(read(cut:sub(1, length)).text:find("AQIDBAUG", 1, true))
         end
      end)
   end)

   -- ---- the general form ----

   describe("in the general form (#1.13) refuses", function()
      local KEYS = "source_digest, schema, master_address, master_port, rank_offset, world_size, src_meshes, dst_meshes, params"
      local top = {
         { "a missing key", { dst_meshes = false }, "the text (missing: dst_meshes; unknown: none) must have the keys " .. KEYS
            .. " and may have nccl_unique_id_b64, max_cta" },
         { "no mesh", { src_meshes = "[]" }, "src_meshes ([]) must be a list of at least one mesh" },
         { "a mesh that is no object", { src_meshes = "[4]" }, "src_meshes[0] (4) must be an object" },
         { "a mesh without axes", { src_meshes = '[{"name":"a"}]' },
            "src_meshes[0] (missing: axes; unknown: none) must have the keys name, axes" },
         { "a mesh name that is a number", { src_meshes = '[{"name":1,"axes":[["a",4]]}]' },
            "src_meshes[0].name (1) must be a text without zero characters" },
         { "two meshes of one name", { dst_meshes = '[{"name":"a","axes":[["a",4]]},{"name":"a","axes":[["b",4]]}]' },
            'dst_meshes[1].name ("a") must be no other mesh\'s name' },
         { "no axes", { src_meshes = '[{"name":"a","axes":[]}]' },
            "src_meshes[0].axes ([]) must be a list of 1 to 8 pairs [name, size]" },
         { "nine axes", { src_meshes = '[{"name":"a","axes":[' .. ('["a",1],'):rep(8) .. '["a",1]]}]' },
            "src_meshes[0].axes ([[...], [...], [...], [...], [...], [...], [...], [...], ...]) must be a list of 1 to 8 pairs [name, size]" },
         { "an axis that is no pair", { src_meshes = '[{"name":"a","axes":[["a"]]}]' },
            'src_meshes[0].axes[0] (["a"]) must be a pair [name, size] with a size of at least 1' },
         { "an axis of size 0", { src_meshes = '[{"name":"a","axes":[["a",0]]}]' },
            'src_meshes[0].axes[0] (["a", 0]) must be a pair [name, size] with a size of at least 1' },
         { "an axis without a name", { src_meshes = '[{"name":"a","axes":[["",4]]}]' },
            'src_meshes[0].axes[0] (["", 4]) must be a pair [name, size] with a size of at least 1' },
         { "an axis twice", { src_meshes = '[{"name":"a","axes":[["x",2],["x",2]]}]' },
            'src_meshes[0].axes[1] (["x", 2]) must not repeat an axis name' },
         { "a mesh of another size", { src_meshes = '[{"name":"a","axes":[["x",3]]}]' },
            "src_meshes[0].axes ([[...]]) must have sizes whose product is rank_offset (4), not 3" },
         { "a mesh of many ranks", { dst_meshes = '[{"name":"a","axes":[["x",2147483647],["y",2147483647],["z",2147483647]]}]' },
            "dst_meshes[0].axes ([[...], [...], [...]]) must have sizes whose product is world_size - rank_offset (4), not "
            .. ("%.14g"):format(2147483647 ^ 3) },
      }
      for _, case in ipairs(top) do
         it(case[1], function()
            refuses(object(GENERAL, case[2]), "init: " .. case[3])
         end)
      end

      local AT = ".src_placements[0]"
      local params = {
         { "no mesh named where there are two", { src_mesh = false }, ".src_mesh (missing) must name one of src_meshes where there are several" },
         { "an unknown mesh", { src_mesh = '"dens"' }, '.src_mesh ("dens") must name one of src_meshes' },
         { "placements that are no list", { src_placements = "0" }, ".src_placements (0) must be null or a list of placements" },
         { "a placement that is no object", { src_placements = "[0]" }, AT .. " (0) must be an object" },
         { "a placement without an axis", { src_placements = '[{"shard":0}]' }, AT .. '.axis (missing) must be an axis of mesh "dense"' },
         { "an axis of another mesh", { src_placements = '[{"axis":"ep","shard":0}]' },
            AT .. '.axis ("ep") must be an axis of mesh "dense"' },
         { "an axis twice", { src_placements = '[{"axis":"tp","shard":0},{"axis":"tp","shard":1}]' },
            '.src_placements[1].axis ("tp") must not be placed twice' },
         { "neither shard nor pin", { src_placements = '[{"axis":"tp"}]' },
            AT .. " (missing: shard; unknown: none) must have the keys axis, shard and may have chunk, split, parts" },
         { "shard and pin", { src_placements = '[{"axis":"tp","shard":0,"pin":0}]' },
            AT .. " (missing: none; unknown: shard) must have the keys axis, pin" },
         { "a dim that is not there", { src_placements = '[{"axis":"tp","shard":2}]' }, AT .. ".shard (2) must be a dim of shape [8, 4]" },
         { "a dim of -1", { src_placements = '[{"axis":"tp","shard":-1}]' }, AT .. ".shard (-1) must be a dim of shape [8, 4]" },
         { "parts that do not divide", { src_placements = '[{"axis":"tp","shard":0,"parts":3}]' },
            AT .. ".parts (3) must divide the axis' size (2)" },
         { "parts of 0", { src_placements = '[{"axis":"tp","shard":0,"parts":0}]' }, AT .. ".parts (0) must divide the axis' size (2)" },
         { "chunk and split", { src_placements = '[{"axis":"tp","shard":0,"chunk":4,"split":"ceil"}]' },
            AT .. '.split ("ceil") must not stand beside chunk' },
         { "an unknown split", { src_placements = '[{"axis":"tp","shard":0,"split":"floor"}]' },
            AT .. '.split ("floor") must be "ceil" or "balanced"' },
         { "a chunk of 0", { src_placements = '[{"axis":"tp","shard":0,"chunk":0}]' }, AT .. ".chunk (0) must be an integer of at least 1" },
         { "a chunk that does not reach the end", { src_placements = '[{"axis":"tp","shard":0,"chunk":3}]' },
            AT .. ".chunk (3) must be large enough for 2 pieces to hold 8" },
         { "a pin outside the axis", { src_placements = '[{"axis":"pp","pin":2}]' }, AT .. ".pin (2) must be a coordinate from 0 to 1" },
         { "a pin that is true", { src_placements = '[{"axis":"pp","pin":true}]' }, AT .. ".pin (true) must be a coordinate from 0 to 1" },
         { "a shard of a scalar", { shape = "[]" }, AT .. ".shard (0) must be a dim of shape []" },
         { "the seed's mesh", { src_mesh_dims = "[2,2]" }, " (missing: none; unknown: src_mesh_dims) must have the keys name, dtype_name, "
            .. "shape, src_placements and may have src_mesh, allow_full_fallback" },
      }
      for _, case in ipairs(params) do
         it(case[1] .. " in a param", function()
            refuses(object(GENERAL, { params = "[" .. object(GENERAL_PARAM, case[2]) .. "]" }), "init: params[0]" .. case[3])
         end)
      end

      it("a chunk that fits the first of two tensors and not the second", function()
         local placements = '[{"axis":"tp","shard":0,"chunk":4}]'
         refuses(object(GENERAL, { params = ("[%s,%s]"):format(object(GENERAL_PARAM, { src_placements = placements }),
            object(GENERAL_PARAM, { name = '"v"', shape = "[9,4]", src_placements = placements })) }),
            "init: params[1].src_placements[0].chunk (4) must be large enough for 2 pieces to hold 9")
      end)
   end)

   -- ---- what comes out ----

   describe("becomes a plan:", function()
      it("the seed's form", function()
         local plan = read(object(SEED, { params = ("[%s,%s]"):format(object(SEED_PARAM),
            object(SEED_PARAM, { name = '"v"', src_mesh_dims = "[1,2]", src_placements = "null", allow_full_fallback = "false" })) })).plan
         assert.equal(2, tonumber(C.slc_plan_count(plan)))
         local w, v = C.slc_plan_at(plan, 0), C.slc_plan_at(plan, 1)
         assert.equal("w", ffi.string(w.name))
         assert.equal("float32", ffi.string(w.dtype.name))
         assert.equal(2, w.ndim)
         assert.equal(8, tonumber(w.shape[0]))
         assert.equal("2x1", ffi.string(w.source.mesh.name))
         assert.equal(1, w.source.nplacements)
         assert.equal(0, w.source.placement[0].axis)
         assert.equal(0, w.source.placement[0].dim)
         assert.is_true(w.allow_full)
         assert.equal(0, v.source.nplacements)
         assert.is_false(v.allow_full)
         local mesh = C.slc_plan_mesh_at(plan, true, 0)
         assert.equal("dp", ffi.string(mesh.axis_name[0]))
         assert.equal("tp", ffi.string(mesh.axis_name[1]))
         assert.equal(2, mesh.first)
      end)

      it("the general form #1.13", function()
         local placements = '[{"axis":"pp","pin":1},{"axis":"tp","shard":1,"split":"balanced","parts":2}]'
         local result = read(object(GENERAL, { params = ("[%s,%s]"):format(object(GENERAL_PARAM, { src_placements = placements }),
            object(GENERAL_PARAM, { name = '"s"', shape = "[]", src_mesh = '"expert"', src_placements = "[]" })) }))
         assert.equal("", result.text)
         local w, s = C.slc_plan_at(result.plan, 0), C.slc_plan_at(result.plan, 1)
         assert.equal(2, w.source.nplacements)
         assert.equal(1, tonumber(w.source.placement[0].kind))
         assert.equal(1, w.source.placement[0].coordinate)
         assert.equal(1, w.source.placement[1].axis)
         assert.equal(1, tonumber(w.source.placement[1].split))
         assert.equal(0, s.ndim)
         assert.equal("expert", ffi.string(s.source.mesh.name))
      end)

      it("of two axes, the same in both forms #1.14", function()
         local seed = read(object(SEED, { params = ("[%s,%s]"):format(object(SEED_PARAM), object(SEED_PARAM, { name = '"v"',
            src_mesh_dims = "[1,2]", src_placements = "[-1,1]", allow_full_fallback = "false" })) })).plan
         local general = read(object(GENERAL, { rank_offset = "2", world_size = "4",
            src_meshes = '[{"name":"rows","axes":[["a",2],["b",1]]},{"name":"columns","axes":[["a",1],["b",2]]}]',
            dst_meshes = '[{"name":"w","axes":[["dp",1],["tp",2]]}]',
            params = ("[%s,%s]"):format(object(GENERAL_PARAM, { src_mesh = '"rows"', src_placements = '[{"axis":"a","shard":0}]' }),
               object(GENERAL_PARAM, { name = '"v"', src_mesh = '"columns"', src_placements = '[{"axis":"b","shard":1}]',
                  allow_full_fallback = "false" })) })).plan
         for i = 0, 1 do
            local one, other = C.slc_plan_at(seed, i), C.slc_plan_at(general, i)
            assert.equal(ffi.string(one.name), ffi.string(other.name))
            assert.equal(one.dtype, other.dtype)
            assert.equal(one.allow_full, other.allow_full)
            for rank = 0, 1 do
               assert.equal(resolving.source_box(one, rank), resolving.source_box(other, rank))
            end
         end
         assert.equal("[0,8)x[2,4)", resolving.source_box(C.slc_plan_at(seed, 1), 1))
      end)

      it("the mesh may stay out where there is one", function()
         local result = read(object(GENERAL, { src_meshes = '[{"name":"m","axes":[["tp",4]]}]',
            params = "[" .. object(GENERAL_PARAM, { src_mesh = false }) .. "]" }))
         assert.equal("", result.text)
      end)
   end)

   -- ---- digests ----

   local function digest(json)
      local result = read(json)
      assert.equal("", result.text)
      return ffi.string(result.info.computed_digest), result
   end

   describe("has the digest (#1.16)", function()
      local NORM = '{"name":"model.norm.weight","dtype_name":"bfloat16","shape":[4096],"src_mesh_dims":[2,1],"src_placements":[0,-1]}'
      local DOWN = '{"name":"model.layers.0.mlp.down_proj.weight","dtype_name":"bfloat16","shape":[4096,14336],'
         .. '"src_mesh_dims":[2,1],"src_placements":null}'

      local function written_out(text)
         return (text:gsub("}$", ',"allow_full_fallback":true}'))
      end

      local golden = {
         { "of no params", "", "0ca9b9afd90801b3b40b59a5133aa3e5fa26c856b5d972ddf365d99f9342eef9" },
         { "of two params", NORM .. "," .. DOWN, "2b3067fa503b6088712cae53602d17482eeac1c4f79908dfbebf1ab0822ed7de" },
         { "of the other order", DOWN .. "," .. NORM, "eef20d90bfcc56c90065369d1d2e14cd85cd1cd5b9f9302e6dac1692bf3d4ab4" },
         { "of a default written out", written_out(NORM) .. "," .. written_out(DOWN),
            "9cdd499da10a27da68d863d1f03441bc43a45179275cfaaad65fbe21802b4318" },
      }
      for _, case in ipairs(golden) do
         it(case[1], function()
            local computed, result = digest(object(SEED, { params = "[" .. case[2] .. "]" }))
            assert.equal(case[3], computed)
            assert.equal(DIGEST, ffi.string(result.info.told_digest))
         end)
      end

      it("of a name that is not ASCII #1.16", function()
         local param = object(SEED_PARAM, { name = '"w\195\169\240\159\152\128/x"', shape = "[1]", src_mesh_dims = "[1,1]",
                                            src_placements = "null" })
         local computed = digest(object(SEED, { rank_offset = "1", world_size = "3", params = "[" .. param .. "]" }))
         assert.equal("1b5dd541829f2dfa8848343db0a69ac378f2126f239d2835dfc3f16229eab706", computed)
         param = object(SEED_PARAM, { name = '"w\\u00e9\\ud83d\\ude00\\/x"', shape = "[1]", src_mesh_dims = "[1,1]",
                                      src_placements = "null" })
         computed = digest(object(SEED, { rank_offset = "1", world_size = "3", params = "[" .. param .. "]" }))
         assert.equal("1b5dd541829f2dfa8848343db0a69ac378f2126f239d2835dfc3f16229eab706", computed)
      end)

      it("whatever the spaces, the key order and the rest of the text #1.16", function()
         local expected = "2b3067fa503b6088712cae53602d17482eeac1c4f79908dfbebf1ab0822ed7de"
         local spaced = ("[" .. NORM .. "," .. DOWN .. "]"):gsub("([%[%],:{}])", "%1\n\t ")
         assert.equal(expected, (digest(object(SEED, { params = spaced, master_port = "1", dst_mesh_dims = "[2,1]" }))))
      end)
   end)

   -- Python is what other hosts compute the digest with.
   local function python(code, input)
      local source, data = os.tmpname(), os.tmpname()
      files.write(source, code)
      files.write(data, input)
      local text = shell(("python3 %s < %s"):format(source, data))
      os.remove(source)
      os.remove(data)
      return text
   end

   local HASH = [[
import sys, json, hashlib
for line in sys.stdin.buffer.read().split(b"\n"):
    if line:
        info = json.loads(line.decode())
        keys = ["params", "schema_version"] if "schema_version" in info else ["params", "schema", "src_meshes"]
        text = json.dumps({key: info[key] for key in keys}, sort_keys=True, separators=(",", ":"))
        print(hashlib.sha256(text.encode()).hexdigest())
]]

   local function random_name(number)
      local pieces = { ("%d"):format(number) }
      for _ = 1, math.random(12) do
         local choice = math.random(6)
         local code = choice == 1 and math.random(1, 0x1F) or choice == 2 and math.random(0x20, 0x7F)
            or choice == 3 and math.random(0x80, 0x7FF) or choice == 4 and math.random(0x800, 0xD7FF)
            or choice == 5 and math.random(0xE000, 0xFFFF) or math.random(0x10000, 0x10FFFF)
         if math.random(2) == 1 or code < 0x20 or code == 0x22 or code == 0x5C then
            if code >= 0x10000 then
               pieces[#pieces + 1] = ("\\u%04x\\u%04X"):format(0xD800 + math.floor((code - 0x10000) / 0x400), 0xDC00 + code % 0x400)
            else
               pieces[#pieces + 1] = ("\\u%04x"):format(code)
            end
         elseif code < 0x80 then
            pieces[#pieces + 1] = string.char(code)
         elseif code < 0x800 then
            pieces[#pieces + 1] = string.char(0xC0 + math.floor(code / 0x40), 0x80 + code % 0x40)
         elseif code < 0x10000 then
            pieces[#pieces + 1] = string.char(0xE0 + math.floor(code / 0x1000), 0x80 + math.floor(code / 0x40) % 0x40, 0x80 + code % 0x40)
         else
            pieces[#pieces + 1] = string.char(0xF0 + math.floor(code / 0x40000), 0x80 + math.floor(code / 0x1000) % 0x40,
               0x80 + math.floor(code / 0x40) % 0x40, 0x80 + code % 0x40)
         end
      end
      return '"' .. table.concat(pieces) .. '"'
   end

   it("has the digest that Python computes, also of random names #1.16", function()
      if os.execute("python3 -c '' 2>/dev/null") ~= 0 then
         return pending("python3 is not here to compare with")
      end
      local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time()
      math.randomseed(seed)
      local lines, mine = {}, {}
      for case = 1, 300 do
         local general = case % 2 == 0
         local params = {}
         for i = 1, math.random(0, 4) do
            params[i] = object(general and GENERAL_PARAM or SEED_PARAM, {
               name = random_name(i), allow_full_fallback = math.random(3) == 1 and "true" or false,
               src_placements = math.random(3) == 1 and "null" or nil,
            })
         end
         lines[case] = object(general and GENERAL or SEED, { params = "[" .. table.concat(params, ",") .. "]" })
         mine[case] = (digest(lines[case]))
      end
      local number = 0
      for theirs in python(HASH, table.concat(lines, "\n")):gmatch("%x+") do
         number = number + 1
         assert.equal(theirs, mine[number], ("seed %d case %d: %s"):format(seed, number, lines[number]))
      end
      assert.equal(#lines, number)
   end)

   -- ---- sealing ----

   describe("is sealed:", function()
      it("with the digest that a reader computes", function()
         local sealed = assert(state:seal(object(GENERAL, { source_digest = false, params = "[" .. object(GENERAL_PARAM) .. "]" })))
         local result = read(sealed)
         assert.equal("", result.text)
         assert.equal(ffi.string(result.info.computed_digest), ffi.string(result.info.told_digest))
      end)

      it("also when a digest is there that is none", function()
         local sealed = assert(state:seal(object(SEED, { source_digest = "7" })))
         assert.equal('{"dst_mesh_dims":[1,2],"master_address":"127.0.0.1","master_port":29500,"params":[],"rank_offset":2,'
            .. '"schema_version":2,"source_digest":"0ca9b9afd90801b3b40b59a5133aa3e5fa26c856b5d972ddf365d99f9342eef9","world_size":4}',
            sealed)
      end)

      it("not when something is wrong", function()
         local sealed, problem = state:seal(object(SEED, { params = "[7]" }))
         assert.is_nil(sealed)
         assert.equal("init: params[0] (7) must be an object", problem)
      end)
   end)
end)
