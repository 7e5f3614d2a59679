local ffi = require "ffi"
local inside = require "spec.support.inside"
local control = require "spec.support.control"

describe("word", function()
   local C = control.open()

   local function read_error(bytes)
      local reader = ffi.new("slc_reader", {ffi.cast("const unsigned char *", bytes), #bytes, 0, false})
      local err = inside.error()
      C.slc_word_read_error(reader, err)
      return not reader.failed and control.outcome(err.status, err) or nil
   end

   it("carries an error whole", function()
      local err, bytes = control.failure(control.status.callback, "update", "load_weights said no"), ffi.new("slc_buffer")
      err.rank = 3
      C.slc_word_write_error(bytes, err)
      local read = read_error(ffi.string(bytes.data, bytes.length))
      C.slc_buffer_clear(bytes)
      assert.same({status = control.status.callback, rank = 3, stage = "update", text = "update: load_weights said no"}, read)
   end)

   it("takes a status that does not exist, or OK, for a failed peer", function()
      for _, status in ipairs({0, 99, 2 ^ 32 - 1}) do
         local read = read_error(control.u32(status) .. control.u32(2) .. control.string("s") .. control.string("t"))
         assert.same({status = control.status.peer, rank = 2, stage = "s", text = "t"}, read)
      end
   end)

   it("gives an error without a text that of its status", function()
      for _, text in ipairs({"", "update: "}) do
         local read = read_error(control.u32(4) .. control.u32(2) .. control.string("update") .. control.string(text))
         assert.equal("update: " .. ffi.string(C.sluice_status_text(4)), read.text)
      end
      assert.equal(ffi.string(C.sluice_status_text(4)), read_error(control.u32(4) .. control.u32(2) .. control.string("") ..
         control.string("")).text)
   end)

   it("refuses an envelope with two statuses", function()
      local envelope, err = ffi.new("slc_envelope"), inside.error()
      local function read(outer, inner)
         local whole = ("\0"):rep(17) .. control.string("s") .. control.u32(outer) .. control.u32(inner) .. control.u32(1)
            .. control.string("s") .. control.string("t")
         return C.slc_word_read_envelope(ffi.cast("const unsigned char *", whole), #whole, envelope, err)
      end
      assert.is_true(read(4, 4))
      assert.is_false(read(4, 5))
      assert.is_false(read(4, 0))
   end)

   it("refuses every truncation, and texts with zero bytes or beyond their bound", function()
      local whole = control.u32(5) .. control.u32(2) .. control.string("stage") .. control.string("text")
      assert.is_table(read_error(whole))
      for length = 0, #whole - 1 do
         assert.is_nil(read_error(whole:sub(1, length)))
      end
      assert.is_nil(read_error(control.u32(5) .. control.u32(2) .. control.string("st\0ge") .. control.string("text")))
      assert.is_nil(read_error(control.u32(5) .. control.u32(2) .. control.string(("s"):rep(32)) .. control.string("text")))
      assert.is_nil(read_error(control.u32(5) .. control.u32(2) .. control.string("s") .. control.string(("t"):rep(4096))))
      assert.is_nil(read_error(control.u32(5) .. control.u32(2) .. control.u32(2 ^ 32 - 1) .. "s"))
   end)

   it("reads envelopes and refuses every truncation of their head", function()
      local whole = control.envelope("source", "body")
      local envelope, err = ffi.new("slc_envelope"), inside.error()
      local bytes = ffi.cast("const unsigned char *", whole)
      assert.is_true(C.slc_word_read_envelope(bytes, #whole, envelope, err))
      assert.same({"source", "body", 0}, {ffi.string(envelope.stage), ffi.string(envelope.body, envelope.length), envelope.kind})
      for length = 0, #whole - 5 do
         assert.is_false(C.slc_word_read_envelope(bytes, length, envelope, err))
      end
   end)

   it("never reads beyond random bytes", function()
      local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time()
      math.randomseed(seed)
      local envelope, claim, err = ffi.new("slc_envelope"), ffi.new("slc_claim"), inside.error()
      for round = 1, 5000 do
         local bytes = {}
         for i = 1, math.random(0, 80) do
            bytes[i] = string.char(math.random() < 0.6 and math.random(0, 8) or math.random(0, 255))
         end
         local text = table.concat(bytes)
         local data = ffi.new("unsigned char[?]", math.max(#text, 1))
         ffi.copy(data, text, #text)
         if C.slc_word_read_envelope(data, #text, envelope, err) and envelope.status == 0 then
            local past = tonumber(envelope.body - data) + tonumber(envelope.length)
            assert.equal(#text, past, ("SLUICE_SEED=%d round %d"):format(seed, round))
         end
         C.slc_claim_read(data, #text, claim)
      end
   end)

   it("sees a deadline of another rank a little early, a hostile one within ten years", function()
      local deadline = C.slc_word_deadline(10000, 20000)
      local left = tonumber(deadline.at_ns - C.slc_now_ns()) * 1e-9
      assert.is_true(left > 9 and left <= 9.5)
      assert.equal(20, deadline.seconds)
      assert.is_true(C.slc_word_deadline(-1, -1).seconds == 3.2e8)
      assert.is_true(C.slc_word_deadline(2LL ^ 62, 2LL ^ 62).seconds == 3.2e8)
      assert.is_true(C.slc_deadline_passed(C.slc_word_deadline(0, 0)))
   end)

   it("strips a stage that stands in front, and no other", function()
      assert.equal("no", ffi.string(C.slc_word_bare("source", "source: no")))
      assert.equal("init: no", ffi.string(C.slc_word_bare("source", "init: no")))
      assert.equal("sourced: no", ffi.string(C.slc_word_bare("source", "sourced: no")))
   end)
end)

describe("claim", function()
   local C = control.open()

   local function read(bytes)
      local claim = ffi.new("slc_claim")
      if C.slc_claim_read(ffi.cast("const unsigned char *", bytes), #bytes, claim) then
         return claim
      end
   end

   it("carries who a rank is", function()
      local made, bytes = ffi.new("slc_claim"), ffi.new("slc_buffer")
      assert.equal(0, C.slc_claim_make(2, 5, C.slc_deadline_in(3), 0.25, made, nil))
      C.slc_claim_write(bytes, made)
      assert.is_true(bytes.length <= 1024)
      local claim = read(ffi.string(bytes.data, bytes.length))
      C.slc_buffer_clear(bytes)
      assert.same({2, 5, 3000, 250}, {claim.rank, claim.world_size, tonumber(claim.total_ms), claim.beat_ms})
      assert.equal(ffi.string(made.nonce, 16), ffi.string(claim.nonce, 16))
      assert.equal(ffi.string(made.host), ffi.string(claim.host))
      assert.is_true(claim.process == require("posix.unistd").getpid())
   end)

   it("is refused when it is cut, too long, or its host is no name", function()
      local whole = control.claim({rank = 1, world = 2})
      assert.is_truthy(read(whole))
      for length = 0, #whole - 1 do
         assert.is_nil(read(whole:sub(1, length)))
      end
      assert.is_nil(read(whole .. "x"))
      assert.is_nil(read(control.claim({rank = 1, world = 2, host = ""})))
      assert.is_nil(read(control.claim({rank = 1, world = 2, host = ("h"):rep(256)})))
      assert.is_nil(read(control.claim({rank = 1, world = 2, host = "a\0b"})))
   end)

   it("keeps the host name printable", function()
      local text = ffi.new("char[512]")
      C.slc_claim_who(read(control.claim({rank = 1, world = 2, host = "a b\27\200c"})), "10.0.0.1:7", text)
      assert.equal("process 77 on a?b??c, 10.0.0.1:7", ffi.string(text))
   end)
end)
