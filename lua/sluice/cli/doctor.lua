--- sluice doctor: what this machine has for Sluice, whether that is good, and what to do about it.

local native = require "sluice.native"
local findings = require "sluice.doctor".findings
local json = require "sluice.cli.json"
local units = require "sluice.cli.units"

local doctor = {
   name = "doctor", summary = "Says what this machine has: limits, permissions, GPUs, libraries, and what to do about each.",
   example = "sluice doctor --port 29500\n\n"
      .. "Exit codes: 0 the host transport can work here; 1 it cannot; 2 wrong usage. With --json one object: `good` (whether it can\n"
      .. "work) and `findings`, a list of `what`, `state` (good, note or bad), `found` and, unless it is good, `advice`.",
}

function doctor.configure(parser)
   parser:option("--port", "Try whether rank 0 could listen on this port."):convert(function(text)
      local number = tonumber(text)
      if not number or number < 1 or number > 65535 or number % 1 ~= 0 then
         return nil, ("'%s' is no port: 1 to 65535"):format(text)
      end
      return number
   end)
   parser:flag("--json", "Print one JSON object on standard output.")
end

-- The first line of a file of the kernel's, or nil.
local function line_of(path)
   local file = io.open(path, "r")
   local line = file and file:read("*l")
   if file then
      file:close()
   end
   return line
end

local function cards()
   local list = {}
   local names = native.folder("/sys/class/infiniband") or {}
   table.sort(names)
   for i, name in ipairs(names) do
      list[i] = { name = name, rate = line_of("/sys/class/infiniband/" .. name .. "/ports/1/rate") }
   end
   return list
end

local function gather(port)
   local facts = native.facts(port)
   local low, high = (line_of("/proc/sys/net/ipv4/ip_local_port_range") or ""):match("(%d+)%s+(%d+)")
   facts.port = port
   facts.port_range = low and { tonumber(low), tonumber(high) }
   facts.ptrace_scope = tonumber(line_of("/proc/sys/kernel/yama/ptrace_scope"))
   facts.driver_release = (line_of("/proc/driver/nvidia/version") or ""):match("%s(%d+%.%d[%d.]*)%s")
   facts.cards = cards()
   facts.lua = require "jit".version
   return facts
end

local function write(result)
   local marks, indent = { good = "ok  ", note = "note", bad = "BAD " }, (" "):rep(25)
   local most = math.max(40, native.columns(1) - 28)
   for _, finding in ipairs(result.findings) do
      io.stdout:write(("%s  %-18s %s\n"):format(marks[finding.state], finding.what,
         table.concat(units.lines(finding.found, most + 2), "\n" .. indent)))
      if finding.advice then
         io.stdout:write(indent, "> ", table.concat(units.lines(finding.advice, most), "\n" .. indent .. "  "), "\n")
      end
   end
   io.stdout:write(result.good and "\nThe host transport can work here.\n" or "\nThe host transport cannot work here.\n")
end

function doctor.run(args)
   local list, works = findings(gather(args.port))
   json.answer(args, { good = works, findings = json.list(list) }, write)
   return works and 0 or 1
end

return doctor
