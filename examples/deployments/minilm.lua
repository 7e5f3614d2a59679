-- all-MiniLM-L6-v2, a real checkpoint: three FSDP trainers (uneven shards) feed two replicas of four tensor-parallel workers
-- that fuse query, key and value. Every parameter lands in place.
-- Fetch the model once with scripts/fetch-minilm; another copy: --set model.checkpoint=DIRECTORY
return {
   model = { family = "bert", checkpoint = "build/minilm" },
   trainer = { mesh = { { "fsdp", 3 } } },
   worker = { mesh = { { "dp", 2 }, { "tp", 4 } } },
   rules = "bert",
   updates = 3,
   batches = 2,
}
