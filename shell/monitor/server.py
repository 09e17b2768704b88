"""Answers with the page, the status as JSON, and metrics, to programs of this user on this machine.

They are read-only. Other users, and web pages that reach this address by another name, are refused.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from peer.status.collect import ClusterStatus
from replication import log
from replication.errors import ConfigError, ReplicationError
from replication.link.local_user import is_own
from replication.settings import join_address
from shell.cli.render import to_json
from shell.monitor import metrics
from shell.monitor.page import SCRIPT, error_html, status_html
from shell.monitor.sampling import SampledStatus

HOST = "127.0.0.1"
_NAMES = ("localhost", HOST)
_TIMEOUT_S = 30.0
_HTML = "text/html; charset=utf-8"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self';"
    " img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_NOT_OWN = "Only the user of walship monitor is answered. Run a proxy as that user\n"
_FORBIDDEN = (
    f"HTTP/1.0 403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: {len(_NOT_OWN)}\r\n\r\n{_NOT_OWN}".encode()
)
_log = log.get(__name__)


class MonitorServer(ThreadingHTTPServer):
    """Listens on loopback. Requests are answered in threads, which end with the process.

    Raises:
        ConfigError: the port cannot be listened on.
    """

    daemon_threads = True

    def __init__(self, sampled: SampledStatus, port: int, remedy: str) -> None:
        try:
            super().__init__((HOST, port), _Answer)
        except OSError as error:
            raise ConfigError(f"{join_address(HOST, port)} cannot be listened on: {error.strerror}", remedy) from None
        self.sampled = sampled

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{join_address(HOST, self.server_port)}/"

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether a caller is of this user; others are refused here, since each request has a thread."""
        host, port = client_address[:2]
        if is_own(f"ipv4:{host}:{port}", self.server_port):
            return True
        _log.warning("monitor_caller_refused", why=_NOT_OWN.strip())
        with suppress(OSError):  # it has gone
            request.sendall(_FORBIDDEN)
        return False

    def handle_error(self, request: object, client_address: object) -> None:
        """A request that failed; it ends nothing else. A caller that hung up is no error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            _log.exception("monitor_request_failed")

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answer requests meanwhile."""
        thread = threading.Thread(target=self.serve_forever, name="monitor", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


class _Answer(BaseHTTPRequestHandler):
    server: MonitorServer
    server_version = "walship"
    sys_version = ""
    timeout = _TIMEOUT_S

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        """Answer one request."""
        name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if name not in _NAMES:
            why = f"Ask by the name {' or '.join(_NAMES)}"
            _log.warning("monitor_caller_refused", why=why)
            self._send(HTTPStatus.FORBIDDEN, "text/plain; charset=utf-8", f"{why}\n")
            return
        match urlsplit(self.path).path:
            case "/":
                self._page()
            case "/monitor.js":
                self._send(HTTPStatus.OK, "text/javascript; charset=utf-8", SCRIPT)
            case "/status.json":
                self._status("application/json", to_json)
            case "/metrics":
                self._status(metrics.CONTENT_TYPE, metrics.metrics_text)
            case _:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", "There are /, /status.json and /metrics\n")

    def _page(self) -> None:
        try:
            found = self.server.sampled.status()
        except ReplicationError as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, _HTML, error_html(error.what, error.hint))
            return
        self._send(HTTPStatus.OK, _HTML, status_html(found, self.server.sampled.history(), time.monotonic()))

    def _status(self, kind: str, to_text: Callable[[ClusterStatus], str]) -> None:
        try:
            found = self.server.sampled.status()
        except ReplicationError as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", f"{error.what}\n{error.hint}\n")
            return
        self._send(HTTPStatus.OK, kind, to_text(found))

    def _send(self, code: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""
