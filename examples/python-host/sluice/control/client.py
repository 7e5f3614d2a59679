"""A trainer's side of the control plane, for one serving host or for several that are told the same at once."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit

from .beside import begun
from .server import is_loopback
from .token import read_token

ANSWER_BYTES = 1 << 20


class ControlError(Exception):
    """A host refused or failed. `status` is HTTP's, 0 where there was no answer; `body` what the host said, as JSON."""

    def __init__(self, text: str, status: int = 0, body: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.body: Mapping[str, Any] = body or {}


def parts_of(url: str) -> SplitResult | None:
    """None for what no request can be sent to."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.hostname.encode("idna") and parts.port != 0
    except ValueError:
        return None
    plain = re.fullmatch("[!-~]+", url) and not (parts.username or parts.query or parts.fragment)
    return parts if good and plain else None


class Client:
    """
    urls        of the hosts, with the path where the control plane is mounted: "https://serve-0:8000/sluice"
    token_file  the secret that all of them know
    timeout_s   how long to wait for an answer; an init or update takes as long as its slowest rank
    tls         how certificates are checked; None is the system's way
    insecure    allows plain HTTP off the loopback interface, where anyone on the way can read the token

    A call goes to all hosts at once and returns when each has answered; where some failed it raises what the first of them
    said, with all their texts.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        token_file: str | os.PathLike[str],
        *,
        timeout_s: float = 1000.0,
        tls: ssl.SSLContext | None = None,
        insecure: bool = False,
    ) -> None:
        self._urls = [urls] if isinstance(urls, str) else list(urls)
        for url in self._urls:
            parts = parts_of(url)
            if parts is None:
                raise ValueError(f"a host's URL must be http:// or https:// with a host and perhaps a port and a path, not {url!r}")
            if parts.scheme == "http" and not insecure and not is_loopback(parts.hostname or ""):
                raise ValueError(f"{url} would carry the token in the clear: it must be https, or insecure set to True")
        if not self._urls:
            raise ValueError("a client needs the URL of one host at least")
        self._authorization = f"Bearer {read_token(token_file)}"
        self._timeout_s, self._tls = timeout_s, tls

    def init(self, init_info: str | Mapping[str, Any]) -> None:
        try:
            info = json.loads(init_info) if isinstance(init_info, str) else dict(init_info)
        except ValueError as wrong:
            raise ValueError(f"init_info must be JSON: {wrong}") from None
        self._all("POST", "init", {"init_info": info})

    def start(self) -> None:
        self._all("POST", "start", {})

    def update(self, names: Sequence[str]) -> None:
        self._all("POST", "update", {"names": list(names)})

    def finish(self, version: str) -> None:
        self._all("POST", "finish", {"version": version})

    def shutdown(self) -> None:
        self._all("POST", "shutdown", {})

    def abort(self) -> None:
        """From any thread: ends what is under way, on every rank of every host."""
        self._all("POST", "abort", {})

    def version(self) -> str:
        """What every host serves; an error where they differ."""
        found = {url: answer["version"] for url, answer in zip(self._urls, self._all("GET", "version", None))}
        if len(set(found.values())) > 1:
            told = ", ".join(f"{url} {version!r}" for url, version in found.items())
            raise ControlError(f"hosts serve different versions: {told}")
        return str(found[self._urls[0]])

    def phases(self) -> list[str]:
        return [answer["phase"] for answer in self._all("GET", "version", None)]

    def _all(self, method: str, operation: str, body: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        data = json.dumps(body, allow_nan=False).encode() if body is not None else None
        asked = [begun(self._ask, url, method, operation, data) for url in self._urls]
        errors = [error for error in (one.exception() for one in asked) if error is not None]
        if not errors:
            return [one.result() for one in asked]
        for error in errors:
            if not isinstance(error, ControlError):
                raise error
        failed = [error for error in errors if isinstance(error, ControlError)]
        raise ControlError("; ".join(map(str, failed)), failed[0].status, failed[0].body) from failed[0]

    def _ask(self, url: str, method: str, operation: str, data: bytes | None) -> dict[str, Any]:
        parts = urlsplit(url)
        where = parts.hostname or ""
        if parts.scheme == "https":
            tls = self._tls or ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                where, parts.port, timeout=self._timeout_s, context=tls)
        else:
            connection = http.client.HTTPConnection(where, parts.port, timeout=self._timeout_s)
        headers = {"Authorization": self._authorization, "Content-Type": "application/json", "Connection": "close"}
        try:
            response, said = self._exchange(connection, method, f"{parts.path.rstrip('/')}/{operation}", data, headers)
        except (OSError, http.client.HTTPException) as error:
            raise ControlError(f"{url}: {operation}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        try:
            answer = json.loads(said) if len(said) <= ANSWER_BYTES else None
        except (ValueError, RecursionError):
            answer = None
        keys = ("phase", "version") if response.status == 200 else ()
        if not isinstance(answer, dict) or any(type(answer.get(key)) is not str for key in keys):
            text = f"{url}: {operation}: {response.status} and not its JSON: this is no control plane of Sluice"
            raise ControlError(text, response.status)
        if response.status != 200:
            raise ControlError(f"{url}: {answer.get('error', response.reason)}", response.status, answer)
        return answer

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """One request and its answer, within one deadline: a socket's own is that of each byte."""
        late = threading.Event()
        connection.connect()
        sock = connection.sock

        def end() -> None:
            late.set()
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

        timer = threading.Timer(self._timeout_s, end)
        timer.daemon = True
        timer.start()
        try:
            with suppress(ConnectionError):  # refused before all was sent: what the host says is there to be read
                connection.request(method, path, data, headers)
            response = connection.getresponse()
            said = response.read(ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException):
            if not late.is_set():
                raise
        finally:
            timer.cancel()
        if late.is_set():
            raise TimeoutError(f"no whole answer within {self._timeout_s:g} s")
        return response, said
