-- BERT, but what a host may want to load itself goes there whole: the pooler, every LayerNorm, the position embeddings.
-- Rules of this file come before those of the family that it extends; the first that matches decides.
return {
   name = "minilm-full",
   extends = "bert",
   rules = {
      rule "pooler.dense.{w=weight|bias}" { full = "the host loads its pooler itself" },
      rule "**.LayerNorm.{w=weight|bias}" { full = "the host loads its norms itself" },
      rule "embeddings.position_embeddings.weight" { full = "the host loads its position table itself" },
   },
}
