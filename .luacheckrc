std = "luajit"
max_line_length = 130
exclude_files = {"build*"}
files["spec"] = {std = "+busted"}
