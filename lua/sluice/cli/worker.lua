--- sluice worker
return require("sluice.cli.rank").command("worker", "worker", "Runs one worker rank; the environment says which.")
