"""Ages in ``walship status``."""

import time
from contextlib import ExitStack, closing
from pathlib import Path

from peer.derive.progress import derived_here
from peer.status.collect import age_s, collect
from peer.status.members import Members
from peer.tables.fold import fold
from replication.core.routes.freshness import ClosedNotice
from tests import sites
from tests.deriving import DerivingSite
from tests.noted import note_closed
from tests.replaying import TableSite
from tests.unit.peer.derive.test_derived import PUBLIC, people, rows


def test_what_another_clock_dates_after_now_is_not_younger_than_now() -> None:
    assert age_s(5_000_000, 0) is None
    assert age_s(5_000_000, 3_500_000) == 1.5
    assert age_s(5_000_000, 5_160_000) == 0.0


def test_a_source_whose_clock_is_ahead_leaves_no_lag_below_zero(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = DerivingSite(tmp_path, "east", stack)
        spec = people()
        site.ledger.tables.create(spec)
        public = site.define("ops.public", "ops.people", "select", PUBLIC)
        wal = site.wal()
        wal.append(spec, rows((1, "ann", 5)))
        site.derive(public)
        derivation = site.derivation(public)
        site.ledger.derivations.finish(derivation, derivation.position, 5_000_000, 1)
        wal.append(spec, rows((2, "bob", 5)))
        site.catch_up()
        specs = {each.uuid: each for each in site.ledger.tables.all()}
        lags = [next(derived_here(site.ledger, specs, now)).lag_s for now in (2_000_000, 7_000_000)]
        assert lags == [0, 2]


def test_a_table_is_as_old_as_what_was_folded_last(tmp_path: Path) -> None:
    def told() -> tuple[int, float | None]:
        (here,) = collect(site.config, site.ledger, Members()).tables
        return here.folded_upto, here.age_s

    with closing(TableSite(tmp_path, "east")) as site:
        spec = sites.table()
        site.ledger.tables.create(spec)
        site.wal().append(spec, sites.rows(0, 3))
        site.register()
        site.replay()
        assert told() == (0, None), "it was never folded"
        now = time.time_ns() // 1000
        for past_s in (90, 40):
            closed = now - past_s * 1_000_000
            note_closed(site.ledger, site.cluster, ClosedNotice(closed, ()))
            fold(site.tables, site.ledger, spec, now, 3600)
            upto, age = told()
            assert upto == closed and age is not None and past_s <= age < past_s + 30
