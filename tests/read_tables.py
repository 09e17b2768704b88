"""A cluster's Iceberg tables in a folder, with a reader that follows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peer.tables.commit_metadata import CommitMetadata
from peer.tables.read import Reader, read
from replication.core.definition.schema import TableSpec
from replication.tables.catalog.catalog import IcebergCatalog, configured_catalog
from replication.tables.layout import CHANGES
from tests.sites import Site
from tests.tables_made import append_decoded, as_decode, keyed
from tests.versions import Version, as_rows


class Tables:
    """A cluster's Iceberg tables, and both ways to read them."""

    def __init__(self, site: Site) -> None:
        self.catalog = IcebergCatalog(configured_catalog(site.config))
        self.reader = Reader(site.config, site.ledger)
        self.site = site
        self.replay = 0

    def create(self, name: str) -> TableSpec:
        spec = keyed(name)
        self.catalog.create(spec)
        return spec

    def commit(self, spec: TableSpec, *puts: tuple[str, int | None], at: int = 0) -> None:
        """A commit of replay; None deletes the key. The rows' commit time is ``at``, or the number of the commit."""
        self.replay += 1
        at = at or self.replay
        versions = [
            Version(key, "default", int(value is None), None, at, "e:1", self.replay, row, value)
            for row, (key, value) in enumerate(puts)
        ]
        changes, rows = (
            self.catalog.load(spec.name + CHANGES),
            as_decode(as_rows(spec, versions), {"_replay": self.replay}),
        )
        current = self.catalog.history(spec.name + CHANGES).current
        append_decoded(changes, rows, current, CommitMetadata(1, self.replay, {}).to_summary())

    def rows(self, spec: TableSpec, where: str | None = None) -> list[dict[str, Any]]:
        """What both ways of reading show."""
        here = sorted(self.reader.read(spec, where).read_all().to_pylist(), key=repr)
        assert here == sorted(read(self.catalog, spec, where).read_all().to_pylist(), key=repr)
        return here

    def files(self, spec: TableSpec) -> list[Path]:
        tasks = self.catalog.load(spec.name + CHANGES).scan().plan_files()
        return [Path(task.file.file_path.removeprefix("file://")) for task in tasks]


@contextmanager
def opened_tables(folder: Path) -> Iterator[Tables]:
    """Those of a new cluster in the folder."""
    site = Site(folder, "east")
    made = Tables(site)
    yield made
    made.reader.close()
    made.catalog.close()
    site.close()
