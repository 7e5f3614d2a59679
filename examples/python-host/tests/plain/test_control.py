"""The control plane: a trainer's client drives a worker over HTTP, and what is wrong gets an exact answer."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from sluice import SluiceError
from sluice.control import Asgi, Client, Control, ControlError, EngineTarget, Server, read_token
from sluice.control.phases import Answer
from world import REPLICATED, World, floats, values

TOKEN = "0123456789abcdef" * 4


class Host:
    """A target that does as it is told, and holds an operation until it is let go or cancelled."""

    def __init__(self) -> None:
        self.phase, self.version = "new", ""
        self.calls: list[Any] = []
        self.holds = ""
        self.reached, self.let_go = threading.Event(), threading.Event()
        self.cancelled = False

    def _do(self, name: str, phase: str, *given: Any) -> None:
        self.calls.append((name, *given))
        if self.holds == name:
            self.reached.set()
            assert self.let_go.wait(60)
            if self.cancelled:
                self.phase = "failed"
                raise RuntimeError(f"{name} was cancelled")
        self.phase = phase

    def init(self, init_info: dict[str, Any]) -> None:
        self._do("init", "ready", init_info)

    def start(self) -> None:
        self._do("start", "updating")

    def update(self, names: list[str]) -> None:
        self._do("update", "updating", names)

    def finish(self, version: str) -> None:
        self._do("finish", "ready", version)
        self.version = version

    def shutdown(self) -> None:
        self._do("shutdown", "new")

    def cancel(self) -> None:
        self.cancelled = True
        self.let_go.set()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(TOKEN + "\n")
    return path


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def server(host: Host, token_file: Path) -> Iterator[Server]:
    with Server(Control(host, token_file, max_body=1 << 16, call_s=30), read_s=20) as server:
        yield server


@pytest.fixture
def client(server: Server, token_file: Path) -> Client:
    return Client(server.url, token_file)


def raw(server: Server, request: bytes, *, end: bool = True) -> tuple[int, Any]:
    """What a request of any bytes gets."""
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(request)
        if end:
            connection.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def post(path: str, body: bytes = b"", token: str = TOKEN, length: int | None = None) -> bytes:
    head = f"POST /{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


def test_an_engine_is_initialised_updated_and_ended_over_http(token_file: Path) -> None:
    with World() as world:
        live, source = floats(0, 0, 0), floats(1, 2, 3)
        world.worker.register_live("w", live, REPLICATED)
        world.announce(w=source)
        with Server(Control(EngineTarget(world.worker), token_file)) as server:
            client = Client(server.url, token_file)

            def train(engine: Any) -> None:
                engine.init(world.info)
                with engine.updating("step-1"):
                    engine.update(["w"])

            def drive(_engine: Any) -> None:
                client.init(world.info)
                client.start()
                client.update(["w"])
                client.finish("step-1")

            assert world.both(train, drive) == [None, None]
            assert (values(live), client.version(), client.phases()) == ([1, 2, 3], "step-1", ["ready"])
            client.start()
            with pytest.raises(ControlError) as failed:
                client.update(["v"])
            text = "update: names[0] ('v') was not announced at init"
            assert str(failed.value) == f"{server.url}: {text}" and failed.value.status == 400
            assert failed.value.body == {
                "error": text, "status": "INVALID", "rank": 1, "stage": "update", "phase": "updating", "version": "step-1"
            }
            client.abort()
            assert client.phases() == ["new"] and client.version() == "step-1"
            with pytest.raises(SluiceError, match=r"rank 1"):
                with world.trainer.updating("step-2"):
                    world.trainer.update(["w"])


def test_phases_follow_each_other_or_are_refused(host: Host, client: Client, server: Server) -> None:
    def refused(call: Any, *given: Any) -> str:
        with pytest.raises(ControlError) as failed:
            call(*given)
        assert failed.value.status == 409
        return str(failed.value).removeprefix(f"{server.url}: ")

    assert refused(client.start) == "start: the phase must be ready, it is new"
    assert refused(client.finish, "v") == "finish: the phase must be updating, it is new"
    assert refused(client.abort) == "abort: nothing is under way, the phase is new"
    client.init({"a": 1})
    assert refused(client.init, {"a": 1}) == "init: the phase must be new, it is ready"
    assert refused(client.update, ["x"]) == "update: the phase must be updating, it is ready"
    client.start()
    assert refused(client.start) == "start: the phase must be ready, it is updating"
    client.update(["x", "y"])
    client.finish("step-1")
    assert (client.version(), client.phases()) == ("step-1", ["ready"])
    client.shutdown()
    assert host.calls == [("init", {"a": 1}), ("start",), ("update", ["x", "y"]), ("finish", "step-1"), ("shutdown",)]


@pytest.mark.parametrize("token", ["", "x" * 64, TOKEN[:-1], TOKEN + "0", TOKEN.upper(), "é" * 32])
def test_a_wrong_token_gets_nothing(host: Host, server: Server, token: str) -> None:
    want = "authorization: a bearer token that this server knows must be given"
    assert raw(server, post("init", b'{"init_info": {}}', token)) == (401, {"error": want})
    assert raw(server, b"GET /version HTTP/1.1\r\n\r\n") == (401, {"error": want})
    assert raw(server, b"GET /no/such/path HTTP/1.1\r\n\r\n") == (401, {"error": want})
    assert host.calls == []


BAD = [
    (post("update", b"{"), 400, None),
    (post("update", b'{"names": NaN}'), 400, "update: the body is no JSON: NaN is no number"),
    (post("update", b'{"names": "w"}'), 400, "update: names must be a list of strings"),
    (post("update", b'{"names": ["w", 1]}'), 400, "update: names must be a list of strings"),
    (post("update", b'{"names": [], "more": 1}'), 400, "update: the body must be a JSON object with the key names alone"),
    (post("finish", b"[]"), 400, "finish: the body must be a JSON object with the key version alone"),
    (post("start", b'{"a": 1}'), 400, "start: the body must be a JSON object without keys"),
    (post("init", b'{"init_info": []}'), 400, "init: init_info must be an object"),
    (post("init", b'{"init_info": {"a": 1e999}}'), 400, "init: the body is no JSON: 1e999 is no number"),
    (post("init", b"\xff\xfe"), 400, None),
    (post("init", b'{"init_info": ' + b"[" * 60000), 400, None),
    (post("update", b'{"names"', length=99), 400, "body: it ends after 8 of 99 bytes"),
    (post("update", b"x" * 65537), 413, "body: it must have at most 65536 bytes"),
    (post("update", b"x" * (1 << 19)), 413, "body: it must have at most 65536 bytes"),
    (post("update", length=int("9" * 30)), 413, "body: it must have at most 65536 bytes"),
    (post("nothing"), 404, "path: there is no such operation; there are init, start, update, finish, shutdown, abort, version"),
    (post("version"), 405, "version: the method must be GET"),
    (post("update").replace(b"Length: 0", b"Length: -1"), 411, "body: Content-Length must say how many bytes it has"),
    (post("update").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"), 411, None),
    (post("update").replace(b"Length: 0", b"Length: 0\r\nContent-Length: 2"), 411, "body: Content-Length must say how many bytes it has"),
    (post("update").replace(b"Length: 0", b"Length: " + b"0" * 30 + b"2") + b"[]", 400,
     "update: the body must be a JSON object with the key names alone"),
    (b"nonsense\r\n\r\n", 400, "request: Bad Request"),
    (b"GET /version HTTP/9.9\r\n\r\n", 505, "request: HTTP Version Not Supported"),
    (b"GET /" + b"x" * 70000, 400, "request: this is no HTTP"),
    (b"GET /version HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431, "request: Request Header Fields Too Large"),
]


@pytest.mark.parametrize(("request_", "status", "text"), BAD)
def test_a_request_that_is_wrong_is_refused_and_the_next_one_served(
    host: Host, server: Server, client: Client, request_: bytes, status: int, text: str | None
) -> None:
    found, body = raw(server, request_)
    assert found == status and (text is None or body["error"] == text)
    assert host.calls == [] and client.phases() == ["new"]


def test_a_client_that_is_slow_is_answered_and_holds_up_nobody(host: Host, token_file: Path) -> None:
    with Server(Control(host, token_file), read_s=1) as server:
        with socket.create_connection(server.address) as silent:
            late = (408, {"error": "request: it was not there within 1 s"})
            assert raw(server, post("init", b"{", length=20), end=False) == late
            assert raw(server, b"POST /init HT", end=False) == late
            silent.settimeout(30)
            assert silent.recv(100).startswith(b"HTTP/1.0 408 ")
        assert Client(server.url, token_file).phases() == ["new"]


def test_strangers_keep_nobody_out(host: Host, token_file: Path) -> None:
    with Server(Control(host, token_file), connections=2, read_s=300) as server, ExitStack() as silent:
        for said in (b"", b"GET ", b"GET /version HTTP/1.1\r\nA: ", b"GET /version HTTP/1.1\r\n\r\n") * 8:
            silent.enter_context(socket.create_connection(server.address)).sendall(said)
        assert Client(server.url, token_file).phases() == ["new"]


def test_connections_beyond_the_bound_are_closed_where_each_has_shown_the_token(host: Host, token_file: Path) -> None:
    with Server(Control(host, token_file), connections=1, read_s=300) as server:
        thread, _ = held(host, Client(server.url, token_file), "init")
        with socket.create_connection(server.address, timeout=30) as second:
            assert second.recv(1) == b""
        host.let_go.set()
        thread.join(30)
        for _ in range(50):  # the place of one that has its answer is free for the next, or soon is
            assert Client(server.url, token_file).phases() == ["ready"]


def test_a_refused_client_that_goes_on_sending_is_left(host: Host, token_file: Path) -> None:
    with Server(Control(host, token_file)) as server, socket.create_connection(server.address, timeout=30) as refused:
        refused.sendall(b"GET /version HTTP/1.1\r\n\r\n")
        while refused.recv(65536) != b"":
            pass
        with pytest.raises(ConnectionError):  # each byte soon enough for the next one
            while True:
                refused.sendall(b"x")
                time.sleep(0.2)


def held(host: Host, client: Client, operation: str) -> tuple[threading.Thread, list[Any]]:
    """A client's update, or init, in a thread, once the host is in it; and what became of it."""
    host.holds = operation
    if operation != "init":
        client.init({})
        client.start()
    said: list[Any] = []

    def call() -> None:
        try:
            client.init({}) if operation == "init" else client.update(["w"])
        except ControlError as error:
            said.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert host.reached.wait(30)
    return thread, said


