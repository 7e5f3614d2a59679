"""An engine's updates as vLLM's calls make them, on a worker and on a trainer: what both must do alike stands here once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

from ..engine import Engine, SluiceError, State


def following(version: str) -> str:
    """The label of an update that nobody named, the same on every rank: all know the same version."""
    found = re.fullmatch(r"update-(\d{1,18})", version)
    return f"update-{int(found[1]) + 1 if found else 1}"


def join(engine: Engine[torch.Tensor], register: Callable[[], None], init_info: str) -> None:
    """Init, also where this rank cannot register what it has: the others wait for it, and hear that it lacks something."""
    try:
        register()
    except BaseException:
        with suppress(SluiceError):
            engine.init(init_info)
        raise
    engine.init(init_info)


class Updates:
    """vLLM's workers end a session with the first batch that fails. A batch that was refused, and nothing has moved yet, leaves
    the update open for the next session; else it is given up, and only shutdown and a new init are left."""

    def __init__(self, engine: Engine[torch.Tensor]) -> None:
        self.engine = engine
        self._label = ""
        self._moved = False

    def start(self) -> None:
        self._label = following(self.engine.version)
        if self.engine.state is not State.UPDATING or self._moved:
            self.engine.start_update()
        self._moved = False

    def name(self, label: str) -> None:
        self._label = label

    def move(self, names: Sequence[str]) -> None:
        try:
            self.engine.update(list(names))
            self._moved = True
        except SluiceError:
            if self._moved:
                self.give_up()
            raise

    def finish(self) -> None:
        self.engine.finish_update(self._label)

    def give_up(self) -> None:
        """On every rank; nothing where no update is open."""
        if self.engine.state is State.UPDATING:
            self.engine.abort_update()
