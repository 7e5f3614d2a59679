"""The control plane as an ASGI application: `app.mount("/sluice", Asgi(control))` in FastAPI, Starlette and what they mount in.

The host's server owns the connection, TLS and the deadline of a handshake; a request's body has one here, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

from .beside import begun
from .phases import Answer, Control, refusal

Message = MutableMapping[str, Any]


class Asgi:
    def __init__(self, control: Control, *, read_s: float = 20.0) -> None:
        self.control, self.read_s = control, read_s

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            raise ValueError(f"an ASGI scope of type {scope['type']!r} is none of the control plane's")
        answer = await self._answer(scope, receive)
        if answer is None:
            return
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.all_headers().items()]
        await send({"type": "http.response.start", "status": answer.status.value, "headers": headers})
        await send({"type": "http.response.body", "body": answer.json()})

    async def _answer(self, scope: Message, receive: Callable[[], Awaitable[Message]]) -> Answer | None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        path, root = scope["path"], scope.get("root_path", "").rstrip("/")
        if path.startswith(f"{root}/"):  # servers differ in whether a path begins with where it is mounted
            path = path[len(root) :]
        length = headers.get(b"content-length", b"")
        authorization = headers[b"authorization"].decode("latin-1") if b"authorization" in headers else None
        refused = self.control.admit(scope["method"], path, authorization, int(length[:20]) if length.isdigit() else None)
        if refused is not None:
            return refused
        body = bytearray()
        try:
            async with asyncio.timeout(self.read_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > self.control.max_body:
                        return self.control.too_large()
                    more = message.get("more_body", False)
        except TimeoutError:
            return refusal(HTTPStatus.REQUEST_TIMEOUT, f"request: it was not there within {self.read_s:g} s")
        return await asyncio.wrap_future(begun(self.control.answer, path, bytes(body)))  # the loop's own threads may be others'
