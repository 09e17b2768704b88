"""Two replayers of one cluster: the newer one goes on where the older one stopped, and nothing is applied twice."""

from __future__ import annotations

from typing import Any

import pytest

from replication.errors import SupersededError
from replication.tables.layout import landing_name
from tests.integration.replay_site import Site, settle
from tests.tables_made import SIMPLE, keyed


def test_of_two_replayers_the_newer_goes_on_and_the_older_stops(site: Site) -> None:
    old = site.replayer()
    site.put(("a", 1))
    old.round()
    new = site.replayer()
    site.put(("b", 2))
    new.round()
    site.put(("c", 3))
    with pytest.raises(SupersededError):
        for _ in range(3):
            old.round()
    settle(new)
    assert site.rows() == {"a": 1, "b": 2, "c": 3}
    assert site.received() == 3


def test_of_two_replayers_that_read_the_same_positions_one_commit_wins(site: Site) -> None:
    first, second = site.replayer(), site.replayer()
    site.put(("a", 1))
    second.round()
    site.put(("b", 2))
    pending = site.ledger.replay.pending()
    site.ledger.replay.pending = lambda: pending  # type: ignore[method-assign]
    second.round()
    second.round()
    with pytest.raises(SupersededError):
        first.round()
        first.round()
    assert site.received() == 2


@pytest.mark.parametrize("when", ["selecting", "opening"])
@pytest.mark.parametrize("key", [(), ("k",)])
@pytest.mark.parametrize("warehouse", ["memory", "small"], indirect=True)
def test_who_takes_over_applies_nothing_that_the_one_before_applied_meanwhile(
    site: Site, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...], when: str
) -> None:
    spec = site.table(keyed(f"{site.warehouse.namespace}.log", SIMPLE, key))
    first = site.replayer()
    for keys in ("a", "bc"):
        site.put(*((k, 1) for k in keys), spec=spec)
        if keys == "a":
            settle(first)
    second = site.replayer()
    part: Any = site.ledger.replay if when == "selecting" else site.tables
    name = "pending" if when == "selecting" else "history"
    asked = getattr(part, name)

    def answered(*given: str) -> Any:
        answer = asked(*given)
        if not given or given[0] == landing_name(spec):
            monkeypatch.undo()
            first.round()
        return answer

    monkeypatch.setattr(part, name, answered)
    result = second.round()
    assert not result.held
    settle(second)
    site.put(("d", 1), spec=spec)
    settle(second)
    assert site.applied()
    rows = site.tables.query(f"select k from {site.tables.ref(landing_name(spec))}{' where _op >= 0' if key else ''}")
    assert sorted(rows.column(0).to_pylist()) == ["a", "b", "c", "d"]