def test_one_operation_at_a_time_and_abort_beside_it(host: Host, server: Server, client: Client) -> None:
    thread, said = held(host, client, "update")
    for call in (client.start, client.shutdown, lambda: client.update(["v"]), lambda: client.finish("v")):
        with pytest.raises(ControlError, match=r": update is under way$") as failed:
            call()
        assert failed.value.status == 409
    assert client.phases() == ["updating"]
    client.abort()
    thread.join(30)
    assert [str(error) for error in said] == [f"{server.url}: update: RuntimeError: update was cancelled"]
    assert said[0].status == 500 and client.phases() == ["new"]
    assert host.calls[-2:] == [("update", ["w"]), ("shutdown",)]


def test_of_two_aborts_that_would_wait_one_is_refused(host: Host, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    thread, _ = held(host, client, "update")
    told = threading.Event()
    monkeypatch.setattr(host, "cancel", told.set)  # and the update goes on
    waiting = threading.Thread(target=client.abort)
    waiting.start()
    assert told.wait(30)
    with pytest.raises(ControlError, match=": abort: another abort is under way$"):
        client.abort()
    host.let_go.set()
    thread.join(30)
    waiting.join(30)
    assert client.phases() == ["new"]


def test_a_client_that_is_killed_leaves_a_phase_that_the_next_one_finds(host: Host, server: Server, client: Client) -> None:
    client.init({})
    client.start()
    host.holds = "update"
    with socket.create_connection(server.address) as connection:
        connection.sendall(post("update", b'{"names": ["w"]}'))
        assert host.reached.wait(30)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # its end is a reset
    with pytest.raises(ControlError, match="update is under way"):
        client.finish("v")
    host.let_go.set()
    while True:  # until the server has noticed that the update is over
        try:
            client.finish("step-1")
            break
        except ControlError as error:
            assert "update is under way" in str(error)
    assert client.version() == "step-1"


def test_an_operation_that_takes_too_long_is_cancelled_and_the_session_shut_down(host: Host, token_file: Path) -> None:
    with Server(Control(host, token_file, call_s=0.5)) as server:
        client = Client(server.url, token_file)
        thread, said = held(host, client, "update")
        thread.join(30)
        assert [str(error) for error in said] == [f"{server.url}: update: not done within 0.5 s, and cancelled"]
        assert said[0].status == 504 and client.phases() == ["new"]


def test_nothing_that_a_client_says_is_logged(server: Server, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client.init({"nccl_unique_id_b64": "SECRET"})
    raw(server, post("init?token=SECRET", b"SECRET", "SECRET"))
    raw(server, b"SECRET SECRET SECRET\r\nSECRET: SECRET\r\n\r\n")
    assert "SECRET" not in caplog.text and TOKEN not in caplog.text
    assert "init: 200 after " in caplog.text


@pytest.mark.parametrize("body", [{}, {"phase": "new"}, {"phase": "new", "version": ["v"]}])
def test_what_is_no_control_plane_is_told_from_one(host: Host, token_file: Path, body: dict[str, Any]) -> None:
    control = Control(host, token_file)
    control.answer = lambda *_: Answer(HTTPStatus.OK, body)  # type: ignore[method-assign]
    with Server(control) as server:
        for call in (Client(server.url, token_file).version, Client(server.url, token_file).phases):
            with pytest.raises(ControlError, match=": version: 200 and not its JSON: this is no control plane of Sluice$"):
                call()


def test_a_host_whose_answer_never_ends_is_left_at_the_deadline(token_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection = listener.accept()[0]
            with suppress(OSError), connection:
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
                while True:
                    connection.sendall(b" ")
                    time.sleep(0.05)

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ControlError) as late:
            Client(url, token_file, timeout_s=0.5).version()
        assert str(late.value) == f"{url}: version: TimeoutError: no whole answer within 0.5 s"
        thread.join()


def test_several_hosts_are_told_at_once(token_file: Path) -> None:
    hosts = [Host(), Host()]
    with Server(Control(hosts[0], token_file)) as one, Server(Control(hosts[1], token_file)) as other:
        client = Client([one.url, other.url], token_file)
        client.init({})
        client.start()
        Client(one.url, token_file).finish("a")
        with pytest.raises(ControlError) as failed:
            client.finish("b")
        assert str(failed.value) == f"{one.url}: finish: the phase must be updating, it is ready"
        with pytest.raises(ControlError) as failed:
            client.version()
        assert str(failed.value) == f"hosts serve different versions: {one.url} 'a', {other.url} 'b'"


def test_a_token_file_that_others_may_read_is_refused(token_file: Path, host: Host, tmp_path: Path) -> None:
    what = f"token_file \\({token_file}\\)"
    token_file.chmod(0o640)
    with pytest.raises(ValueError, match=f"^{what} has mode 0640; only its owner may read or write it \\(chmod 600\\)$"):
        Control(host, token_file)
    token_file.chmod(0o600)
    length = "bytes; a token must have 32 to 4096$"
    wrongs = {"short": f"has 5 {length}", "x" * 4097: f"has 4097 {length}", f"{TOKEN}\n{TOKEN}": "must hold one line of letters"}
    for text, wrong in wrongs.items():
        token_file.write_text(text)
        with pytest.raises(ValueError, match=f"^{what} {wrong}") as failed:
            read_token(token_file)
        assert text not in str(failed.value)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ValueError, match="must be a regular file$"):
        read_token(tmp_path / "pipe")


def test_off_the_loopback_interface_tls_is_wanted(host: Host, token_file: Path) -> None:
    with pytest.raises(ValueError, match=r"^0.0.0.0 is not on the loopback interface: tls must be given, or insecure set to True$"):
        Server(Control(host, token_file), "0.0.0.0")
    Server(Control(host, token_file), "0.0.0.0", insecure=True).server_close()
    with pytest.raises(ValueError, match=r"^port \(70000\) must be 0 to 65535$"):
        Server(Control(host, token_file), port=70000)
    clear = "^http://serve-0:80 would carry the token in the clear: it must be https, or insecure set to True$"
    with pytest.raises(ValueError, match=clear):
        Client("http://serve-0:80", token_file)
    with pytest.raises(ValueError, match="^init_info must be JSON: "):
        Client("http://localhost", token_file).init("{")
    beyond = ("http://h:99999", "http://a..b", "http://localhost/é")
    for url in ("serve-0", "ftp://x", "http://me:secret@localhost", "http://localhost?token=1", *beyond):
        with pytest.raises(ValueError, match="^a host's URL must be"):
            Client(url, token_file)


def test_with_tls_the_server_shows_its_certificate(host: Host, token_file: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    with Server(Control(host, token_file, max_body=1000), tls=tls) as server:
        trusted = ssl.create_default_context(cafile=str(certificate))
        client = Client(server.url, token_file, tls=trusted)
        client.init({"a": 1})
        with pytest.raises(ControlError, match="body: it must have at most 1000 bytes$"):
            client.update(["x" * 100000])
        with pytest.raises(ControlError, match="CERTIFICATE_VERIFY_FAILED"):
            Client(server.url, token_file).start()
        with socket.create_connection(server.address, timeout=30) as plain:
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with pytest.raises(ConnectionError):
                while plain.recv(100):
                    pass
                raise ConnectionError("closed")
        assert client.phases() == ["ready"] and host.calls == [("init", {"a": 1})]


def ask(application: Asgi, method: str, path: str, *parts: bytes, token: str = TOKEN, root: str = "") -> tuple[int, Any]:
    """What an ASGI server would get for a request whose body comes in parts; without parts, the client is gone."""
    inbox = [{"type": "http.request", "body": part, "more_body": at < len(parts)} for at, part in enumerate(parts, 1)]
    sent: list[Any] = []

    async def receive() -> Any:
        return inbox.pop(0) if inbox else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {token}".encode())]
    scope = {"type": "http", "method": method, "path": path, "root_path": root, "headers": headers}
    asyncio.run(application(scope, receive, send))
    return (sent[0]["status"], json.loads(sent[1]["body"])) if sent else (0, None)


def test_an_asgi_host_mounts_it(host: Host, token_file: Path) -> None:
    application = Asgi(Control(host, token_file, max_body=100))
    done = ask(application, "POST", "/sluice/init", b'{"init_', b'info": {"a": 1}}', root="/sluice")
    assert done == (200, {"phase": "ready", "version": ""})
    assert host.calls == [("init", {"a": 1})]
    assert ask(application, "GET", "/version", b"")[1] == {"phase": "ready", "version": ""}
    assert ask(application, "GET", "/version", b"", root="/v")[0] == ask(application, "GET", "/v/version", b"", root="/v/")[0] == 200
    assert ask(application, "GET", "/version", b"", token="x" * 64)[0] == 401
    assert ask(application, "POST", "/start", b"x" * 60, b"x" * 60) == (413, {"error": "body: it must have at most 100 bytes"})
    assert ask(application, "POST", "/start") == (0, None)
    assert host.calls == [("init", {"a": 1})]


def test_a_loop_that_ends_leaves_an_operation_to_itself(host: Host, token_file: Path) -> None:
    application = Asgi(Control(host, token_file))
    host.phase, host.holds = "updating", "update"

    async def gone() -> None:
        scope = {"type": "http", "method": "POST", "path": "/update", "headers": [(b"authorization", f"Bearer {TOKEN}".encode())]}

        async def receive() -> Any:
            return {"type": "http.request", "body": b'{"names": ["w"]}'}

        task = asyncio.create_task(application(scope, receive, receive))  # type: ignore[arg-type]  # nothing is sent to who is gone
        while not host.reached.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(gone())
    assert host.calls == [("update", ["w"])] and not host.let_go.is_set()
    assert ask(application, "POST", "/finish", b'{"version": "v"}')[1]["error"] == "finish: update is under way"
    host.let_go.set()
    while ask(application, "POST", "/finish", b'{"version": "v"}')[0] != 200:
        time.sleep(0.01)
