"""Ranks as processes of a script: started together, ended together where one fails, each on its device and in its group."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

CONTEXT = multiprocessing.get_context("forkserver")


def run(modules: list[str], calls: Sequence[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    """Each call in a process of its own, forked from one that has imported `modules`, which takes long, once. They must be
    installed ones: that process does not look beside the script, and says nothing of what it does not find."""
    CONTEXT.set_forkserver_preload(modules)
    ranks = [CONTEXT.Process(target=call, args=args) for call, args in calls]
    for process in ranks:
        process.start()
    while running := [process for process in ranks if process.exitcode is None]:
        wait([process.sentinel for process in running])
        if any(process.exitcode for process in ranks):  # the others may wait for it
            for process in running:
                process.terminate()
    if any(process.exitcode for process in ranks):
        raise SystemExit(f"exit codes: {[process.exitcode for process in ranks]}")


def device_of(kind: str, number: int) -> torch.device:
    """Of rank `number`: ranks fill the GPUs that there are, and begin again at the first."""
    return torch.device(kind, number % torch.cuda.device_count()) if kind == "cuda" else torch.device(kind)


def join(where: Path, rank: int, size: int, device: torch.device) -> None:
    """The group that meets in the file `where`. NCCL wants a GPU a rank; gloo does not."""
    torch.set_num_threads(1)
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)  # full_tensor() gathers a dim twice, and warns of that
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if size > 1:
        backend = "nccl" if device.type == "cuda" and torch.cuda.device_count() >= size else "gloo"
        dist.init_process_group(backend, init_method=f"file://{where}", rank=rank, world_size=size)


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def keep_busy(device: torch.device, times: int = 1) -> None:
    """What is queued behind this runs tens of milliseconds later, or that many times that."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda._sleep(100_000_000 * times)


def local(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().cpu()


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """Whole, on the CPU, what FSDP2 cut. PyTorch 2.11's gloo cannot gather a DTensor on GPUs."""
    if not isinstance(tensor, DTensor):
        return local(tensor)
    parts = [local(tensor)] * tensor.device_mesh.size()
    dist.all_gather_object(parts, parts[0])
    return torch.cat(parts)
