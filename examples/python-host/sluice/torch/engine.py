"""The engine with torch.Tensor: a serving model registers its parameters, load_weights pulls tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import torch

from .. import engine
from ..bindings import Options, sluice_progress
from ..memory import Memory
from .live import live_tensors
from .tensors import gpu_tensor_of, memory_of, stream_of, tensor_of


class Engine(engine.Engine[torch.Tensor]):
    __doc__ = (engine.Engine.__doc__ or "") + """
    stream may be a torch.cuda.Stream: stream=torch.cuda.current_stream() orders updates with what the model computes.
    """

    def __init__(
        self,
        rank: int,
        *,
        load_weights: Callable[[engine.Weights[torch.Tensor]], object] | None = None,
        reload_begin: Callable[[], object] | None = None,
        reload_end: Callable[[], object] | None = None,
        progress: Callable[[sluice_progress], object] | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._lend = tensor_of if options.get("transport") in (None, "host") else gpu_tensor_of  # type: ignore[method-assign]
        if (stream := options.get("stream")) is not None:
            options["stream"] = stream_of(stream)
        self._registered: dict[str, tuple[torch.Tensor, int]] = {}
        self._replaced: str | None = None  # a live tensor that update or replay is to refuse
        super().__init__(
            rank, load_weights=load_weights, reload_begin=reload_begin, reload_end=reload_end, progress=progress, **options
        )

    @staticmethod
    def _memory(tensor: torch.Tensor) -> Memory:
        return memory_of(tensor)

    def register_live(self, name: str, tensor: torch.Tensor, attributes: Mapping[str, Any] | None = None) -> None:
        super().register_live(name, tensor, attributes)
        self._registered[name] = (tensor, memory_of(tensor).address)

    def register_module(self, module: torch.nn.Module, prefix: str = "", tp_size: int | None = None) -> None:
        """Registers all parameters and persistent buffers of a serving model, each tied one once, with what its loader knows.

        `tp_size` stands for what modules do not say themselves by an attribute of that name.
        """
        for name, tensor, attributes in live_tensors(module, tp_size):
            self.register_live(prefix + name, tensor, attributes)

    @property
    def devices(self) -> set[torch.device]:
        """Where the sources are."""
        return {memory.owner.device for memory in self._handle.sources.values()}

    def forget(self) -> None:
        super().forget()
        self._registered.clear()

    def start_update(self, partial: bool = False) -> None:
        moved = (name for name, (tensor, address) in self._registered.items() if memory_of(tensor).address != address)
        self._replaced = next(moved, None)
        super().start_update(partial)

    def update(self, names: Sequence[str]) -> None:
        if why := self._lost(names):
            self.refuse_update(why)
        super().update(names)

    def replay(self, recording: int) -> None:
        if why := self._lost(tuple(self._handle.sources)):
            self.refuse_update(why)
        super().replay(recording)

    def _lost(self, names: Sequence[str]) -> str:
        """What C cannot know: wrappers free the storage of what they gathered, and resize it, and a parameter's data is replaced."""
        if self._replaced is not None:
            return f"live tensor {self._replaced} was given other memory since it was registered; write into it instead"
        for name in names:
            memory = self._handle.sources.get(name)
            if memory is not None and memory.owner.data_ptr() != memory.address:
                return f"the storage of source {name} was freed or resized since it was registered; register it anew"
        return ""
