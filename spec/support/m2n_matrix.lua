--- The functional matrix as data: what nccl_m2n's public tests cover, told in our words and rounded off to the full product of
-- what its documentation allows, and behind it what it cannot express. spec/support/matrix.lua makes cases of it.
--
-- A group:
--    name
--    shapes   of the whole tensor
--    dtypes
--    shares   { trainers, workers }: how the ranks of a world are shared out, as a ratio (default one to one)
--    cuts     { source, destination }: how each side lays the tensor out, see below
--    dims     { source, destination }: the dim that each side's cut speaks of, from 0
--    worlds   { least, most }, where not every world from 2 to 32 is meant
--
-- A cut over the n ranks of a side, with the number behind the colon as f:
--    r        every rank holds it whole                     s        all ranks shard it
--    rs:f     axes f, n/f: the second shards                sr:f     axes f, n/f: the first shards
--    rsr:f    axes 2, f, n/2f: the middle one shards        ss:f     axes f, n/f: the first shards the dim, the second the next dim
--    nest:f   axes f, n/f shard one dim, the first outermost
--    tsen:f   the same, the second outermost                kv:f     all ranks shard in f parts, neighbours hold the same
--    even     all ranks shard, the first hold one more      chunk    all ranks shard in pieces of one more than it takes
--    pin:f    axes f, n/f: only the last of the first, whose ranks shard over the second
--    inner:f  axes n/f, f: only the last of the second, whose ranks (every f-th) shard over the first

local three_sizes = { "float32", "bfloat16", "uint8" }
local all_pairs = { { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 } }
local one_dim = { { 0, 0 } }

