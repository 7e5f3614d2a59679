--- sluice trainer
return require("sluice.cli.rank").command("trainer", "trainer", "Runs one trainer rank; the environment says which.")
