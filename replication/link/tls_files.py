"""The files of ``[tls]`` while a process runs: they are read again when they have changed.

Files that cannot be used, such as a certificate whose key is not in place yet, leave those of before in use.
"""

from __future__ import annotations

import contextlib
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Generic, TypeVar

from replication import log
from replication.errors import ConfigError
from replication.link.tls import LinkTls, load
from replication.permissions import refuse_exposed
from replication.settings import TlsSection

_POLL_S = 1.0
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_log = log.get(__name__)
_Value = TypeVar("_Value")


class _Reread(Generic[_Value]):
    """A value from files, read again after one of them has changed. Safe for threads."""

    def __init__(self, files: Sequence[Path], read: Callable[[], _Value]) -> None:
        self._files = tuple(files)
        self._read = read
        self._lock = threading.Lock()
        self._seen = self._unusable = self._stamps()
        self._polled_s = time.monotonic()
        self._value = read()

    @property
    def has_files(self) -> bool:
        """Whether there are files to look at."""
        return bool(self._files)

    def get(self) -> _Value:
        """The value; the files are looked at once a second at most."""
        with self._lock:
            now_s = time.monotonic()
            if now_s < self._polled_s + _POLL_S:
                return self._value
            self._polled_s = now_s
            if (stamps := self._stamps()) != self._seen:
                try:
                    self._value = self._read()
                    self._seen = stamps
                    _log.info("tls_files_read", files=[str(file) for file in self._files])
                except ConfigError as error:  # read again each time: what is in the way may be a full table of files
                    if stamps != self._unusable:
                        _log.error("tls_files_unusable", error=str(error))
                    self._unusable = stamps
            return self._value

    def _stamps(self) -> list[tuple[int, int, int]]:
        found = []
        for file in self._files:
            with contextlib.suppress(OSError):
                is_now = file.stat()
                found.append((is_now.st_mtime_ns, is_now.st_ino, is_now.st_size))
        return found


class TlsFiles:
    """Authority, certificate and key of ``[tls]``.

    Raises:
        ConfigError: the files cannot be read or do not fit each other.
    """

    def __init__(self, section: TlsSection) -> None:
        files = [file for file in (section.ca, section.cert, section.key) if file is not None]
        self._files = _Reread(files, lambda: _usable(section))

    def get(self) -> LinkTls | None:
        """What is in the files; None when the section names none."""
        return self._files.get()


class DeniedCertificates:
    """The certificates that ``tls.deny`` revokes.

    Raises:
        ConfigError: the file cannot be read, or a line is not a fingerprint.
    """

    def __init__(self, file: Path | None) -> None:
        self._files = _Reread([] if file is None else [file], lambda: _fingerprints(file))

    def __bool__(self) -> bool:
        """Whether there is a file that may revoke any."""
        return self._files.has_files

    def __contains__(self, fingerprint: object) -> bool:
        """Whether the certificate of that fingerprint is revoked."""
        return fingerprint in self._files.get()


def fingerprint(auth: Mapping[str, Sequence[bytes]]) -> str:
    """The SHA-256 of a caller's certificate in hexadecimal digits; "" without one."""
    (pem,) = auth.get("x509_pem_cert", (b"",))[:1]
    return sha256(ssl.PEM_cert_to_DER_cert(pem.decode())).hexdigest() if pem else ""


def _usable(section: TlsSection) -> LinkTls | None:
    found = load(section)
    if found is None or section.cert is None or section.key is None or section.ca is None:
        return found
    refuse_exposed(section.key)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(section.cert, section.key, password=b"")
        context.load_verify_locations(section.ca)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(
            f"{section.cert}, {section.key} and {section.ca} cannot be used together: {error}",
            "Put the certificate, its own key without a passphrase, and the authority in place",
        ) from None
    return found


def _fingerprints(file: Path | None) -> frozenset[str]:
    if file is None:
        return frozenset()
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", "Check tls.deny") from None
    found = set()
    for number, line in enumerate(lines, 1):
        fingerprint = line.partition("#")[0].rpartition("=")[2].replace(":", "").strip().lower()
        if fingerprint and not _FINGERPRINT.fullmatch(fingerprint):
            raise ConfigError(
                f"{file}, line {number}, is not a SHA-256 fingerprint of a certificate",
                "Write what `openssl x509 -noout -fingerprint -sha256 -in FILE` says",
            )
        found.add(fingerprint)
    return frozenset(found - {""})
