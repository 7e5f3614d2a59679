"""The packed broadcast as serving stacks do it with PyTorch: tensors are put together by torch.cat until 1 GiB is full,
broadcast, and copied out into the model's own; two buffers, each on a stream of its own.

    python3 packed_torch.py SAMPLES.json     what gpu_bench printed: layers, samples and GPUs are taken from it

Prints one JSON object; every tensor of every sample is compared. Ends with status 1 and a line on stderr where this cannot run.
"""

import json
import os
import sys
import time

BUFFER = 1 << 30
HIDDEN, INTERMEDIATE, KEYS, VOCABULARY = 4096, 14336, 1024, 128256


def shapes(layers):
    yield (VOCABULARY, HIDDEN)
    for _ in range(layers):
        yield (HIDDEN, HIDDEN)
        yield (KEYS, HIDDEN)
        yield (KEYS, HIDDEN)
        yield (HIDDEN, HIDDEN)
        yield (INTERMEDIATE, HIDDEN)
        yield (INTERMEDIATE, HIDDEN)
        yield (HIDDEN, INTERMEDIATE)
        yield (HIDDEN,)
        yield (HIDDEN,)
    yield (HIDDEN,)
    yield (VOCABULARY, HIDDEN)


def chunks(tensors):
    chunk, held = [], 0
    for tensor in tensors:
        if chunk and held + tensor.nbytes > BUFFER:
            yield chunk
            chunk, held = [], 0
        chunk.append(tensor)
        held += tensor.nbytes
    yield chunk


def update(torch, dist, rank, tensors, streams):
    for i, chunk in enumerate(chunks(tensors)):
        stream = streams[i % len(streams)]
        stream.synchronize()  # its buffer is free again
        with torch.cuda.stream(stream):
            if rank == 0:
                dist.broadcast(torch.cat([tensor.view(torch.uint8).view(-1) for tensor in chunk]), 0)
                continue
            packed = torch.empty(sum(tensor.nbytes for tensor in chunk), dtype=torch.uint8, device="cuda")
            dist.broadcast(packed, 0)
            parts = packed.split([tensor.nbytes for tensor in chunk])
            for tensor, part in zip(chunk, parts):
                tensor.copy_(part.view(tensor.dtype).view(tensor.shape))
    torch.cuda.synchronize()


def values(torch, tensor, number):
    """What a tensor holds in sample `number`, counted the same way on both sides."""
    flat = torch.arange(tensor.numel(), dtype=torch.int32, device="cuda")
    return (flat * 2654435 + number * 40503).to(torch.int16).view(torch.bfloat16).view(tensor.shape)


def rank_main(rank, run, port, answer):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(run["pair"][rank])
    dist.init_process_group("nccl", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    tensors = [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes(int(run["layers"]))]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    seconds, wrong = [], 0
    for sample in range(-1, int(run["samples"])):  # the first warms up
        for i, tensor in enumerate(tensors):
            if rank == 0:
                tensor.copy_(values(torch, tensor, sample * 1000 + i))
            else:
                tensor.zero_()
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        update(torch, dist, rank, tensors, streams)
        took = torch.tensor([time.perf_counter() - began], dtype=torch.float64, device="cuda")
        dist.all_reduce(took, dist.ReduceOp.MAX)
        if rank == 1:
            for i, tensor in enumerate(tensors):
                expected = values(torch, tensor, sample * 1000 + i)
                wrong += int((tensor.view(torch.int16) != expected.view(torch.int16)).sum())
        if sample >= 0:
            seconds.append(took.item())
    if rank == 1:
        answer.put({
            "bytes": sum(tensor.nbytes for tensor in tensors), "tensors": len(tensors), "workers": 1, "wrong_words": wrong,
            "seconds": seconds, "torch": torch.__version__, "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        })
    dist.destroy_process_group()


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        run = json.load(file)
    if run["model"] != "Llama-3-8B":
        sys.exit("it moves Llama-3-8B alone")
    if run["pair"][0] == run["pair"][1]:
        sys.exit("trainer and worker share a GPU, and NCCL wants one for each rank")
    try:
        import torch
        import torch.multiprocessing as multiprocessing
    except ImportError:
        sys.exit("python3 has no PyTorch")
    if torch.cuda.device_count() < 2:
        sys.exit("PyTorch sees no two GPUs")
    context = multiprocessing.get_context("spawn")
    answer = context.SimpleQueue()
    port = 20000 + os.getpid() % 20000
    ranks = [context.Process(target=rank_main, args=(rank, run, port, answer), daemon=True) for rank in range(2)]
    for process in ranks:
        process.start()
    deadline = time.monotonic() + 90
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))
    if any(process.exitcode != 0 for process in ranks):
        for process in ranks:
            process.kill()
        sys.exit("a rank failed or did not end in 90 s")
    print(json.dumps(answer.get()))


if __name__ == "__main__":
    main()
