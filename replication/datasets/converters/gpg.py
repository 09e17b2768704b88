"""GPG encryption and decryption by the ``gpg`` command, with the keys of the user who runs the copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Generator, Iterable
from typing import IO

from replication.datasets.converters.compression import check_ratio
from replication.errors import CopyError, RequestError

_PIECE = 1 << 20
_COMMON = ("--batch", "--no-tty", "--yes", "--quiet")
_JOIN_S = 30.0
_ERRORS_MAX = 1 << 20
_STATUS = "[GNUPG:] "


def encrypt(pieces: Iterable[bytes], size: int, recipient: str) -> Generator[bytes]:
    """Encrypt for a key: a fingerprint or an address. Raises CopyError if gpg refuses."""
    return _through([*_COMMON, "--recipient", recipient, "--encrypt"], pieces)


def decrypt(pieces: Iterable[bytes], size: int) -> Generator[bytes]:
    """Decrypt with a key of the user.

    Raises:
        CopyError: it is not encrypted, was changed, the key is missing, or it unpacks to far more than it is.
    """
    seen = 0
    for piece in _through([*_COMMON, "--status-fd", "2", "--decrypt"], pieces, "DECRYPTION_OKAY"):
        seen = check_ratio(seen + len(piece), size)
        yield piece


def check_gpg() -> None:
    """RequestError if there is no ``gpg`` command."""
    if shutil.which("gpg") is None:
        raise RequestError("encrypt and decrypt need the command gpg", "Install GnuPG")


def _through(options: list[str], pieces: Iterable[bytes], wanted: str = "") -> Generator[bytes]:
    """What gpg makes of pieces; its status has to tell ``wanted``, if it has to tell something."""
    check_gpg()
    failed: list[BaseException] = []
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(["gpg", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        assert process.stdin is not None and process.stdout is not None
        feeder = threading.Thread(target=_feed, args=(process.stdin, pieces, failed), name="copy-gpg", daemon=True)
        feeder.start()
        try:
            while piece := process.stdout.read(_PIECE):
                yield piece
            process.wait()
        finally:
            process.kill()
            process.wait()
            feeder.join(_JOIN_S)
            process.stdout.close()
        if failed:
            raise failed[0]
        errors.seek(max(errors.seek(0, os.SEEK_END) - _ERRORS_MAX, 0))
        lines = errors.read().decode(errors="replace").split("\n")
        if process.returncode != 0:
            told = (line.removeprefix("gpg: ") for line in lines if line and not line.startswith(_STATUS))
            reason = "; ".join(told)[:300]
            raise CopyError(f"gpg failed: {reason}", "Check the keys of this user: gpg --list-keys")
        if wanted and f"{_STATUS}{wanted}" not in lines:  # it takes what is only stored or signed
            raise CopyError("gpg failed: it is not encrypted", "Exclude it, or look at the source")


def _feed(stdin: IO[bytes], pieces: Iterable[bytes], failed: list[BaseException]) -> None:
    try:
        with stdin:
            for piece in pieces:
                stdin.write(piece)
    except BrokenPipeError:
        return  # gpg has ended; its exit code tells why
    except BaseException as error:
        failed.append(error)
