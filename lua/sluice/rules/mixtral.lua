-- Mixtral: Llama's attention, and experts under names of its own: w1 is gate, w3 up, w2 down.

local layer = "model.layers.{l}."

return {
   name = "mixtral",
   extends = "moe",
   rename = {
      { layer .. "block_sparse_moe.experts.{e}.w1.weight", layer .. "mlp.experts.{e}.gate_proj.weight" },
      { layer .. "block_sparse_moe.experts.{e}.w3.weight", layer .. "mlp.experts.{e}.up_proj.weight" },
      { layer .. "block_sparse_moe.experts.{e}.w2.weight", layer .. "mlp.experts.{e}.down_proj.weight" },
      { layer .. "block_sparse_moe.**", layer .. "mlp.**" },
   },
   rename_live = { { layer .. "mlp.**", layer .. "block_sparse_moe.**" } },
}
