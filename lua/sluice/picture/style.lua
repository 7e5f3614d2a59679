--- Colours and types of all pictures, for a light and a dark screen: h1 to h9 grow with a value, c1 to c10 tell things apart.

local style = {}

style.STEPS, style.COLOURS = 9, 10

local light = {
   paper = "#ffffff", panel = "#f3f5f8", ink = "#1d232b", quiet = "#59636e", line = "#d3dae2", edge = "#ffffff",
   h = { "#e3effb", "#c5ddf5", "#a0c6ed", "#76ace1", "#4d90d3", "#2f75bf", "#1e5ca3", "#154784", "#0c3263" },
   c = { "#3f6fd1", "#e8a317", "#e4604c", "#4fb3a0", "#3a9d4c", "#e27bb1", "#8d5bd6", "#7aa6e8", "#96694a", "#868e99" },
}
local dark = {
   paper = "#14181d", panel = "#1e242b", ink = "#e4e9ef", quiet = "#98a4b1", line = "#343d48", edge = "#14181d",
   h = { "#173049", "#1b4163", "#1f5380", "#27679d", "#347dba", "#4b95d2", "#6cade4", "#95c6f2", "#c3e0fb" },
   c = { "#6f97ea", "#f0b94a", "#f07f6c", "#6cc9b6", "#5fbb6e", "#ee97c3", "#a985e6", "#9bc0f5", "#bb8c6a", "#a0a8b3" },
}

local function variables(colours)
   local items = {}
   for _, name in ipairs({ "paper", "panel", "ink", "quiet", "line", "edge" }) do
      items[#items + 1] = ("--%s:%s"):format(name, colours[name])
   end
   for _, kind in ipairs({ "h", "c" }) do
      for i, value in ipairs(colours[kind]) do
         items[#items + 1] = ("--%s%d:%s"):format(kind, i, value)
      end
   end
   return table.concat(items, ";")
end

local function fills()
   local items = {}
   for kind, count in pairs({ h = style.STEPS, c = style.COLOURS }) do
      for i = 1, count do
         items[#items + 1] = (".%s%d{fill:var(--%s%d)}"):format(kind, i, kind, i)
      end
   end
   table.sort(items)
   return table.concat(items, "\n")
end

--- The style sheet of a picture.
style.sheet = ":root{color-scheme:light dark;" .. variables(light) .. "}\n"
   .. "@media (prefers-color-scheme:dark){:root{" .. variables(dark) .. "}}\n"
   .. [[
svg{background:var(--paper);font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
text{fill:var(--ink)}
.quiet{fill:var(--quiet)}
.small{font-size:10.5px}
.head{font-size:15px;font-weight:600}
.paper{fill:var(--paper)}
.panel{fill:var(--panel)}
.rule{stroke:var(--line);stroke-width:1}
.cell{stroke:var(--edge);stroke-width:.5}
.piece{stroke:var(--edge);stroke-width:.6;stroke-opacity:.7}
.fine{shape-rendering:crispEdges}
.frame{fill:none;stroke:var(--ink);stroke-width:1.4}
.faint{opacity:.35}
.on{fill:var(--paper);font-weight:600;pointer-events:none}
]] .. fills()

--- The class of a value from 0 to `most`: nil for 0, else h1 to h9.
function style.step(value, most)
   if value <= 0 or most <= 0 then
      return nil
   end
   return "h" .. math.max(1, math.min(style.STEPS, math.ceil(value / most * style.STEPS - 1e-9)))
end

--- The class of a shape that is small beside its neighbours: with an edge, where an edge leaves enough of it.
function style.piece(width, height)
   return width >= 4 and height >= 4 and "piece" or "fine"
end

--- How the i-th of `count` things is filled: a class, or where there are too many a style.
function style.colour(i, count)
   if count <= style.COLOURS then
      return "c" .. i, nil
   end
   return nil, ("fill:hsl(%.0f 58%% %d%%)"):format((i - 1) * 360 / count, i % 2 == 0 and 47 or 58)
end

return style
