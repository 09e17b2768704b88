"""Runs the timeline's server in a thread: embedded in a process, or as a process of its own.

Its address is in a file, so that a client on the host finds it whatever its port is. If the port is taken, the server
takes another one and says so.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer.polling import polls
from peer.timeline.views import Views
from replication import log
from replication.errors import ConfigError, ReplicationError
from replication.link.local_user import is_own
from replication.link.tls_files import DeniedCertificates
from replication.settings import TimelineSection, TlsSection, join_address, split_address
from replication.tls_checks import is_loopback

if TYPE_CHECKING:
    from peer.timeline.serving.app import JobsAndTables

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10
_PORT = re.compile(r":\d+\Z")
_WHY = b"Without TLS only the user of the server is answered: set tls.ca, tls.cert and tls.key\n"
_FORBIDDEN = b"HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_WHY), _WHY)
_log = log.get(__name__)


class TimelineServer:
    """The server; a context manager that starts and stops it.

    Args:
        cluster: its name; with TLS, only its own certificates may ask.
        views: what it serves; not closed.
        known: tells of jobs and tables, see ``serving.app``.
        section: where to listen, and how many requests at once.
        tls: mutual TLS, as of links. Without it, and unless plain text is allowed, only this process's user may ask.
        address_file: where its address is written while it runs; None for none.

    Raises:
        ConfigError: FastAPI or uvicorn is not installed, or it would listen beyond loopback without TLS.
    """

    def __init__(
        self,
        cluster: str,
        views: Views,
        known: JobsAndTables,
        section: TimelineSection,
        tls: TlsSection,
        address_file: Path | None = None,
    ) -> None:
        self._cluster = cluster
        self._views = views
        self._known = known
        self._section = section
        self._tls = tls
        self._file = address_file
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self._failed: list[BaseException] = []
        self.address = ""

    def __enter__(self) -> TimelineServer:
        """Start, and return once requests are answered."""
        try:
            import uvicorn

            from peer.timeline.serving.app import make_app
        except ImportError as error:
            raise ConfigError(
                f"the timeline's server needs {error.name}", "Install it: pip install 'walship[timeline]'"
            ) from None
        self._check_plaintext()
        listener = self._listen()
        host, port = listener.getsockname()[:2]
        self.address = join_address(host, port)
        app = make_app(self._views, self._known)
        config = uvicorn.Config(
            app if self._tls.enabled or self._tls.allow_plaintext else _NoBrowsers(app),
            log_config=None,
            access_log=False,
            lifespan="off",
            limit_concurrency=self._section.requests_max,
            timeout_graceful_shutdown=_STOP_TIMEOUT_S,
            **self._caller_options(port),
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, args=(listener,), name="timeline", daemon=True)
        self._thread.start()
        for _ in polls(_START_TIMEOUT_S, 0.01):
            if self._server.started or self._failed or not self._thread.is_alive():
                break
        if not self._server.started:
            self.__exit__(None, None, None)
            raise ConfigError(f"the timeline's server did not start: {self._failed or 'no answer'}", "See its log")
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(f"{self.address}\n", encoding="utf-8")
        _log.info("timeline_serving", address=self.address)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop: answers in progress are finished for a while, then cut."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        if self._file is not None and self.address:
            self._file.unlink(missing_ok=True)

    def check(self) -> None:
        """ReplicationError if the server has ended by itself."""
        if self._thread is not None and not self._thread.is_alive():
            raise ReplicationError(f"the timeline's server ended: {self._failed or 'no reason'}", "See its log")

    def _run(self, listener: socket.socket) -> None:
        try:
            self._server.run(sockets=[listener])
        except (Exception, SystemExit) as error:
            self._failed.append(error)
        finally:
            listener.close()

    def _listen(self) -> socket.socket:
        host, port = split_address(self._section.listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return _bound(family, host, port)
        except OSError as error:
            if not port:
                raise ConfigError(
                    f"{self._section.listen} cannot be listened on: {error.strerror}",
                    "Set [timeline] listen to an address of this host",
                ) from None
            _log.warning("timeline_port_taken", address=self._section.listen, error=error.strerror)
            try:
                return _bound(family, host, 0)
            except OSError as again:
                raise ConfigError(
                    f"{self._section.listen} cannot be listened on: {again.strerror}", "Correct [timeline] listen"
                ) from None

    def _check_plaintext(self) -> None:
        host, _ = split_address(self._section.listen)
        if not (self._tls.enabled or self._tls.allow_plaintext or is_loopback(host)):
            raise ConfigError(
                f"{self._section.listen} is not loopback and there is no TLS",
                "Set tls.ca, tls.cert and tls.key, or tls.allow_plaintext = true on a network you trust",
            )

    def _caller_options(self, port: int) -> dict[str, Any]:
        if not self._tls.enabled:
            return {} if self._tls.allow_plaintext else {"http": _of_user(port)}
        return {
            "ssl_certfile": str(self._tls.cert),
            "ssl_keyfile": str(self._tls.key),
            "ssl_ca_certs": str(self._tls.ca),
            "ssl_cert_reqs": ssl.CERT_REQUIRED,
            "http": _of_cluster(self._cluster, DeniedCertificates(self._tls.deny)),
        }


class _NoBrowsers:
    """Answers no web page: it runs as the user that opened it, whatever name it gives this machine."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        from starlette.responses import PlainTextResponse

        headers = dict(scope.get("headers", ()))
        host = _PORT.sub("", headers.get(b"host", b"").decode("latin-1")).strip("[]")
        if is_loopback(host) and b"origin" not in headers:
            await self._app(scope, receive, send)
        else:
            _log.warning("timeline_caller_refused", names=[host[:100]])
            await PlainTextResponse("Web pages are not answered; ask by the address 127.0.0.1\n", 403)(
                scope, receive, send
            )


def _of_cluster(cluster: str, denied: DeniedCertificates) -> type:
    """Return uvicorn's protocol, which here hangs up on certificates of other clusters, and on revoked ones."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class OwnCertificates(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            certificate = transport.get_extra_info("peercert") or {}
            names = {name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"}
            if cluster in names and not is_denied(transport):
                super().connection_made(transport)
                return
            _log.warning("timeline_caller_refused", names=sorted(names))
            self.transport = transport  # which is closed again when it is lost
            transport.abort()

        def data_received(self, data: bytes) -> None:
            if is_denied(self.transport):  # since it connected
                self.transport.abort()
                return
            super().data_received(data)

    def is_denied(transport: Any) -> bool:
        shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
        return sha256(shown).hexdigest() in denied

    return OwnCertificates


def _of_user(port: int) -> type:
    """Return uvicorn's protocol, which here answers only processes of this process's user on this machine."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class OwnUser(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            host, far = (transport.get_extra_info("peername") or ("", 0))[:2]
            kind = "ipv6" if ":" in host else "ipv4"
            if is_own(f"{kind}:[{host}]:{far}" if kind == "ipv6" else f"{kind}:{host}:{far}", port):
                super().connection_made(transport)
                return
            _log.warning("timeline_caller_refused", names=[host])
            self.transport = transport  # which is closed again when it is lost
            transport.write(_FORBIDDEN)
            transport.close()

    return OwnUser


def _bound(family: int, host: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
        return listener
    except OSError:
        listener.close()
        raise
