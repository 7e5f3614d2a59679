"""A trainer and a worker as threads of this process: they get on only because calls release the GIL."""

from __future__ import annotations

import array
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from sluice import Engine, Memory, Mesh, Param, init_info

Plain = Engine[Memory]
REPLICATED = {"loader": "replicated"}


def floats(*values: float) -> Memory:
    return Memory.of(array.array("f", values), "float32", (len(values),))


def values(memory: Memory) -> list[float]:
    return list(memory.view().cast("f"))


@contextmanager
def held_port() -> Iterator[int]:
    """A port for whoever must be told one before rank 0 listens there: bound meanwhile, so that nobody else is given it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not before: two who do would both be given it
        yield held.getsockname()[1]


class World:
    """Each has its own engine; what `announce` is given are the trainer's parameters, whole."""

    def __init__(self, engine: Any = Engine, **options: Any) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        common: dict[str, Any] = {"beat_s": 0.2, "timeout_s": 20.0}
        self.trainer: Plain = engine(0, listen_fd=self.listener.detach(), **common)
        self.worker: Plain = engine(1, **(common | options))
        self.names: list[str] = []
        self.info = ""

    def announce(self, **tensors: Any) -> None:
        mesh = Mesh(("fsdp", 1))
        self.names = list(tensors)
        for name, tensor in tensors.items():
            self.trainer.register_source(name, tensor)
        dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()]
        params = [Param(name, dtype, tuple(tensor.shape), mesh) for (name, tensor), dtype in zip(tensors.items(), dtypes)]
        self.info = init_info(params, Mesh(("tp", 1)), "127.0.0.1", self.port)

    def both(self, trainer: Callable[[Plain], object], worker: Callable[[Plain], object] | None = None) -> list[Any]:
        """What both return, or raise, each on its own thread."""

        def run(call: Callable[[Plain], object], engine: Plain) -> object:
            try:
                return call(engine)
            except BaseException as raised:
                return raised

        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(run, trainer, self.trainer), pool.submit(run, worker or trainer, self.worker)]
            return [future.result(60) for future in futures]

    def init(self) -> None:
        assert self.both(lambda engine: engine.init(self.info)) == [None, None]

    def update(self, version: str = "step-1") -> list[Any]:
        def run(engine: Plain) -> str:
            with engine.updating(version):
                engine.update(self.names)
            return engine.version

        return self.both(run)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.both(lambda engine: engine.close())
