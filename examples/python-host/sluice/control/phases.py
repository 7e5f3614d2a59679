"""What the control plane does, whatever HTTP server carries it: who may ask, what may follow what, and what is answered.

One operation at a time goes to the target; `abort` and `version` may come beside it. A client that goes away changes nothing:
what it began ends, and the next one finds the phase that it left.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol

from ..engine import Engine, SluiceError, State, Status
from .token import Door

log = logging.getLogger("sluice.control")


class Target(Protocol):
    """Who serves: its operations are called one at a time, from any thread, and raise what goes wrong; `cancel` may come beside
    them and makes the one under way, and every later one but shutdown, fail."""

    def init(self, init_info: dict[str, Any]) -> None: ...
    def start(self) -> None: ...
    def update(self, names: list[str]) -> None: ...
    def finish(self, version: str) -> None: ...
    def shutdown(self) -> None: ...
    def cancel(self) -> None: ...

    @property
    def phase(self) -> str:
        """new, ready, updating or failed"""

    @property
    def version(self) -> str: ...


class EngineTarget:
    """One worker of this process, registered with the model that it serves."""

    def __init__(self, engine: Engine[Any]) -> None:
        self.engine = engine

    def init(self, init_info: dict[str, Any]) -> None:
        self.engine.init(json.dumps(init_info))

    def start(self) -> None:
        self.engine.start_update()

    def update(self, names: list[str]) -> None:
        self.engine.update(names)

    def finish(self, version: str) -> None:
        self.engine.finish_update(version)

    def shutdown(self) -> None:
        self.engine.shutdown()

    def cancel(self) -> None:
        self.engine.cancel()

    @property
    def phase(self) -> str:
        return self.engine.state.name.lower()

    @property
    def version(self) -> str:
        return self.engine.version


@dataclass(frozen=True)
class Answer:
    status: HTTPStatus
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> bytes:
        return json.dumps(self.body).encode()

    def all_headers(self) -> dict[str, str]:
        plain = {"Content-Type": "application/json", "Content-Length": str(len(self.json())), "Cache-Control": "no-store"}
        return plain | dict(self.headers)


def refusal(
    status: HTTPStatus, text: str, more: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    return Answer(status, {"error": text, **(more or {})}, headers or {})


@dataclass(frozen=True)
class Operation:
    phases: tuple[str, ...]  # in which it may be asked for
    fields: Mapping[str, type] = field(default_factory=dict)
    method: str = "POST"


ANY = tuple(state.name.lower() for state in State)
OPERATIONS = {
    "init": Operation(("new",), {"init_info": dict}),
    "start": Operation(("ready",)),
    "update": Operation(("updating",), {"names": list}),
    "finish": Operation(("updating",), {"version": str}),
    "shutdown": Operation(ANY),
    "abort": Operation(ANY),
    "version": Operation(ANY, method="GET"),
}
KINDS: dict[type, str] = {dict: "an object", list: "a list of strings", str: "a string"}
STATUSES = {
    Status.INVALID: HTTPStatus.BAD_REQUEST, Status.STATE: HTTPStatus.CONFLICT, Status.DISAGREE: HTTPStatus.CONFLICT,
    Status.CANCELLED: HTTPStatus.CONFLICT, Status.PEER: HTTPStatus.BAD_GATEWAY, Status.TIMEOUT: HTTPStatus.GATEWAY_TIMEOUT,
}


class Control:
    """
    target      who serves
    token_file  the secret that every request must show, as `Authorization: Bearer TOKEN`
    max_body    of a request, in bytes; an init info of 100,000 parameters has some 20 MB
    call_s      how long one operation of the target may take before it is cancelled and the session shut down
    """

    def __init__(
        self, target: Target, token_file: str | os.PathLike[str], *, max_body: int = 64 << 20, call_s: float = 900.0
    ) -> None:
        self.max_body = max_body
        self._target = target
        self._call_s = call_s
        self._door = Door(token_file)
        self._turn = threading.Lock()
        self._aborting = threading.Lock()
        self._under_way = ""
        self._seen = {"phase": target.phase, "version": target.version}

    def admit(self, method: str, path: str, authorization: str | None, length: int | None) -> Answer | None:
        """Before a request's body is read: the refusal, or None. `length` is the body's as announced, None where none is."""
        if not self._door.admits(authorization):
            text = "authorization: a bearer token that this server knows must be given"
            return refusal(HTTPStatus.UNAUTHORIZED, text, headers={"WWW-Authenticate": 'Bearer realm="sluice"'})
        operation = OPERATIONS.get(path.strip("/"))
        if operation is None:
            return refusal(HTTPStatus.NOT_FOUND, f"path: there is no such operation; there are {', '.join(OPERATIONS)}")
        if method != operation.method:
            text = f"{path.strip('/')}: the method must be {operation.method}"
            return refusal(HTTPStatus.METHOD_NOT_ALLOWED, text, headers={"Allow": operation.method})
        if length is not None and length > self.max_body:
            return self.too_large()
        return None

    def too_large(self) -> Answer:
        return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"body: it must have at most {self.max_body} bytes")

    def answer(self, path: str, body: bytes) -> Answer:
        """Does what a request that was admitted asks for. From any thread; waits until it is done."""
        name, begun = path.strip("/"), time.monotonic()
        try:
            answer = self._answer(name, body)
        except Exception as error:
            log.exception("%s failed", name)
            answer = refusal(HTTPStatus.INTERNAL_SERVER_ERROR, f"{name}: {type(error).__name__}: {error}", self._seen)
        level = logging.DEBUG if name == "version" else logging.INFO
        log.log(level, "%s: %d after %.3f s", name, answer.status, time.monotonic() - begun)
        return answer

    def _answer(self, name: str, body: bytes) -> Answer:
        if name == "version":
            return Answer(HTTPStatus.OK, {**self._seen, "phase": self._target.phase})
        try:
            given = fields_of(name, body)
        except ValueError as error:
            return refusal(HTTPStatus.BAD_REQUEST, str(error))
        if name == "abort":
            return self._abort()
        if not self._turn.acquire(blocking=False):
            return refusal(HTTPStatus.CONFLICT, f"{name}: {self._under_way or 'another request'} is under way", self._seen)
        try:
            self._under_way = name
            phase = self._target.phase
            if phase not in OPERATIONS[name].phases:
                wanted = " or ".join(OPERATIONS[name].phases)
                return refusal(HTTPStatus.CONFLICT, f"{name}: the phase must be {wanted}, it is {phase}", self._look())
            return self._call(name, lambda: getattr(self._target, name)(*given.values()))
        finally:
            self._under_way = ""
            self._turn.release()

    def _abort(self) -> Answer:
        """Ends what is under way, or open, or failed, on every rank; the phase is new again."""
        if not self._under_way and self._target.phase in ("new", "ready"):
            return refusal(HTTPStatus.CONFLICT, f"abort: nothing is under way, the phase is {self._target.phase}", self._seen)
        if not self._aborting.acquire(blocking=False):
            return refusal(HTTPStatus.CONFLICT, "abort: another abort is under way", self._seen)
        try:
            self._target.cancel()
            if not self._turn.acquire(timeout=self._call_s):
                text = f"abort: what was under way was told to end, and did not within {self._call_s:g} s"
                return refusal(HTTPStatus.GATEWAY_TIMEOUT, text, self._seen)
            try:
                self._under_way = "abort"
                return self._call("abort", self._target.shutdown)
            finally:
                self._under_way = ""
                self._turn.release()
        finally:
            self._aborting.release()

    def _call(self, name: str, call: Callable[[], object]) -> Answer:
        late = threading.Event()

        def end() -> None:
            late.set()
            self._target.cancel()

        timer = threading.Timer(self._call_s, end)
        timer.daemon = True
        timer.start()
        try:
            call()
        except SluiceError as error:
            status = STATUSES.get(error.status, HTTPStatus.INTERNAL_SERVER_ERROR)
            answer = refusal(status, str(error), {"status": error.status.name, "rank": error.rank, "stage": error.stage})
        except Exception as error:
            log.exception("%s failed", name)
            answer = refusal(HTTPStatus.INTERNAL_SERVER_ERROR, f"{name}: {type(error).__name__}: {error}")
        else:
            answer = Answer(HTTPStatus.OK, {})
        finally:
            timer.cancel()
            timer.join()
            if late.is_set():
                with suppress(Exception):  # of what failed already
                    self._target.shutdown()
            self._look()
        if late.is_set():
            answer = refusal(HTTPStatus.GATEWAY_TIMEOUT, f"{name}: not done within {self._call_s:g} s, and cancelled")
        return Answer(answer.status, {**answer.body, **self._seen}, answer.headers)

    def _look(self) -> dict[str, str]:
        self._seen = {"phase": self._target.phase, "version": self._target.version}
        return self._seen


def fields_of(name: str, body: bytes) -> dict[str, Any]:
    """The fields of a request's body, in the order of its operation; an empty body is an empty object."""
    try:
        given = json.loads(body or b"{}", parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: the body is no JSON: {error}") from None
    wanted = OPERATIONS[name].fields
    if not isinstance(given, dict) or given.keys() != wanted.keys():
        keys = f"with the key {', '.join(wanted)} alone" if wanted else "without keys"
        raise ValueError(f"{name}: the body must be a JSON object {keys}")
    for key, kind in wanted.items():
        if type(given[key]) is not kind or kind is list and any(type(one) is not str for one in given[key]):
            raise ValueError(f"{name}: {key} must be {KINDS[kind]}")
    return {key: given[key] for key in wanted}


def _no_number(text: str) -> Any:
    raise ValueError(f"{text[:40]} is no number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)
