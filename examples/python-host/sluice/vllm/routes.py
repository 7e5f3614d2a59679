"""vLLM's API server with the control plane at /sluice: an endpoint plugin, which vLLM loads where VLLM_PLUGINS names it.

The token's file is `additional_config["sluice"]["token_file"]`. What is asked for goes to all workers by vLLM's engine client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

from ..control import Asgi, Control
from ..control.phases import refusal
from . import BACKEND
from .worker import sluice_config


class Endpoints:
    name = BACKEND
    required_tasks = None

    def __init__(self) -> None:
        self._asgi: Asgi | None = None

    def attach_router(self, app: Any) -> None:
        app.mount("/sluice", self)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        if engine_client is None:  # a server that only renders has no workers
            return
        token_file = sluice_config(engine_client.vllm_config).get("token_file")
        if token_file is None:
            raise ValueError(f"additional_config[{BACKEND!r}] must have token_file, the control plane's secret")
        self._asgi = Asgi(Control(VllmTarget(engine_client, asyncio.get_running_loop()), token_file))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._asgi is not None:
            await self._asgi(scope, receive, send)
            return
        answer = refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the server is not ready")
        await send({"type": "http.response.start", "status": answer.status.value, "headers": []})
        await send({"type": "http.response.body", "body": answer.json()})


class VllmTarget:
    """All workers of a vLLM engine. They say no phase: it is known from what they were asked and how that ended. A worker makes
    one call at a time, so cancel waits for the one under way; the trainer's own end of an update ends it at once."""

    def __init__(self, client: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._client, self._loop = client, loop
        self.phase, self.version = "new", ""

    def init(self, init_info: dict[str, Any]) -> None:
        self._do(self._client.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init_info)), "ready", "new")

    def start(self) -> None:
        self._do(self._client.start_weight_update(), "updating", "ready")

    def update(self, names: list[str]) -> None:
        self._update("updating", names=names)

    def finish(self, version: str) -> None:
        self._update("updating", names=[], version=version)
        self._do(self._client.finish_weight_update(version), "ready", "updating")
        self.version = version

    def shutdown(self) -> None:
        self._do(self._client.shutdown_weight_transfer_engine(), "new", "failed")

    def cancel(self) -> None:
        if self.phase == "updating":
            with suppress(Exception):  # the call that gives up is told by failing, and ends vLLM's session
                self._update("failed", names=[], abort=True)

    def _update(self, phase: str, **update_info: Any) -> None:
        self._do(self._client.update_weights(WeightTransferUpdateRequest(update_info=update_info)), phase, "failed")

    def _do(self, call: Coroutine[Any, Any, None], phase: str, otherwise: str) -> None:
        """From any thread but the loop's own."""
        try:
            asyncio.run_coroutine_threadsafe(call, self._loop).result()
        except BaseException:
            self.phase = otherwise
            raise
        self.phase = phase
