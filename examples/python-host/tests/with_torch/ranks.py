"""Trainers, which are gloo ranks, and one worker, as processes."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.queues import Queue, SimpleQueue
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sluice import Mesh
from sluice.torch import Engine, WeightSource

TIMES: dict[str, Any] = {"beat_s": 0.5, "timeout_s": 60.0}


@dataclass
class Rank:
    """What a rank is told when it starts."""

    number: int
    trainers: int
    folder: Path
    info: SimpleQueue[tuple[str, tuple[str, ...]]]

    def engine(self, source: WeightSource) -> Engine:
        """A trainer's, ready."""
        listener = socket.create_server(("127.0.0.1", 0)) if self.number == 0 else None
        box = [source.init_info(Mesh(("tp", 1)), *listener.getsockname()) if listener else ""]
        dist.broadcast_object_list(box)
        if listener:
            self.info.put((box[0], source.names))
        engine = Engine(self.number, listen_fd=listener.detach() if listener else -1, **TIMES)
        source.register(engine)
        engine.init(box[0])
        return engine

    def worker(self, lives: dict[str, torch.Tensor]) -> tuple[Engine, tuple[str, ...]]:
        engine = Engine(self.trainers, **TIMES)
        for name, tensor in lives.items():
            engine.register_live(name, tensor, {"loader": "replicated"})
        info, names = self.info.get()
        engine.init(info)
        return engine, names


def _enter(call: Callable[[Rank], Any], rank: Rank, results: Queue[tuple[int, Any]]) -> None:
    torch.set_num_threads(1)
    try:
        if rank.number < rank.trainers:
            where = f"file://{rank.folder}/gloo"
            dist.init_process_group("gloo", init_method=where, rank=rank.number, world_size=rank.trainers)
        results.put((rank.number, call(rank)))
    except BaseException as raised:
        results.put((rank.number, f"{type(raised).__name__}: {raised}"))


def run(trainer: Callable[[Rank], Any], worker: Callable[[Rank], Any], trainers: int, folder: Path, killed: Sequence[int] = ()) -> Any:
    """What each rank returned, or the text of what it raised; None of those that were killed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed.fsdp"])
    info, results = context.SimpleQueue(), context.Queue()
    calls = [trainer] * trainers + [worker]
    processes = [
        context.Process(target=_enter, args=(call, Rank(number, trainers, folder, info), results))
        for number, call in enumerate(calls)
    ]
    for process in processes:
        process.start()
    try:
        said = dict(results.get(timeout=200) for _ in range(len(calls) - len(killed)))
        for process in processes:
            process.join(60)
    finally:
        for process in processes:
            process.kill()
    return [said.get(number) for number in range(len(calls))]
