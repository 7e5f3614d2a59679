"""Ctrl-C while the main thread waits in the library. Python itself comes to it only when the call returns, at its deadline."""

from __future__ import annotations

import functools
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress


class _Watch:
    """A thread that is told of signals while a call is under way, and cancels it; Python then raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._hears, self._told = socket.socketpair()
        self._hears.setblocking(False)
        self._told.setblocking(False)
        self._lock = threading.Lock()
        self._cancel: Callable[[], None] | None = None
        threading.Thread(target=self._run, name="sluice-interrupts", daemon=True).start()

    @contextmanager
    def over(self, cancel: Callable[[], None]) -> Iterator[None]:
        before = signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        try:
            if before == -1:  # else it is somebody's own, or a call within a call
                self._cancel = cancel
            else:
                signal.set_wakeup_fd(before)
            yield
        finally:
            if before == -1:
                signal.set_wakeup_fd(-1)
                with self._lock:  # what came is this call's, and not the next one's
                    self._cancel = None
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


@contextmanager
def interruptible(cancel: Callable[[], None]) -> Iterator[None]:
    """A block that waits: `cancel` is called where Ctrl-C comes, on the main thread with Python's own handler of it alone."""
    pythons = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with _watch().over(cancel) if pythons and threading.current_thread() is threading.main_thread() else nullcontext():
        yield
