"""Ranks as processes of a script: started together, ended together where one fails."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

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
