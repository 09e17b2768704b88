"""gzip and zstd, as streams of pieces: bounded memory, and a bound on what a small file may become."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Generator, Iterable
from typing import Any

from replication.errors import CopyError, RequestError

#: The limit of an unpacked file: these bytes, or this multiple of the packed ones if that is more.
UNPACKED_BYTES_MAX, UNPACKED_RATIO_MAX = 1 << 30, 200
_PIECE = 1 << 20
_SLICE = 512  # of a zstd file: four bytes of it may unpack to 128 KiB
_GZIP = zlib.MAX_WBITS | 16


def gzip(pieces: Iterable[bytes], size: int) -> Generator[bytes]:
    """Compress; the same bytes every time, since the header has no time."""
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def gunzip(pieces: Iterable[bytes], size: int) -> Generator[bytes]:
    """Decompress; several members one after the other, too, and with zeros behind them, as gzip takes it.

    Raises:
        CopyError: it is not gzip, it is cut short, or it unpacks to far more than it is.
    """
    unpacker, seen = zlib.decompressobj(_GZIP), 0
    for piece in pieces:
        data = piece
        while data:
            if unpacker.eof:
                if not (data := data.lstrip(b"\0")):
                    break
                unpacker = zlib.decompressobj(_GZIP)
            try:
                made = unpacker.decompress(data, _PIECE)
            except zlib.error as error:
                raise CopyError(f"a file is not gzip: {error}", "Exclude it, or copy it as it is") from None
            seen = check_ratio(seen + len(made), size)
            yield made
            data = unpacker.unconsumed_tail or unpacker.unused_data
    if not unpacker.eof:
        raise CopyError("a gzip file is cut short", "Look at the source")


def zstd(pieces: Iterable[bytes], size: int) -> Generator[bytes]:
    """Compress."""
    packer = _zstandard().ZstdCompressor(level=3).compressobj()
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def unzstd(pieces: Iterable[bytes], size: int) -> Generator[bytes]:
    """Decompress; several frames one after the other, too. Raises CopyError as :func:`gunzip`."""
    library, seen = _zstandard(), 0
    decompressor = library.ZstdDecompressor(max_window_size=1 << 27)
    unpacker = decompressor.decompressobj()
    for each in _slices(pieces):
        data = each
        while data:
            if unpacker.eof:
                unpacker = decompressor.decompressobj()
            try:
                made = unpacker.decompress(data)
            except library.ZstdError as error:
                raise CopyError(f"a file is not zstd: {error}", "Exclude it, or copy it as it is") from None
            seen = check_ratio(seen + len(made), size)
            yield made
            data = unpacker.unused_data
    if not unpacker.eof:
        raise CopyError("a zstd file is cut short", "Look at the source")


def _slices(pieces: Iterable[bytes]) -> Generator[bytes]:
    """``pieces`` in slices of ``_SLICE``."""
    for piece in pieces:
        for begin in range(0, len(piece), _SLICE):
            yield piece[begin : begin + _SLICE]


def check_ratio(unpacked: int, packed: int) -> int:
    """The size of what is unpacked so far; CopyError if it is far more than what it was unpacked of."""
    if unpacked > max(UNPACKED_BYTES_MAX, UNPACKED_RATIO_MAX * packed):
        raise CopyError(
            f"a file of {packed} bytes unpacks to more than {UNPACKED_RATIO_MAX} times as much", "Exclude it"
        )
    return unpacked


def _zstandard() -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError:
        raise RequestError("zstd needs the package zstandard", "Install it: pip install zstandard") from None
