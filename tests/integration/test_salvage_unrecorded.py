"""Before a file is salvaged the ledger learns what the tables have applied of it, or nothing is salvaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.repair.unrecorded import unrecorded_of
from replication.errors import RequestError
from replication.tables.layout import UNSYNCED_TAG, landing_name
from tests.fakes.tables import MemoryTables
from tests.integration.conftest import Warehouse
from tests.integration.replay_site import Site
from tests.integration.replay_site import settle as replay


class Killed(BaseException):
    """The replayer's end."""


@pytest.fixture
def tables() -> MemoryTables:
    return MemoryTables()


@pytest.fixture
def site(tmp_path: Path, tables: MemoryTables) -> Site:
    """A table with one commit that is marked."""
    made = Site(tmp_path, Warehouse(tables, tables.rollback, "ops"))
    made.put(("a", 1))
    replay(made.replayer())
    return made


def uncheckpointed(site: Site, tables: MemoryTables) -> None:
    """One more commit, whose replayer dies before it marks it."""

    def die(step: str) -> None:
        if step.startswith("appended") and site.received() == 2:
            raise Killed

    site.put(("b", 2))
    tables.fail = die
    with pytest.raises(Killed):
        replay(site.replayer())
    assert not site.applied() and site.rows() == {"a": 1, "b": 2}


def test_what_was_committed_and_not_marked_is_marked(site: Site, tables: MemoryTables) -> None:
    uncheckpointed(site, tables)
    for checkpoint in unrecorded_of(tables, site.ledger, site.spec.uuid):
        assert not site.applied(), "asking records nothing"
        site.ledger.replay.checkpoint_applied(checkpoint)
    assert site.applied()


def test_of_a_table_that_was_rolled_back_nothing_is_marked(site: Site, tables: MemoryTables) -> None:
    name = landing_name(site.spec)
    site.put(("b", 2))
    kept = tables.history(name).current
    replay(site.replayer())
    assert kept is not None
    tables.rollback(name, kept)
    with pytest.raises(RequestError, match="rolled back") as refused:
        unrecorded_of(tables, site.ledger, site.spec.uuid)
    assert refused.value.hint == "Run walship replay first"


def test_of_what_the_disk_may_have_lost_nothing_is_marked(site: Site, tables: MemoryTables) -> None:
    name = landing_name(site.spec)
    kept = tables.history(name).current
    assert kept is not None
    uncheckpointed(site, tables)
    tables.tag(name, UNSYNCED_TAG, kept)
    with pytest.raises(RequestError, match="the disk failed"):
        unrecorded_of(tables, site.ledger, site.spec.uuid)
    assert not site.applied()
