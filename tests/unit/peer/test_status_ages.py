"""Ages in ``walship status``."""

from contextlib import ExitStack
from pathlib import Path

from peer.derive.progress import derived_here
from peer.status import age_s
from tests.deriving import DerivingSite
from tests.unit.peer.test_derived import PUBLIC, people, rows


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
        site.ledger.derivations.settle(derivation, derivation.position, 5_000_000, 1)
        wal.append(spec, rows((2, "bob", 5)))
        site.catch_up()
        specs = {each.uuid: each for each in site.ledger.tables.all()}
        lags = [next(derived_here(site.ledger, specs, now)).lag_s for now in (2_000_000, 7_000_000)]
        assert lags == [0, 2]
