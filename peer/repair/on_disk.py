"""The files of frames that lie on this host's disk, whatever its ledger knows of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import PurePath
from uuid import UUID

from peer.repair.damaged import keep_damaged
from peer.repair.readable import find_readable
from peer.repair.saved_copy import SENT_AGAIN, copied
from replication.config import Config
from replication.core.frame import FILE_HEADER_BYTES, check_payload, read_file_header
from replication.core.ids import NIL_UUID, ClusterId, FileId
from replication.errors import BadSectorError, CorruptFrameError, RequestError
from replication.files.base import AppendFile, Files
from replication.files.frames import frames
from replication.ledger.base import Claim, FileKind, FileRow
from replication.ledger.sql.ledger import open_ledger
from replication.ledger.sql.rebuild import RebuildInput

_NUMBER = re.compile(r"[0-9]{12}\Z")
_COPY = re.compile(r".*-([0-9]{12})-[0-9]+\.frame\Z")
_BLOCK_BYTES = 1 << 20


def on_disk(config: Config, files: Files, since: int | None = None) -> tuple[list[RebuildInput], dict[str, str], int]:
    """Files of frames, those that are damaged with what is wrong, and the first number above all of this host's.

    With ``since`` only files with this number or a higher one.

    Raises:
        RequestError: two files say that they are the same one.
    """
    found: dict[FileId, RebuildInput] = {}
    damaged: dict[str, str] = {}
    copies = map(_COPY.match, files.names(str(config.data_dir / "quarantine")))
    numbers = [-1, *(int(copy[1]) for copy in copies if copy)]  # of retired files, too: no copy is to be overwritten
    for folder in (str(config.wal_dir), str(config.landing_dir)):
        files.make_directory(folder)
        for name in sorted(files.names(folder)):
            path, number = f"{folder}/{name}", _number(name)
            if name.partition(".")[2] != "wal":
                continue
            numbers.append(number)
            if since is not None and number < since:
                continue
            try:
                each = read_file(files, path)
            except (CorruptFrameError, BadSectorError) as error:
                damaged[path] = error.what
                continue
            if each is not None and (same := found.setdefault(each.file, each)) is not each:
                raise RequestError(f"{same.path} and {path} are both {each.file}", "Move the copy away")
    return [*found.values()], damaged, max(numbers) + 1


def _number(path: str) -> int:
    """The number in a file's name; -1 when its name is no number."""
    stem = PurePath(path).stem
    return int(stem) if _NUMBER.match(stem) else -1


def of_known_tables(
    found: Sequence[RebuildInput], is_known: Callable[[UUID], bool], unknown: str, problems: dict[str, str]
) -> list[RebuildInput]:
    """Files whose frames are all of tables that the ledger knows. The others join ``problems``, with what is wrong.

    Nobody would replay frames of other tables, and they would count as applied. ``unknown`` describes such a table.
    """
    known = []
    for each in found:
        if all(is_known(table) for table in {claim.stream.table for claim in each.claims}):
            known.append(each)
        else:
            problems[each.path] = f"it has frames of {unknown}"
    return known


def read_file(files: Files, path: str) -> RebuildInput | None:
    """The frames of a file; None of bootstraps, which come again.

    Raises:
        CorruptFrameError: not all of it is intact.
        BadSectorError: the disk does not give all of it.
    """
    handle = files.open(path)
    claims: list[Claim] = []
    with closing(handle):
        file, created = read_file_header(handle.read(0, FILE_HEADER_BYTES))
        try:
            for frame, payload in frames(handle, FILE_HEADER_BYTES, handle.size()):
                check_payload(frame, payload)
                if frame.header.kind in SENT_AGAIN:
                    return None
                claims.append(Claim.of(frame, frame.begin, frame.end))
        except CorruptFrameError:
            if not _is_reserved(handle, claims[-1].end if claims else FILE_HEADER_BYTES):
                raise
    return RebuildInput(file, path, created, tuple(claims))


def _is_reserved(file: AppendFile, begin: int) -> bool:
    """Whether the rest of a file is space that was reserved for frames: it was OPEN when its process was killed."""
    size = file.size()
    return not any(any(file.read(at, min(size, at + _BLOCK_BYTES))) for at in range(begin, size, _BLOCK_BYTES))


def save_whole(
    config: Config, url: str, files: Files, damaged: Mapping[str, str], wanted: Callable[[UUID], bool] = lambda _: True
) -> tuple[str, ...]:
    """Copy the readable frames of ``wanted`` tables out of damaged files, and move those files to the quarantine.

    Returns a line for each file.
    """
    lines: list[str] = []
    host, nobody = config.cluster.host, ClusterId(config.cluster.name, NIL_UUID)
    with closing(open_ledger(url)) as ledger:
        for path, what in damaged.items():
            named = FileId(nobody, host, max(0, _number(path)))
            row = FileRow(named, FileKind.LANDING, host, path, False, 0, "", "", 0, 0, 0)
            readable = find_readable(row, 0).frames.values()
            whole = [each for each in readable if wanted(each[0].header.table)]
            if whole:
                with copied(config, ledger, files, None, whole) as made:
                    end = made.claims[-1].end
                    ledger.registration.register_own(made.row.file, FILE_HEADER_BYTES, end, made.claims)
                    ledger.files.close(made.row.file, end)
            kept = keep_damaged(config, files, row, path)
            lines.append(f"{what}: {path} ({len(whole)} of {len(readable)} frames saved; the file is {kept} now)")
    return tuple(lines)
