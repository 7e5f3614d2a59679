--- The cost model: which parameters it has, their defaults and where these come from, and how long things take by it.
--
-- Ranks fill GPUs in world order, GPUs fill link domains (NVLink) and nodes. What two ranks of one GPU exchange costs nothing
-- beyond its copies; within a domain it loads the link of the sender's GPU outwards and of the receiver's inwards; beyond it
-- loads the network cards of both nodes, all of a node as one. Links of a domain do not disturb each other, nor do the cards
-- of different nodes; what a phase takes is what its busiest link takes. Rows of 128 bytes and more are assumed.
--
--   sluice      one phase: of every GPU what leaves over its link, at link_gb_s, and copy_us for each of its copies; what
--               enters, at link_gb_s; of every node what its cards carry, at nic_gb_s; of every GPU what it brings to the
--               cards, at nccl_gb_s, and message_us for each message: one a peer, and one more for every 256 MiB. And start_us.
--   reshard     parameter by parameter, each as long as its busiest link or card takes at nccl_gb_s or nic_gb_s, with
--               reshard_us a call; what the ranks of a GPU pack and unpack on the way, at pack_gb_s. Of parameters that are cut
--               alike the first stands for all; each piece comes from the replica that our plan picks.
--   gather and  rank 0 gets what it has not of every parameter, then a chain in rank order brings the whole to every worker,
--   broadcast   at nccl_gb_s over links and nic_gb_s over cards; two collectives a parameter, collective_us each, one where
--               rank 0 has it all. Workers cut out their slices themselves; that is not counted.
--   packed      the same through buffers of chunk_mib: two collectives a buffer. With two buffers packing and unpacking hide
--   broadcast   behind the broadcast but for the first and the last buffer; with one they do not.

local cost = {}

--- Each parameter: key, default, what it is. The option is the key with dashes.
cost.parameters = {
   { "ranks_per_gpu", 1, "Ranks that share a GPU.", whole = true },
   { "link_domain", 8, "GPUs that reach each other by NVLink.", whole = true },
   { "node", 8, "GPUs that share the network cards of a node.", whole = true },
   { "link_gb_s", 395, "GB/s of a GPU's link, each direction, by copy engines (measured: H200, NV18, in batches)." },
   { "nccl_gb_s", 372, "The same by NCCL's kernels (measured there)." },
   { "nic_gb_s", 400, "GB/s of a node's network cards together, each direction (eight of 400 Gb/s, not measured)." },
   { "copy_us", 0.54, "What a copy of a batch adds (measured: 450 copies of 128 KiB)." },
   { "message_us", 10.5, "What a message of send and receive adds (measured)." },
   { "collective_us", 7.5, "What a broadcast or gather adds (measured: 450 of 128 KiB)." },
   { "reshard_us", 32, "What a reshard call of one parameter adds (measured: nccl_m2n, 450 of 128 KiB)." },
   { "pack_gb_s", 4200, "GB/s at which a GPU packs or unpacks (from nccl_m2n's 60.2 ms for Llama-3-8B)." },
   { "start_us", 16.5, "What an update adds once: a flag to the peer and back (measured)." },
   { "chunk_mib", 1024, "MiB of a packed broadcast's buffer.", whole = true },
   { "chunk_buffers", 2, "How many of them: 1 or 2.", whole = true, most = 2 },
}

--- MiB of one message between nodes.
cost.MESSAGE = 256 * 2 ^ 20

--- A model with every parameter, those of `given` over the defaults.
function cost.model(given)
   local model = {}
   for _, parameter in ipairs(cost.parameters) do
      local key = parameter[1]
      model[key] = given and given[key] or parameter[2]
   end
   return model
end

--- Where ranks sit, as native.traffic takes it.
function cost.places(model)
   return { ranks_a_gpu = model.ranks_per_gpu, gpus_a_domain = model.link_domain, gpus_a_node = model.node }
end

--- Seconds of some bytes at a rate in GB/s.
function cost.seconds(bytes, gb_s)
   return bytes / (gb_s * 1e9)
end

--- The GPU and the node of a rank, counted from 0.
function cost.gpu_of(model, rank)
   return math.floor(rank / model.ranks_per_gpu)
end

function cost.node_of(model, gpu)
   return math.floor(gpu / model.node)
end

--- "same", "link" or "card": how two GPUs reach each other.
function cost.road(model, a, b)
   if a == b then
      return "same"
   end
   return math.floor(a / model.link_domain) == math.floor(b / model.link_domain) and "link" or "card"
end

return cost
