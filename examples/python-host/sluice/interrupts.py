"""Ctrl-C around calls of the library, on the main thread where Python's own handler of it stands.

Python comes to a signal between any two steps of its own. In a call of the library these are steps of a callback, and what is
raised before the callback has begun, or once it has ended, is lost: ctypes has nobody to raise it to, and C takes the callback
for done. So Ctrl-C is only noted for as long as a call lasts, save in the host's own functions, and raised at its end. A call
that waits for others is cancelled meanwhile, by a thread: Python itself comes to nothing before the call returns.
"""

from __future__ import annotations

import functools
import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TypeVar

R = TypeVar("R")
Cancel = Callable[[], None] | None


class _Watch:
    """Told of signals while a call is under way: by Python, who would raise, and on a thread of its own, which cancels."""

    def __init__(self) -> None:
        self._hears, self._told = socket.socketpair()
        self._hears.setblocking(False)
        self._told.setblocking(False)
        self._lock = threading.Lock()
        self._cancel: Cancel = None
        self._came = False
        self.within = False  # a function of the host's is under way, in which Ctrl-C may be raised
        threading.Thread(target=self._run, name="sluice-interrupts", daemon=True).start()

    def over(self, call: Callable[[], R], cancel: Cancel) -> R:
        outermost = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        within, outer = self.within, self._cancel
        if outermost:
            self._came = False
            signal.signal(signal.SIGINT, self._note)
        self.within = False  # from here on nothing is raised
        told = cancel is not None and self._tell(self._told.fileno())
        try:
            if told:
                self._now(cancel)
            return call()
        finally:
            if told:
                self._now(outer)
            if told and outer is None:
                self._tell(-1)
            if outermost:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            self.within = within
            if self._came:
                self._came = False
                raise KeyboardInterrupt

    def _tell(self, where: int) -> bool:
        """Where Python tells of signals from now on. False, and nothing changes: it tells somebody else."""
        before = signal.set_wakeup_fd(where, warn_on_full_buffer=False)
        if before in (-1, self._told.fileno()):
            return True
        signal.set_wakeup_fd(before)
        return False

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        if self.within:
            self.within = False
            raise KeyboardInterrupt
        self._came = True

    def _now(self, cancel: Cancel) -> None:
        with self._lock:  # what was heard before is not this call's
            self._cancel = cancel
            self._heard()

    def _heard(self) -> bytes:
        with suppress(BlockingIOError):
            return self._hears.recv(4096)
        return b""

    def _run(self) -> None:
        while True:
            select.select([self._hears], [], [])
            with self._lock:
                if signal.SIGINT in self._heard() and self._cancel is not None:
                    self._cancel()


@functools.cache
def _watch() -> _Watch:
    return _Watch()


os.register_at_fork(after_in_child=_watch.cache_clear)


def _watched() -> bool:
    """Whether Ctrl-C is Python's own matter and comes to this thread, or is held by a call around this one."""
    return threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) in (
        signal.default_int_handler,
        _watch()._note,
    )


def holding(call: Callable[[], R], cancel: Cancel = None) -> R:
    """A call of the library, during which Ctrl-C is held; `cancel` ends one that waits."""
    return _watch().over(call, cancel) if _watched() else call()


def letting(call: Callable[[], object]) -> BaseException | None:
    """Runs a function of the host's within such a call, in which Ctrl-C is raised as elsewhere. Returns what it raised."""
    try:
        watched = _watched()
        try:
            if watched:
                _watch().within = True
            call()
        finally:
            if watched:
                _watch().within = False
    except BaseException as raised:
        return raised
    return None
