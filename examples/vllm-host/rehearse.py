#!/usr/bin/env python3
"""The backend from end to end: two FSDP2 trainers, two tensor-parallel workers, told over HTTP.

    PYTHONPATH=examples/python-host:examples/vllm-host:build/vllm SLUICE_LIBRARY=build/libsluice.so build/torch/bin/python \\
        examples/vllm-host/rehearse.py [--steps 2] [--rules llama] [--device cpu]

Trainers use vLLM's trainer factory and its ModuleSource as they are; workers are made by vLLM's factory and called as vLLM's
worker does it (standin.py). Each serves the control plane, behind a token. After each step every worker compares every byte of
its model with what its own loader makes of the trainers' tensors, gathered.

With --device cuda models are on GPUs, which ranks share where there are fewer. No rank waits for its GPU: every other update is
called while a long kernel is queued before the optimizer's step, and the ones between while each worker still has to read its old
weights, on a stream of its own; that these were the old ones is compared, too. Ends with status 1 where anything differs.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fsdp_to_tp import CONFIG, IDS, same_bytes
from models import ServedModel, Tp, TrainedModel
from processes import CONTEXT, device_of, gathered, join, keep_busy, leave, run
from sluice.control import Client, Control, Server
from sluice.vllm import register
from sluice.vllm.trainer import SluiceTrainerInitInfo, SyncClient
from standin import Worker, WorkerTarget, recorded, vllm_config
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory

TRAINERS, TP = 2, 2
FAMILY = "llama"  # places every parameter
PRELOAD = ["torch.distributed.fsdp"]
OF_VLLM = ["vllm.distributed.weight_transfer", "vllm.model_executor.model_loader.reload"]


@dataclass(frozen=True)
class Given:
    """What every rank is told."""

    folder: Path
    device: str
    steps: int
    rules: str
    urls: SimpleQueue[str]
    done: Any  # a barrier of trainer 0 and the workers


def train(rank: int, given: Given) -> None:
    register()
    device = device_of(given.device, rank)
    join(given.folder / "trainers", rank, TRAINERS, device)
    torch.manual_seed(0)
    model = TrainedModel(CONFIG).to(device)
    fully_shard(model, mesh=init_device_mesh(given.device, (TRAINERS,), mesh_dim_names=("fsdp",)))
    model.set_force_sum_reduction_for_comms(True)  # gloo takes no average of GPUs' tensors
    optimizer, ids = torch.optim.AdamW(model.parameters(), lr=0.01), IDS.to(device)

    listener = socket.create_server(("127.0.0.1", 0)) if rank == 0 else None
    told: list[Any] = [(*listener.getsockname(), [given.urls.get() for _ in range(TP)])] if listener else [None]
    dist.broadcast_object_list(told)
    address, port, servers = told[0]
    engine: Any = WeightTransferTrainerFactory.trainer_init(
        SluiceTrainerInitInfo(
            rank=rank, master_address=address, master_port=port, world_size=TRAINERS + TP, num_trainer_ranks=TRAINERS,
            listen_socket=listener, options={"transport": "nccl"} if given.device == "cuda" else {},
        ),
        client=SyncClient(Client(servers, given.folder / "token")),
        source=ModuleSource(model),
    )
    for step in range(1, given.steps + 1):
        optimizer.zero_grad()
        model(ids).logsumexp(-1).mean().backward()
        if step % 2:
            keep_busy(device, 4)
        optimizer.step()
        engine.send_weights(f"step-{step}")
        full = {name: gathered(tensor) for name, tensor in model.state_dict().items()}
        if rank == 0:
            torch.save(full, given.folder / "full.pt")
            given.done.wait(60)  # until the workers have looked
            given.done.wait(60)
        dist.barrier()
    engine.shutdown()
    leave()


class Served(ServedModel):
    """On its device, where its loader's copies run late."""

    def __init__(self, device: torch.device, tp: Tp) -> None:
        super().__init__(CONFIG, tp)
        self.device = device
        self.to(device)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        keep_busy(self.device)
        super().load_weights(weights)


def serve(rank: int, given: Given) -> None:
    device, tp = device_of(given.device, TRAINERS + rank), Tp(rank, TP)
    join(given.folder / "servers", rank, TP, device)
    if given.device == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream(device))
    model, old = Served(device, tp), ServedModel(CONFIG, tp).to(device)
    if given.rules != FAMILY:
        recorded(model, device)
    worker = Worker(vllm_config(CONFIG, rank, TP, rules=given.rules), model, device)
    with Server(Control(WorkerTarget(worker), given.folder / "token")) as server:
        given.urls.put(server.url)
        before: ServedModel | None = None
        for step in range(1, given.steps + 1):
            given.done.wait(60)
            expected = ServedModel(CONFIG, tp)
            expected.load_weights(torch.load(given.folder / "full.pt").items())
            expected.to(device)
            same = sum(same_bytes(model, expected))
            if before is not None:
                same_bytes(old, before)
            if rank == 0 and worker.transfer.engine is not None:
                plan = worker.transfer.engine.plan()
                moved = f"{plan['direct']['parameters']} parameters in place, {plan['full']['parameters']} through load_weights"
                print(f"{worker.transfer.engine.version}: {moved}, {same} bytes the same on each of {TP} workers", flush=True)
            before = expected
            if step % 2:  # the next update comes while this has not run
                keep_busy(device, 10)
            old.load_state_dict(model.state_dict())
            given.done.wait(60)
    worker.shutdown_weight_transfer_engine()
    leave()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rules", default=FAMILY, help="a family or a file; what it leaves goes through load_weights")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("rehearse: PyTorch sees no GPU here")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        descriptor = os.open(folder / "token", os.O_WRONLY | os.O_CREAT, 0o600)
        with open(descriptor, "w") as token:
            token.write(secrets.token_hex(32))
        given = Given(folder, options.device, options.steps, options.rules, CONTEXT.SimpleQueue(), CONTEXT.Barrier(TP + 1))
        # On GPUs each rank imports vLLM for itself: what asks for GPUs cannot be forked.
        modules = OF_VLLM[: 1 if options.rules == FAMILY else 2] if options.device == "cpu" else []
        run(PRELOAD + modules, [(train, (rank, given)) for rank in range(TRAINERS)] + [(serve, (rank, given)) for rank in range(TP)])


if __name__ == "__main__":
    main()
