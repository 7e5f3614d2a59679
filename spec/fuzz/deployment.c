/*
 * deployment.c: a deployment file's text, Lua or JSON, through the sandbox and all checks. What is accepted and of modest
 * size is described, and what its trainers would then send must be init info that a worker accepts.
 */
#include "support/fuzz.h"

#include <string.h>

/* Rule code gets a hundredth of its steps, so that loops end soon. Large models are read and checked, not described. */
static const char PRELUDE[] =
    "local core = require 'sluice.core'\n"
    "local guard = core.guard\n"
    "function core.guard(code, steps, bytes, ...) return guard(code, steps / 100, bytes, ...) end\n"
    "local cjson, deployment, models = require 'cjson', require 'sluice.deployment', require 'sluice.models'\n"
    "local MOST_TENSORS = 400\n"
    "local function failed(problem) assert(type(problem) == 'string' and problem ~= '', 'a failure without a text') end\n"
    "package.loaded['fuzz.deployment'] = { read = function(text)\n"
    "   local checked, problem = deployment.read(text, 'fuzz.lua')\n"
    "   if not checked then return failed(problem) end\n"
    "   assert(deployment.check(checked), 'what was checked once fails the second time')\n"
    "   local config = assert(models.config(checked.model))\n"
    "   if config.num_hidden_layers * (config.num_experts or 1) > MOST_TENSORS then return end\n"
    "   local description, wrong = models.describe(checked)\n"
    "   if not description then return failed(wrong) end\n"
    "   local _, workers = deployment.ranks(checked)\n"
    "   for _, worker in ipairs({ 0, workers - 1 }) do description.live(worker) end\n"
    "   assert(cjson.encode(deployment.host(description, checked)))\n"
    "   return cjson.encode(deployment.init_info(description, checked, 'localhost', 1))\n"
    "end }\n";

void fuzz_target(fuzz_input input)
{
    slc_script *script = fuzz_script(PRELUDE);
    char *info, *sealed = NULL;
    sluice_error error = SLUICE_ERROR_INIT;
    /* Wrong input comes back as a text: nothing that is raised is the input's fault. */
    fuzz_must(fuzz_call(script, "fuzz.deployment", "read", input, &info, &error) == SLUICE_OK, "a mistake of our own: %s",
              error.text);
    if (info != NULL)
        fuzz_must(slc_init_info_seal(script, info, strlen(info), &sealed, &error) == SLUICE_OK, "what is sent is refused: %s",
                  error.text);
    slc_release(info);
    slc_release(sealed);
}
