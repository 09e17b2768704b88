"""Tags change nothing else of a table."""

from __future__ import annotations

from pathlib import Path

import pytest

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
