"""Tags change nothing else of a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from replication.errors import CommitConflictError
from replication.tables.pyiceberg.tags import set_tag
from tests.unit.tables.pyiceberg.small_table import Small


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return Small(tmp_path)


def test_a_tag_leaves_the_tables_properties_as_they_were(small: Small) -> None:
    before = dict(small.catalog.load(small.name).metadata.properties)
    current = small.tables.history(small.name).current
    assert current is not None
    set_tag(lambda: small.catalog.load(small.name), "kept", current)
    set_tag(lambda: small.catalog.load(small.name), "kept", None)
    assert small.catalog.load(small.name).metadata.properties == before


def test_a_snapshot_that_expires_just_before_it_is_tagged_is_a_conflict(small: Small) -> None:
    (loaded, current) = small.catalog.load(small.name), small.tables.history(small.name).current
    small.append("g")
    small.tables.expire(small.name, 1 << 60, 1)
    loads = [loaded]
    with pytest.raises(CommitConflictError, match="has expired"):
        set_tag(lambda: loads.pop() if loads else small.catalog.load(small.name), "kept", current)
