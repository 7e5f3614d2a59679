--- sluice picture: what is drawn is what the plan says, at 2 and at 512 ranks; a page that asks for nothing, also in Chromium.

local files = require "scripts.files"
local program = require "spec.cli.program"

package.path = "lua/?.lua;" .. package.path
local boxes = require "sluice.picture.boxes"
local page = require "sluice.picture.page"
local svg = require "sluice.picture.svg"
local matrix = require "sluice.picture.matrix"

local DOWN = "model.layers.0.mlp.down_proj.weight"

local function picture(deployment, ...)
   local result = program.run({ "picture", deployment, ... })
   assert.same({}, result.left)
   return result
end

-- What --out writes.
local function drawn(ending, deployment, ...)
   local path = program.file("", ending)
   local arguments = { ... }
   arguments[#arguments + 1] = "--out"
   arguments[#arguments + 1] = path
   local result = picture(deployment, unpack(arguments))
   assert.equal(0, result.code, result.err)
   assert.truthy(result.out:find("^wrote " .. path:gsub("%p", "%%%0") .. ", [%d.]+ %u?B\n$"), result.out)
   local text = assert(files.read(path))
   return text, path
end

local function count(text, pattern)
   local _, times = text:gsub(pattern, "")
   return times
end

-- Every tag is closed, in order; the text between is free of angle brackets.
local function check_markup(text)
   local open = {}
   local body = text:gsub("<!%-%-.-%-%->", ""):gsub("<style>.-</style>", ""):gsub("<script>.-</script>", ""):gsub("<!doctype html>", "")
   for closing, name, rest in body:gmatch("<(/?)([%a][%w]*)([^<>]*)>") do
      if closing == "/" then
         assert.equal(open[#open], name)
         open[#open] = nil
      elseif not rest:find("/$") and name ~= "meta" and name ~= "link" then
         open[#open + 1] = name
      end
   end
   assert.same({}, open)
   assert.is_nil(body:gsub("<[^<>]*>", ""):find("[<>]"))
end

-- A page that is shown without being asked for anything from elsewhere.
local function check_alone(text)
   for address in text:gmatch("https?://[%w%.%-/]+") do
      assert.equal("http://www.w3.org/2000/svg", address) -- the name of a language
   end
   assert.is_nil(text:find("url(", 1, true))
   assert.is_nil(text:find("@import", 1, true))
   assert.is_nil(text:find("%ssrc="))
   for target in text:gmatch('%shref="([^"]*)"') do
      assert.equal("data:,", target)
   end
end

local function chromium()
   for _, name in ipairs({ "chromium", "chromium-browser", "google-chrome" }) do
      local pipe = io.popen("command -v " .. name)
      local path = pipe:read("*l")
      pipe:close()
      if path then
         return path
      end
   end
end

describe("sluice picture", function()
   after_each(program.cleanup)

   local two = { rules = "llama", trainer = { mesh = { { "dp", 1 } } }, worker = { mesh = { { "tp", 1 } } } }
   local large = { rules = "llama", trainer = { mesh = { { "fsdp", 256 } } }, worker = { mesh = { { "dp", 64 }, { "tp", 4 } } } }

   it("draws a page of five figures that is well formed and asks for nothing, at 2 and at 512 ranks", function()
      for _, changes in ipairs({ two, large }) do
         local text = drawn(".html", program.deployment(changes))
         check_markup(text)
         check_alone(text)
         assert.equal(5, count(text, "<svg "))
         assert.truthy(text:find("prefers-color-scheme:dark", 1, true))
         assert.truthy(text:find("default-src 'none'", 1, true))
      end
   end)

   it("draws a cell for a pair, and sums of neighbours with a word about it where there are too many", function()
      local text = drawn(".html", program.deployment(two))
      assert.equal(1, count(text, "→ worker rank 1: [^<]*bytes%)</title></rect>"))
      text = drawn(".html", program.deployment(large), "--parameter", "model.embed_tokens.weight")
      assert.equal(64 * 64, count(text, "<title>trainer ranks %d+%-%d+ → worker ranks %d+%-%d+: "))
      assert.truthy(text:find("There are 256 by 256 pairs: a cell is the sum of about 4 trainers by 4 workers.", 1, true))
      assert.truthy(text:find("There are 250 shards: up to 64 groups of neighbours are drawn a side.", 1, true))
   end)

   it("sums up the matrix to what all workers receive", function()
      local file = program.deployment({ rules = "llama" })
      local answer = program.json(picture(file, "--json"))
      local simulated = program.json(program.run({ "simulate", file, "--json" }))
      local received = simulated.strategies[1].bytes.received
      for column = 1, answer.workers do
         local sum = 0
         for _, row in ipairs(answer.matrix) do
            sum = sum + row[column]
         end
         assert.equal(received[answer.trainers + column], sum)
      end
   end)

   it("maps a parameter: every element that a worker wants comes from one shard", function()
      local parts = program.json(picture(program.deployment({ rules = "llama" }), "--json", "--parameter", DOWN)).parameter
      assert.same({ 3, 2 }, { #parts.sources, #parts.targets[1].workers }) -- fsdp 3; tp 2, each with a replica
      assert.equal(2, parts.targets[1].workers[1].replicas)
      local wanted, brought = {}, {}
      local function volume(box)
         local product = 1
         for _, range in ipairs(box) do
            product = product * (range[2] - range[1])
         end
         return product
      end
      for i, shard in ipairs(parts.targets[1].workers) do
         wanted[i], brought[i] = volume(shard.box), 0
      end
      for _, piece in ipairs(parts.targets[1].pieces) do
         brought[piece.worker] = brought[piece.worker] + volume(piece.box)
         for d, range in ipairs(piece.box) do
            local source, worker = parts.sources[piece.source].box[d], parts.targets[1].workers[piece.worker].box[d]
            assert(range[1] >= source[1] and range[2] <= source[2] and range[1] >= worker[1] and range[2] <= worker[2])
         end
      end
      assert.same(wanted, brought)
   end)

   it("draws only what was asked for into an SVG and into characters", function()
      local file = program.deployment({ rules = "llama" })
      local text = drawn(".svg", file, "--parameter", DOWN)
      check_markup(text)
      check_alone(text)
      assert.equal(1, count(text, "<svg "))
      assert.truthy(text:find(DOWN, 1, true))
      assert.truthy(text:find("A colour is a trainer shard", 1, true))
      assert.truthy(picture(file, "--parameter", DOWN).out:find("A letter is a trainer shard", 1, true))
      assert.is_nil(text:find("Who sends", 1, true))
      local result = picture(file, "--tensor", "model.layers.0.self_attn.qkv_proj.weight")
      assert.equal(0, result.code, result.err)
      assert.truthy(result.out:find("\n A model.layers.0.self_attn.q_proj.weight, 4.10 KB\n", 1, true))
      assert.is_nil(result.out:find("\27", 1, true)) -- no colour, for this is no terminal
      result = picture(file)
      assert.truthy(result.out:find("Who sends how much to whom", 1, true))
   end)

   it("shows the live tensor of the first worker that has it", function()
      local stages = { rules = "llama", worker = { mesh = { { "pp", 2 }, { "tp", 2 } } } }
      local live = program.json(picture(program.deployment(stages), "--json", "--tensor", "model.layers.1.self_attn.qkv_proj.weight")).live
      assert.equal(5, live.rank)
   end)

   it("says what is wrong with its arguments", function()
      local file = program.deployment({ rules = "llama" })
      local function refused(text, ...)
         local result = picture(file, ...)
         assert.equal(2, result.code)
         assert.equal("sluice: " .. text .. "\n", result.err)
      end
      refused("picture: --out (plan.png) must end in .html or .svg", "--out", "plan.png")
      refused("picture: no parameter is called model.norm.wight (did you mean model.norm.weight?)", "--parameter", "model.norm.wight")
      refused("picture: no live tensor of worker rank 3 is called model.norm.wight (did you mean model.norm.weight?)",
         "--tensor", "model.norm.wight")
      refused("picture: --rank 2 must be a worker's: 3 to 6", "--rank", "2")
      refused("picture: /nowhere/at/all.svg: No such file or directory", "--out", "/nowhere/at/all.svg")
   end)

   it("leaves what was there where the disk takes no more, and no half of a picture", function()
      local folder = program.shell("mktemp -d"):match("%S+")
      local text, code = program.shell(("echo old > %s/plan.html; ulimit -f 1; $SLUICE picture %s --out %s/plan.html"):format(folder,
         program.deployment({ rules = "llama" }), folder))
      assert.same({ ("sluice: picture: %s/plan.html: File too large\n"):format(folder), 1 }, { text, code })
      assert.equal("old\nplan.html\n", (program.shell(("cat %s/plan.html; ls %s; rm -r %s"):format(folder, folder, folder))))
   end)

   it("opens in Chromium without a request and without an error, light and dark", function()
      local browser = chromium()
      if not browser then
         pending("there is no Chromium here")
         return
      end
      local _, path = drawn(".html", program.deployment(two))
      for scheme = 0, 1 do
         local log, home = os.tmpname(), os.tmpname()
         os.remove(home)
         local pipe = io.popen(("timeout 120 %s --headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run "
            .. "--disable-component-update --disable-sync --host-resolver-rules='MAP * ~NOTFOUND' --user-data-dir=%s "
            .. "--blink-settings=preferredColorScheme=%d "
            .. "--log-net-log=%s --enable-logging=stderr --dump-dom file://%s 2>&1"):format(browser, home, scheme, log, path))
         local said = pipe:read("*a")
         pipe:close()
         local network = assert(files.read(log))
         os.remove(log)
         os.execute("rm -rf " .. home)
         assert.truthy(said:find("data-tip=", 1, true), said:sub(1, 2000)) -- the script ran
         assert.is_nil(said:find("CONSOLE", 1, true))
         assert.truthy(network:find('"constants"', 1, true))
         for address in network:gmatch('"url":"(%a+://[^"]*)"') do
            local own = address:find("^https?://[%w.-]*google[%w.-]*/") -- the browser's, whatever it shows
            assert(not address:find("^https?:") or own, address)
         end
      end
   end)
end)

describe("sluice.picture", function()
   it("escapes what stands in names, and what is no UTF-8", function()
      assert.equal("a&lt;b&gt;&amp;&quot;&#39;", svg.escape("a<b>&\"'"))
      assert.equal("é → ?", svg.escape("é → \1"))
      assert.equal("???", svg.escape("\255\27\195"))
      local canvas = svg.new()
      canvas:text(0, 0, "</text><script>alert(1)</script>", { tip = "]]><x>" })
      check_markup(svg.element(1, 1, canvas:body(), nil, '"><script>'))
      check_markup(page.html("<script>", "</p>", { { title = "<h2>", caption = "&", width = 1, height = 1, canvas = canvas } }))
   end)

   it("draws the dims that are cut, the lower one downwards", function()
      local dims, cut = boxes.dims({ 8, 4, 2 }, { { { 0, 8 }, { 0, 4 }, { 0, 1 } }, { { 0, 8 }, { 0, 2 }, { 1, 2 } } })
      assert.same({ { 2, 3 }, 2 }, { dims, cut })
      assert.same({ 1, 2 }, (boxes.dims({ 8, 4, 2 }, {})))
      assert.same({}, (boxes.dims({}, { {} })))
      assert.same({ 10, 20, 30, 40 }, { boxes.place({ { 2, 6 }, { 1, 4 } }, { 10, 10 }, { 1, 2 }, 100, 100) })
   end)

   it("finds what lies at each cell of a grid", function()
      local list = { { { 0, 2 }, { 0, 4 } }, { { 2, 4 }, { 0, 2 } } }
      assert.same({ { 1, 1 }, { 2 } }, boxes.raster(list, { 4, 4 }, { 1, 2 }, 2, 2))
      assert.same({ { 1, 1, 1, 1 } }, boxes.raster({ { } }, {}, {}, 1, 4))
   end)

   it("draws a matrix in which nothing moves", function()
      local figure = matrix.draw({ matrix = { { 0, 0 } }, trainers = 1, workers = 2 })
      assert.equal(2, count(figure.canvas:body(), 'class="cell panel"'))
   end)
end)
