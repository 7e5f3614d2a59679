-- Llama in fp8 or int8 with a scale for each row (output channel) of a weight, [rows, 1], as compressed-tensors has them: every rule of
-- the family holds for the scales, too.

return {
   name = "fp8_rows",
   extends = "llama",
   full = policy { quantization = "compressed-tensors", pipeline = true },
   scales = { ending = "_scale", block = { 1, "*" } },
   rules = {},
}
