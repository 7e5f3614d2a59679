--- What scripts/ say to arguments that are none, before they build, fetch or run anything.

local shell = require "scripts.shell"

local WRONG = {
   { "abi --library", "abi: --library wants a file", 1 },
   { "bench --repeats 1e999", "bench: unknown or incomplete argument --repeats; scripts/bench --help tells", 2 },
   { "bench-gpu ''", "bench-gpu: unknown argument ''; scripts/bench-gpu --help tells", 2 },
   { "bench-shards '--json --gpu'", "bench-shards: unknown argument '--json --gpu'; scripts/bench-shards --help tells", 2 },
   { "check-gpu --build", "check-gpu: --build wants a value; scripts/check-gpu --help tells", 2 },
   { "families --tp 1e9", "families: --tp (1e9) must be a list of numbers; scripts/families --help tells", 2 },
   { "faults --jobs 1e999", "faults: --jobs (1e999) must be a whole number from 1 to 1000; scripts/faults --help tells", 2 },
   { "faults --sample 2.5", "faults: --sample (2.5) must be a whole number from 1 to 4; scripts/faults --help tells", 2 },
   { "faults --delay nan", "faults: --delay (nan) must be a number from 0.1 to 3600; scripts/faults --help tells", 2 },
   { "faults --phase", "faults: unknown or incomplete argument '--phase'; scripts/faults --help tells", 2 },
   { "fetch-m2n ''", "fetch-m2n: the directory has an empty name", 1 },
   { "fetch-torch a b", "fetch-torch: one directory at most (2 arguments)", 1 },
   { "fuzz --seconds 99999999999", "fuzz: --seconds wants a number of 1 to 7 digits", 1 },
   { "fuzz --replay /nowhere frames", "fuzz: --replay wants a file", 1 },
   { "matrix --world 4-2", "matrix: --world (4-2) must be numbers of 2 or more and ranges, as 4,8 or 4-12; scripts/matrix --help tells", 2 },
}

describe("a script", function()
   for _, case in ipairs(WRONG) do
      it("refuses " .. case[1], function()
         local said, code = shell("scripts/" .. case[1])
         assert.same({ case[2] .. "\n", case[3] }, { said, code })
      end)
   end
end)
