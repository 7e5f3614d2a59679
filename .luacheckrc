std = "luajit"
max_line_length = false -- scripts/lint-tree.lua has the limit
exclude_files = {"build*"}
-- What the sandbox gives to rule files (lua/sluice/words.lua).
stds.rules = {
   read_globals = {
      "rule", "where", "span", "index", "shard", "pin", "column", "row", "replicate", "pick", "each", "divide", "ceil_divide", "round_up",
      "share", "spread", "required", "optional", "first", "live", "policy",
      host = {other_fields = true}, axes = {other_fields = true}, meshes = {other_fields = true},
   },
}
files["lua/sluice/rules"] = {std = "+rules"}
files["examples/**/*rules.lua"] = {std = "+rules"}
files["examples/rules"] = {std = "+rules"}
files["spec"] = {std = "+busted"}
