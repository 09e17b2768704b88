"""Alarms about files that the ledger needs and this host's disk does not have, or replay could not read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from peer.replay_report import ReplayReport
from replication.core.frame import FILE_HEADER_BYTES
from replication.ledger.base import FileKind, FileRow, Ledger


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that cannot be read, why, and the remedy."""

    file: str
    why: str
    remedy: str


def unreadable(
    ledger: Ledger, rows: Iterable[FileRow], host: str, data_dir: Path, report: ReplayReport | None
) -> list[Unreadable]:
    """Files of ``host`` that are missing or cut, and those that its replay reported."""
    reasons = report.held if report is not None else {}
    found = []
    for row in rows:
        if row.host != host or row.length <= FILE_HEADER_BYTES:
            continue
        why = _missing(row) or reasons.get(f"file {row.file.local}", "")
        if why and ledger.files.get(row.file) is not None:  # else it was retired meanwhile
            found.append(Unreadable(row.file.local, why, _moved(row, data_dir) or _remedy(row)))
    return found


def _missing(row: FileRow) -> str:
    if row.is_stored:  # the store is asked only when it is shipped
        return ""
    try:
        size = Path(row.path).stat().st_size
    except OSError as error:
        return f"{row.path}: {error.strerror}"
    return "" if size >= row.length else f"{row.path} has {size} of {row.length} registered bytes"


def _moved(row: FileRow, data_dir: Path) -> str:
    path = Path(row.path)
    if row.is_stored or path.exists() or path.is_relative_to(data_dir):
        return ""
    found = (data_dir.joinpath(*path.parts[-count:]) for count in range(2, 5))
    if not (here := next((file for file in found if file.is_file()), None)):
        return ""
    return f"It is {here} now: the data directory was moved or copied. Move it back, or start the cluster: walship up"


def _remedy(row: FileRow) -> str:
    if row.source is not None:
        return f"Restore it, or have it sent again: walship wal salvage {row.file.local} --yes"
    if row.is_redundant:
        anew = "It is written anew after" if row.kind is FileKind.BOOTSTRAP else "Nothing is lost with it"
        return f"{anew}: walship wal salvage {row.file.local} --yes"
    remedy = "Restore it: what it holds may exist nowhere else"
    return f"{remedy}. This says what salvaging it would lose: walship wal salvage {row.file.local}"
