"""reincarnate, rebuildledger: a cluster that was restored from a backup, or has lost its ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated

from typer import Option

from replication import config as configuration
from replication.config import Config
from replication.error_text import counted
from replication.errors import RequestError
from shell.cli.invocation import Invocation


def reincarnate(
    invocation: Invocation,
    yes: Annotated[bool, Option("--yes", help="Confirm that it was restored, and that the original is gone.")] = False,
) -> None:
    """Give a stopped cluster that was restored from a backup a new id."""
    from peer.repair.reincarnate import reincarnate as change

    with _stopped(invocation, sure=yes) as config:
        done = change(config)
    old, new = done.was, done.now
    invocation.printer.value(
        {"was": str(old), "is": str(new), "taken_up": done.taken_up, "kept_beside": done.kept_beside},
        f"{old} is {new} now. Start it, then on each peer: deletecluster {new.name}, definecluster {new.name} …, and"
        " enablereplication --bootstrap for what it is to get back",
    )
    if done.taken_up:
        invocation.printer.line(f"{counted(done.taken_up, 'file')} here, newer than the ledger: taken up")
    for line in done.kept_beside:
        invocation.printer.note(f"not all of a file that is newer than the ledger is taken up: {line}")


def rebuildledger(
    invocation: Invocation,
    yes: Annotated[bool, Option("--yes", help="Confirm that the ledger is lost, or too old to use.")] = False,
) -> None:
    """Rebuild the lost ledger of a stopped cluster from its files and tables, under a new id."""
    from peer.repair.rebuild import damage_lines, rebuild_ledger
    from replication.files.local import LocalFiles
    from replication.tables.catalog.catalog import IcebergCatalog, configured_catalog

    with _stopped(invocation, sure=yes) as config:
        if config.shares_ledger:
            raise RequestError(
                "several hosts share the ledger, so it cannot be rebuilt from the files of this one",
                "Restore it from PostgreSQL's own backup, then, on each host: walship reincarnate",
            )
        with closing(IcebergCatalog(configured_catalog(config))) as catalog:
            made = rebuild_ledger(config, catalog, LocalFiles())
    printer = invocation.printer
    printer.value(
        made,
        f"a ledger of {made.cluster} from {counted(len(made.tables), 'table')}"
        f" ({counted(made.sequences, 'frame')} applied) and {counted(made.files, 'file')}. Start it, define its peers"
        " again, and on each of them: deletecluster, definecluster, and enablereplication --bootstrap",
    )
    for line in damage_lines(made):
        printer.note(line)


@contextmanager
def _stopped(invocation: Invocation, *, sure: bool) -> Iterator[Config]:
    """The configuration of a cluster that does not run on this host, nor starts meanwhile; its header is printed."""
    from peer.repair.guards import check_unused
    from replication.files.local import LocalFiles
    from shell.processes.preflight import data_dir_lock

    file = invocation.config_file("--cluster")
    config = configuration.load(file)
    invocation.printer.header(config.cluster.name, str(file))
    with data_dir_lock(config):
        if not sure:
            raise RequestError(
                "the cluster gets a new id, and each of its peers must define it again", "Confirm with --yes"
            )
        check_unused(LocalFiles(), str(config.wal_dir), str(config.run_dir))
        yield config
