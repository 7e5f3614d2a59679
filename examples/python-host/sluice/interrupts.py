"""Ctrl-C while the main thread waits in the library. Python itself comes to it only when the call returns, at its deadline.

Ctrl-C may come between any two steps of what stands here, too. So whatever one that was cut short left behind says nothing: the
call under way is known for as long as it is on the stack, and a descriptor of ours that is still where signals are told is ours.
"""

from __future__ import annotations

import functools
import os
import select
import signal
import socket
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress


class _UnderWay:
    """A call that waits. The stack holds it, nobody else."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.cancel = cancel


class _Watch:
    """A thread that is told of signals while a call is under way, and cancels it; Python then raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._hears, self._told = socket.socketpair()
        self._hears.setblocking(False)
        self._told.setblocking(False)
        self._lock = threading.Lock()
        self._call: Callable[[], _UnderWay | None] = lambda: None
        threading.Thread(target=self._run, name="sluice-interrupts", daemon=True).start()

    def over(self, cancel: Callable[[], None], call: Callable[[], None]) -> None:
        under_way, outer = _UnderWay(cancel), self._call
        try:
            if self._tell(self._told.fileno()):
                self._now(weakref.ref(under_way))
            call()
        finally:
            self._now(outer)
            if outer() is None:
                self._tell(-1)

    def _tell(self, where: int) -> bool:
        """Where signals are told from now on. False, and nothing changes: they are told to somebody else."""
        before = signal.set_wakeup_fd(where, warn_on_full_buffer=False)
        if before in (-1, self._told.fileno()):
            return True
        signal.set_wakeup_fd(before)
        return False

    def _now(self, call: Callable[[], _UnderWay | None]) -> None:
        with self._lock:  # what came before is not this call's
            self._call = call
            self._heard()

    def _heard(self) -> bytes:
        with suppress(BlockingIOError):
            return self._hears.recv(4096)
        return b""

    def _run(self) -> None:
        while True:
            select.select([self._hears], [], [])
            with self._lock:
                if signal.SIGINT in self._heard() and (call := self._call()) is not None:
                    call.cancel()


@functools.cache
def _watch() -> _Watch:
    return _Watch()


os.register_at_fork(after_in_child=_watch.cache_clear)


def interruptible(cancel: Callable[[], None], call: Callable[[], None]) -> None:
    """Makes a call that waits: `cancel` is called where Ctrl-C comes, on the main thread with Python's own handler of it alone."""
    pythons = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if pythons and threading.current_thread() is threading.main_thread():
        _watch().over(cancel, call)
    else:
        call()
