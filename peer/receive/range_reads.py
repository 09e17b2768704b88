"""Serve registered bytes of this host's files to other hosts of the same cluster.

Replay runs on one host at a time. It reads the landing files and WALs of other hosts through their receivers.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator

from replication.core.frame import FILE_HEADER_BYTES, Buffer
from replication.errors import FormatError, PeerRefusedError, ReplicationError
from replication.files.mapped import scan_mapped
from replication.ledger.base import FileRow, Ledger
from replication.link import ranges
from replication.link.base import Reason, Refusal

OPEN_MAX = 16
_WAIT_S = 60.0
_HEADS_BYTES = 256 << 10


class RangeReads:
    """Serves ReadRequests, at most ``OPEN_MAX`` at a time, each with one piece in memory. Safe for threads.

    Others wait, since a Spark application with many cores asks for more; the caller's places bound how many.

    Args:
        ledger: the cluster's; has the registered lengths.
    """

    def __init__(self, ledger: Ledger, host: str) -> None:
        self._ledger = ledger
        self._host = host
        self._open = threading.BoundedSemaphore(OPEN_MAX)

    def read(self, raw: bytes) -> Iterator[bytes]:
        """The ReadReplies to a ReadRequest of another host."""
        return ranges.encode_pieces(lambda: self._served(raw))

    def _served(self, raw: bytes) -> Iterator[Buffer]:
        if not self._open.acquire(blocking=False):
            yield b""  # now: a host that says nothing is taken for gone
            if not self._open.acquire(timeout=_WAIT_S):
                what = f"host {self._host} serves {OPEN_MAX} reads already"
                raise Refusal(Reason.NOT_READY, what, "Try again later").error()
        try:
            yield from self._contents(raw)
        finally:
            self._open.release()

    def _contents(self, raw: bytes) -> Iterator[Buffer]:
        try:
            ask = ranges.decode_ask(raw)
            row = self._row(ask)
            if ask.heads:
                yield b""  # a slow disk may take long for as many headers as make a piece
                for begin, end in ask.spans:
                    yield from _heads(row.path, begin, end)
            else:
                yield from _bytes(row.path, ask)
        except FormatError as error:
            raise Refusal(Reason.CORRUPT, error.what, "See walship wal verify on that host").error() from None
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            what = f"{row.path} on host {self._host} cannot be read: {error}"
            raise Refusal(Reason.CORRUPT, what, "Restore it, or salvage it: walship wal salvage").error() from None
        except ReplicationError as error:
            if isinstance(error, PeerRefusedError):
                raise
            raise Refusal(Reason.NOT_READY, error.what, error.hint).error() from None

    def _row(self, ask: ranges.ReadAsk) -> FileRow:
        own = self._ledger.cluster
        if ask.cluster != own:
            raise Refusal(
                Reason.WRONG_CLUSTER, f"this is {own}, not {ask.cluster}", "Only hosts of one cluster share files"
            ).error()
        row = self._ledger.files.get(ask.file)
        if row is None or row.host != self._host:
            raise Refusal(
                Reason.NOT_READY, f"host {self._host} has no file {ask.file}", "It may have been retired just now"
            ).error()
        last = max((end for _, end in ask.spans), default=0)
        if last > row.length or min((begin for begin, _ in ask.spans), default=FILE_HEADER_BYTES) < FILE_HEADER_BYTES:
            raise Refusal(
                Reason.NOT_READY, f"{ask.file} is registered up to {row.length}, not {last}", "Read a shorter range"
            ).error()
        return row


def _heads(path: str, begin: int, end: int) -> Iterator[Buffer]:
    """Yield envelopes and sealed headers, in pieces."""
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # unmapped with its last view
    gathered = bytearray()
    for frame in scan_mapped(mapped, begin, min(end, len(mapped))):
        gathered += mapped[frame.begin : frame.payload_begin]
        if len(gathered) >= _HEADS_BYTES:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)


def _bytes(path: str, ask: ranges.ReadAsk) -> Iterator[Buffer]:
    with open(path, "rb") as file:
        for begin, end in ask.spans:
            while begin < end:
                piece = os.pread(file.fileno(), min(ranges.PIECE_BYTES, end - begin), begin)
                if not piece:
                    raise FormatError(f"{path} ends at {begin}, but is registered up to {end} at least")
                yield piece
                begin += len(piece)
