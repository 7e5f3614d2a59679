#!/usr/bin/env python3
"""The backend from end to end on the CPU: two FSDP2 trainers, two tensor-parallel workers, told over HTTP.

    PYTHONPATH=examples/python-host:build/vllm SLUICE_LIBRARY=build/libsluice.so build/torch/bin/python \\
        examples/vllm-host/rehearse.py [--steps 2]

Trainers use vLLM's trainer factory and its ModuleSource as they are; workers are made by vLLM's factory and called as vLLM's
worker does it (standin.py). Each serves the control plane, behind a token. After each step every worker compares every byte of
its model with what its own loader makes of the trainers' full_tensor().
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import socket
import tempfile
from multiprocessing.connection import wait
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fsdp_to_tp import CONFIG, IDS, join, same_bytes, whole
from models import ServedModel, Tp, TrainedModel
from sluice.control import Client, Control, Server
from sluice.vllm import register
from sluice.vllm.trainer import SluiceTrainerInitInfo, SyncClient
from standin import Worker, WorkerTarget, vllm_config
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory

TRAINERS, TP = 2, 2


def train(rank: int, folder: Path, steps: int, urls: SimpleQueue[str], done: Any) -> None:
    register()
    join(folder, "trainers", rank, TRAINERS)
    torch.manual_seed(0)
    model = TrainedModel(CONFIG)
    fully_shard(model, mesh=init_device_mesh("cpu", (TRAINERS,), mesh_dim_names=("fsdp",)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    listener = socket.create_server(("127.0.0.1", 0)) if rank == 0 else None
    told: list[Any] = [(*listener.getsockname(), [urls.get() for _ in range(TP)])] if listener else [None]
    dist.broadcast_object_list(told)
    address, port, servers = told[0]
    engine: Any = WeightTransferTrainerFactory.trainer_init(
        SluiceTrainerInitInfo(
            rank=rank, master_address=address, master_port=port, world_size=TRAINERS + TP, num_trainer_ranks=TRAINERS,
            listen_socket=listener,
        ),
        client=SyncClient(Client(servers, folder / "token")),
        source=ModuleSource(model),
    )
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        model(IDS).logsumexp(-1).mean().backward()
        optimizer.step()
        engine.send_weights(f"step-{step}")
        full = {name: whole(tensor) for name, tensor in model.state_dict().items()}
        if rank == 0:
            torch.save(full, folder / "full.pt")
            done.wait(60)  # until the workers have looked
            done.wait(60)
        dist.barrier()
    engine.shutdown()
    dist.destroy_process_group()


def serve(rank: int, folder: Path, steps: int, urls: SimpleQueue[str], done: Any) -> None:
    join(folder, "servers", rank, TP)
    model = ServedModel(CONFIG, Tp(rank, TP))
    worker = Worker(vllm_config(CONFIG, rank, TP, rules="llama"), model)
    with Server(Control(WorkerTarget(worker), folder / "token")) as server:
        urls.put(server.url)
        for _ in range(steps):
            done.wait(60)
            expected = ServedModel(CONFIG, Tp(rank, TP))
            expected.load_weights(torch.load(folder / "full.pt").items())
            same = sum(same_bytes(model, expected))
            if rank == 0 and worker.transfer.engine is not None:
                plan = worker.transfer.engine.plan()
                moved = f"{plan['direct']['parameters']} parameters in place, {plan['full']['parameters']} through load_weights"
                print(f"{worker.transfer.engine.version}: {moved}, {same} bytes the same on each of {TP} workers", flush=True)
            done.wait(60)
    worker.shutdown_weight_transfer_engine()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    context = multiprocessing.get_context("forkserver")  # so that torch and vLLM are imported once
    context.set_forkserver_preload(["rehearse"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        descriptor = os.open(folder / "token", os.O_WRONLY | os.O_CREAT, 0o600)
        with open(descriptor, "w") as token:
            token.write(secrets.token_hex(32))
        urls, done = context.SimpleQueue(), context.Barrier(TP + 1)
        given = (folder, options.steps, urls, done)
        ranks = [context.Process(target=train, args=(rank, *given)) for rank in range(TRAINERS)]
        ranks += [context.Process(target=serve, args=(rank, *given)) for rank in range(TP)]
        for process in ranks:
            process.start()
        while running := [process for process in ranks if process.exitcode is None]:
            wait([process.sentinel for process in running])
            if any(process.exitcode for process in ranks):  # the others may wait for it
                for process in running:
                    process.terminate()
    if any(process.exitcode for process in ranks):
        raise SystemExit(f"exit codes: {[process.exitcode for process in ranks]}")


if __name__ == "__main__":
    main()
