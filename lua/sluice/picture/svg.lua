--- Builds SVG: shapes with classes of sluice.picture.style, a text for whoever points at one, groups at a place.

local svg = {}
svg.__index = svg

local escapes = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;", ["'"] = "&#39;" }

--- A text as it may stand between tags and in attributes; control characters and bytes that are no UTF-8 become '?'.
function svg.escape(text)
   text = tostring(text):gsub("[%z\1-\31\127]", "?"):gsub("[&<>\"']", escapes)
   -- What is left of a well-formed text after its sequences are taken out is ASCII.
   local rest = text:gsub("[\194-\223][\128-\191]", ""):gsub("[\224-\239][\128-\191][\128-\191]", "")
      :gsub("[\240-\244][\128-\191][\128-\191][\128-\191]", "")
   return rest:find("[\128-\255]") and (text:gsub("[\128-\255]", "?")) or text
end

local function coordinate(value)
   return (("%.2f"):format(value):gsub("%.?0+$", ""))
end

--- An empty canvas.
function svg.new()
   return setmetatable({ parts = {} }, svg)
end

function svg:add(text)
   self.parts[#self.parts + 1] = text
   return self
end

local function closed(tag, attributes, tip, inner)
   local content = (inner or "") .. (tip and "<title>" .. svg.escape(tip) .. "</title>" or "")
   return content == "" and ("<%s%s/>"):format(tag, attributes) or ("<%s%s>%s</%s>"):format(tag, attributes, content, tag)
end

--- A rectangle. `options`: class, style, tip, round.
function svg:rect(x, y, width, height, options)
   local attributes = (' x="%s" y="%s" width="%s" height="%s"'):format(coordinate(x), coordinate(y), coordinate(math.max(0, width)),
      coordinate(math.max(0, height)))
   attributes = attributes .. (options.class and (' class="%s"'):format(options.class) or "")
      .. (options.style and (' style="%s"'):format(options.style) or "")
      .. (options.round and (' rx="%s"'):format(coordinate(options.round)) or "")
   return self:add(closed("rect", attributes, options.tip))
end

--- A line.
function svg:line(x1, y1, x2, y2, class)
   return self:add(('<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>'):format(coordinate(x1), coordinate(y1), coordinate(x2),
      coordinate(y2), class))
end

--- A text at a place. `options`: class, anchor ("start", "middle", "end"), tip, turned (reads upwards).
function svg:text(x, y, text, options)
   options = options or {}
   local attributes = (' x="%s" y="%s"'):format(coordinate(x), coordinate(y))
      .. (options.class and (' class="%s"'):format(options.class) or "")
      .. (options.anchor and (' text-anchor="%s"'):format(options.anchor) or "")
      .. (options.turned and (' transform="rotate(-90 %s %s)"'):format(coordinate(x), coordinate(y)) or "")
   return self:add(closed("text", attributes, options.tip, svg.escape(text)))
end

--- Another canvas at a place.
function svg:place(x, y, canvas)
   return self:add(('<g transform="translate(%s %s)">'):format(coordinate(x), coordinate(y))):add(canvas:body()):add("</g>")
end

--- All that was drawn.
function svg:body()
   return table.concat(self.parts, "\n")
end

--- A whole element of a size. `style` is put in for a file of its own.
function svg.element(width, height, body, style, label)
   return ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" width="%s" height="%s" role="img" aria-label="%s">\n%s%s\n</svg>\n')
      :format(coordinate(width), coordinate(height), coordinate(width), coordinate(height), svg.escape(label or "picture"),
         style and ("<style>%s</style>\n"):format(style) or "", body)
end

return svg
