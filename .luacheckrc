std = "luajit"
max_line_length = false -- scripts/lint-tree.lua has the limit
exclude_files = {"build*"}
files["spec"] = {std = "+busted"}
