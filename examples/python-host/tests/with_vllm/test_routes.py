"""The control plane that the endpoint plugin mounts in vLLM's API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not there: scripts/fetch-vllm brings it")

from sluice.vllm.routes import Endpoints


class ApiClient:
    """vLLM's engine client, whose calls are coroutines of the server's loop."""

    def __init__(self, **sluice: Any) -> None:
        self.vllm_config = SimpleNamespace(additional_config={"sluice": sluice})
        self.told: list[Any] = []
        self.breaks = ""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(request: Any = None) -> None:
            self.told.append((name, getattr(request, "init_info", None) or getattr(request, "update_info", None) or request))
            if self.breaks == name:
                raise RuntimeError(f"{name} failed")

        return call


def test_vllms_server_mounts_the_control_plane_behind_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("t" * 40)
    plugin, client = Endpoints(), ApiClient(token_file=str(token))
    mounted: list[Any] = []
    plugin.attach_router(SimpleNamespace(mount=lambda path, application: mounted.append((path, application))))
    ((path, application),) = mounted

    async def ask(operation: str, **body: Any) -> tuple[int, Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": json.dumps(body).encode()}

        async def send(message: Any) -> None:
            sent.append(message)

        method = "GET" if operation == "version" else "POST"
        scope = {"type": "http", "method": method, "path": f"{path}/{operation}", "root_path": path}
        await application({**scope, "headers": [(b"authorization", b"Bearer " + b"t" * 40)]}, receive, send)
        return sent[0]["status"], json.loads(sent[1]["body"])

    async def session() -> None:
        assert await ask("version") == (503, {"error": "the server is not ready"})
        with pytest.raises(ValueError, match=r"^additional_config\['sluice'\] must have token_file, the control plane's secret$"):
            await plugin.init_state(ApiClient(), None, None)
        await plugin.init_state(None, None, None)
        assert (await ask("version"))[0] == 503
        await plugin.init_state(client, None, None)
        assert (await ask("init", init_info={"a": 1}))[0] == 200
        assert (await ask("start"))[0] == 200
        assert (await ask("update", names=["w"]))[0] == 200
        assert await ask("finish", version="step-1") == (200, {"phase": "ready", "version": "step-1"})
        client.breaks = "update_weights"
        assert (await ask("start"))[0] == 200
        failed = {"error": "update: RuntimeError: update_weights failed", "phase": "failed", "version": "step-1"}
        assert await ask("update", names=["w"]) == (500, failed)
        assert await ask("abort") == (200, {"phase": "new", "version": "step-1"})

    asyncio.run(session())
    assert client.told == [
        ("init_weight_transfer_engine", {"a": 1}), ("start_weight_update", None), ("update_weights", {"names": ["w"]}),
        ("update_weights", {"names": [], "version": "step-1"}), ("finish_weight_update", "step-1"), ("start_weight_update", None),
        ("update_weights", {"names": ["w"]}), ("shutdown_weight_transfer_engine", None),
    ]
