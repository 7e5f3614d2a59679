--- Figures as one file: an SVG with all of them below each other, or a page of its own that asks for nothing.

local style = require "sluice.picture.style"
local svg = require "sluice.picture.svg"
local units = require "sluice.cli.units"

local page = {}

local MARGIN, HEAD = 24, 46
local LINE = 110 -- characters of a caption's line

--- One SVG of all figures. It has its own style and needs nothing else.
function page.svg(title, figures)
   local canvas, y, width = svg.new(), MARGIN, 0
   for _, figure in ipairs(figures) do
      width = math.max(width, figure.width)
   end
   local most = math.max(50, math.floor(width / 6.1))
   local body = svg.new()
   for _, figure in ipairs(figures) do
      body:text(MARGIN, y + 12, figure.title, { class = "head" })
      local lines = units.lines(figure.caption, math.min(LINE, most))
      for i, line in ipairs(lines) do
         body:text(MARGIN, y + 14 + i * 16, line, { class = "quiet" })
      end
      y = y + HEAD - 16 + #lines * 16
      body:place(MARGIN, y, figure.canvas)
      y = y + figure.height + MARGIN
   end
   canvas:rect(0, 0, width + 2 * MARGIN, y, { class = "paper" })
   canvas:add(body:body())
   return svg.element(width + 2 * MARGIN, y, canvas:body(), style.sheet, title)
end

local PAGE_STYLE = [[
*{box-sizing:border-box}
body{margin:0;padding:2rem clamp(1rem,4vw,3rem);background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
header{max-width:60rem;margin-bottom:2rem}
h1{font-size:1.5rem;margin:0 0 .3rem}
h2{font-size:1.05rem;margin:0 0 .2rem;overflow-wrap:anywhere}
p{margin:0 0 .8rem;color:var(--quiet);max-width:60rem}
section{margin-bottom:2.4rem;overflow-x:auto}
svg{max-width:none;display:block}
#tip{position:fixed;display:none;max-width:32rem;padding:.35rem .6rem;border-radius:.35rem;background:var(--ink);
color:var(--paper);font-size:13px;line-height:1.35;pointer-events:none;z-index:1;overflow-wrap:anywhere}
[data-tip]:hover{stroke:var(--ink);stroke-width:1.6;stroke-opacity:1}
]]

-- The browser itself keeps the page from asking for anything.
local POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

-- Exact figures appear at the pointer at once; without it browsers show each title after a while.
local SCRIPT = [[
(function () {
  var tip = document.getElementById("tip");
  document.querySelectorAll("svg title").forEach(function (title) {
    title.parentNode.setAttribute("data-tip", title.textContent);
    title.remove();
  });
  document.addEventListener("pointermove", function (event) {
    var at = event.target.closest && event.target.closest("[data-tip]");
    tip.style.display = at ? "block" : "none";
    if (!at) return;
    tip.textContent = at.getAttribute("data-tip");
    var x = event.clientX + 14, y = event.clientY + 14;
    tip.style.left = Math.max(4, Math.min(x, innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = (y + tip.offsetHeight > innerHeight - 8 ? event.clientY - tip.offsetHeight - 10 : y) + "px";
  });
})();
]]

--- A page that a browser opens from disk.
-- @param title
-- @param summary a sentence below it
-- @param figures
function page.html(title, summary, figures)
   local parts = { '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
      .. '<meta http-equiv="Content-Security-Policy" content="' .. POLICY .. '">\n'
      .. '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
      .. "<title>" .. svg.escape(title) .. "</title>\n<style>\n" .. style.sheet .. "\n" .. PAGE_STYLE
      .. "</style>\n</head>\n<body>\n<header><h1>"
      .. svg.escape(title) .. "</h1>\n<p>" .. svg.escape(summary) .. "</p></header>\n" }
   for _, figure in ipairs(figures) do
      parts[#parts + 1] = "<section>\n<h2>" .. svg.escape(figure.title) .. "</h2>\n<p>" .. svg.escape(figure.caption) .. "</p>\n"
         .. svg.element(figure.width, figure.height, figure.canvas:body(), nil, figure.title) .. "</section>\n"
   end
   parts[#parts + 1] = '<div id="tip" role="status"></div>\n<script>\n' .. SCRIPT .. "</script>\n</body>\n</html>\n"
   return table.concat(parts)
end

return page
