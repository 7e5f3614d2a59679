--- Beats: a rank that is stopped is named by everyone, whatever the others do meanwhile; one that lives never is.
-- contract.md: 5 (a rank killed, stopped or cut off at any step: every other rank returns an error naming it).

local control = require "spec.support.control"
local dirent = require "posix.dirent"
local inside = require "spec.support.inside"
local poll = require "posix.poll"
local signal = require "posix.signal"
local unistd = require "posix.unistd"
local world = require "spec.support.world"

local BEAT = os.getenv("SLUICE_SANITIZER") and 0.4 or 0.2 -- a machine that is busy, or slow, may say nothing for three of them
local LONG = 0.8 + 12 * BEAT -- until a rank that is stopped has been named, and goes on

describe("beats", function()
   local C = control.open()
   local status = control.status
   local listener, port

   before_each(function()
      listener, port = world.listen()
   end)

   after_each(function()
      unistd.close(listener)
   end)

   local function sleep(seconds)
      local till = world.now() + seconds
      while world.now() < till do
         poll.rpoll(-1, math.max(1, math.floor((till - world.now()) * 1000)))
      end
   end

   local function tidy(result)
      result.text = result.text and control.tidy(result.text):gsub("for [%d.]+ s %(3", "for SOME s (3")
      return result
   end

   local function outcome_of_check(group)
      local err = inside.error()
      return tidy(control.outcome(C.slc_group_check(group, err), err))
   end

   local function threads()
      local count = 0
      for name in dirent.files("/proc/self/task") do
         count = count + (name:match("^%d+$") and 1 or 0)
      end
      return count
   end

   -- body(group, rank) on every rank; what it returns is the rank's result. meanwhile gets the children.
   local function run(size, options, body)
      return world.run(size, function(rank)
         local group, failure = control.join({rank = rank, world = size, port = port, listen_fd = listener, key = options.key,
            beat_s = rank == 0 and BEAT or options.others_beat or BEAT, seconds = 20})
         if not group then
            return failure
         end
         local result = body(group, rank)
         C.slc_group_leave(group)
         return result
      end, {meanwhile = options.meanwhile, timeout = 30})
   end

   -- Stops the rank after a while, and lets it go on when the others have had the time to notice.
   local function stopping(rank, seconds)
      return function(children)
         sleep(0.4)
         signal.kill(children[rank].pid, signal.SIGSTOP)
         sleep(seconds or 12 * BEAT)
         signal.kill(children[rank].pid, signal.SIGCONT)
      end
   end

   local function silent(rank, stage)
      return {status = status.peer, rank = rank, stage = stage,
         text = ("%s: rank %d (process) has not been heard for SOME s (3 beats of %g s)"):format(stage, rank, BEAT)}
   end

   for _, key in ipairs({false, ("a key that is long enough "):rep(2)}) do
      local how = key and ", under TLS" or ""
      for stopped = 0, 2, 2 do
         local who = stopped == 0 and "rank 0" or "a rank"
         it(who .. " that is stopped is named by the others that wait in a round, and hears so itself" .. how, function()
            local results = run(4, {key = key, meanwhile = stopping(stopped)}, function(group, rank)
               if rank == stopped then
                  sleep(LONG)
               end
               return tidy(control.round(group, {stage = "update", seconds = 15}))
            end)
            for rank = 0, 3 do
               if rank == 0 and stopped == 0 then
                  assert.equal(status.peer, results[0].status)
                  assert.matches("rank %d %(process%) gave up: rank 0 %(process%) has not been heard for", results[0].text)
               else
                  assert.equal(stopped, results[rank].rank)
                  assert.equal(status.peer, results[rank].status)
                  assert.matches((": rank %d (process) has not been heard for SOME s (3 beats of %g s)"):format(stopped, BEAT),
                                 results[rank].text, 1, true)
               end
            end
         end)
      end
   end

   it("a rank that is stopped between calls is named by the next call of everyone", function()
      local results = run(3, {meanwhile = stopping(1)}, function(group)
         sleep(LONG)
         return outcome_of_check(group)
      end)
      for rank = 0, 2 do
         assert.same(silent(1, "control"), results[rank])
      end
   end)

   it("ranks that compute for many beats, with words under way or none, stay whole", function()
      local results = run(3, {key = ("k"):rep(40)}, function(group, rank)
         local first = control.round(group, {body = "a", judge = "equal"})
         sleep(rank == 1 and 12 * BEAT or 0) -- the others wait for it in a round
         local second = control.round(group, {body = "b", judge = "equal"})
         sleep(10 * BEAT) -- nobody calls anything
         local third = control.round(group, {body = "c", judge = "equal"})
         return {first.status, second.status, third.status}
      end)
      for rank = 0, 2 do
         assert.same({0, 0, 0}, results[rank])
      end
   end)

   it("a rank that itself was stopped for a while blames nobody who lives", function()
      local results = run(2, {meanwhile = stopping(0, 2 * BEAT)}, function(group)
         sleep(LONG)
         return {control.round(group, {body = "x", judge = "equal"}).status}
      end)
      assert.same({0}, results[0])
      assert.same({0}, results[1])
   end)

   it("a judge that takes longer than three beats keeps nobody from hearing of rank 0", function()
      local results = run(3, {}, function(group)
         return {control.round(group, {judge = function()
            sleep(6 * BEAT)
            return 0
         end}).status}
      end)
      for rank = 0, 2 do
         assert.same({0}, results[rank])
      end
   end)

   it("the interval of rank 0 holds for all", function()
      local results = run(2, {others_beat = 60, meanwhile = stopping(0)}, function(group, rank)
         if rank == 0 then
            sleep(LONG)
         end
         return tidy(control.round(group, {stage = "update", seconds = 15}))
      end)
      assert.same(silent(0, "update"), results[1])
   end)

   it("one thread keeps them, from the join to the end of leaving", function()
      if os.getenv("SLUICE_SANITIZER") == "thread" then
         pending("the thread sanitizer has a thread of its own")
      end
      local results = world.run(2, function(rank)
         local before = threads()
         local counts = {}
         for i = 1, 3 do
            local group = assert(control.join({rank = rank, world = 2, port = port, listen_fd = unistd.dup(listener), beat_s = BEAT}))
            counts[i] = threads() - before
            assert(control.round(group, {body = "x", judge = "equal"}).status == 0)
            C.slc_group_leave(group)
         end
         return {counts = counts, after = threads() - before}
      end)
      for rank = 0, 1 do
         assert.same({counts = {1, 1, 1}, after = 0}, results[rank])
      end
   end)

   it("what the thread saw is logged by the next call, on the host's thread, and not again by who gives up for it", function()
      local results = world.run(2, function(rank)
         local log = {}
         local group = assert(control.join({rank = rank, world = 2, port = port, listen_fd = listener, beat_s = BEAT, log = log}))
         if rank == 1 then
            return {} -- and ends without a word
         end
         sleep(8 * BEAT) -- the thread sees the connection end
         local before = #log
         local cause = inside.error()
         C.slc_group_check(group, cause)
         C.slc_group_abort(group, cause)
         local line = log[#log]
         C.slc_group_leave(group)
         return {added = #log - before, text = control.tidy(line)}
      end, {})
      assert.same({added = 1, text = "control: rank 1 (process) was lost: its connection ended"}, results[0])
   end)
end)
