--- What must come of each case of scripts/faults: which cases there are, what the other ranks must say, and whether what
-- faults_driver printed is that. Pure: tables in, tables out.

local wanted = {}

wanted.phases = {"connect", "round1", "round2", "round3", "round4", "transport", "meet", "first", "middle", "last", "load", "finish", "shutdown"}
wanted.faults = {"kill", "stop", "exit", "callback", "cut", "blackhole", "netns", "truncated", "garbage", "delay", "late", "alloc", "disagree"}
wanted.victims = {[0] = "trainer 0", "trainer 1", "worker 2", "worker 3"}

local function set(text)
   local words = {}
   for word in text:gmatch("%S+") do
      words[word] = true
   end
   return words
end

local CALLS_BACK, COMPARES_NOTHING = set("first middle last load finish"), set("round4 transport meet load shutdown")
-- Without a word of the victim's, the others cannot know before the world is whole; beats begin then.
local FIRST_MISSED_AT_THE_DEADLINE = set("kill exit late alloc disagree")

--- Why a case cannot exist, or nil.
function wanted.impossible(phase, fault, victim)
   local trainer = victim < 2
   if fault == "callback" and trainer then
      return "a trainer has no callback that can fail"
   elseif fault == "callback" and not CALLS_BACK[phase] then
      return "no callback that can fail runs there"
   elseif fault == "disagree" and COMPARES_NOTHING[phase] then
      return "nothing of one rank is compared with another's there"
   elseif fault == "disagree" and phase == "round2" and trainer then
      return "trainers give no destinations"
   elseif (fault == "delay" or fault == "late") and phase == "load" and trainer then
      return "a trainer is in no callback, it waits in its update"
   elseif fault == "late" and phase == "shutdown" then
      return "shutdown waits for nobody"
   end
end

--- What the other ranks must come to: "named" (an error that names the victim), "ok", "either" (the same for all of them),
-- "each" (either, each for itself), "ended" (in whatever way); and whether the deadline may be what ends their wait.
function wanted.outcome(phase, fault, victim, key)
   if phase == "connect" and key and (fault == "truncated" or fault == "garbage") then
      return "ended", true -- a damaged record, perhaps of a handshake: nobody can tell whose fault that is
   elseif phase == "shutdown" and victim == 0 and (fault == "blackhole" or fault == "netns") then
      return "each" -- rank 0 has heard that the update ended well, and perhaps that did not reach the others any more
   elseif phase == "shutdown" or fault == "delay" then
      return "ok"
   elseif phase ~= "connect" then
      return fault == "alloc" and "either" or "named", fault == "late"
   elseif fault == "cut" or fault == "garbage" then
      return "ok" -- it joins again
   end
   return fault == "alloc" and "either" or "named", victim == 0 or FIRST_MISSED_AT_THE_DEADLINE[fault] or false
end

--- Whether a text names a rank: "rank 3", "ranks 0 and 3", "ranks 1-3".
local function names(text, rank)
   for list in text:gmatch("ranks? ([%d, and-]+)") do
      for first, last in list:gmatch("(%d+)%-(%d+)") do
         if tonumber(first) <= rank and rank <= tonumber(last) then
            return true
         end
      end
      for number in list:gmatch("%d+") do
         if tonumber(number) == rank then
            return true
         end
      end
   end
   return false
end

--- Whether an error has the right cause. Rank 0's connections are cut one after the other: one that still stands may carry
-- the news of one that does not.
local function is_right(case, rank)
   return rank.named == case.victim or names(rank.text, case.victim)
      or case.fault == "cut" and case.victim == 0 and rank.text:find("was lost: its connection ended", 1, true) ~= nil
end

--- Whether nccl_m2n itself moved the tensors, and not what stands in for it and for GPUs.
local function by_real_m2n(case, rank)
   return case.road == "m2n" and rank.open_before:find("/dev/nvidia", 1, true) ~= nil
end

--- Whether a rank could not begin again because a process has lost its GPU, as nccl_m2n can make it: its stream goes on
-- waiting for a rank that is gone, and nothing but the loss of its memory ends that. Errors say so.
local function lost_its_gpu(case, rank)
   return by_real_m2n(case, rank) and (rank.again:find("has lost that GPU: start it anew", 1, true)
      or rank.again:find("nccl_m2n works in it no more: start the process anew", 1, true)) ~= nil
end

local function judge_answer(case, rank, want, deadline_allowed)
   if rank.status == "ok" then
      return want == "named" and "succeeded, it must end with an error" or nil
   elseif want == "ok" then
      return "must succeed: " .. rank.text
   elseif want ~= "ended" and not is_right(case, rank) then
      return ("does not name rank %d: %s"):format(case.victim, rank.text)
   elseif rank.status == "deadline passed" and not deadline_allowed then
      return "noticed only at the deadline: " .. rank.text
   elseif not rank.lists then
      return "its report of the failure leaves parameters out"
   end
