--- sluice manual: the man page sluice(1), written from what the commands say of themselves.

local native = require "sluice.native"

local manual = {
   name = "manual", summary = "Prints the manual page sluice(1).", example = "sluice manual > sluice.1 && man ./sluice.1",
}

local FILES = {
   { "$SLUICE_RULES_PATH", "Folders, as absolute paths with colons between them, that are searched first for NAME.lua where a rule "
      .. "file is given by a bare name." },
   { "$XDG_DATA_HOME/sluice/rules, ~/.local/share/sluice/rules", "The user's folder of rule files, searched next; the second where "
      .. "XDG_DATA_HOME is not set." },
   { "PREFIX/share/sluice/rules", "The families that were installed with this program, searched then; the same are in the program "
      .. "itself. A file that anyone may write, or one in such a folder, is refused." },
}

local ENVIRONMENT = {
   { "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT", "What trainer, worker and rank take their place from, as torchrun sets them; where "
      .. "they are not set, the variables of Open MPI, MPICH and srun." },
   { "SLUICE_CUDA_PLUGIN", "The path of libsluice_cuda.so, where it is not beside the program or in a lib folder beside its own." },
}

local EXIT = {
   { "0", "Good." }, { "1", "A run failed, a byte differs, or diff or check found something." },
   { "2", "Wrong usage or wrong input." }, { "130", "Cancelled by a signal." },
}

function manual.configure(_) end

-- Text as roff takes it; a line must not begin with a dot or a quote.
local function escape(text)
   return (text:gsub("\\", "\\e"):gsub("%-", "\\-"):gsub("\n([.'])", "\n\\&%1"):gsub("^([.'])", "\\&%1"))
end

local function add_entry(page, label, text)
   page[#page + 1] = (".TP\n\\fB%s\\fR\n%s"):format(escape(label), escape(text))
end

local function add_list(page, title, entries)
   page[#page + 1] = ".SH " .. title
   for _, entry in ipairs(entries) do
      add_entry(page, entry[1], entry[2])
   end
end

local function add_elements(page, elements)
   for _, element in ipairs(elements) do
      if not element._hidden then
         add_entry(page, table.concat(element:_get_label_lines(), ", "), element:_get_description())
      end
   end
end

local function add_command(page, command, parser)
   page[#page + 1] = (".SS sluice %s"):format(command.name)
   page[#page + 1] = escape(command.summary)
   page[#page + 1] = (".PP\n.nf\n%s\n.fi"):format(escape(parser:get_usage()))
   add_elements(page, parser._arguments)
   add_elements(page, parser._options)
   page[#page + 1] = (".PP\nExample:\n.PP\n.nf\n%s\n.fi"):format(escape("   " .. command.example))
end

--- The page.
-- @param parser of the whole program
-- @param list the commands, in order
-- @return its text, in roff's man macros
function manual.page(parser, list)
   local page = {
      ('.TH SLUICE 1 "" "Sluice %s"'):format(native.version()),
      ".SH NAME\nsluice \\- plans and moves model weights from trainers to serving workers",
      ".SH SYNOPSIS\n.B sluice\n.I command\n.RI [ options ]",
      ".SH DESCRIPTION\n" .. escape(parser._description) .. " A deployment file says which model moves, how the trainers lay it out "
         .. "and how the workers do; a rule file says where each parameter lands. Each command tells its options with\n.BR \\-\\-help .",
      ".SH COMMANDS",
   }
   for i, command in ipairs(list) do
      add_command(page, command, parser._commands[i])
   end
   add_list(page, "FILES", FILES)
   add_list(page, "ENVIRONMENT", ENVIRONMENT)
   add_list(page, "EXIT STATUS", EXIT)
   page[#page + 1] = ".SH SEE ALSO\nThe header\n.I sluice.h\nis the manual of the library; README.md and lua/README.md in the sources "
      .. "tell how to embed it and how to write rules."
   return table.concat(page, "\n") .. "\n"
end

function manual.run()
   local parser, list = require("sluice.cli").describe()
   io.stdout:write(manual.page(parser, list))
   return 0
end

return manual
