"""write, read, sql: rows in and out."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from replication.error_text import counted
from replication.errors import RequestError
from shell.cli.interrupting import GRACE_S, detached
from shell.cli.invocation import Invocation, TableArgument, UntilOption, timeout_option
from shell.cli.render import bytes_text
from shell.commands.tables import listed

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

    from peer.client.cluster import Cluster
    from peer.drill.session import OpenFork
    from shell.cli.render import Printer

OutputOption = Annotated[
    Path | None, Option("--output", "-o", metavar="FILE", help="Write a CSV or Parquet file, by its suffix.")
]
AtLeastOption = Annotated[
    str,
    Option(
        "--at-least",
        metavar="POSITION",
        help="Wait first until this is visible here: the position that write --json printed, on any cluster.",
    ),
]
BatchIdOption = Annotated[
    str | None,
    Option(
        "--batch-id",
        metavar="ID",
        help="If repeated within the table's history_s, add only what is missing. At most 256 MiB of rows; not for cell"
        " tables.",
    ),
]


@dataclass(frozen=True, slots=True)
class RowOptions:
    """How the rows of a file are written, and what is waited for then."""

    form: Annotated[
        str, Option("--format", metavar="csv|parquet|arrow|orc|json", help="Default: by the file's suffix.")
    ] = ""
    delete: Annotated[bool, Option("--delete", help="Delete the rows whose keys the file holds.")] = False
    batch_id: BatchIdOption = None
    wait_for: Annotated[
        str | None, Option("--wait", metavar="CLUSTER", help="Wait until the rows are at this cluster.")
    ] = None
    until: UntilOption = "visible"
    timeout_s: Annotated[float, timeout_option("How long --wait waits.")] = 60.0


def write(
    invocation: Invocation,
    table: TableArgument,
    source: Annotated[
        str,
        Argument(
            metavar="FILE",
            help=r"A CSV, Parquet, Arrow, ORC or JSON lines file; - is standard input. Binary values: \xNN, \\. In CSV,"
            " an empty field, NULL and NA are NULL unless quoted.",
        ),
    ],
    options: RowOptions,
) -> None:
    """Write the rows of a file to a table; they are durable here when it returns."""
    from shell.rows.awaiting import Wait, check_wait, print_written  # deferred: only this verb writes
    from shell.rows.writing import write_file

    with invocation.connect() as (cluster, printer):
        if os.environ.get("WALSHIP_DRILL"):
            raise RequestError(
                "write goes to the cluster itself, not to a drill's fork",
                'In a probe: walship sql "insert into …", or walship.drill() in Python',
            )
        check_wait(cluster, options.wait_for, table)
        began = time.monotonic()
        spec = cluster.table(table)
        written = write_file(
            cluster, spec, source, options.form, printer, delete=options.delete, batch_id=options.batch_id
        )
        rows, position = written.rows, written.position
        took = time.monotonic() - began
        noun = "delete" if options.delete else "row"
        result = {
            "table": table,
            "rows": rows,
            "bytes": written.bytes,
            "seconds": round(took, 3),
        }
        rate = rows / took if took else 0
        text = (
            f"{counted(rows, noun)} ({bytes_text(written.bytes)}) durable in {table} after {took:.1f} s, {rate:,.0f}/s"
        )
        wait = Wait(options.wait_for, options.until, options.timeout_s)
        print_written(cluster, printer, result, text, position, wait)


def read(
    invocation: Invocation,
    table: TableArgument,
    where: Annotated[str | None, Option("--where", "-w", metavar="SQL", help="A condition on its columns.")] = None,
    columns: Annotated[str, Option("--columns", metavar="COL,…", help="Columns to print. Default: all.")] = "",
    limit: Annotated[
        int | None, Option("--limit", "-n", metavar="N", min=0, help="Print at most this many rows.")
    ] = None,
    at_least: AtLeastOption = "",
    timeout_s: Annotated[float, timeout_option("How long to wait for --at-least.")] = 60.0,
    output: OutputOption = None,
) -> None:
    r"""Print the rows of a table, without Spark.

    Bytes that are not printable ASCII are shown as \xNN, and a backslash as \\; write reads them so.
    """
    with invocation.connect(header=sys.stdout.isatty()) as (cluster, printer):
        _reach(cluster, at_least, timeout_s)
        with _source(cluster) as source:
            found = source.read(table, where=where, columns=listed(columns) or None, limit=limit)
            _give(printer, iter(found), found.schema, output)


def sql(
    invocation: Invocation,
    query: Annotated[str, Argument(metavar="QUERY", help='For instance "select count(*) from ops.flights".')] = "",
    spark: Annotated[bool, Option("--spark", help="Run the query in Spark instead of DuckDB.")] = False,
    settings: Annotated[
        bool, Option("--settings", help="Print the settings with which your own Spark session reads the tables.")
    ] = False,
    at_least: AtLeastOption = "",
    timeout_s: Annotated[float, timeout_option("How long to wait for --at-least.")] = 60.0,
    output: OutputOption = None,
) -> None:
    """Query the tables in SQL, by DuckDB or Spark.

    Tables of the namespace default are named without it: select * from flights.
    """
    if settings == bool(query) or (settings and output):
        raise RequestError("sql takes a QUERY, or --settings", 'For instance: walship sql "show tables"')
    with invocation.connect(grace_s=0 if spark else GRACE_S, header=sys.stdout.isatty()) as (cluster, printer):
        if settings:
            from replication.tables.catalog.catalog import configured_catalog
            from replication.tables.spark.session import settings_for_others

            shown = settings_for_others(configured_catalog(cluster.config))
            printer.value(shown, "\n".join(f"{key} {value}" for key, value in shown.items()))
            return
        _reach(cluster, at_least, timeout_s)
        if not spark:
            with _source(cluster) as source:
                rows = source.sql(query)
                _give(printer, iter(rows), rows.schema, output)
            return
        from peer.client.on_demand import spark_sql  # deferred: most queries need none of it

        found = detached(lambda: spark_sql(cluster.config, cluster.ledger, cluster.tables(), query))
        _give(printer, iter(found.to_batches()), found.schema, output)


@contextmanager
def _source(cluster: Cluster) -> Iterator[Cluster | OpenFork]:
    """What is read: the cluster's tables or, in a probe, the fork of the drill that runs it."""
    from replication.tables.pandas_later import load_pandas_later  # deferred, as are all that load Arrow

    load_pandas_later()
    if not os.environ.get("WALSHIP_DRILL"):
        yield cluster
        return
    from peer.drill.opening import fork_of  # deferred: only probes read forks

    fork = fork_of(cluster.config, os.environ)
    assert fork is not None, "the environment names it"
    with fork:
        yield fork


def _reach(cluster: Cluster, at_least: str, timeout_s: float) -> None:
    """Wait until a position is visible here, if one is given."""
    if at_least:
        from replication.core.position import Position  # deferred: few reads wait

        cluster.wait(Position.from_json(at_least), timeout_s=timeout_s)


def _give(printer: Printer, batches: Iterator[RecordBatch], schema: Schema, output: Path | None) -> None:
    """Print rows, or save them in a file and say how many."""
    from shell.rows.reading import print_rows, save_rows  # deferred: it loads Arrow

    if output is None:
        print_rows(printer, batches, schema)
        return
    rows = save_rows(output, batches, schema)
    printer.value({"rows": rows, "file": str(output)}, f"{counted(rows, 'row')} in {output}")
