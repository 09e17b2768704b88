"""An HTTP server that redirects, or answers, and notes what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Asked(NamedTuple):
    """A request: its method and its headers."""

    command: str
    headers: Message


@contextmanager
def served(location: Callable[[], str], content: bytes = b"") -> Iterator[tuple[str, list[Asked]]]:
    """A server that redirects to a location, or answers when that is empty; its address, and what it was asked."""
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append(Asked(self.command, self.headers))
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(307 if location() else 200)
            for name, value in (("Location", location()), ("ETag", '"1"'), ("Content-Length", str(len(content)))):
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_GET = do_HEAD = do_PUT = answer

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()