-- Both orders of two axes on both sides, with a first axis of `a` and of `b`.
local function two_axes(a, b)
   local list = {}
   for _, source in ipairs({ "sr", "rs" }) do
      for _, destination in ipairs({ "sr", "rs" }) do
         list[#list + 1] = { ("%s:%d"):format(source, a), ("%s:%d"):format(destination, b) }
      end
   end
   return list
end

local function joined(...)
   local all = {}
   for _, list in ipairs({ ... }) do
      for _, item in ipairs(list) do
         all[#all + 1] = item
      end
   end
   return all
end

local halves = joined(two_axes(2, 4), two_axes(4, 2), two_axes(2, 2))

return {
   { name = "whole", shapes = { { 200, 200 }, { 8192 } }, dtypes = three_sizes, cuts = { { "r", "r" } }, dims = one_dim },
   { name = "whole to shards", shapes = { { 200, 200 } }, dtypes = { "bfloat16" }, cuts = { { "r", "s" }, { "s", "r" } }, dims = all_pairs },
   { name = "shards", shapes = { { 200, 200 } }, dtypes = three_sizes, cuts = { { "s", "s" } }, dims = all_pairs },
   { name = "two axes", shapes = { { 200, 200 } }, dtypes = { "bfloat16" }, cuts = halves, dims = all_pairs },
   { name = "more trainers, more workers", shapes = { { 240, 240 } }, dtypes = { "bfloat16" }, shares = { { 3, 1 }, { 1, 3 } },
      cuts = two_axes(2, 2), dims = all_pairs },
   { name = "sizes", shapes = { { 576, 576 }, { 3072, 3072 }, { 3072, 6144 } }, dtypes = { "bfloat16" }, cuts = two_axes(4, 4), dims = all_pairs },
   { name = "three dims", shapes = { { 64, 128, 128 }, { 128, 64, 64 } }, dtypes = { "bfloat16" },
      cuts = joined({ { "s", "s" } }, two_axes(2, 2)),
      dims = { { 0, 0 }, { 0, 1 }, { 0, 2 }, { 1, 0 }, { 1, 1 }, { 1, 2 }, { 2, 0 }, { 2, 1 }, { 2, 2 } } },
   { name = "one dim, shards", shapes = { { 8192 } }, dtypes = three_sizes, cuts = { { "s", "s" } }, dims = one_dim },
   { name = "one dim, two axes", shapes = { { 8192 } }, dtypes = { "bfloat16" }, cuts = halves, dims = one_dim },
   { name = "one dim, more trainers, more workers", shapes = { { 16384 } }, dtypes = { "bfloat16" }, shares = { { 3, 1 }, { 1, 3 } },
      cuts = two_axes(2, 2), dims = one_dim },
   { name = "one dim, sizes", shapes = { { 16384 }, { 1048576 }, { 4194304 } }, dtypes = { "bfloat16" }, cuts = two_axes(4, 4), dims = one_dim },
   { name = "fewer elements than ranks", shapes = { { 4 } }, dtypes = { "uint8" }, cuts = joined({ { "s", "s" } }, two_axes(2, 2)), dims = one_dim },
   { name = "experts to columns", shapes = { { 256, 7168, 2048 } }, dtypes = { "bfloat16" }, cuts = { { "rs:8", "rs:4" } }, dims = { { 0, 2 } },
      worlds = { 256, 256 } },

   -- From here on: what a layout of Sluice can be, in and out of m2n's reach.
   { name = "shares of two to one", shapes = { { 180, 66 } }, dtypes = { "float32" }, shares = { { 2, 1 }, { 1, 2 } },
      cuts = { { "s", "s" }, { "r", "s" }, { "s", "r" } }, dims = all_pairs },
   { name = "uneven shards", shapes = { { 5, 3 }, { 101, 37 } }, dtypes = { "float32", "uint8" },
      cuts = { { "s", "s" }, { "even", "s" }, { "s", "even" }, { "chunk", "even" }, { "even", "chunk" } }, dims = all_pairs },
   { name = "both axes", shapes = { { 96, 80 } }, dtypes = { "bfloat16" },
      cuts = { { "ss:2", "ss:2" }, { "ss:2", "s" }, { "s", "ss:2" }, { "ss:2", "r" }, { "r", "ss:2" } }, dims = { { 0, 0 }, { 1, 1 }, { 0, 1 } } },
   { name = "one dim over two axes", shapes = { { 96, 80 } }, dtypes = { "bfloat16" },
      cuts = { { "nest:2", "s" }, { "s", "nest:2" }, { "tsen:2", "s" }, { "s", "tsen:2" }, { "nest:2", "tsen:2" }, { "tsen:2", "tsen:2" } },
      dims = { { 0, 0 }, { 0, 1 } } },
   { name = "three axes", shapes = { { 96, 80 } }, dtypes = { "bfloat16" }, cuts = { { "rsr:2", "s" }, { "s", "rsr:2" }, { "rsr:2", "rsr:2" } },
      dims = { { 0, 0 }, { 1, 0 } } },
   { name = "parts of an axis", shapes = { { 96, 80 } }, dtypes = { "bfloat16" }, cuts = { { "kv:2", "s" }, { "s", "kv:2" }, { "kv:2", "kv:2" } },
      dims = { { 0, 0 }, { 1, 0 } } },
   { name = "on some ranks", shapes = { { 96, 80 } }, dtypes = { "bfloat16" },
      cuts = { { "pin:2", "s" }, { "s", "pin:2" }, { "pin:2", "pin:2" }, { "inner:2", "s" }, { "s", "inner:2" }, { "inner:2", "pin:2" } },
      dims = { { 0, 0 }, { 1, 0 } } },
   { name = "no dim", shapes = { {} }, dtypes = { "float32", "uint8" }, cuts = { { "r", "r" } }, dims = one_dim },
   { name = "four and five dims", shapes = { { 8, 6, 4, 10 }, { 16, 3, 2, 7, 7 } }, dtypes = { "bfloat16" },
      cuts = { { "r", "r" }, { "s", "r" }, { "r", "s" }, { "rs:2", "sr:2" } }, dims = { { 0, 0 }, { 0, 1 } } },
   { name = "eight dims", shapes = { { 2, 3, 2, 2, 3, 2, 2, 4 } }, dtypes = { "int16" }, cuts = { { "r", "r" }, { "s", "s" }, { "ss:2", "rs:2" } },
      dims = { { 7, 1 }, { 0, 4 } } },
   { name = "dtypes", shapes = { { 48, 40 } },
      dtypes = { "int8", "bool", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2", "float16", "int16", "uint16", "int32",
         "uint32", "int64", "uint64", "float64" },
      cuts = { { "rs:2", "sr:2" } }, dims = { { 0, 1 } } },
}
