"""What a cluster reads of its own table when another one compares it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from unittest.mock import patch
from uuid import uuid4

import pyarrow as pa
import pytest

from peer.tables.fold import merge_changes
from peer.tables.read import Reader
from peer.verify.answering import ComparisonServer
from peer.verify.digest import Reading, digest_of
from replication.core.definition.alter import add_group
from replication.link.questions import NOW, AskRead
from replication.tables.base import open_duckdb
from tests.replaying import TableSite
from tests.sites import rows, table

pytestmark = pytest.mark.heavy


def expected(kept: pa.Table) -> Mapping[int, tuple[int, int]]:
    with closing(open_duckdb()) as connection:
        connection.register("rows", kept)
        return Reading(connection, "rows", kept.column_names, ("id",)).buckets()


@pytest.mark.parametrize("folds", [False, True])
def test_rows_of_a_group_that_the_asker_has_not_are_not_compared(tmp_path: Path, folds: bool) -> None:
    site = TableSite(tmp_path, "west")
    with closing(site):
        asked = table()
        site.ledger.tables.create(asked)
        spec = site.ledger.tables.alter(
            asked.uuid, lambda own: add_group(own, "own", [("note", pa.string(), uuid4())], 1)
        )
        wal = site.wal("w0")
        wal.append(asked, rows(0, 2))
        wal.append(spec, pa.table({"id": [1, 2], "note": ["both", "only here"]}))
        wal.delete(asked, [{"id": 0}])
        wal.append(spec, pa.table({"id": [0], "note": ["deleted there"]}))
        site.register()
        site.replay()
        if folds:
            merge_changes(site.tables, spec, None)
        assert [row["id"] for row in site.shown(spec)] == [0, 1, 2]
        server = ComparisonServer(site.config, site.ledger, "east", tmp_path / "spill")
        with closing(server), patch.object(Reader, "catalog", site.tables):
            reading = server.open(AskRead(asked, ("default",), NOW))
            assert reading.digest() == digest_of(expected(rows(1, 1)))
            server._worker.close()