end

--- How many descriptors and threads more a process may have after it used a road. On GPUs NCCL 2.30 and nccl_m2n keep some from
-- their first use on, and CUDA's runtime, by which they go, keeps a GPU's context, whose own were not counted at first where a
-- process is new, or has another GPU in a smaller world.
local function kept(case, rank, at)
   if not by_real_m2n(case, rank) then
      return 0, 0
   end
   return at == 3 and (rank.fresh or case.smaller) and 44 or 24, 2
end

local function judge_process(case, rank, over)
   local descriptors, threads = kept(case, rank, 2)
   local descriptors_at_the_end = kept(case, rank, 3)
   local function grew(counts, at, most)
      return counts[at] > counts[1] + most or counts[at] < counts[1]
   end
   if rank.hung then
      return ("hangs in %s"):format(rank.settled and "the second world" or rank.call)
   elseif over then
      return
   elseif rank.signal ~= 0 or rank.exit ~= 0 then
      return ("ended with %s %d"):format(rank.signal ~= 0 and "signal" or "exit status", rank.signal ~= 0 and rank.signal or rank.exit)
   elseif not rank.fresh and grew(rank.descriptors, 2, descriptors) then
      return ("has %d descriptors after shutdown (%s), it had %d (%s)"):format(rank.descriptors[2] - 2, rank.open_after,
         rank.descriptors[1] - 2, rank.open_before)
   elseif not rank.fresh and grew(rank.threads, 2, threads) then
      return ("has %d threads after shutdown, it had %d"):format(rank.threads[2] - 2, rank.threads[1] - 2)
   elseif rank.descriptors[3] > rank.descriptors[1] + descriptors_at_the_end then
      return ("has %d descriptors at its end (%s), it had %d (%s)"):format(rank.descriptors[3] - 2, rank.open_at_the_end,
         rank.descriptors[1] - 2, rank.open_before)
   elseif grew(rank.threads, 3, threads) then
      return ("has %d threads at its end, it had %d"):format(rank.threads[3] - 2, rank.threads[1] - 2)
   end
end

--- Judges what the driver printed for a case ({phase, fault, victim, smaller, key, road}).
-- @return list of what is wrong, each with its rank; the worst time of the other ranks; "named" or "ok"; how many ranks
--    could not begin again because a process of theirs lost its GPU (road "m2n" alone)
function wanted.judge(case, said)
   local want, deadline_allowed = wanted.outcome(case.phase, case.fault, case.victim, case.key)
   local wrong, worst, answers, lost = {}, 0, {}, 0
   local function note(rank, text)
      if text then
         wrong[#wrong + 1] = ("rank %d%s %s"):format(rank.rank, rank.fresh and " (the new one)" or "", text)
      end
   end
   for _, rank in ipairs(said.ranks) do
      lost = lost + (lost_its_gpu(case, rank) and 1 or 0) -- then there is no new world, and how a process ends is CUDA's
   end
   for _, rank in ipairs(said.ranks) do
      local is_victim = rank.rank == case.victim and not rank.fresh
      local gone = is_victim and not rank.settled and (case.fault == "kill" or case.fault == "exit")
      if not rank.fresh and (not is_victim or want == "ok" and not gone) then
         note(rank, judge_answer(case, rank, want, deadline_allowed))
         answers[rank.status == "ok" and "ok" or "named"] = true
         worst = is_victim and worst or math.max(worst, rank.after_s)
      end
      note(rank, judge_process(case, rank, gone or lost > 0))
      if lost == 0 and rank.again ~= "ok" and not rank.hung and not gone and not (is_victim and case.smaller) then
         note(rank, "cannot begin again: " .. (rank.again == "" and "it did not come to it" or rank.again))
      end
   end
   if want == "either" and answers.ok and answers.named then
      wrong[#wrong + 1] = "some ranks succeeded and some did not"
   end
   if said.shared_memory > 0 then
      wrong[#wrong + 1] = ("%d files stay in /dev/shm"):format(said.shared_memory)
   end
   if said.link then
      wrong[#wrong + 1] = "the network link stays"
   end
   if not said.injured then
      wrong[#wrong + 1] = "the fault never happened"
   end
   if said.reports ~= "" then
      wrong[#wrong + 1] = "a sanitizer reports:\n" .. said.reports
   end
   return wrong, worst, answers.named and "named" or "ok", lost
end

return wanted
