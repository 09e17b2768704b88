"""import: whole files into a table."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from replication.error_text import counted
from shell.cli.invocation import Invocation, UntilOption, table_option, timeout_option
from shell.cli.render import bytes_text

if TYPE_CHECKING:
    from replication.writer.importing.importer import Imported


def import_(
    invocation: Invocation,
    files: Annotated[list[Path], Argument(metavar="FILE", help="Parquet, Arrow, ORC or CSV files.")],
    table: Annotated[str, table_option("The table to import into.")],
    form: Annotated[
        str, Option("--format", metavar="parquet|arrow|orc|csv", help="Default: by each file's suffix.")
    ] = "",
    again: Annotated[bool, Option("--again", help="Import again what was imported before, as newer versions.")] = False,
    wait_for: Annotated[
        str | None, Option("--wait", metavar="CLUSTER", help="Wait until the rows are at this cluster.")
    ] = None,
    until: UntilOption = "visible",
    timeout_s: Annotated[float, timeout_option("How long --wait waits.")] = 600.0,
) -> None:
    """Import files of rows, each whole or not at all; they are durable here when it returns.

    Columns are matched by name. A file that was imported within the table's history_s, 3 days by default, is skipped:
    so repeat an import that was interrupted.
    """
    from shell.rows.awaiting import Wait, check_wait, print_written
    from shell.rows.importing import import_files

    with invocation.connect() as (cluster, printer):
        check_wait(cluster, wait_for, table)
        began = time.monotonic()
        done, position = import_files(cluster, table, files, form, printer, again=again)
        took = time.monotonic() - began
        new = [file for file in done if not file.repeated]
        rows, size = sum(file.rows for file in new), sum(file.file_bytes for file in new)
        result = {
            "table": table,
            "files": [_shown(file) for file in done],
            "rows": rows,
            "bytes": size,
            "seconds": round(took, 3),
        }
        before = f", {len(done) - len(new)} imported before" if len(new) < len(done) else ""
        rate = bytes_text(int(size / took)) if took else "0 B"
        text = (
            f"{len(new)} of {len(done)} files imported into {table}{before}: {counted(rows, 'row')} "
            f"({bytes_text(size)}) durable after {took:.1f} s, {rate}/s"
        )
        print_written(cluster, printer, result, text, position, Wait(wait_for, until, timeout_s))


def _shown(file: Imported) -> dict[str, object]:
    new = not file.repeated
    return {
        "file": file.path,
        "rows": file.rows if new else 0,
        "bytes": file.file_bytes,
        "wal_bytes": file.wal_bytes if new else 0,
        "repeated": file.repeated,
    }
