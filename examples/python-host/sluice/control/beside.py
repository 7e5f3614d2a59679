"""A call beside what goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def begun(call: Callable[..., T], *given: Any) -> Future[T]:
    """The call, on a thread of its own. A process that ends does not wait for it, as it would for a ThreadPoolExecutor's: a host
    that answers nothing keeps nobody."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # nobody who goes away takes it back

    def run() -> None:
        try:
            future.set_result(call(*given))
        except BaseException as raised:
            future.set_exception(raised)

    threading.Thread(target=run, name="sluice-beside", daemon=True).start()
    return future
