#!/usr/bin/env python3
"""Six ranks train a small Llama with FSDP2 over tensor parallelism; two serve it with tensor parallelism, fused and padded.

    SLUICE_LIBRARY=build/libsluice.so build/torch/bin/python examples/python-host/fsdp_to_tp.py [--steps 3]

After each training step the new weights go straight from the shards into the servers' tensors. Each server then compares
every byte of them with what its own loader makes of the trainer's full_tensor(), and its logits with the trainer's. Before
the last step all ranks let go of the rule file: what is no plain copy then goes through the server's load_weights. All on
the CPU. Ends with status 1 where anything differs.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import torch
import torch.distributed as dist
from models import Config, ServedModel, Tp, TrainedModel
from processes import CONTEXT, join, leave, run
from sluice import Mesh, names
from sluice.torch import Engine, WeightSource
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

FSDP, TP, SERVERS = 3, 2, 2  # 3 does not divide the rows that 2 leave: shards are uneven
CONFIG = Config()
CPU = torch.device("cpu")
CLOSE = 1e-5  # logits: sums over a row are cut in other places
IDS = torch.arange(24).reshape(2, 12) * 7 % CONFIG.vocab_size


def shard(model: TrainedModel, mesh: DeviceMesh) -> None:
    """Tensor parallelism first, then FSDP2 over what it left."""
    cut = {"embed_tokens": RowwiseParallel(input_layouts=Replicate())}
    parallelize_module(model.model, mesh["tp"], cut)
    parallelize_module(model, mesh["tp"], {"lm_head": ColwiseParallel(output_layouts=Replicate())})
    for layer in model.model.layers:
        columns, rows = ("q_proj", "k_proj", "v_proj"), ("o_proj",)
        parallelize_module(layer.self_attn, mesh["tp"], plan(columns, rows))
        parallelize_module(layer.mlp, mesh["tp"], plan(("gate_proj", "up_proj"), ("down_proj",)))
        fully_shard(layer, mesh=mesh["fsdp"])
    fully_shard(model, mesh=mesh["fsdp"])


def plan(columns: tuple[str, ...], rows: tuple[str, ...]) -> dict[str, ColwiseParallel | RowwiseParallel]:
    return {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach().clone()


def train(rank: int, folder: Path, steps: int, told: list[SimpleQueue[str]]) -> None:
    join(folder / "trainers", rank, FSDP * TP, CPU)
    torch.manual_seed(0)
    model = TrainedModel(CONFIG)
    shard(model, init_device_mesh("cpu", (FSDP, TP), mesh_dim_names=("fsdp", "tp")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    source = WeightSource(model)
    listener = socket.create_server(("127.0.0.1", 0)) if rank == 0 else None
    box: list[str] = [""]
    if listener is not None:
        box = [source.init_info(Mesh(("tp", SERVERS)), *listener.getsockname())]
        for queue in told:  # as an HTTP request to each server would
            queue.put(box[0])
    dist.broadcast_object_list(box)

    with Engine(rank, listen_fd=listener.detach() if listener else -1) as engine:
        source.register(engine)
        engine.init(box[0])
        for step in range(1, steps + 1):
            logits = model(IDS)
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            with torch.no_grad():
                answer = {"loss": loss.detach(), "logits": model(IDS)}
            full = {name: whole(tensor) for name, tensor in model.state_dict().items()}
            if rank == 0:
                torch.save((full, answer), folder / f"step-{step}.pt")
            if step == steps:
                engine.reload_rules(None)
            with engine.updating(f"step-{step}"):
                source.register(engine)
                engine.update(source.names)
    leave()


def serve(rank: int, folder: Path, steps: int, told: SimpleQueue[str]) -> None:
    join(folder / "servers", rank, SERVERS, CPU)
    tp = Tp(rank, SERVERS)
    model = ServedModel(CONFIG, tp)
    with Engine(FSDP * TP + rank, rules="llama", load_weights=model.load_weights) as engine:
        engine.describe_host(CONFIG.to_dict())
        engine.register_module(model)
        info = told.get()
        engine.init(info)
        for step in range(1, steps + 1):
            if step == steps:
                engine.reload_rules(None)
            with engine.updating(f"step-{step}"):
                engine.update(names(info))
            full, answer = torch.load(folder / f"step-{step}.pt")
            expected = ServedModel(CONFIG, tp)
            expected.load_weights(full.items())
            same = sum(same_bytes(model, expected))
            off = (model(IDS) - answer["logits"]).abs().max().item()
            if not off < CLOSE:
                raise AssertionError(f"step-{step}: logits are {off:.1e} off")
            if rank == 0:
                plan = engine.plan()
                moved = f"{plan['direct']['parameters']} parameters in place, {plan['full']['parameters']} through load_weights"
                print(f"{engine.version}: loss {answer['loss']:.4f}, {moved}, {same} bytes the same, logits {off:.1e} off")
    leave()


def same_bytes(model: torch.nn.Module, expected: torch.nn.Module) -> list[int]:
    """The sizes of its tensors, each compared byte by byte."""
    sizes = []
    for name, tensor in model.state_dict().items():
        found, wanted = tensor.view(torch.uint8), expected.state_dict()[name].view(torch.uint8)
        if not torch.equal(found, wanted):
            raise AssertionError(f"{name} differs in {(found != wanted).sum()} bytes")
        sizes.append(found.numel())
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        told = [CONTEXT.SimpleQueue() for _ in range(SERVERS)]
        trainers = [(train, (rank, folder, options.steps, told)) for rank in range(FSDP * TP)]
        servers = [(serve, (rank, folder, options.steps, told[rank])) for rank in range(SERVERS)]
        run(["torch.distributed.fsdp", "torch.distributed.tensor.parallel"], [*trainers, *servers])


if __name__ == "__main__":
    main()
