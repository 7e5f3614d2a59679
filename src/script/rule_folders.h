/*
 * rule_folders.h: where a rule file that is asked for by a bare name is looked for, before the families in the library:
 * each folder of SLUICE_RULES_PATH, the user's, the system's. lua/sluice/rule_file.lua does the looking.
 */
#ifndef SLC_SCRIPT_RULE_FOLDERS_H
#define SLC_SCRIPT_RULE_FOLDERS_H

#include "script/call.h"

/* rule_folders() -> a list of absolute paths, in order, and how many are of SLUICE_RULES_PATH; raises INVALID for a relative one there */
int slc_lua_rule_folders(lua_State *L);

/*
 * read_rules(folder, name, limit) -> the text of folder/name.lua and its path; or nil where there is none; or nil, nil and what
 * is wrong with it. What anyone may write is wrong, a file and a folder: the rules of a host are its operator's.
 */
int slc_lua_read_rules(lua_State *L);

#endif
