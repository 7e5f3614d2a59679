local control = require "spec.support.control"

describe("exchange", function()
   control.open()
   local status = control.status

   it("gives each rank just the cards that it asks for, in its order", function()
      local wanted = {[0] = {2, 1}, {3}, {}, {0, 1, 2, 3, 0}}
      local results = control.world(4, function(group, rank)
         return control.exchange(group, ("card %d "):format(rank) .. ("x"):rep(rank), wanted[rank])
      end)
      for rank = 0, 3 do
         local expected = {}
         for i, other in ipairs(wanted[rank]) do
            expected[i] = ("card %d "):format(other) .. ("x"):rep(other)
         end
         assert.same({status = 0, cards = expected}, results[rank])
      end
   end)

   it("carries empty cards and counts as one round", function()
      local results = control.world(3, function(group, rank)
         local first = control.exchange(group, "", {(rank + 1) % 3})
         return {first, control.round(group, {judge = "equal", body = "a"}).status, group.rounds}
      end)
      for rank = 0, 2 do
         assert.same({{status = 0, cards = {""}}, 0, 2}, results[rank])
      end
   end)

   it("carries large cards with zero bytes", function()
      local card = ("\0\1\2\3"):rep(2 ^ 14)
      local results = control.world(5, function(group, rank)
         local result = control.exchange(group, card .. rank, {0, 1, 2, 3, 4})
         local same = {}
         for i, got in ipairs(result.cards) do
            same[i] = got == card .. (i - 1)
         end
         return same
      end)
      for rank = 0, 4 do
         assert.same({true, true, true, true, true}, results[rank])
      end
   end)

   it("names a rank that fails, on every rank", function()
      local results = control.world(3, function(group, rank)
         local mine = rank == 1 and control.failure(status.system, "connect", "no card") or nil
         return control.exchange(group, "card", {0}, {mine = mine})
      end)
      for rank = 0, 2 do
         assert.same({status = status.system, rank = 1, stage = "connect", text = "connect: refused: rank 1: no card"}, results[rank])
      end
   end)

   it("refuses a rank outside the world by the name of who asks for it", function()
      for _, outside in ipairs({3, -1}) do
         local results = control.world(3, function(group, rank)
            return control.exchange(group, "card", rank == 2 and {0, outside} or {})
         end)
         for rank = 0, 2 do
            assert.same({status = status.invalid, rank = 2, stage = "connect",
                         text = ("connect: rank 2 asks for the card of rank %d, which must be in [0, 3)"):format(outside)}, results[rank])
         end
      end
   end)
end)
