--- What the specs of src/control share: groups and rounds from Lua, frames as bytes, and raw connections that misbehave.

local ffi = require "ffi"
local inside = require "spec.support.inside"
local poll = require "posix.poll"
local socket = require "posix.sys.socket"
local unistd = require "posix.unistd"
local world = require "spec.support.world"

local control = {}

control.status = {ok = 0, invalid = 1, no_memory = 3, system = 4, timeout = 5, peer = 6, disagree = 7, unsupported = 9, cancelled = 10,
                  callback = 11}
control.frame_type = {join = 1, refuse = 2, welcome = 3, envelope = 4, verdict = 5, abort = 6, leave = 7, beat = 8, recall = 9}

local library

--- The library with control's headers declared.
function control.open()
   library = library or inside.declare("control/agree.h", "control/address.h", "control/claim.h", "control/text.h", "control/word.h",
                                       "control/secure.h")
   return library
end

--- An error as a table.
function control.outcome(status, err)
   return {status = tonumber(status), rank = err.rank, stage = ffi.string(err.stage), text = ffi.string(err.text)}
end

--- Processes, hosts, addresses and ports of a run out of a text, so that the rest can be compared.
function control.tidy(text)
   return (text:gsub("%(process %d+ on [^,]+, [^)]+%)", "(process)"):gsub("127%.0%.0%.1:%d+", "127.0.0.1:PORT"))
end

--- An error of this status and stage, for a rank's word.
function control.failure(status, stage, text)
   local err = inside.error()
   err.status = status
   ffi.copy(err.stage, stage)
   ffi.copy(err.text, stage .. ": " .. text)
   return err
end

--- The key that holds these bytes; it is freed with the process.
function control.key(bytes)
   local C = control.open()
   local read_end, write_end = unistd.pipe()
   unistd.write(write_end, bytes)
   unistd.close(write_end)
   local key, err = ffi.new("slc_key *[1]"), inside.error()
   assert(C.slc_key_read_descriptor(read_end, key, err) == 0, inside.text(err))
   return key[0]
end

--- Joins. options: rank, world, port, address ("127.0.0.1"), listen_fd, seconds (10), cancelled (a bool[1]), log (a list that
-- gets the lines), key (bytes), insecure, beat_s. Returns the group, or nil and the outcome.
function control.join(options)
   local C = control.open()
   local given = ffi.new("slc_rendezvous_options")
   local address = options.address or "127.0.0.1"
   given.address = address
   given.port = options.port
   given.listen_fd = options.rank == 0 and options.listen_fd or -1
   given.rank = options.rank
   given.world_size = options.world
   given.deadline = C.slc_deadline_in(options.seconds or 10)
   if options.cancelled then
      given.cancelled = options.cancelled
   end
   if options.log then
      jit.off()
      given.log.write = function(_, _, text)
         table.insert(options.log, ffi.string(text))
      end
   end
   given.key = options.key and control.key(options.key) or nil
   given.insecure = options.insecure or false
   given.beat_s = options.beat_s or 0
   local group, err = ffi.new("slc_group *[1]"), inside.error()
   local status = C.slc_rendezvous_join(given, group, err)
   if status ~= 0 then
      return nil, control.outcome(status, err)
   end
   return group[0]
end

-- Every body must be that of the first rank that gives one.
local function same_bodies(_, word, count, _, err)
   local first
   for i = 0, count - 1 do
      local body = word[i].length > 0 and ffi.string(word[i].body, word[i].length)
      first = first or body
      if body and body ~= first then
         err.rank = word[i].rank
         ffi.copy(err.stage, word[i].stage)
         ffi.copy(err.text, ffi.string(word[i].stage) .. ": bodies differ")
         return control.status.disagree
      end
   end
   return 0
end

