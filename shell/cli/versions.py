"""Prints the versions of a key, as ``trace`` finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shell.cli.render import Printer, moment_text, plain, seconds_text

if TYPE_CHECKING:
    from peer.tables.trace import Trace, Version


def show_trace(printer: Printer, found: Trace, *, values: bool) -> None:
    """Print a trace as a table; ``values`` with each version's values."""
    several = len({version.group for version in found.versions}) > 1
    rows = [_row(version, found.cluster, values) for version in found.versions]
    stamped = any(version.timestamp != version.commit for version in found.versions)
    more = (*(("timestamp",) if stamped else ()), "what", *(("group",) if several else ()))
    columns = ("counts", "committed", *more, "wal", "path", "applied")
    printer.rows(rows, (*columns, *(("values",) if values else ())), f"{found.cluster} has no version of this key")
    for text in found.unknown:
        printer.note(text)


def _row(version: Version, cluster: str, values: bool) -> dict[str, object]:
    waited = "-" if version.applied is None else f"+{seconds_text((version.applied - version.commit) / 1e6)}"
    path = " → ".join(version.path or (version.origin, *(("…", cluster) if version.origin != cluster else ())))
    return {
        "counts": "✔" if version.is_winner else "",
        "committed": moment_text(version.commit),
        "timestamp": moment_text(version.timestamp),
        "what": "delete" if version.is_delete else "upsert",
        "group": version.group,
        "wal": f"{version.wal} #{version.sequence}",
        "path": "; again ".join([path, *(" → ".join(other) for other in version.other_paths)]),
        "applied": "not yet" if version.stored_in == "landed" else waited,
        "values": ", ".join(f"{name}={_text(value)}" for name, value in version.values.items()) if values else "",
    }


def _text(value: object) -> object:
    return "NULL" if value is None else plain(value)
