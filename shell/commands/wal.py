"""wal list, wal dump, wal verify, wal salvage: the files of frames on this host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from replication.core.ids import NIL_UUID
from replication.error_text import counted
from replication.errors import CorruptFrameError, FormatError, MissingFileError, RequestError
from shell.cli.invocation import Invocation
from shell.cli.render import Printer, bytes_text, moment_text, print_before_error

if TYPE_CHECKING:
    from peer.client.cluster import Cluster
    from peer.frames.check import WalView
    from replication.core.frame import FrameView
    from replication.ledger.base import FileRow

FileArgument = Annotated[str, Argument(metavar="FILE", help="A path, or slot/number as wal list shows it.")]

_CHECKED = ("file", "state", "size", "frames", "rows", "repeated", "streams", "problems")


def wal_list(invocation: Invocation) -> None:
    """List WAL and landing files, as the ledger has them, and whether they are on disk."""
    with invocation.connect() as (cluster, printer):
        here = cluster.config.cluster.host
        rows = [
            {
                "file": row.file.local,
                "kind": row.kind.value,
                "state": "CLOSED" if row.closed else "OPEN",
                "length": row.length,
                "size": bytes_text(row.length),
                "applied": row.applied if printer.as_json else bytes_text(row.applied),
                "newest": moment_text(row.commit_hi) if row.commit_hi else None,
                "source": "" if row.source is None else f"{row.source.cluster.name}/{row.source.local}",
                "path": row.path,
                "on_disk": _where(row, here),
            }
            for row in cluster.ledger.files.all()
        ]
        columns = ("file", "kind", "state", "size", "applied", "newest", "source", "on_disk")
        printer.rows(rows, columns, "no files; they come with the first append")


def _where(row: FileRow, here: str) -> bool | str:
    if row.is_stored:
        return "in the store"
    return Path(row.path).exists() if row.host == here else f"on {row.host}"


def wal_dump(
    invocation: Invocation,
    file: FileArgument,
    rows: Annotated[bool, Option("--rows", help="Print the rows of data frames, too.")] = False,
    limit: Annotated[
        int, Option("--limit", metavar="N", min=0, help="Print at most this many frames; 0 prints all.")
    ] = 0,
) -> None:
    """Print the frames of a file."""
    from peer.frames.check import open_wal

    with invocation.connect() as (cluster, printer):
        path, row = _found_here(cluster, file)
        with open_wal(path, row.length if row else None) as view:
            found: list[dict[str, object]] = []
            for number, frame in enumerate(view.frames()):
                if limit and number >= limit:
                    break
                shown = _frame(cluster, frame)
                if rows and frame.header.kind.name == "DATA":
                    shown["content"] = _content(cluster, view, frame)
                found.append(shown)
            if not found and (row is None or view.content):
                _check_header(view)
            _print_frames(printer, found)


def wal_verify(
    invocation: Invocation,
    files: Annotated[
        list[str] | None, Argument(metavar="FILE", help="Files to check. Default: all of this host.")
    ] = None,
) -> None:
    """Check files: headers, payloads, hash chains and end records. Exits with 3 if one is damaged."""
    from peer.frames.check import Checked, check_file

    with invocation.connect() as (cluster, printer):
        checked: list[Checked] = []
        for path, row in _chosen(cluster, files or []):
            try:
                checked.append(check_file(path, row.length if row else None))
            except MissingFileError as error:
                if files or row is None:
                    raise
                if cluster.ledger.files.get(row.file) is not None:  # else it was retired meanwhile
                    checked.append(Checked(str(path), row.file, 0, 0, 0, 0, 0, row.closed, (error.what,)))
        shown: list[dict[str, object]] = [
            {
                "file": result.file.local if result.file else "?",
                "path": result.path,
                "size": result.length if result.file else Path(result.path).stat().st_size,
                "frames": result.frames,
                "rows": result.rows,
                "repeated": result.repeated or None,
                "streams": result.streams,
                "state": ("CLOSED" if result.closed else "OPEN") if result.file else "UNREADABLE",
                "problems": list(result.problems),
            }
            for result in checked
        ]
        for line, result in () if printer.as_json else zip(shown, checked, strict=True):
            line |= {
                "file": line["file"] if result.file else result.path,
                "size": bytes_text(result.length) if result.file else "",
                "problems": "; ".join(result.problems),
            }
        bad = [result for result in checked if result.problems]
        with print_before_error(bad):
            printer.rows(shown, _CHECKED, "no files")
            stored = sum(row.is_stored for row in cluster.ledger.files.all(cluster.config.cluster.host))
            if stored and not files:
                printer.line(f"not looked at: {counted(stored, 'more file')} in the store")
        if bad:
            damaged = f"{len(bad)} of {counted(len(checked), 'file')} damaged"
            what = f"{damaged}; the first: {bad[0].path}: {bad[0].problems[0]}"
            raise CorruptFrameError(what, "Keep them, and see walship status for what peers have of them")


def wal_salvage(
    invocation: Invocation,
    file: FileArgument,
    yes: Annotated[bool, Option("--yes", help="Confirm. Without it nothing is changed.")] = False,
) -> None:
    """Salvage a missing or damaged file: save what can be read, and go on without the rest.

    The sender of a landing file sends the rest again. The rest of a file that was written here is lost where it has not
    arrived. Without --yes this shows what would be saved, sent again and lost, and changes nothing.
    """
    from peer.repair.describe import as_json, lines
    from peer.repair.salvage import SalvageSite, plan_salvage, salvage
    from replication.files.local import LocalFiles

    with invocation.connect() as (cluster, printer):
        row = _find(cluster, file)
        if isinstance(row, Path):
            raise MissingFileError(f"the ledger has no file {file}", "See walship wal list")
        coordination = cluster.coordination if cluster.config.shares_ledger else None
        site = SalvageSite(cluster.config, cluster.ledger, LocalFiles(), coordination)
        done = salvage(site, row.file) if yes else None
        plan = plan_salvage(site, row.file) if done is None else done.plan
        names = {spec.uuid: spec.name for spec in cluster.ledger.tables.all()}
        copies, damaged = (done.copies, done.damaged) if done else (None, "")
        shown = as_json(plan, names) | {"copies": copies.local if copies else "", "damaged": damaged}
        printer.value(shown if printer.as_json else {name: value for name, value in shown.items() if value})
        for line in lines(plan, names):
            printer.line(line)
        if done is None:
            raise RequestError(
                f"{row.file.local} is still in the ledger: nothing was changed",
                "Restore the file if you can; else say --yes to accept what is listed above",
            )


def _chosen(cluster: Cluster, files: list[str]) -> Iterator[tuple[Path, FileRow | None]]:
    if files:
        yield from (_found_here(cluster, file) for file in files)
        return
    for row in cluster.ledger.files.all(cluster.config.cluster.host):
        if not row.is_stored:
            yield Path(row.path), row


def _found_here(cluster: Cluster, given: str) -> tuple[Path, FileRow | None]:
    found = _find(cluster, given)
    if isinstance(found, Path):
        return found, None
    if not found.is_stored and found.host != cluster.config.cluster.host:
        raise RequestError(
            f"{found.file.local} lies on host {found.host}, at {found.path}", "Run the command on that host"
        )
    return _local(found), found


def _find(cluster: Cluster, given: str) -> FileRow | Path:
    rows = cluster.ledger.files.all()
    slot = cluster.config.cluster.host
    for row in rows:
        is_here = row.host == slot and Path(given).absolute() == Path(row.path)  # others may have that path, too
        if given in (row.file.local, str(row.file)) or is_here or row.is_stored and given == row.path:
            return row
    if given.isdecimal():
        for row in rows:
            if row.file.number == int(given) and row.host == slot:
                return row
    path = Path(given)
    if not path.exists():
        raise MissingFileError(f"there is no file {given}", "See walship wal list")
    if not path.is_file():
        raise RequestError(f"{given} is no file", "Name a file; see walship wal list")
    return path


def _local(row: FileRow) -> Path:
    if row.is_stored:
        raise RequestError(f"{row.file.local} is in the store, at {row.path}", "Copy it here, and name the copy")
    return Path(row.path)


def _frame(cluster: Cluster, frame: FrameView) -> dict[str, object]:
    header = frame.header
    spec = cluster.ledger.tables.by_uuid(header.table)
    unknown = "" if header.table == NIL_UUID else str(header.table)  # what a worker writes is of no table
    return {
        "begin": frame.begin,
        "end": frame.end,
        "kind": header.kind.name.lower(),
        "table": spec.name if spec else unknown,
        "group": header.group,
        "origin": f"{header.wal.cluster.name}/{header.wal.local}",
        "sequence": header.sequence,
        "rows": header.row_count,
        "commit": header.commit_hi,
        "at": moment_text(header.commit_hi),
        "role_epoch": header.role_epoch,
        "batch": f"{header.batch_id} {header.part + 1}/{header.parts}" if header.batch_id else "",
        "through": " ".join(hop.name for hop in frame.provenance),
        "schema": header.schema.hex()[:12],
        "hash": frame.hash.hex()[:12],
    }


def _content(cluster: Cluster, view: WalView, frame: FrameView) -> list[dict[str, object]]:
    from replication.core.rows.batch import decode_payload

    version = cluster.ledger.tables.schema(frame.header.schema, frame.header.table)
    if version is None:
        raise FormatError(
            f"schema version {frame.header.schema.hex()[:12]} of the frame at offset {frame.begin} is not known here",
            "Dump it without --rows",
        )
    return list(decode_payload(view.payload(frame), version).to_pylist())


def _check_header(view: WalView) -> None:
    try:
        view.file()
    except CorruptFrameError as error:
        raise FormatError(f"{view.path}: {error.what}", "Name a WAL or landing file; see walship wal list") from None


def _print_frames(printer: Printer, found: list[dict[str, object]]) -> None:
    if printer.as_json:
        printer.value(found)
        return
    columns = ("begin", "end", "kind", "table", "group", "origin", "sequence", "rows", "at", "batch", "through")
    with_rows = [frame for frame in found if "content" in frame]
    if not with_rows:
        printer.rows(found, columns, "no frames")
        return
    for frame in found:
        printer.rows([frame], columns)
        content = frame.get("content")
        if isinstance(content, list) and content:
            printer.rows(content)