--- One round. options: stage ("source"), mine (an error), body (""), judge (on rank 0: a Lua function, or "equal"), seconds (10).
-- Returns the outcome; on success its `answer` is the answer.
function control.round(group, options)
   local C = control.open()
   local answer, err = ffi.new("slc_buffer"), inside.error()
   local body = options.body or ""
   local judge = group.rank == 0 and options.judge or nil
   if judge then
      jit.off() -- it is called from inside of a call
      judge = ffi.cast("slc_judge", judge == "equal" and same_bodies or judge)
   end
   local status = C.slc_group_round_to(group, options.stage or "source", options.mine, body, #body, judge, nil, options.readers or 0,
                                       options.head or 0, answer, C.slc_deadline_in(options.seconds or 10), err)
   if judge then
      judge:free()
   end
   if status ~= 0 then
      return control.outcome(status, err)
   end
   local text = answer.length > 0 and ffi.string(answer.data, answer.length) or ""
   C.slc_buffer_clear(answer)
   return {status = 0, answer = text}
end

--- One exchange: this rank's card and the ranks whose cards it wants. Returns the outcome; on success `cards` answers `wanted`.
function control.exchange(group, card, wanted, options)
   local C = control.open()
   options = options or {}
   local err, store = inside.error(), ffi.new("slc_buffer")
   local ranks = ffi.new("int32_t[?]", math.max(#wanted, 1), wanted)
   local cards, lengths = ffi.new("const unsigned char *[?]", #wanted + 1), ffi.new("size_t[?]", #wanted + 1)
   local status = C.slc_group_exchange(group, options.stage or "connect", options.mine, card, #card, ranks, #wanted, store, cards,
                                       lengths, C.slc_deadline_in(options.seconds or 10), err)
   if status ~= 0 then
      return control.outcome(status, err)
   end
   local got = {}
   for i = 1, #wanted do
      got[i] = ffi.string(cards[i - 1], lengths[i - 1])
   end
   C.slc_buffer_clear(store)
   return {status = 0, cards = got}
end

--- Runs a whole world on the loopback interface: every rank joins, then body(group, rank) runs, then leaves. What body
-- returns is the rank's result; a rank that cannot join gives its outcome.
function control.world(count, body, options)
   options = options or {}
   local listener, port = world.listen()
   local results = world.run(count, function(rank)
      local group, failure = control.join({rank = rank, world = count, port = port, listen_fd = listener, seconds = options.seconds,
         beat_s = options.beat_s})
      if not group then
         return failure
      end
      local result = body(group, rank)
      control.open().slc_group_leave(group)
      return result
   end, {timeout = options.timeout or 30, meanwhile = options.meanwhile})
   unistd.close(listener)
   return results
end

local set_when_told -- kept, since a thread calls it

--- Compiles what set_later needs, so that ranks which are forked afterwards need not.
function control.prepare_timer()
   if not set_when_told then
      local path = os.tmpname()
      local source = assert(io.popen(("cc -shared -fPIC -pthread -x c -o %s.so -"):format(path), "w"))
      source:write([[
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>
struct order { volatile bool *flag; unsigned ms; };
static void *obey(void *context)
{
    struct order *order = context;
    usleep(order->ms * 1000);
    *order->flag = true;
    free(order);
    return NULL;
}
void slc_spec_set_later(volatile bool *flag, unsigned ms)
{
    pthread_t thread;
    struct order *order = malloc(sizeof *order);
    *order = (struct order){ flag, ms };
    pthread_create(&thread, NULL, obey, order);
    pthread_detach(thread);
}
]])
      source:close()
      ffi.cdef("void slc_spec_set_later(volatile bool *flag, unsigned ms);")
      set_when_told = ffi.load(path .. ".so")
      os.remove(path)
      os.remove(path .. ".so")
   end
end

--- Sets a bool[1] after some milliseconds, whatever this process does meanwhile: a small compiled thread does it.
function control.set_later(flag, milliseconds)
   control.prepare_timer()
   set_when_told.slc_spec_set_later(flag, milliseconds)
end

-- ---- bytes ----

local function little_endian(value, bytes)
   local text = {}
   for i = 1, bytes do
      text[i] = string.char(value % 256)
      value = math.floor(value / 256)
   end
   return table.concat(text)
end

control.u32 = function(value) return little_endian(value % 2 ^ 32, 4) end
control.u64 = function(value) return little_endian(value, 8) end

function control.string(text)
   return control.u32(#text) .. text
end

--- A frame as bytes. options: type (a name or number), tag (0), payload (""), and to lie: magic, version, length, reserved.
function control.frame(options)
   local payload = options.payload or ""
   return (options.magic or "SLCE") .. control.u32(options.version or 1) .. control.u32(control.frame_type[options.type] or options.type)
      .. control.u32(options.tag or 0) .. control.u32(options.length or #payload) .. control.u32(options.reserved or 0) .. payload
end

--- The payload of a JOIN. options: rank, world, left_ms (10000), process (77), beat_ms (0), nonce, host ("elsewhere").
function control.claim(options)
   local left = options.left_ms or 10000
   return control.u32(options.rank) .. control.u32(options.world) .. control.u64(left) .. control.u64(left)
      .. control.u64(options.process or 77) .. control.u32(options.beat_ms or 0)
      .. (options.nonce or ("n"):rep(16)) .. control.string(options.host or "elsewhere")
end

function control.join_frame(options)
   return control.frame({type = "join", payload = control.claim(options), version = options.version})
end

--- The payload of an ENVELOPE that says `body` in a round of this stage.
function control.envelope(stage, body, left_ms)
   return control.u64(left_ms or 10000) .. control.u64(left_ms or 10000) .. "\0" .. control.string(stage) .. control.u32(0) .. body
end

-- ---- raw connections ----

function control.connect(port)
   local fd = assert(socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0))
   assert(socket.connect(fd, {family = socket.AF_INET, addr = "127.0.0.1", port = port}))
   return fd
end

function control.send(fd, bytes)
   while #bytes > 0 do
      local sent = socket.send(fd, bytes)
      if not sent then
         return false
      end
      bytes = bytes:sub(sent + 1)
   end
   return true
end

--- Reads `count` bytes, or to the end; gives what came, and whether the end was seen, within `seconds` (10).
function control.read(fd, count, seconds)
   local parts, total, deadline = {}, 0, world.now() + (seconds or 10)
   while not count or total < count do
      local left = math.floor((deadline - world.now()) * 1000)
      if left <= 0 or poll.rpoll(fd, left) == 0 then
         return table.concat(parts), false
      end
      local text = unistd.read(fd, count and count - total or 65536)
      if not text or text == "" then
         return table.concat(parts), true
      end
      parts[#parts + 1], total = text, total + #text
   end
   return table.concat(parts), false
end

local function number_at(text, position)
   local a, b, c, d = text:byte(position, position + 3)
   return a + b * 256 + c * 65536 + d * 16777216
end

--- One frame: {version, type, tag, payload}, or nil at the end.
function control.read_frame(fd, seconds)
   local header = control.read(fd, 24, seconds)
   if #header < 24 then
      return nil
   end
   return {version = number_at(header, 5), type = number_at(header, 9), tag = number_at(header, 13),
           payload = control.read(fd, number_at(header, 17), seconds)}
end

--- The error in the payload of a REFUSE or ABORT.
function control.read_error(payload)
   local stage_length = number_at(payload, 9)
   local text_at = 13 + stage_length
   return {status = number_at(payload, 1), rank = number_at(payload, 5), stage = payload:sub(13, 12 + stage_length),
           text = payload:sub(text_at + 4, text_at + 3 + number_at(payload, text_at))}
end

--- Joins as options say, agrees once when that worked, and leaves: the round's result, or why it did not join.
function control.join_and_agree(options)
   local group, failure = control.join(options)
   if not group then
      failure.text = control.tidy(failure.text)
      return failure
   end
   local result = control.round(group, {body = "same", judge = "equal"})
   control.open().slc_group_leave(group)
   return result
end

return control
