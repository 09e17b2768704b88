"""Events of a copy: an event for each file and file set that is in place, and for each that failed.

They are sent as a step of the publication, so one that was not sent is sent by the next run. After a crash an event may
come twice, with the same ``id``.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPMessage
from typing import IO, Any, Protocol
from urllib.error import HTTPError
from urllib.parse import SplitResult, urlsplit

from replication.datasets.copying.file_sets import FileSet
from replication.error_text import one_line
from replication.errors import ConfigError
from replication.log import redact

_TIMEOUT_S = 30.0
_EVENTS_PER_POST = 1000
_SENT = re.compile("[!-~]*")  # what may be in the path and the query of a request


class EventSink(Protocol):
    """Where events go."""

    def send(self, events: Sequence[str]) -> None:
        """Send events, each an object in JSON; OSError if the receiver did not take them."""


class FileEvents:
    """Appends events to a file, a line each, durably."""

    def __init__(self, path: str) -> None:
        self._path = path

    def send(self, events: Sequence[str]) -> None:
        """Append them, on lines of their own: a full disk or a kill may have left a part of the last line."""
        with open(self._path, "ab+") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - 1, 0))
            is_torn = file.read(1) not in (b"", b"\n")
            file.write("".join(["\n" if is_torn else "", *(f"{event}\n" for event in events)]).encode())
            file.flush()
            os.fsync(file.fileno())


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: urllib would follow most of them without the events."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        fp.close()
        there = redact(newurl).replace(req.selector, "/…") if len(req.selector) > 1 else redact(newurl)
        raise OSError(f"it answers {code} and names {there} instead")


_OPENER = urllib.request.build_opener(_NoRedirects)


class WebhookEvents:
    """Posts events to a URL, as JSON arrays of at most 1,000. Its path and query may be secret, and are not shown."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._shown = "://".join(urlsplit(url)[:2])

    def send(self, events: Sequence[str]) -> None:
        """Post them; OSError for any answer but 2xx, a redirect, too."""
        for begin in range(0, len(events), _EVENTS_PER_POST):
            body = f"[{','.join(events[begin : begin + _EVENTS_PER_POST])}]".encode()
            request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
            try:
                with _OPENER.open(request, timeout=_TIMEOUT_S):
                    pass
            except (OSError, http.client.HTTPException) as error:  # or what answered does not speak HTTP
                raise OSError(f"the event was not sent ({_why(error)}) to {self._shown}") from error


def _why(error: Exception) -> str:
    inner = None if isinstance(error, HTTPError) else getattr(error, "reason", None)  # urllib wraps the cause
    return one_line(inner if isinstance(inner, BaseException) else error)


def open_events(address: str) -> EventSink:
    """The sink of an address: a URL or a path; ConfigError for a scheme that is not known."""
    if address.startswith(("http://", "https://")):
        if "@" in _webhook(address).netloc:
            raise ConfigError("the URL of a webhook holds no user or password", "Give its token in the path or query")
        return WebhookEvents(address)
    if address.startswith("kafka://"):
        from replication.datasets.publication.kafka import KafkaEvents  # deferred: few copies tell Kafka

        return KafkaEvents(address)
    if "://" in address:
        raise ConfigError(
            f"events cannot be sent to {redact(address)}", "Give a path, or a URL that begins with http, https or kafka"
        )
    return FileEvents(address)


def _webhook(address: str) -> SplitResult:
    """The parts of a webhook's URL; ConfigError if no request can be made of it."""
    try:
        parts = urlsplit(address)
        is_url = bool(parts.hostname) and parts.port != 0 and bool(_SENT.fullmatch(parts.path + parts.query))
    except ValueError:  # of brackets and ports that are none
        is_url = False
    if not is_url:
        raise ConfigError(
            f"{redact(address)} is no URL of a webhook", "Write https://HOST/PATH, with %XX where not ASCII"
        )
    return parts


def published_events(target: str, file_set: FileSet) -> list[str]:
    """An event for each file of a file set that is in place, and one for the file set."""
    files = [
        _event(
            "file_published",
            target,
            file_set.name,
            path=each.file.destination,
            bytes=each.size,
            digest=each.digest,
            guid=each.file.guid,
            metadata=dict(each.file.metadata),
        )
        for each in file_set.staged
    ]
    digests = hashlib.sha256("".join(each.digest for each in file_set.staged).encode()).hexdigest()
    return [*files, _event("file_set_published", target, file_set.name, files=len(files), digest=digests)]


def failed_event(target: str, file_set: str, reasons: Mapping[str, str]) -> str:
    """The event of a file set that is not published."""
    failures = {path: redact(reason) for path, reason in reasons.items()}  # drivers quote addresses
    return _event("file_set_failed", target, file_set, failures=failures)


def _event(name: str, target: str, file_set: str, **fields: Any) -> str:
    event = {"event": name, "target": target, "file_set": file_set, **fields}
    text = json.dumps(event, sort_keys=True)
    return json.dumps({"id": hashlib.sha256(text.encode()).hexdigest()[:32], **event}, sort_keys=True)
