local control = require "spec.support.control"
local ffi = require "ffi"
local poll = require "posix.poll"
local signal = require "posix.signal"
local unistd = require "posix.unistd"
local world = require "spec.support.world"

local function sleep(milliseconds)
   poll.rpoll(-1, milliseconds)
end

describe("round", function()
   local C = control.open()
   local status = control.status

   local function tidy(result)
      if result.text then
         result.text = control.tidy(result.text)
      end
      return result
   end

   -- One round in a world of `count`; says(rank) gives the options of each rank's round.
   local function one_round(count, says)
      return control.world(count, function(group, rank)
         return tidy(control.round(group, says(rank)))
      end)
   end

   local function all_get(expected, results, count)
      for rank = 0, count - 1 do
         assert.same(expected, results[rank], ("rank %d"):format(rank))
      end
   end

   it("agrees when all bodies are equal, and empty ones agree with any", function()
      all_get({status = 0, answer = ""}, one_round(5, function(rank)
         return {judge = "equal", body = rank % 2 == 1 and "abc" or ""}
      end), 5)
      all_get({status = 0, answer = ""}, one_round(2, function() return {judge = "equal"} end), 2)
   end)

   it("agrees on anything without a judge", function()
      all_get({status = 0, answer = ""}, one_round(3, function(rank) return {body = tostring(rank)} end), 3)
   end)

   it("gives the judge's answer to every rank", function()
      local results = control.world(4, function(group, rank)
         local judge = rank == 0 and function(_, word, count, answer)
            for i = 0, count - 1 do
               assert(word[i].rank == i and word[i].status == 0 and ffi.string(word[i].stage) == "sum")
               C.slc_buffer_append(answer, word[i].body, word[i].length)
               C.slc_buffer_append(answer, ";", 1)
            end
            return 0
         end or nil
         return control.round(group, {stage = "sum", body = ("x"):rep(rank), judge = judge})
      end)
      all_get({status = 0, answer = ";x;xx;xxx;"}, results, 4)
   end)

   it("gives ranks that do not read all of the answer the head of it", function()
      local results = one_round(4, function(rank)
         return {readers = 2, head = 3, judge = rank == 0 and function(_, _, _, answer)
            C.slc_buffer_append(answer, "abcdef", 6)
            return 0
         end or nil}
      end)
      for rank, text in pairs({[0] = "abcdef", "abcdef", "abc", "abc"}) do
         assert.same({status = 0, answer = text}, results[rank])
      end
   end)

   it("gives the judge's own error to every rank", function()
      local results = control.world(3, function(group, rank)
         local judge = rank == 0 and function(_, _, _, _, err)
            ffi.copy(err.stage, "data plane")
            ffi.copy(err.text, "data plane: versions differ")
            err.rank = 2
            return status.unsupported
         end or nil
         return control.round(group, {stage = "data plane", judge = judge})
      end)
      all_get({status = status.unsupported, rank = 2, stage = "data plane", text = "data plane: versions differ"}, results, 3)
   end)

   describe("with ranks that fail", function()
      it("tells every rank which one and why #2.2", function()
         all_get({status = status.invalid, rank = 3, stage = "source", text = "source: refused: rank 3: the digest is wrong"},
                 one_round(5, function(rank)
                    return {judge = "equal", mine = rank == 3 and control.failure(status.invalid, "source", "the digest is wrong") or nil}
                 end), 5)
      end)

      it("names all of them, equal causes once, with the status of the first #2.2", function()
         all_get({status = status.no_memory, rank = 1, stage = "runtime",
                  text = "runtime: refused: ranks 1, 4-6: no device; rank 3: init: params[3].shape[1] (0) must be at least 1"},
                 one_round(8, function(rank)
                    local mine
                    if rank == 3 then
                       mine = control.failure(status.invalid, "init", "params[3].shape[1] (0) must be at least 1")
                    elseif rank == 1 or rank >= 4 and rank <= 6 then
                       mine = control.failure(status.no_memory, "runtime", "no device")
                    end
                    return {stage = "runtime", mine = mine}
                 end), 8)
      end)

      it("tells of rank 0's own error like any other", function()
         all_get({status = status.system, rank = 0, stage = "source", text = "source: refused: rank 0: disk; rank 1: tape"},
                 one_round(3, function(rank)
                    return {mine = rank == 0 and control.failure(status.system, "source", "disk")
                               or rank == 1 and control.failure(status.invalid, "source", "tape") or nil}
                 end), 3)
      end)

      it("fits as many long causes as an error holds, and counts the rest", function()
         local results = one_round(16, function(rank)
            return {mine = control.failure(status.invalid, "source", ("cause %d "):format(rank) .. ("x"):rep(3000))}
         end)
         local text = results[0].text
         assert.is_true(#text < 4096)
         for rank = 0, 15 do
            assert.equal(text, results[rank].text)
            assert.truthy(text:find(("rank %d: cause %d x"):format(rank, rank), 1, true))
         end
      end)

      it("leaves the group whole: the next round works", function()
         all_get({{0, ""}, {status.invalid, "update: refused: rank 2: no such name"}, {0, ""}}, control.world(4, function(group, rank)
            local all = {}
            for i = 1, 3 do
               local mine = i == 2 and rank == 2 and control.failure(status.invalid, "update", "no such name") or nil
               local result = control.round(group, {stage = "update", judge = "equal", body = "b" .. i, mine = mine})
               all[i] = {result.status, result.text or result.answer}
            end
            return all
         end), 4)
      end)
   end)

   describe("that a rank does not wait for", function()
      local function said(group, text)
         local err = ffi.new("sluice_error", {size = ffi.sizeof("sluice_error")})
         return control.outcome(C.slc_group_say(group, "update", control.failure(status.invalid, "update", text), C.slc_deadline_in(5), err), err)
      end

      for _, beat_s in ipairs({0, 0.05}) do
         for _, culprit in ipairs({0, 2}) do
            it(("is refused with its error: rank %d, beats of %g s"):format(culprit, beat_s), function()
               local results = control.world(4, function(group, rank)
                  local first = rank == culprit and said(group, "no such name") or control.round(group, {stage = "update"})
                  return {first, control.round(group, {judge = "equal", body = "b"}).status}
               end, {beat_s = beat_s})
               for rank = 0, 3 do
                  local heard = {status = status.invalid, rank = culprit, stage = "update",
                                 text = ("update: refused: rank %d: no such name"):format(culprit)}
                  assert.same({rank == culprit and {status = 0, rank = 0, stage = "", text = ""} or heard, 0}, results[rank])
               end
            end)
         end
      end

      it("ends for the others though it has left meanwhile", function()
         local results = control.world(3, function(group, rank)
            if rank == 2 then
               return said(group, "no such name")
            end
            sleep(200)
            return {control.round(group, {stage = "update"}).text, (tidy(control.round(group, {stage = "update"})).text)}
         end)
         for rank = 0, 1 do
            assert.same({"update: refused: rank 2: no such name", "update: rank 2 (process) has left"}, results[rank])
         end
      end)

      it("calls those that wait elsewhere", function()
         local results = control.world(3, function(group, rank)
            if rank == 1 then
               return said(group, "no road").status
            end
            local deadline = world.now() + 5
            while not C.slc_group_recalled(group) and world.now() < deadline do
               C.slc_group_check(group, nil)
               sleep(5)
            end
            return {C.slc_group_recalled(group), control.round(group, {stage = "connect"}).text, C.slc_group_recalled(group)}
         end)
         for _, rank in ipairs({0, 2}) do
            assert.same({true, "connect: refused: rank 1: update: no road", false}, results[rank])
         end
      end)
   end)

   it("says so when ranks are in different rounds, and leaves the group whole", function()
      all_get({status.disagree, 'finish: ranks are in different rounds: ranks 0, 1: "finish"; rank 2: "batch"; rank 3: "connect cards"', 0},
              control.world(4, function(group, rank)
                 local result
                 if rank == 3 then
                    result = control.exchange(group, "card", {})
                 else
                    result = control.round(group, {stage = rank == 2 and "batch" or "finish"})
                 end
                 return {result.status, result.text, control.round(group, {}).status}
              end), 4)
   end)

   it("carries large bodies from one rank and large answers to all", function()
      local size = 64 * 2 ^ 20
      local results = control.world(3, function(group, rank)
         local judge = rank == 0 and function(_, word, _, answer)
            C.slc_buffer_append(answer, word[2].body, word[2].length)
            return 0
         end or nil
         local body = rank == 2 and ("0123456789abcdef"):rep(size / 16) or ""
         local result = control.round(group, {body = body, judge = judge, seconds = 60})
         return {status = result.status, length = #result.answer, whole = result.answer == ("0123456789abcdef"):rep(size / 16)}
      end, {timeout = 90})
      all_get({status = 0, length = size, whole = true}, results, 3)
   end)

   it("refuses a body beyond the bound by that rank's name", function()
      local results = control.world(2, function(group, rank)
         local err = ffi.new("sluice_error", {size = ffi.sizeof("sluice_error")})
         local code = C.slc_group_round(group, "source", nil, nil, rank == 1 and 2 ^ 30 or 0, nil, nil, nil, C.slc_deadline_in(10), err)
         return control.outcome(code, err)
      end)
      all_get({status = status.invalid, rank = 1, stage = "source",
               text = "source: refused: rank 1: this rank's word (1073741824 bytes) must have at most 1073741768 bytes"}, results, 2)
   end)

   describe("broken", function()
      local function die()
         signal.kill(unistd.getpid(), signal.SIGKILL)
      end

      local function leave() end

      local function wait()
         sleep(1000)
      end

      -- Who does what in a world of how many, and what every other rank hears; `late`: rank 0 comes so many milliseconds later.
      local cases = {
         {"a rank that is killed #5.9", {2}, die, ranks = 4, "rank 2 (process) was lost: its connection ended"},
         {"rank 0 that is killed #5.9", {0}, function() sleep(100) die() end, ranks = 4, "rank 0 (process) was lost: its connection ended"},
         {"a rank that leaves", {3}, leave, ranks = 4, "rank 3 (process) has left"},
         {"two ranks that leave", {3, 4}, leave, ranks = 5, late = 200, "ranks 3, 4 have left"},
         {"a rank that says nothing until the deadline", {2}, wait, ranks = 4, seconds = 0.5, "no word from rank 2 (process) within 0.5 s"},
         {"several silent ranks, all of them named", {2, 3, 5}, wait, ranks = 6, seconds = 0.5, "no word from ranks 2, 3, 5 within 0.5 s"},
      }
      for _, case in ipairs(cases) do
         it("by " .. case[1] .. ", is said on every other rank", function()
            local guilty = {}
            for _, rank in ipairs(case[2]) do
               guilty[rank] = true
            end
            local results = control.world(case.ranks, function(group, rank)
               if guilty[rank] then
                  case[3]()
                  return {}
               end
               sleep(rank == 0 and case.late or 0)
               local first = tidy(control.round(group, {stage = "update", seconds = case.seconds or 10}))
               local second = tidy(control.round(group, {stage = "finish"}))
               assert(first.text == second.text, "a broken group keeps its cause")
               return first
            end)
            for rank = 0, case.ranks - 1 do
               if not guilty[rank] then
                  assert.same({status = case.seconds and status.timeout or status.peer, rank = case[2][1], stage = "update",
                               text = "update: " .. case[4]}, results[rank])
               end
            end
         end)
      end

      it("by rank 0 that leaves, before or in the round", function()
         for _, waits in ipairs({0, 1}) do
            local results = control.world(2, function(group, rank)
               sleep(rank == waits and 150 or 0)
               if rank == 0 then
                  return {}
               end
               C.slc_group_check(group, nil)
               return tidy(control.round(group, {stage = "update"}))
            end)
            assert.same({status = status.peer, rank = 0, stage = "update", text = "update: rank 0 (process) has left"}, results[1])
         end
      end)

      it("by rank 0 that says nothing until the deadline", function()
         local results = control.world(2, function(group, rank)
            if rank == 0 then
               sleep(800)
               return tidy(control.round(group, {stage = "update"}))
            end
            return tidy(control.round(group, {stage = "update", seconds = 0.3}))
         end)
         assert.same({status = status.timeout, rank = 0, stage = "update", text = "update: no verdict from rank 0 (process) within 0.3 s"},
                     results[1])
         assert.same({status = status.timeout, rank = 1, stage = "update",
                      text = "update: rank 1 (process) gave up: no verdict from rank 0 (process) within 0.3 s"}, results[0])
      end)

      it("by a rank that gives up in the middle of a round", function()
         for _, culprit in ipairs({0, 2}) do
            local results = control.world(4, function(group, rank)
               if rank == culprit then
                  sleep(100)
                  C.slc_group_abort(group, control.failure(status.callback, "load", "the host said no"))
               end
               return tidy(control.round(group, {stage = "update"}))
            end)
            for rank = 0, 3 do
               local who = culprit == 0 and "rank 0" or "rank 2 (process)"
               local others = {status = status.peer, rank = culprit, stage = "load", text = "load: " .. who .. " gave up: the host said no"}
               local own = {status = status.callback, rank = -1, stage = "load", text = "load: the host said no"}
               assert.same(rank == culprit and own or others, results[rank])
            end
         end
      end)

      it("by a rank that is cancelled", function()
         for _, culprit in ipairs({0, 1}) do
            control.prepare_timer()
            local results = control.world(3, function(group, rank)
               if rank == culprit then
                  local flag = ffi.new("bool[1]")
                  group.cancelled = flag
                  control.set_later(flag, 200)
               elseif rank == 2 then
                  while tonumber(C.slc_group_check(group, nil)) == 0 do
                     sleep(5)
                  end
               end
               return tidy(control.round(group, {stage = "update"}))
            end)
            for rank = 0, 2 do
               local who = culprit == 0 and "rank 0" or "rank 1 (process)"
               assert.same({status = status.cancelled, rank = culprit, stage = "update",
                            text = rank == culprit and "update: cancelled" or "update: " .. who .. " gave up: cancelled"}, results[rank])
            end
         end
      end)
   end)

   -- A world of rank 0 and one raw peer that speaks for rank 1; act(fd) speaks. Returns what rank 0's round came to.
   local function against(act)
      local listener, port = world.listen()
      local results = world.run(2, function(child)
         if child == 1 then
            local fd = control.connect(port)
            control.send(fd, control.join_frame({rank = 1, world = 2}))
            assert(control.read_frame(fd).type == control.frame_type.welcome)
            return act(fd) or {}
         end
         local group = control.join({rank = 0, world = 2, port = port, listen_fd = listener})
         local result = tidy(control.round(group, {stage = "source", seconds = 3}))
         C.slc_group_leave(group)
         return result
      end)
      unistd.close(listener)
      return results[0], results[1]
   end

   describe("against a member that breaks the protocol (#5.2)", function()
      local cases = {
         {"a bad magic", ("x"):rep(24), "frame: magic (78 78 78 78) must be 53 4c 43 45: the other end is no rank of Sluice"},
         {"an envelope of a later round", control.frame({type = "envelope", tag = 1, payload = control.envelope("source", "")}),
          "an envelope frame of round 1, in round 0"},
         {"a verdict", control.frame({type = "verdict", payload = "abcd"}), "a verdict frame"},
         {"a second join", control.join_frame({rank = 1, world = 2}), "a join frame"},
         {"an envelope that is none", control.frame({type = "envelope", payload = "abc"}), "an envelope that cannot be read"},
         {"an abort that is none", control.frame({type = "abort", payload = "abc"}), "an abort frame that cannot be read"},
         {"a length beyond the bound", control.frame({type = "envelope", length = 2 ^ 31}),
          "frame: length (2147483648) of type envelope must be at most 1073741824"},
      }
      for _, case in ipairs(cases) do
         it("as with " .. case[1] .. ", says so on both sides", function()
            local mine, theirs = against(function(fd)
               control.send(fd, case[2])
               return control.read_error(control.read_frame(fd).payload)
            end)
            local text = "source: rank 1 (process) broke the protocol: " .. case[3]
            assert.same({status = status.peer, rank = 1, stage = "source", text = text}, mine)
            theirs.text = control.tidy(theirs.text)
            assert.same({status = status.peer, rank = 1, stage = "source", text = text}, theirs)
         end)
      end

      it("as with two words in one round, says so #5.2", function()
         local mine = against(function(fd)
            local word = control.frame({type = "envelope", payload = control.envelope("source", "")})
            control.send(fd, word)
            control.read_frame(fd)
            control.send(fd, control.frame({type = "envelope", tag = 1, payload = control.envelope("source", "")}))
            control.send(fd, control.frame({type = "envelope", tag = 2, payload = control.envelope("source", "")}))
            sleep(100)
         end)
         assert.equal(0, mine.status) -- the first round was in order; the next one says so, see check
      end)

      it("as with a frame cut short, says that it was lost #5.11", function()
         local mine = against(function(fd)
            control.send(fd, control.frame({type = "envelope", payload = control.envelope("source", "abc")}):sub(1, -2))
            unistd.close(fd)
         end)
         assert.equal("source: rank 1 (process) was lost: its connection ended", mine.text)
      end)
   end)

   describe("checking between rounds", function()
      it("is silent while the group stands, and keeps words that come early", function()
         all_get({0, 0, 0}, control.world(4, function(group, rank)
            local checks = 0
            if rank == 0 then
               sleep(150) -- the words of the others are there by now
               for _ = 1, 20 do
                  checks = checks + tonumber(C.slc_group_check(group, nil))
                  sleep(2)
               end
            end
            local first = control.round(group, {judge = "equal", body = "a"}).status
            return {checks, first, control.round(group, {judge = "equal", body = "b"}).status}
         end), 4)
      end)

      it("finds a rank that died, on every other rank", function()
         local results = control.world(4, function(group, rank)
            if rank == 3 then
               signal.kill(unistd.getpid(), signal.SIGKILL)
            end
            local err = ffi.new("sluice_error", {size = ffi.sizeof("sluice_error")})
            local deadline = world.now() + 5
            local code = 0
            while code == 0 and world.now() < deadline do
               code = tonumber(C.slc_group_check(group, err))
               sleep(5)
            end
            return tidy(control.outcome(code, err))
         end)
         for rank = 0, 2 do
            assert.same({status = status.peer, rank = 3, stage = "control", text = "control: rank 3 (process) was lost: its connection ended"},
                        results[rank])
         end
      end)

      it("finds that a rank gave up", function()
         local results = control.world(3, function(group, rank)
            local err = ffi.new("sluice_error", {size = ffi.sizeof("sluice_error")})
            if rank == 1 then
               C.slc_group_abort(group, control.failure(status.cancelled, "update", "cancelled"))
            end
            local deadline, code = world.now() + 5, 0
            while code == 0 and world.now() < deadline do
               code = tonumber(C.slc_group_check(group, err))
               sleep(5)
            end
            return tidy(control.outcome(code, err))
         end)
         for _, rank in ipairs({0, 2}) do
            assert.same({status = status.cancelled, rank = 1, stage = "update", text = "update: rank 1 (process) gave up: cancelled"},
                        results[rank])
         end
      end)

      it("takes a rank that left in good order for no error", function()
         local results = control.world(3, function(group, rank)
            if rank == 2 then
               return {}
            end
            local sum = 0
            for _ = 1, 40 do
               sum = sum + tonumber(C.slc_group_check(group, nil))
               sleep(5)
            end
            return {sum}
         end)
         assert.same({{0}, {0}}, {results[0], results[1]})
      end)

      it("finds a second word before the first was answered", function()
         local listener, port = world.listen()
         local results = world.run(2, function(child)
            if child == 1 then
               local fd = control.connect(port)
               control.send(fd, control.join_frame({rank = 1, world = 2}))
               control.read_frame(fd)
               control.send(fd, control.frame({type = "envelope", tag = 0, payload = control.envelope("source", "")}))
               control.send(fd, control.frame({type = "envelope", tag = 1, payload = control.envelope("source", "")}))
               control.read(fd, nil, 5)
               return {}
            end
            local group = control.join({rank = 0, world = 2, port = port, listen_fd = listener})
            local err, code = ffi.new("sluice_error", {size = ffi.sizeof("sluice_error")}), 0
            for _ = 1, 200 do
               code = code == 0 and tonumber(C.slc_group_check(group, err)) or code
               sleep(5)
            end
            C.slc_group_leave(group)
            return tidy(control.outcome(code, err))
         end)
         unistd.close(listener)
         assert.same({status = status.peer, rank = 1, stage = "control",
                      text = "control: rank 1 (process) broke the protocol: an envelope frame of round 1, in round 1"}, results[0])
      end)
   end)

   it("serves the other ranks while one reads nothing", function()
      local reader, writer = unistd.pipe()
      local results = control.world(4, function(group, rank)
         local judge = rank == 0 and function(_, _, _, answer)
            local block = ("z"):rep(2 ^ 20)
            for _ = 1, 32 do
               C.slc_buffer_append(answer, block, #block)
            end
            return 0
         end or nil
         if rank == 3 then
            -- Speaks its word, then reads nothing until the others have told that they are done.
            control.send(C.slc_channel_fd(group.channel[0]),
                         control.frame({type = "envelope", tag = 0, payload = control.envelope("source", "")}))
            return {done = #control.read(reader, 2, 20)}
         end
         local result = control.round(group, {judge = judge, seconds = 25})
         if rank > 0 then
            unistd.write(writer, "x")
         end
         return {status = result.status}
      end)
      unistd.close(reader)
      unistd.close(writer)
      assert.same({{status = 0}, {status = 0}, {status = 0}, {done = 2}}, {results[0], results[1], results[2], results[3]})
   end)
end)
