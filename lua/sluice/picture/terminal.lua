--- Pictures in a terminal: bars, shades and colours. Without colour everything is told by characters.

local terminal = {}

local eighths = { "▏", "▎", "▍", "▌", "▋", "▊", "▉" }
local shades = { "░", "▒", "▓", "█" }
local ramp = { 17, 18, 19, 25, 26, 32, 38, 44, 51 } -- of the 256 colours
local hues = { 75, 214, 203, 79, 71, 211, 141, 117, 137, 250, 45, 226, 161, 35, 99, 180 }

--- A bar of `width` columns that is full at 1; at least a sliver where the share is above 0.
function terminal.bar(share, width)
   local units = math.floor(share * width * 8 + 0.5)
   if share > 0 and units == 0 then
      units = 1
   end
   return ("█"):rep(math.floor(units / 8)) .. (eighths[units % 8] or ""), math.ceil(units / 8)
end

--- A text in one of the colours that tell things apart; as it is without colour.
function terminal.hue(text, number, colour)
   return colour and ("\27[38;5;%dm%s\27[0m"):format(hues[(number - 1) % #hues + 1], text) or text
end

--- `width` columns that stand for a value from 0 to `most`.
function terminal.shade(value, most, width, colour)
   if value <= 0 or most <= 0 then
      return ("·"):rep(1) .. (" "):rep(width - 1)
   elseif colour then
      local step = math.max(1, math.ceil(value / most * #ramp - 1e-9))
      return ("\27[48;5;%dm%s\27[0m"):format(ramp[step], (" "):rep(width))
   end
   return shades[math.max(1, math.ceil(value / most * #shades - 1e-9))]:rep(width)
end

local letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

--- The letter of the i-th thing; from the 53rd on '+'.
function terminal.letter(i)
   return i <= #letters and letters:sub(i, i) or "+"
end

return terminal
