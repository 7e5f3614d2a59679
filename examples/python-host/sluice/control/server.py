"""A server of its own for the control plane: a thread a request, every wait with a deadline, one request a connection."""

from __future__ import annotations

import io
import ipaddress
import logging
import re
import socket
import socketserver
import ssl
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from .phases import Answer, Control, refusal

log = logging.getLogger("sluice.control")
LINGER_BYTES = 1 << 20
LINGER_S = 1.0


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


class Server(ThreadingHTTPServer):
    """Serves from its own threads from `with Server(control) as server:` to the end of the block; `server.url` is where.

    host, port   where it listens; off the loopback interface it wants `tls`
    tls          a context with the server's certificate (ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) and load_cert_chain)
    insecure     allows the token to cross a network that anyone may listen to
    read_s       how long a client may take to send one request, its handshake and body included
    connections  at once; a further one takes the place of the oldest that has not shown the token, or else of one that ends within
                 two seconds, or is closed
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        control: Control,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: ssl.SSLContext | None = None,
        insecure: bool = False,
        read_s: float = 20.0,
        connections: int = 32,
    ) -> None:
        self.control, self.tls, self.read_s = control, tls, read_s
        self._free = threading.Semaphore(connections)
        self._strangers: dict[socket.socket, socket.socket] = {}  # who has not shown the token, the oldest first
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        if not 0 <= port <= 65535:  # getaddrinfo would take 70000 for 4464
            raise ValueError(f"port ({port}) must be 0 to 65535")
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family, address = found[0], found[4]
        if not (tls or insecure or is_loopback(str(address[0]))):
            raise ValueError(f"{host} is not on the loopback interface: tls must be given, or insecure set to True")
        super().__init__(address, _Handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:  # without the look-up of its own name that HTTPServer makes
        socketserver.TCPServer.server_bind(self)

    @property
    def address(self) -> tuple[str, int]:
        return str(self.server_address[0]), self.server_address[1]

    @property
    def url(self) -> str:
        host, port = self.address
        return f"{'https' if self.tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._find_room():
            log.warning("a connection was closed: there are too many")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.know(request)
            self._free.release()

    def _find_room(self) -> bool:
        """Takes a place that is free, or is so soon: whoever has had its answer goes by itself, one stranger is made to."""
        if self._free.acquire(blocking=False):
            return True
        turned_out, deadline = False, time.monotonic() + 2 * LINGER_S
        while time.monotonic() < deadline:
            turned_out = turned_out or self._turn_out()
            if self._free.acquire(timeout=0.1):
                return True
        return False

    def _turn_out(self) -> bool:
        """Ends the oldest connection that has not shown the token; says whether there was one."""
        with self._lock:
            oldest = next(iter(self._strangers), None)
            if oldest is None:
                return False
            log.warning("a connection without the token was closed: there are too many")
            with suppress(OSError):
                socket.socket.shutdown(self._strangers.pop(oldest), socket.SHUT_RDWR)  # TLS has no say in it
            return True

    def meet(self, request: socket.socket, connection: socket.socket) -> None:
        with self._lock:
            self._strangers[request] = connection

    def know(self, request: socket.socket) -> None:
        with self._lock:
            self._strangers.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a connection failed", exc_info=True)  # a client that went away, is late, or speaks no TLS

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve_forever, name="sluice-control", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self.shutdown()
            self._thread.join()
        self.server_close()


class _Timed(io.RawIOBase):
    """A socket's bytes, all of them within one deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "sluice"
    sys_version = ""

    def setup(self) -> None:
        self.connection = self.request
        deadline = time.monotonic() + self.server.read_s
        if self.server.tls is not None:
            self.connection.settimeout(self.server.read_s)
            self.connection = self.server.tls.wrap_socket(self.connection, server_side=True, do_handshake_on_connect=False)
        self.server.meet(self.request, self.connection)
        if isinstance(self.connection, ssl.SSLSocket):
            self.connection.do_handshake()
        self.rfile = io.BufferedReader(_Timed(self.connection, deadline))
        self.wfile = io.BytesIO()  # what the base class writes of its own is never sent

    def handle(self) -> None:
        self.close_connection = True
        answer = self._answer()
        if answer is not None:
            self._send(answer)

    def _answer(self) -> Answer | None:
        self._refused: Answer | None = None
        try:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline:
                return None
            if len(self.raw_requestline) > 65536 or not self.parse_request():
                return self._refused or refusal(HTTPStatus.BAD_REQUEST, "request: this is no HTTP")
            return self._ask()
        except TimeoutError:
            return refusal(HTTPStatus.REQUEST_TIMEOUT, f"request: it was not there within {self.server.read_s:g} s")

    def _ask(self) -> Answer:
        control = self.server.control
        lengths = self.headers.get_all("Content-Length", ["0"])
        if "Transfer-Encoding" in self.headers or len(lengths) > 1 or not re.fullmatch("[0-9]+", lengths[0]):
            return refusal(HTTPStatus.LENGTH_REQUIRED, "body: Content-Length must say how many bytes it has")
        bytes_said = int(lengths[0].lstrip("0")[:20] or "0")
        refused = control.admit(self.command, self.path, self.headers.get("Authorization"), bytes_said)
        if refused is None or refused.status is not HTTPStatus.UNAUTHORIZED:
            self.server.know(self.request)
        if refused is not None:
            return refused
        body = self.rfile.read(bytes_said)
        if len(body) < bytes_said:
            return refusal(HTTPStatus.BAD_REQUEST, f"body: it ends after {len(body)} of {bytes_said} bytes")
        return control.answer(self.path, body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """How the base class says what is wrong with a request line or a header; it may quote either, so it is not passed on."""
        self._refused = refusal(HTTPStatus(code), f"request: {HTTPStatus(code).phrase}")

    def _send(self, answer: Answer) -> None:
        head = [f"HTTP/1.0 {answer.status.value} {answer.status.phrase}", "Connection: close"]
        head += [f"{name}: {value}" for name, value in answer.all_headers().items()]
        self.connection.settimeout(self.server.read_s)
        self.connection.sendall("\r\n".join([*head, "", ""]).encode("latin-1") + answer.json())
        self._linger()

    def _linger(self) -> None:
        """Reads some of what was not wanted, so that closing does not take the answer away from a client that still sends."""
        self.connection.shutdown(socket.SHUT_WR)
        rest, left = _Timed(self.connection, time.monotonic() + LINGER_S), LINGER_BYTES
        while left > 0 and (got := rest.readinto(bytearray(65536))) > 0:
            left -= got

    def finish(self) -> None:
        self.rfile.close()
        if self.connection is not self.request:
            self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Control says what was asked for; a request's own words are in no log."""
