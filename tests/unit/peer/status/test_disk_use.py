"""What ``status`` says that files and tables take, per byte that was ever written or landed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from peer.status.collect import collect
from peer.status.disk_use import DiskUse
from peer.status.members import Members
from replication.core.shipping.retention import RetentionPolicy
from replication.ledger.base import FileKind
from shell.cli.invocation import Invocation
from shell.cli.render import Printer
from shell.commands.status import status
from tests.sites import Site, table

NO_TABLES = RetentionPolicy(keeps_tables=False)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, "east")
    yield made
    made.close()


def file_of(site: Site, host: str, kind: FileKind, length: int, **more: Any) -> None:
    """A CLOSED file of whole blocks, in the ledger and on the disk."""
    row = site.ledger.files.allocate(host, kind, str(site.config.wal_dir), "boot", "w", **more)
    site.ledger.registration.register_own(row.file, 256, length, [])
    site.ledger.files.close(row.file, length)
    path = Path(row.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(length))


def used(site: Site) -> DiskUse:
    return collect(site.config, site.ledger, Members()).disk_use


def test_every_host_counts_what_is_kept_of_all_against_what_was_written_on_all(site: Site) -> None:
    for _ in range(2):
        file_of(site, "h0", FileKind.WAL, 4096)
    first, _ = site.ledger.files.retirable("h0", NO_TABLES)
    site.ledger.files.retire(first.file, site.term, NO_TABLES)
    Path(first.path).unlink()
    with site.host("h1") as other:
        here, there = used(site), used(other)
    assert (here.wal, here.elsewhere, there.wal, there.elsewhere) == (4096, 0, 0, 4096)
    assert here.source_bytes == there.source_bytes == 8192
    assert here.per_byte == there.per_byte == 0.5


def test_a_bootstrap_that_was_received_is_kept_as_landed(site: Site) -> None:
    source = site.ledger.files.allocate("h9", FileKind.WAL, "/data/wal", "boot", "w").file
    file_of(site, "h0", FileKind.BOOTSTRAP, 4096, source=source)
    assert (used(site).wal, used(site).landing) == (0, 4096)


def test_tables_are_counted_by_what_they_are_for(site: Site) -> None:
    site.ledger.tables.create(table())
    for name, size in (("flights", 5), ("flights__tombstones", 7), ("flights__changes", 11)):
        folder = site.config.warehouse_dir / "ops" / name
        folder.mkdir(parents=True)
        (folder / "a.parquet").write_bytes(bytes(size))
    assert (used(site).changes, used(site).tables) == (11, 12)


@pytest.mark.parametrize(
    "catalog",
    [{"warehouse": "s3://bucket/east"}, {"pyiceberg": {"type": "rest"}, "spark": {"type": "rest"}}],
    ids=["elsewhere", "another catalog"],
)
def test_tables_that_lie_elsewhere_are_said_not_to_be_told(tmp_path: Path, catalog: dict[str, Any]) -> None:
    site = Site(tmp_path, "east", catalog=catalog)
    site.ledger.tables.create(table())
    file_of(site, "h0", FileKind.WAL, 4096)
    found = used(site)
    assert (found.changes, found.tables, found.per_byte, found.wal) == (None, None, None, 4096)
    out = io.StringIO()

    @contextmanager
    def connect() -> Iterator[Any]:
        told = SimpleNamespace(status=lambda: collect(site.config, site.ledger, Members()), name="east")
        yield told, Printer(False, Console(file=out, width=500))

    status(cast(Invocation, SimpleNamespace(connect=connect)))
    assert "changes unknown, tables unknown\n" in out.getvalue()
    site.close()
