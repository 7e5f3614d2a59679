--- What the engine must do, one line each, and which specs prove it: a spec names its line as #2.3 in a string, mostly in its
-- own name. `luajit spec/contract.lua` prints the table; spec/contract_spec.lua holds specs and lines together.

local contract = {}

--- id and rule, in our words. 1 init info, 2 init, 4 an update, 5 wrong input.
contract.lines = {
   {"1.1", "master_address: a host name, an IPv4 or IPv6 address, with or without brackets"},
   {"1.2", "master_port: an integer from 1 to 65535; true and 1.5 are none"},
   {"1.3", "rank_offset and world_size: integers, 1 <= rank_offset < world_size"},
   {"1.4", "dst_mesh_dims: two positive integers whose product is the number of workers"},
   {"1.5", "params: records with exactly the keys they must have; a refusal lists the missing and the unknown"},
   {"1.6", "name and dtype_name: texts that are not empty; torch dtypes; no two params of one name"},
   {"1.7", "shape: positive integers"},
   {"1.8", "src_mesh_dims: two positive integers whose product is the number of trainers"},
   {"1.9", "src_placements: null, or one -1 and one dim that exists and divides evenly"},
   {"1.10", "source_digest: that of the params; another is refused on every rank"},
   {"1.11", "nccl_unique_id_b64: 128 bytes in base64, shown in no error, log or report"},
   {"1.12", "max_cta: a positive integer"},
   {"1.13", "schema sluice/1: named meshes of many axes, ordered placements"},
   {"1.14", "a plan of two axes is the same plan in both schemas"},
   {"1.15", "an unknown schema is refused, and the known ones are named"},
   {"1.16", "the digest: SHA-256 over canonical JSON of the params alone, equal to what Python computes"},
   {"1.17", "every dtype is known, with its size"},
   {"1.18", "other keys than those of the schema are refused; a refusal lists the missing and the unknown"},

   {"2.1", "a rank whose own input is wrong joins to say so"},
   {"2.2", "every rank ends a round with one verdict; a refusal names every failing rank with its cause"},
   {"2.3", "round 1: all hold the same source plan; the first parameter that differs is named from both sides"},
   {"2.4", "round 2: all workers have the same destinations; the first that differs is named from both sides"},
   {"2.5", "after round 2 every rank holds the same plan and the same commit token"},
   {"2.6", "round 3: settings are equal; a mismatch lists names and both values"},
   {"2.7", "round 4: every rank can run, or says why not; for memory, the bytes wanted and there"},
   {"2.8", "a second init without shutdown is refused"},
   {"2.9", "two ranks that claim one rank are named, with both claimants"},
   {"2.10", "a rank outside the world is refused by name, and the others go on waiting"},
   {"2.11", "a stranger and a peer of another version are refused by name, and the others go on waiting"},
   {"2.12", "the deadline's error lists who came and who did not"},
   {"2.13", "a rank that cannot connect its transport is named on all, each such rank with its cause"},

   {"4.1", "names: announced, none twice in an update, checked before anything changes"},
   {"4.2", "any subset in any order, the same on both sides"},
   {"4.3", "a side whose list differs is refused and not deadlocked; the update stays open"},
   {"4.4", "direct parameters are written in place, at the addresses that were registered"},
   {"4.5", "full ones are handed to one load_weights a batch, pulled one by one, kept and released on demand"},
   {"4.6", "staging memory stays within its slots, and the next tensor moves while the host consumes one"},
   {"4.7", "load hooks run only where the plan has a full parameter"},
   {"4.8", "finish wants every parameter exactly once, unless the update was opened as partial"},
   {"4.9", "the label is visible after success alone"},
   {"4.10", "every trainer learns whether the update ended well on every worker"},
   {"4.11", "an update may be recorded once and replayed"},
   {"4.12", "a failure ends on every rank within the deadline, with the state failed"},
   {"4.13", "after a failure the complete, torn and untouched parameters are told"},
   {"4.14", "a start after a failure is refused until shutdown and a new init"},
   {"4.15", "after a failure the first update must be a whole one, on every rank, whatever the world is then"},
   {"4.16", "the version says dirty until it is finished"},
   {"4.17", "shutdown works in any state, any number of times, and init works again after it"},
   {"4.18", "abort ends an open update on every rank"},

   {"5.1", "malformed, cut, deeply nested or huge JSON, wrong types and odd numbers: an error with the place, in bounded memory"},
   {"5.2", "frames that lie, come out of order, from another version or with a wrong secret, and silence: dropped, logged, others go on"},
   {"5.3", "a rule file that loops, allocates, raises, returns nonsense or reaches out: an error with file and line, the engine lives"},
   {"5.4", "where a rule file is read anew and is wrong, the old rules stay"},
   {"5.5", "two parameters on one live byte: an error at init that names both"},
   {"5.6", "a view outside its tensor: an error at init that names both"},
   {"5.7", "shapes that do not agree: an error at init that names both"},
   {"5.8", "a source that is not what was announced: refused on that rank before a batch, told to all where others wait"},
   {"5.9", "a rank that is killed at any step is named by every other rank, and leaves nothing behind"},
   {"5.10", "a rank that is stopped is named by every other rank"},
   {"5.11", "a rank that is cut off is named by every other rank"},
   {"5.12", "a live tensor that cannot be written: an error at init"},
}

local function each_spec(visit)
   local pipe = io.popen("find spec -name '*_spec.lua' | LC_ALL=C sort")
   for path in pipe:lines() do
      local number = 0
      for line in io.lines(path) do
         number = number + 1
         for id in line:gsub("^%s*%-%-.*", ""):gmatch("#(%d+%.%d+)") do
            visit(id, path, number)
         end
      end
   end
   pipe:close()
end

--- Where each line is proved: id -> list of "path:line", and the tags that name no line as a list of the same.
function contract.proofs()
   local proofs, strays = {}, {}
   for _, line in ipairs(contract.lines) do
      proofs[line[1]] = {}
   end
   each_spec(function(id, path, number)
      local list = proofs[id] or strays
      list[#list + 1] = proofs[id] and ("%s:%d"):format(path, number) or ("%s:%d: #%s"):format(path, number, id)
   end)
   return proofs, strays
end

if arg and arg[0] and arg[0]:find("contract%.lua$") then
   local proofs = contract.proofs()
   for _, line in ipairs(contract.lines) do
      print(("%-5s %s\n         %s"):format(line[1], line[2], table.concat(proofs[line[1]], "  ")))
   end
end

return contract
